//! Incremental detokenizer: decodes tokens to text as they are generated.

use std::sync::Arc;

use super::pieces::Pieces;

/// Detokenizer of one output: turns token ids into text, and holds back the bytes of a character
/// until it is complete.
///
/// The pieces together equal the text of all tokens decoded at once, except that a leading space is
/// kept, because an output continues a prompt.
#[derive(Debug)]
pub struct Detokenizer {
    pieces: Arc<Pieces>,
    skip_special: bool,
    /// Bytes of a character whose remaining bytes have not arrived yet.
    pending: Vec<u8>,
}

impl Detokenizer {
    pub(super) fn new(pieces: Arc<Pieces>, skip_special: bool) -> Self {
        Self { pieces, skip_special, pending: Vec::new() }
    }

    /// Appends to `text` the characters that token `id` completes. An id without a token adds
    /// nothing.
    pub fn push(&mut self, id: u32, text: &mut String) {
        let Some(piece) = self.pieces.get(id) else { return };
        if self.skip_special && piece.is_special {
            return;
        }
        // Fast path: most tokens are whole characters.
        if self.pending.is_empty()
            && let Ok(whole) = std::str::from_utf8(piece.bytes)
        {
            text.push_str(whole);
            return;
        }
        self.pending.extend_from_slice(piece.bytes);
        let mut rest = self.pending.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(whole) => {
                    text.push_str(whole);
                    rest = &[];
                    break;
                }
                Err(err) => {
                    let (whole, after) = rest.split_at(err.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(whole));
                    match err.error_len() {
                        // An unfinished character waits for the next token.
                        None => {
                            rest = after;
                            break;
                        }
                        Some(wrong) => {
                            text.push(char::REPLACEMENT_CHARACTER);
                            rest = &after[wrong..];
                        }
                    }
                }
            }
        }
        let kept = rest.len();
        self.pending.drain(..self.pending.len() - kept);
    }

    /// Appends what was held back at the end of the output: an unfinished character becomes U+FFFD.
    pub fn finish(&mut self, text: &mut String) {
        text.push_str(&String::from_utf8_lossy(&self.pending));
        self.pending.clear();
    }
}
