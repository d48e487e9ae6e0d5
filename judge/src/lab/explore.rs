//! Exploration of a lab: from its file to its conclusion. Decides which rounds are run, which
//! candidates drop out, and which are confirmed.

use schema::lab::{Candidate, Combine, LabEngine, LabFile, LabStage, Round};
use schema::metric::{Better, by_name};
use schema::policy::PolicyFile;
use serde::Serialize;

use super::arm::{Arm, Found, Outcomes, Row, Rules, halve};
use super::candidates::{alone, grid, together};
use super::factorial::{Factorial, Screening};
use crate::diff::estimate::log_of;
use crate::diff::judge::holm;
use crate::records::QueryError;

/// Number of candidates in the confirmation round of a lab without a factorial design: the baseline,
/// the best and the runner-up.
const FINALISTS: usize = 3;

/// Reason why a stage did not run its candidates.
const SPENT: &str = "the budget was spent before";

/// Reason why a stage did not run the candidates of an engine with a limit of its own.
const ENGINE_SPENT: &str = "the engine's own limit on runs was reached before";

/// Conclusion of a lab: its recommendation and the evidence for it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Conclusion {
    /// Candidate that the lab recommends: the best confirmed one, else the baseline. `None` where
    /// the baseline failed or breaks a bound, and no other candidate was confirmed.
    pub recommended: Option<Candidate>,
    /// Results of the confirmation stage against the baseline, for the selected candidates; empty
    /// without a confirmation.
    pub confirmed: Vec<Confirmed>,
    /// Effects that a factorial design has shown; `None` for a lab without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub screening: Option<Screening>,
    /// Results of every candidate in every stage before the confirmation.
    pub rows: Vec<Row>,
    /// Number of runs that the lab's rounds asked for, including those that were not made because a
    /// candidate had failed.
    pub runs: u32,
}

/// Result of a candidate in the confirmation stage, on fresh server starts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Confirmed {
    /// Effect and finding of the candidate in the confirmation stage.
    #[serde(flatten)]
    pub row: Row,
    /// One-sided p-value of the hypothesis that the candidate has no gain, adjusted by Holm's
    /// procedure.
    pub p_adjusted: f64,
    /// True when the candidate ran, meets the bounds, and its gain is confirmed: at least half the
    /// minimum effect, and not explained by chance. Where the baseline breaks a bound, the size of
    /// the gain does not matter.
    pub is_gain: bool,
}

/// Checks that a budget of `runs_max` runs is large enough for a conclusion.
///
/// # Errors
///
/// The budget, or the limit that the lab file gives an engine, is too small; the error says how
/// many runs would suffice.
pub fn check_budget(lab: &LabFile, policy: &PolicyFile, runs_max: u32) -> Result<(), QueryError> {
    check_limits(lab, policy)?;
    let least = runs_min(lab, policy);
    if runs_max >= least {
        return Ok(());
    }
    Err(QueryError(format!(
        "a budget of {runs_max} launches concludes nothing: {least} judge every option once and \
         confirm the best\nhint: allow {least}, or leave out options or profiles"
    )))
}

/// Checks that the limit on runs that the lab file gives an engine suffices to judge each of the
/// engine's options once.
///
/// # Errors
/// A limit is too small; the error says how many runs would suffice.
pub fn check_limits(lab: &LabFile, policy: &PolicyFile) -> Result<(), QueryError> {
    let profiles = count(lab.profiles.len());
    for (index, LabEngine { id, runs, .. }) in lab.engines.iter().enumerate() {
        let least = options_once(lab, policy, index).saturating_mul(profiles);
        if let Some(runs) = runs.filter(|runs| *runs < least) {
            return Err(QueryError(format!(
                "{runs} runs for the options of `{id}` decide nothing: {least} judge every option \
                 once\nhint: allow {least} as `runs` of this engine in the lab's file, or leave out \
                 options or profiles"
            )));
        }
    }
    Ok(())
}

