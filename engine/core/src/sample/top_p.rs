//! Min-p, top-k and top-p sampling of one token from a row of logits. The random number depends
//! only on the seed of the request and the index of the output token.
//!
//! Sampling kernels of a GPU use the same method. What depends on the whole vocabulary is a loop
//! over blocks of logits ([`Softmax`]); only the tokens that top-k or top-p can keep are sorted.

use super::softmax::{BLOCK, Softmax, block_maxima};
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
    /// top-p. Inlined, so that a device compiles it for its instruction set.
    ///
    /// # Errors
    /// Returns an error if the row's largest logit, NaNs left out, is not finite.
    #[inline(always)]
    pub fn sample_logits(
        &mut self,
        logits: &[f32],
        params: &SampleParams,
    ) -> Result<u32, NoFiniteLogit> {
        let largest = block_maxima(logits, &mut self.maxima);
        if !largest.is_finite() {
            return Err(NoFiniteLogit);
        }
        let SampleParams { temperature, min_p, .. } = *params;
        if temperature == 0.0 {
            return Ok(self.first_of(logits, largest));
        }
        let softmax = Softmax { largest, temperature, min_p };
        let random = random::uniform(params.seed, params.index);
        if params.top_k == 0 && params.top_p >= 1.0 {
            return Ok(self.of_all(logits, softmax, random));
        }
        self.keep_candidates(logits, softmax, params);
        Ok(self.of_candidates(random))
    }

    /// Returns the lowest id of the tokens with the row's largest logit.
    fn first_of(&self, logits: &[f32], largest: f32) -> u32 {
        let block = self.maxima.iter().position(|maximum| *maximum == largest).unwrap_or(0);
        let start = block * BLOCK;
        let within = logits[start..].iter().position(|logit| *logit == largest).unwrap_or(0);
        (start + within) as u32
    }

    /// Samples from all tokens that min-p keeps: inverts the cumulative distribution, in the order
    /// of the vocabulary, first over the blocks and then within one.
    #[inline(always)]
    fn of_all(&mut self, logits: &[f32], softmax: Softmax, random: f64) -> u32 {
        let mut left = random * softmax.sums(logits, &mut self.sums);
        // Rounding may leave a small remainder after the last block, and after its last token.
        let mut found = (0, left);
        for (block, sum) in self.sums.iter().enumerate().filter(|(_, sum)| **sum > 0.0) {
            found = (block, left);
            if left < *sum {
                break;
            }
            left -= sum;
        }
        let (start, mut left) = (found.0 * BLOCK, found.1);
        let end = logits.len().min(start + BLOCK);
        let (mut weights, mut token) = ([0.0; BLOCK], start);
        for (index, weight) in softmax.weights(&logits[start..end], &mut weights).iter().enumerate()
        {
            if *weight > 0.0 {
                token = start + index;
                left -= f64::from(*weight);
                if left < 0.0 {
                    break;
                }
            }
        }
        token as u32
    }

    /// Samples from the candidates: inverts their cumulative distribution in their order.
    fn of_candidates(&self, random: f64) -> u32 {
        let total: f64 = self.candidates.iter().map(|(_, weight)| f64::from(*weight)).sum();
        let mut left = random * total;
        for (token, weight) in &self.candidates {
            left -= f64::from(*weight);
            if left < 0.0 {
                return *token;
            }
        }
        // Rounding may leave a small remainder after the last candidate.
        self.candidates.last().map_or(0, |(token, _)| *token)
    }

    /// Fills the candidates with pairs of token id and weight, for the tokens that min-p, top-k and
    /// top-p keep, the most likely first. Weights are relative to the most likely token, which has
    /// 1.
    ///
    /// Must be called after [`block_maxima`], with at least one of top-k and top-p.
    #[inline(always)]
    pub(super) fn keep_candidates(
        &mut self,
        logits: &[f32],
        softmax: Softmax,
        params: &SampleParams,
    ) {
        let top_k = params.top_k as usize;
        let mut total = None;
        let (least_logit, least_weight) = if top_k > 0 {
            (self.kth_maximum(top_k), 0.0)
        } else {
            let sum = softmax.sums(logits, &mut self.sums);
            total = Some(sum);
            // All tokens below this weight together have less than the share that top-p drops. A
            // thousandth less leaves room for rounding.
            let dropped = (1.0 - f64::from(params.top_p)) * sum;
            (f32::NEG_INFINITY, (0.999 * dropped / logits.len() as f64) as f32)
        };
        self.collect(logits, softmax, least_logit, least_weight);
        let candidates = &mut self.candidates;
        if 0 < top_k && top_k < candidates.len() {
            candidates.select_nth_unstable_by(top_k - 1, likelier);
            candidates.truncate(top_k);
        }
        if params.top_p < 1.0 {
            let sum = || candidates.iter().map(|(_, weight)| f64::from(*weight)).sum();
            let total: f64 = total.unwrap_or_else(sum);
            let kept = sort_until(candidates, f64::from(params.top_p) * total);
            candidates.truncate(kept);
        } else {
            candidates.sort_unstable_by(likelier);
        }
    }

    /// Returns a lower bound of the `top_k`-th largest logit: so many blocks have a logit that is
    /// at least as large. Minus infinity if there are fewer blocks.
    fn kth_maximum(&mut self, top_k: usize) -> f32 {
        if top_k > self.maxima.len() {
            return f32::NEG_INFINITY;
        }
        self.order.clone_from(&self.maxima);
        *self.order.select_nth_unstable_by(top_k - 1, |a, b| b.total_cmp(a)).1
    }

    /// Fills the candidates with the tokens whose logit is at least `least_logit` and whose weight
    /// is at least `least_weight` and not 0, in the order of the vocabulary.
    #[inline(always)]
    fn collect(&mut self, logits: &[f32], softmax: Softmax, least_logit: f32, least_weight: f32) {
        self.candidates.clear();
        let mut weights = [0.0; BLOCK];
        for ((block, largest), start) in
            logits.chunks(BLOCK).zip(&self.maxima).zip((0..).step_by(BLOCK))
        {
            let may_have_any =
                *largest >= least_logit && softmax.weight(*largest) >= 0.999 * least_weight;
            if !may_have_any {
                continue;
            }
            let weights = softmax.weights(block, &mut weights);
            for ((logit, weight), token) in block.iter().zip(weights).zip(start..) {
                if *logit >= least_logit && *weight >= least_weight && *weight > 0.0 {
                    self.candidates.push((token, *weight));
                }
            }
        }
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
