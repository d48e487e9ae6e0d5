//! Lower bound on the number of tokens of a text, found in one pass and without the tokenizer: a
//! prompt of megabytes is refused before it takes the tokenizer's time and memory.
//!
//! The tokens of a text cover it, each with its own bytes. The automaton here (Aho and Corasick,
//! 1975, without outputs) knows for each position of the text the longest beginning of a token that
//! ends there, and no token that ends there is longer. So the fewest tokens up to a position are
//! one more than those up to the start of that beginning. This holds for tokenizers whose tokens
//! keep every byte of the text that has a token; `Cover::new` gives none for others. The one exception is the name of
//! a special token with a combining character after it, which may count as more tokens than it is.

use std::collections::VecDeque;

use serde_json::Value;
use tokenizers::{ModelWrapper, Tokenizer};
use unicode_normalization_alignments::UnicodeNormalization;

use super::detokenizer::Pieces;

/// Automaton of all beginnings of a vocabulary's tokens.
#[derive(Debug)]
pub(super) struct Cover {
    /// Last byte of each beginning. Those one byte longer than node `i` are the nodes
    /// `children[i]..children[i + 1]`, in ascending order of their last bytes.
    last: Vec<u8>,
    children: Vec<u32>,
    /// Longest other beginning that ends each beginning.
    shorter: Vec<u32>,
    lengths: Vec<u32>,
    /// True for each byte that is a token. The tokenizer may drop others, so they do not count.
    known: Vec<bool>,
    changes: Changes,
}

/// Changes that a tokenizer makes to a text before it is cut into tokens.
#[derive(Debug, Default, Clone, Copy)]
struct Changes {
    /// True if the text becomes Unicode's normalization form C.
    composes: bool,
    /// True if `▁` stands for a space.
    marks_spaces: bool,
    /// True if a token may take white space around it for nothing.
    strips: bool,
}

/// Node of the empty beginning.
const ROOT: u32 = 0;

impl Cover {
    /// Builds the automaton for the tokenizer whose tokens have the bytes `pieces`; `None` if a
    /// token may stand for bytes that it does not have.
    pub(super) fn new(tokenizer: &Tokenizer, pieces: &Pieces) -> Option<Self> {
        let changes = Changes::of(tokenizer, pieces)?;
        let mut tokens: Vec<Vec<u8>> = pieces.all().map(|token| token.bytes).collect();
        tokens.sort_unstable();
        tokens.dedup();
        let cover = Self::of(&tokens, changes);
        // A byte without a token may be dropped, so that its neighbors become one token; it must be
        // part of no other token then. `▁` is part of many.
        let is_lost = |byte: u8| !cover.known[usize::from(byte)];
        let has_all = (0..=u8::MAX).all(|byte| !is_lost(byte));
        let parts = tokens.iter().flatten().any(|byte| is_lost(*byte));
        (has_all || !changes.marks_spaces && !parts).then_some(cover)
    }

    /// Builds the automaton from tokens in ascending order, each once.
    fn of(tokens: &[Vec<u8>], changes: Changes) -> Self {
        let mut cover = Self {
            last: vec![0],
            children: Vec::new(),
            shorter: vec![ROOT],
            lengths: vec![0],
            known: (0..=u8::MAX).map(|b| tokens.binary_search(&vec![b]).is_ok()).collect(),
            changes,
        };
        // Ranges of the tokens that begin with each node, in the order of the nodes.
        let mut open = VecDeque::from([(0, tokens.len())]);
        let mut node = 0;
        while let Some((mut start, end)) = open.pop_front() {
            cover.children.push(cover.last.len() as u32);
            let depth = cover.lengths[node] as usize;
            // The token that ends here comes first.
            start += usize::from(start < end && tokens[start].len() == depth);
            for same in tokens[start..end].chunk_by(|a, b| a[depth] == b[depth]) {
                cover.last.push(same[0][depth]);
                cover.lengths.push(depth as u32 + 1);
                open.push_back((start, start + same.len()));
                start += same.len();
            }
            node += 1;
        }
        cover.children.push(cover.last.len() as u32);
        cover.link();
        cover
    }

