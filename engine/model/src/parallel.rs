//! Tensor parallelism: a model on several ranks of this process, one thread each, behind the
//! `Model` trait.
//!
//! Every rank runs every step over its part of weights and heads; ranks communicate in the
//! operations of a [`Collective`](engine_core::Collective). This file must not know what they
//! compute.

use std::panic;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use super::{Model, ModelInfo};
use engine_core::collective::ANOTHER_ENDED;
use engine_core::{DeviceError, StepBatch, StepOutput};

/// Command that a parallel model sends to the threads of all ranks.
#[derive(Debug, Clone)]
enum Order {
    AllocateKv {
        pages: usize,
        page_tokens: usize,
    },
    AllocateStates {
        slots: usize,
    },
    ProfileRun {
        tokens: usize,
        sequences: usize,
    },
    /// Submits a step. A rank sends a result of this command back only if it fails, and the error
    /// is reported when the step completes.
    Submit(Arc<StepBatch>),
    Complete,
}

/// Result of a command to a rank that its thread sends back, or the error of the rank.
type Answer = Result<Outcome, DeviceError>;

/// Result of a command to a rank: logits and sampled tokens of a completed step, from the first
/// rank only, or the number of free bytes after warm-up; empty for other commands.
#[derive(Debug, Default)]
struct Outcome {
    logits: Vec<f32>,
    tokens: Vec<Option<u32>>,
    free_bytes: Option<u64>,
}

/// Thread of one rank, which owns that rank's part of the model, with the channels for commands and
/// answers.
#[derive(Debug)]
struct RankThread {
    orders: Sender<Order>,
    answers: Receiver<Answer>,
    thread: Option<JoinHandle<()>>,
}

/// Model that is divided among tensor-parallel ranks, each on a thread of this process.
#[derive(Debug)]
pub struct Parallel {
    info: ModelInfo,
    run_ahead: usize,
    ranks: Vec<RankThread>,
    /// Fraction of a sequence's memory that each rank holds, by rank index: the larger of its
    /// fractions of KV pages and of recurrent state.
    shares: Vec<f64>,
    completed: Outcome,
    /// Copies of batches that were sent to ranks, kept to reuse their memory.
    batches: Vec<Arc<StepBatch>>,
}

impl Parallel {
    /// Starts a thread for each of `models`, which are the ranks of one tensor-parallel group in
    /// the order of their indices.
    ///
    /// # Panics
    /// Panics if `models` is empty.
    pub fn new<M: Model + 'static>(models: Vec<M>) -> Self {
        let mut info = models[0].info().clone();
        // Ranks that share a key head hold it several times, so the sum is what the memory needs.
        info.kv_bytes_per_token = models.iter().map(|model| model.info().kv_bytes_per_token).sum();
        info.state_bytes = models.iter().map(|model| model.info().state_bytes).sum();
        let run_ahead = models[0].run_ahead();
        let shares = models.iter().map(|model| share(model.info(), &info)).collect();
        let ranks =
            models.into_iter().enumerate().map(|(rank, model)| RankThread::spawn(rank, model));
        let (ranks, completed, batches) = (ranks.collect(), Outcome::default(), Vec::new());
        Self { info, run_ahead, ranks, shares, completed, batches }
    }

    /// Returns a copy of `batch` that all ranks share, in the memory of an earlier copy that no
    /// rank uses any more, if there is one.
    fn copied(&mut self, batch: &StepBatch) -> Arc<StepBatch> {
        // Once only this list holds a batch, every rank has dropped it.
        let free = self.batches.iter().position(|one| Arc::strong_count(one) == 1);
        let mut copy = free.map_or_else(Arc::default, |index| self.batches.swap_remove(index));
        match Arc::get_mut(&mut copy) {
            Some(own) => own.clone_from(batch),
            None => copy = Arc::new(batch.clone()),
        }
        self.batches.push(Arc::clone(&copy));
        copy
    }

    /// Sends a command to all ranks, waits for all answers, and returns them in the order of ranks.
    fn ask_all(&mut self, order: &Order) -> Vec<Answer> {
        self.send(order);
        // All answers are awaited before an error is returned, because no rank may be left inside a
        // step.
        self.ranks.iter_mut().map(RankThread::answer).collect()
    }

    /// Sends a command to all ranks without waiting for answers.
    fn send(&self, order: &Order) {
        for rank in &self.ranks {
            // A rank that has ended is noticed when its answer is awaited.
            let _ = rank.orders.send(order.clone());
        }
    }

    /// Sends a command to all ranks, waits for all answers, and returns the first rank's answer, or
    /// the error if a rank failed.
    fn ask(&mut self, order: &Order) -> Answer {
        let answers = first_cause(self.ask_all(order))?;
        Ok(answers.into_iter().next().unwrap_or_default())
    }
}

/// Returns the results of all ranks, or the error of the first rank that failed by itself: a rank
/// that stops because another one has ended reports only that, and its error is returned only if
/// there is no other.
fn first_cause(answers: Vec<Answer>) -> Result<Vec<Outcome>, DeviceError> {
    let mut failure: Option<DeviceError> = None;
    let mut outcomes = Vec::with_capacity(answers.len());
    for answer in answers {
        match answer {
            Ok(outcome) => outcomes.push(outcome),
            Err(error) if failure.as_ref().is_none_or(|known| known.message == ANOTHER_ENDED) => {
                failure = Some(error);
            }
            Err(_) => {}
        }
    }
    failure.map_or(Ok(outcomes), Err)
}

