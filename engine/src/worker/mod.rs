//! The loop: take requests, schedule a step, begin it, wait for an older one, hand its outputs out.
//!
//! It owns the model and runs on a thread of its own, asleep while nothing is asked. It knows
//! tokens and text, but no wire format.

mod active;
mod batch;
mod desk;
mod handle;
mod prompt;
mod stop;
#[cfg(test)]
mod tests;

pub use handle::{Handle, Ticket, WorkerGone};

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use tokio::sync::{mpsc as async_mpsc, oneshot};

use crate::guide::Guide;
use crate::logprobs::TokenLogprobs;
use crate::metrics::Metrics;
use crate::text::Text;
use desk::Desk;
use engine_core::clock::Clock;
use engine_core::sample::Sampling;
use engine_core::{DeviceError, StepBatch};
use engine_model::Model;
use engine_schedule::{Limits, Plan, SeqId};

/// One sequence to generate.
#[derive(Debug, Clone)]
pub struct Request {
    /// At least one token; every id below the vocabulary's size.
    pub prompt: Vec<u32>,
    /// How its tokens are chosen.
    pub sampling: Sampling,
    /// 0 computes the prompt and samples nothing.
    pub max_tokens: usize,
    /// No end token and no stop counts before this many tokens.
    pub min_tokens: usize,
    /// Whether end tokens are tokens like others.
    pub ignore_eos: bool,
    /// Strings that end the output; none is empty.
    pub stop: Vec<String>,
    /// Whether the string that ended the output is part of it.
    pub include_stop: bool,
    /// Tokens that end the output, besides the model's own.
    pub stop_tokens: Vec<u32>,
    /// Number of rival tokens whose log-probabilities are wanted with that of each token.
    pub logprobs: Option<usize>,
    /// Whether those of the prompt's tokens are wanted as well.
    pub prompt_logprobs: bool,
    /// Whether special tokens are part of the text, by their names.
    pub shows_special: bool,
    /// Keeps the output within a structure. Few requests have one, and it is large.
    pub guide: Option<Box<Guide>>,
}

/// What the front end asks.
#[derive(Debug)]
pub enum Command {
    /// Begin these sequences, of which none was begun before.
    Submit(Vec<(SeqId, Request)>),
    /// Nobody waits for these any more; those that have ended already are passed over.
    Abort(Vec<SeqId>),
    /// Forget all cached prefixes and answer with the number of pages freed.
    ResetPrefixCache(oneshot::Sender<usize>),
}

/// Why a sequence ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finish {
    /// By a token with which the model ends an answer.
    EndToken,
    /// The structure that was asked for is complete.
    Complete,
    /// By this token of the request's `stop_tokens`.
    StopToken(u32),
    /// By this string of the request's `stop`.
    StopString(String),
    /// It has `max_tokens` tokens.
    Length,
    /// The engine cannot go on with this sequence.
    Failed(String),
}

/// A sampled token.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenOutput {
    /// Its id.
    pub token: u32,
    /// Where they were asked for.
    pub logprobs: Option<TokenLogprobs>,
}

/// What one step did for one sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct Output {
    /// Whose step it was.
    pub id: SeqId,
    /// None where nothing is sampled, or the engine cannot go on with the sequence.
    pub token: Option<TokenOutput>,
    /// With the first output, where they were asked for: the prompt's log-probabilities, from its
    /// second token on.
    pub prompt: Option<Vec<TokenLogprobs>>,
    /// Text that became certain; empty while a character or a stop string may be unfinished.
    pub text: String,
    /// Why this is the last output, if it is.
    pub finish: Option<Finish>,
    /// Prompt tokens that the prefix cache spared.
    pub cached_tokens: usize,
}

/// The model and all that is under way.
#[derive(Debug)]
pub struct Worker {
    model: Box<dyn Model>,
    desk: Desk,
    run_ahead: usize,
    /// Steps that the model has begun, the oldest first.
    flights: VecDeque<Flight>,
    /// Batches of steps that have landed, for their memory.
    spare: Vec<StepBatch>,
    /// When the last step had landed and its outputs were made.
    landed: Duration,
}

/// A step that the model has begun.
#[derive(Debug)]
struct Flight {
    plan: Plan,
    batch: StepBatch,
    start: Duration,
}

