//! Picks the next token of one sequence from its logits.
//!
//! It knows one row of logits, the sequence's tokens and its parameters: no batch, no clock, no
//! shared state. The order is penalties, bias, what may be chosen at all, temperature, then the cuts
//! `min_p`, `top_k` and `top_p`, each over what the one before left.

mod cut;
mod draw;
#[cfg(test)]
mod tests;

pub use draw::DrawParams;

use std::collections::BTreeMap;

/// How tokens are chosen; ranges are the caller's duty.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// Softmax temperature; 0 selects the likeliest token (greedy sampling).
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
    /// Which stream of random numbers tokens are drawn by.
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

    /// Whether a choice depends on more than a row of logits.
    pub fn changes_logits(&self) -> bool {
        self.repetition_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
            || !self.logit_bias.is_empty()
    }

    /// How the token at `index` of the output is drawn from logits that nothing changes any more.
    pub fn draw_params(&self, index: usize) -> DrawParams {
        let Self { temperature, top_p, min_p, seed, .. } = *self;
        let top_k = self.top_k.map_or(0, |top_k| u32::try_from(top_k.max(1)).unwrap_or(u32::MAX));
        DrawParams { temperature, top_p, min_p, top_k, seed, index: index as u64 }
    }
}

/// One row to sample from.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    /// `[vocab_size]`, as the model gave them.
    pub logits: &'a [f32],
    /// Prompt and output so far.
    pub tokens: &'a [u32],
    /// Returns the length of the prompt in tokens.
    pub prompt_tokens: usize,
    /// Tokens that may not be chosen now.
    pub banned: &'a [u32],
    /// The only tokens that may be chosen now, where there is such a limit.
    pub allowed: Option<&'a TokenSet>,
}

/// A set of token ids, a bit each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenSet(Vec<u32>);

impl TokenSet {
    /// Token `i` is a member where bit `i % 32` of word `i / 32` is set.
    pub fn from_bits(words: Vec<u32>) -> Self {
        Self(words)
    }

    /// Whether `token` is in it.
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
        let draw = params.draw_params(row.tokens.len() - row.prompt_tokens);
        if row.banned.is_empty() && row.allowed.is_none() && !params.changes_logits() {
            return self.draw(row.logits, &draw);
        }
        let mut logits = std::mem::take(&mut self.logits);
        logits.clear();
        logits.extend_from_slice(row.logits);
        adjust(&mut logits, row, params);
        let token = self.draw(&logits, &draw);
        self.logits = logits;
        token
    }
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
