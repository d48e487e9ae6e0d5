//! The command `gate`: says within a budget of minutes whether the working tree, or any candidate,
//! is slower than a baseline. Both are built and compared in turns; nothing is committed.

use std::path::PathBuf;

use judge::alternation::compare::Gate as Comparison;
use judge::diff::{junit, report};
use schema::alternation::AlternatingComparison;
use schema::campaign::CampaignRecord;
use schema::canonical::to_file_text;
use schema::comparison::Diff;
use schema::exit::Exit;
use serde::{Deserialize, Serialize};

use crate::build::variants::{REDLINE, Wanted, commit, named, working_tree};
use crate::campaign::{begin, check_executor, latest_unfinished, resume};
use crate::cli::{Gate, ReleaseBench};
use crate::executor::journal::{Journal, PreparedCampaign, Reached};
use crate::executor::{self, in_turns, job};
use crate::files::write_whole;
use crate::git::Git;
use crate::lock::Lock;
use crate::plan::decide::decide;
use crate::plan::parse_other_engine;
use crate::plan::release::{is_name, newest, read_history};
use crate::publish::finish::campaign_record;
use crate::publish::write_campaign;
use crate::server_spec::Runtime;
use crate::stop::{Stop, wrong_use};
use crate::world::World;

/// What a gate compares, and for how long.
#[derive(Debug, Clone, PartialEq)]
pub struct Asked {
    /// Baseline as the user named it; `None` for the newest release.
    pub baseline: Option<String>,
    /// Candidate as the user named it; `None` for the working tree.
    pub candidate: Option<String>,
    /// Name and flags of the candidate's variant.
    pub variant: Option<(String, Vec<String>)>,
    pub budget_us: u64,
    /// Folder for the comparison.
    pub out: PathBuf,
}

/// Facts about a gate that its campaign's journal keeps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PreparedGate {
    /// Folder for the comparison.
    pub out: PathBuf,
}

/// Runs the command `gate`, from the beginning or with `--resume` from the latest unfinished one.
/// Exit code 0 says that nothing release-blocking became worse, 1 that something did, 3 that
/// something is undecided.
///
/// # Errors
/// Wrong use, a machine or clone that is unfit or in use by another campaign, two servers that do
/// not fit into memory, a build, download, tool or file operation that fails, or an interruption.
pub fn run(world: &World, flags: &Gate) -> Result<Exit, Stop> {
    let asked = bench(world, flags);
    check_executor(&asked)?;
    world.tools.check()?;
    let lock = || Lock::take(&world.places.lock(), world.pid);
    let _lock = (!flags.dry_run).then(lock).transpose()?;
    if flags.resume {
        let latest = latest_unfinished(world, |ready| ready.gate.is_some())?;
        let id = latest.ok_or_else(|| Stop::wrong_use("no unfinished gate"))?;
        return resume(world, (&id, &format!("gate {id}")), None);
    }
    let decided = decide(world, &asked)?;
    let plan = decided.brief.render();
    if flags.dry_run {
        world.console.answer(plan.trim_end());
        return Ok(Exit::Well);
    }
    // Standard output begins with the verdict.
    plan.lines().for_each(|line| world.console.note(line));
    let execution = &asked.execution;
    let named = (execution.executor.as_str(), execution.slurm_options.as_slice());
    let executor = executor::named(world, named, &decided.plan.campaign)?;
    executor.preflight()?;
    begin(world, &asked, (decided, None), &*executor)
}

/// Returns the campaign that a gate carries out.
fn bench(world: &World, flags: &Gate) -> ReleaseBench {
    let out = flags.out.clone().unwrap_or_else(|| world.places.root.join("target/gate"));
    ReleaseBench {
        engine: REDLINE.to_owned(),
        target: flags.target.clone(),
        models: flags.models.clone(),
        scenarios: flags.scenarios.clone(),
        container: flags.container,
        execution: flags.execution.clone(),
        dry_run: flags.dry_run,
        uncommitted: true,
        gate: Some(Asked {
            baseline: flags.baseline.clone(),
            candidate: flags.candidate.clone(),
            variant: flags.variant.clone(),
            budget_us: flags.budget_us,
            out,
        }),
        ..ReleaseBench::default()
    }
}

