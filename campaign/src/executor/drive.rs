//! Job loop of a campaign: submits the jobs of a stage, polls them, collects and checks their
//! records, through any executor. After a restart, running jobs are found again, lost ones are
//! retried, and finished ones are not repeated.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use schema::exit::Exit;
use schema::run::{Failure, FailureClass, Phase};
use schema::verdict::Stage;

use crate::executor::in_turns;
use crate::executor::job::{self, Done, NodeEnd, check, collect, read_steps};
use crate::executor::journal::{Entry, Journal, Line, PlannedJob, PreparedCampaign, Reached};
use crate::executor::stage_log::StageLog;

use crate::executor::{Executor, Handle, JobEnd, JobState};
use crate::files;
use crate::node::run::Bench;
use crate::places::CampaignPlaces;
use crate::plan::{PlannedRun, by_job};
use crate::publish::write_run;
use crate::stop::{Stop, environment};
use crate::world::World;

/// Time that the controller waits at most, after a job has ended, for the job's files to appear on
/// a network file system.
const SEEN_LATE: Duration = Duration::from_secs(60);
/// Time that the controller waits at most for a local job to end after it has cancelled the job.
const GOING: Duration = Duration::from_secs(30);
/// Interval at which a waiting loop checks for an interrupt.
const WAKE: Duration = Duration::from_millis(50);
/// Number of consecutive queries that a scheduler may leave unanswered; one more stops the campaign
/// with an error.
const SILENCES: u32 = 10;
/// Number of lines that are shown from the end of a job's log when the job stops the campaign.
const LOG_LINES: usize = 12;

/// Number of times that the unfinished runs of a job are retried after causes outside the engine,
/// such as a lost node or a preemption; after one more failure the runs are recorded as failed.
const RETRIES: u32 = 2;

/// The job loop of one campaign: its inputs, and the state that this process keeps of its jobs.
pub struct Drive<'a> {
    pub world: &'a World,
    pub executor: &'a dyn Executor,
    pub ready: &'a PreparedCampaign,
    pub journal: &'a mut Journal,
    /// Keys of jobs that this process has submitted, or found already submitted.
    known: BTreeSet<String>,
    /// Time, since the command began, at which each job was first seen to have ended, by the job's
    /// key.
    ended: BTreeMap<String, Duration>,
    /// Number of queries, counted back from the latest, that the scheduler has left unanswered in a
    /// row.
    silences: u32,
}

/// Builds the jobs of planned runs, as [`by_job`] groups them.
pub fn jobs_of(campaign: &str, runs: &[PlannedRun]) -> Vec<PlannedJob> {
    let planned = |runs: &[PlannedRun]| PlannedJob {
        key: job::key(campaign, runs, 1),
        cell: runs[0].cell,
        runs: runs.to_vec(),
        attempt: 1,
        lost: 0,
        excluded_nodes: Vec::new(),
    };
    by_job(runs).map(planned).collect()
}

impl<'a> Drive<'a> {
    pub fn new(
        world: &'a World,
        executor: &'a dyn Executor,
        ready: &'a PreparedCampaign,
        journal: &'a mut Journal,
    ) -> Self {
        let (known, ended) = (BTreeSet::new(), BTreeMap::new());
        Self { world, executor, ready, journal, known, ended, silences: 0 }
    }

    /// Runs every unfinished job of a stage until all are collected and checked.
    ///
    /// # Errors
    /// The command is interrupted, the scheduler does not answer or refuses a job, a job has ended
    /// in a way that a retry would not mend, a record fails its checks, or a file cannot be read or
    /// written.
    pub fn carry_out(&mut self, stage: Option<Stage>) -> Result<(), Stop> {
        let of_stage = self.journal.state.jobs.iter().filter(|job| job.stage == stage);
        let jobs: Vec<&Entry> = of_stage.collect();
        let mut log = StageLog::of(self.world, self.ready, stage, &jobs);
        loop {
            let open = self.open(stage);
            if open.is_empty() {
                return Ok(());
            }
            let advanced = open.iter().try_for_each(|job| self.advance(job, &mut log));
            if let Err(stop) = advanced {
                self.leave();
                return Err(stop);
            }
            // Exponential backoff: a controller in trouble serves the whole site and should not be
            // pressed.
            self.wait(self.executor.pause() * 2_u32.pow(self.silences.min(5)));
        }
    }

    /// Sleeps for `pause`, but returns early, without an error, when an interrupt is raised.
    fn wait(&self, pause: Duration) {
        let clock = &self.world.clock;
        let until = clock.elapsed() + pause;
        while clock.elapsed() < until && !self.world.interrupt.raised() {
            clock.sleep(WAKE.min(until.saturating_sub(clock.elapsed())));
        }
    }

