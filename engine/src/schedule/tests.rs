//! Traces of the scheduler as drawings, and a long random walk that looks for lost pages.

use std::collections::BTreeMap;

use expect_test::{Expect, expect};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::*;

/// Sequences with a known end, run step by step, drawn as they go.
struct Simulation {
    scheduler: Scheduler,
    /// Tokens that each living sequence still wants.
    left: BTreeMap<SeqId, usize>,
    rows: BTreeMap<SeqId, String>,
    steps: usize,
}

impl Simulation {
    fn new(limits: Limits) -> Self {
        let scheduler = Scheduler::new(limits);
        Self { scheduler, left: BTreeMap::new(), rows: BTreeMap::new(), steps: 0 }
    }

    fn arrive(&mut self, prompt: Vec<u32>, output: usize) -> Result<SeqId, Refusal> {
        let id = SeqId(self.rows.len() as u64);
        self.scheduler.add(id, prompt, output)?;
        self.left.insert(id, output);
        self.rows.insert(id, " ".repeat(self.steps));
        Ok(id)
    }

    fn leave(&mut self, id: SeqId) {
        self.left.remove(&id);
        self.scheduler.remove(id);
    }

    fn step(&mut self) -> Plan {
        let plan = self.scheduler.plan();
        self.scheduler.commit(&plan);
        for id in self.left.keys() {
            let slot = plan.slots.iter().find(|slot| slot.id == *id);
            let mark = slot.map_or('.', |slot| if slot.prefill { 'P' } else { 'D' });
            self.rows.get_mut(id).unwrap().push(mark);
        }
        for slot in plan.slots.iter().filter(|slot| slot.samples) {
            let left = self.left.get_mut(&slot.id).unwrap();
            *left -= 1;
            if *left == 0 {
                self.leave(slot.id);
            } else {
                self.scheduler.append(slot.id, 7);
            }
        }
        self.steps += 1;
        plan
    }

    fn drawing(&self) -> String {
        self.rows.iter().map(|(id, row)| format!("{id:<2} {row}\n")).collect()
    }
}

fn limits(policy: Policy) -> Limits {
    Limits {
        policy,
        max_batch_size: 3,
        token_budget: 16,
        max_seq_len: 64,
        pages: 32,
        page_tokens: 4,
        chunk_tokens: 8,
        prefix_cache: true,
    }
}

/// A prompt that shares no page with those of other seeds.
fn prompt(seed: u32, length: usize) -> Vec<u32> {
    (0..length as u32).map(|index| seed * 1000 + index).collect()
}

/// Draws until all are done; `arrivals` are (step, prompt length, output length).
fn check_trace(limits: Limits, arrivals: &[(usize, usize, usize)], expected: &Expect) {
    let mut simulation = Simulation::new(limits);
    let mut coming = arrivals.iter().enumerate().peekable();
    loop {
        while let Some((seed, (_, length, output))) =
            coming.next_if(|(_, (step, ..))| *step <= simulation.steps)
        {
            simulation.arrive(prompt(seed as u32, *length), *output).unwrap();
        }
        if simulation.scheduler.is_idle() {
            break;
        }
        simulation.step();
        simulation.scheduler.check();
    }
    expected.assert_eq(&simulation.drawing());
}

