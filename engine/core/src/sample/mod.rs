//! Sampler: picks the next token of one sequence from its logits.
//!
//! It must know only one row of logits, the sequence's tokens and its sampling parameters: no
//! batch, no clock, no shared state. Order of the steps: penalties, bias, banned and allowed
//! tokens, temperature, then min-p, top-k and top-p, each applied to the candidates that the
//! previous step left.

mod softmax;
#[cfg(test)]
mod tests;
mod top_p;

pub use top_p::SampleParams;

use std::collections::BTreeMap;

/// Sampling parameters of a request. The code that builds them checks their ranges; sampling does
/// not.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// Temperature that divides the logits before the softmax; 0 always picks the most likely
    /// token.
    pub temperature: f32,
    /// Top-p (nucleus): of the candidates that min-p and top-k leave, the most likely are kept
    /// until their probabilities add up to this share of those candidates' total; 1 keeps all.
    pub top_p: f32,
    /// Top-k: number of most likely candidates to keep; `None` keeps all.
    pub top_k: Option<usize>,
    /// Min-p: drops candidates whose probability is less than this share of the most likely
    /// token's; 0 keeps all.
    pub min_p: f32,
    /// Repetition penalty: divides the positive and multiplies the negative logits of tokens that
    /// occur in the prompt or the output; 1 changes nothing.
    pub repetition_penalty: f32,
    /// Presence penalty: subtracted once from the logit of each token that occurs in the output; 0
    /// changes nothing.
    pub presence_penalty: f32,
    /// Frequency penalty: subtracted from the logit of a token as many times as the token occurs in
    /// the output; 0 changes nothing.
    pub frequency_penalty: f32,
    /// Logit bias by token id: value that is added to the token's logit.
    pub logit_bias: BTreeMap<u32, f32>,
    /// Seed of the random numbers by which the request's tokens are sampled.
    pub seed: u64,
}

impl Sampling {
    /// Returns the parameters of greedy sampling, which always picks the most likely token, without
    /// penalties and bias.
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

    /// Returns true if the parameters have a penalty or a logit bias, so that a row's logits are
    /// changed before a token is sampled from them.
    pub fn changes_logits(&self) -> bool {
        self.repetition_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
            || !self.logit_bias.is_empty()
    }

    /// Returns the parameters for sampling output token number `index`, counted from 0, from logits
    /// to which penalties and bias have been applied.
    pub fn sample_params(&self, index: usize) -> SampleParams {
        let Self { temperature, top_p, min_p, seed, .. } = *self;
        let top_k = self.top_k.map_or(0, |top_k| u32::try_from(top_k.max(1)).unwrap_or(u32::MAX));
        SampleParams { temperature, top_p, min_p, top_k, seed, index: index as u64 }
    }
}

/// One row of logits to sample a token from, with the sequence's tokens, to which penalties apply,
/// and the ids of banned and of allowed tokens.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    /// Logits that the model computed for the next token of the sequence, `[vocab_size]`.
    pub logits: &'a [f32],
    /// Token ids of the sequence: its prompt, then its output so far.
    pub tokens: &'a [u32],
    /// Number of prompt tokens at the beginning of `tokens`; the others are output.
    pub prompt_tokens: usize,
    /// Ids of tokens that must not be sampled from this row, such as end tokens before `min_tokens`
    /// is reached.
    pub banned: &'a [u32],
    /// The only tokens that may be sampled from this row, where guided decoding limits them; `None`
    /// allows all.
    pub allowed: Option<&'a TokenSet>,
}

/// Set of token ids, stored as a bit mask of 32-bit words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenSet(Vec<u32>);

impl TokenSet {
    /// Builds a set of token ids from a bit mask: token `i` is in it if bit `i % 32` of word `i /
    /// 32` is set.
    pub fn from_bits(words: Vec<u32>) -> Self {
        Self(words)
    }

    /// Returns true if the set of token ids contains `token`.
    pub fn contains(&self, token: u32) -> bool {
        self.0.get(token as usize / 32).is_some_and(|word| (word >> (token % 32)) & 1 == 1)
    }

    /// Sets the logits of tokens that are not in the set to minus infinity, word by word of the bit
    /// mask: a grammar mostly allows or forbids whole words of it.
    fn mask(&self, logits: &mut [f32]) {
        for (index, logits) in logits.chunks_mut(32).enumerate() {
            match self.0.get(index).copied().unwrap_or(0) {
                u32::MAX => {}
                0 => logits.fill(f32::NEG_INFINITY),
                word => {
                    for (bit, logit) in logits.iter_mut().enumerate() {
                        if word >> bit & 1 == 0 {
                            *logit = f32::NEG_INFINITY;
                        }
                    }
                }
            }
        }
    }

    /// Adds `token` to the set of token ids; does nothing if the id is beyond the end of the bit
    /// mask.
    pub fn insert(&mut self, token: u32) {
        if let Some(word) = self.0.get_mut(token as usize / 32) {
            *word |= 1 << (token % 32);
        }
    }
}

/// Error of sampling from a row of logits whose largest, among the tokens that may be sampled, is
/// not finite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no token that may be chosen has a finite logit")]
pub struct NoFiniteLogit;

/// Sampler of tokens from rows of logits. It has no state but buffers, which it reuses.
#[derive(Debug, Default)]
pub struct Sampler {
    /// Copy of a row of logits, with penalties, bias and bans.
    logits: Vec<f32>,
    /// Largest logit of each block of a row.
    maxima: Vec<f32>,
    /// Copy of `maxima` in another order.
    order: Vec<f32>,
    /// Sum of the weights of each block of a row.
    sums: Vec<f64>,
    /// Token ids and weights that top-k or top-p keep.
    candidates: Vec<(u32, f32)>,
}

impl Sampler {
    /// Samples the next token of a sequence from a row of logits, after penalties, bias, banned and
    /// allowed tokens.
    ///
    /// # Errors
    /// Returns an error if the largest logit, among the tokens that may be sampled and after
    /// penalties and bias, is not finite.
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

/// Applies the penalties and the bias of `params` to a row of logits in place, and sets the logits
/// of banned tokens and of those that are not allowed to minus infinity.
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
        allowed.mask(logits);
    }
}
