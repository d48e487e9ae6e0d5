//! Text from outside: names and messages that a record brings along. Cleaned once, when a view
//! is made; escaping for HTML or Markdown is left to the templates.

/// Longest name shown; a longer one is cut, the record has it whole.
const NAME_MAX: usize = 120;
/// Longest message shown.
const MESSAGE_MAX: usize = 400;

/// A name: one line without invisible characters, cut at 120.
#[must_use]
pub fn name(text: &str) -> String {
    clip(&one_line(text), NAME_MAX)
}

/// A sentence or message: one line without invisible characters, cut at 400.
#[must_use]
pub fn message(text: &str) -> String {
    clip(&one_line(text), MESSAGE_MAX)
}

/// Many lines, each without invisible characters; the line breaks stay.
#[must_use]
pub fn block(text: &str) -> String {
    let visible =
        |c: char| if c != '\n' && (c.is_control() || reorders(c)) { '\u{fffd}' } else { c };
    text.chars().map(visible).collect()
}

/// The first `digits` characters of a hash, for display beside the whole one.
#[must_use]
pub fn short_hash(text: &str, digits: usize) -> String {
    name(text).chars().take(digits).collect()
}

/// A command line for a shell, each argument quoted where a shell would need it.
#[must_use]
pub fn command(argv: &[String]) -> String {
    let quoted: Vec<String> = argv.iter().map(|part| quote(&name(part))).collect();
    quoted.join(" ")
}

fn quote(part: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@%+{}".contains(c);
    if !part.is_empty() && part.chars().all(plain) {
        return part.to_owned();
    }
    format!("'{}'", part.replace('\'', r"'\''"))
}

fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len().min(4 * MESSAGE_MAX));
    // What is beyond the cut is not looked at, so that a hostile length costs nothing.
    for c in text.chars().take(4 * MESSAGE_MAX) {
        match c {
            '\n' | '\r' | '\t' | '\u{2028}' | '\u{2029}' => line.push(' '),
            c if c.is_control() || reorders(c) => line.push('\u{fffd}'),
            c => line.push(c),
        }
    }
    if text.chars().nth(4 * MESSAGE_MAX).is_some() {
        line.push('…');
    }
    line.trim().to_owned()
}

/// Characters that change the order or the look of what follows them (Unicode, UAX 9), and those
/// without width that make two names look alike.
fn reorders(c: char) -> bool {
    matches!(c, '\u{061c}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

fn clip(text: &str, max: usize) -> String {
    match text.char_indices().nth(max) {
        Some((end, _)) => format!("{}…", text[..end].trim_end_matches('…')),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_line_of_visible_characters() {
        assert_eq!(name("a\nb\tc"), "a b c");
        assert_eq!(name("abc\u{202e}gnp.exe"), "abc\u{fffd}gnp.exe");
        assert_eq!(name("\u{1b}[31mred"), "\u{fffd}[31mred");
        assert_eq!(name("naïve 模型"), "naïve 模型");
    }

    #[test]
    fn a_long_text_is_cut_and_says_so() {
        let long = "é".repeat(10_000);
        assert_eq!(name(&long).chars().count(), NAME_MAX + 1);
        assert_eq!(message(&long).chars().count(), MESSAGE_MAX + 1);
        assert!(name(&long).ends_with('…'));
    }

    #[test]
    fn a_command_line_can_be_pasted() {
        let argv = ["redline", "serve", "{model}", "--model-name", "it's $HOME", ""];
        let argv: Vec<String> = argv.into_iter().map(str::to_owned).collect();
        assert_eq!(command(&argv), r"redline serve {model} --model-name 'it'\''s $HOME' ''");
    }
}
