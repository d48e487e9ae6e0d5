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

/// Computes the least and the largest number of runs and rounds of a lab, and the smallest budget
/// that leads to a conclusion. `quoted` is the citation (id, revision, hash) of `policy` that
/// campaigns record.
pub fn outline(lab: &LabFile, policy: &PolicyFile, quoted: &Policy) -> LabOutline {
    let options = (0..lab.engines.len()).map(|engine| first_candidates(lab, engine));
    let options = options.max_by_key(Vec::len).unwrap_or_default();
    let pairs = if lab.combine == Combine::Staged { together(&options).len() } else { 0 };
    let designs = (0..lab.engines.len()).filter_map(|engine| Factorial::of(lab, engine));
    let design = designs.map(|factorial| factorial.runs()).max();
    let design = design.map(|runs| Screen { runs_least: runs, runs_most: runs, rounds_most: 1 });
    let options = design.or_else(|| screen(options.len(), policy));
    let engines = screen(lab.engines.len() - 1, policy);
    let certain: Vec<Screen> = engines.into_iter().chain(options).collect();
    let possible: Vec<Screen> = certain.iter().copied().chain(screen(pairs, policy)).collect();
    let profiles = count(lab.profiles.len());
    let runs_last =
        count(finalists_max(lab)).saturating_mul(policy.confirm_pairs).saturating_mul(profiles);
    let least: u32 = certain.iter().map(|screen| screen.runs_least).sum();
    let most = possible.iter().fold(0_u32, |sum, screen| sum.saturating_add(screen.runs_most));
    LabOutline {
        runs_least: least.saturating_mul(profiles),
        runs_enough: runs_min(lab, policy),
        runs_most: most.saturating_mul(profiles).saturating_add(runs_last),
        runs_last,
        rounds_least: count(certain.len()),
        rounds_most: possible.iter().map(|screen| screen.rounds_most).sum::<u32>() + 1,
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
    use super::*;
    use crate::diff::policy::standard;

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
