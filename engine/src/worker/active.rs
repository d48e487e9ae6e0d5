//! State of one unfinished sequence, except its tokens, which the scheduler keeps; with the
//! log-probabilities of its prompt.

use std::time::Duration;

use super::draft::Drafter;
use super::stop::StopText;
use super::{Finish, Request};
use crate::guide::{Guide, TextError};
use crate::logprobs::TokenLogprobs;
use crate::tokenize::Detokenizer;
use engine_core::LogitRows;
use engine_core::sample::{Row, Sampler};
use engine_schedule::{PlannedSequence, Sequence};

/// Choice of a sequence's next token: the token, and true if it completes the structure that the
/// request wants; the reason for the sequence's end if no token can follow.
pub(super) type Chosen = Result<(u32, bool), Finish>;

/// State of one waiting or running sequence: its request, its text so far and its times.
#[derive(Debug)]
pub(super) struct Active {
    pub(super) request: Request,
    pub(super) detokenizer: Box<dyn Detokenizer>,
    pub(super) stop_text: StopText,
    pub(super) prompt: Option<PromptLogprobs>,
    /// Number of output tokens, from the first on, that are sampled on the host from logits; the
    /// device samples the others.
    pub(super) host_sampled: usize,
    /// Index of the sequence's token among those that the newest step samples on the device; `None`
    /// if it samples none for this sequence. The next step reads its input token from there.
    pub(super) device_sampled: Option<u32>,
    /// Drafts of speculative decoding; `None` where it is off, or the host samples all tokens.
    pub(super) drafter: Option<Drafter>,
    /// Next token as the host has chosen it from logits, until the sequence advances by it.
    pub(super) chosen: Option<Chosen>,
    pub(super) arrived: Duration,
    pub(super) started: Option<Duration>,
    pub(super) first_token: Option<Duration>,
}

/// Returns the number of output tokens of a request, from the first on, that must be sampled on the
/// host, because they need a guide, penalties, a logit bias, banned end tokens or
/// log-probabilities; `usize::MAX` for all, also where the host reads an embedding instead. Other tokens are sampled on the device, which saves
/// copying the logits and lets the next step be submitted early.
pub(super) fn host_sampled(request: &Request, end_tokens: &[u32]) -> usize {
    let needs_rows = request.embeds || request.guide.is_some() || request.logprobs.is_some();
    if needs_rows || request.sampling.changes_logits() {
        return usize::MAX;
    }
    let has_ends = !request.ignore_eos && !end_tokens.is_empty();
    let is_held = has_ends || !request.stop_tokens.is_empty();
    // Nothing has to be banned before `min_tokens` if no token can end the output.
    let banned = if is_held { request.min_tokens } else { 0 };
    // With prompt log-probabilities all rows' logits are read, so the first token is sampled from
    // them.
    banned.max(usize::from(request.prompt_logprobs))
}

impl Active {
    /// Returns for which rows of a scheduled sequence the step must return logits, or that it
    /// samples on the device. The last row before those of drafts belongs to output token number
    /// `n`, counted from 0.
    pub(super) fn logit_rows(&self, planned: &PlannedSequence, n: usize) -> LogitRows {
        match &self.prompt {
            Some(prompt) if !prompt.is_complete() => LogitRows::All,
            _ if !planned.samples => LogitRows::None,
            _ if n < self.host_sampled => LogitRows::Last,
            _ => {
                let first = self.request.sampling.sample_params(n);
                match planned.drafts.len() {
                    0 => LogitRows::Sample(first),
                    drafts => LogitRows::SampleEach { first, rows: 1 + drafts },
                }
            }
        }
    }

