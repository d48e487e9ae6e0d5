//! Limits on regular expressions and choices before their grammar is built, which the grammar engine
//! does not have. They keep the building of a grammar below about a second and 64 MB.

use super::TextError;

/// Limit on the length in bytes of one regular expression. Parsing a character class takes time in
/// proportion to the square of its length.
const EXPRESSION_BYTES_MAX: usize = 8 * 1024;
/// Limit on the length in bytes of all regular expressions of a schema together.
const EXPRESSIONS_BYTES_MAX: usize = 64 * 1024;
/// Limit on the number of character classes in all regular expressions of a structure: a class such
/// as `\w` is a list of 750 ranges.
const CLASSES_MAX: usize = 512;
/// Limit on the number of character classes in a regular expression that ignores case somewhere:
/// each class may take 25 ms, because all its characters are looked up.
const FOLDED_CLASSES_MAX: usize = 16;
/// Cost in schemas, of up to 10 µs each, of a class whose characters are looked up.
const FOLDED_CLASS_COST: u64 = 400;
/// Limit on the number of texts of a choice.
const CHOICES_MAX: usize = 4096;
/// Limit on the length in bytes of all texts of a choice together.
const CHOICES_BYTES_MAX: usize = 64 * 1024;

/// Refuses a choice with too many or too long texts.
///
/// # Errors
/// The texts exceed a limit.
pub(super) fn check_choice(texts: &[String]) -> Result<(), TextError> {
    within("choices", texts.len(), CHOICES_MAX)?;
    within("bytes of choices", texts.iter().map(String::len).sum(), CHOICES_BYTES_MAX)
}

/// Returns an error if a structure has more of something than a limit allows.
pub(super) fn within(what: &str, count: usize, max: usize) -> Result<(), TextError> {
    if count <= max {
        return Ok(());
    }
    Err(TextError(format!("it has {count} {what}, more than the limit of {max}")))
}

/// Totals of the regular expressions of one structure.
#[derive(Debug, Default)]
pub(super) struct Expressions {
    bytes: usize,
    classes: usize,
}

impl Expressions {
    /// Adds a regular expression to the totals.
    ///
    /// # Errors
    /// The expression or the totals exceed a limit.
    pub(super) fn add(&mut self, expression: &str) -> Result<(), TextError> {
        let classes = count_classes(expression);
        self.bytes += expression.len();
        self.classes += classes;
        within("bytes in a regular expression", expression.len(), EXPRESSION_BYTES_MAX)?;
        within("bytes of regular expressions", self.bytes, EXPRESSIONS_BYTES_MAX)?;
        within("character classes", self.classes, CLASSES_MAX)?;
        if ignores_case(expression) {
            let what = "character classes in a regular expression that ignores case";
            within(what, classes, FOLDED_CLASSES_MAX)?;
        }
        Ok(())
    }
}

/// Returns the number of character classes in a regular expression, or a larger one. The operands of
/// an intersection, difference or symmetric difference are classes of their own.
fn count_classes(expression: &str) -> usize {
    let bytes = expression.as_bytes();
    let named = |pair: &&[u8]| pair[0] == b'\\' && b"dDpPsSwW".contains(&pair[1]);
    let operators = |pair: &&[u8]| [b"&&", b"--", b"~~"].iter().any(|operator| pair == *operator);
    bytes.iter().filter(|byte| **byte == b'[').count()
        + bytes.windows(2).filter(named).count()
        + 2 * bytes.windows(2).filter(operators).count()
}

/// Returns the cost, in schemas, of looking up the other case of the characters in the classes of a
/// regular expression, each time that the grammar engine parses it: 0 if it does not ignore case, or
/// if its classes can have few characters.
pub(super) fn folding_cost(expression: &str) -> u64 {
    let wide = |pair: &[u8]| pair[0] == b'\\' && b"dDpPsSwWxuU".contains(&pair[1]);
    let is_wide = !expression.is_ascii() || expression.as_bytes().windows(2).any(wide);
    match ignores_case(expression) && is_wide {
        true => FOLDED_CLASS_COST * count_classes(expression) as u64,
        false => 0,
    }
}

/// Returns an upper bound on the branches of a regular expression: the different sets of characters
/// from which the next character of a text may be, wherever the text is in the expression.
pub(super) fn branches(expression: &str) -> u64 {
    // Any text may stand before and after an expression without anchors.
    let is_anchored = expression.starts_with('^') && expression.ends_with('$');
    let mut branches = if is_anchored { 1 } else { 3 };
    let mut is_escaped = false;
    for byte in expression.bytes() {
        let is_branch = match is_escaped {
            true => b"dDpPsSwW".contains(&byte),
            false => b"[.|?*+{".contains(&byte),
        };
        branches += u64::from(is_branch);
        is_escaped = byte == b'\\' && !is_escaped;
    }
    branches
}

/// Returns true if a group of a regular expression sets the flag `i`.
fn ignores_case(expression: &str) -> bool {
    expression.split("(?").skip(1).any(|flags| {
        flags.bytes().take_while(|byte| byte.is_ascii_alphabetic()).any(|byte| byte == b'i')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_and_choices_are_limited_in_length_and_number() {
        let texts = |count: usize, bytes: usize| check_choice(&vec!["a".repeat(bytes); count]);
        let expression = |text: &str| Expressions::default().add(text);
        for (checked, want) in [
            (texts(4096, 16), ""),
            (texts(4097, 1), "4097 choices, more than the limit of 4096"),
            (texts(2, 40_000), "80000 bytes of choices"),
            // The grammar engine limits counts itself.
            (expression("((a{1,99}){1,99}){1,99}"), ""),
            (expression(&"a".repeat(9000)), "9000 bytes in a regular expression"),
            (expression(&r"\pL".repeat(600)), "600 character classes"),
            (expression(&format!("(?i){}", r"\w".repeat(17))), "17 character classes in a regular"),
            (expression(&format!("(?i)[{}]", ["a-z"; 9].join("&&"))), "17 character classes in a"),
            (expression(&format!("(?P<i>x)(?s:{})", r"\w".repeat(17))), ""),
        ] {
            let found = checked.map_or_else(|error| error.0, |()| String::new());
            assert_eq!(found.is_empty(), want.is_empty(), "{found} should say: {want}");
            assert!(found.contains(want), "{found} should say: {want}");
        }
    }

    #[test]
    fn branches_are_counted_where_a_text_may_go_on_in_several_ways() {
        for (expression, count) in [
            ("^abc$", 1),
            ("abc", 3),
            ("^(ab|cd)e*$", 3),
            (r"^\.\[a\\[b]\d$", 3),
            (r"^\w+([\.-]?\w+)*@\w{2,}$", 10),
        ] {
            assert_eq!(branches(expression), count, "{expression}");
        }
    }
}
