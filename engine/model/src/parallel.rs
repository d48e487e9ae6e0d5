//! A model on several ranks of this process, a thread each, behind the same trait as one on one.
//!
//! Every rank runs every step over its part of the weights and of the heads, and they meet in the
//! operations of a [`Collective`](engine_core::Collective). Knows nothing of what they compute.

use std::panic;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use super::{Model, ModelInfo};
use engine_core::collective::ANOTHER_ENDED;
use engine_core::{DeviceError, Landed, StepBatch};

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
    Rehearse {
        tokens: usize,
        sequences: usize,
    },
    /// Has no answer: what goes wrong is told when the step lands.
    Launch(Arc<StepBatch>),
    Land,
}

type Answer = Result<Outcome, DeviceError>;

/// What came of a step, from the first rank only, or of a rehearsal.
#[derive(Debug, Default)]
struct Outcome {
    logits: Vec<f32>,
    tokens: Vec<Option<u32>>,
    free_bytes: Option<u64>,
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
    /// How much of what a sequence takes each rank has, of pages or of state.
    shares: Vec<f64>,
    landed: Outcome,
    /// Batches that ranks were told, for their memory.
    told: Vec<Arc<StepBatch>>,
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
        let shares = models.iter().map(|model| share(model.info(), &info)).collect();
        let ranks =
            models.into_iter().enumerate().map(|(rank, model)| RankThread::spawn(rank, model));
        let (ranks, landed, told) = (ranks.collect(), Outcome::default(), Vec::new());
        Self { info, run_ahead, ranks, shares, landed, told }
    }

    /// A copy of `batch` that all ranks may have, where the last ones have been that nobody has any
    /// more.
    fn copied(&mut self, batch: &StepBatch) -> Arc<StepBatch> {
        let free = self.told.iter().position(|one| Arc::strong_count(one) == 1);
        let mut copy = free.map_or_else(Arc::default, |index| self.told.swap_remove(index));
        match Arc::get_mut(&mut copy) {
            Some(own) => own.clone_from(batch),
            None => copy = Arc::new(batch.clone()),
        }
        self.told.push(Arc::clone(&copy));
        copy
    }

    /// Tells all ranks and waits for all.
    fn ask_all(&mut self, order: &Order) -> Vec<Answer> {
        self.tell(order);
        // All have to answer before the first failure is told: ranks in a step are not to be left.
        self.ranks.iter_mut().map(RankThread::answer).collect()
    }

    fn tell(&self, order: &Order) {
        for rank in &self.ranks {
            // A rank that has ended says so when it is asked for its answer.
            let _ = rank.orders.send(order.clone());
        }
    }

    /// Tells all ranks, waits for all, and returns what the first has to say.
    fn ask(&mut self, order: &Order) -> Answer {
        let answers = first_cause(self.ask_all(order))?;
        Ok(answers.into_iter().next().unwrap_or_default())
    }
}

/// All that ranks have to say, or why the first of them failed: those that were let go for it only
/// say that another has ended.
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

/// How much of what a sequence takes on all ranks is taken on one.
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

    fn allocate_states(&mut self, places: usize) -> Result<(), DeviceError> {
        self.ask(&Order::AllocateStates { places }).map(|_| ())
    }

    /// The bytes of all ranks of which none has more to take than it has free.
    fn rehearse(&mut self, tokens: usize, sequences: usize) -> Result<Option<u64>, DeviceError> {
        let answers = first_cause(self.ask_all(&Order::Rehearse { tokens, sequences }))?;
        let ranks = answers.iter().zip(&self.shares);
        let usable = ranks.map(|(answer, share)| Some(answer.free_bytes? as f64 / share));
        let least = |least: Option<f64>, bytes: Option<f64>| Some(least?.min(bytes?));
        Ok(usable.fold(Some(f64::INFINITY), least).map(|bytes| bytes as u64))
    }

    fn run_ahead(&self) -> usize {
        self.run_ahead
    }

    fn launch(&mut self, batch: &StepBatch) -> Result<(), DeviceError> {
        let copy = self.copied(batch);
        self.tell(&Order::Launch(copy));
        Ok(())
    }

    fn land(&mut self) -> Result<Landed<'_>, DeviceError> {
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
                let in_step =
                    matches!(order, Order::Launch(_) | Order::Land | Order::Rehearse { .. });
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
        Err(DeviceError { operation: "a step of all ranks", message })
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
        Order::Rehearse { tokens, sequences } => Some(
            model
                .rehearse(*tokens, *sequences)
                .map(|free_bytes| Outcome { free_bytes, ..Outcome::default() }),
        ),
        Order::Launch(batch) => model.launch(batch).err().map(Err),
        Order::Land => Some(model.land().map(|Landed { logits, tokens }| match shows_outcome {
            true => {
                let (logits, tokens) = (logits.to_vec(), tokens.to_vec());
                Outcome { logits, tokens, free_bytes: None }
            }
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

/// What `load` makes of each rank of a group, all at once.
///
/// # Errors
/// A rank could not be loaded.
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
