//! Simulation of the engine loop with its front end's queues: clients that submit, stall, leave and
//! come back, and a device that may fail, all drawn from a seed. One thread does everything, so that
//! a seed always gives the same course.
//!
//! The fake model's next token is a hash of all tokens before it, read from the KV pages. So the
//! simulation knows the output of every sequence beforehand, and a page that is lost, shared wrongly
//! or reused too early changes an output.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Barrier, mpsc};
use std::task::{Context, Poll, Waker};

use engine::metrics::Metrics;
use engine::tokenize::Reasoning;
use engine::worker::{Command, Finish, Handle, Output, Request, Ticket, Worker};
use engine_core::clock::Clock;
use engine_core::random::{GOLDEN_GAMMA, mix};
use engine_model::Model;
use engine_schedule::{Limits, StateLimits};
use tokio::sync::mpsc as async_mpsc;

use crate::fake::{Behavior, ByteText, FakeModel, next_token};

/// Number of steps of the default test.
const STEPS: u64 = 100_000;
/// Number of steps of the long test.
const STEPS_LONG: u64 = 1_000_000;
/// Number of steps with events in one life of the engine. After them the clients only read.
const EVENTFUL: u64 = 400;
/// Number of steps within which the engine has to end all sequences once nothing new happens.
const QUIET_MAX: u64 = 20_000;
/// Largest number of clients at once.
const CLIENTS_MAX: usize = 12;

/// Stream of random numbers of one seed.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN_GAMMA);
        mix(self.0)
    }

    /// Returns a number from `0` up to but excluding `end`.
    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// Returns true once in `n` draws.
    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// One sequence of a client: what it asked for, and what it has read.
struct Expected {
    prompt: Vec<u32>,
    wanted: usize,
    /// True if the sequence fits into the engine's limits; else it is refused.
    fits: bool,
    read: Vec<u32>,
    finish: Option<Finish>,
}

impl Expected {
    fn new(prompt: Vec<u32>, wanted: usize, limits: &Limits) -> Self {
        let fits = limits.admits(prompt.len(), wanted).is_ok();
        Self { prompt, wanted, fits, read: Vec::new(), finish: None }
    }

    /// Checks an output against the model, which is known.
    fn take(&mut self, output: Output) {
        assert_eq!(self.finish, None, "an output follows the end of its sequence");
        if let Some(token) = output.token {
            let all = [&self.prompt[..], &self.read].concat();
            assert_eq!(token.token, next_token(&all), "token {} is wrong", self.read.len());
            self.read.push(token.token);
        }
        match &output.finish {
            Some(Finish::Refused(reason)) => assert!(!self.fits, "refused: {reason}"),
            Some(finish) => {
                assert_eq!((finish, self.read.len()), (&Finish::Length, self.wanted));
                assert!(self.fits, "what cannot fit was served");
            }
            None => {}
        }
        self.finish = output.finish;
    }

    fn request(&self, dice: &mut Dice) -> Request {
        Request {
            ignore_eos: true,
            // The host samples these sequences, and must know each token before the next step.
            logprobs: dice.one_in(4).then_some(0),
            prompt_logprobs: dice.one_in(16),
            ..Request::greedy(self.prompt.clone(), self.wanted)
        }
    }
}

/// Client with an open request.
struct Client {
    ticket: Ticket,
    sequences: Vec<Expected>,
    /// Number of turns for which the client still reads nothing.
    stalls: usize,
}

impl Client {
    /// Reads all outputs that have arrived. Returns true once the stream has ended.
    fn read(&mut self) -> bool {
        loop {
            match self.ticket.poll_next(&mut context()) {
                Poll::Ready(Some((choice, output))) => self.sequences[choice].take(output),
                Poll::Ready(None) => return true,
                Poll::Pending => return false,
            }
        }
    }
}

