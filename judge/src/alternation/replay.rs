//! Replays of recorded noise: what the gate would have decided, had its starts come in another
//! order and had the candidate been slower by a known effect.
//!
//! A replay draws the starts of identical variants with replacement, with the time that each took,
//! adds the effect to the log ratios, and is judged as a comparison is. All metrics of a start are
//! drawn together, so that they depend on each other as they did.

use std::collections::BTreeMap;

use schema::metric::Better;
use schema::random::SplitMix64;
use schema::scenario::Arrival;

use super::decision::{Call, Course, Judged, is_decided, judge_course, share_us};
use super::pooled;
use crate::diff::estimate::log_of;

/// Recorded starts of identical variants in one scenario.
#[derive(Debug, Clone, PartialEq)]
pub struct Noise {
    /// Arrival process of the scenario; `None` where it is not known.
    pub arrival: Option<Arrival>,
    /// Number of equal parts of the error probability, of which each release-blocking metric has one.
    pub family: u32,
    /// Starts from which replays draw.
    pub starts: Vec<RecordedStart>,
}

/// Recorded start of two servers.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RecordedStart {
    /// Time that the start took, in microseconds.
    pub took_us: u64,
    /// Number of slices of the start.
    pub slices: usize,
    /// Log ratio, candidate over baseline, of each metric that the start has.
    pub log_ratios: BTreeMap<String, f64>,
}

/// Outcome of a gate in one or more scenarios.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Time from the gate's begin to the first call that one of the wanted metrics became worse, in
    /// microseconds; `None` where there is none.
    pub found_us: Option<u64>,
    /// True where any release-blocking metric was called worse.
    pub any_worse: bool,
    /// True where every release-blocking metric was called unchanged: in its scenario, or over all
    /// scenarios together while its scenario left it open.
    pub all_unchanged: bool,
    /// Time that the gate took, in microseconds.
    pub spent_us: u64,
}

impl Outcome {
    /// Summarizes a gate from the judgements of its scenarios in the order of time, each with the
    /// time that the scenario took in microseconds, and from those over all scenarios together.
    /// `wanted` names the metrics that are expected to become worse.
    pub fn of(scenarios: &[(u64, Vec<Judged>)], pooled: &[Judged], wanted: &[String]) -> Self {
        let judges = |(_, judged): &(u64, Vec<Judged>)| judged.iter().any(|one| one.gates);
        let all_unchanged = !scenarios.is_empty() && scenarios.iter().all(judges);
        let mut outcome = Self { all_unchanged, ..Self::default() };
        for (took_us, judged) in scenarios {
            for one in judged.iter().filter(|one| one.gates) {
                outcome.add(one, pooled, wanted);
            }
            outcome.spent_us += took_us;
        }
        let spent_us = std::mem::take(&mut outcome.spent_us);
        pooled.iter().for_each(|one| outcome.add(one, &[], wanted));
        Self { spent_us, ..outcome }
    }

    /// Adds the call about one metric, in a scenario that began when `spent_us` were spent.
    fn add(&mut self, one: &Judged, pooled: &[Judged], wanted: &[String]) {
        let is_worse = one.call == Call::Worse;
        self.any_worse |= is_worse;
        let together = pooled.iter().find(|all| all.metric.name == one.metric.name);
        self.all_unchanged &= match one.call {
            Call::Open => together.is_some_and(|all| all.call == Call::Unchanged),
            call => call == Call::Unchanged,
        };
        if is_worse && wanted.iter().any(|name| name == one.metric.name) {
            let at_us = self.spent_us + one.extent.spent_us;
            self.found_us = Some(self.found_us.map_or(at_us, |us| us.min(at_us)));
        }
    }
}

/// Returns the effects in log units that a change by `size_pct` percent for the worse has on
/// `metrics`, by name; a name that no metric has is left out.
pub fn effects(metrics: &[String], size_pct: f64) -> BTreeMap<String, f64> {
    let log = log_of(size_pct);
    let of = |name: &String| {
        let better = schema::metric::by_name(name)?.better;
        Some((name.clone(), if better == Better::Higher { -log } else { log }))
    };
    metrics.iter().filter_map(of).collect()
}

