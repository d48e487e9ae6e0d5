//! Long random walk of the scheduler that searches for leaked pages and state slots, rows computed
//! without their past, and starved sequences.

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::*;

/// Event of the random walk between two steps: a sequence arrives or is aborted, the prefix cache
/// is reset, or nothing happens.
#[derive(Debug, Clone)]
enum Event {
    Arrive { family: u32, length: usize, output: usize, stop: usize, needs: Needs },
    Abort { nth: usize },
    Propose { count: usize, right: usize },
    Reset,
    Nothing,
}

fn event() -> impl Strategy<Value = Event> {
    let arrive = (0..4u32, 1..90usize, 1..40usize, 1..60usize);
    let known = prop_oneof![4 => Just(0), 1 => 1..20usize, 1 => Just(usize::MAX)];
    let needs = (prop::bool::weighted(0.1), known)
        .prop_map(|(all_rows, known_tokens)| Needs { all_rows, known_tokens });
    prop_oneof![
        6 => (arrive, needs).prop_map(|((family, length, output, stop), needs)| {
            Event::Arrive { family, length, output, stop, needs }
        }),
        1 => (0..8usize).prop_map(|nth| Event::Abort { nth }),
        1 => Just(Event::Reset),
        6 => (1..7usize, 0..7usize).prop_map(|(count, right)| Event::Propose { count, right }),
        16 => Just(Event::Nothing),
    ]
}

fn happen(simulation: &mut Simulation, event: &Event) {
    match *event {
        Event::Arrive { family, length, output, stop, needs } => {
            let fits = simulation.scheduler.limits().admits(length, output).is_ok();
            let prompt = prompt(family, length);
            let taken = simulation.arrive_needing(prompt, output, stop, needs).is_ok();
            assert_eq!(taken, fits);
        }
        Event::Abort { nth } => {
            if let Some(id) = simulation.living.keys().nth(nth).copied() {
                simulation.leave(id);
            }
        }
        Event::Propose { count, right } => simulation.propose(count, right),
        Event::Reset => {
            simulation.scheduler.reset_prefix_cache();
        }
        Event::Nothing => {}
    }
}

/// Runs a simulation with one of `events` before each step, and on until all sequences are done;
/// returns the number of steps.
fn walk(limits: Limits, events: &[Event]) -> usize {
    let mut simulation = Simulation::new(limits);
    let mut quiet = (None, 0);
    let mut events = events.iter();
    loop {
        match events.next() {
            Some(event) => happen(&mut simulation, event),
            None if simulation.scheduler.is_idle() => break,
            None => {}
        }
        simulation.check();
        let oldest = simulation.living.keys().next().copied();
        let plan = simulation.step();
        check_plan(simulation.scheduler.limits(), &plan);
        simulation.check();
        // The oldest sequence is in every plan, unless all its rows are in flight already, or it
        // waits for pages or for its own token from a step in flight.
        let moved = oldest.is_none_or(|id| plan.sequences.iter().any(|slot| slot.id == id));
        quiet = match quiet {
            _ if moved => (oldest, 0),
            (id, steps) if id == oldest => (id, steps + 1),
            _ => (oldest, 1),
        };
        let allowed = 2 * simulation.scheduler.limits().run_ahead;
        assert!(quiet.1 <= allowed, "{oldest:?} stood still for {} steps", quiet.1);
    }
    while !simulation.flying.is_empty() {
        simulation.complete();
    }
    simulation.check();
    assert_eq!(simulation.scheduler.pages_used(), 0);
    simulation.steps
}

fn check_plan(limits: &Limits, plan: &SchedulerOutput) {
    let (prompts, tokens): (Vec<&PlannedSequence>, Vec<&PlannedSequence>) =
        plan.sequences.iter().partition(|slot| slot.prefill);
    assert!(plan.sequences.len() <= limits.max_batch_size);
    assert!(tokens.iter().all(|slot| slot.scheduled.rows == 1 + slot.drafts.len()));
    assert!(plan.sequences.iter().all(|slot| slot.drafts.len() <= limits.max_drafts));
    assert!(plan.rows() <= limits.token_budget.max(tokens.len() + limits.chunk_tokens));
    for slot in prompts.iter().filter(|slot| !slot.samples) {
        assert_eq!(slot.scheduled.end() % limits.chunk_tokens, 0);
    }
    for slot in &plan.sequences {
        assert_eq!(slot.scheduled.state.is_some(), limits.states.is_some());
        if let (Some(state), Some(states)) = (slot.scheduled.state, limits.states) {
            let end = slot.scheduled.end();
            assert!(
                slot.scheduled.position / states.interval == (end - 1) / states.interval,
                "{slot:?}"
            );
            assert!(state.save.is_none() || end % states.interval == 0);
            assert!(state.load.is_none() || slot.scheduled.position % states.interval == 0);
        }
    }
}

#[test]
fn a_long_random_walk_loses_nothing_and_starves_nobody() {
    let states = prop::option::of((1..8usize, 1..4usize));
    let walks = (
        (1..9usize, 1..40usize, 3..40usize, any::<bool>()),
        (states, 0..2usize),
        prop::collection::vec(event(), 1..400),
    );
    let config = Config { cases: 600, failure_persistence: None, ..Config::default() };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let steps = std::cell::Cell::new([0; 2]);
    TestRunner::new_with_rng(config, rng)
        .run(
            &walks,
            |((max_batch_size, token_budget, pages, prefix_cache), (states, run_ahead), events)| {
                let has_drafts = states.is_none() && run_ahead == 0;
                let states = states.map(|(slots, n)| StateLimits { slots, interval: 8 * n });
                let limits = Limits {
                    max_batch_size,
                    token_budget,
                    pages,
                    prefix_cache,
                    states,
                    run_ahead,
                    max_drafts: if has_drafts { 5 } else { 0 },
                    ..limits()
                };
                let mut counts = steps.get();
                counts[run_ahead] += walk(limits, &events);
                steps.set(counts);
                Ok(())
            },
        )
        .unwrap();
    let counts = steps.get();
    assert!(counts.iter().all(|steps| *steps > 50_000), "only {counts:?} steps were tried");
}
