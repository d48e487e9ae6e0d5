//! Table from token id to the bytes that the token stands for.
//!
//! Decoding by table instead of the tokenizer's decoder guarantees that a stream of tokens decodes
//! to the same text as all tokens at once, and needs no allocation per token.

use std::collections::BTreeMap;

use tokenizers::Tokenizer;

/// Bytes of all tokens, one after another, by token id.
#[derive(Debug)]
pub(crate) struct Pieces {
    bytes: Vec<u8>,
    /// End offset in `bytes` of each token, by id; an id without a token has no bytes.
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

/// Bytes of one token, and whether it is special.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) is_special: bool,
}

impl Pieces {
    pub(super) fn new(tokenizer: &Tokenizer) -> Self {
        let spelling = spelling(tokenizer);
        let vocabulary: BTreeMap<u32, String> =
            tokenizer.get_vocab(true).into_iter().map(|(token, id)| (id, token)).collect();
        let added = tokenizer.get_added_tokens_decoder();
        let from_char = byte_level_table();
        let len = vocabulary.keys().next_back().map_or(0, |id| *id as usize + 1);
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
        pieces
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn get(&self, id: u32) -> Option<Piece<'_>> {
        let id = id as usize;
        let end = *self.ends.get(id)? as usize;
        let start = id.checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        Some(Piece { bytes: &self.bytes[start..end], is_special: self.special[id] })
    }

    /// True if the tokenizer puts a space before a text, which decoding must remove again.
    pub(super) fn strips_first_space(&self) -> bool {
        self.spelling == Spelling::SentencePiece
    }
}

/// Recognizes the convention by the tokenizer's decoder.
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

/// Appends the bytes that a token's spelling stands for.
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

/// Byte of a token such as `<0x0A>`; `None` for other tokens.
fn hex_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 { u8::from_str_radix(digits, 16).ok() } else { None }
}

/// Table of GPT-2's convention, from character to byte: a printable byte is the character of its
/// own code, the other bytes are the characters from U+0100 on, in ascending order.
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
