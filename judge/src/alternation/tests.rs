//! Tests of alternating comparisons: worked examples, and error rates by simulation.

use schema::alternation::{OutputsCompared, SCHEMA};
use schema::random::SplitMix64;
use schema::run::{CacheState, ScenarioFacts};
use schema::scenario::Arrival;

use super::*;

/// Alternation in which the slices of a pair take these times in milliseconds: of the baseline, and
/// of the candidate.
pub(super) fn start(times_ms: &[[u64; 2]]) -> Alternation {
    let slice = |pair: usize, variant: Side, elapsed_us: u64| Slice {
        pair: u32::try_from(pair).unwrap(),
        variant,
        start_us: 0,
        elapsed_us,
        requests_failed: 0,
        output_tokens: 100,
        ttft_us_p50: Some(elapsed_us / 10),
        tpot_us_p50: Some(elapsed_us / 100),
        itl_us_p99: None,
        idle_cpu_us: Some(0),
        steal_us: Some(0),
        memory_mb_per_s: 10_000,
        multiplications_per_us: 1000.0,
    };
    let pair = |(pair, times): (usize, &[u64; 2])| {
        let mut two = Side::BOTH.map(|side| slice(pair, side, times[side as usize] * 1000));
        // The order within a pair says nothing about the variant.
        if pair % 2 == 1 {
            two.reverse();
        }
        two
    };
    Alternation {
        schema: SCHEMA.to_owned(),
        scenario: ScenarioFacts::default(),
        seed: 1,
        started_at: None,
        slice_requests: 4,
        prefix_cache: CacheState::Cold,
        slices: times_ms.iter().enumerate().flat_map(pair).collect(),
        baseline: Tail::default(),
        candidate: Tail::default(),
        outputs: OutputsCompared::default(),
    }
}

#[test]
fn a_ratio_is_that_of_most_pairs_whichever_side_a_neighbor_slowed() {
    let start = start(&[
        [1000, 1050],
        [2000, 2100],
        [1000, 1050],
        [1000, 1900],
        [1900, 1050],
        [1000, 1050],
    ]);
    let of = |name: &str| of_slices(&[&start], name);
    assert_eq!(of_pairs(&[&start], "ttft_us_p50")[0].len(), 6);
    let percent = |name: &str| (100.0 * of(name)[0].exp_m1() * 10.0).round() / 10.0;
    assert_eq!(percent("output_tokens_per_s"), -4.8, "5 % longer for the same tokens");
    assert_eq!((percent("ttft_us_p50"), percent("tpot_us_p50")), (5.0, 5.0));
    assert!(of("itl_token_us_p99").is_empty(), "no slice has it");
}

#[test]
fn a_pair_with_a_failed_request_is_left_out() {
    let mut some = start(&[[1000, 1100], [1000, 3000], [1000, 1100]]);
    some.slices[3].requests_failed = 1;
    assert_eq!(of_pairs(&[&some], "ttft_us_p50")[0].len(), 2);
    assert!((of_slices(&[&some], "ttft_us_p50")[0] - 1.1_f64.ln()).abs() < 1e-9);
    assert!(of_slices(&[&start(&[])], "ttft_us_p50").is_empty());
}

#[test]
fn locations_against_values_worked_out_by_hand() {
    // Means of pairs: 0, 1, 5, 2, 6, 10; their median is between 2 and 5.
    assert_eq!(hodges_lehmann(&[0.0, 2.0, 10.0]), Some(3.5));
    assert_eq!(hodges_lehmann(&[]), None);
    assert_eq!(hodges_lehmann(&[f64::NAN, 1.0]), None);
    // Twelve values: 78 means; the normal approximation gives the 13th from each end (R has 14).
    let values: Vec<f64> = (1..=12).map(f64::from).collect();
    let (low, high) = interval(&values, 0.95).unwrap();
    assert_eq!((low, high), (4.0, 9.0));
    assert_eq!(interval(&values[..5], 0.95), None);
}

fn normal(random: &mut SplitMix64) -> f64 {
    // Box and Muller, 1958.
    let (one, two) = (1.0 - random.share(), random.share());
    (-2.0 * one.ln()).sqrt() * (std::f64::consts::TAU * two).cos()
}

