//! Simulation of comparisons: error rates and power of screen and confirmation over made-up
//! campaigns, as the method promises them (docs/method/comparisons.md).
//!
//! A campaign is made run by run: the machine's speed drifts, runs have noise of their own, and
//! the order of the releases alternates. The noise that the judgement uses comes from the same
//! runs.

use std::f64::consts::TAU;

use judge::diff::estimate::noise;
use judge::diff::judge::{Evidence, judge};
use judge::diff::policy;
use schema::policy::PolicyFile;
use schema::random::SplitMix64;
use schema::verdict::VerdictKind;

/// Number of release-blocking metrics over all cells of a release.
const CELLS: usize = 288;
/// Minimum effect of throughput, in log units.
const FLOOR: f64 = 0.02;
/// Standard deviation of the machine's drift from one run to the next, in log units. It adds up
/// over a screen; between neighboring runs it is small.
const DRIFT: f64 = 0.002;

/// Random numbers from a seed; normal ones by the Box-Muller method.
pub struct Random(SplitMix64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(SplitMix64(seed))
    }

    pub fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.0.draw() % end.max(1) as u64).unwrap()
    }

    pub fn uniform(&mut self) -> f64 {
        self.0.share()
    }

    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (TAU * self.uniform()).cos()
    }
}

/// True properties of a simulated cell.
#[derive(Clone, Copy)]
struct Truth {
    /// Standard deviation of a run, in log units.
    cv: f64,
    /// True effect, in log units; above zero the candidate is slower.
    harm: f64,
}

/// Log ratios of pairs, above zero where the candidate is worse, and of a release against itself.
struct Launches {
    pairs: Vec<f64>,
    own: Vec<f64>,
}

fn launch(random: &mut Random, truth: Truth, pairs: u32) -> Launches {
    let mut launches = Launches { pairs: Vec::new(), own: Vec::new() };
    // The last run of a block and the first of the next are of the same release.
    let mut last: Option<f64> = None;
    let mut drift = 0.0;
    for block in 0..pairs {
        let candidate_first = block % 2 == 1;
        let mut one = |is_candidate: bool| {
            drift += DRIFT * random.normal();
            let harm = if is_candidate { truth.harm } else { 0.0 };
            harm + drift + truth.cv * random.normal()
        };
        let (first, second) = (one(candidate_first), one(!candidate_first));
        let pair = if candidate_first { first - second } else { second - first };
        launches.pairs.push(pair);
        launches.own.extend(last.map(|last| first - last));
        last = Some(second);
    }
    launches
}

/// Runs both stages. Returns the number of cells called worse, and true if the first cell is one
/// of them.
fn campaign(random: &mut Random, truths: &[Truth], policy: &PolicyFile) -> (usize, bool) {
    let screens: Vec<Launches> =
        truths.iter().map(|truth| launch(random, *truth, policy.screen_pairs)).collect();
    let pairs = policy.screen_pairs as usize;
    let own: Vec<f64> = screens.iter().flat_map(|screen| screen.own.clone()).collect();
    let of_all = noise(&own, pairs, policy.confidence).unwrap();
    let evidence = |screen: Launches| Evidence {
        noise: noise(&screen.own, pairs, policy.confidence).unwrap().min(of_all),
        screen: screen.pairs,
        confirm: Vec::new(),
        floor: FLOOR,
    };
    let mut evidence: Vec<Evidence> = screens.into_iter().map(evidence).collect();
    for (index, judged) in judge(&evidence, policy).into_iter().enumerate() {
        if judged.suspected {
            evidence[index].confirm = launch(random, truths[index], policy.confirm_pairs).pairs;
        }
    }
    let judged = judge(&evidence, policy);
    let worse = judged.iter().filter(|judged| judged.kind == VerdictKind::Regressed).count();
    (worse, judged[0].kind == VerdictKind::Regressed)
}

fn share(count: usize, of: usize) -> f64 {
    count as f64 / of as f64
}

#[test]
fn a_release_that_changed_nothing_is_rarely_called_worse() {
    let policy = policy::standard().file;
    let cvs = [0.01, 0.02, 0.03, 0.04];
    let truths: Vec<Truth> =
        cvs.iter().cycle().take(CELLS).map(|cv| Truth { cv: *cv, harm: 0.0 }).collect();
    let mut random = Random::new(20_260_101);
    let count = (0..2_000).filter(|_| campaign(&mut random, &truths, &policy).0 > 0).count();
    let false_alarms = share(count, 2_000);
    println!("false alarms: {false_alarms}");
    assert!(false_alarms <= 0.08, "{false_alarms} of the campaigns call something worse");
}

#[test]
fn a_cell_that_got_slower_is_found_among_all_the_others() {
    let policy = policy::standard().file;
    for (cv, slower, at_least) in [(0.02, 0.05, 0.80), (0.01, 0.03, 0.90)] {
        let mut truths = vec![Truth { cv, harm: 0.0 }; CELLS];
        truths[0].harm = -f64::ln_1p(-slower);
        let mut random = Random::new(7);
        let found = (0..600).filter(|_| campaign(&mut random, &truths, &policy).1).count();
        let power = share(found, 600);
        println!("-{slower} at {cv}: {power}");
        assert!(power >= at_least, "-{slower} at a CV of {cv} is found in {power}");
    }
}
