//! How many tokens a request is credited with, and in which chunk each came.
//!
//! In order of trust: the server's own count; ids; the count of our own tokenizer; chunks. The
//! number that was asked for is never credited.

use schema::run::TokenSource;

use crate::client::sample::{ChunkStamp, Sample};

/// A request's tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credit {
    pub tokens: u64,
    pub source: TokenSource,
    /// Tokens of each chunk.
    pub per_chunk: Vec<u64>,
    /// The tokens of each chunk are known; else they are spread by length of text.
    pub exact: bool,
    /// Tokens that ids or the running usage show, to be compared with the final count.
    pub seen: Option<u64>,
}

/// Credits a sample. `retokenized` is our own tokenizer's count of its text.
#[must_use]
pub fn credit(sample: &Sample, retokenized: Option<u64>) -> Credit {
    let chunks = sample.chunks.len() as u64;
    let told: Option<Vec<u64>> =
        sample.chunks.iter().map(|chunk| chunk.tokens.map(u64::from)).collect();
    let seen = told.as_ref().map(|tokens| tokens.iter().sum()).filter(|_| chunks > 0);
    let (tokens, source) = match (sample.usage, seen, retokenized) {
        (Some(usage), _, _) if sample.usage_per_chunk => {
            (usage.completion_tokens, TokenSource::UsagePerChunk)
        }
        (Some(usage), _, _) => (usage.completion_tokens, TokenSource::Usage),
        (None, Some(seen), _) => (seen, TokenSource::UsagePerChunk),
        (None, None, Some(count)) if count > 0 => (count, TokenSource::Retokenized),
        _ => (chunks, TokenSource::Chunks),
    };
    let (per_chunk, exact) = match told {
        Some(told) if chunks > 0 => (told, true),
        _ if tokens == chunks => (vec![1; sample.chunks.len()], true),
        _ => (spread(tokens, &sample.chunks), false),
    };
    Credit { tokens, source, per_chunk, exact, seen }
}

/// Spreads `tokens` over `chunks` by length of text, so that the sum is kept.
fn spread(tokens: u64, chunks: &[ChunkStamp]) -> Vec<u64> {
    let weight = |chunk: &ChunkStamp| u128::from(chunk.text_bytes.max(1));
    let total: u128 = chunks.iter().map(weight).sum();
    let (mut before, mut given) = (0, 0);
    let share = |chunk: &ChunkStamp| {
        before += weight(chunk);
        // What is due up to here, less what was given: no rounding is ever lost.
        let due = u128::from(tokens) * before / total.max(1);
        let due = u64::try_from(due).unwrap_or(tokens);
        let now = due - given;
        given = due;
        now
    };
    chunks.iter().map(share).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::delta::Usage;

    fn sample(chunks: &[(Option<u32>, u32)], usage: Option<u64>) -> Sample {
        let stamp = |(tokens, text_bytes): &(Option<u32>, u32)| ChunkStamp {
            at_ns: 0,
            tokens: *tokens,
            text_bytes: *text_bytes,
        };
        Sample {
            chunks: chunks.iter().map(stamp).collect(),
            usage: usage.map(|completion_tokens| Usage { completion_tokens, ..Usage::default() }),
            ..Sample::default()
        }
    }

    #[test]
    fn the_most_trusted_count_is_credited() {
        type Case =
            (&'static str, Vec<(Option<u32>, u32)>, Option<u64>, Option<u64>, (u64, TokenSource));
        let told = vec![(Some(2), 4), (Some(1), 2)];
        let bare = vec![(None, 4), (None, 2)];
        let cases: [Case; 5] = [
            ("usage before ids", told.clone(), Some(4), None, (4, TokenSource::Usage)),
            ("ids where no usage", told, None, Some(9), (3, TokenSource::UsagePerChunk)),
            ("our own count", bare.clone(), None, Some(5), (5, TokenSource::Retokenized)),
            ("chunks at last", bare.clone(), None, None, (2, TokenSource::Chunks)),
            ("chunks where no text", bare, None, Some(0), (2, TokenSource::Chunks)),
        ];
        for (claim, chunks, usage, retokenized, expected) in cases {
            let found = credit(&sample(&chunks, usage), retokenized);
            assert_eq!((found.tokens, found.source), expected, "{claim}");
        }
    }

    #[test]
    fn tokens_of_chunks_are_told_or_one_each_or_spread_by_text() {
        let told = credit(&sample(&[(Some(2), 4), (Some(1), 2)], Some(3)), None);
        assert_eq!((told.per_chunk, told.exact, told.seen), (vec![2, 1], true, Some(3)));
        let one_each = credit(&sample(&[(None, 9), (None, 1)], Some(2)), None);
        assert_eq!((one_each.per_chunk, one_each.exact), (vec![1, 1], true));
        let spread = credit(&sample(&[(None, 10), (None, 30), (None, 0)], Some(7)), None);
        assert_eq!((spread.per_chunk, spread.exact), (vec![1, 5, 1], false));
    }
}
