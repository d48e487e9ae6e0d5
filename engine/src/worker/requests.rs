//! State of unfinished requests: applies commands, builds the batch of a step, feeds sampled tokens
//! back to the scheduler, and builds the outputs. It must not know the model.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::active::{Active, PromptLogprobs, host_sampled};
use super::stop::StopText;
use super::{Command, Finish, Output, Request, SubmittedStep, TokenOutput};
use crate::logprobs::TokenLogprobs;
use crate::metrics::{Metrics, Outcome};
use crate::tokenize::Text;
use engine_core::clock::Clock;
use engine_core::sample::{NoFiniteLogit, Sampler};
use engine_core::{LogitRows, ScheduledSequence, StepBatch, StepOutput, StepToken};
use engine_schedule::{BySequence, Limits, Needs, Scheduler, SchedulerOutput, SeqId};

/// State of all unfinished requests, with the scheduler and the sampler.
#[derive(Debug)]
pub(super) struct Requests {
    pub(super) scheduler: Scheduler,
    sampler: Sampler,
    pub(super) active: BySequence<Active>,
    text: Arc<dyn Text>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) clock: Clock,
}

/// Source of a sequence's next token: the token that the device has sampled, or logits for the
/// host.
#[derive(Debug, Clone, Copy)]
enum Choice<'a> {
    /// Token that the device has sampled for a sequence; `None` if no logit was finite.
    Sampled(Option<u32>),
    /// Logits `[rows, vocab]` of a sequence, from which its next token is sampled on the host; of a
    /// model that embeds texts, embeddings.
    From(&'a [f32]),
}

impl Choice<'_> {
    /// Reduces logits to those of the last row; a token sampled on the device stays as it is.
    fn of_last_row(self, row_size: usize) -> Self {
        match self {
            Self::Sampled(token) => Self::Sampled(token),
            Self::From(logits) => Self::From(&logits[logits.len() - row_size..]),
        }
    }
}

impl Requests {
    pub(super) fn new(
        limits: Limits,
        text: Arc<dyn Text>,
        metrics: Arc<Metrics>,
        clock: Clock,
    ) -> Self {
        let (scheduler, sampler, active) =
            (Scheduler::new(limits), Sampler::default(), BySequence::default());
        Self { scheduler, sampler, active, text, metrics, clock }
    }

    /// Applies a command of the HTTP front end; a refusal is appended to `outputs`.
    pub(super) fn obey(&mut self, command: Command, outputs: &mut Vec<Output>) {
        match command {
            Command::Submit(requests) => {
                for (id, request) in requests {
                    self.submit(id, request, outputs);
                }
            }
            Command::Abort(ids) => {
                for id in ids {
                    if self.scheduler.remove(id).is_some() {
                        self.active.remove(id);
                        self.metrics.count_request(Outcome::Abort);
                    }
                }
            }
            Command::ResetPrefixCache(reply) => {
                // The client may have gone, so that nobody receives the reply; the cache is empty
                // all the same.
                let _ = reply.send(self.scheduler.reset_prefix_cache());
            }
        }
    }

    fn submit(&mut self, id: SeqId, mut request: Request, outputs: &mut Vec<Output>) {
        let prompt = std::mem::take(&mut request.prompt);
        let prompt_tokens = prompt.len() as u64;
        let logprobs = request.prompt_logprobs.then(|| PromptLogprobs::new(&request, prompt.len()));
        let host_sampled = host_sampled(&request, self.text.end_tokens());
        // Prompt log-probabilities need all rows, so the prompt must not come from the prefix
        // cache.
        let needs = Needs { all_rows: request.prompt_logprobs, known_tokens: host_sampled };
        let added = self.scheduler.add(id, prompt, request.max_tokens, needs);
        if let Err(refusal) = added {
            outputs.push(Output::ended(id, Finish::Refused(refusal.to_string()), 0));
            self.metrics.count_request(Outcome::Refused);
            return;
        }
        self.metrics.prompt_tokens.fetch_add(prompt_tokens, Relaxed);
        let stop = std::mem::take(&mut request.stop);
        let active = Active {
            detokenizer: self.text.detokenizer(request.shows_special),
            stop_text: StopText::new(stop, request.include_stop),
            prompt: logprobs,
            host_sampled,
            device_sampled: None,
            request,
            arrived: self.clock.elapsed(),
            started: None,
            first_token: None,
        };
        self.active.insert(id, active);
    }

    /// Fills `batch` with the step that the scheduler planned: input tokens, and the logits that
    /// each sequence needs. The batch comes from an earlier step, so that its memory is reused.
    pub(super) fn fill(&mut self, batch: &mut StepBatch, plan: &SchedulerOutput) {
        // Number of tokens that the device samples in this step, up to here.
        let mut sampled = 0;
        batch.tokens.clear();
        batch.sequences.clear();
        for planned in &plan.sequences {
            let sequence = self.scheduler.sequence(planned.id).expect("a planned sequence lives");
            let active = self.active.get_mut(planned.id).expect("a planned sequence is active");
            let (start, end) = (planned.scheduled.position, planned.scheduled.end());
            // The newest input token may still be on the device, sampled by the step in flight.
            let known = &sequence.tokens()[start..end - usize::from(planned.unknown)];
            batch.tokens.extend(known.iter().copied().map(StepToken::Known));
            if planned.unknown {
                let index = active.device_sampled.expect("the step before samples the token");
                batch.tokens.push(StepToken::Sampled(index));
            }
            // Index of the output token that is sampled after the last row; 0 while the prompt
            // lasts.
            let n = end.saturating_sub(sequence.prompt_tokens());
            let logits = active.logit_rows(planned, n);
            active.device_sampled = matches!(logits, LogitRows::Sample(_)).then_some(sampled);
            sampled += u32::from(active.device_sampled.is_some());
            batch.push(ScheduledSequence { logits, ..planned.scheduled.clone() });
        }
    }

