//! State of unfinished requests: applies commands, builds the batch of a step, feeds sampled tokens
//! back to the scheduler, and builds the outputs. It must not know the model.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use rayon::prelude::*;

use super::active::{Active, PromptLogprobs, host_sampled};
use super::draft::{Drafter, ROWS_MAX};
use super::stop::StopText;
use super::{Command, Finish, Output, Request, SubmittedStep, TokenOutput};
use crate::logprobs::TokenLogprobs;
use crate::metrics::{Metrics, Outcome};
use crate::tokenize::Text;
use engine_core::clock::Clock;
use engine_core::sample::{NoFiniteLogit, Sampler};
use engine_core::{LogitRows, ScheduledSequence, StepBatch, StepOutput, StepToken};
use engine_schedule::{
    BySequence, Limits, Needs, PlannedSequence, Scheduler, SchedulerOutput, SeqId, Sequence,
};

/// Largest number of running sequences that get drafts: each then has room for one at least.
const DRAFTED_MAX: usize = ROWS_MAX / 2;

/// State of all unfinished requests, with the scheduler and the sampler.
#[derive(Debug)]
pub(super) struct Requests {
    pub(super) scheduler: Scheduler,
    /// Samplers of the host, one for each thread of the pool.
    samplers: Vec<Sampler>,
    pub(super) active: BySequence<Active>,
    text: Arc<dyn Text>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) clock: Clock,
}

/// Source of a sequence's next token: the token that the device has sampled, or logits for the
/// host.
#[derive(Debug, Clone, Copy)]
enum Choice<'a> {
    /// Tokens that the device has sampled for a sequence, one but after drafts; `None` if no logit
    /// was finite.
    Sampled(&'a [Option<u32>]),
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

/// Splits the results of a step, logits and sampled tokens in the order of its sequences, into
/// those of each sequence.
fn choices<'a>(
    sequences: &[ScheduledSequence],
    output: StepOutput<'a>,
    row_size: usize,
) -> Vec<Choice<'a>> {
    let (mut logits, mut tokens) = (output.logits, output.tokens);
    let of = |scheduled: &ScheduledSequence| match scheduled.logits {
        LogitRows::Sample(_) | LogitRows::SampleEach { .. } => {
            let (own, rest) = tokens.split_at(scheduled.head_rows().len());
            tokens = rest;
            Choice::Sampled(own)
        }
        _ => {
            let (own, rest) = logits.split_at(scheduled.head_rows().len() * row_size);
            logits = rest;
            Choice::From(own)
        }
    };
    let choices = sequences.iter().map(of).collect();
    assert!(logits.is_empty() && tokens.is_empty(), "every result of the step is a sequence's");
    choices
}

