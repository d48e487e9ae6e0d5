//! The engine loop, which implements continuous batching: take new requests, schedule a step,
//! submit it to the device, complete the oldest step, hand its outputs to the front end.
//!
//! It owns the model and runs on a thread of its own, which sleeps while no request is open. It
//! knows tokens and text, but no wire format.

mod active;
mod draft;
mod handle;
mod requests;
mod stop;
#[cfg(test)]
mod tests;

pub use draft::DRAFTS_MAX;
pub use handle::{Handle, Ticket, WorkerGone};

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use tokio::sync::{mpsc as async_mpsc, oneshot};

use crate::guide::Guide;
use crate::logprobs::TokenLogprobs;
use crate::metrics::Metrics;
use crate::tokenize::Text;
use engine_core::clock::Clock;
use engine_core::sample::Sampling;
use engine_core::{DeviceError, StepBatch};
use engine_model::Model;
use engine_schedule::{Limits, SchedulerOutput, SeqId};
use requests::Requests;

/// Parameters of one sequence to generate: its prompt, sampling and stop conditions.
#[derive(Debug, Clone)]
pub struct Request {
    /// Prompt as token ids: at least one, each below the vocabulary's size.
    pub prompt: Vec<u32>,
    /// Sampling parameters of the sequence.
    pub sampling: Sampling,
    /// Largest number of output tokens; 0 computes the prompt and samples nothing.
    pub max_tokens: usize,
    /// Smallest number of output tokens: before it, no end token, stop token or stop string ends
    /// the output.
    pub min_tokens: usize,
    /// True if the model's end tokens (EOS) do not end the output.
    pub ignore_eos: bool,
    /// Stop strings of the request, which end the output; each has at least one character.
    pub stop: Vec<String>,
    /// True to keep the stop string or stop token that ended the output in the output's text.
    pub include_stop: bool,
    /// Ids of the request's stop tokens, which end the output like the model's own end tokens.
    pub stop_tokens: Vec<u32>,
    /// Number of likeliest tokens to report with each token's log-probability; `None` for no
    /// log-probabilities.
    pub logprobs: Option<usize>,
    /// True to report log-probabilities of the prompt's tokens as well.
    pub prompt_logprobs: bool,
    /// True to keep special tokens in the output's text, by their names.
    pub shows_special: bool,
    /// True to report the embedding of the prompt; the model embeds texts, and `max_tokens` is 0.
    pub embeds: bool,
    /// Guide that keeps the output within a structure (JSON schema or regular expression), if the
    /// request wants one. Boxed, since it is large and few requests have one.
    pub guide: Option<Box<Guide>>,
}

impl Request {
    /// Creates a request for a greedy output of `prompt` with at most `max_tokens` tokens and no
    /// further conditions: an end token of the model ends it.
    pub fn greedy(prompt: Vec<u32>, max_tokens: usize) -> Self {
        Self {
            prompt,
            sampling: Sampling::greedy(),
            max_tokens,
            min_tokens: 0,
            ignore_eos: false,
            stop: Vec::new(),
            include_stop: false,
            stop_tokens: Vec::new(),
            logprobs: None,
            prompt_logprobs: false,
            shows_special: false,
            embeds: false,
            guide: None,
        }
    }
}

/// Command from the HTTP front end to the engine loop.
#[derive(Debug)]
pub enum Command {
    /// Command to start these sequences, whose ids were not used before.
    Submit(Vec<(SeqId, Request)>),
    /// Command to abort these sequences, since their client is gone. Ids of ended sequences are
    /// ignored.
    Abort(Vec<SeqId>),
    /// Command to empty the prefix cache and reply with the number of KV pages freed.
    ResetPrefixCache(oneshot::Sender<usize>),
}

/// Reason why a sequence ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finish {
    /// The model sampled one of its end tokens.
    EndToken,
    /// The output completed the structure (JSON schema or regular expression) that the request
    /// wants.
    Complete,
    /// The model sampled this token, which is one of the request's `stop_tokens`.
    StopToken(u32),
    /// The output's text contained this string, which is one of the request's `stop` strings.
    StopString(String),
    /// The output reached `max_tokens` tokens.
    Length,
    /// The request asks for an output that cannot be continued, for this reason: its structure has
    /// become too large to follow, or its own limits leave no token.
    Refused(String),
    /// The engine could not continue the sequence, for this reason.
    Failed(String),
}

/// Sampled token of a sequence, with its log-probabilities if the request wants them.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenOutput {
    /// Id of the sampled token.
    pub token: u32,
    /// Log-probabilities of the token and its alternatives, if the request wants them.
    pub logprobs: Option<TokenLogprobs>,
}

/// Result of one step for one sequence; with speculative decoding a step has several for some.
#[derive(Debug, Clone, PartialEq)]
pub struct Output {
    /// Id of the sequence that this output belongs to.
    pub id: SeqId,
    /// Sampled token; `None` with `max_tokens` 0, or where the sequence failed.
    pub token: Option<TokenOutput>,
    /// Log-probabilities of the prompt's tokens, from the second token on. They are part of a
    /// sequence's first output, if the request wants them.
    pub prompt: Option<Vec<TokenLogprobs>>,
    /// Embedding of the prompt, if the request wants it: the model's row of the prompt's last token,
    /// not normalized.
    pub embedding: Option<Vec<f32>>,
    /// Output text that became final with this step; empty while it may end within a character or a
    /// stop string.
    pub text: String,
    /// Reason why the sequence ended, if this is its last output.
    pub finish: Option<Finish>,
    /// Number of the sequence's prompt tokens that were found in the prefix cache.
    pub cached_tokens: usize,
}

