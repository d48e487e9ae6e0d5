//! Text of others (records, servers, files) on its way to a terminal, into JSON that is printed, or
//! into Markdown: escaped there, so that a reader sees it and it does nothing.

use std::borrow::Cow;
use std::error::Error;
use std::fmt::Write as _;
use std::iter;
use std::path::Path;

/// Largest part of a line of a file that an error quotes, in characters: the file may be another
/// than the user meant, with lines of any length.
const QUOTED_MAX: usize = 200;
/// Largest list of accepted names in an error, in characters.
const ACCEPTED_MAX: usize = 1000;

/// True for a character that is not shown as itself: a control character, one that changes the
/// order of the text around it (Unicode, UAX 9), or one without width, by which two different texts
/// look equal.
pub fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{2069}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}')
}

/// Returns `text` as one line for a terminal: hidden characters, line feeds among them, are written
/// as escapes such as `\n` and `\u{1b}`.
pub fn one_line(text: &str) -> String {
    escaped(text, |c, out| out.extend(c.escape_default()))
}

/// Returns the first `chars_max` characters of `text` as [`one_line`] does, with an ellipsis where it
/// is longer.
pub fn excerpt(text: &str, chars_max: usize) -> String {
    one_line(&shortened(text, chars_max))
}

/// Returns the first `chars_max` characters of `text`, with an ellipsis where it is longer.
pub fn shortened(text: &str, chars_max: usize) -> Cow<'_, str> {
    match text.char_indices().nth(chars_max) {
        Some((end, _)) => format!("{}…", &text[..end]).into(),
        None => text.into(),
    }
}

/// Returns the message of a parser. At most 200 characters of each line are quoted, in which nothing
/// acts on a terminal.
pub fn parser_message(error: &impl ToString) -> String {
    // A line of the message quotes the file; the names that are accepted follow that.
    let shortened = |line: &str| {
        let (quoted, accepted) = line.split_at(line.rfind(", expected").unwrap_or(line.len()));
        excerpt(quoted, QUOTED_MAX) + &excerpt(accepted, ACCEPTED_MAX)
    };
    error.to_string().lines().map(shortened).collect::<Vec<_>>().join("\n")
}