    /// Returns the jobs to poll: all unfinished ones on a scheduler, only the first on this
    /// machine, where two jobs at once would disturb each other's measurement.
    fn open(&self, stage: Option<Stage>) -> Vec<Entry> {
        let jobs = self.journal.state.jobs.iter();
        let open = jobs.filter(|job| job.stage == stage && job.reached < Reached::Checked);
        // Two jobs at once on this machine would disturb each other's measurement.
        let most = if self.executor.is_here() { 1 } else { usize::MAX };
        open.take(most).cloned().collect()
    }

    /// Advances one job by one step: submit it, poll it, or collect or check its records.
    fn advance(&mut self, job: &Entry, log: &mut StageLog<'_>) -> Result<(), Stop> {
        self.world.interrupt.check()?;
        let key = &job.planned.key;
        let places = job::places(self.world, self.ready, key);
        if job.reached == Reached::Collected {
            check(&self.journal.places.staged(), &job.runs)?;
            return self.journal.note(Line::Checked { job: key.clone() });
        }
        if !self.known.contains(key) {
            return self.find_or_submit(job, &places, log);
        }
        let Some(handle) = &job.handle else { return Ok(()) };
        let Some(state) = self.poll(handle)? else { return Ok(()) };
        log.follow(key, &read_steps(&places)?);
        log.passing(&places);
        match state {
            JobState::Queued { reason } => {
                log.waits(key, &reason);
                Ok(())
            }
            JobState::Running { node } if job.reached < Reached::Running => {
                self.journal.note(Line::Running { job: key.clone(), node })
            }
            JobState::Running { .. } => Ok(()),
            JobState::Ended { end, node } => self.settle(job, &places, (&end, node), log),
        }
    }

    /// Handles a job that this process has not touched yet: adopts it if the journal says that it
    /// was submitted, or if the executor finds it waiting, running or with a final report; submits
    /// it otherwise.
    fn find_or_submit(
        &mut self,
        job: &Entry,
        places: &CampaignPlaces,
        log: &mut StageLog<'_>,
    ) -> Result<(), Stop> {
        let key = &job.planned.key;
        let submitted = job.reached >= Reached::Submitted;
        let handle = match (&job.handle, submitted) {
            (Some(handle), true) => Some(handle.clone()),
            _ => {
                let found = self.executor.find(key);
                let Some(found) = self.patiently(found)? else { return Ok(()) };
                found
            }
        };
        if let Some(handle) = handle {
            let Some(state) = self.poll(&handle)? else { return Ok(()) };
            // An ended job counts as alive if it finished, since its records can be collected.
            let lives = match state {
                JobState::Queued { .. } | JobState::Running { .. } => true,
                JobState::Ended { .. } => Done::read(places)?.is_some(),
            };
            if lives || submitted {
                log.skip(key, &read_steps(places)?);
                if !submitted {
                    self.journal.note(Line::Submitted { job: key.clone(), handle })?;
                }
                self.known.insert(key.clone());
                return Ok(());
            }
        }
        let planned = &job.planned;
        let budget =
            job::budget(self.world, self.ready, &self.journal.state, (planned, self.executor))?;
        // Only a user at a terminal reads progress lines; in a log file they would be noise.
        let watched = self.world.console.is_live();
        let alternation = in_turns::extent(self.ready, &self.journal.state, job, budget);
        let description =
            job::describe_job(self.ready, planned, self.executor, (budget, watched), alternation);
        in_turns::take_over(self.world, self.ready, &self.journal.state, job)?;
        description.write(places)?;
        log.skip(key, &read_steps(places)?);
        let submitted = self.executor.submit(&job::spec(self.world, &description, planned, places));
        // If the answer was lost but the job was submitted, the next poll finds it by its key.
        let Some(handle) = self.patiently(submitted)? else { return Ok(()) };
        self.journal.note(Line::Submitted { job: key.clone(), handle })?;
        self.known.insert(key.clone());
        Ok(())
    }

    /// Queries the executor for a job's state; `None` if the scheduler did not answer, and the
    /// query is repeated later.
    fn poll(&mut self, handle: &Handle) -> Result<Option<JobState>, Stop> {
        let polled = self.executor.poll(handle);
        self.patiently(polled)
    }