/// Totals of the simulation, which show that it met what it is for.
#[derive(Debug, Default)]
struct Met {
    steps: u64,
    served: u64,
    left: u64,
    returned: u64,
    stalled: u64,
    failures: u64,
    preemptions: u64,
    hits: u64,
}

/// Front end of one life of the engine, with its clients.
struct FrontEnd {
    handle: Handle,
    dispatch: Pin<Box<dyn Future<Output = ()> + Send>>,
    clients: Vec<Client>,
    limits: Limits,
}

impl FrontEnd {
    /// Lets something happen between two steps: clients come, leave, come back or stall, and the
    /// prefix cache is emptied.
    fn happen(&mut self, dice: &mut Dice, met: &mut Met) {
        if dice.one_in(3) && self.clients.len() < CLIENTS_MAX {
            let count = 1 + dice.below(3);
            let sequences = (0..count).map(|_| {
                // Prompts of one family begin alike, so that the prefix cache finds them again.
                let (family, length) = (dice.below(4), 1 + dice.below(90));
                let prompt = (0..length).map(|i| ((family * 41 + i * 7) % 256) as u32).collect();
                Expected::new(prompt, dice.below(60), &self.limits)
            });
            let sequences = sequences.collect();
            self.arrive(sequences, dice);
        }
        if dice.one_in(12) && !self.clients.is_empty() {
            let client = self.clients.swap_remove(dice.below(self.clients.len()));
            met.left += 1;
            let rest = client.sequences.into_iter().map(|sequence| {
                let wanted = sequence.wanted - sequence.read.len();
                let prompt = [sequence.prompt, sequence.read].concat();
                Expected::new(prompt, wanted, &self.limits)
            });
            let rest: Vec<Expected> = rest.collect();
            drop(client.ticket);
            if dice.one_in(2) {
                met.returned += 1;
                self.arrive(rest, dice);
            }
        }
        if dice.one_in(10) && !self.clients.is_empty() {
            let index = dice.below(self.clients.len());
            self.clients[index].stalls = 1 + dice.below(60);
            met.stalled += 1;
        }
        if dice.one_in(40) {
            // The client leaves before the reply.
            let mut reset = Box::pin(self.handle.reset_prefix_cache());
            assert!(reset.as_mut().poll(&mut context()).is_pending());
        }
    }

    fn arrive(&mut self, sequences: Vec<Expected>, dice: &mut Dice) {
        let requests = sequences.iter().map(|sequence| sequence.request(dice)).collect();
        let ticket = self.handle.submit(requests).unwrap();
        self.clients.push(Client { ticket, sequences, stalls: 0 });
    }

    /// Distributes what the engine has sent, and lets the clients read that do not stall.
    fn deliver(&mut self, is_quiet: bool, met: &mut Met) {
        assert!(self.dispatch.as_mut().poll(&mut context()).is_pending());
        self.clients.retain_mut(|client| {
            if client.stalls > 0 && !is_quiet {
                client.stalls -= 1;
                return true;
            }
            let has_ended = client.read();
            let is_whole = client.sequences.iter().all(|sequence| sequence.finish.is_some());
            assert_eq!(has_ended, is_whole, "a stream ends with the ends of its sequences");
            met.served += u64::from(has_ended);
            !has_ended
        });
    }

    /// Checks that every stream ends after the engine has failed, and that nothing is taken on.
    fn fail(mut self) {
        assert!(self.dispatch.as_mut().poll(&mut context()).is_ready());
        for client in &mut self.clients {
            assert!(client.read(), "a stream has no end after the engine's failure");
        }
        assert_eq!(self.handle.open(), 0);
        assert!(self.handle.submit(Vec::new()).is_err(), "a failed engine takes a request");
    }
}

fn context() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