    /// Samples the sequence's next token on the host.
    pub(super) fn choose(
        &mut self,
        sampler: &mut Sampler,
        sequence: &Sequence,
        logits: &[f32],
        end_tokens: &[u32],
    ) -> Chosen {
        let banned = self.banned(sequence.output().len(), end_tokens);
        let guide = self.request.guide.as_deref_mut();
        let refused = |error: TextError| Finish::Refused(error.to_string());
        let allowed = guide.map(Guide::allowed).transpose().map_err(refused)?;
        let allowed = allowed.flatten();
        let row = Row {
            logits,
            tokens: sequence.tokens(),
            prompt_tokens: sequence.prompt_tokens(),
            banned: &banned,
            allowed: allowed.as_ref(),
        };
        let sampled = sampler.sample(row, &self.request.sampling);
        let token = sampled.map_err(|error| {
            // Where the model's logits are sound, what the request forbids leaves no token.
            if logits.iter().all(|logit| logit.is_finite()) {
                Finish::Refused("what the request allows leaves no token".into())
            } else {
                Finish::Failed(error.to_string())
            }
        })?;
        let complete = self.request.guide.as_mut().map(|guide| guide.accept(token)).transpose();
        Ok((token, complete.map_err(refused)?.unwrap_or(false)))
    }

    /// Returns the tokens that must not be sampled next, since they would end the output before
    /// `min_tokens`; empty once the output has that many.
    fn banned(&self, n_before: usize, end_tokens: &[u32]) -> Vec<u32> {
        let mut banned = Vec::new();
        if n_before < self.request.min_tokens {
            banned.extend_from_slice(&self.request.stop_tokens);
            if !self.request.ignore_eos {
                banned.extend_from_slice(end_tokens);
            }
        }
        banned
    }

    /// Processes output token number `n` of the sequence, counted from 1: returns the text that the
    /// token completes, and the reason if the output ends with it.
    pub(super) fn accept(
        &mut self,
        token: u32,
        n: usize,
        is_complete: bool,
        end_tokens: &[u32],
    ) -> (String, Option<Finish>) {
        // An end token is never part of the text; a stop token is, if the request wants it.
        if !self.request.ignore_eos && end_tokens.contains(&token) {
            return (self.rest(), Some(Finish::EndToken));
        }
        if self.request.stop_tokens.contains(&token) {
            let shown = self.request.include_stop.then(|| self.detokenizer.push(token));
            let text = self.stop_text.pass(&shown.unwrap_or_default());
            return (text + &self.detokenizer.finish(), Some(Finish::StopToken(token)));
        }
        let piece = self.detokenizer.push(token);
        // Before `min_tokens` no stop string counts, so nothing is held back.
        let mut text = if n < self.request.min_tokens {
            self.stop_text.pass(&piece)
        } else {
            let released = self.stop_text.push(piece);
            if let Some(stop) = released.stop {
                return (released.text, Some(Finish::StopString(stop)));
            }
            released.text
        };
        if n < self.request.max_tokens && !is_complete {
            return (text, None);
        }
        text.push_str(&self.rest());
        (text, Some(if is_complete { Finish::Complete } else { Finish::Length }))
    }

    /// Releases the output text that was held back, at the end of the output.
    fn rest(&mut self) -> String {
        let piece = self.detokenizer.finish();
        self.stop_text.pass(&piece)
    }
}

/// Log-probabilities of one prompt's tokens, collected so far. Prefill chunks come in order, and
/// again from the start after a preemption.
#[derive(Debug)]
pub(super) struct PromptLogprobs {
    top: usize,
    prompt_tokens: usize,
    /// Log-probabilities of the prompt's tokens. Entry `i` is for the token at position `i + 1`:
    /// nothing predicts the first token.
    found: Vec<TokenLogprobs>,
}

impl PromptLogprobs {
    pub(super) fn new(request: &Request, prompt_tokens: usize) -> Self {
        let top = request.logprobs.unwrap_or(0);
        Self { top, prompt_tokens, found: Vec::with_capacity(prompt_tokens) }
    }

    /// Returns true when every token of the prompt but the first has its log-probability.
    pub(super) fn is_complete(&self) -> bool {
        self.found.len() + 1 >= self.prompt_tokens
    }

    /// Adds the log-probability that the logits at `position` give to the next token of the prompt.
    /// A position that was added before a preemption is skipped.
    pub(super) fn push(&mut self, position: usize, tokens: &[u32], logits: &[f32]) {
        if position == self.found.len() && !self.is_complete() {
            self.found.push(TokenLogprobs::of(logits, tokens[position + 1], self.top));
        }
    }

    pub(super) fn finish(self) -> Vec<TokenLogprobs> {
        self.found
    }
}
