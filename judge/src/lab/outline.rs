//! Cost estimate of a lab from its file alone: least and largest number of runs and rounds.

use schema::lab::{Combine, LabFile, LabOutline};
use schema::policy::{Policy, PolicyFile};

use super::candidates::together;
use super::explore::{count, finalists_max, first_candidates, runs_min};
use super::factorial::Factorial;

/// Cost of screening candidates beside one reference under one profile: the least and the largest
/// number of runs, and the largest number of rounds.
#[derive(Debug, Clone, Copy)]
struct Screen {
    runs_least: u32,
    runs_most: u32,
    rounds_most: u32,
}

/// Runs in which a lab tries the options of one engine, if that engine is the best.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OptionRuns {
    /// Smallest number of runs: every decision falls early, and no option helps.
    pub least: u32,
    /// Largest number of runs that the lab might want: no decision falls before the last repeat, and
    /// every option helps.
    pub wanted: u32,
    /// Largest number of runs within the engine's own limit.
    pub most: u32,
}

/// Returns the runs in which a lab tries the options of `engine`; `None` for an engine without
/// options.
pub(super) fn option_runs(lab: &LabFile, policy: &PolicyFile, engine: usize) -> Option<OptionRuns> {
    let profiles = count(lab.profiles.len());
    let Options { certain, possible } = Options::of(lab, policy, engine)?;
    let runs = |screen: Screen| screen.runs_most.saturating_mul(profiles);
    let wanted = runs(certain).saturating_add(possible.map_or(0, runs));
    let limit = lab.engines.get(engine).and_then(|engine| engine.runs);
    let least = certain.runs_least.saturating_mul(profiles);
    Some(OptionRuns { least, wanted, most: limit.map_or(wanted, |limit| limit.min(wanted)) })
}

/// Cost of trying the options of one engine under one profile.
#[derive(Debug, Clone, Copy)]
struct Options {
    /// Cost of the options themselves, or of a factorial design of them.
    certain: Screen,
    /// Cost of combinations of those that help, in a staged lab.
    possible: Option<Screen>,
}

impl Options {
    /// Computes the cost of the options of `engine`; `None` for an engine without options.
    fn of(lab: &LabFile, policy: &PolicyFile, engine: usize) -> Option<Self> {
        if let Some(factorial) = Factorial::of(lab, engine) {
            let runs = factorial.runs();
            let certain = Screen { runs_least: runs, runs_most: runs, rounds_most: 1 };
            return Some(Self { certain, possible: None });
        }
        let options = first_candidates(lab, engine);
        let pairs = if lab.combine == Combine::Staged { together(&options).len() } else { 0 };
        let certain = screen(options.len(), policy)?;
        Some(Self { certain, possible: screen(pairs, policy) })
    }

    fn rounds_most(self) -> u32 {
        self.certain.rounds_most + self.possible.map_or(0, |screen| screen.rounds_most)
    }
}

/// Computes the least and the largest number of runs and rounds of a lab, and the smallest budget
/// that leads to a conclusion. `quoted` is the citation (id, revision, hash) of `policy` that
/// campaigns record.
pub fn outline(lab: &LabFile, policy: &PolicyFile, quoted: &Policy) -> LabOutline {
    let profiles = count(lab.profiles.len());
    let engines = screen(lab.engines.len() - 1, policy);
    let of_engines = |runs: fn(Screen) -> u32| engines.map_or(0, runs).saturating_mul(profiles);
    // Only the options of the best engine are tried: which that will be is open, so that the most
    // expensive counts.
    let all = || 0..lab.engines.len();
    let options: Vec<_> = all().filter_map(|engine| option_runs(lab, policy, engine)).collect();
    let least = options.iter().map(|runs| runs.least).max().unwrap_or(0);
    let most = options.iter().map(|runs| runs.most).max().unwrap_or(0);
    let rounds = all().filter_map(|engine| Options::of(lab, policy, engine));
    let rounds = rounds.map(Options::rounds_most).max().unwrap_or(0);
    let runs_last =
        count(finalists_max(lab)).saturating_mul(policy.confirm_pairs).saturating_mul(profiles);
    LabOutline {
        runs_least: of_engines(|screen| screen.runs_least).saturating_add(least),
        runs_enough: runs_min(lab, policy),
        runs_most: of_engines(|screen| screen.runs_most)
            .saturating_add(most)
            .saturating_add(runs_last),
        runs_last,
        rounds_least: u32::from(engines.is_some()) + u32::from(!options.is_empty()),
        rounds_most: engines.map_or(0, |screen| screen.rounds_most) + rounds + 1,
        policy: quoted.clone(),
    }
}

/// Computes the cost of screening `candidates` candidates beside one reference; `None` for 0
/// candidates. At worst, successive halving drops half of them after each round.
fn screen(candidates: usize, policy: &PolicyFile) -> Option<Screen> {
    if candidates == 0 {
        return None;
    }
    let (mut open, mut done) = (candidates, 0);
    let mut screen = Screen { runs_least: 0, runs_most: 0, rounds_most: 0 };
    for repeats in [policy.pairs_min, policy.screen_pairs, policy.confirm_pairs] {
        let more = repeats.saturating_sub(done);
        if more == 0 {
            continue;
        }
        let runs = count(open + 1).saturating_mul(more);
        if done == 0 {
            screen.runs_least = runs;
        }
        screen.runs_most = screen.runs_most.saturating_add(runs);
        screen.rounds_most += 1;
        // At worst no candidate is decided, and only halving drops some.
        (open, done) = (open.div_ceil(2), repeats);
    }
    Some(screen)
}

