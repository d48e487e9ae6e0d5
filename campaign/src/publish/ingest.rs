//! The command `ingest`: finishes a campaign from the folders of its jobs alone, for example after
//! they were copied from a cluster. It verifies, records, commits and renders; it builds, downloads
//! and measures nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use schema::exit::Exit;
use schema::run::HardwareFacts;
use schema::untrusted;

use crate::campaign::conclude;
use crate::cli::Ingest;
use crate::executor::in_turns::comparisons;
use crate::executor::job::{self, Job, JobCell, check, collect};
use crate::executor::journal::{
    Journal, Line, PlannedJob, PreparedCampaign, Reached, RecordedHardware,
};
use crate::files::{self, files_below};
use crate::lock::Lock;
use crate::places::CampaignPlaces;
use crate::plan::release::is_development;
use crate::plan::{Plan, PlannedRun};
use crate::publish::Registry;
use crate::server_spec::ServerSpec;
use crate::stop::{Stop, wrong_use};
use crate::world::World;

/// Runs the command `ingest`.
///
/// # Errors
/// The folder does not exist, or contains no jobs, jobs of a gate or of several campaigns, or no
/// finished block;
/// the campaign is finished already; a file cannot be read or written, or differs from what its
/// node wrote; a record fails a check or is refused; the clone is in use by another campaign; a
/// tool is missing or fails; or the command is interrupted.
pub fn run(world: &World, flags: &Ingest) -> Result<Exit, Stop> {
    world.tools.check()?;
    let _lock = Lock::take(&world.places.lock(), world.pid)?;
    world.step("Read the jobs");
    let found = jobs_below(&flags.dir)?;
    let campaign = campaign_of(&found, &flags.dir)?;
    if found.iter().any(|(_, job)| job.gate) {
        return Err(wrong_use!(
            "campaign {campaign} is a gate, whose comparison is never recorded"
        )
        .with_hint("`gate --resume` finishes it where it was started"));
    }
    let places = world.places.campaign(&campaign);
    let (mut journal, _) = Journal::open(places.clone())?;
    if journal.state.finished {
        return Err(wrong_use!("campaign {campaign} is finished already")
            .with_hint("its records are in the registry, or below `target/campaigns`"));
    }
    let registry_dir = flags.registry.clone().unwrap_or_else(|| world.places.root.clone());
    let mut ready = match journal.state.ready.clone() {
        Some(ready) => ready,
        None => {
            let ready = ready_of(world, &campaign, &found, &registry_dir);
            journal.note(Line::Campaign(Box::new(ready.clone())))?;
            ready
        }
    };
    ready.registry.clone_from(&registry_dir);
    if ready.commits {
        Registry::new(world, &registry_dir).preflight()?;
    }
    world.step("Verify and copy the records");
    for (dir, job) in &found {
        take(&mut journal, dir, job)?;
    }
    let records = job::records(&places.staged())?;
    let compared = comparisons(world, &ready, &journal)?;
    if records.is_empty() && compared.is_empty() {
        return Err(wrong_use!("no block of campaign {campaign} was finished")
            .with_hint("`release-bench --resume` continues it where it was started"));
    }
    let planned = journal.state.runs_planned();
    let missing = planned.len().saturating_sub(records.len());
    if missing > 0 {
        world.console.note(&format!("{missing} of {} runs are not there", planned.len()));
    }
    let exit = conclude(world, ready, &records, &mut journal)?;
    Ok(if missing > 0 { exit.max(Exit::Worse) } else { exit })
}

/// Finds every job below a folder; returns the folder of each and the content of its `job.json`, in
/// the order of their runs.
fn jobs_below(dir: &Path) -> Result<Vec<(PathBuf, Job)>, Stop> {
    if !dir.is_dir() {
        return Err(wrong_use!("`{}` is no folder", untrusted::path(dir)));
    }
    let files = files_below(dir).into_iter();
    let jobs = files.filter(|path| path.file_name().is_some_and(|name| name == "job.json"));
    let read = |path: PathBuf| {
        let dir = path.parent().unwrap_or(Path::new(".")).to_owned();
        Job::read(&CampaignPlaces::at(&dir)).map(|job| (dir, job))
    };
    let mut found = jobs.map(read).collect::<Result<Vec<_>, _>>()?;
    let first = |job: &Job| job.runs.first().map(|run| run.run.clone());
    found.sort_by_key(|(_, job)| (first(job), job.key.clone()));
    Ok(found)
}

fn campaign_of(found: &[(PathBuf, Job)], dir: &Path) -> Result<String, Stop> {
    let campaigns: BTreeSet<&str> = found.iter().map(|(_, job)| job.campaign.as_str()).collect();
    let named: Vec<&str> = campaigns.into_iter().collect();
    match named.as_slice() {
        [one] if schema::id::is_ulid(one) => Ok((*one).to_owned()),
        [one] => Err(wrong_use!("`{one}` is no campaign's id")),
        [] => Err(wrong_use!("no job lies in `{}`", untrusted::path(dir))
            .with_hint("give a campaign's folder, or the folder with the folders of its jobs")),
        several => Err(wrong_use!(
            "jobs of several campaigns lie in `{}`: {}",
            untrusted::path(dir),
            several.join(", ")
        )),
    }
}