impl Worker {
    /// A worker over a model whose KV cache is allocated as `limits` says.
    pub fn new(
        model: Box<dyn Model>,
        text: Arc<dyn Text>,
        limits: Limits,
        metrics: Arc<Metrics>,
        clock: Clock,
    ) -> Self {
        let run_ahead = limits.run_ahead;
        assert!(run_ahead <= model.run_ahead(), "the model takes so many steps");
        // A step names tokens of the step before it, not of older ones.
        assert!(run_ahead <= 1, "one step is in flight when the next is planned");
        metrics.kv_pages.store(limits.pages as u64, Relaxed);
        let desk = Desk::new(limits, text, metrics, clock);
        let (flights, spare) = (VecDeque::new(), Vec::new());
        Self { model, desk, run_ahead, flights, spare, landed: Duration::ZERO }
    }

    /// Works until every command sender is gone.
    ///
    /// # Errors
    /// The device failed; what was under way is lost.
    pub fn run(
        mut self,
        commands: &mpsc::Receiver<Command>,
        outputs: &async_mpsc::UnboundedSender<Vec<Output>>,
    ) -> Result<(), DeviceError> {
        while self.turn(commands, outputs)? {}
        Ok(())
    }

    /// Takes what was asked, and begins a step or lands one; waits where nothing is under way. False
    /// once every command sender is gone.
    ///
    /// # Errors
    /// As [`Worker::run`].
    pub fn turn(
        &mut self,
        commands: &mpsc::Receiver<Command>,
        outputs: &async_mpsc::UnboundedSender<Vec<Output>>,
    ) -> Result<bool, DeviceError> {
        let mut step_outputs = Vec::new();
        if self.is_idle() {
            let Ok(command) = commands.recv() else { return Ok(false) };
            self.desk.obey(command, &mut step_outputs);
        }
        for command in commands.try_iter() {
            self.desk.obey(command, &mut step_outputs);
        }
        self.step(&mut step_outputs)?;
        self.desk.publish_counts();
        if !step_outputs.is_empty() {
            // Without a front end nobody minds the outputs, and the commands end next.
            let _ = outputs.send(step_outputs);
        }
        Ok(true)
    }

    fn is_idle(&self) -> bool {
        self.desk.is_idle() && self.flights.is_empty()
    }

    /// Begins the next step, and lands the oldest where no more can be in flight.
    fn step(&mut self, outputs: &mut Vec<Output>) -> Result<(), DeviceError> {
        let has_begun = self.launch()?;
        if has_begun && self.flights.len() <= self.run_ahead {
            return Ok(());
        }
        self.land(outputs)
    }

    /// Begins the next step; false where there is none, or none before another has landed.
    fn launch(&mut self) -> Result<bool, DeviceError> {
        if self.desk.is_idle() {
            return Ok(false);
        }
        let start = self.desk.clock.elapsed();
        let plan = self.desk.scheduler.plan();
        if plan.slots.is_empty() {
            return Ok(false);
        }
        let mut batch = self.spare.pop().unwrap_or_default();
        self.desk.fill(&mut batch, &plan);
        self.model.launch(&batch)?;
        self.flights.push_back(Flight { plan, batch, start });
        Ok(true)
    }

    /// Waits for the oldest step in flight and hands out what came of it.
    fn land(&mut self, outputs: &mut Vec<Output>) -> Result<(), DeviceError> {
        let Some(flight) = self.flights.pop_front() else { return Ok(()) };
        let vocab_size = self.model.info().vocab_size;
        let landed = self.model.land()?;
        self.desk.take(&flight, landed, vocab_size, outputs);
        let Desk { metrics, clock, .. } = &self.desk;
        let end = clock.elapsed();
        metrics.step_tokens.observe(flight.plan.rows() as f64);
        // A step that began while another ran has taken its time from there on.
        let start = flight.start.max(self.landed);
        metrics.step_seconds.observe_time(end.saturating_sub(start));
        self.landed = end;
        self.spare.push(flight.batch);
        Ok(())
    }
}

impl Output {
    fn failed(id: SeqId, reason: String, cached_tokens: usize) -> Self {
        let finish = Some(Finish::Failed(reason));
        Self { id, token: None, prompt: None, text: String::new(), finish, cached_tokens }
    }
}
