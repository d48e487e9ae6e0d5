//! One sequence under way, but for its tokens, which are the scheduler's.

use std::time::Duration;

use super::prompt::PromptLogprobs;
use super::stop::StopText;
use super::{Finish, Request};
use crate::guide::Guide;
use crate::text::Detokenizer;
use engine_core::LogitRows;
use engine_core::sample::{Row, Sampler};
use engine_schedule::{Sequence, Slot};

#[derive(Debug)]
pub(super) struct Active {
    pub(super) request: Request,
    pub(super) detokenizer: Box<dyn Detokenizer>,
    pub(super) stop_text: StopText,
    pub(super) prompt: Option<PromptLogprobs>,
    /// So many of its first tokens are chosen here, from logits; the device draws the others.
    pub(super) chosen_here: usize,
    /// The place of its token among those that the last step draws.
    pub(super) drawn: Option<u32>,
    pub(super) arrived: Duration,
    pub(super) started: Option<Duration>,
    pub(super) first_token: Option<Duration>,
}

/// How many of the first tokens of `request` are chosen by more than a row of logits, or with more
/// than an id to show for it.
pub(super) fn chosen_here(request: &Request, end_tokens: &[u32]) -> usize {
    if request.guide.is_some() || request.logprobs.is_some() || request.sampling.changes_logits() {
        return usize::MAX;
    }
    let has_ends = !request.ignore_eos && !end_tokens.is_empty();
    let is_held = has_ends || !request.stop_tokens.is_empty();
    let banned = if is_held { request.min_tokens } else { 0 };
    // The first is sampled from the last of the rows whose logits are read.
    banned.max(usize::from(request.prompt_logprobs))
}

impl Active {
    /// What is wanted of a slot's logits; the last of its rows is that of the `n`-th token of the
    /// output, counted from 0.
    pub(super) fn logit_rows(&self, slot: &Slot, n: usize) -> LogitRows {
        match &self.prompt {
            Some(prompt) if !prompt.is_complete() => LogitRows::All,
            _ if !slot.samples => LogitRows::None,
            _ if n < self.chosen_here => LogitRows::Last,
            _ => LogitRows::Draw(self.request.sampling.draw_params(n)),
        }
    }

    /// The next token, and whether it completes the structure that was asked for.
    pub(super) fn choose(
        &mut self,
        sampler: &mut Sampler,
        sequence: &Sequence,
        logits: &[f32],
        end_tokens: &[u32],
    ) -> Result<(u32, bool), String> {
        let banned = self.banned(sequence.output().len(), end_tokens);
        let guide = self.request.guide.as_deref_mut();
        let allowed = guide.map(Guide::allowed).transpose().map_err(|error| error.to_string())?;
        let allowed = allowed.flatten();
        let row = Row {
            logits,
            tokens: sequence.tokens(),
            prompt_tokens: sequence.prompt_tokens(),
            banned: &banned,
            allowed: allowed.as_ref(),
        };
        let token =
            sampler.sample(row, &self.request.sampling).map_err(|error| error.to_string())?;
        let complete = self.request.guide.as_mut().map(|guide| guide.accept(token)).transpose();
        Ok((token, complete.map_err(|error| error.to_string())?.unwrap_or(false)))
    }

    /// Tokens that would end the output before `min_tokens`.
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

    /// The text that a token, the `n`-th, makes certain, and whether it is the last.
    pub(super) fn accept(
        &mut self,
        token: u32,
        n: usize,
        is_complete: bool,
        end_tokens: &[u32],
    ) -> (String, Option<Finish>) {
        if !self.request.ignore_eos && end_tokens.contains(&token) {
            return (self.rest(), Some(Finish::EndToken));
        }
        if self.request.stop_tokens.contains(&token) {
            let shown = self.request.include_stop.then(|| self.detokenizer.push(token));
            let text = self.stop_text.pass(&shown.unwrap_or_default());
            return (text + &self.detokenizer.finish(), Some(Finish::StopToken(token)));
        }
        let piece = self.detokenizer.push(token);
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

    /// What was held back, now that nothing follows.
    fn rest(&mut self) -> String {
        let piece = self.detokenizer.finish();
        self.stop_text.pass(&piece)
    }
}
