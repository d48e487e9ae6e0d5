//! The loop: take requests, schedule a step, run it, sample, hand the outputs out.
//!
//! It owns the model and runs on a thread of its own, asleep while nothing is asked. It knows
//! tokens and text, but no wire format.

mod handle;
mod prompt;
mod stop;
#[cfg(test)]
mod tests;

pub use handle::{Handle, Ticket, WorkerGone};

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use tokio::sync::{mpsc as async_mpsc, oneshot};

use crate::clock::Clock;
use crate::metrics::{Metrics, Outcome};
use crate::model::{LogitRows, Model, Segment, SegmentState, StepBatch, StepError, StepToken};
use crate::sample::{Guide, Row, Sampler, Sampling, TokenLogprobs};
use crate::schedule::{Limits, Plan, Scheduler, SeqId, Sequence, Slot};
use crate::text::{Detokenizer, Text};
use prompt::PromptLogprobs;
use stop::StopText;

/// One sequence to generate.
#[derive(Debug, Clone)]
pub struct Request {
    /// At least one token; every id below the vocabulary's size.
    pub prompt: Vec<u32>,
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
    /// Keeps the output within a structure.
    pub guide: Option<Guide>,
}

/// What the front end asks.
#[derive(Debug)]
pub enum Command {
    Submit(Vec<(SeqId, Request)>),
    Abort(Vec<SeqId>),
    ResetPrefixCache(oneshot::Sender<usize>),
}

/// Why a sequence ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finish {
    EndToken,
    /// The structure that was asked for is complete.
    Complete,
    StopToken(u32),
    StopString(String),
    Length,
    /// The engine cannot go on with this sequence.
    Failed(String),
}

/// A sampled token.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenOutput {
    pub token: u32,
    pub logprobs: Option<TokenLogprobs>,
}

/// What one step did for one sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct Output {
    pub id: SeqId,
    pub token: Option<TokenOutput>,
    /// With the first output, where they were asked for: the prompt's log-probabilities, from its
    /// second token on.
    pub prompt: Option<Vec<TokenLogprobs>>,
    /// Text that became certain; empty while a character or a stop string may be unfinished.
    pub text: String,
    pub finish: Option<Finish>,
    /// Prompt tokens that the prefix cache spared.
    pub cached_tokens: usize,
}

/// The model and all that is under way.
#[derive(Debug)]
pub struct Worker {
    model: Box<dyn Model>,
    desk: Desk,
}

/// All of the worker but the model, so that logits can be read while the rest changes.
#[derive(Debug)]
struct Desk {
    scheduler: Scheduler,
    sampler: Sampler,
    active: BTreeMap<SeqId, Active>,
    text: Arc<dyn Text>,
    metrics: Arc<Metrics>,
    clock: Clock,
}

/// One sequence under way; its tokens are the scheduler's.
#[derive(Debug)]
struct Active {
    request: Request,
    detokenizer: Box<dyn Detokenizer>,
    stop_text: StopText,
    prompt: Option<PromptLogprobs>,
    arrived: Duration,
    started: Option<Duration>,
    first_token: Option<Duration>,
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
        assert_eq!(limits.run_ahead, 0, "each step is sampled here before the next is planned");
        metrics.kv_pages.store(limits.pages as u64, Relaxed);
        let scheduler = Scheduler::new(limits);
        let (sampler, active) = (Sampler::default(), BTreeMap::new());
        Self { model, desk: Desk { scheduler, sampler, active, text, metrics, clock } }
    }

    /// Works until every command sender is gone.
    ///
    /// # Errors
    /// The device failed; what was under way is lost.
    pub fn run(
        mut self,
        commands: &mpsc::Receiver<Command>,
        outputs: &async_mpsc::UnboundedSender<Vec<Output>>,
    ) -> Result<(), StepError> {
        loop {
            let mut step_outputs = Vec::new();
            if self.desk.scheduler.is_idle() {
                let Ok(command) = commands.recv() else { return Ok(()) };
                self.desk.obey(command, &mut step_outputs);
            }
            for command in commands.try_iter() {
                self.desk.obey(command, &mut step_outputs);
            }
            if !self.desk.scheduler.is_idle() {
                self.step(&mut step_outputs)?;
            }
            self.desk.publish_counts();
            if !step_outputs.is_empty() {
                // Without a front end nobody minds the outputs, and the commands end next.
                let _ = outputs.send(step_outputs);
            }
        }
    }

    fn step(&mut self, outputs: &mut Vec<Output>) -> Result<(), StepError> {
        let Desk { scheduler, active, metrics, clock, .. } = &mut self.desk;
        let start = clock.elapsed();
        let plan = scheduler.plan();
        let batch = batch(scheduler, &plan, active);
        let vocab_size = self.model.info().vocab_size;
        let logits = self.model.step(&batch)?;
        scheduler.commit(&plan);
        metrics.step_tokens.observe(plan.rows() as f64);
        let wanted = batch.head_rows().rows.len();
        assert_eq!(logits.len(), wanted * vocab_size, "one row of logits per row asked for");
        let rows = logits.chunks_exact(vocab_size);
        self.desk.postprocess(&plan, &batch.segments, start, rows, outputs);
        let Desk { metrics, clock, .. } = &self.desk;
        metrics.step_seconds.observe_time(clock.elapsed().saturating_sub(start));
        Ok(())
    }
}

