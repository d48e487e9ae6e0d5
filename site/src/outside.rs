//! Cleans untrusted text: names and messages in records. Text is cleaned once, when a view is
//! made; templates escape it for HTML or Markdown.

use schema::shell;
use schema::untrusted::is_hidden;

/// Largest length of a shown name, in characters; a longer one is cut, and the record has it whole.
const NAME_MAX: usize = 120;
/// Largest length of a shown message, in characters; a longer one is cut.
const MESSAGE_MAX: usize = 400;
/// Largest length of a shown configuration or setting, in characters; a longer one is cut.
const LINE_MAX: usize = 900;

/// Cleans a name: one line, cut at 120 characters, with U+FFFD in place of control and invisible
/// characters.
pub fn name(text: &str) -> String {
    clip(&one_line(text), NAME_MAX)
}

/// Cleans a sentence or message: one line, cut at 400 characters, with U+FFFD in place of control
/// and invisible characters.
pub fn message(text: &str) -> String {
    clip(&one_line(text), MESSAGE_MAX)
}

/// Cleans a configuration or a setting: one line, cut only at 900 characters, because the last flag
/// may be all that tells two apart.
pub fn line(text: &str) -> String {
    clip(&one_line(text), LINE_MAX)
}

/// Cleans a text of several lines: keeps line breaks, and puts U+FFFD in place of other control
/// characters and of invisible ones. Does not cut the text.
pub fn block(text: &str) -> String {
    let visible = |c: char| if c != '\n' && is_hidden(c) { '\u{fffd}' } else { c };
    text.chars().map(visible).collect()
}

/// Returns the first `digits` characters of a hash or another text, cleaned for display.
pub fn short_hash(text: &str, digits: usize) -> String {
    name(text).chars().take(digits).collect()
}

/// Formats a command line for a shell, quoting arguments where a shell requires it. Each argument
/// is cleaned as a name, so one of more than 120 characters is cut.
pub fn command(argv: &[impl AsRef<str>]) -> String {
    let words: Vec<String> = argv.iter().map(|part| name(part.as_ref())).collect();
    shell::line(&words)
}

/// Formats the beginning of a command line that sets the variable `name`; `None` where the shell
/// would run other code by it, or it is no name of a variable. The value is cleaned as a name.
pub fn assignment(variable: &str, value: &str) -> Option<String> {
    shell::assignment(variable, &name(value))
}

fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len().min(4 * MESSAGE_MAX));
    // Text beyond the cut is not read, so that a hostile length costs nothing.
    for c in text.chars().take(4 * MESSAGE_MAX) {
        match c {
            '\n' | '\r' | '\t' | '\u{2028}' | '\u{2029}' => line.push(' '),
            // Replaced and not removed, so that the reader sees that something was there.
            c if is_hidden(c) => line.push('\u{fffd}'),
            c => line.push(c),
        }
    }
    if text.chars().nth(4 * MESSAGE_MAX).is_some() {
        line.push('…');
    }
    line.trim().to_owned()
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
        assert_eq!(line(&long).chars().count(), LINE_MAX + 1);
        assert!(name(&long).ends_with('…'));
    }

    #[test]
    fn a_command_line_can_be_pasted() {
        let argv = ["redline", "serve", "{model}", "--model-name", "it's $HOME", ""];
        assert_eq!(command(&argv), r"redline serve {model} --model-name 'it'\''s $HOME' ''");
    }
}