/// Returns the fraction of a sequence's memory over all ranks that one rank has: the larger of its
/// fractions of KV pages and of recurrent state.
fn share(own: &ModelInfo, all: &ModelInfo) -> f64 {
    let of = |own: usize, all: usize| own as f64 / all.max(1) as f64;
    let pages = of(own.kv_bytes_per_token, all.kv_bytes_per_token);
    pages.max(of(own.state_bytes, all.state_bytes))
}

impl Model for Parallel {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn allocate_kv(&mut self, pages: usize, page_tokens: usize) -> Result<(), DeviceError> {
        self.ask(&Order::AllocateKv { pages, page_tokens }).map(|_| ())
    }

    fn allocate_states(&mut self, slots: usize) -> Result<(), DeviceError> {
        self.ask(&Order::AllocateStates { slots }).map(|_| ())
    }

    /// Runs the warm-up on all ranks and returns the total number of bytes that sequences may use
    /// on them. The rank with the least free memory for its share limits all of them, since each
    /// holds a part of every sequence.
    fn profile_run(&mut self, tokens: usize, sequences: usize) -> Result<Option<u64>, DeviceError> {
        let answers = first_cause(self.ask_all(&Order::ProfileRun { tokens, sequences }))?;
        let ranks = answers.iter().zip(&self.shares);
        let usable = ranks.map(|(answer, share)| Some(answer.free_bytes? as f64 / share));
        let least = |least: Option<f64>, bytes: Option<f64>| Some(least?.min(bytes?));
        Ok(usable.fold(Some(f64::INFINITY), least).map(|bytes| bytes as u64))
    }

    fn run_ahead(&self) -> usize {
        self.run_ahead
    }

    fn submit(&mut self, batch: &StepBatch) -> Result<(), DeviceError> {
        let copy = self.copied(batch);
        self.send(&Order::Submit(copy));
        Ok(())
    }

    fn complete(&mut self) -> Result<StepOutput<'_>, DeviceError> {
        self.completed = self.ask(&Order::Complete)?;
        Ok(StepOutput { logits: &self.completed.logits, tokens: &self.completed.tokens })
    }
}

impl RankThread {
    /// Starts the thread of rank `rank`, which executes commands on `model` until a step or the
    /// warm-up fails, or a channel is closed.
    fn spawn<M: Model + 'static>(rank: usize, mut model: M) -> Self {
        let (orders, ordered) = channel();
        let (answered, answers) = channel();
        let thread = thread::spawn(move || {
            for order in ordered {
                let Some(answer) = obey(&mut model, &order, rank == 0) else { continue };
                // This rank ends, which releases ranks that wait for it in a collective operation
                // that it never reached. The model cannot be used any more.
                let in_step =
                    matches!(order, Order::Submit(_) | Order::Complete | Order::ProfileRun { .. });
                if in_step && answer.is_err() {
                    drop(model);
                    let _ = answered.send(answer);
                    return;
                }
                if answered.send(answer).is_err() {
                    return;
                }
            }
        });
        Self { orders, answers, thread: Some(thread) }
    }

    /// Waits for the rank's next answer to a command. A panic of the rank's thread is resumed in
    /// the caller; a thread that has ended otherwise is an error.
    fn answer(&mut self) -> Answer {
        if let Ok(answer) = self.answers.recv() {
            return answer;
        }
        if let Some(Err(panicked)) = self.thread.take().map(JoinHandle::join) {
            panic::resume_unwind(panicked);
        }
        let message = "a rank has ended".to_owned();
        Err(DeviceError { operation: "a step of all ranks", message })
    }
}

/// Executes a command on a rank's model and returns the rank's answer; none for a submitted step.
/// Only with `shows_outcome` does the answer contain logits and sampled tokens.
fn obey(model: &mut impl Model, order: &Order, shows_outcome: bool) -> Option<Answer> {
    let nothing = |()| Outcome::default();
    match order {
        Order::AllocateKv { pages, page_tokens } => {
            Some(model.allocate_kv(*pages, *page_tokens).map(nothing))
        }
        Order::AllocateStates { slots } => Some(model.allocate_states(*slots).map(nothing)),
        Order::ProfileRun { tokens, sequences } => Some(
            model
                .profile_run(*tokens, *sequences)
                .map(|free_bytes| Outcome { free_bytes, ..Outcome::default() }),
        ),
        Order::Submit(batch) => model.submit(batch).err().map(Err),
        Order::Complete => {
            Some(model.complete().map(|StepOutput { logits, tokens }| match shows_outcome {
                true => {
                    let (logits, tokens) = (logits.to_vec(), tokens.to_vec());
                    Outcome { logits, tokens, free_bytes: None }
                }
                false => Outcome::default(),
            }))
        }
    }
}

impl Drop for Parallel {
    fn drop(&mut self) {
        for RankThread { orders, thread, .. } in self.ranks.drain(..) {
            // The thread's loop ends when its channel is closed.
            drop(orders);
            // A panic of the thread was already resumed where its answer was awaited.
            let _ = thread.map(JoinHandle::join);
        }
    }
}

/// Calls `load` for each rank of a group, all at once on threads of their own, and returns the
/// loaded models in the order of ranks.
///
/// # Errors
/// Returns the error of the rank with the lowest index among those that could not be loaded.
pub fn on_ranks<R: Send, M: Send, E: Send>(
    group: Vec<R>,
    load: impl Fn(R) -> Result<M, E> + Sync,
) -> Result<Vec<M>, E> {
    let load = &load;
    thread::scope(|scope| {
        let group = group.into_iter();
        let ranks: Vec<_> = group.map(|rank| scope.spawn(move || load(rank))).collect();
        let loaded =
            ranks.into_iter().map(|rank| rank.join().unwrap_or_else(|p| panic::resume_unwind(p)));
        loaded.collect()
    })
}

#[cfg(test)]
mod tests;
