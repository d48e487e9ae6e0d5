//! Speculative decoding by n-gram lookup (prompt lookup decoding, the method `ngram` of vLLM and
//! SGLang): where the last tokens of a sequence occurred before, the tokens that followed them are
//! the drafts of its next tokens. A step computes a row for each draft and samples a token from
//! each; a draft is accepted if it is the token that was sampled before its row.
//!
//! The tokens are those that would be sampled without drafts: the rows of a sequence do not depend
//! on what else is in a step, and a token's random number depends on its index only.

use std::collections::HashMap;

/// Number of tokens that must have occurred before, in the same order (`prompt_lookup_min` in
/// vLLM's words).
const NGRAM: usize = 3;
/// Largest number of draft tokens of a sequence in a step (`num_speculative_tokens` in vLLM's
/// words).
pub const DRAFTS_MAX: usize = 7;
/// Largest number of rows of a step with drafts: with more sequences, whose rows share the reading
/// of the weights already, further rows cost more time than right drafts save.
pub(super) const ROWS_MAX: usize = 16;
/// Share of accepted drafts below which drafts do not pay, since rows cost time.
const PAYING: f32 = 0.3;
/// Number of steps without drafts between two tries, for a sequence whose drafts do not pay.
const PAUSE: usize = 16;
/// Weight of the newest step in the moving average of the acceptance rate.
const NEWEST: f32 = 0.3;

/// Drafts of one sequence, and how many of them were accepted.
#[derive(Debug)]
pub(super) struct Drafter {
    /// Position of the token after the latest occurrence of each n-gram of the sequence, but of the
    /// n-gram at its end.
    followers: HashMap<[u32; NGRAM], usize>,
    /// Number of the sequence's tokens whose n-grams are in `followers`.
    known: usize,
    /// Acceptance rate: moving average of the share of accepted drafts, 0 to 1.
    right: f32,
    /// Number of steps without drafts since drafts last paid or were tried.
    skipped: usize,
}

impl Default for Drafter {
    fn default() -> Self {
        Self { followers: HashMap::new(), known: NGRAM, right: 0.5, skipped: 0 }
    }
}

impl Drafter {
    /// Returns drafts of the tokens that follow `tokens`, the prompt and output of the sequence so
    /// far, for a step with `running` sequences. None if the last tokens did not occur before, or
    /// if drafts of this sequence do not pay.
    pub(super) fn propose(&mut self, tokens: &[u32], running: usize) -> Vec<u32> {
        while self.known < tokens.len() {
            let end = self.known;
            if let Some(ngram) = tokens[..end].last_chunk() {
                self.followers.insert(*ngram, end);
            }
            self.known += 1;
        }
        let last = tokens.last_chunk().and_then(|ngram| self.followers.get(ngram));
        let Some(next) = last.copied() else { return Vec::new() };
        if self.right < PAYING && self.skipped < PAUSE {
            self.skipped += 1;
            return Vec::new();
        }
        self.skipped = 0;
        // Drafts that are mostly right may be more.
        let own = 1 + (self.right * DRAFTS_MAX as f32) as usize;
        let most = own.min(DRAFTS_MAX).min((ROWS_MAX / running.max(1)).saturating_sub(1));
        let mut drafts: Vec<u32> = Vec::with_capacity(most);
        for index in next..next + most {
            // Past the end of the tokens the drafts go on with themselves: the text repeats itself.
            let known = tokens.get(index).or_else(|| drafts.get(index - tokens.len()));
            drafts.push(*known.expect("drafts begin within the tokens"));
        }
        drafts
    }

    /// Updates the acceptance rate after a step that computed rows for `drafts` drafts and accepted
    /// the first `right` of them.
    pub(super) fn settle(&mut self, drafts: usize, right: usize) {
        self.right += NEWEST * (right as f32 / drafts as f32 - self.right);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [u32; 0] = [];

    #[test]
    fn drafts_are_what_followed_the_same_tokens_before() {
        let mut drafter = Drafter::default();
        let text = [1, 2, 3, 4, 5, 6, 7, 8, 9];
        assert_eq!(drafter.propose(&text, 1), NONE, "nothing occurred twice");
        assert_eq!(drafter.propose(&[&text[..], &[2, 3]].concat(), 1), NONE);
        let drafts = drafter.propose(&[&text[..], &[2, 3, 4]].concat(), 1);
        assert_eq!(drafts, [5, 6, 7, 8], "half are expected to be right");
        drafter.settle(4, 4);
        let drafts = drafter.propose(&[&text[..], &[2, 3, 4, 5, 6]].concat(), 1);
        assert_eq!(drafts, [7, 8, 9, 2, 3], "the latest text goes on");
        assert_eq!(drafter.propose(&[&text[..], &[2, 3, 4, 5, 6, 7]].concat(), 8), [8]);
        assert_eq!(drafter.propose(&[&text[..], &[2, 3, 4, 5, 6, 7, 8]].concat(), 9), NONE);
        let tokens = [&text[..], &[2, 3, 4, 5, 6, 7, 8, 1, 2, 3]].concat();
        assert_eq!(drafter.propose(&tokens, 4), [4, 5, 6], "four sequences share 16 rows");
    }

    #[test]
    fn a_text_that_repeats_itself_is_continued() {
        let mut drafter = Drafter::default();
        drafter.settle(7, 7);
        drafter.settle(7, 7);
        drafter.settle(7, 7);
        let drafts = drafter.propose(&[5, 1, 2, 1, 2, 1, 2], 1);
        assert_eq!(drafts, [1, 2, 1, 2, 1, 2]);
        assert_eq!(Drafter::default().propose(&[9, 9, 9, 9], 1), [9, 9, 9, 9]);
        assert_eq!(Drafter::default().propose(&[9, 9, 9], 1), NONE);
    }

    #[test]
    fn drafts_that_are_wrong_become_rare() {
        let (mut drafter, tokens) = (Drafter::default(), [9; 8]);
        let mut tries = 0;
        for _ in 0..100 {
            let drafts = drafter.propose(&tokens, 1);
            if !drafts.is_empty() {
                tries += 1;
                drafter.settle(drafts.len(), 0);
            }
        }
        assert_eq!(tries, 2 + 98 / (PAUSE + 1));
        // A text that turns repetitive is found again.
        for _ in 0..3 * PAUSE {
            let drafts = drafter.propose(&tokens, 1);
            if !drafts.is_empty() {
                drafter.settle(drafts.len(), drafts.len());
            }
        }
        assert!(drafter.propose(&tokens, 1).len() > 4);
    }
}
