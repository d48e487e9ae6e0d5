//! Plan of a lab: its file, its budget in runs, and the printed plan with engines, profiles and axes.
//!
//! Hours of a budget are converted to runs by the expected duration of a run, and again during the
//! lab by the measured one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use judge::diff::policy::standard;
use judge::lab::check_limits;
use judge::lab::text::{designs, shares, without_gain};
use schema::campaign::CampaignLab;
use schema::canonical::sha256_hex;
use schema::lab::{Combine, LabBudget, LabFile, LabOutline, Round};
use schema::scenario::id_of;
use schema::shell;
use whole_file::TEXT_MAX;

use crate::cli::{Execution, Lab, ReleaseBench};
use crate::console::about;
use crate::executor::LOCAL;
use crate::executor::journal::{PreparedLab, Reached, State};
use crate::executor::slurm::partition;
use crate::plan::brief::{CellBrief, Listing, basis};
use crate::plan::decide::Decided;
use crate::plan::estimate::{Estimate, assumed_us, tokens_per_s_assumed};
use crate::stop::{Stop, wrong_use};
use crate::world::World;

/// A lab's file with its id, path and SHA-256.
#[derive(Debug)]
pub struct LabSource {
    pub id: String,
    pub path: PathBuf,
    pub sha256: String,
    pub lab: LabFile,
}

/// Reads a lab's file: one of `suite/labs/` by its id, or any file by its path.
///
/// # Errors
/// The file does not exist, cannot be read or is invalid.
pub fn read(world: &World, name: &str) -> Result<LabSource, Stop> {
    let path = if is_path(name) { PathBuf::from(name) } else { world.catalog.path("lab", name)? };
    let text = whole_file::read_text(&path, "lab", TEXT_MAX)?;
    let unsound = |error| wrong_use!("`{}` is no lab: {error}", path.display());
    let lab = schema::lab::parse(&text).map_err(unsound)?;
    Ok(LabSource { id: id(name), sha256: sha256_hex(text.as_bytes()), path, lab })
}

/// Returns the id of a lab that is given by id or by path: for a path, the file name without its
/// extension.
pub fn id(name: &str) -> String {
    let stem = Path::new(name).file_stem().filter(|_| is_path(name));
    stem.map_or_else(|| name.to_owned(), |stem| stem.to_string_lossy().into_owned())
}

fn is_path(name: &str) -> bool {
    name.contains('/') || name.ends_with(".toml")
}

impl LabSource {
    /// Converts the lab to the flags of a `release-bench` that measures its engines side by side;
    /// the runs themselves are planned round by round.
    pub fn campaign(&self, flags: &Lab) -> ReleaseBench {
        let lab = &self.lab;
        let first = lab.engines.first();
        let others = lab.engines.iter().skip(1);
        ReleaseBench {
            release: first.map(|engine| engine.version.clone()),
            engine: first.map(|engine| engine.id.clone()).unwrap_or_default(),
            beside: others.map(|engine| (engine.id.clone(), engine.version.clone())).collect(),
            target: Some(lab.target.clone()),
            models: vec![lab.model.clone()],
            scenarios: lab.profiles.clone(),
            packages: flags.packages,
            execution: flags.execution.clone(),
            dry_run: flags.dry_run,
            ..ReleaseBench::default()
        }
    }

    /// Returns the lab's budget in runs and hours: the file's, overridden by `--max-runs` and
    /// `--max-hours`.
    pub fn budget(&self, flags: &Lab) -> LabBudget {
        let LabBudget { runs, hours } = self.lab.budget;
        LabBudget { runs: flags.max_runs.or(runs), hours: flags.max_hours.or(hours) }
    }

    /// Builds the lab's part of the prepared campaign. In `decided`, the variants of the plan
    /// become one per engine, with the flags that the lab's file gives the engine, and the runs are
    /// removed, because a lab plans them round by round.
    ///
    /// # Errors
    /// The budget is too small for a conclusion, or an engine's own limit on runs for its options.
    pub fn prepared(
        &self,
        flags: &Lab,
        outline: LabOutline,
        decided: &mut Decided,
    ) -> Result<PreparedLab, Stop> {
        check_limits(&self.lab, &standard().file)?;
        let each_us = each_us(decided);
        let limits = self.budget(flags);
        let runs_max = runs_max(limits, each_us);
        refuse_small(limits, runs_max, (&outline, each_us))?;
        let loaded = decided.wanted.iter().map(|wanted| wanted.variant.flags.clone()).collect();
        let lab = PreparedLab {
            asked: CampaignLab {
                id: self.id.clone(),
                sha256: self.sha256.clone(),
                file: self.lab.clone(),
                runs_max,
            },
            outline,
            hours_max: limits.hours,
            each_us,
            path: self.path.clone(),
            loaded,
        };
        for (index, wanted) in decided.wanted.iter_mut().enumerate() {
            wanted.variant = lab.variant(&LabFile::plain(index), &wanted.variant);
        }
        decided.plan.variants =
            decided.wanted.iter().map(|wanted| wanted.variant.clone()).collect();
        // The runs of a lab are planned round by round, from the registry's answers.
        decided.plan.runs.clear();
        Ok(lab)
    }
}