/// Comparison of a closed loop whose starts take ten seconds each of a budget of five minutes, with
/// these log ratios of output tokens per second.
fn comparison(ratios: &[f64]) -> AlternatingComparison {
    let starts = ratios.iter().zip(1..).map(|(log, number)| {
        // A slice of the candidate takes longer by the inverse of the ratio.
        let times: Vec<[f64; 2]> = vec![[1e9, 1e9 * (-log).exp()]];
        Start { end_us: number * 10_000_000, alternation: Some(exact(&times)), ..Start::default() }
    });
    AlternatingComparison {
        arrival: Some(Arrival::Closed { concurrency: 4 }),
        family: 8,
        budget_us: 300_000_000,
        starts: starts.collect(),
        ..AlternatingComparison::default()
    }
}

/// Alternation with one pair for each pair of times in microseconds, of which only throughput is
/// known.
fn exact(times_us: &[[f64; 2]]) -> Alternation {
    let mut found = start(&vec![[1, 1]; times_us.len()]);
    for (index, slice) in found.slices.iter_mut().enumerate() {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "positive times"
        )]
        let elapsed_us = times_us[index / 2][slice.variant as usize] as u64;
        *slice = Slice { elapsed_us, ttft_us_p50: None, tpot_us_p50: None, ..*slice };
    }
    found
}

fn throughput(found: &AlternatingComparison) -> Judged {
    let mut judged = judge(found).into_iter();
    judged.find(|judged| judged.metric.name == "output_tokens_per_s").unwrap()
}

fn scattered(effect: f64, spread: f64, starts: usize, random: &mut SplitMix64) -> Vec<f64> {
    (0..starts).map(|_| effect + spread * normal(random)).collect()
}

#[test]
fn a_metric_is_decided_at_looks_alone_and_stays_decided() {
    let mut ratios = vec![-0.05; 5];
    ratios.iter_mut().zip(0_i32..).for_each(|(log, index)| *log += 0.0001 * f64::from(index));
    assert_eq!(throughput(&comparison(&ratios)).call, Call::Open, "no look before a minute");
    ratios.push(-0.05);
    let found = throughput(&comparison(&ratios));
    assert_eq!(found.call, Call::Worse);
    assert_eq!((found.extent.starts, found.extent.slices), (6, 12));
    assert_eq!((found.extent.spent_us, found.extent.budget_us), (60_000_000, 300_000_000));
    assert!((found.effect_pct + 4.9).abs() < 0.1, "{found:?}");
    // What follows does not change what was decided.
    ratios.extend([0.3; 20]);
    assert_eq!(throughput(&comparison(&ratios)).call, Call::Worse);
    assert!(is_over(&comparison(&ratios)));
}

#[test]
fn a_comparison_ends_with_its_budget_or_its_last_open_metric() {
    let wide: Vec<f64> = (0..30).map(|index| if index % 2 == 0 { 0.2 } else { -0.2 }).collect();
    let open = comparison(&wide[..29]);
    assert!(!is_over(&open));
    let spent = comparison(&wide);
    assert!(is_over(&spent));
    let found = throughput(&spent);
    assert_eq!(found.call, Call::Open);
    let (low, high) = found.interval_pct;
    assert!(low < -5.0 && high > 5.0, "{found:?}");
    assert!(
        (found.not_excluded_pct - high).abs() < 0.02,
        "in logs both ends are as far: {found:?}"
    );
    assert!(found.detectable_pct > 5.0, "{found:?}");
    assert!(!is_over(&comparison(&[])));
    assert!(judge(&comparison(&[0.0])).is_empty());
}

#[test]
fn a_metric_that_does_not_block_is_estimated_and_not_called() {
    let mut found = comparison(&[-0.5; 30]);
    for start in &mut found.starts {
        start.baseline.startup_us = Some(1_000_000);
        start.candidate.startup_us = Some(2_000_000);
    }
    let judged = judge(&found);
    let startup = judged.iter().find(|judged| judged.metric.name == "startup_us").unwrap();
    assert!(!startup.gates && startup.call == Call::Open);
    assert!((startup.effect_pct - 100.0).abs() < 1e-6, "{startup:?}");
}

/// Shares of comparisons over thirty starts that end with each call, for starts with the mean effect
/// `effect` and the scatter `spread`, in log units, of throughput.
fn simulated(effect: f64, spread: f64) -> [f64; 4] {
    const TRIALS: u32 = 1_000;
    let mut random = SplitMix64(7);
    let mut shares = [0.0; 4];
    for _ in 0..TRIALS {
        let found = comparison(&scattered(effect, spread, 30, &mut random));
        shares[throughput(&found).call as usize] += 1.0 / f64::from(TRIALS);
    }
    shares
}