/// Returns the smallest number of runs after which a lab can conclude anything: every engine, and
/// every option of the engine with the most options, is judged once, and the best candidates are
/// confirmed.
pub fn runs_min(lab: &LabFile, policy: &PolicyFile) -> u32 {
    let profiles = count(lab.profiles.len());
    let options = (0..lab.engines.len()).map(|engine| options_once(lab, policy, engine));
    let screens =
        judged_once(lab.engines.len() - 1, policy).saturating_add(options.max().unwrap_or(0));
    let finals = count(finalists_max(lab)).saturating_mul(policy.confirm_pairs);
    screens.saturating_add(finals).saturating_mul(profiles)
}

/// Returns the number of runs, under one profile, that judge every option of `engine` once.
fn options_once(lab: &LabFile, policy: &PolicyFile, engine: usize) -> u32 {
    match Factorial::of(lab, engine) {
        Some(factorial) => factorial.runs(),
        None => judged_once(first_candidates(lab, engine).len(), policy),
    }
}

/// Returns the number of runs, under one profile, that judge `candidates` candidates once beside
/// their reference.
fn judged_once(candidates: usize, policy: &PolicyFile) -> u32 {
    match candidates {
        0 => 0,
        _ => count(candidates).saturating_add(1).saturating_mul(policy.pairs_min),
    }
}

/// Returns the largest number of candidates in the confirmation round of a lab, with the baseline.
pub(super) fn finalists_max(lab: &LabFile) -> usize {
    if lab.combine != Combine::Factorial {
        return FINALISTS;
    }
    let engines = 0..lab.engines.len();
    let designs = engines.filter_map(|engine| Factorial::of(lab, engine));
    // An engine that is better than the first competes with its default flags, too.
    let engine = usize::from(lab.engines.len() > 1);
    1 + designs.map(|design| design.confirmed()).max().unwrap_or(0) + engine
}

/// Converts a number of things to `u32`; a number that is too large becomes `u32::MAX`.
pub(super) fn count(items: usize) -> u32 {
    u32::try_from(items).unwrap_or(u32::MAX)
}

/// Returns the candidates of the first stage of an engine's options: each option alone, or all
/// combinations, as `combine` of the lab file says. A factorial design has candidates of its own.
pub(super) fn first_candidates(lab: &LabFile, engine: usize) -> Vec<Candidate> {
    match lab.combine {
        Combine::OneAtATime | Combine::Staged | Combine::Factorial => alone(lab, engine),
        Combine::Grid => grid(lab, engine),
    }
}

/// Explores a lab within `runs_max` runs. `measure` returns the outcomes of a round's candidates,
/// in their order. The exploration is deterministic: the same outcomes lead to the same rounds and
/// the same conclusion, so that records alone show how far a lab has come.
///
/// # Errors
///
/// The first error of `measure`.
pub fn explore<E>(
    lab: &LabFile,
    policy: &PolicyFile,
    runs_max: u32,
    measure: impl FnMut(&Round) -> Result<Vec<Outcomes>, E>,
) -> Result<Conclusion, E> {
    let metric = by_name(&lab.objective.metric);
    let rules = Rules {
        objective: &lab.objective,
        profiles: &lab.profiles,
        policy,
        better: metric.map_or(Better::Higher, |metric| metric.better),
        floor: log_of(metric.map_or(0.0, |metric| metric.floor_pct)),
    };
    let (left, left_of_engine) = (runs_max, u32::MAX);
    let baseline = Arm::new(LabFile::plain(0));
    let (runs, block, rows, screening) = (0, 0, Vec::new(), None);
    let mut lab = Exploration {
        lab,
        rules,
        left,
        left_of_engine,
        runs,
        block,
        baseline,
        rows,
        screening,
        measure,
    };
    let engine = lab.engines()?;
    let finalists = lab.options(engine)?;
    lab.conclude(engine, finalists)
}

struct Exploration<'a, M> {
    lab: &'a LabFile,
    rules: Rules<'a>,
    /// Number of runs that the lab's budget still allows.
    left: u32,
    /// Number of runs that the engine whose options are tried may still take by its own limit.
    left_of_engine: u32,
    runs: u32,
    /// Number of the next block of runs; blocks are numbered over the whole lab.
    block: u32,
    /// Evidence about the lab's first engine without options (with the flags that the lab file
    /// gives it), measured beside itself, which shows whether that engine runs and meets the
    /// bounds.
    baseline: Arm,
    rows: Vec<Row>,
    screening: Option<Screening>,
    measure: M,
}