/// Resolves what a gate compares to variants: the baseline, then the candidate.
///
/// # Errors
/// A name means neither a release nor a commit nor an engine's release, or anything that resolving
/// it fails with.
pub fn variants(
    world: &World,
    asked: &Asked,
    container: Option<Runtime>,
) -> Result<Vec<Wanted>, Stop> {
    let baseline = match &asked.baseline {
        Some(name) => contender(world, name, container)?,
        None => {
            let git = Git::open(&world.places.root, &world.interrupt)?;
            let newest = newest(&read_history(&git, &[])?).ok_or_else(|| {
                Stop::wrong_use("this clone has no release to compare with")
                    .with_hint("name a commit, such as `cargo xtask gate HEAD`")
            })?;
            contender(world, &newest, container)?
        }
    };
    let mut candidate = match &asked.candidate {
        Some(name) => contender(world, name, container)?,
        None => working_tree(world, &world.catalog.engine(REDLINE)?, None)?,
    };
    if let Some((name, flags)) = &asked.variant {
        candidate.variant.name = Some(name.clone());
        candidate.variant.flags.extend_from_slice(flags);
    }
    Ok(vec![baseline, candidate])
}

/// Resolves one name: `ENGINE@VERSION`, a release of Redline, or a commit of this clone.
fn contender(world: &World, name: &str, container: Option<Runtime>) -> Result<Wanted, Stop> {
    if let Ok((engine, version)) = parse_other_engine(name) {
        return named(world, &world.catalog.engine(&engine)?, Some(&version), container);
    }
    let engine = world.catalog.engine(REDLINE)?;
    if is_name(name) {
        return named(world, &engine, Some(name), None);
    }
    commit(world, &engine, name)
}

/// Reads the alternating comparisons that the jobs of a campaign have made, in the order of the
/// cells.
///
/// # Errors
/// A job's files are missing, damaged or invalid.
pub fn comparisons(
    world: &World,
    ready: &PreparedCampaign,
    journal: &Journal,
) -> Result<Vec<AlternatingComparison>, Stop> {
    let jobs = journal.state.jobs.iter().filter(|job| job.reached >= Reached::Collected);
    let found = jobs.map(|job| in_turns::comparison(&job::places(world, ready, &job.planned.key)));
    Ok(found.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
}

/// Returns what the alternating comparisons in a campaign's record say.
pub fn diff(record: &CampaignRecord) -> Diff {
    let words = ["cargo", "xtask"].map(str::to_owned).into_iter();
    let command: Vec<String> = words.chain(record.command.iter().cloned()).collect();
    let comparison = Comparison {
        campaign: &record.id,
        hardware: &record.hardware,
        command: &command,
        comparisons: &record.alternations,
    };
    comparison.diff()
}

/// Writes the comparison of a gate, prints it with the verdict first, and returns its exit code.
///
/// # Errors
/// A job's files are invalid, no comparison was made, or a file cannot be written.
pub fn finish(
    world: &World,
    ready: &PreparedCampaign,
    gate: &PreparedGate,
    journal: &Journal,
) -> Result<Exit, Stop> {
    let mut record = campaign_record(world, ready, &[], journal, None)?;
    write_campaign(&journal.places.staged(), &mut record)?;
    if record.alternations.is_empty() {
        return Err(wrong_use!("no comparison was made"));
    }
    let diff = diff(&record);
    world.console.answer(report::text(&diff).trim_end());
    let report = junit::junit(&diff)
        .map_err(|error| wrong_use!("the comparison has no JUnit report: {error}"))?;
    for (name, text) in [
        ("diff.json", to_file_text(&diff)?),
        ("diff.md", report::markdown(&diff)),
        ("diff.xml", report),
        ("campaign.json", to_file_text(&record)?),
    ] {
        write_whole(&gate.out.join(name), text.as_bytes())?;
    }
    world.console.note(&format!("written to {}", world.places.shown(&gate.out)));
    Ok(diff.exit())
}
