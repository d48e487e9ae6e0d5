//! Min-p, top-k and top-p sampling of one token from a row of logits. The random number depends
//! only on the seed of the request and the index of the output token.
//!
//! Sampling kernels of a GPU use the same method.

use super::{NoFiniteLogit, Sampler};
use crate::random;

/// Parameters for sampling one token from a row of logits to which penalties and bias, if there are
/// any, have already been applied.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SampleParams {
    /// Temperature that divides the logits before the softmax; 0 picks the most likely token.
    pub temperature: f32,
    /// Top-p (nucleus): of the candidates that min-p and top-k leave, the most likely are kept
    /// until their probabilities add up to this share of those candidates' total; 1 keeps all.
    pub top_p: f32,
    /// Min-p: drops candidates whose probability is less than this share of the most likely
    /// token's; 0 keeps all.
    pub min_p: f32,
    /// Top-k: number of most likely candidates to keep; 0 keeps all.
    pub top_k: u32,
    /// Seed of the stream of random numbers by which the request's tokens are sampled.
    pub seed: u64,
    /// Index of the token's random number in the stream of the request's seed: the number of output
    /// tokens before this token.
    pub index: u64,
}

impl Sampler {
    /// Samples a token id from one row of logits, `[vocab_size]`, by temperature, min-p, top-k and
    /// top-p.
    ///
    /// # Errors
    /// Returns an error if the row's largest logit, NaNs left out, is not finite.
    pub fn sample_logits(
        &mut self,
        logits: &[f32],
        params: &SampleParams,
    ) -> Result<u32, NoFiniteLogit> {
        let likeliest = argmax(logits).ok_or(NoFiniteLogit)?;
        if params.temperature == 0.0 {
            return Ok(likeliest);
        }
        keep_candidates(&mut self.candidates, logits, likeliest, params);
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

/// Returns the index of the largest logit, the lowest index if several are equal; none if the
/// largest is not finite. NaNs are ignored.
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

/// Fills `candidates` with pairs of token id and weight, for the tokens that min-p, top-k and top-p
/// keep. Weights are relative to the most likely token, which has 1.
///
/// The order of the result depends on the parameters: with neither top-k nor top-p the candidates
/// are in the order of the vocabulary, otherwise sorted, the most likely first. For top-p only the
/// kept candidates are sorted, not all, since they are few.
pub(super) fn keep_candidates(
    candidates: &mut Vec<(u32, f32)>,
    logits: &[f32],
    likeliest: u32,
    params: &SampleParams,
) {
    let largest = logits[likeliest as usize];
    candidates.clear();
    candidates.extend(logits.iter().zip(0u32..).filter_map(|(logit, token)| {
        // A weight that underflows to 0 could not be sampled.
        let weight = ((logit - largest) / params.temperature).exp();
        (weight > 0.0 && weight >= params.min_p).then_some((token, weight))
    }));
    let top_k = params.top_k as usize;
    if 0 < top_k && top_k < candidates.len() {
        candidates.select_nth_unstable_by(top_k - 1, likelier);
        candidates.truncate(top_k);
    }
    if params.top_p < 1.0 {
        // In f64, because a vocabulary of small weights adds up inaccurately in f32.
        let total: f64 = candidates.iter().map(|(_, weight)| f64::from(*weight)).sum();
        let kept = sort_until(candidates, f64::from(params.top_p) * total);
        candidates.truncate(kept);
    } else if top_k > 0 {
        candidates.sort_unstable_by(likelier);
    }
}

/// Sorts the most likely candidates to the front, in growing portions, until their weights add up
/// to `wanted`; returns the number of candidates that this takes.
fn sort_until(candidates: &mut [(u32, f32)], wanted: f64) -> usize {
    let (mut sorted, mut sum) = (0, 0.0);
    // Few candidates are enough for most rows; the parts grow for the others.
    let mut part = 256;
    while sorted < candidates.len() {
        let rest = &mut candidates[sorted..];
        if part < rest.len() {
            rest.select_nth_unstable_by(part, likelier);
        }
        let head = part.min(rest.len());
        rest[..head].sort_unstable_by(likelier);
        for (index, (_, weight)) in rest[..head].iter().enumerate() {
            sum += f64::from(*weight);
            if sum >= wanted {
                return sorted + index + 1;
            }
        }
        sorted += head;
        part *= 4;
    }
    candidates.len()
}

/// Compares two pairs of token id and weight: the larger weight comes first, then the lower id, so
/// that the order is total and results are repeatable.
fn likelier(a: &(u32, f32), b: &(u32, f32)) -> std::cmp::Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}
