//! Traces of the scheduler as drawings: chunked prefill, preemption, prefix cache and snapshots.

use expect_test::{Expect, expect};

use super::*;

/// Runs all sequences to their ends and compares the simulation's drawing with `expected`.
/// `arrivals` are (step, prompt length, longest output, output after which the sequence stops by
/// itself), lengths in tokens.
fn check_trace(limits: Limits, arrivals: &[(usize, usize, usize, usize)], expected: &Expect) {
    let mut simulation = Simulation::new(limits);
    let mut coming = arrivals.iter().enumerate().peekable();
    loop {
        while let Some((seed, (_, length, output, stop))) =
            coming.next_if(|(_, (step, ..))| *step <= simulation.steps)
        {
            simulation.arrive(prompt(seed as u32, *length), *output, *stop).unwrap();
        }
        if simulation.scheduler.is_idle() {
            break;
        }
        simulation.step();
        simulation.check();
    }
    expected.assert_eq(&simulation.drawing());
}

/// Runs one sequence alone to its end and returns the number of prompt tokens found in the prefix
/// cache.
fn hits(simulation: &mut Simulation, prompt: Vec<u32>, output: usize) -> usize {
    let before = simulation.scheduler.totals().hit_tokens;
    simulation.arrive(prompt, output, output).unwrap();
    while !simulation.scheduler.is_idle() {
        simulation.step();
        simulation.check();
    }
    (simulation.scheduler.totals().hit_tokens - before) as usize
}

