//! The bytes that each token stands for.
//!
//! Decoding by table rather than through the tokenizer's decoder makes a stream of tokens decode to
//! exactly what the whole does, and costs no allocation per token.

use std::collections::BTreeMap;

use tokenizers::Tokenizer;

/// Bytes of every token, one after another.
#[derive(Debug)]
pub(crate) struct Pieces {
    bytes: Vec<u8>,
    /// Ends of the tokens in `bytes`; ids without a token are empty.
    ends: Vec<u32>,
    special: Vec<bool>,
    spelling: Spelling,
}

/// How a vocabulary spells bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spelling {
    /// Each byte is a printable character, as in GPT-2.
    ByteLevel,
    /// `▁` is a space and `<0x0A>` a byte, as in SentencePiece.
    SentencePiece,
    Plain,
}

/// One token.
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
            // Ids that were skipped end where their predecessor does.
            pieces.ends[filled..id].fill(pieces.bytes.len() as u32);
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

    /// Whether the first space of a whole text was put there by the tokenizer.
    pub(super) fn strips_first_space(&self) -> bool {
        self.spelling == Spelling::SentencePiece
    }
}

fn spelling(tokenizer: &Tokenizer) -> Spelling {
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

fn spell(spelling: Spelling, token: &str, from_char: &BTreeMap<char, u8>, out: &mut Vec<u8>) {
    match spelling {
        Spelling::ByteLevel => {
            for c in token.chars() {
                match from_char.get(&c) {
                    Some(byte) => out.push(*byte),
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

/// The byte of a token such as `<0x0A>`.
fn hex_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 { u8::from_str_radix(digits, 16).ok() } else { None }
}

/// GPT-2's spelling of bytes: printable ones stand for themselves, the others for the characters
/// from U+0100 on, in rising order.
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