/// Renders the plan of a lab as text for the terminal.
pub fn render(
    lab: &PreparedLab,
    decided: &Decided,
    (budget, executor): (LabBudget, Vec<String>),
) -> String {
    let (file, brief) = (&lab.asked.file, &decided.brief);
    let title = format!("Plan of lab {}, campaign {}", lab.asked.id, brief.campaign);
    let mut listing = Listing::new(title);
    listing.line("question", &file.question);
    for (index, title) in brief.variants.iter().enumerate() {
        let flags = shell::line(&decided.plan.variants[index].flags);
        let flags = if flags.is_empty() { flags } else { format!(", with {flags}") };
        let key = if index == 0 { "baseline" } else { "beside it" };
        listing.line(key, &format!("{title}{flags}"));
    }
    listing.line("hardware", &format!("{} (target {})", brief.hardware, brief.target));
    listing.line("model", &file.model);
    listing.lines("profiles", brief.cells.iter().map(|cell| cell_line(decided, cell)));
    listing.lines("objective", objective(lab).into_iter());
    let profiles = decided.scenarios.iter().map(|entry| (&*entry.id, &entry.scenario.arrival));
    listing.lines("", without_gain(file, profiles).into_iter());
    let axes = file.axes.iter().map(|axis| {
        let options: Vec<String> =
            axis.options.iter().map(|option| shell::line(&option.flags)).collect();
        format!("{} of {}: {}", axis.name, axis.engine, options.join(" | "))
    });
    listing.lines("axes", axes);
    listing.line("combined", combined(file.combine));
    listing.lines("design", designs(file, &standard().file).into_iter());
    listing.lines("engines", shares(file, &standard().file).into_iter());
    listing.inputs(brief);
    spending(lab, budget, &mut listing);
    listing.lines("executor", executor.into_iter());
    listing.line("records", &brief.records);
    listing.text
}

/// Returns the lines of the printed plan about the lab's executor and jobs, and on Slurm about the
/// partition. `environment` is that of Slurm's tools.
pub fn executor(
    execution: &Execution,
    environment: &BTreeMap<String, String>,
    profiles: usize,
) -> Vec<String> {
    if execution.executor == LOCAL {
        return vec![format!("{LOCAL}: this machine, one run after the other")];
    }
    let jobs = match profiles {
        1 => "each round is one job",
        _ => "each round is a job for each repeat and profile, side by side",
    };
    let partition = partition(&execution.slurm_options, environment).map_or_else(
        || "the cluster's default; `--slurm-option=--partition=NAME` names another".to_owned(),
        str::to_owned,
    );
    vec![
        format!("{}: {jobs}, each on a whole node", execution.executor),
        format!("partition {partition}"),
    ]
}

fn cell_line(decided: &Decided, cell: &CellBrief) -> String {
    let each = about(cell_us(decided, cell));
    let basis = match cell.each {
        Estimate::Unknown => {
            let rate = tokens_per_s_assumed(decided.brief.on_gpu);
            format!("no earlier record: assumed at {rate} tokens/s")
        }
        known => basis(known),
    };
    format!("{:<28} {}: {each} per run ({basis})", cell.scenario, cell.engine)
}

/// Adds the lines about rounds, runs, time and budget to the printed plan.
fn spending(lab: &PreparedLab, budget: LabBudget, listing: &mut Listing) {
    let outline = &lab.outline;
    let (least, most) = (outline.rounds_least, outline.rounds_most);
    listing.line("rounds", &format!("{least} at least, {most} at most"));
    let (least, most) = (outline.runs_least, lab.runs_most());
    let time = |runs: u32| about(u64::from(runs).saturating_mul(lab.each_us));
    let (short, long) = (time(least), time(most));
    let runs = format!("{least} at least, {short}; {most} at most, {long}");
    listing.line("runs", &format!("{runs}, beside builds and downloads"));
    listing.line("budget", &spendable(lab, budget));
}

