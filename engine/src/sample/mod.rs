//! Picks the next token of one sequence from its logits.
//!
//! It knows one row of logits, the sequence's tokens and its parameters: no batch, no clock, no
//! shared state. The order is penalties, bias, what may be chosen at all, temperature, then the cuts
//! `min_p`, `top_k` and `top_p`, each over what the one before left.

mod cut;
mod guide;
mod logprobs;
mod rng;
#[cfg(test)]
mod tests;

pub use guide::{GrammarError, Grammars, Guide, Opening, Structure, TokenBytes, TokenSet};
pub use logprobs::{Candidate, TokenLogprobs};

use std::collections::BTreeMap;

/// How tokens are chosen; ranges are the caller's duty.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// 0 takes the likeliest token.
    pub temperature: f32,
    /// Share of the probability kept, likeliest first; 1 keeps all.
    pub top_p: f32,
    /// Number of candidates kept; none keeps all.
    pub top_k: Option<usize>,
    /// Candidates less likely than this share of the likeliest are dropped; 0 keeps all.
    pub min_p: f32,
    /// Divides positive logits of tokens seen in prompt or output, multiplies negative ones.
    pub repetition_penalty: f32,
    /// Subtracted from the logits of tokens seen in the output.
    pub presence_penalty: f32,
    /// Subtracted once for each time a token was seen in the output.
    pub frequency_penalty: f32,
    /// Added to the logits of these tokens.
    pub logit_bias: BTreeMap<u32, f32>,
    pub seed: u64,
}

impl Sampling {
    /// The likeliest token, always.
    pub fn greedy() -> Self {
        Self {
            temperature: 0.0,
            top_p: 1.0,
            top_k: None,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: BTreeMap::new(),
            seed: 0,
        }
    }

    fn changes_logits(&self) -> bool {
        self.repetition_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
            || !self.logit_bias.is_empty()
    }
}

/// One row to sample from.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    /// `[vocab_size]`, as the model gave them.
    pub logits: &'a [f32],
    /// Prompt and output so far.
    pub tokens: &'a [u32],
    /// Length of the prompt.
    pub prompt_tokens: usize,
    /// Tokens that may not be chosen now.
    pub banned: &'a [u32],
    /// The only tokens that may be chosen now, where there is such a limit.
    pub allowed: Option<&'a TokenSet>,
}

/// Logits of which none is a number that could be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no token that may be chosen has a finite logit")]
pub struct NoFiniteLogit;

/// Chooses tokens; holds nothing but buffers, to be reused from row to row.
#[derive(Debug, Default)]
pub struct Sampler {
    logits: Vec<f32>,
    candidates: Vec<(u32, f32)>,
}

impl Sampler {
    /// The next token of a row.
    ///
    /// # Errors
    /// The model's output is unusable.
    pub fn sample(&mut self, row: Row<'_>, params: &Sampling) -> Result<u32, NoFiniteLogit> {
        if row.banned.is_empty() && row.allowed.is_none() && !params.changes_logits() {
            return self.choose(row.logits, row, params);
        }
        let mut logits = std::mem::take(&mut self.logits);
        logits.clear();
        logits.extend_from_slice(row.logits);
        adjust(&mut logits, row, params);
        let token = self.choose(&logits, row, params);
        self.logits = logits;
        token
    }

    fn choose(
        &mut self,
        logits: &[f32],
        row: Row<'_>,
        params: &Sampling,
    ) -> Result<u32, NoFiniteLogit> {
        let likeliest = argmax(logits).ok_or(NoFiniteLogit)?;
        if params.temperature == 0.0 {
            return Ok(likeliest);
        }
        cut::keep_candidates(&mut self.candidates, logits, likeliest, params);
        let output_index = row.tokens.len() - row.prompt_tokens;
        let total: f64 = self.candidates.iter().map(|(_, weight)| f64::from(*weight)).sum();
        let mut left = rng::uniform(params.seed, output_index as u64) * total;
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

fn adjust(logits: &mut [f32], row: Row<'_>, params: &Sampling) {
    if params.repetition_penalty != 1.0 {
        let mut seen = row.tokens.to_vec();
        seen.sort_unstable();
        seen.dedup();
        for token in seen {
            if let Some(logit) = logits.get_mut(token as usize) {
                let penalty = params.repetition_penalty;
                *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
            }
        }
    }
    if params.presence_penalty != 0.0 || params.frequency_penalty != 0.0 {
        let mut output = row.tokens[row.prompt_tokens..].to_vec();
        output.sort_unstable();
        for same in output.chunk_by(|a, b| a == b) {
            if let Some(logit) = logits.get_mut(same[0] as usize) {
                *logit -= params.presence_penalty + params.frequency_penalty * same.len() as f32;
            }
        }
    }
    for (token, bias) in &params.logit_bias {
        if let Some(logit) = logits.get_mut(*token as usize) {
            *logit += bias;
        }
    }
    for token in row.banned {
        if let Some(logit) = logits.get_mut(*token as usize) {
            *logit = f32::NEG_INFINITY;
        }
    }
    if let Some(allowed) = row.allowed {
        for (logit, token) in logits.iter_mut().zip(0..) {
            if !allowed.contains(token) {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
}