    /// Tolerates a scheduler that temporarily does not answer: `None` means that the query is
    /// repeated later. A refusal is returned as an error, as is a failure on this machine, after an
    /// interrupt, or after too many queries without an answer.
    fn patiently<T>(&mut self, answered: Result<T, Stop>) -> Result<Option<T>, Stop> {
        let may_yet_answer = |stop: &Stop| {
            // Slurm's controller restarts for maintenance; a campaign of days should survive that.
            let silent = stop.exit() == Exit::Environment && !self.world.interrupt.raised();
            silent && !self.executor.is_here() && self.silences < SILENCES
        };
        match answered {
            Ok(answer) => {
                self.silences = 0;
                Ok(Some(answer))
            }
            Err(stop) if may_yet_answer(&stop) => {
                self.silences += 1;
                let said = stop.cause().0;
                self.world.console.note(&format!("the scheduler does not answer: {said}"));
                Ok(None)
            }
            Err(stop) => Err(stop),
        }
    }

    /// Settles a job that has ended: collects its finished blocks, and retries the others, records
    /// them as failed, or stops the campaign. A crash before the journal's line repeats this function
    /// and loses nothing.
    fn settle(
        &mut self,
        job: &Entry,
        places: &CampaignPlaces,
        (end, node): (&JobEnd, Option<String>),
        log: &mut StageLog<'_>,
    ) -> Result<(), Stop> {
        let key = &job.planned.key;
        // A shared network file system may show the node's files with a delay.
        let since = *self.ended.entry(key.clone()).or_insert_with(|| self.world.clock.elapsed());
        let may_come = !self.executor.is_here() && self.world.clock.elapsed() < since + SEEN_LATE;
        let done = Done::read(places)?;
        if done.is_none() && *end == JobEnd::Well && may_come {
            return Ok(());
        }
        let staged = self.journal.places.staged();
        // A node that was killed may not have flushed its last step, on which the journal will rely.
        files::flush(&places.steps())?;
        let (progress, mut runs) = match collect(places, &staged) {
            Err(_) if may_come => return Ok(()),
            collected => collected?,
        };
        log.follow(key, &read_steps(places)?);
        let left = |run: &&PlannedRun| !progress.blocks_done.contains(&run.block);
        let left: Vec<PlannedRun> = job.planned.runs.iter().filter(left).cloned().collect();
        let (mut again, mut stopped) = (None, None);
        if !left.is_empty() {
            let report = done.as_ref().map(|done| &done.end);
            match after_end(end, report, job.planned.lost, self.executor.is_here()) {
                Next::Again { said } => {
                    self.world.console.note(&format!("{said}; the rest of the job is retried"));
                    let lost_on = node.or_else(|| job.node.clone());
                    again = Some(self.next_attempt(&job.planned, left, Some(lost_on)));
                }
                // A comparison has no records of runs that could say so; its starts are kept.
                Next::Failed { said, .. } if job.stage == Some(Stage::Alternate) => {
                    again = Some(self.next_attempt(&job.planned, left, None));
                    stopped =
                        Some(environment!("the comparison in turns was not finished: {said}"));
                }
                Next::Failed { class, said } => {
                    for run in &left {
                        record_unmeasured(self.world, self.ready, run, (class, &said), &staged)?;
                        runs.push(run.run.clone());
                    }
                    self.world.console.note(&format!("{said}; recorded as failed"));
                }
                Next::Stop(stop) => {
                    again = Some(self.next_attempt(&job.planned, left, None));
                    stopped = Some(stop);
                }
            }
        }
        let (wall_us, again) = (progress.wall_us, again.map(Box::new));
        self.journal.note(Line::Collected { job: key.clone(), runs, wall_us, again })?;
        let Some(stop) = stopped else { return Ok(()) };
        self.console_log(places);
        Err(stop)
    }

    /// Returns the next attempt at a job, for its runs in `left`. `lost_on` is present when the node
    /// is to blame; it holds the node's name, if known, which the next attempt excludes.
    fn next_attempt(
        &self,
        job: &PlannedJob,
        left: Vec<PlannedRun>,
        lost_on: Option<Option<String>>,
    ) -> PlannedJob {
        let (cell, attempt) = (job.cell, job.attempt + 1);
        let key = job::key(&self.ready.plan.campaign, &left, attempt);
        let mut excluded_nodes = job.excluded_nodes.clone();
        let lost = job.lost + u32::from(lost_on.is_some());
        excluded_nodes.extend(lost_on.flatten().filter(|_| !self.executor.is_here()));
        PlannedJob { key, cell, runs: left, attempt, lost, excluded_nodes }
    }

    /// Prints the last lines of a job's log, which its node wrote, after a failure.
    fn console_log(&self, places: &CampaignPlaces) {
        let log = std::fs::read(places.node_log()).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        for line in &lines[lines.len().saturating_sub(LOG_LINES)..] {
            self.world.console.note(line);
        }
    }