/// Returns the message of `error`; that of a parser as [`parser_message`] does.
pub fn message(error: &(dyn Error + 'static)) -> String {
    match error.downcast_ref::<serde_json::Error>() {
        Some(error) => parser_message(error),
        None => error.to_string(),
    }
}

/// Returns the [`message`] of `error` and of each of its causes for a terminal, as [`lines`] does.
pub fn report(error: &(dyn Error + 'static)) -> String {
    let causes = iter::successors(Some(error), |&error| error.source());
    lines(&causes.map(message).collect::<Vec<_>>().join(": "))
}

/// Returns `text` for a terminal like [`one_line`], but with its line feeds, for a message of which
/// each foreign part is already one line.
pub fn lines(text: &str) -> String {
    escaped(text, |c, out| match c {
        '\n' => out.push('\n'),
        c => out.extend(c.escape_default()),
    })
}

/// Returns the JSON document `text` with hidden characters within its strings as JSON's own
/// escapes, such as `\u202e`: the same document, which does nothing to a terminal.
pub fn json(text: &str) -> String {
    escaped(text, |c, out| match c {
        // JSON has these between its tokens only.
        '\n' | '\r' | '\t' => out.push(c),
        c => {
            for unit in c.encode_utf16(&mut [0; 2]) {
                // Writing to a string cannot fail.
                let _ = write!(out, "\\u{unit:04x}");
            }
        }
    })
}

/// Returns `path` for a terminal as [`one_line`] does: folders of others have names of any kind.
pub fn path(path: &Path) -> String {
    one_line(&path.to_string_lossy())
}

/// Returns the scheme, host and port of the server's address `text` as one line, with an ellipsis in
/// place of the rest: keys stand in queries and paths, also in those that are not refused for it.
pub fn origin(text: &str) -> String {
    let text = address(text);
    let start = text.find("://").map_or(0, |at| at + 3);
    let end = text[start..].find(['/', '\\', '?', '#']).map_or(text.len(), |at| start + at);
    let rest = if end < text.len() { "/…" } else { "" };
    excerpt(&text[..end], QUOTED_MAX) + rest
}

/// Returns the address `text`, such as that of a git remote, for a terminal as [`one_line`] does, with
/// `***` in place of a user's name and password, of a query and of a fragment. The user of `git@host:x`,
/// which has no password, stays.
pub fn address(text: &str) -> String {
    let (scheme, rest) = text.split_at(text.find("://").map_or(0, |at| at + 3));
    // The last `@`, because a password that is not encoded may hold any character.
    let (user, rest) = match rest.rsplit_once('@') {
        Some((user, rest)) if !scheme.is_empty() || user.contains(':') => ("***@", rest),
        _ => ("", rest),
    };
    let end = rest.find(['?', '#']).filter(|_| !scheme.is_empty());
    let (place, query) = end.map_or((rest, ""), |end| (&rest[..=end], "***"));
    one_line(&format!("{scheme}{user}{place}{query}"))
}

/// Returns the text of another program with each [`address`] in it masked.
pub fn addresses(text: &str) -> String {
    let separates = |c: char| c.is_whitespace() || "'\"`<>".contains(c);
    let parts = text.split_inclusive(separates).map(|part| {
        let word = part.trim_end_matches(separates);
        address(word) + &part[word.len()..]
    });
    parts.collect()
}

/// Limit on the length of a web address, in bytes.
const ADDRESS_BYTES_MAX: usize = 500;

/// True for an address to which a page may link: `https`, a host with a domain, and no character
/// that has a meaning in HTML or Markdown. An address with a user or a port, or of a machine without
/// a domain, is none.
pub fn is_web_address(text: &str) -> bool {
    let Some(rest) = text.strip_prefix("https://") else { return false };
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let domain = host.rsplit_once('.').map_or("", |(_, domain)| domain);
    let is_of_host = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"\"'()<>[\\]^`{|}".contains(&byte);
    text.len() <= ADDRESS_BYTES_MAX
        && host.chars().all(is_of_host)
        && !domain.is_empty()
        && domain.chars().all(|c| c.is_ascii_alphabetic())
        && rest.bytes().all(is_plain)
}

/// Formats `text` as a Markdown code span that may stand in a table cell; empty for a blank text.
pub fn code_span(text: &str) -> String {
    let line = text.replace(['\n', '\r'], " ");
    if line.trim().is_empty() {
        return String::new();
    }
    let ticks = "`".repeat(longest_run(&line) + 1);
    // A table row is split at each pipe before code spans are parsed (GFM, 4.10).
    let line = line.replace('|', "\\|");
    let pad = if line.starts_with('`') || line.ends_with('`') { " " } else { "" };
    format!("{ticks}{pad}{line}{pad}{ticks}")
}

/// Formats `text` as a fenced Markdown code block.
pub fn fence(text: &str) -> String {
    let ticks = "`".repeat(longest_run(text).max(2) + 1);
    format!("{ticks}\n{}\n{ticks}", text.trim_end())
}

/// Returns the length of the longest run of back-ticks in `text`.
fn longest_run(text: &str) -> usize {
    let mut longest = 0;
    let mut run = 0;
    for c in text.chars() {
        run = if c == '`' { run + 1 } else { 0 };
        longest = longest.max(run);
    }
    longest
}

/// Copies `text` and passes each hidden character to `escape` instead.
fn escaped(text: &str, escape: impl Fn(char, &mut String)) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if is_hidden(c) {
            escape(c, &mut out);
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_terminal_acts_on_is_left() {
        let hostile = "a\u{1b}[31m\u{9b}31m\u{202e}b\r\u{7}\u{e0041}\nc\u{200b} é模";
        assert_eq!(
            one_line(hostile),
            r"a\u{1b}[31m\u{9b}31m\u{202e}b\r\u{7}\u{e0041}\nc\u{200b} é模"
        );
        assert_eq!(lines("x\ny\u{1b}\u{2028}"), "x\ny\\u{1b}\\u{2028}");
    }

    #[test]
    fn a_parser_quotes_little_and_says_what_it_expected() {
        #[derive(Debug, thiserror::Error)]
        #[error("not a number")]
        struct Outer(#[source] serde_json::Error);

        let text = format!("\"{}\"", "A".repeat(100_000));
        let said = report(&Outer(serde_json::from_str::<u64>(&text).unwrap_err()));
        assert!(said.starts_with("not a number: invalid type: string \"AAAA"), "{said}");
        assert!(said.ends_with("A…, expected u64 at line 1 column 100002"), "{said}");
        assert!(said.chars().count() < 300, "{said}");
    }

    #[test]
    fn json_stays_the_same_document() {
        let value = serde_json::json!({"\u{202e}a": "\u{9b}\u{e0041}é\n"});
        let text = serde_json::to_string_pretty(&value).unwrap();
        let safe = json(&text);
        assert!(safe.contains(r"\u202ea") && safe.contains(r"\u009b\udb40\udc41é\n"), "{safe}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&safe).unwrap(), value);
    }

    #[test]
    fn an_address_is_shown_without_what_may_be_secret() {
        for (text, shown, start) in [
            ("https://h.example/x.git", "https://h.example/x.git", "https://h.example/…"),
            ("https://u:s3cret@h/x", "https://***@h/x", "https://***@h/…"),
            ("https://u:s3@cr/et@h/x", "https://***@h/x", "https://***@h/…"),
            ("ssh://git@h:22/x", "ssh://***@h:22/x", "ssh://***@h:22/…"),
            ("http://h:8/x?key=s3cret#y", "http://h:8/x?***", "http://h:8/…"),
            ("127.0.0.1:8/s3cret", "127.0.0.1:8/s3cret", "127.0.0.1:8/…"),
            ("http://h:8/x#s3cret", "http://h:8/x#***", "http://h:8/…"),
            ("git@h:x.git", "git@h:x.git", "git@h:x.git"),
            ("u:s3cret@h:x.git", "***@h:x.git", "***@h:x.git"),
            ("https:/u:s3cret@h", "***@h", "***@h"),
            ("origin\u{1b}\nx", r"origin\u{1b}\nx", "origin/…"),
        ] {
            assert_eq!((address(text).as_str(), origin(text).as_str()), (shown, start), "{text}");
        }
        let said = "fatal: 'https://u:s3cret@h/x?t=s3cret' and http://s3cret@h: no";
        assert_eq!(addresses(said), "fatal: 'https://***@h/x?***' and http://***@h: no");
    }

    #[test]
    fn only_plain_https_addresses_are_links() {
        for address in ["https://example.org", "https://a-b.example.org/x_y.md?b=1&c=%20#d"] {
            assert!(is_web_address(address), "{address}");
        }
        let long = format!("https://example.org/{}", "a".repeat(ADDRESS_BYTES_MAX));
        for other in [
            "javascript:alert(1)",
            "http://example.org/",
            "HTTPS://example.org/",
            "https://",
            "https://localhost/x",
            "https://10.0.0.1/x",
            "https://user:word@example.org/",
            "https://example.org:8443/",
            "https://example.org/\"onclick=x",
            "https://example.org/a)[b](c",
            "https://example.org/a b",
            "https://example.org/\u{202e}",
            "//example.org",
            "../x.md",
            long.as_str(),
        ] {
            assert!(!is_web_address(other), "{other}");
        }
    }

    #[test]
    fn code_cannot_end_its_own_span_or_block() {
        assert_eq!(code_span("a|b"), r"`a\|b`");
        assert_eq!(code_span("a``b`"), "``` a``b` ```");
        assert_eq!(code_span(" "), "");
        assert_eq!(fence("x"), "```\nx\n```");
        assert_eq!(fence("```\nx"), "````\n```\nx\n````");
    }
}
