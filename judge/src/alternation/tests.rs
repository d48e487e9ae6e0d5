//! Tests of alternating comparisons: worked examples, and error rates by simulation.

use schema::alternation::{SCHEMA, Slice};
use schema::random::SplitMix64;
use schema::run::{CacheState, ScenarioFacts};

use super::*;

/// Alternation in which the slices of a pair take these times in milliseconds: of the baseline, and
/// of the candidate.
fn start(times_ms: &[[u64; 2]]) -> Alternation {
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
        baseline: None,
        candidate: None,
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
    let found = of_start(&start);
    assert_eq!(pair_ratios("ttft_us_p50", &start).len(), 6);
    let percent = |name: &str| (100.0 * found[name].exp_m1() * 10.0).round() / 10.0;
    assert_eq!(percent("output_tokens_per_s"), -4.8, "5 % longer for the same tokens");
    assert_eq!((percent("ttft_us_p50"), percent("tpot_us_p50")), (5.0, 5.0));
    assert!(!found.contains_key("itl_token_us_p99"), "no slice has it");
}

#[test]
fn a_pair_with_a_failed_request_is_left_out() {
    let mut some = start(&[[1000, 1100], [1000, 3000], [1000, 1100]]);
    some.slices[3].requests_failed = 1;
    let found = of_start(&some);
    assert_eq!(pair_ratios("ttft_us_p50", &some).len(), 2);
    assert!((found["ttft_us_p50"] - 1.1_f64.ln()).abs() < 1e-9);
    assert_eq!(of_start(&start(&[])), BTreeMap::new());
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

/// Shares of comparisons over ten starts that end with each call, for starts with the mean effect
/// `effect` and the scatter `spread`, in log units, of a metric with the minimum effect of throughput.
fn simulated(effect: f64, spread: f64) -> [f64; 4] {
    const TRIALS: u32 = 4_000;
    let metric = by_name("output_tokens_per_s").unwrap();
    let mut random = SplitMix64(7);
    let mut shares = [0.0; 4];
    for _ in 0..TRIALS {
        let ratios: Vec<f64> = (0..10).map(|_| effect + spread * normal(&mut random)).collect();
        let call = stand(metric, &ratios).unwrap().call;
        shares[call as usize] += 1.0 / f64::from(TRIALS);
    }
    shares
}

#[test]
fn by_simulation_identical_variants_are_rarely_called_worse_and_mostly_unchanged() {
    for spread in [0.005, 0.01, 0.02] {
        let [worse, better, unchanged, _] = simulated(0.0, spread);
        assert!(worse <= 0.03 && better <= 0.03, "{spread}: {worse}, {better}");
        assert!(unchanged > if spread < 0.02 { 0.95 } else { 0.5 }, "{spread}: {unchanged}");
    }
}

#[test]
fn by_simulation_a_slowdown_is_found_and_never_called_better() {
    for (effect, spread, least) in [(-0.05, 0.02, 0.99), (-0.03, 0.02, 0.9), (-0.025, 0.01, 0.95)] {
        let [worse, better, ..] = simulated(effect, spread);
        assert!(worse >= least && better == 0.0, "{effect}, {spread}: {worse}, {better}");
    }
}

#[test]
fn the_largest_effect_that_is_not_excluded_is_the_worse_end() {
    let [higher_is_better, lower_is_better] =
        ["output_tokens_per_s", "ttft_us_p50"].map(|name| by_name(name).unwrap());
    let higher = stand(higher_is_better, &[-0.01, 0.01, 0.0, 0.0]).unwrap();
    let lower = stand(lower_is_better, &[-0.01, 0.01, 0.0, 0.0]).unwrap();
    assert!((higher.not_excluded_pct + higher.interval_pct.0).abs() < 0.02, "{higher:?}");
    assert!((lower.not_excluded_pct - lower.interval_pct.1).abs() < 1e-9, "{lower:?}");
    assert_eq!(stand(lower_is_better, &[0.0]), None);
}