    /// Leaves the unfinished jobs after an error: jobs on this machine are cancelled and their
    /// finished records collected; those on a scheduler continue.
    fn leave(&mut self) {
        let known = |job: &&Entry| self.known.contains(&job.planned.key);
        let jobs = self.journal.state.jobs.iter();
        let left: Vec<Entry> =
            jobs.filter(|job| job.reached < Reached::Collected).filter(known).cloned().collect();
        if !self.executor.is_here() {
            if !left.is_empty() {
                let (count, name) = (left.len(), self.executor.name());
                self.world.console.note(&format!("{count} jobs continue at {name}"));
            }
            return;
        }
        for job in left {
            let Some(handle) = &job.handle else { continue };
            // Errors are ignored here: `--resume` finds what could not be cancelled or collected.
            let _ = self.executor.cancel(handle);
            let until = self.world.clock.elapsed() + GOING;
            while self.world.clock.elapsed() < until
                && matches!(self.executor.poll(handle), Ok(JobState::Running { .. }))
            {
                self.world.clock.sleep(self.executor.pause());
            }
            let places = job::places(self.world, self.ready, &job.planned.key);
            let _ = collect(&places, &self.journal.places.staged());
            let _ = self.journal.note(Line::Withdrawn { job: job.planned.key });
        }
    }
}

/// Writes the record of a planned run that no node could measure, with the failure's class and
/// message, to the staged results.
fn record_unmeasured(
    world: &World,
    ready: &PreparedCampaign,
    run: &PlannedRun,
    (class, said): (FailureClass, &str),
    staged: &Path,
) -> Result<(), Stop> {
    let bench = Bench {
        world,
        campaign: &ready.plan.campaign,
        executor: &ready.executor,
        places: &world.places.campaign(&ready.plan.campaign),
        hardware: &ready.hardware.0,
        url: ready.url.as_deref(),
        timeout_s: None,
        limit: None,
    };
    let failure = Failure { class, phase: Phase::Load, message: world.identity.redact(said) };
    let (spec, cell) = (&ready.variants[run.variant], &ready.cells[run.cell]);
    let mut record = bench.unmeasured(run, spec, cell, failure);
    judge::seal(&mut record)?;
    write_run(staged, &record)?;
    Ok(())
}

/// Decision about the blocks that a job has not finished.
#[derive(Debug)]
enum Next {
    /// Retry the job's unfinished blocks, on another node if the executor has one.
    Again { said: String },
    /// Record the runs of the job's unfinished blocks as failed.
    Failed { class: FailureClass, said: String },
    /// Stop the campaign; `--resume` runs the job's unfinished blocks.
    Stop(Stop),
}

/// Decides about the unfinished blocks of an ended job. `report` is the outcome in the node's final
/// report, if it wrote one; `lost` counts earlier attempts that were lost; `is_here` is true when
/// the controller's machine is the only node.
fn after_end(end: &JobEnd, report: Option<&NodeEnd>, lost: u32, is_here: bool) -> Next {
    // Three losses in a row point to the job itself, so that the runs are recorded as failed.
    let again = |class: FailureClass, said: String| match lost < RETRIES {
        true => Next::Again { said },
        false => Next::Failed { class, said: format!("{said}, on each of {} attempts", lost + 1) },
    };
    let infrastructure = |said: String| again(FailureClass::Infrastructure, said);
    if let Some(report) = report {
        let stop = report.stop().unwrap_or_else(|| {
            Stop::wrong_use("the node reports success, but some records are missing")
        });
        return match report {
            NodeEnd::Unfit { said } | NodeEnd::Broke { said, .. } if !is_here => {
                infrastructure(said.clone())
            }
            _ => Next::Stop(stop),
        };
    }
    match end {
        JobEnd::Well => infrastructure("the job ended without a final report".to_owned()),
        JobEnd::Failed { said } => infrastructure(format!("the job ended: {said}")),
        JobEnd::LostNode { said } => infrastructure(format!("the node was lost: {said}")),
        JobEnd::Preempted => {
            let said = "the scheduler took the node for another job";
            again(FailureClass::Preempted, said.to_owned())
        }
        JobEnd::TimedOut => Next::Failed {
            class: FailureClass::Timeout,
            said: "the job exceeded its time limit".to_owned(),
        },
        JobEnd::OutOfMemory => Next::Failed {
            class: FailureClass::Oom,
            said: "the job exceeded its memory limit".to_owned(),
        },
        JobEnd::Cancelled => Next::Stop(Stop::environment("a job was cancelled")),
        JobEnd::Impossible { said } => Next::Stop(environment!("no node can run a job: {said}")),
    }
}

#[cfg(test)]
mod tests;