/// Engine loop with its state: the model, the running requests, and the steps in flight.
#[derive(Debug)]
pub struct Worker {
    model: Box<dyn Model>,
    requests: Requests,
    /// Largest number of steps that may be in flight (submitted, not complete) while the next is
    /// planned.
    run_ahead: usize,
    /// Steps in flight, the oldest first. They complete in this order.
    in_flight: VecDeque<SubmittedStep>,
    /// Batches of completed steps, kept to reuse their memory.
    spare: Vec<StepBatch>,
    /// Time, since the start of the process, at which the most recently completed step had its
    /// outputs.
    completed: Duration,
}

/// Step in flight: submitted to the device, but not completed yet.
#[derive(Debug)]
struct SubmittedStep {
    plan: SchedulerOutput,
    batch: StepBatch,
    start: Duration,
}

impl Worker {
    /// Creates the engine loop for a model whose KV cache is allocated as `limits` says.
    ///
    /// # Panics
    /// `limits.run_ahead` is above 1, or above the number of steps that the model takes in advance.
    pub fn new(
        model: Box<dyn Model>,
        text: Arc<dyn Text>,
        limits: Limits,
        metrics: Arc<Metrics>,
        clock: Clock,
    ) -> Self {
        let run_ahead = limits.run_ahead;
        assert!(run_ahead <= model.run_ahead(), "the model takes so many steps");
        // A step can take its input tokens from the step before it, but from no older one.
        assert!(run_ahead <= 1, "one step is in flight when the next is planned");
        metrics.kv_pages.store(limits.pages as u64, Relaxed);
        let requests = Requests::new(limits, text, metrics, clock);
        let (in_flight, spare) = (VecDeque::new(), Vec::new());
        Self { model, requests, run_ahead, in_flight, spare, completed: Duration::ZERO }
    }

    /// Runs the loop until every command sender is dropped and no sequence is open.
    ///
    /// # Errors
    /// The device failed; the outputs of running sequences are lost.
    pub fn run(
        mut self,
        commands: &mpsc::Receiver<Command>,
        outputs: &async_mpsc::UnboundedSender<Vec<Output>>,
    ) -> Result<(), DeviceError> {
        while self.turn(commands, outputs)? {}
        Ok(())
    }

    /// Runs one iteration: takes all commands, then submits a step, completes one, or both. While
    /// no sequence is open, waits for a command first. Returns false once every command sender is
    /// dropped and no sequence is open.
    ///
    /// # Errors
    /// The device failed; the outputs of running sequences are lost.
    pub fn turn(
        &mut self,
        commands: &mpsc::Receiver<Command>,
        outputs: &async_mpsc::UnboundedSender<Vec<Output>>,
    ) -> Result<bool, DeviceError> {
        let mut step_outputs = Vec::new();
        if self.is_idle() {
            let Ok(command) = commands.recv() else { return Ok(false) };
            self.requests.obey(command, &mut step_outputs);
        }
        // New sequences join the next step, without waiting for running ones: continuous batching.
        for command in commands.try_iter() {
            self.requests.obey(command, &mut step_outputs);
        }
        self.step(&mut step_outputs)?;
        self.requests.publish_counts();
        if !step_outputs.is_empty() {
            // An error means that the front end has gone; the command queue closes then too.
            let _ = outputs.send(step_outputs);
        }
        Ok(true)
    }

    fn is_idle(&self) -> bool {
        self.requests.scheduler.is_idle() && self.in_flight.is_empty()
    }

    /// Submits the next step to the device, and completes the oldest step in flight unless more
    /// steps may be in flight.
    fn step(&mut self, outputs: &mut Vec<Output>) -> Result<(), DeviceError> {
        let has_begun = self.submit()?;
        // While the device computes, the host plans the next step.
        if has_begun && self.in_flight.len() <= self.run_ahead {
            return Ok(());
        }
        self.complete(outputs)
    }

    /// Submits the next step to the device. Returns false if there is nothing to compute, or
    /// nothing before a step in flight completes.
    fn submit(&mut self) -> Result<bool, DeviceError> {
        if self.requests.scheduler.is_idle() {
            return Ok(false);
        }
        // The duration of a step includes planning it.
        let start = self.requests.clock.elapsed();
        self.requests.propose();
        let plan = self.requests.scheduler.plan();
        if plan.sequences.is_empty() {
            return Ok(false);
        }
        let mut batch = self.spare.pop().unwrap_or_default();
        self.requests.fill(&mut batch, &plan);
        self.model.submit(&batch)?;
        self.in_flight.push_back(SubmittedStep { plan, batch, start });
        Ok(true)
    }

    /// Waits for the oldest step in flight to complete, and builds its outputs.
    fn complete(&mut self, outputs: &mut Vec<Output>) -> Result<(), DeviceError> {
        let Some(step) = self.in_flight.pop_front() else { return Ok(()) };
        let row_size = self.model.info().row_size();
        let output = self.model.complete()?;
        self.requests.take(&step, output, row_size, outputs);
        let Requests { metrics, clock, .. } = &self.requests;
        let end = clock.elapsed();
        metrics.step_tokens.observe(step.plan.rows() as f64);
        // A step that was submitted while another ran began when that one was completed.
        let start = step.start.max(self.completed);
        metrics.step_seconds.observe_time(end.saturating_sub(start));
        self.completed = end;
        self.spare.push(step.batch);
        Ok(())
    }
}

impl Output {
    /// Builds the last output of a sequence that ends without a token.
    fn ended(id: SeqId, finish: Finish, cached_tokens: usize) -> Self {
        let (token, prompt, embedding, text) = Default::default();
        Self { id, token, prompt, embedding, text, finish: Some(finish), cached_tokens }
    }
}
