//! Samples one token from a row of logits. The random number depends only on seed and index.
//!
//! Kernels that sample on a device use the same method.

use super::{NoFiniteLogit, Sampler, cut};
use crate::random;

/// Parameters for sampling one token from a row of logits that penalties no longer change.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DrawParams {
    /// Temperature of sampling; 0 takes the likeliest token.
    pub temperature: f32,
    /// Top-p: share of the probability to keep, likeliest first; 1 keeps all.
    pub top_p: f32,
    /// Min-p: candidates less likely than this share of the likeliest are dropped; 0 keeps all.
    pub min_p: f32,
    /// Top-k: number of candidates to keep; 0 keeps all.
    pub top_k: u32,
    /// Seed of the stream of random numbers that tokens are sampled by.
    pub seed: u64,
    /// Index in that stream: the number of output tokens before this one.
    pub index: u64,
}

impl Sampler {
    /// Samples a token from `logits`, of shape `[vocab_size]`.
    ///
    /// # Errors
    /// No logit is finite.
    pub fn draw(&mut self, logits: &[f32], params: &DrawParams) -> Result<u32, NoFiniteLogit> {
        let likeliest = argmax(logits).ok_or(NoFiniteLogit)?;
        if params.temperature == 0.0 {
            return Ok(likeliest);
        }
        cut::keep_candidates(&mut self.candidates, logits, likeliest, params);
        let total: f64 = self.candidates.iter().map(|(_, weight)| f64::from(*weight)).sum();
        // Inverse of the cumulative distribution, without normalizing the weights.
        let mut left = random::uniform(params.seed, params.index) * total;
        for (token, weight) in &self.candidates {
            left -= f64::from(*weight);
            if left < 0.0 {
                return Ok(*token);
            }
        }
        // Rounding may leave a small remainder after the last candidate.
        Ok(self.candidates.last().map_or(likeliest, |(token, _)| *token))
    }
}

/// Index of the largest finite logit, the lowest index if several are equal.
fn argmax(logits: &[f32]) -> Option<u32> {
    // Two passes compile to vector code; a single pass that tracks the index does not.
    let mut lanes = [f32::NEG_INFINITY; 16];
    let (chunks, rest) = logits.as_chunks::<16>();
    for chunk in chunks {
        for (lane, logit) in lanes.iter_mut().zip(chunk) {
            *lane = if *logit > *lane { *logit } else { *lane };
        }
    }
    // NaN loses every comparison, so that it is never the largest.
    let largest = lanes.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max);
    if !largest.is_finite() {
        return None;
    }
    let index = logits.iter().position(|logit| *logit == largest)?;
    u32::try_from(index).ok()
}