impl<E, M: FnMut(&Round) -> Result<Vec<Outcomes>, E>> Exploration<'_, M> {
    /// Returns the index of the engine that is best without options, with the flags that the lab
    /// file gives it; 0, the baseline's, where no other engine gained over it.
    fn engines(&mut self) -> Result<usize, E> {
        let others = (1..self.lab.engines.len()).map(LabFile::plain).collect();
        let arms = self.screen(LabStage::Engines, &LabFile::plain(0), others)?;
        Ok(best(&arms).map_or(0, |arm| arm.candidate.engine))
    }

    /// Screens the options of `engine` against the engine without options, and in a staged lab
    /// combinations of those that helped, or all options in a factorial design. Returns the
    /// candidates that are worth confirming.
    fn options(&mut self, engine: usize) -> Result<Vec<Candidate>, E> {
        let limit = self.lab.engines.get(engine).and_then(|engine| engine.runs);
        self.left_of_engine = limit.unwrap_or(u32::MAX);
        if let Some(factorial) = Factorial::of(self.lab, engine) {
            return self.factorial(engine, &factorial);
        }
        let reference = LabFile::plain(engine);
        let candidates = first_candidates(self.lab, engine);
        let mut arms = self.screen(LabStage::Options, &reference, candidates)?;
        // Options that did not help alone are not combined: trying every pair would cost too many
        // runs.
        if self.lab.combine == Combine::Staged {
            let mut helped: Vec<&Arm> = arms.iter().filter(|arm| is_gain(arm)).collect();
            helped.sort_by(|a, b| b.mean().total_cmp(&a.mean()));
            let helped: Vec<Candidate> = helped.iter().map(|arm| arm.candidate.clone()).collect();
            let pairs = together(&helped);
            arms.extend(self.screen(LabStage::Combinations, &reference, pairs)?);
        }
        Ok(finalists(arms, self.least(), self.rules.floor))
    }

    /// Runs the configurations of a factorial design, and returns the candidates that are worth
    /// confirming by its estimates.
    fn factorial(&mut self, engine: usize, factorial: &Factorial<'_>) -> Result<Vec<Candidate>, E> {
        let (stage, candidates) = (LabStage::Factorial, factorial.candidates());
        let repeats = factorial.design.repeats();
        if let Some(reason) = self.refusal(candidates.len(), repeats) {
            let options = alone(self.lab, engine).into_iter();
            self.rows.extend(options.map(|option| not_explored(stage, option, reason)));
            return Ok(Vec::new());
        }
        let found = self.round(stage, candidates.clone(), repeats)?;
        let rules = self.rules;
        let row = |(candidate, outcomes): (Candidate, &Outcomes)| {
            let mut arm = Arm::new(candidate);
            // A design has no reference: it says as much where the baseline is what failed.
            if found[0].failure().is_none() || outcomes.failure().is_some() {
                arm.take(outcomes, &found[0], &rules);
            }
            arm.found.get_or_insert(Found::Screened);
            arm.row(stage, rules.policy)
        };
        self.rows.extend(candidates.into_iter().zip(&found).skip(1).map(row));
        for (option, high) in factorial.left_out() {
            let reason = format!("the design has `{high}` of this axis");
            self.rows.push(not_explored(stage, option, &reason));
        }
        // Single runs scatter by about as much as the minimum effect: less than that is no loss.
        let least = if self.least().is_finite() { -rules.floor } else { f64::NEG_INFINITY };
        let (screening, selected) = factorial.screened(&found, &rules, least);
        self.screening = Some(screening);
        Ok(selected)
    }

    /// Measures candidates of a stage beside a reference until each is decided, has dropped out, or
    /// the budget ends, and returns the evidence about each.
    fn screen(
        &mut self,
        stage: LabStage,
        reference: &Candidate,
        candidates: Vec<Candidate>,
    ) -> Result<Vec<Arm>, E> {
        let policy = self.rules.policy;
        let mut arms: Vec<Arm> = candidates.into_iter().map(Arm::new).collect();
        let mut done = 0;
        for repeats in [policy.pairs_min, policy.screen_pairs, policy.confirm_pairs] {
            let open: Vec<usize> =
                (0..arms.len()).filter(|index| arms[*index].found.is_none()).collect();
            let mut asked = vec![reference.clone()];
            asked.extend(open.iter().map(|index| arms[*index].candidate.clone()));
            let more = repeats.saturating_sub(done);
            if open.is_empty() || more == 0 {
                continue;
            }
            if let Some(reason) = self.refusal(asked.len(), more) {
                if done == 0 {
                    arms.iter_mut().for_each(|arm| {
                        arm.found = Some(Found::NotExplored { reason: reason.to_owned() });
                    });
                }
                break;
            }
            // The reference is launched again in every round: ratios are taken within a round
            // only.
            let found = self.round(stage, asked, more)?;
            for (index, outcomes) in open.into_iter().zip(&found[1..]) {
                arms[index].take(outcomes, &found[0], &self.rules);
            }
            halve(&mut arms);
            done = repeats;
        }
        self.rows.extend(arms.iter().map(|arm| arm.row(stage, policy)));
        Ok(arms)
    }

    /// Returns why the runs of a further round may not be made: the engine's own limit on runs, or
    /// the budget. `None` where they may.
    fn refusal(&self, candidates: usize, repeats: u32) -> Option<&'static str> {
        let launches = self.launches(candidates, repeats);
        // The confirmation round is reserved: without it the lab could not recommend anything.
        let finals = self.launches(finalists_max(self.lab), self.rules.policy.confirm_pairs);
        if launches.saturating_add(finals) > self.left {
            return Some(SPENT);
        }
        (launches > self.left_of_engine).then_some(ENGINE_SPENT)
    }

    fn launches(&self, candidates: usize, repeats: u32) -> u32 {
        count(candidates.saturating_mul(self.lab.profiles.len())).saturating_mul(repeats)
    }

    fn round(
        &mut self,
        stage: LabStage,
        candidates: Vec<Candidate>,
        repeats: u32,
    ) -> Result<Vec<Outcomes>, E> {
        let launches = self.launches(candidates.len(), repeats);
        let round = Round { stage, candidates, repeats, block: self.block, runs: self.runs };
        self.block += repeats * count(self.lab.profiles.len());
        self.left = self.left.saturating_sub(launches);
        self.left_of_engine = self.left_of_engine.saturating_sub(launches);
        self.runs += launches;
        let found = (self.measure)(&round)?;
        // Beside itself the baseline gains nothing, but shows whether it runs and meets the
        // bounds.
        if round.candidates[0] == self.baseline.candidate && !is_unfit(&self.baseline) {
            self.baseline.take(&found[0], &found[0], &self.rules);
        }
        Ok(found)
    }

    /// Runs the finalists, if there are any, again beside the baseline, and returns the lab's
    /// conclusion. The runs are fresh, because selection favors candidates that were lucky.
    fn conclude(mut self, engine: usize, mut finalists: Vec<Candidate>) -> Result<Conclusion, E> {
        // The best engine competes with its default flags too, unless it is the baseline itself.
        if engine != 0 && finalists.len() + 1 < finalists_max(self.lab) {
            finalists.push(LabFile::plain(engine));
        }
        let baseline = LabFile::plain(0);
        if finalists.is_empty() {
            let recommended = (!is_unfit(&self.baseline)).then_some(baseline);
            let Self { screening, rows, runs, .. } = self;
            return Ok(Conclusion { recommended, confirmed: Vec::new(), screening, rows, runs });
        }
        let mut asked = vec![baseline.clone()];
        asked.extend(finalists.iter().cloned());
        let found = self.round(LabStage::Confirm, asked, self.rules.policy.confirm_pairs)?;
        let mut arms: Vec<Arm> = finalists.into_iter().map(Arm::new).collect();
        for (arm, outcomes) in arms.iter_mut().zip(&found[1..]) {
            arm.take(outcomes, &found[0], &self.rules);
        }
        // Half, because an effect that was selected for its size comes out smaller when it is
        // measured again.
        let confirmed = confirmed(&arms, &self.rules, self.least() / 2.0);
        let recommended = recommended(&arms, &confirmed, self.rules.floor)
            .or_else(|| (!is_unfit(&self.baseline)).then_some(baseline));
        let Self { screening, rows, runs, .. } = self;
        Ok(Conclusion { recommended, confirmed, screening, rows, runs })
    }

    /// Returns the smallest gain, in log units, that is worth confirming: the minimum effect, or
    /// any gain where the baseline breaks the bounds.
    fn least(&self) -> f64 {
        match self.baseline.found {
            Some(Found::OutOfBounds { .. }) => f64::NEG_INFINITY,
            _ => self.rules.floor,
        }
    }
}