#[test]
fn by_simulation_identical_variants_are_rarely_called_worse_and_mostly_unchanged() {
    for spread in [0.005, 0.01, 0.02] {
        let [worse, better, unchanged, _] = simulated(0.0, spread);
        // One of eight metrics: an eighth of the error probability each.
        assert!(worse <= 0.01 && better <= 0.01, "{spread}: {worse}, {better}");
        assert!(unchanged > 0.95, "{spread}: {unchanged}");
    }
}

#[test]
fn by_simulation_a_slowdown_is_found_and_never_called_better() {
    for (effect, spread, least) in [(-0.05, 0.02, 0.99), (-0.03, 0.02, 0.95), (-0.025, 0.015, 0.95)]
    {
        let [worse, better, ..] = simulated(effect, spread);
        assert!(worse >= least && better == 0.0, "{effect}, {spread}: {worse}, {better}");
    }
}

#[test]
fn what_failed_is_counted_on_its_side() {
    let mut found = comparison(&[0.0, 0.0]);
    found.starts[0].candidate.failure = Some("it ended".to_owned());
    found.starts[1].alternation.as_mut().unwrap().slices[0].requests_failed = 3;
    assert_eq!(failures(&found), [3, 1]);
}

/// Comparison of three scenarios over thirty starts each, with the mean effect `effect` and the
/// scatter `spread`, in log units, of throughput.
fn three(effect: f64, spread: f64, random: &mut SplitMix64) -> Vec<AlternatingComparison> {
    let of_scenario = |_| comparison(&scattered(effect, spread, 30, random));
    (0..3).map(of_scenario).collect()
}

fn together(found: &[AlternatingComparison]) -> Option<Judged> {
    let own: Vec<&AlternatingComparison> = found.iter().collect();
    pooled::judge(&own, found).into_iter().find(|one| one.metric.name == "output_tokens_per_s")
}

#[test]
fn all_scenarios_together_are_judged_at_the_ends_of_the_second_and_of_each_later_one() {
    let mut random = SplitMix64(3);
    let found = three(-0.05, 0.02, &mut random);
    let judged = together(&found).unwrap();
    assert_eq!((judged.call, judged.extent.starts, judged.extent.slices), (Call::Worse, 60, 120));
    assert_eq!((judged.extent.spent_us, judged.extent.budget_us), (600_000_000, 600_000_000));
    assert!((judged.effect_pct + 4.9).abs() < 1.0, "{judged:?}");
    assert!(together(&found[..1]).is_none(), "one scenario is judged alone");
    let last = together(&three(0.0, 0.2, &mut random)).unwrap();
    assert_eq!((last.call, last.extent.starts), (Call::Open, 90));
}

#[test]
fn tests_of_scenarios_and_of_all_of_them_share_the_error_probability() {
    let arrival = Arrival::Closed { concurrency: 4 };
    let cell = |model: &'static str| (model, Some(&arrival));
    let alone = pooled::family(&[cell("a")]);
    assert!(alone > 0);
    assert_eq!(pooled::family(&[cell("a"), cell("b")]), 2 * alone, "two models of one scenario");
    assert_eq!(pooled::family(&[cell("a"), cell("a"), cell("a")]), 2 * 3 * alone);
}

#[test]
fn by_simulation_all_scenarios_together_see_what_one_does_not() {
    const TRIALS: u32 = 500;
    let shares = |effect: f64| {
        let mut random = SplitMix64(11);
        let mut shares = [0.0; 4];
        for _ in 0..TRIALS {
            let judged = together(&three(effect, 0.04, &mut random)).unwrap();
            shares[judged.call as usize] += 1.0 / f64::from(TRIALS);
        }
        shares
    };
    let [worse, better, unchanged, _] = shares(0.0);
    assert!(worse <= 0.01 && better <= 0.01 && unchanged > 0.95, "{worse} {better} {unchanged}");
    let [worse, better, ..] = shares(-0.025);
    assert!(worse > 0.95 && better == 0.0, "{worse} {better}");
    let [alone, ..] = simulated(-0.025, 0.04);
    assert!(alone < 0.7, "{alone}");
}