#[test]
fn running_sequences_do_not_stand_still_for_a_long_prompt() {
    let arrivals = [(0, 10, 8, 8), (0, 6, 3, 3), (2, 40, 3, 3), (3, 3, 2, 2)];
    check_trace(
        limits(),
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
fn a_prompt_whose_logits_are_read_has_one_chunk_in_a_step_and_leaves_the_rest_to_others() {
    let mut simulation = Simulation::new(limits());
    let needs = Needs { all_rows: true, ..Needs::default() };
    simulation.arrive_needing(prompt(0, 30), 1, 1, needs).unwrap();
    simulation.arrive(prompt(1, 10), 1, 1).unwrap();
    let mut rows = Vec::new();
    while !simulation.scheduler.is_idle() {
        let plan = simulation.step();
        let of = |slot: &PlannedSequence| slot.scheduled.end() - slot.scheduled.position;
        rows.push(plan.sequences.iter().map(of).collect::<Vec<_>>());
        simulation.check();
    }
    assert_eq!(rows, [vec![8, 8], vec![8, 2], vec![8], vec![6]]);
}

#[test]
fn one_step_ahead_a_sequence_that_stops_is_found_out_one_step_late() {
    let arrivals = [(0, 10, 8, 8), (0, 6, 9, 3), (2, 40, 3, 3), (3, 3, 2, 2)];
    check_trace(
        Limits { run_ahead: 1, ..limits() },
        &arrivals,
        &expect![[r#"
        0  Pddddddd.
        1  Pddd
        2    PPPPPdd.
        3     ...Pd.
    "#]],
    );
}

#[test]
fn one_step_ahead_a_sequence_waits_for_the_tokens_that_have_to_be_known() {
    let mut simulation = Simulation::new(Limits { run_ahead: 1, ..limits() });
    for (seed, known_tokens) in [(0, 0), (1, 2), (2, usize::MAX)] {
        let needs = Needs { known_tokens, ..Needs::default() };
        simulation.arrive_needing(prompt(seed, 3), 6, 6, needs).unwrap();
    }
    while !simulation.scheduler.is_idle() {
        simulation.step();
        simulation.check();
    }
    expect![[r#"
        0  Pddddd.
        1  P.D.Dddd.
        2  P.D.D.D.D.D.
    "#]]
    .assert_eq(&simulation.drawing());
}

#[test]
fn a_prompt_beside_decoding_sequences_is_cut_by_the_budget_of_mixed_steps() {
    let limits = Limits { token_budget: 40, mixed_budget: 16, ..limits() };
    let mut simulation = Simulation::new(limits);
    let alone = simulation.arrive(prompt(0, 30), 9, 9).unwrap();
    let plan = simulation.step();
    assert_eq!(plan.rows(), 30, "a prompt alone has the whole budget");
    simulation.arrive(prompt(1, 30), 2, 2).unwrap();
    let rows: Vec<usize> = (0..3).map(|_| simulation.step().rows()).collect();
    // One row of the first sequence, and whole chunks of eight beside it, or what is left.
    assert_eq!(rows, [9, 9, 15]);
    assert!(simulation.living.contains_key(&alone));
}

#[test]
fn right_drafts_save_steps_and_wrong_ones_are_taken_back() {
    for (count, right, steps) in [(0, 0, 20), (4, 0, 20), (4, 2, 8), (4, 4, 5), (9, 9, 5)] {
        let mut simulation = Simulation::new(Limits { max_drafts: 4, ..limits() });
        let id = simulation.arrive(prompt(0, 6), 20, 20).unwrap();
        let mut tokens = Vec::new();
        while let Some(living) = simulation.living.get(&id) {
            tokens.clone_from(&living.tokens);
            simulation.propose(count, right);
            simulation.step();
            simulation.check();
        }
        assert_eq!(simulation.steps, steps, "{count} drafts, {right} of them right");
        assert_eq!(simulation.scheduler.pages_used(), 0);
        // Pages that were filled before the last step are found by a sequence that goes on there.
        let full = (tokens.len() - 1) / 4 * 4;
        let next = simulation.arrive(tokens, 1, 1).unwrap();
        simulation.scheduler.plan();
        assert_eq!(simulation.scheduler.sequence(next).unwrap().cached_tokens(), full);
    }
}

#[test]
fn a_sequence_has_no_more_drafts_than_its_length_its_pages_and_the_budget_allow() {
    let drafts = |limits, output| {
        let mut simulation = Simulation::new(limits);
        simulation.arrive(prompt(0, 6), output, output).unwrap();
        simulation.step();
        simulation.propose(9, 9);
        simulation.step().sequences[0].drafts.len()
    };
    let limits = Limits { max_drafts: 9, token_budget: 64, mixed_budget: 64, ..limits() };
    assert_eq!(drafts(limits.clone(), 30), 9);
    // The first step has sampled one of five tokens, and one follows the last draft.
    assert_eq!(drafts(limits.clone(), 5), 3);
    // One row is the sequence's own, and eight are left for a prompt.
    assert_eq!(drafts(Limits { token_budget: 13, ..limits.clone() }, 30), 4);
    // Positions 6 to 11 are on the second and third page; the last page is left.
    assert_eq!(drafts(Limits { pages: 4, ..limits }, 10), 5);
}

#[test]
fn the_youngest_gives_way_and_comes_back() {
    let arrivals = [(0, 7, 9, 9), (0, 6, 9, 9), (0, 2, 3, 3)];
    check_trace(
        Limits { pages: 6, ..limits() },
        &arrivals,
        &expect![[r#"
            0  PDDDDDDDD
            1  PDDDDD...PDD
            2  .........PDD
        "#]],
    );
    check_trace(
        Limits { pages: 6, run_ahead: 1, ..limits() },
        &arrivals,
        &expect![[r#"
        0  Pddddd.Ddd.
        1  Pddddd.....Pdd.
        2  ...........Pdd.
    "#]],
    );
}

#[test]
fn a_prompt_moves_on_however_many_run() {
    let arrivals = [(0, 3, 9, 9), (0, 3, 9, 9), (1, 20, 2, 2)];
    check_trace(
        Limits { token_budget: 3, ..limits() },
        &arrivals,
        &expect![[r#"
        0  PDDDDDDDD
        1  PDDDDDDDD
        2   PPPD
    "#]],
    );
}

#[test]
fn snapshots_are_taken_on_the_way_and_prompts_begin_from_them() {
    let states = Some(StateLimits { slots: 6, interval: 8 });
    let mut simulation = Simulation::new(Limits { states, ..limits() });
    let first = simulation.arrive(prompt(1, 21), 6, 6).unwrap();
    let mut tokens = Vec::new();
    while let Some(living) = simulation.living.get(&first) {
        tokens.clone_from(&living.tokens);
        simulation.step();
    }
    // The pages of 20 tokens are cached, but a snapshot exists only at the end of 16.
    assert_eq!(hits(&mut simulation, prompt(1, 21), 1), 16);
    assert_eq!(hits(&mut simulation, prompt(1, 16), 1), 8);
    // Generated tokens are found as well: a snapshot was taken at the end of 24 tokens.
    assert_eq!(tokens.len(), 26);
    assert_eq!(hits(&mut simulation, tokens, 1), 24);
    expect![[r#"
        0  SSPDDSDD
        1          L
        2           L
        3            L
    "#]]
    .assert_eq(&simulation.drawing());
}

#[test]
fn the_snapshot_used_longest_ago_gives_way_first() {
    let states = Some(StateLimits { slots: 3, interval: 8 });
    let mut simulation = Simulation::new(Limits { states, ..limits() });
    // Two state slots are left for snapshots while one sequence runs.
    assert_eq!(hits(&mut simulation, prompt(1, 9), 1), 0);
    assert_eq!(hits(&mut simulation, prompt(2, 9), 1), 0);
    assert_eq!(hits(&mut simulation, prompt(1, 9), 1), 8);
    assert_eq!(hits(&mut simulation, prompt(3, 9), 1), 0);
    assert_eq!(hits(&mut simulation, prompt(1, 9), 1), 8);
    assert_eq!(hits(&mut simulation, prompt(2, 9), 1), 0);
}

#[test]
fn a_sequence_takes_a_snapshot_over_where_there_is_no_other_place() {
    let states = Some(StateLimits { slots: 2, interval: 8 });
    let mut simulation = Simulation::new(Limits { states, ..limits() });
    simulation.arrive(prompt(1, 9), 20, 20).unwrap();
    simulation.step();
    simulation.step();
    // One slot is held by the first sequence, the other by its snapshot.
    let second = simulation.arrive(prompt(1, 9), 20, 20).unwrap();
    let plan = simulation.step();
    let slot = plan.sequences.iter().find(|slot| slot.id == second).unwrap();
    assert_eq!((slot.scheduled.position, slot.scheduled.state.unwrap().load), (8, None));
    // No slot is left for a third sequence.
    let third = simulation.arrive(prompt(1, 9), 1, 1).unwrap();
    let plan = simulation.step();
    assert!(plan.sequences.iter().all(|slot| slot.id != third));
    simulation.check();
}

#[test]
fn chunks_end_on_absolute_multiples_except_the_last() {
    let mut simulation = Simulation::new(limits());
    simulation.arrive(prompt(0, 3), 20, 20).unwrap();
    simulation.step();
    let id = simulation.arrive(prompt(1, 37), 1, 1).unwrap();
    let mut ends = Vec::new();
    while simulation.scheduler.sequence(id).is_some() {
        let plan = simulation.step();
        ends.extend(plan.sequences.iter().filter(|s| s.id == id).map(|s| s.scheduled.end()));
    }
    assert_eq!(ends, [8, 16, 24, 37]);
}

#[test]
fn a_prefix_is_found_again_up_to_the_last_full_page() {
    let mut simulation = Simulation::new(limits());
    assert_eq!(hits(&mut simulation, prompt(1, 16), 2), 0);
    // The same 16 tokens: the last page is recomputed, since its last row gives the logits.
    let same = simulation.arrive(prompt(1, 16), 1, 1).unwrap();
    let plan = simulation.scheduler.plan();
    let first = &plan.sequences[0].scheduled;
    assert_eq!((first.position, first.rows), (12, 4));
    assert_eq!(simulation.scheduler.sequence(same).unwrap().cached_tokens(), 12);
    let totals = simulation.scheduler.totals();
    assert_eq!((totals.query_tokens, totals.hit_tokens), (32, 12));
}

#[test]
fn a_reset_frees_what_nobody_holds_and_hides_the_rest() {
    let mut simulation = Simulation::new(limits());
    hits(&mut simulation, prompt(1, 16), 1);
    simulation.arrive(prompt(2, 8), 2, 2).unwrap();
    simulation.step();
    assert_eq!(simulation.scheduler.reset_prefix_cache(), 4);
    assert_eq!(simulation.scheduler.reset_prefix_cache(), 0);
    simulation.check();
    simulation.step();
    for seed in [1, 2] {
        assert_eq!(hits(&mut simulation, prompt(seed, 16), 1), 0);
    }
}

#[test]
fn pages_are_touched_once_however_often_they_are_used_again() {
    let mut simulation = Simulation::new(limits());
    hits(&mut simulation, prompt(1, 16), 1);
    assert_eq!(simulation.scheduler.pages_touched(), 4);
    // A different prompt beside the cached one needs pages of its own.
    hits(&mut simulation, prompt(2, 8), 1);
    assert_eq!(simulation.scheduler.pages_touched(), 6);
    simulation.scheduler.reset_prefix_cache();
    hits(&mut simulation, prompt(3, 24), 1);
    assert_eq!((simulation.scheduler.pages_used(), simulation.scheduler.pages_touched()), (0, 6));
}

#[test]
fn without_prefix_cache_nothing_is_found() {
    let mut simulation = Simulation::new(Limits { prefix_cache: false, ..limits() });
    for _ in 0..2 {
        hits(&mut simulation, prompt(1, 16), 1);
    }
    let totals = simulation.scheduler.totals();
    assert_eq!((totals.query_tokens, totals.hit_tokens), (0, 0), "nothing was looked up");
    assert_eq!(simulation.scheduler.reset_prefix_cache(), 0);
}

#[test]
fn the_oldest_idle_page_is_reused_first_and_prefixes_outlive_their_ends() {
    let mut simulation = Simulation::new(Limits { pages: 6, ..limits() });
    for seed in [1, 2] {
        hits(&mut simulation, prompt(seed, 8), 1);
    }
    // Two pages were never used; the third comes from the end of the oldest prompt.
    hits(&mut simulation, prompt(3, 12), 1);
    assert_eq!(hits(&mut simulation, prompt(2, 9), 1), 8);
    assert_eq!(hits(&mut simulation, prompt(1, 9), 1), 0);
}

#[test]
fn what_can_never_run_is_refused_with_the_numbers() {
    let mut scheduler = Scheduler::new(Limits { pages: 8, ..limits() });
    let mut refuse = |prompt_tokens, output| {
        scheduler
            .add(SeqId(0), prompt(0, prompt_tokens), output, Needs::default())
            .unwrap_err()
            .to_string()
    };
    expect![
        "this model's maximum context length is 64 tokens, but the prompt has 60 and 5 more are requested"
    ]
    .assert_eq(&refuse(60, 5));
    expect!["the sequence takes 9 KV pages, but there are only 8"].assert_eq(&refuse(30, 3));
    assert_eq!(scheduler.limits().max_output(30), 2);
    assert!(scheduler.add(SeqId(0), prompt(0, 30), 2, Needs::default()).is_ok());
}
