//! The draw itself: from one row of logits, by numbers that are known before the row is.
//!
//! Kernels that draw on a device do the same.

use super::{NoFiniteLogit, Sampler, cut};
use crate::random;

/// How a token is drawn from a row of logits that nothing changes any more.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DrawParams {
    /// Softmax temperature; 0 selects the likeliest token (greedy sampling).
    pub temperature: f32,
    /// Share of the probability kept, likeliest first; 1 keeps all.
    pub top_p: f32,
    /// Candidates less likely than this share of the likeliest are dropped; 0 keeps all.
    pub min_p: f32,
    /// Number of candidates kept; 0 keeps all.
    pub top_k: u32,
    /// Seed of the sequence's random numbers.
    pub seed: u64,
    /// Which of the seed's numbers: as many tokens the sequence has drawn before.
    pub index: u64,
}

impl Sampler {
    /// The token that `params` draw from `logits`, `[vocab_size]`.
    ///
    /// # Errors
    /// The model's output is unusable.
    pub fn draw(&mut self, logits: &[f32], params: &DrawParams) -> Result<u32, NoFiniteLogit> {
        let likeliest = argmax(logits).ok_or(NoFiniteLogit)?;
        if params.temperature == 0.0 {
            return Ok(likeliest);
        }
        cut::keep_candidates(&mut self.candidates, logits, likeliest, params);
        let total: f64 = self.candidates.iter().map(|(_, weight)| f64::from(*weight)).sum();
        let mut left = random::uniform(params.seed, params.index) * total;
        for (token, weight) in &self.candidates {
            left -= f64::from(*weight);
            if left < 0.0 {
                return Ok(*token);
            }
        }
        // Rounding may leave a crumb after the last candidate.
        Ok(self.candidates.last().map_or(likeliest, |(token, _)| *token))
    }
}

/// Index of the largest finite logit, the lowest of equals.
fn argmax(logits: &[f32]) -> Option<u32> {
    // Two passes that compile to vector code: a single one that tracks the index does not.
    let mut lanes = [f32::NEG_INFINITY; 16];
    let (chunks, rest) = logits.as_chunks::<16>();
    for chunk in chunks {
        for (lane, logit) in lanes.iter_mut().zip(chunk) {
            *lane = if *logit > *lane { *logit } else { *lane };
        }
    }
    let largest = lanes.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max);
    if !largest.is_finite() {
        return None;
    }
    let index = logits.iter().position(|logit| *logit == largest)?;
    u32::try_from(index).ok()
}
