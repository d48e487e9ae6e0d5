//! Detokenizer: decodes output tokens to text as they are generated, by a table of each token's
//! bytes. Bytes of incomplete UTF-8, where a token ends within a character, are held back until the
//! character is complete.
//!
//! Decoding by table instead of the tokenizer's decoder guarantees that a stream of tokens decodes
//! to the same text as all tokens at once.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use tokenizers::Tokenizer;

use crate::guide::TokenBytes;

/// Incremental detokenizer: turns the tokens of one sequence into text, token by token.
pub trait Detokenizer: Send + fmt::Debug {
    /// Adds a token to the output and returns the text that it completes; empty while a character
    /// is unfinished, and for a token without text.
    fn push(&mut self, token: u32) -> String;

    /// Returns the text that was held back at the end of the output; an unfinished character
    /// becomes U+FFFD.
    fn finish(&mut self) -> String;
}

/// Detokenizer of one output: turns token ids into text, and holds back the bytes of a character
/// until it is complete.
///
/// The pieces together equal the text of all tokens decoded at once, except that a leading space is
/// kept, because an output continues a prompt.
#[derive(Debug)]
pub(super) struct TableDetokenizer {
    pieces: Arc<Pieces>,
    skip_special: bool,
    /// Bytes of an output character whose remaining bytes have not arrived yet.
    pending: Vec<u8>,
}

impl TableDetokenizer {
    pub(super) fn new(pieces: Arc<Pieces>, skip_special: bool) -> Self {
        Self { pieces, skip_special, pending: Vec::new() }
    }
}

impl Detokenizer for TableDetokenizer {
    fn push(&mut self, token: u32) -> String {
        let Some(piece) = self.pieces.get(token) else { return String::new() };
        if self.skip_special && piece.is_special {
            return String::new();
        }
        // Fast path: most tokens are whole characters.
        if self.pending.is_empty()
            && let Ok(whole) = std::str::from_utf8(piece.bytes)
        {
            return whole.to_owned();
        }
        self.pending.extend_from_slice(piece.bytes);
        let whole = match std::str::from_utf8(&self.pending) {
            Ok(all) => all.len(),
            // The bytes from the last invalid sequence on may be an unfinished character.
            Err(_) => {
                let chunks = self.pending.utf8_chunks();
                let unfinished = chunks.last().map_or(&[][..], |chunk| chunk.invalid());
                let waits =
                    std::str::from_utf8(unfinished).is_err_and(|error| error.error_len().is_none());
                self.pending.len() - if waits { unfinished.len() } else { 0 }
            }
        };
        let rest = self.pending.split_off(whole);
        String::from_utf8_lossy(&std::mem::replace(&mut self.pending, rest)).into_owned()
    }

    fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.pending)).into_owned()
    }
}

/// Largest number of ids without a token below the largest id of a vocabulary: models pad their
/// vocabularies, and tables have a place for each id.
const UNUSED_IDS_MAX: usize = 1 << 20;

/// Table of the bytes of all tokens of a vocabulary, one after another, by token id.
#[derive(Debug)]
pub(super) struct Pieces {
    bytes: Vec<u8>,
    /// End of each token's bytes as an offset in `bytes`, by token id; an id without a token has no
    /// bytes.
    ends: Vec<u32>,
    special: Vec<bool>,
    spelling: Spelling,
}

/// Convention by which a vocabulary writes bytes as characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spelling {
    /// GPT-2's convention: each byte is one printable character.
    ByteLevel,
    /// SentencePiece's convention: `▁` is a space, and `<0x0A>` is a byte.
    SentencePiece,
    /// No convention: tokens are plain UTF-8 text.
    Plain,
}

/// Bytes of one vocabulary token, and whether the token is special.
#[derive(Debug, Clone, Copy)]
struct Piece<'a> {
    bytes: &'a [u8],
    is_special: bool,
}

