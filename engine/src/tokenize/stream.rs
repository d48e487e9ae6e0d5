//! Decoding a stream of tokens as they are generated.

use std::sync::Arc;

use super::pieces::Pieces;

/// Turns tokens into text, holding back the bytes of a character until it is whole.
///
/// The texts given out, one after another, are what decoding all tokens at once gives, with the
/// leading space kept: a generation continues a prompt.
#[derive(Debug)]
pub struct Detokenizer {
    pieces: Arc<Pieces>,
    skip_special: bool,
    /// Bytes of a character whose rest has not come yet.
    pending: Vec<u8>,
}

impl Detokenizer {
    pub(super) fn new(pieces: Arc<Pieces>, skip_special: bool) -> Self {
        Self { pieces, skip_special, pending: Vec::new() }
    }

    /// Appends to `text` what token `id` completes; an id without a token adds nothing.
    pub fn push(&mut self, id: u32, text: &mut String) {
        let Some(piece) = self.pieces.get(id) else { return };
        if self.skip_special && piece.is_special {
            return;
        }
        // Most tokens are whole characters.
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

    /// Appends what is left at the end: a character that was never finished becomes U+FFFD.
    pub fn finish(&mut self, text: &mut String) {
        text.push_str(&String::from_utf8_lossy(&self.pending));
        self.pending.clear();
    }
}
