//! Marks in text that arrives piece by piece.

/// Returns the length in bytes of the longest suffix of `text` that is a proper prefix of `mark`:
/// text that may become the mark with the next piece.
pub fn overlap(text: &str, mark: &str) -> usize {
    let longest = text.len().min(mark.len().saturating_sub(1));
    (1..=longest)
        .rev()
        .find(|&n| mark.is_char_boundary(n) && text.as_bytes().ends_with(&mark.as_bytes()[..n]))
        .unwrap_or(0)
}
