//! A model on several ranks of this process, a thread each, behind the same trait as one on one.
//!
//! Every rank runs every step over its part of the weights and of the heads, and they meet in the
//! operations of a [`Collective`](crate::device::Collective). Knows nothing of what they compute.

use std::panic;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use super::{Model, ModelInfo, StepBatch, StepError};

/// What all ranks are told at once.
#[derive(Debug, Clone)]
enum Order {
    AllocateKv { pages: usize, page_tokens: usize },
    AllocateStates { places: usize },
    Step(Arc<StepBatch>),
}

/// The logits, from the first rank only.
type Answer = Result<Vec<f32>, StepError>;

/// A thread with its part of the model.
#[derive(Debug)]
struct RankThread {
    orders: Sender<Order>,
    answers: Receiver<Answer>,
    thread: Option<JoinHandle<()>>,
}

/// A model that is divided among ranks.
#[derive(Debug)]
pub struct Parallel {
    info: ModelInfo,
    run_ahead: usize,
    ranks: Vec<RankThread>,
    logits: Vec<f32>,
}

impl Parallel {
    /// Gives each of `models`, the ranks of one group in their order, a thread of its own.
    ///
    /// # Panics
    /// There is none.
    pub fn new<M: Model + 'static>(models: Vec<M>) -> Self {
        let mut info = models[0].info().clone();
        info.kv_bytes_per_token = models.iter().map(|model| model.info().kv_bytes_per_token).sum();
        info.state_bytes = models.iter().map(|model| model.info().state_bytes).sum();
        let run_ahead = models[0].run_ahead();
        let ranks =
            models.into_iter().enumerate().map(|(rank, model)| RankThread::spawn(rank, model));
        Self { info, run_ahead, ranks: ranks.collect(), logits: Vec::new() }
    }

    /// Tells all ranks, waits for all, and returns what the first has to say.
    fn all(&mut self, order: &Order) -> Answer {
        for rank in &self.ranks {
            // A rank that has ended says so when it is asked for its answer.
            let _ = rank.orders.send(order.clone());
        }
        // All have to answer before the first failure is told: ranks in a step are not to be left.
        let answers: Vec<Answer> = self.ranks.iter_mut().map(RankThread::answer).collect();
        let mut logits = Vec::new();
        for answer in answers.into_iter().rev() {
            logits = answer?;
        }
        Ok(logits)
    }
}

impl Model for Parallel {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn allocate_kv(&mut self, pages: usize, page_tokens: usize) -> Result<(), StepError> {
        self.all(&Order::AllocateKv { pages, page_tokens }).map(|_| ())
    }

    fn allocate_states(&mut self, places: usize) -> Result<(), StepError> {
        self.all(&Order::AllocateStates { places }).map(|_| ())
    }

    fn run_ahead(&self) -> usize {
        self.run_ahead
    }

    fn step(&mut self, batch: &StepBatch) -> Result<&[f32], StepError> {
        self.logits = self.all(&Order::Step(Arc::new(batch.clone())))?;
        Ok(&self.logits)
    }
}

impl RankThread {
    fn spawn<M: Model + 'static>(rank: usize, mut model: M) -> Self {
        let (orders, ordered) = channel();
        let (answered, answers) = channel();
        let thread = thread::spawn(move || {
            for order in ordered {
                let answer = obey(&mut model, &order, rank == 0);
                // Ranks that wait for this one in an operation that it did not come to are let go
                // when it ends, and nobody can go on with this model.
                let is_last = matches!((&order, &answer), (Order::Step(_), Err(_)));
                if is_last {
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

    /// Waits for the answer to the last order. A panic of the rank is raised again here.
    fn answer(&mut self) -> Answer {
        if let Ok(answer) = self.answers.recv() {
            return answer;
        }
        if let Some(Err(panicked)) = self.thread.take().map(JoinHandle::join) {
            panic::resume_unwind(panicked);
        }
        let message = "a rank has ended".to_owned();
        Err(StepError { operation: "a step of all ranks", message })
    }
}

fn obey(model: &mut impl Model, order: &Order, shows_logits: bool) -> Answer {
    match order {
        Order::AllocateKv { pages, page_tokens } => {
            model.allocate_kv(*pages, *page_tokens)?;
            Ok(Vec::new())
        }
        Order::AllocateStates { places } => {
            model.allocate_states(*places)?;
            Ok(Vec::new())
        }
        Order::Step(batch) => {
            let logits = model.step(batch)?;
            Ok(if shows_logits { logits.to_vec() } else { Vec::new() })
        }
    }
}

impl Drop for Parallel {
    fn drop(&mut self) {
        for RankThread { orders, thread, .. } in self.ranks.drain(..) {
            drop(orders);
            // Whether it panicked was told to whoever asked it last.
            let _ = thread.map(JoinHandle::join);
        }
    }
}

#[cfg(test)]
mod tests;