/// Formats the budget of a lab: `0.5 h, so 180 runs of about 10 s; the lab wants 160 at most`. The
/// hours are left out where the limit on runs is the smaller one.
fn spendable(lab: &PreparedLab, budget: LabBudget) -> String {
    let is_of_hours = budget.runs.is_none_or(|runs| runs > lab.asked.runs_max);
    let hours = budget.hours.filter(|_| is_of_hours);
    let hours = hours.map_or(String::new(), |hours| format!("{hours} h, so "));
    let each = Duration::from_micros(lab.each_us).as_secs_f64();
    let wanted = match lab.runs_most() < lab.outline.runs_most {
        true => format!("the lab might want {}", lab.outline.runs_most),
        false => format!("the lab wants {} at most", lab.outline.runs_most),
    };
    format!("{hours}{} runs of about {each:.0} s; {wanted}", lab.asked.runs_max)
}

/// Returns the lines of the printed plan about the lab's objective: metric and bounds, and the bounds
/// of single profiles.
fn objective(lab: &PreparedLab) -> Vec<String> {
    let objective = &lab.asked.file.objective;
    let within = |bounds: &BTreeMap<String, f64>| {
        let bounds = bounds.iter().map(|(metric, limit)| format!("{metric} {limit}"));
        bounds.collect::<Vec<_>>().join(", ")
    };
    let mut first = objective.metric.clone();
    if !objective.bounds.is_empty() {
        first.push_str(&format!(", within {}", within(&objective.bounds)));
    }
    let own = objective.by_profile.iter();
    let own = own.map(|(profile, bounds)| format!("under {profile} within {}", within(bounds)));
    std::iter::once(first).chain(own).collect()
}

fn combined(combine: Combine) -> &'static str {
    match combine {
        Combine::OneAtATime => "each option alone",
        Combine::Grid => "every combination",
        Combine::Staged => {
            "the best engine first, then each of its options, then those that helped together"
        }
        Combine::Factorial => {
            "the best engine first, then its options in a factorial design, then the best of them alone \
             and together"
        }
    }
}

/// Number of microseconds per hour.
const HOUR_US: f64 = 3.6e9;

/// Returns the expected time of a run in microseconds: the mean over all engines and profiles.
fn each_us(decided: &Decided) -> u64 {
    let cells = &decided.brief.cells;
    let all: u64 = cells.iter().map(|cell| cell_us(decided, cell)).sum();
    all / (cells.len() as u64).max(1)
}

/// Returns the expected time of a run of one engine under one profile, in microseconds: from
/// earlier runs or imported results, else assumed from the scenario.
fn cell_us(decided: &Decided, cell: &CellBrief) -> u64 {
    cell.each.us_with_workload().unwrap_or_else(|| {
        let id = id_of(&cell.scenario);
        let entry = decided.scenarios.iter().find(|entry| entry.id == id);
        entry.map_or(0, |entry| assumed_us(&entry.scenario, decided.brief.on_gpu))
    })
}

/// Returns the largest number of runs that fit both the budget in runs and the budget in hours, if
/// each run takes `each_us` microseconds.
fn runs_max(limits: LabBudget, each_us: u64) -> u32 {
    let of_hours = limits.hours.map_or(u32::MAX, |hours| runs_in(hours * HOUR_US, each_us));
    limits.runs.unwrap_or(u32::MAX).min(of_hours)
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "runs of a lab are far below 2^32, and more are as many"
)]
fn runs_in(us: f64, each_us: u64) -> u32 {
    (us / each_us.max(1) as f64) as u32
}

/// Refuses a lab's budget that is too small for a conclusion, before the first run; the hint names
/// a budget that suffices.
///
/// # Errors
/// The budget is too small.
fn refuse_small(
    limits: LabBudget,
    runs_max: u32,
    (outline, each_us): (&LabOutline, u64),
) -> Result<(), Stop> {
    let enough = outline.runs_enough;
    if runs_max >= enough {
        return Ok(());
    }
    let each = Duration::from_micros(each_us).as_secs_f64();
    let given = match limits.hours {
        Some(hours) if limits.runs.is_none_or(|runs| runs > runs_max) => {
            format!("{hours} hours are {runs_max} runs of {each:.0} s, too few for a conclusion")
        }
        _ => format!("a budget of {runs_max} runs is too small for a conclusion"),
    };
    let hours = f64::from(enough) * each / 3600.0;
    let hint = format!(
        "allow `--max-runs {enough}` and `--max-hours {:.1}`, or leave out options or profiles",
        (hours * 10.0).ceil() / 10.0
    );
    Err(wrong_use!("{given}: {enough} judge every option once and confirm the best")
        .with_hint(hint))
}