/// Reconstructs a prepared campaign from its jobs. What only the controller knew is missing, such
/// as confirmation runs that were not planned yet.
fn ready_of(
    world: &World,
    campaign: &str,
    found: &[(PathBuf, Job)],
    registry: &Path,
) -> PreparedCampaign {
    let job = &found[0].1;
    let mut cells = BTreeMap::new();
    let mut runs: Vec<PlannedRun> = Vec::new();
    for (_, job) in found {
        // The two runs of a comparison in turns have no records.
        let recorded = job.alternation.is_none();
        for run in &job.runs {
            if let Some(JobCell { ready, expected_us }) = job.cells.get(&run.cell) {
                cells.entry(run.cell).or_insert_with(|| (ready.clone(), expected_us.clone()));
            }
            if recorded && !runs.iter().any(|other| other.run == run.run) {
                runs.push(run.clone());
            }
        }
    }
    runs.sort_by(|a, b| a.run.cmp(&b.run));
    // The plan may contain cells without a job; they are filled with the next known cell, so that
    // indices stay valid.
    let last = cells.keys().next_back().copied().unwrap_or(0);
    let next_known = |at: usize| cells.range(at..).next().map(|(_, cell)| cell.clone());
    let (ready_cells, each_us): (Vec<_>, Vec<_>) = (0..=last).filter_map(next_known).unzip();
    let released = |variant: &ServerSpec| {
        let facts = &variant.built.facts;
        facts.dirty != Some(true) && !is_development(&facts.release)
    };
    PreparedCampaign {
        command: world.command.clone(),
        executor: job.executor.clone(),
        plan: Plan {
            campaign: campaign.to_owned(),
            variants: job.variants.iter().map(|variant| variant.built.variant.clone()).collect(),
            cells: ready_cells.iter().map(|cell| cell.cell.clone()).collect(),
            runs,
            // The files of jobs do not have it.
            random_order_seed: None,
        },
        variants: job.variants.clone(),
        // Input files are needed only to start runs, which does not happen any more.
        inputs: vec![Vec::new(); ready_cells.len()],
        cells: ready_cells,
        hardware: hardware_of(job),
        on_gpu: job.on_gpu,
        commits: job.url.is_none() && job.variants.iter().all(released),
        registry: registry.to_owned(),
        each_us,
        url: job.url.clone(),
        timeout_s: job.timeout_s,
        ..PreparedCampaign::default()
    }
}

/// Returns what a job says about its hardware: at least the id that its node had to have, where it
/// had to have one.
fn hardware_of(job: &Job) -> RecordedHardware {
    let required = |id: &String| HardwareFacts { id: id.clone(), ..HardwareFacts::default() };
    let known = job.hardware.clone();
    known
        .or_else(|| job.hardware_id.as_ref().map(required).map(RecordedHardware))
        .unwrap_or_default()
}

/// Collects and checks a job's records, and copies the job's folder into the campaign's folder.
/// Does nothing if the journal says that the records were checked already.
fn take(journal: &mut Journal, dir: &Path, job: &Job) -> Result<(), Stop> {
    let known = journal.state.jobs.iter().find(|entry| entry.planned.key == job.key);
    if known.is_some_and(|entry| entry.reached == Reached::Checked) {
        return Ok(());
    }
    // On the machine where the campaign began, its own journal has planned the job.
    if known.is_none() {
        let attempt = job.key.rsplit('-').next().and_then(|n| n.parse().ok()).unwrap_or(1);
        let planned = PlannedJob {
            key: job.key.clone(),
            cell: job.runs.first().map_or(0, |run| run.cell),
            runs: job.runs.clone(),
            attempt,
            lost: attempt - 1,
            excluded_nodes: Vec::new(),
        };
        let stage = job.runs.first().and_then(|run| run.stage);
        journal.note(Line::Planned { stage, jobs: vec![planned] })?;
    }
    let staged = journal.places.staged();
    let (progress, runs) = collect(&CampaignPlaces::at(dir), &staged)?;
    check(&staged, &runs)?;
    keep(dir, &journal.places.jobs().join(&job.key))?;
    let key = &job.key;
    let wall_us = progress.wall_us;
    journal.note(Line::Collected { job: key.clone(), runs, wall_us, again: None })?;
    journal.note(Line::Checked { job: key.clone() })
}

/// Copies a job's folder, file by file, to the folder `to` in the clone's campaign folder.
fn keep(from: &Path, to: &Path) -> Result<(), Stop> {
    let same = |path: &Path| path.canonicalize().ok();
    if to.is_dir() && same(from) == same(to) {
        return Ok(());
    }
    for path in files_below(from) {
        let Ok(below) = path.strip_prefix(from) else { continue };
        files::copy(&path, &to.join(below))?;
    }
    Ok(())
}