/// The step as the model wants it.
fn batch(scheduler: &Scheduler, plan: &Plan, active: &BTreeMap<SeqId, Active>) -> StepBatch {
    let mut batch = StepBatch::default();
    for slot in &plan.slots {
        let sequence = scheduler.sequence(slot.id).expect("a planned sequence lives");
        let rows = slot.position..slot.position + slot.rows;
        batch.tokens.extend(sequence.tokens()[rows].iter().copied().map(StepToken::Known));
        batch.segments.push(Segment {
            rows: slot.rows,
            position: slot.position,
            pages: sequence.pages().iter().map(|page| page.0).collect(),
            logits: match &active[&slot.id].prompt {
                Some(prompt) if !prompt.is_complete() => LogitRows::All,
                _ if slot.samples => LogitRows::Last,
                _ => LogitRows::None,
            },
            state: slot.state.map(|state| SegmentState {
                place: state.place.0,
                load: state.load.map(|snapshot| snapshot.0),
                save: state.save.map(|snapshot| snapshot.0),
            }),
        });
    }
    batch
}

impl Desk {
    fn obey(&mut self, command: Command, outputs: &mut Vec<Output>) {
        match command {
            Command::Submit(requests) => {
                for (id, request) in requests {
                    self.submit(id, request, outputs);
                }
            }
            Command::Abort(ids) => {
                for id in ids {
                    if self.scheduler.remove(id).is_some() {
                        self.active.remove(&id);
                        self.metrics.count_request(Outcome::Abort);
                    }
                }
            }
            Command::ResetPrefixCache(reply) => {
                // Whoever asked may have gone; the cache is empty all the same.
                let _ = reply.send(self.scheduler.reset_prefix_cache());
            }
        }
    }

    fn submit(&mut self, id: SeqId, mut request: Request, outputs: &mut Vec<Output>) {
        let prompt = std::mem::take(&mut request.prompt);
        let prompt_tokens = prompt.len() as u64;
        let logprobs = request.prompt_logprobs.then(|| PromptLogprobs::new(&request, prompt.len()));
        // What is found in the cache has no logits.
        let added = match &logprobs {
            None => self.scheduler.add(id, prompt, request.max_tokens),
            Some(_) => self.scheduler.add_uncached(id, prompt, request.max_tokens),
        };
        if let Err(refusal) = added {
            outputs.push(Output::failed(id, refusal.to_string(), 0));
            self.metrics.count_request(Outcome::Refused);
            return;
        }
        self.metrics.prompt_tokens.fetch_add(prompt_tokens, Relaxed);
        let stop = std::mem::take(&mut request.stop);
        let active = Active {
            detokenizer: self.text.detokenizer(request.shows_special),
            stop_text: StopText::new(stop, request.include_stop),
            prompt: logprobs,
            request,
            arrived: self.clock.elapsed(),
            started: None,
            first_token: None,
        };
        self.active.insert(id, active);
    }