    /// Fills in the links to shorter beginnings, in the order of length.
    fn link(&mut self) {
        self.shorter.resize(self.last.len(), ROOT);
        for node in 0..self.last.len() {
            let (first, end) = (self.children[node], self.children[node + 1]);
            for child in first..end {
                let byte = self.last[child as usize];
                self.shorter[child as usize] = match node {
                    0 => ROOT,
                    _ => self.step(self.shorter[node], byte),
                };
            }
        }
    }

    fn child(&self, node: u32, byte: u8) -> Option<u32> {
        let (first, end) = (self.children[node as usize], self.children[node as usize + 1]);
        let found = self.last[first as usize..end as usize].binary_search(&byte);
        found.ok().map(|index| first + index as u32)
    }

    /// Returns the longest beginning that ends a text which `node` ended, and now `byte` does.
    fn step(&self, mut node: u32, byte: u8) -> u32 {
        loop {
            match self.child(node, byte) {
                Some(child) => return child,
                None if node == ROOT => return ROOT,
                None => node = self.shorter[node as usize],
            }
        }
    }

    /// Returns a number of tokens that the tokenizer's result for `text` has at least. The text is
    /// read only as far as the number is at most `enough`.
    pub(super) fn fewest_tokens(&self, text: &str, enough: usize) -> usize {
        if self.changes.composes {
            self.count(text.nfc().map(|(c, _)| c), enough)
        } else {
            self.count(text.chars(), enough)
        }
    }

    fn count(&self, text: impl Iterator<Item = char>, enough: usize) -> usize {
        let longest = self.lengths.iter().max().map_or(1, |length| *length as usize);
        // Fewest tokens up to each of the last positions; the number never falls.
        let mut fewest = vec![0; longest + 1];
        let (mut position, mut node, mut now) = (0, ROOT, 0);
        let mut buffer = [0; 4];
        for c in text {
            let c = if self.changes.marks_spaces && c == '▁' { ' ' } else { c };
            let is_free = self.changes.strips && c.is_whitespace();
            let bytes = c.encode_utf8(&mut buffer).bytes();
            for byte in bytes.filter(|byte| self.known[usize::from(*byte)]) {
                node = self.step(node, byte);
                let length = self.lengths[node as usize] as usize;
                position += 1;
                if length > 0 && !is_free {
                    now = now.max(1 + fewest[(position - length) % fewest.len()]);
                }
                let slot = position % fewest.len();
                fewest[slot] = now;
            }
            if now > enough {
                break;
            }
        }
        now
    }
}

impl Changes {
    /// Reads the changes that a tokenizer makes to a text; `None` if it may drop or merge text in
    /// another way.
    fn of(tokenizer: &Tokenizer, pieces: &Pieces) -> Option<Self> {
        let mut changes = Self { marks_spaces: pieces.marks_spaces(), ..Self::default() };
        let falls_back = match tokenizer.get_model() {
            ModelWrapper::BPE(bpe) => {
                let affixes = [&bpe.continuing_subword_prefix, &bpe.end_of_word_suffix];
                if affixes.iter().any(|affix| affix.as_ref().is_some_and(|text| !text.is_empty())) {
                    return None;
                }
                bpe.byte_fallback
            }
            ModelWrapper::Unigram(unigram) => unigram.byte_fallback(),
            ModelWrapper::WordPiece(_) | ModelWrapper::WordLevel(_) => return None,
        };
        // Without tokens for bytes, one token may stand for any length of unknown text.
        if changes.marks_spaces && !falls_back {
            return None;
        }
        let json = |part: serde_json::Result<Value>| part.unwrap_or(Value::Bool(false));
        changes.normalize(&json(serde_json::to_value(tokenizer.get_normalizer())))?;
        if !keeps_text(&json(serde_json::to_value(tokenizer.get_pre_tokenizer()))) {
            return None;
        }
        let added = tokenizer.get_added_tokens_decoder();
        changes.strips = added.values().any(|token| token.lstrip || token.rstrip);
        Some(changes)
    }