impl Pieces {
    /// Builds the table; an error, with the number, if the vocabulary has an id far beyond its size.
    pub(super) fn new(tokenizer: &Tokenizer) -> Result<Self, String> {
        let spelling = spelling(tokenizer);
        let vocabulary: BTreeMap<u32, String> =
            tokenizer.get_vocab(true).into_iter().map(|(token, id)| (id, token)).collect();
        let added = tokenizer.get_added_tokens_decoder();
        let from_char = byte_level_table();
        let len = vocabulary.keys().next_back().map_or(0, |id| *id as usize + 1);
        if len > vocabulary.len() + UNUSED_IDS_MAX {
            let (id, count) = (len - 1, vocabulary.len());
            return Err(format!(
                "it has a token with the id {id}, but {count} tokens; at most {UNUSED_IDS_MAX} ids \
                 may have no token"
            ));
        }
        let mut pieces =
            Self { bytes: Vec::new(), ends: vec![0; len], special: vec![false; len], spelling };
        let mut filled = 0;
        for (id, token) in vocabulary {
            let id = id as usize;
            // Ids without a token have no bytes: they end where the token before them does.
            pieces.ends[filled..id].fill(pieces.bytes.len() as u32);
            // Added tokens are plain text, whatever the vocabulary's convention.
            match added.get(&(id as u32)) {
                Some(token) => {
                    pieces.special[id] = token.special;
                    pieces.bytes.extend_from_slice(token.content.as_bytes());
                }
                None => spell(spelling, &token, &from_char, &mut pieces.bytes),
            }
            pieces.ends[id] = pieces.bytes.len() as u32;
            filled = id + 1;
        }
        Ok(pieces)
    }

    /// Returns true if `▁` stands for a space in the vocabulary.
    pub(super) fn marks_spaces(&self) -> bool {
        self.spelling == Spelling::SentencePiece
    }

    fn get(&self, id: u32) -> Option<Piece<'_>> {
        let id = id as usize;
        let end = *self.ends.get(id)? as usize;
        let start = id.checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        Some(Piece { bytes: &self.bytes[start..end], is_special: self.special[id] })
    }

    /// Decodes token ids to text, without special tokens if `skip_special`. Bytes that are not
    /// UTF-8 become U+FFFD; ids without a token have no text; with SentencePiece's convention a
    /// space at the start of the text is dropped.
    pub(super) fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let pieces = ids.iter().filter_map(|id| self.get(*id));
        let shown = pieces.filter(|piece| !(skip_special && piece.is_special));
        let bytes: Vec<u8> = shown.flat_map(|piece| piece.bytes).copied().collect();
        // The tokenizer of such a vocabulary put a space before the text.
        let strips = self.spelling == Spelling::SentencePiece && bytes.first() == Some(&b' ');
        String::from_utf8_lossy(&bytes[usize::from(strips)..]).into_owned()
    }

    /// Returns the bytes of every token of the vocabulary, in order of the ids.
    pub(super) fn all(&self) -> impl Iterator<Item = TokenBytes> {
        let pieces = (0..self.ends.len() as u32).filter_map(|id| self.get(id));
        pieces.map(|piece| TokenBytes { bytes: piece.bytes.to_vec(), is_special: piece.is_special })
    }
}

/// Recognizes the convention by which a vocabulary writes bytes as characters, by the tokenizer's
/// decoder.
fn spelling(tokenizer: &Tokenizer) -> Spelling {
    // The decoder may be a sequence of decoders; its JSON names all of them.
    let decoder = tokenizer
        .get_decoder()
        .and_then(|decoder| serde_json::to_string(decoder).ok())
        .unwrap_or_default();
    if decoder.contains("ByteLevel") {
        Spelling::ByteLevel
    } else if decoder.contains("ByteFallback") || decoder.contains("Metaspace") {
        Spelling::SentencePiece
    } else {
        Spelling::Plain
    }
}

/// Appends to `out` the bytes that a vocabulary entry stands for, by the vocabulary's convention.
fn spell(spelling: Spelling, token: &str, from_char: &BTreeMap<char, u8>, out: &mut Vec<u8>) {
    match spelling {
        Spelling::ByteLevel => {
            for c in token.chars() {
                match from_char.get(&c) {
                    Some(byte) => out.push(*byte),
                    // Other characters stand for themselves.
                    None => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
                }
            }
        }
        Spelling::SentencePiece => match hex_byte(token) {
            Some(byte) => out.push(byte),
            None => out.extend_from_slice(token.replace('▁', " ").as_bytes()),
        },
        Spelling::Plain => out.extend_from_slice(token.as_bytes()),
    }
}

/// Returns the byte of a token such as `<0x0A>`; `None` for other tokens.
fn hex_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 { u8::from_str_radix(digits, 16).ok() } else { None }
}

/// Builds the table of GPT-2's convention, from character to byte: a printable byte is the
/// character of its own code, the other bytes are the characters from U+0100 on, in ascending
/// order.
fn byte_level_table() -> BTreeMap<char, u8> {
    let mut others = '\u{100}'..;
    (0..=u8::MAX)
        .map(|byte| {
            let stands_for_itself = matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
            let c = if stands_for_itself { Some(char::from(byte)) } else { others.next() };
            (c.unwrap_or(char::REPLACEMENT_CHARACTER), byte)
        })
        .collect()
}
