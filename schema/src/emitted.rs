//! What the emitters say, and what the paced one did, a JSON document a line for each request: the
//! truth that a client's figures are held against. Plain data; knows no socket.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// One request and its answer. Times are nanoseconds of the machine's monotonic clock.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Emitted {
    /// The first token id of its prompt, by which a client's sample is found again; none where the
    /// prompt is text.
    pub tag: Option<u64>,
    /// Tokens that it asked for.
    pub max_tokens: u64,
    /// When its connection was accepted.
    pub accepted_ns: u64,
    /// When the whole of it was read.
    pub received_ns: u64,
    /// Just before its first token was handed to the system; none where the client went before.
    pub first_ns: Option<u64>,
    /// From each token to the next.
    pub gaps_ns: Vec<u64>,
}

impl Emitted {
    /// When each token was handed to the system.
    pub fn written_ns(&self) -> impl Iterator<Item = u64> + '_ {
        let later = self.gaps_ns.iter().scan(self.first_ns.unwrap_or(0), |at, gap| {
            *at += gap;
            Some(*at)
        });
        self.first_ns.into_iter().chain(later)
    }

    /// True when every token that was asked for was written.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.first_ns.is_some() && self.gaps_ns.len() as u64 + 1 == self.max_tokens
    }
}

/// A `tokenizer.json` that knows `t`, which each token of an emitter says, and for prompts `w0`,
/// `w1` and so on, as many as `words`.
#[must_use]
pub fn tokenizer(words: usize) -> Value {
    let words = (0..words).map(|number| (format!("w{number}"), json!(number + 2)));
    let known = [("[UNK]".to_owned(), json!(0)), ("t".to_owned(), json!(1))];
    let vocabulary: Map<String, Value> = known.into_iter().chain(words).collect();
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null,
        "decoder": null,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_add_up_to_the_times_of_the_tokens() {
        let mut answer = Emitted { max_tokens: 3, first_ns: Some(10), ..Emitted::default() };
        assert_eq!(answer.written_ns().collect::<Vec<_>>(), [10]);
        assert!(!answer.is_whole());
        answer.gaps_ns = vec![5, 7];
        assert_eq!(answer.written_ns().collect::<Vec<_>>(), [10, 15, 22]);
        assert!(answer.is_whole());
        assert_eq!(Emitted::default().written_ns().count(), 0);
    }
}