    /// Adds the changes of a normalizer, as a tokenizer.json describes it.
    fn normalize(&mut self, normalizer: &Value) -> Option<()> {
        match normalizer["type"].as_str() {
            None if normalizer.is_null() => Some(()),
            Some("NFC") => {
                self.composes = true;
                Some(())
            }
            Some("Sequence") => {
                normalizer["normalizers"].as_array()?.iter().try_for_each(|one| self.normalize(one))
            }
            // What is added needs tokens of its own.
            Some("Prepend") => Some(()),
            Some("Replace") if self.marks_spaces => {
                let is_mark =
                    normalizer["pattern"]["String"] == " " && normalizer["content"] == "▁";
                is_mark.then_some(())
            }
            _ => None,
        }
    }
}

/// Returns true if a pre-tokenizer, as a tokenizer.json describes it, keeps every byte of a text.
fn keeps_text(pre_tokenizer: &Value) -> bool {
    match pre_tokenizer["type"].as_str() {
        None => pre_tokenizer.is_null(),
        Some("ByteLevel" | "Metaspace" | "Digits" | "UnicodeScripts") => true,
        Some("Split" | "Punctuation") => pre_tokenizer["behavior"] != "Removed",
        Some("Sequence") => {
            pre_tokenizer["pretokenizers"].as_array().is_some_and(|all| all.iter().all(keeps_text))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cover(tokens: &[&str]) -> Cover {
        let mut tokens: Vec<Vec<u8>> = tokens.iter().map(|token| token.as_bytes().into()).collect();
        tokens.extend((0..=u8::MAX).map(|byte| vec![byte]));
        tokens.sort_unstable();
        tokens.dedup();
        Cover::of(&tokens, Changes::default())
    }

    /// Fewest tokens that cover `text`, by trying all.
    fn exact(tokens: &[&str], text: &str) -> usize {
        let text = text.as_bytes();
        let mut fewest = vec![0; text.len() + 1];
        for end in 1..=text.len() {
            let long = tokens.iter().filter(|token| text[..end].ends_with(token.as_bytes()));
            let starts = long.map(|token| end - token.len()).chain([end - 1]);
            fewest[end] = 1 + starts.map(|start| fewest[start]).min().unwrap();
        }
        fewest[text.len()]
    }

    #[test]
    fn the_bound_is_never_above_the_fewest_tokens_and_often_equal() {
        let tokens = ["ab", "bcdef", "aaaa", "aaaaaaaa", "ba", "é", "abcab"];
        let cover = cover(&tokens);
        let mut equal = 0;
        // All texts of eight letters out of four.
        for number in 0..4_usize.pow(8) {
            let letters = ["a", "b", "c", "é"];
            let text: String = (0..8).map(|i| letters[number / 4_usize.pow(i) % 4]).collect();
            let (found, exact) = (cover.fewest_tokens(&text, usize::MAX), exact(&tokens, &text));
            assert!(found <= exact, "{text}: {found} of {exact}");
            equal += usize::from(found == exact);
        }
        assert!(equal > 30_000, "{equal} of 65536 bounds are exact");
    }

    #[test]
    fn a_text_is_read_only_as_far_as_needed() {
        let cover = cover(&["aaaa"]);
        assert_eq!(cover.fewest_tokens(&"a".repeat(400), usize::MAX), 100);
        assert_eq!(cover.fewest_tokens(&"a".repeat(400), 10), 11);
        assert_eq!(cover.fewest_tokens("", 10), 0);
    }

    #[test]
    fn bytes_without_a_token_do_not_count() {
        let tokens = ["a", "abab", "b"].map(|token| token.as_bytes().to_vec());
        let cover = Cover::of(&tokens, Changes::default());
        assert_eq!(cover.fewest_tokens("ab#ab", usize::MAX), 1);
        assert_eq!(cover.fewest_tokens(&"#".repeat(100), usize::MAX), 0);
        assert_eq!(cover.fewest_tokens(&"aa#".repeat(100), usize::MAX), 200);
    }

    #[test]
    fn white_space_that_a_token_may_strip_is_free() {
        let changes = Changes { strips: true, ..Changes::default() };
        let cover = Cover { changes, ..cover(&["<x>"]) };
        assert_eq!(cover.fewest_tokens(&format!("<x>{}<x>", " ".repeat(1000)), usize::MAX), 2);
    }
}