/// True for a candidate that failed or breaks a bound.
fn is_unfit(arm: &Arm) -> bool {
    matches!(arm.found, Some(Found::Failed(_) | Found::OutOfBounds { .. }))
}

/// Returns the row of an option that a stage did not run.
fn not_explored(stage: LabStage, candidate: Candidate, reason: &str) -> Row {
    let found = Found::NotExplored { reason: reason.to_owned() };
    Row { stage, candidate, effect: None, profiles: Vec::new(), found }
}

fn is_gain(arm: &Arm) -> bool {
    arm.found == Some(Found::Gain)
}

/// Returns the candidate with the highest gain; `None` where no candidate gained.
fn best(arms: &[Arm]) -> Option<&Arm> {
    arms.iter().filter(|arm| is_gain(arm)).max_by(|a, b| a.mean().total_cmp(&b.mean()))
}

/// Selects the best candidate and the runner-up among those that ran, meet the bounds and are
/// better by at least `least` (log units). Of the candidates within half the minimum effect of the
/// best, the one with the fewest options comes first.
fn finalists(mut pool: Vec<Arm>, least: f64, floor: f64) -> Vec<Candidate> {
    pool.retain(|arm| {
        let is_open =
            // A dropped candidate may be a finalist: it was dropped for its rank, not refuted.
            matches!(arm.found, None | Some(Found::Gain | Found::NoGain | Found::Dropped));
        is_open && arm.mean() >= least && arm.mean().is_finite()
    });
    pool.sort_by(|a, b| b.mean().total_cmp(&a.mean()));
    let Some(top) = pool.first().map(Arm::mean) else { return Vec::new() };
    let as_good = pool.iter().take_while(|arm| arm.mean() >= top - floor / 2.0).enumerate();
    let simplest = as_good.min_by_key(|(_, arm)| arm.candidate.options.len());
    let first = pool.remove(simplest.map_or(0, |(index, _)| index));
    let others = pool.into_iter().map(|arm| arm.candidate);
    std::iter::once(first.candidate).chain(others).take(FINALISTS - 1).collect()
}