fn limits(dice: &mut Dice) -> Limits {
    let states = dice.one_in(3).then(|| StateLimits { slots: 4 + dice.below(12), interval: 16 });
    let limits = Limits {
        max_batch_size: 1 + dice.below(8),
        token_budget: 16 + dice.below(48),
        mixed_budget: 40,
        max_seq_len: 140,
        pages: 24 + dice.below(60),
        page_tokens: 4,
        chunk_tokens: 16,
        prefix_cache: !dice.one_in(4),
        states,
        run_ahead: dice.below(2),
        max_drafts: 0,
    };
    let may_draft = limits.states.is_none() && limits.run_ahead == 0;
    Limits { max_drafts: if may_draft { 7 } else { 0 }, ..limits }
}

/// Runs one life of the engine, from its start until all clients are served or the device fails.
fn live(dice: &mut Dice, met: &mut Met) {
    let limits = limits(dice);
    let fails_at = dice.one_in(8).then(|| 20 + dice.below(300));
    let behavior = Behavior { run_ahead: limits.run_ahead, fails_at, ..Behavior::default() };
    let mut model = FakeModel::new(behavior, Arc::default());
    model.allocate_kv(limits.pages, limits.page_tokens).unwrap();
    let text = Arc::new(ByteText {
        reasoning: Reasoning::None,
        wake: Arc::new(Barrier::new(1)),
        tokenized: Arc::default(),
    });
    let metrics = Arc::new(Metrics::default());
    let own = Arc::clone(&metrics);
    let mut worker = Worker::new(Box::new(model), text, limits.clone(), own, Clock::start());
    let (commands, inbox) = mpsc::channel();
    let (outbox, outputs) = async_mpsc::unbounded_channel();
    let (handle, dispatch) = Handle::new(commands.clone(), outputs);
    let mut front = FrontEnd { handle, dispatch: Box::pin(dispatch), clients: Vec::new(), limits };
    for step in 0.. {
        let is_quiet = step >= EVENTFUL;
        if !is_quiet {
            front.happen(dice, met);
        } else if front.clients.is_empty() {
            break;
        }
        assert!(step < EVENTFUL + QUIET_MAX, "{} sequences never end", front.handle.open());
        // A command that does nothing: an engine without sequences would wait for one.
        commands.send(Command::Abort(Vec::new())).unwrap();
        met.steps += 1;
        if worker.turn(&inbox, &outbox).is_err() {
            met.failures += 1;
            drop((worker, inbox, outbox));
            return front.fail();
        }
        front.deliver(is_quiet, met);
    }
    assert_eq!(front.handle.open(), 0);
    drop((commands, front));
    while worker.turn(&inbox, &outbox).expect("the device has not failed") {}
    let counts = [&metrics.kv_pages_used, &metrics.requests_running, &metrics.requests_waiting];
    assert_eq!(counts.map(|count| count.load(Relaxed)), [0; 3], "KV pages or sequences are lost");
    met.preemptions += metrics.preemptions.load(Relaxed);
    met.hits += metrics.prefix_cache_hit_tokens.load(Relaxed);
}

/// Runs lives of the engine until they have had so many steps, each with a seed of its own, which
/// is printed where it fails.
fn simulate(first: u64, steps: u64) {
    let mut met = Met::default();
    for seed in first.. {
        if met.steps >= steps {
            break;
        }
        let lived = catch_unwind(AssertUnwindSafe(|| live(&mut Dice(seed), &mut met)));
        assert!(lived.is_ok(), "seed {seed} fails; `simulate({seed}, 1)` replays it");
    }
    let Met { steps: _, served, left, returned, stalled, failures, preemptions, hits } = met;
    let counts = [served, left, returned, stalled, failures, preemptions, hits];
    assert!(counts.iter().all(|count| *count > 5), "too little happened: {met:?}");
}

#[test]
fn no_page_is_lost_and_every_stream_ends_whatever_clients_do() {
    simulate(1, STEPS);
}

/// A million steps; seeds of other runs follow from the day, so that each day tries new ones.
#[test]
fn extra_no_page_is_lost_in_a_million_steps() {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    simulate(now.as_secs() / 86_400 * 1_000_000, STEPS_LONG);
}