/// Returns a reduced limit on the lab's runs if runs take longer than expected; `None` if the limit
/// stays, as without a time budget. The limit always allows the last round and as many runs as a
/// conclusion needs, since otherwise everything measured so far would be wasted. It never rises
/// again: a round skipped for lack of runs would be requested again.
#[expect(clippy::cast_precision_loss, reason = "microseconds of a lab are far below 2^53")]
pub fn lowered(lab: &PreparedLab, state: &State, round: &Round) -> Option<u32> {
    let left_us = lab.hours_max? * HOUR_US - spent_us(state) as f64;
    let affordable = runs_in(left_us.max(0.0), measured_us(state)?);
    let allowed = still_allowed(&lab.outline, round.runs, affordable);
    (allowed < lab.asked.runs_max).then_some(allowed)
}

/// Returns the limit on all runs of a lab if `made` were made and the time budget allows
/// `affordable` more: at least the last round's runs more, and as many in total as a conclusion
/// needs.
fn still_allowed(outline: &LabOutline, made: u32, affordable: u32) -> u32 {
    made.saturating_add(affordable.max(outline.runs_last)).max(outline.runs_enough)
}

/// Returns the total time of all runs of the campaign so far, in microseconds.
fn spent_us(state: &State) -> u64 {
    state.jobs.iter().map(|job| job.wall_us).sum()
}

/// Returns the mean time of a run of the campaign so far, in microseconds; `None` before the first
/// run is collected.
pub fn measured_us(state: &State) -> Option<u64> {
    let over = state.jobs.iter().filter(|job| job.reached >= Reached::Collected);
    let runs: usize = over.map(|job| job.runs.len()).sum();
    spent_us(state).checked_div(runs as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use schema::policy::Policy;

    #[test]
    fn a_lab_is_named_by_its_stem() {
        assert_eq!((id("cpu").as_str(), id("my/labs/a.b.toml").as_str()), ("cpu", "a.b"));
    }

    fn outline() -> LabOutline {
        LabOutline {
            runs_least: 50,
            runs_enough: 100,
            runs_most: 400,
            runs_last: 40,
            rounds_least: 1,
            rounds_most: 4,
            policy: Policy { id: "release".into(), rev: 1, sha256: String::new() },
        }
    }

    #[test]
    fn a_plan_says_where_the_runs_of_a_lab_are_made() {
        let local = Execution { executor: LOCAL.into(), ..Execution::default() };
        let none = BTreeMap::new();
        let l40s = BTreeMap::from([("SBATCH_PARTITION".to_owned(), "l40s".to_owned())]);
        assert_eq!(executor(&local, &none, 2), ["local: this machine, one run after the other"]);
        let mut slurm = Execution { executor: "slurm".into(), ..Execution::default() };
        let [jobs, partition] = &executor(&slurm, &none, 1)[..] else { panic!("two lines") };
        assert_eq!(jobs, "slurm: each round is one job, each on a whole node");
        assert!(partition.starts_with("partition the cluster's default; "), "{partition}");
        assert_eq!(executor(&slurm, &l40s, 2)[1], "partition l40s");
        slurm.slurm_options = vec!["--qos=x".into(), "--partition=h200".into()];
        assert_eq!(executor(&slurm, &l40s, 2)[1], "partition h200");
    }

    #[test]
    fn what_is_spent_first_ends_a_lab() {
        let budget = |runs, hours| runs_max(LabBudget { runs, hours }, 20_000_000);
        assert_eq!(budget(None, Some(1.0)), 180);
        assert_eq!((budget(Some(90), Some(1.0)), budget(Some(200), Some(1.0))), (90, 180));
        assert_eq!(budget(Some(90), None), 90);
    }

    #[test]
    fn a_lab_that_began_may_always_conclude() {
        assert_eq!(still_allowed(&outline(), 24, 200), 224);
        assert_eq!(still_allowed(&outline(), 24, 10), 100, "what concludes something");
        assert_eq!(still_allowed(&outline(), 90, 10), 130, "the last round");
    }

    #[test]
    fn a_small_budget_is_answered_with_the_one_that_would_do() {
        let refused = |runs, hours| {
            let limits = LabBudget { runs, hours };
            let most = runs_max(limits, 20_000_000);
            let refused = refuse_small(limits, most, (&outline(), 20_000_000));
            refused.map_err(|stop| stop.to_string()).err().unwrap_or_default()
        };
        let hours = refused(None, Some(0.5));
        assert!(hours.contains("0.5 hours are 90 runs of 20 s, too few for a conclusion: 100"));
        assert!(hours.contains("hint: allow `--max-runs 100` and `--max-hours 0.6`"), "{hours}");
        let runs = refused(Some(99), Some(4.0));
        assert!(
            runs.contains("a budget of 99 runs is too small for a conclusion: 100 judge"),
            "{runs}"
        );
        assert_eq!(refused(Some(100), Some(0.6)), "");
    }
}