/// Replays a gate once: its scenarios one after the other, each with an equal share of the time of
/// `budget_us` microseconds that is left. `effects` are added to the log ratios of the metrics with
/// these names.
pub fn replay(
    noise: &[Noise],
    effects: &BTreeMap<String, f64>,
    budget_us: u64,
    random: &mut SplitMix64,
) -> Outcome {
    let mut spent_us = 0;
    let mut scenarios: Vec<(u64, Vec<Judged>)> = Vec::new();
    let mut courses: Vec<Course<'_>> = Vec::new();
    for (index, one) in noise.iter().enumerate() {
        let share_us = share_us(budget_us, spent_us, noise.len() - index);
        let course = drawn(one, effects, share_us, random);
        let judged = judge_course(&course);
        // Calls are final, so that judging all starts at once calls what judging one by one calls.
        let last_us = judged.iter().filter(|one| one.gates).map(|one| one.extent.spent_us).max();
        let end_us = course.ends_us.last().copied().unwrap_or(0);
        let took_us = last_us.filter(|_| is_decided(&judged)).unwrap_or(end_us);
        spent_us += took_us;
        scenarios.push((took_us, judged));
        courses.push(course.until(took_us));
    }
    let planned: Vec<pooled::Planned<'_>> =
        noise.iter().map(|one| ("", one.arrival.as_ref())).collect();
    let pooled = pooled::judge_courses(&courses, noise.len(), &planned);
    let wanted: Vec<String> = effects.keys().cloned().collect();
    Outcome::of(&scenarios, &pooled, &wanted)
}

/// Draws starts until the budget is spent.
fn drawn<'a>(
    noise: &'a Noise,
    effects: &'a BTreeMap<String, f64>,
    budget_us: u64,
    random: &mut SplitMix64,
) -> Course<'a> {
    let mut drawn: Vec<&RecordedStart> = Vec::new();
    let mut ends_us = Vec::new();
    let mut end_us = 0;
    let is_usable = noise.starts.iter().any(|start| start.took_us > 0);
    while is_usable && end_us < budget_us {
        let index = random.draw() % noise.starts.len() as u64;
        let Some(start) = usize::try_from(index).ok().and_then(|at| noise.starts.get(at)) else {
            break;
        };
        end_us += start.took_us;
        drawn.push(start);
        ends_us.push(end_us);
    }
    Course {
        arrival: noise.arrival.as_ref(),
        family: noise.family,
        budget_us,
        slices: drawn.iter().map(|start| start.slices).collect(),
        ends_us,
        log_ratios: Box::new(move |name, count| {
            let effect = effects.get(name).copied().unwrap_or(0.0);
            let found = drawn[..count].iter().filter_map(|start| start.log_ratios.get(name));
            found.map(|log| log + effect).collect()
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Noise of a closed loop of which every start takes ten seconds and only throughput and memory
    /// are known.
    fn noise() -> Vec<Noise> {
        let start = |index: u32| RecordedStart {
            took_us: 10_000_000,
            slices: 40,
            log_ratios: [
                ("output_tokens_per_s", 0.01 * (f64::from(index) - 9.5) / 9.5),
                ("rss_bytes_max", 0.0001 * f64::from(index % 3)),
            ]
            .map(|(name, log)| (name.to_owned(), log))
            .into(),
        };
        let one = Noise { arrival: None, family: 4, starts: (0..20).map(start).collect() };
        vec![one.clone(), one]
    }

    fn replayed(size_pct: f64) -> Vec<Outcome> {
        let effects = effects(&["output_tokens_per_s".to_owned()], size_pct);
        let mut random = SplitMix64(1);
        (0..50).map(|_| replay(&noise(), &effects, 600_000_000, &mut random)).collect()
    }

    #[test]
    fn replays_with_one_seed_are_the_same() {
        assert_eq!(replayed(3.0), replayed(3.0));
    }

    #[test]
    fn an_effect_is_found_and_its_absence_is_unchanged() {
        let found = replayed(5.0);
        assert!(found.iter().all(|one| one.any_worse), "{found:?}");
        // The first look is after a fifth of half the budget.
        assert!(found.iter().all(|one| one.found_us == Some(60_000_000)), "{found:?}");
        let same = replayed(0.0);
        let unchanged = same.iter().filter(|one| one.all_unchanged).count();
        assert!(unchanged >= 48 && !same.iter().any(|one| one.any_worse), "{same:?}");
        assert!(same.iter().all(|one| one.spent_us <= 610_000_000), "{same:?}");
    }

    #[test]
    fn an_effect_worsens_a_metric_in_its_direction() {
        let names = ["output_tokens_per_s", "tpot_us_p50", "beauty"].map(str::to_owned);
        let found = effects(&names, 5.0);
        assert!((found["output_tokens_per_s"] + 1.05_f64.ln()).abs() < 1e-12, "{found:?}");
        assert!((found["tpot_us_p50"] - 1.05_f64.ln()).abs() < 1e-12, "{found:?}");
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn without_recorded_starts_nothing_is_decided() {
        let none = [Noise { arrival: None, family: 2, starts: Vec::new() }];
        let found = replay(&none, &BTreeMap::new(), 1_000_000, &mut SplitMix64(1));
        assert!(!found.any_worse && !found.all_unchanged, "{found:?}");
    }
}
