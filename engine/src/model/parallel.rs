//! A model on several ranks of this process, a thread each, behind the same trait as one on one.
//!
//! Every rank runs every step over its part of the weights and of the heads, and they meet in the
//! operations of a [`Collective`](crate::device::Collective). Knows nothing of what they compute.

use std::panic;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use super::{Landed, Model, ModelInfo, StepBatch, StepError};

/// What all ranks are told at once.
#[derive(Debug, Clone)]
enum Order {
    AllocateKv {
        pages: usize,
        page_tokens: usize,
    },
    AllocateStates {
        places: usize,
    },
    /// Has no answer: what goes wrong is told when the step lands.
    Launch(Arc<StepBatch>),
    Land,
}

type Answer = Result<Outcome, StepError>;

/// What came of a step, from the first rank only.
#[derive(Debug, Default)]
struct Outcome {
    logits: Vec<f32>,
    tokens: Vec<Option<u32>>,
}

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
    landed: Outcome,
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
        Self { info, run_ahead, ranks: ranks.collect(), landed: Outcome::default() }
    }

    fn tell(&self, order: &Order) {
        for rank in &self.ranks {
            // A rank that has ended says so when it is asked for its answer.
            let _ = rank.orders.send(order.clone());
        }
    }

    /// Tells all ranks, waits for all, and returns what the first has to say.
    fn ask(&mut self, order: &Order) -> Answer {
        self.tell(order);
        // All have to answer before the first failure is told: ranks in a step are not to be left.
        let answers: Vec<Answer> = self.ranks.iter_mut().map(RankThread::answer).collect();
        let mut outcome = Outcome::default();
        for answer in answers.into_iter().rev() {
            outcome = answer?;
        }
        Ok(outcome)
    }
}

impl Model for Parallel {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn allocate_kv(&mut self, pages: usize, page_tokens: usize) -> Result<(), StepError> {
        self.ask(&Order::AllocateKv { pages, page_tokens }).map(|_| ())
    }

    fn allocate_states(&mut self, places: usize) -> Result<(), StepError> {
        self.ask(&Order::AllocateStates { places }).map(|_| ())
    }

    fn run_ahead(&self) -> usize {
        self.run_ahead
    }

    fn launch(&mut self, batch: &StepBatch) -> Result<(), StepError> {
        self.tell(&Order::Launch(Arc::new(batch.clone())));
        Ok(())
    }

    fn land(&mut self) -> Result<Landed<'_>, StepError> {
        self.landed = self.ask(&Order::Land)?;
        Ok(Landed { logits: &self.landed.logits, tokens: &self.landed.tokens })
    }
}

impl RankThread {
    fn spawn<M: Model + 'static>(rank: usize, mut model: M) -> Self {
        let (orders, ordered) = channel();
        let (answered, answers) = channel();
        let thread = thread::spawn(move || {
            for order in ordered {
                let Some(answer) = obey(&mut model, &order, rank == 0) else { continue };
                // Ranks that wait for this one in an operation that it did not come to are let go
                // when it ends, and nobody can go on with this model.
                let in_step = matches!(order, Order::Launch(_) | Order::Land);
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

/// The answer to `order`, if it has one.
fn obey(model: &mut impl Model, order: &Order, shows_outcome: bool) -> Option<Answer> {
    let nothing = |()| Outcome::default();
    match order {
        Order::AllocateKv { pages, page_tokens } => {
            Some(model.allocate_kv(*pages, *page_tokens).map(nothing))
        }
        Order::AllocateStates { places } => Some(model.allocate_states(*places).map(nothing)),
        Order::Launch(batch) => model.launch(batch).err().map(Err),
        Order::Land => Some(model.land().map(|Landed { logits, tokens }| match shows_outcome {
            true => Outcome { logits: logits.to_vec(), tokens: tokens.to_vec() },
            false => Outcome::default(),
        })),
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
