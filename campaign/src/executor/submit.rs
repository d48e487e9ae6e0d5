//! Submission of a job: builds the node's `job.json`, the scheduler's [`JobSpec`] and the job's
//! share of the GPU-hours from a planned job.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::executor::job::Job;
use crate::executor::journal::{Entry, PlannedJob, PreparedCampaign, Reached, State};
use crate::executor::{Executor, JobSpec};
use crate::node::run::time_limit;
use crate::places::CampaignPlaces;
use crate::plan::brief::gpu_hours;
use crate::stop::Stop;
use crate::world::World;

/// Time allowed to a job beside its runs: checks of the node, and writing files.
const AROUND: Duration = Duration::from_secs(10 * 60);
/// Factor by which a run may exceed its expected time before the scheduler ends the job.
const PATIENCE: u32 = 4;

/// Returns the paths inside the folder of the campaign's job `key`.
pub fn places(world: &World, ready: &PreparedCampaign, key: &str) -> CampaignPlaces {
    world.places.campaign(&ready.plan.campaign).job(key)
}

/// Builds the description of a job for its node.
pub fn job(
    ready: &PreparedCampaign,
    planned: &PlannedJob,
    executor: &dyn Executor,
    budget: Option<f64>,
) -> Job {
    Job {
        key: planned.key.clone(),
        campaign: ready.plan.campaign.clone(),
        executor: executor.name().to_owned(),
        variants: ready.variants.clone(),
        cell: ready.cells[planned.cell].clone(),
        runs: planned.runs.clone(),
        inputs: ready.inputs[planned.cell].clone(),
        // A node that measures a server elsewhere must not record its own hardware.
        hardware: ready.url.as_ref().map(|_| ready.hardware.clone()),
        on_gpu: ready.on_gpu,
        // CPU nodes of a cluster may differ from the machine that submits; their id is recorded as
        // found.
        hardware_id: (executor.is_here() || ready.on_gpu).then(|| ready.hardware.0.id.clone()),
        url: ready.url.clone(),
        timeout_s: ready.timeout_s,
        watched: false,
        gpu_hours_max: budget,
        expected_us: ready.each_us[planned.cell].clone(),
    }
}

/// Builds the description of a job for its scheduler.
pub fn spec(world: &World, job: &Job, planned: &PlannedJob, places: &CampaignPlaces) -> JobSpec {
    let text = |path: &std::path::Path| path.to_string_lossy().into_owned();
    let mut env: BTreeMap<String, String> = world.server_env.clone();
    // Set explicitly, because a node's own environment may point to another cache.
    env.insert("HF_HOME".to_owned(), text(&world.hub_home));
    // The node must read the files that the controller has verified.
    env.insert("REDLINE_CACHE".to_owned(), text(&world.cache.dir));
    env.extend(world.identity.user.clone().map(|user| ("USER".to_owned(), user)));
    JobSpec {
        key: job.key.clone(),
        dir: places.dir.clone(),
        argv: vec![
            text(&world.program),
            "--tools-dir".to_owned(),
            text(&world.tools.dir),
            "node".to_owned(),
            text(&places.dir),
        ],
        env,
        wall_max: wall_max(job),
        gpus: job.gpus(),
        excluded_nodes: planned.excluded_nodes.clone(),
    }
}

/// Returns the time limit of a job: for each run the limit of its scenario's tier, or a multiple of
/// its expected time if that is shorter, with time for the server's start and for the node's
/// checks.
fn wall_max(job: &Job) -> Duration {
    let runs = job.runs.iter().map(|run| {
        let start = Duration::from_secs(job.variants[run.variant].engine.file.launch.timeout_s);
        let limit = time_limit(job.cell.scenario.scenario.tier);
        match job.expected_us[run.variant] {
            0 => start + limit,
            us => start + limit.min(Duration::from_micros(us) * PATIENCE),
        }
    });
    AROUND + runs.sum::<Duration>()
}

/// Returns the GPU-hours that a job may use. Where jobs run one after the other, that is all that
/// remains; on a scheduler it is the job's share, by expected time, among the jobs not yet
/// submitted.
///
/// # Errors
/// A job's folder cannot be read.
pub fn budget(
    world: &World,
    ready: &PreparedCampaign,
    state: &State,
    (planned, executor): (&PlannedJob, &dyn Executor),
) -> Result<Option<f64>, Stop> {
    let Some(most) = ready.max_gpu_hours else { return Ok(None) };
    let gpus = |job: &PlannedJob| if ready.on_gpu { ready.cells[job.cell].cell.tp } else { 0 };
    let mut left = most;
    let mut waiting: Vec<&Entry> = Vec::new();
    for entry in &state.jobs {
        match entry.reached {
            Reached::Planned => waiting.push(entry),
            // The limit is reserved in full while the job runs, since its consumption is not known
            // yet.
            Reached::Submitted | Reached::Running => {
                let given = Job::read(&places(world, ready, &entry.planned.key))?.gpu_hours_max;
                left -= given.unwrap_or(0.0);
            }
            Reached::Collected | Reached::Checked => {
                left -= gpu_hours(entry.wall_us, gpus(&entry.planned));
            }
        }
    }
    let weight = |job: &PlannedJob| -> f64 {
        let expected = |variant: usize| ready.each_us[job.cell][variant];
        let us: u64 = job.runs.iter().map(|run| expected(run.variant)).sum();
        // At least 1, so that jobs of unknown duration get a share too.
        gpu_hours(us.max(1), gpus(job).max(1))
    };
    let all: f64 = waiting.iter().map(|entry| weight(&entry.planned)).sum();
    let share = if executor.is_here() || all <= 0.0 { 1.0 } else { weight(planned) / all };
    Ok(Some(left.max(0.0) * share.min(1.0)))
}
