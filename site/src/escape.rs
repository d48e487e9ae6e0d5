//! Escaping for HTML and Markdown. Text becomes markup here and in `schema::untrusted` alone.

pub use schema::untrusted::{code_span, fence};

/// Escapes `text` for HTML elements and quoted attributes.
pub fn html(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// Escapes `text` for running Markdown and table cells: one line that contains no markup.
pub fn markdown(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut before = ' ';
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            // Every Markdown parser takes an underscore within a word as plain text.
            '_' if before.is_alphanumeric() && rest.peek().is_some_and(|c| c.is_alphanumeric()) => {
                out.push('_');
            }
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '~' => {
                out.push('\\');
                out.push(c);
            }
            // Neither an address nor a mention may become a link.
            ':' if rest.peek() == Some(&'/') => out.push_str("&#58;"),
            '@' if !before.is_alphanumeric() => out.push_str("&#64;"),
            '\n' | '\r' => out.push(' '),
            c => out.push(c),
        }
        before = c;
    }
    out
}

/// Formats `text` as an HTML code element.
pub fn html_code(text: &str) -> String {
    format!("<code>{}</code>", html(text))
}

/// Formats a message in which back-ticks enclose names, as messages of the programs do: `name`
/// formats the text between two back-ticks, `prose` the rest. A back-tick without a partner is
/// prose.
pub fn ticks(text: &str, prose: fn(&str) -> String, name: fn(&str) -> String) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('`') {
        let Some((inside, behind)) = after.split_once('`') else { break };
        out.push_str(&prose(before));
        out.push_str(&name(inside));
        rest = behind;
    }
    out.push_str(&prose(rest));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn html_leaves_no_markup() {
        assert_eq!(html(r#"<a href="x">'&"#), "&lt;a href=&quot;x&quot;&gt;&#39;&amp;");
    }

    #[test]
    fn markdown_leaves_no_markup() {
        for (text, expected) in [
            ("a|b", r"a\|b"),
            ("`x` **y** ~~z~~", r"\`x\` \*\*y\*\* \~\~z\~\~"),
            ("snake_case _em_", r"snake_case \_em\_"),
            ("![i](u)", r"!\[i\](u)"),
            ("https://x", "https&#58;//x"),
            ("<img src=x>\n# h", "&lt;img src=x&gt; # h"),
            ("@all x@1", "&#64;all x@1"),
        ] {
            assert_eq!(markdown(text), expected);
        }
    }

    #[test]
    fn names_in_back_ticks_are_code() {
        assert_eq!(ticks("`a<b` is <c>", html, html_code), "<code>a&lt;b</code> is &lt;c&gt;");
        assert_eq!(ticks("`a|b` is *c*", markdown, code_span), r"`a\|b` is \*c\*");
        assert_eq!(ticks("lone ` tick", html, html_code), "lone ` tick");
    }
}