    /// Samples a token for each sequence that is ready for one. `rows` are the logits that
    /// `segments`, one for each slot, asked for.
    fn postprocess<'a>(
        &mut self,
        plan: &Plan,
        segments: &[Segment],
        start: Duration,
        mut rows: impl Iterator<Item = &'a [f32]>,
        outputs: &mut Vec<Output>,
    ) {
        for (slot, segment) in plan.slots.iter().zip(segments) {
            let active = self.active.get_mut(&slot.id).expect("a planned sequence is active");
            if active.started.is_none() {
                active.started = Some(start);
                self.metrics.queue_seconds.observe_time(start.saturating_sub(active.arrived));
            }
            let mut last: Option<&[f32]> = None;
            if segment.logits == LogitRows::All {
                let tokens = self.scheduler.sequence(slot.id).expect("it lives").tokens();
                let prompt = active.prompt.as_mut().expect("only a prompt wants all rows");
                for (position, row) in (slot.position..).zip(rows.by_ref().take(slot.rows)) {
                    prompt.push(position, tokens, row);
                    last = Some(row);
                }
            }
            if slot.samples {
                let logits = last.or_else(|| rows.next());
                outputs.push(self.advance(slot, logits.expect("a row per sampled sequence")));
            }
        }
    }

    /// One more token of a sequence, which may be its last.
    fn advance(&mut self, slot: &Slot, logits: &[f32]) -> Output {
        let id = slot.id;
        let sequence = self.scheduler.sequence(id).expect("a sampled sequence lives");
        let cached_tokens = sequence.cached_tokens();
        let active = self.active.get_mut(&id).expect("a sampled sequence is active");
        let n_before = sequence.output().len();
        let prompt = active.prompt.take().map(PromptLogprobs::finish);
        if active.request.max_tokens == 0 {
            self.end(id, Outcome::Length, 0);
            let (text, finish) = (String::new(), Some(Finish::Length));
            return Output { id, token: None, prompt, text, finish, cached_tokens };
        }
        let chosen = active.choose(&mut self.sampler, sequence, logits, self.text.end_tokens());
        let (token, is_complete) = match chosen {
            Ok(chosen) => chosen,
            Err(reason) => {
                self.end(id, Outcome::Error, n_before);
                return Output::failed(id, reason, cached_tokens);
            }
        };
        self.metrics.generation_tokens.fetch_add(1, Relaxed);
        if active.first_token.is_none() {
            let now = self.clock.elapsed();
            active.first_token = Some(now);
            self.metrics.ttft_seconds.observe_time(now.saturating_sub(active.arrived));
        }
        let logprobs = active.request.logprobs.map(|top| TokenLogprobs::of(logits, token, top));
        let ends = self.text.end_tokens();
        let (text, finish) = active.accept(token, n_before + 1, is_complete, ends);
        match &finish {
            None => self.scheduler.append(id, token),
            Some(Finish::Length) => self.end(id, Outcome::Length, n_before + 1),
            Some(_) => self.end(id, Outcome::Stop, n_before + 1),
        }
        let token = Some(TokenOutput { token, logprobs });
        Output { id, token, prompt, text, finish, cached_tokens }
    }

    fn end(&mut self, id: SeqId, outcome: Outcome, n_tokens: usize) {
        self.scheduler.remove(id);
        let active = self.active.remove(&id).expect("a sequence ends once");
        self.metrics.count_request(outcome);
        if let Some(first) = active.first_token
            && n_tokens > 1
        {
            let rest = self.clock.elapsed().saturating_sub(first).as_secs_f64();
            self.metrics.tpot_seconds.observe(rest / (n_tokens - 1) as f64);
        }
    }

    fn publish_counts(&self) {
        let (metrics, totals) = (&self.metrics, self.scheduler.totals());
        metrics.requests_running.store(self.scheduler.running() as u64, Relaxed);
        metrics.requests_waiting.store(self.scheduler.waiting() as u64, Relaxed);
        metrics.kv_pages_used.store(self.scheduler.pages_used() as u64, Relaxed);
        metrics.kv_pages_touched.store(self.scheduler.pages_touched() as u64, Relaxed);
        metrics.prefix_cache_query_tokens.store(totals.query_tokens, Relaxed);
        metrics.prefix_cache_hit_tokens.store(totals.hit_tokens, Relaxed);
        metrics.preemptions.store(totals.preemptions, Relaxed);
    }
}

impl Output {
    fn failed(id: SeqId, reason: String, cached_tokens: usize) -> Self {
        let finish = Some(Finish::Failed(reason));
        Self { id, token: None, prompt: None, text: String::new(), finish, cached_tokens }
    }
}

impl Active {
    /// The next token, and whether it completes the structure that was asked for.
    fn choose(
        &mut self,
        sampler: &mut Sampler,
        sequence: &Sequence,
        logits: &[f32],
        end_tokens: &[u32],
    ) -> Result<(u32, bool), String> {
        let banned = self.banned(sequence.output().len(), end_tokens);
        let guide = self.request.guide.as_mut();
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
    fn accept(
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
            let released = self.stop_text.push(&piece);
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
