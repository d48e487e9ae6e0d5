//! Log of the mock servers: one JSON document per request with the true times of its tokens,
//! against which a client's figures are checked. Plain data; knows no socket.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// Log entry of a mock server: one request and its answer. Times are nanoseconds of the machine's
/// monotonic clock.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Emitted {
    /// First token id of the prompt, which matches this entry to the client's sample; null for a
    /// text prompt.
    pub tag: Option<u64>,
    /// Number of output tokens that the request asked for.
    pub max_tokens: u64,
    /// Time at which the server accepted the request's connection, in nanoseconds of the machine's
    /// monotonic clock.
    pub accepted_ns: u64,
    /// Time at which the server had read the whole request, in nanoseconds of the machine's
    /// monotonic clock.
    pub received_ns: u64,
    /// Time just before the first token was passed to the operating system's kernel, in nanoseconds
    /// of the machine's monotonic clock; null where no token was written, as after an early
    /// disconnect.
    pub first_ns: Option<u64>,
    /// Gaps between the writes of consecutive tokens of the answer, in nanoseconds: one for each
    /// token after the first.
    pub gaps_ns: Vec<u64>,
    /// Duration of the write of each token in nanoseconds, for the last one with the events that
    /// end the answer: the kernel had the token by then.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub write_ns: Vec<u64>,
}

impl Emitted {
    /// Iterates over the times at which each token was passed to the operating system's kernel, in
    /// nanoseconds of the machine's monotonic clock.
    pub fn written_ns(&self) -> impl Iterator<Item = u64> + '_ {
        let later = self.gaps_ns.iter().scan(self.first_ns.unwrap_or(0), |at, gap| {
            *at += gap;
            Some(*at)
        });
        self.first_ns.into_iter().chain(later)
    }

    /// True when the mock server wrote as many tokens as the request asked for.
    pub fn is_whole(&self) -> bool {
        self.first_ns.is_some() && self.gaps_ns.len() as u64 + 1 == self.max_tokens
    }
}

/// Returns a `tokenizer.json` for mock servers. Its vocabulary is `[UNK]`, the word `t`, which
/// every emitted token is, and `words` prompt words `w0`, `w1` and so on.
pub fn tokenizer(words: usize) -> Value {
    // The first two ids are those of `[UNK]` and `t`.
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