/// Judges the candidates of the confirmation round. A gain must reach `least` (log units) and not
/// be explained by chance. Where `least` is negative infinity, it is enough to run and to meet the
/// bounds.
fn confirmed(arms: &[Arm], rules: &Rules<'_>, least: f64) -> Vec<Confirmed> {
    let policy = rules.policy;
    let p: Vec<f64> =
        arms.iter().map(|arm| arm.score.fit().map_or(1.0, |fit| fit.p_above(0.0))).collect();
    let judged = arms.iter().zip(holm(&p));
    judged
        .map(|(arm, p_adjusted)| {
            let is_open = matches!(arm.found, None | Some(Found::Gain | Found::NoGain));
            let by_chance = least.is_finite() && p_adjusted >= policy.alpha;
            let is_gain = is_open && !by_chance && arm.mean() >= least;
            Confirmed { row: arm.row(LabStage::Confirm, policy), p_adjusted, is_gain }
        })
        .collect()
}

/// Returns the candidate to recommend: the one with the fewest options among the confirmed
/// candidates whose gain is at most half the minimum effect below the highest. `None` without a
/// confirmed candidate.
fn recommended(arms: &[Arm], confirmed: &[Confirmed], floor: f64) -> Option<Candidate> {
    let mut stands: Vec<&Arm> =
        arms.iter().zip(confirmed).filter(|(_, found)| found.is_gain).map(|(arm, _)| arm).collect();
    stands.sort_by(|a, b| b.mean().total_cmp(&a.mean()));
    let top = stands.first()?.mean();
    let as_good = stands.iter().take_while(|arm| arm.mean() >= top - floor / 2.0);
    as_good.min_by_key(|arm| arm.candidate.options.len()).map(|arm| arm.candidate.clone())
}