impl Requests {
    pub(super) fn new(
        limits: Limits,
        text: Arc<dyn Text>,
        metrics: Arc<Metrics>,
        clock: Clock,
    ) -> Self {
        let samplers =
            Vec::from_iter((0..rayon::current_num_threads()).map(|_| Sampler::default()));
        let (scheduler, active) = (Scheduler::new(limits), BySequence::default());
        Self { scheduler, samplers, active, text, metrics, clock }
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
        let has_drafts = self.scheduler.limits().max_drafts > 0 && host_sampled < usize::MAX;
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
            drafter: has_drafts.then(Drafter::default),
            chosen: None,
            request,
            arrived: self.clock.elapsed(),
            started: None,
            first_token: None,
        };
        self.active.insert(id, active);
    }

    /// Proposes draft tokens to the scheduler for the running sequences, where speculative decoding
    /// is on and a step has room for their rows.
    pub(super) fn propose(&mut self) {
        let running = self.scheduler.running();
        if self.scheduler.limits().max_drafts == 0 || running > DRAFTED_MAX {
            return;
        }
        let ids: Vec<SeqId> = self.scheduler.running_ids().collect();
        for id in ids {
            let sequence = self.scheduler.sequence(id).expect("a running sequence lives");
            let active = self.active.get_mut(id).expect("a running sequence is active");
            let Some(drafter) = &mut active.drafter else { continue };
            let drafts = drafter.propose(sequence.tokens(), running);
            if !drafts.is_empty() {
                self.scheduler.propose(id, drafts);
            }
        }
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
            let (start, end) =
                (planned.scheduled.position, planned.scheduled.end() - planned.drafts.len());
            // The newest input token may still be on the device, sampled by the step in flight.
            let known = &sequence.tokens()[start..end - usize::from(planned.unknown)];
            batch.tokens.extend(known.iter().copied().map(StepToken::Known));
            if planned.unknown {
                let index = active.device_sampled.expect("the step before samples the token");
                batch.tokens.push(StepToken::Sampled(index));
            }
            batch.tokens.extend(planned.drafts.iter().copied().map(StepToken::Known));
            // Index of the output token that is sampled after the last row before the drafts; 0
            // while the prompt lasts.
            let n = end.saturating_sub(sequence.prompt_tokens());
            let logits = active.logit_rows(planned, n);
            active.device_sampled = matches!(logits, LogitRows::Sample(_)).then_some(sampled);
            sampled += match logits {
                LogitRows::Sample(_) => 1,
                LogitRows::SampleEach { rows, .. } => rows as u32,
                _ => 0,
            };
            batch.push(ScheduledSequence { logits, ..planned.scheduled.clone() });
        }
    }

    /// Processes the output of a completed step: appends one token, or also those that right drafts
    /// lead to, to each sequence that was sampled and has not ended since, and its outputs to
    /// `outputs`.
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
        let choices = choices(&step.batch.sequences, output, row_size);
        self.choose(&step.plan.sequences, &choices, row_size);
        let planned = step.plan.sequences.iter().zip(&step.batch.sequences);
        for ((planned, scheduled), choice) in planned.zip(choices) {
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
            match choice {
                _ if !planned.samples => {}
                Choice::Sampled(tokens) if !planned.drafts.is_empty() => {
                    self.accept(planned, tokens, outputs);
                }
                _ => outputs.push(self.advance(planned.id, choice.of_last_row(row_size))),
            }
        }
        let generated = outputs[before..].iter().filter(|output| output.token.is_some()).count();
        self.metrics.generation_tokens.fetch_add(generated as u64, Relaxed);
    }

    /// Chooses the next tokens of the sequences that get logits, on all threads: the mask of a
    /// grammar over the vocabulary takes long, and meanwhile the device has nothing to do.
    fn choose(&mut self, planned: &[PlannedSequence], choices: &[Choice<'_>], row_size: usize) {
        let sampled = planned.iter().zip(choices).filter(|(planned, _)| planned.samples);
        let rows = sampled.filter_map(|(planned, choice)| match choice.of_last_row(row_size) {
            Choice::From(row) => Some((planned.id, row)),
            Choice::Sampled(_) => None,
        });
        let rows: BTreeMap<SeqId, &[f32]> = rows.collect();
        if rows.is_empty() {
            return;
        }
        let (scheduler, ends) = (&self.scheduler, self.text.end_tokens());
        let active = self.active.iter_mut().filter(|(_, active)| active.request.max_tokens > 0);
        let mut wanted: Vec<(&mut Active, &Sequence, &[f32])> = active
            .filter_map(|(id, active)| {
                let row = rows.get(&id)?;
                Some((active, scheduler.sequence(id).expect("a sampled sequence lives"), *row))
            })
            .collect();
        let share = wanted.len().div_ceil(self.samplers.len()).max(1);
        let shares = wanted.par_chunks_mut(share).zip(&mut self.samplers);
        shares.for_each(|(share, sampler)| {
            for (active, sequence, row) in share {
                active.chosen = Some(active.choose(sampler, sequence, row, ends));
            }
        });
    }

    /// Accepts drafts of a sequence (speculative decoding): appends the tokens that the device
    /// sampled after its last token and after its drafts, as long as each draft is the token that
    /// was sampled before it, and the sequence does not end.
    fn accept(
        &mut self,
        planned: &PlannedSequence,
        tokens: &[Option<u32>],
        outputs: &mut Vec<Output>,
    ) {
        let before = outputs.len();
        for (index, token) in tokens.iter().enumerate() {
            let output = self.advance(planned.id, Choice::Sampled(&tokens[index..=index]));
            let has_ended = output.finish.is_some();
            outputs.push(output);
            // The next row is right only if its input is the token that was sampled here.
            if has_ended || planned.drafts.get(index) != token.as_ref() {
                break;
            }
        }
        let (drafts, right) = (planned.drafts.len(), outputs.len() - before - 1);
        self.metrics.draft_tokens.fetch_add(drafts as u64, Relaxed);
        self.metrics.accepted_tokens.fetch_add(right as u64, Relaxed);
        self.scheduler.settle(planned.id);
        let active = self.active.get_mut(planned.id);
        if let Some(drafter) = active.and_then(|active| active.drafter.as_mut()) {
            drafter.settle(drafts, right);
        }
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
            Choice::Sampled(tokens) => match tokens[0] {
                Some(token) => Ok((token, false)),
                None => Err(Finish::Failed(NoFiniteLogit.to_string())),
            },
            Choice::From(_) => active.chosen.take().expect("the host has chosen the token"),
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