#[cfg(test)]
mod tests {
    use schema::lab::LabOption;
    use schema::scenario::Arrival;

    use super::*;
    use crate::diff::policy::standard;
    use crate::lab::text::{designs, shares, without_gain};

    fn lab(combine: &str) -> LabFile {
        schema::lab::parse(&format!(
            "question = \"Which?\"\nrev = 1\ntarget = \"cpu\"\nmodel = \"m\"\n\
             profiles = [\"p\", \"q\"]\nobjective = {{ metric = \"total_tokens_per_s\" }}\n\
             combine = \"{combine}\"\nbudget = {{ runs = 100 }}\n\
             engines = [{{ id = \"a\", version = \"v1\" }}, {{ id = \"b\", version = \"v1\" }}]\n\
             [[axes]]\nname = \"x\"\nengine = \"a\"\n\
             options = [{{ name = \"1\", flags = [\"--x\"] }}]\n\
             [[axes]]\nname = \"y\"\nengine = \"a\"\n\
             options = [{{ name = \"1\", flags = [\"--y\"] }}]\n"
        ))
        .unwrap()
    }

    #[test]
    fn a_lab_lies_between_what_it_needs_and_what_it_may_take() {
        let policy = standard();
        let of = |combine| outline(&lab(combine), &policy.file, &policy.quoted);
        // Three pairs of two engines, then of two options beside their baseline, under two
        // profiles.
        let staged = of("staged");
        assert_eq!((staged.runs_least, staged.runs_enough), (2 * (6 + 9), 2 * (6 + 9 + 24)));
        // Eight pairs of each stage, with the worse option dropped after three pairs; then both
        // options at once.
        assert_eq!(staged.runs_most, 2 * (16 + (9 + 4 + 6) + 16 + 24));
        assert_eq!((staged.rounds_least, staged.rounds_most), (2, 10));
        assert_eq!(of("one-at-a-time").runs_most, 2 * (16 + 19 + 24));
        assert_eq!(of("grid").runs_least, 2 * (6 + 12));
    }

    #[test]
    fn an_engines_own_limit_bounds_what_its_options_take() {
        let policy = standard();
        let mut lab = lab("staged");
        let runs = |lab: &LabFile, engine| option_runs(lab, &policy.file, engine);
        // Three pairs of two options with their baseline at least; then what the lab's outline has.
        let wanted = 2 * ((9 + 4 + 6) + 16);
        let free = OptionRuns { least: 2 * 9, wanted, most: wanted };
        assert_eq!((runs(&lab, 0), runs(&lab, 1)), (Some(free), None));
        lab.engines[0].runs = Some(40);
        assert_eq!(runs(&lab, 0), Some(OptionRuns { most: 40, ..free }));
        let outline = outline(&lab, &policy.file, &policy.quoted);
        assert_eq!(outline.runs_most, 2 * 16 + 40 + 2 * 24);
        let beside = "6 to 16 runs beside the other engines";
        let options = "18 to 40 runs for its options if it is the best (its own limit, of 70 that \
                       they might want)";
        assert_eq!(
            shares(&lab, &policy.file),
            [format!("a: {beside}, then {options}"), format!("b: {beside}")]
        );
        lab.engines[0].runs = Some(wanted + 1);
        assert_eq!(runs(&lab, 0), Some(free), "more than it can want");
    }

    #[test]
    fn a_plan_names_what_is_not_tried_and_where_nothing_can_be_gained() {
        let policy = standard();
        let mut lab = lab("factorial");
        assert!(!designs(&lab, &policy.file).iter().any(|line| line.contains("is not tried")));
        lab.axes[0].options.push(LabOption { name: "2".into(), flags: vec!["--x=2".into()] });
        lab.axes[0].high = Some("1".into());
        let lines = designs(&lab, &policy.file);
        assert_eq!(lines[1], "x 2 is not tried: the design has `1` of this axis", "{lines:?}");
        let closed = Arrival::Closed { concurrency: 4 };
        let rate = Arrival::Poisson { requests_per_s: 2.0, concurrency_max: None };
        let of = |lab: &LabFile| without_gain(lab, [("p", &closed), ("q", &rate)].into_iter());
        let said = of(&lab).expect("a sentence");
        assert!(said.starts_with("no option can gain total_tokens_per_s under q, whose"), "{said}");
        lab.objective.metric = "tpot_us_p50".into();
        assert_eq!(of(&lab), None, "a latency can be gained");
    }

    #[test]
    fn a_factorial_design_has_as_many_runs_as_it_says_before() {
        let policy = standard();
        let outline = outline(&lab("factorial"), &policy.file, &policy.quoted);
        // Two options have four configurations, four times each; then each option, both, the other
        // engine and the baseline are confirmed.
        assert_eq!(outline.runs_least, 2 * (6 + 16));
        assert_eq!(outline.runs_enough, 2 * (6 + 16 + 40));
        assert_eq!(outline.runs_most, 2 * (16 + 16 + 40));
        assert_eq!((outline.rounds_least, outline.rounds_most), (2, 5));
    }
}