#[test]
fn whole_prompts_go_first_as_many_as_the_budget_holds() {
    let arrivals = [(0, 10, 4), (0, 6, 3), (0, 5, 4), (0, 3, 2), (3, 40, 3)];
    check_trace(
        limits(Policy::PrefillFirst),
        &arrivals,
        &expect![[r#"
            0  P.DD.D
            1  P.DD
            2  .PDD.D
            3  ....PD
            4     ...PDD
        "#]],
    );
}

#[test]
fn running_sequences_do_not_stand_still_for_a_long_prompt() {
    let arrivals = [(0, 10, 8), (0, 6, 3), (2, 40, 3), (3, 3, 2)];
    check_trace(
        limits(Policy::Mixed),
        &arrivals,
        &expect![[r#"
            0  PDDDDDDD
            1  PDD
            2    PPPPPDD
            3     ...PD
        "#]],
    );
}

#[test]
fn the_youngest_gives_way_and_comes_back() {
    let expected = expect![[r#"
        0  PDDDDDDDD
        1  PDDDDD...PDD
        2  .........PDD
    "#]];
    for policy in [Policy::PrefillFirst, Policy::Mixed] {
        let limits = Limits { pages: 6, ..limits(policy) };
        check_trace(limits, &[(0, 7, 9), (0, 6, 9), (0, 2, 3)], &expected);
    }
}

#[test]
fn chunks_end_on_absolute_multiples_except_the_last() {
    let mut simulation = Simulation::new(limits(Policy::Mixed));
    simulation.arrive(prompt(0, 3), 20).unwrap();
    simulation.step();
    let id = simulation.arrive(prompt(1, 37), 1).unwrap();
    let mut ends = Vec::new();
    while simulation.scheduler.sequence(id).is_some() {
        let plan = simulation.step();
        ends.extend(plan.slots.iter().filter(|s| s.id == id).map(|s| s.position + s.rows));
    }
    assert_eq!(ends, [8, 16, 24, 37]);
}

#[test]
fn a_prefix_is_found_again_up_to_the_last_full_page() {
    for policy in [Policy::PrefillFirst, Policy::Mixed] {
        let mut simulation = Simulation::new(limits(policy));
        simulation.arrive(prompt(1, 16), 2).unwrap();
        while !simulation.scheduler.is_idle() {
            simulation.step();
        }
        // The same 16 tokens: the last page is computed again, since its last row gives logits.
        let same = simulation.arrive(prompt(1, 16), 1).unwrap();
        let plan = simulation.scheduler.plan();
        assert_eq!((plan.slots[0].position, plan.slots[0].rows), (12, 4));
        assert_eq!(simulation.scheduler.sequence(same).unwrap().cached_tokens(), 12);
        let totals = simulation.scheduler.totals();
        assert_eq!((totals.query_tokens, totals.hit_tokens), (32, 12));
    }
}

#[test]
fn a_reset_frees_what_nobody_holds_and_hides_the_rest() {
    let mut simulation = Simulation::new(limits(Policy::PrefillFirst));
    simulation.arrive(prompt(1, 16), 1).unwrap();
    simulation.step();
    simulation.arrive(prompt(2, 8), 2).unwrap();
    simulation.step();
    assert_eq!(simulation.scheduler.reset_prefix_cache(), 4);
    assert_eq!(simulation.scheduler.reset_prefix_cache(), 0);
    simulation.scheduler.check();
    for seed in [1, 2] {
        let id = simulation.arrive(prompt(seed, 16), 1).unwrap();
        simulation.step();
        assert!(simulation.scheduler.sequence(id).is_none());
    }
    assert_eq!(simulation.scheduler.totals().hit_tokens, 0);
}

#[test]
fn without_prefix_cache_nothing_is_found() {
    let mut simulation =
        Simulation::new(Limits { prefix_cache: false, ..limits(Policy::PrefillFirst) });
    for _ in 0..2 {
        simulation.arrive(prompt(1, 16), 1).unwrap();
        simulation.step();
    }
    let totals = simulation.scheduler.totals();
    assert_eq!((totals.query_tokens, totals.hit_tokens), (0, 0), "nothing was looked up");
    assert_eq!(simulation.scheduler.reset_prefix_cache(), 0);
}

#[test]
fn the_oldest_idle_page_is_reused_first_and_prefixes_outlive_their_ends() {
    let mut simulation = Simulation::new(Limits { pages: 6, ..limits(Policy::PrefillFirst) });
    for seed in [1, 2] {
        simulation.arrive(prompt(seed, 8), 1).unwrap();
        simulation.step();
    }
    // Two pages were never used, two more come from the end of the oldest prompts.
    simulation.arrive(prompt(3, 12), 1).unwrap();
    simulation.step();
    let hits = |simulation: &mut Simulation, seed| {
        let before = simulation.scheduler.totals().hit_tokens;
        simulation.arrive(prompt(seed, 9), 1).unwrap();
        simulation.step();
        simulation.scheduler.totals().hit_tokens - before
    };
    assert_eq!(hits(&mut simulation, 2), 8);
    assert_eq!(hits(&mut simulation, 1), 0);
}

#[test]
fn what_can_never_run_is_refused_with_the_numbers() {
    let mut scheduler = Scheduler::new(Limits { pages: 8, ..limits(Policy::PrefillFirst) });
    let mut refuse = |prompt_tokens, output| {
        scheduler.add(SeqId(0), prompt(0, prompt_tokens), output).unwrap_err().to_string()
    };
    expect!["the prompt has 60 tokens and 5 more are asked for, but a sequence has at most 64 tokens here"].assert_eq(&refuse(60, 5));
    expect!["the sequence takes 9 KV pages, but there are only 8"].assert_eq(&refuse(30, 3));
    assert_eq!(scheduler.limits().max_output(30), 2);
    assert!(scheduler.add(SeqId(0), prompt(0, 30), 2).is_ok());
}

/// One thing that happens between two steps of the random walk.
#[derive(Debug, Clone)]
enum Event {
    Arrive { family: u32, length: usize, output: usize },
    Abort { nth: usize },
    Reset,
    Nothing,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (0..4u32, 1..90usize, 1..40usize)
            .prop_map(|(family, length, output)| Event::Arrive { family, length, output }),
        1 => (0..8usize).prop_map(|nth| Event::Abort { nth }),
        1 => Just(Event::Reset),
        16 => Just(Event::Nothing),
    ]
}

fn walk(limits: Limits, events: &[Event]) -> usize {
    let mut simulation = Simulation::new(limits.clone());
    let mut quiet = 0;
    let mut events = events.iter();
    loop {
        match events.next() {
            Some(Event::Arrive { family, length, output }) => {
                let refused = simulation.arrive(prompt(*family, *length), *output).is_err();
                assert_eq!(refused, limits.admits(*length, *output).is_err());
            }
            Some(Event::Abort { nth }) => {
                if let Some(id) = simulation.left.keys().nth(*nth).copied() {
                    simulation.leave(id);
                }
            }
            Some(Event::Reset) => {
                simulation.scheduler.reset_prefix_cache();
            }
            Some(Event::Nothing) => {}
            None if simulation.scheduler.is_idle() => return simulation.steps,
            None => {}
        }
        simulation.scheduler.check();
        let oldest = simulation.left.keys().next().copied();
        let before = simulation.left.values().sum::<usize>();
        let plan = simulation.step();
        check_plan(&limits, &plan);
        simulation.scheduler.check();
        // The oldest moves at every step of its kind: it is planned, unless this step is one of
        // prompts only, and those end when the batch is full.
        let moved = oldest.is_none_or(|id| plan.slots.iter().any(|slot| slot.id == id));
        quiet = if moved { 0 } else { quiet + 1 };
        assert!(quiet <= limits.max_batch_size, "the oldest stood still for {quiet} steps");
        assert!(before == 0 || !plan.slots.is_empty());
    }
}

fn check_plan(limits: &Limits, plan: &Plan) {
    let prompts: Vec<_> = plan.slots.iter().filter(|slot| slot.prefill).collect();
    let prompt_rows: usize = prompts.iter().map(|slot| slot.rows).sum();
    let decode_rows = plan.rows() - prompt_rows;
    assert!(plan.slots.len() <= limits.max_batch_size);
    match limits.policy {
        Policy::PrefillFirst => {
            assert!(prompt_rows == 0 || decode_rows == 0, "a step is of one kind");
            assert!(prompt_rows <= limits.token_budget || prompts.len() == 1);
            assert!(prompts.iter().all(|slot| slot.samples), "prompts are whole");
        }
        Policy::Mixed => {
            let budget = limits.token_budget.max(limits.chunk_tokens);
            assert!(plan.rows() <= budget.max(decode_rows));
            for slot in prompts.iter().filter(|slot| !slot.samples) {
                assert_eq!((slot.position + slot.rows) % limits.chunk_tokens, 0);
            }
        }
    }
}

#[test]
fn a_long_random_walk_loses_no_page_and_starves_nobody() {
    let walks = (
        prop_oneof![Just(Policy::PrefillFirst), Just(Policy::Mixed)],
        (1..9usize, 1..40usize, 3..40usize, any::<bool>()),
        prop::collection::vec(event(), 1..400),
    );
    let config = Config { cases: 600, failure_persistence: None, ..Config::default() };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let steps = std::cell::Cell::new(0);
    TestRunner::new_with_rng(config, rng)
        .run(&walks, |(policy, (max_batch_size, token_budget, pages, prefix_cache), events)| {
            let limits =
                Limits { max_batch_size, token_budget, pages, prefix_cache, ..limits(policy) };
            steps.set(steps.get() + walk(limits, &events));
            Ok(())
        })
        .unwrap();
    assert!(steps.get() > 100_000, "only {} steps were tried", steps.get());
}
