//! Sampling: picks the next token of one sequence from its logits.
//!
//! It knows one row of logits, the sequence's tokens and its parameters: no batch, no clock, no
//! shared state. Order of the steps: penalties, bias, banned and allowed tokens, temperature, then
//! min-p, top-k and top-p, each applied to the candidates that the previous one left.

#[cfg(test)]
mod tests;
mod top_p;

pub use top_p::SampleParams;

use std::collections::BTreeMap;

/// Sampling parameters of a request. The caller checks their ranges.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// Temperature of sampling; 0 takes the likeliest token.
    pub temperature: f32,
    /// Top-p: share of the probability to keep, likeliest first; 1 keeps all.
    pub top_p: f32,
    /// Top-k: number of candidates to keep; `None` keeps all.
    pub top_k: Option<usize>,
    /// Min-p: candidates less likely than this share of the likeliest are dropped; 0 keeps all.
    pub min_p: f32,
    /// Repetition penalty: divides positive logits of tokens in prompt or output, multiplies
    /// negative ones.
    pub repetition_penalty: f32,
    /// Presence penalty: subtracted from the logit of each token that the output has.
    pub presence_penalty: f32,
    /// Frequency penalty: subtracted once for each time that the output has the token.
    pub frequency_penalty: f32,
    /// Logit bias: added to the logits of these tokens.
    pub logit_bias: BTreeMap<u32, f32>,
    /// Seed of the stream of random numbers that tokens are sampled by.
    pub seed: u64,
}

impl Sampling {
    /// Greedy sampling: always the likeliest token.
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

    /// True if penalties or a bias change the logits, so that sampling needs the sequence's tokens.
    pub fn changes_logits(&self) -> bool {
        self.repetition_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
            || !self.logit_bias.is_empty()
    }

    /// Parameters for sampling output token number `index`, counted from 0, once penalties and bias
    /// are applied.
    pub fn sample_params(&self, index: usize) -> SampleParams {
        let Self { temperature, top_p, min_p, seed, .. } = *self;
        let top_k = self.top_k.map_or(0, |top_k| u32::try_from(top_k.max(1)).unwrap_or(u32::MAX));
        SampleParams { temperature, top_p, min_p, top_k, seed, index: index as u64 }
    }
}

/// One row of logits to sample from, with what changes it.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    /// Logits of the model, of shape `[vocab_size]`.
    pub logits: &'a [f32],
    /// Token ids of the prompt and of the output so far.
    pub tokens: &'a [u32],
    /// Number of prompt tokens at the beginning of `tokens`.
    pub prompt_tokens: usize,
    /// Tokens that must not be sampled now, such as end tokens before `min_tokens`.
    pub banned: &'a [u32],
    /// The only tokens that may be sampled now, if a guide limits them.
    pub allowed: Option<&'a TokenSet>,
}

/// Set of token ids, as a bit mask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenSet(Vec<u32>);

impl TokenSet {
    /// Token `i` is a member where bit `i % 32` of word `i / 32` is set.
    pub fn from_bits(words: Vec<u32>) -> Self {
        Self(words)
    }

    /// True if the set contains the token id.
    pub fn contains(&self, token: u32) -> bool {
        self.0.get(token as usize / 32).is_some_and(|word| (word >> (token % 32)) & 1 == 1)
    }

    /// Adds `token`, if the set has a bit for it.
    pub fn insert(&mut self, token: u32) {
        if let Some(word) = self.0.get_mut(token as usize / 32) {
            *word |= 1 << (token % 32);
        }
    }
}

/// Error: no logit is finite, so that nothing can be sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no token that may be chosen has a finite logit")]
pub struct NoFiniteLogit;

/// Samples tokens. It has no state but buffers, which are reused.
#[derive(Debug, Default)]
pub struct Sampler {
    logits: Vec<f32>,
    candidates: Vec<(u32, f32)>,
}

impl Sampler {
    /// Samples the next token of a sequence.
    ///
    /// # Errors
    /// No token that may be sampled has a finite logit.
    pub fn sample(&mut self, row: Row<'_>, params: &Sampling) -> Result<u32, NoFiniteLogit> {
        let sample = params.sample_params(row.tokens.len() - row.prompt_tokens);
        // Without changes to the logits no copy is needed.
        if row.banned.is_empty() && row.allowed.is_none() && !params.changes_logits() {
            return self.sample_logits(row.logits, &sample);
        }
        let mut logits = std::mem::take(&mut self.logits);
        logits.clear();
        logits.extend_from_slice(row.logits);
        adjust(&mut logits, row, params);
        let token = self.sample_logits(&logits, &sample);
        self.logits = logits;
        token
    }
}

/// Applies penalties, bias, banned and allowed tokens to a copy of the logits.
fn adjust(logits: &mut [f32], row: Row<'_>, params: &Sampling) {
    if params.repetition_penalty != 1.0 {
        // Each token is penalized once, however often it occurs.
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
    // Bans follow the bias, which could otherwise lift a banned token.
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