    /// Processes the output of a completed step: appends one token to each sequence that was
    /// sampled and has not ended since, and its output to `outputs`.
    pub(super) fn take(
        &mut self,
        step: &SubmittedStep,
        output: StepOutput<'_>,
        row_size: usize,
        outputs: &mut Vec<Output>,
    ) {
        self.scheduler.commit(&step.plan);
        outputs.reserve(step.plan.sequences.len());
        let before = outputs.len();
        // Logits and sampled tokens come in the order of the plan.
        let (mut logits, mut tokens) = (output.logits, output.tokens.iter());
        for (planned, scheduled) in step.plan.sequences.iter().zip(&step.batch.sequences) {
            let choice = match scheduled.logits {
                LogitRows::Sample(_) => {
                    Choice::Sampled(*tokens.next().expect("a token per sampled row"))
                }
                _ => {
                    let (own, rest) = logits.split_at(scheduled.head_rows().len() * row_size);
                    logits = rest;
                    Choice::From(own)
                }
            };
            // The sequence may have ended while this step was in flight.
            let Some(active) = self.active.get_mut(planned.id) else { continue };
            // Queueing ends with the submission of the first step that includes the sequence.
            if active.started.is_none() {
                active.started = Some(step.start);
                self.metrics.queue_seconds.observe_time(step.start.saturating_sub(active.arrived));
            }
            if let (LogitRows::All, Choice::From(rows)) = (scheduled.logits, choice) {
                let tokens = self.scheduler.sequence(planned.id).expect("it lives").tokens();
                let prompt = active.prompt.as_mut().expect("only a prompt wants all rows");
                for (position, row) in (scheduled.position..).zip(rows.chunks_exact(row_size)) {
                    prompt.push(position, tokens, row);
                }
            }
            if planned.samples {
                outputs.push(self.advance(planned.id, choice.of_last_row(row_size)));
            }
        }
        assert!(logits.is_empty() && tokens.next().is_none(), "every result of the step was used");
        let generated = outputs[before..].iter().filter(|output| output.token.is_some()).count();
        self.metrics.generation_tokens.fetch_add(generated as u64, Relaxed);
    }

    /// Appends the next token to a sequence and builds the sequence's output; ends the sequence if
    /// the token is its last.
    fn advance(&mut self, id: SeqId, choice: Choice<'_>) -> Output {
        let sequence = self.scheduler.sequence(id).expect("a sampled sequence lives");
        let cached_tokens = sequence.cached_tokens();
        let active = self.active.get_mut(id).expect("a sampled sequence is active");
        let n_before = sequence.output().len();
        let prompt = active.prompt.take().map(PromptLogprobs::finish);
        // The request wants the prompt computed, and no output.
        if active.request.max_tokens == 0 {
            let embedding = match choice {
                Choice::From(row) if active.request.embeds => Some(row.to_vec()),
                _ => None,
            };
            self.end(id, Outcome::Length, 0);
            let ended = Output::ended(id, Finish::Length, cached_tokens);
            return Output { prompt, embedding, ..ended };
        }
        let ends = self.text.end_tokens();
        let chosen = match choice {
            Choice::Sampled(token) => match token {
                Some(token) => Ok((token, false)),
                None => Err(Finish::Failed(NoFiniteLogit.to_string())),
            },
            Choice::From(logits) => active.choose(&mut self.sampler, sequence, logits, ends),
        };
        let (token, is_complete) = match chosen {
            Ok(chosen) => chosen,
            Err(finish) => {
                let is_refused = matches!(finish, Finish::Refused(_));
                let outcome = if is_refused { Outcome::Refused } else { Outcome::Error };
                self.end(id, outcome, n_before);
                return Output::ended(id, finish, cached_tokens);
            }
        };
        if active.first_token.is_none() {
            let now = self.clock.elapsed();
            active.first_token = Some(now);
            self.metrics.ttft_seconds.observe_time(now.saturating_sub(active.arrived));
        }
        // A request for log-probabilities is sampled on the host, where the logits are.
        let logprobs = match (active.request.logprobs, choice) {
            (Some(top), Choice::From(logits)) => Some(TokenLogprobs::of(logits, token, top)),
            _ => None,
        };
        let (text, finish) = active.accept(token, n_before + 1, is_complete, ends);
        match &finish {
            None => self.scheduler.append(id, token),
            Some(Finish::Length) => self.end(id, Outcome::Length, n_before + 1),
            Some(_) => self.end(id, Outcome::Stop, n_before + 1),
        }
        let token = Some(TokenOutput { token, logprobs });
        Output { id, token, prompt, embedding: None, text, finish, cached_tokens }
    }

    /// Removes an ended sequence of `n_tokens` output tokens from the state and counts it in the
    /// metrics.
    fn end(&mut self, id: SeqId, outcome: Outcome, n_tokens: usize) {
        self.scheduler.remove(id);
        let active = self.active.remove(id).expect("a sequence ends once");
        self.metrics.count_request(outcome);
        // A time per output token needs at least two tokens.
        if let Some(first) = active.first_token
            && n_tokens > 1
        {
            let rest = self.clock.elapsed().saturating_sub(first).as_secs_f64();
            self.metrics.tpot_seconds.observe(rest / (n_tokens - 1) as f64);
        }
    }

    /// Copies the scheduler's numbers of sequences, KV pages, prefix-cache tokens and preemptions
    /// to the metrics.
    pub(super) fn publish_counts(&self) {
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
