//! A job on its node: checks the node (inputs, disk space, tools, hardware and idle GPUs), which saves
//! hours of unusable measurements, and runs each remaining block of the job (start a server, measure
//! it, record the result), with a machine calibration around it. It needs the job's folder and the
//! files named there, but no clone, registry or git.

pub mod alternation;
mod calibration;
mod freeze;
pub mod hardware;
pub mod load_generator;
pub mod record;
pub mod run;
pub mod server;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, stdin};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use judge::alternation::text;
use nix::sys::statvfs::statvfs;
use schema::alternation::{AlternatingComparison, Start};
use schema::canonical::to_file_text;
use schema::exit::Exit;
use schema::run::{Gpu, HardwareFacts, RunRecord, Status, ValidityVerdict};
use schema::untrusted;

use crate::cli::NodeFlags;
use crate::disk::{Change, announce};
use crate::executor::job::{
    COMPARISON, Done, FileFact, Job, NodeEnd, Progress, Step, record_path, start_path, verified,
    write_json,
};
use crate::executor::local::GO;
use crate::files::{self, FileError, Lines, size};
use crate::lock::Lock;
use crate::node::alternation::{Alternating, Until};
use crate::node::calibration::{Calibration, History};
use crate::node::hardware::Machine;
use crate::node::run::{Bench, SharedServer};
use crate::places::CampaignPlaces;
use crate::plan::brief::gpu_hours;
use crate::plan::{PlannedAlternation, PlannedRun};
use crate::process::{self, ProcessError, attempted, micros};
use crate::server_spec::{ReadyCell, ServerSpec, container_name};
use crate::stop::{Stop, wrong_use};
use crate::tools::BENCH;
use crate::world::World;

/// Difference between wall clock and steady clock, in milliseconds, above which the wall clock
/// counts as set and not just adjusted.
const CLOCK_STEP_MS_MIN: u64 = 1000;

/// Runs a job on this node; where an earlier process has begun the job, runs only the blocks that
/// it has not finished.
///
/// # Errors
/// The controller ended before the start, another process runs the job, the job's files cannot be
/// read or written, or this process was interrupted. Other failures are reported to the controller
/// in the job's final report.
pub fn run(world: &World, flags: &NodeFlags) -> Result<Exit, Stop> {
    if flags.when_told && !may_begin() {
        return Err(Stop::environment("the controller ended before it started this job"));
    }
    carry_out(world, &CampaignPlaces::at(&flags.dir), &Real)
}

/// Carries out the job in the folder `places` with these instruments.
///
/// # Errors
/// Those of [`run`], except for the controller's end.
pub(crate) fn carry_out(
    world: &World,
    places: &CampaignPlaces,
    instruments: &dyn Instruments,
) -> Result<Exit, Stop> {
    let held = format!("another process carries out the job in `{}`", places.dir.display());
    let _lock = Lock::take_or(&places.dir.join("node.lock"), world.pid, &held)?;
    // The job may be started again after it has finished, by its scheduler or by hand.
    if Done::read(places)?.is_some() {
        return Ok(Exit::Well);
    }
    let job = &Job::read(places)?;
    let console = if job.watched { world.console.followed() } else { world.console };
    let world = &World { console, ..world.clone() };
    let (lines, held) = Lines::open::<Step>(&places.steps())?;
    let progress = Progress::of(&held.lines);
    let noted = BTreeSet::new();
    let shared = SharedServer::default();
    let mut node = Node { world, instruments, places, job, lines, progress, noted, shared };
    let end = match node.carry_out() {
        Ok(end) => end,
        // No final report after an interrupt: the job can be resumed.
        Err(stop) if world.interrupt.raised() => return Err(stop),
        Err(stop) => {
            eprintln!("{}", untrusted::lines(&stop.to_string()));
            NodeEnd::stopped(&stop)
        }
    };
    let exit = end.stop().map_or(Exit::Well, |stop| stop.exit());
    let files = std::mem::take(&mut node.progress.files);
    Done { end, files }.write(places)?;
    Ok(exit)
}

/// What a job measures with: the machine that it is on, and servers. Simulations make both up.
pub(crate) trait Instruments {
    /// Returns facts about the machine's hardware, or the reason why it cannot measure the job in
    /// the folder `dir`.
    ///
    /// # Errors
    /// The wait for a tool was interrupted, or the hardware cannot be detected.
    fn inspect(&self, world: &World, job: &Job, dir: &Path) -> Result<Inspected, Stop>;

    /// Executes a planned run and returns its record without findings and hash.
    ///
    /// # Errors
    /// Those of [`Bench::run_unsealed`].
    fn run(
        &self,
        bench: &Bench<'_>,
        planned: &PlannedRun,
        spec: &ServerSpec,
        cell: &ReadyCell,
        shared: &mut SharedServer,
    ) -> Result<RunRecord, Stop>;

    /// Adds starts to those of an alternating comparison.
    ///
    /// # Errors
    /// Those of [`Alternating::carry_out`].
    fn alternate(
        &self,
        alternating: &Alternating<'_>,
        earlier: Vec<Start>,
        after: &mut dyn FnMut(&AlternatingComparison) -> Result<(), Stop>,
    ) -> Result<AlternatingComparison, Stop>;
}

/// Facts about a machine's hardware, or the reason why it cannot measure a job.
pub(crate) type Inspected = Result<HardwareFacts, String>;

/// This machine, and servers that are started on it.
struct Real;

impl Instruments for Real {
    fn inspect(&self, world: &World, job: &Job, dir: &Path) -> Result<Inspected, Stop> {
        let machine = hardware::detect(world)?;
        Ok(match unfit(world, job, dir, &machine)? {
            Some(said) => Err(said),
            None => Ok(machine.facts(&machine.id(job.on_gpu))),
        })
    }

    fn run(
        &self,
        bench: &Bench<'_>,
        planned: &PlannedRun,
        spec: &ServerSpec,
        cell: &ReadyCell,
        shared: &mut SharedServer,
    ) -> Result<RunRecord, Stop> {
        bench.run_unsealed(planned, spec, cell, shared, &mut |_| Ok(()))
    }

    fn alternate(
        &self,
        alternating: &Alternating<'_>,
        earlier: Vec<Start>,
        after: &mut dyn FnMut(&AlternatingComparison) -> Result<(), Stop>,
    ) -> Result<AlternatingComparison, Stop> {
        alternating.carry_out(earlier, after)
    }
}

/// Waits for the line [`GO`] on standard input; returns false if the controller ends before it
/// sends the line.
fn may_begin() -> bool {
    let mut line = String::new();
    stdin().lock().read_line(&mut line).is_ok() && line.trim() == GO
}

/// A job in progress on this node.
struct Node<'a> {
    world: &'a World,
    instruments: &'a dyn Instruments,
    places: &'a CampaignPlaces,
    job: &'a Job,
    lines: Lines,
    progress: Progress,
    /// Names of the calibrated rates that this process has reported as different from earlier
    /// calibrations, so that each rate is reported once.
    noted: BTreeSet<&'static str>,
    shared: SharedServer,
}

impl Node<'_> {
    fn carry_out(&mut self) -> Result<NodeEnd, Stop> {
        let (world, job) = (self.world, self.job);
        self.lines.append(&Step::Began)?;
        // An earlier process on this job was interrupted within the block. The starts of an
        // alternating comparison stay.
        if let Some(block) = self.progress.block_open.filter(|_| job.alternation.is_none()) {
            self.set_aside(block)?;
        }
        let detected = match self.instruments.inspect(world, job, &self.places.dir)? {
            Ok(facts) => facts,
            Err(said) => return Ok(NodeEnd::Unfit { said }),
        };
        let hardware = job.hardware.clone().map_or(detected, |of| of.0);
        if let Some(planned) = job.alternation {
            self.alternate(planned, &hardware)?;
            return Ok(NodeEnd::Well);
        }
        // One calibration serves as "after" of a block and "before" of the next.
        let mut before = self.calibrate()?;
        for block in job.blocks() {
            if self.progress.blocks_done.contains(&block) {
                continue;
            }
            let records = self.block(block, &hardware)?;
            let after = self.calibrate()?;
            self.write(block, records, before.zip(after))?;
            before = after;
        }
        Ok(NodeEnd::Well)
    }

    /// Makes the alternating comparison of the job's two runs, from the starts that an earlier
    /// process has left.
    fn alternate(
        &mut self,
        planned: PlannedAlternation,
        hardware: &HardwareFacts,
    ) -> Result<(), Stop> {
        let (world, job, places) = (self.world, self.job, self.places);
        let [baseline, candidate] = job.runs.as_slice() else {
            let count = job.runs.len();
            return Err(wrong_use!("an alternating comparison has two runs, not {count}"));
        };
        let block = baseline.block;
        if self.progress.blocks_done.contains(&block) {
            return Ok(());
        }
        self.lines.append(&Step::BlockBegun { block })?;
        self.lines.append(&Step::RunBegun { run: baseline.run.clone() })?;
        let read = |file: &FileFact| verified(&places.dir, file);
        let earlier = self.progress.starts.iter().map(read).collect::<Result<Vec<Start>, _>>()?;
        let bench = bench(world, job, self.places, hardware);
        let alternating = Alternating {
            bench: &bench,
            cell: &job.cell(baseline)?.ready,
            specs: [baseline, candidate].map(|run| &job.variants[run.variant]),
            planned: [baseline, candidate],
            family: planned.family,
            budget: Duration::from_micros(planned.budget_us),
            until: Until::Decided,
        };
        let mut since_us = earlier.last().map_or(0, |start| start.end_us);
        let lines = &mut self.lines;
        let comparison = self.instruments.alternate(&alternating, earlier, &mut |comparison| {
            let Some(start) = comparison.starts.last() else { return Ok(()) };
            let path = start_path(comparison.starts.len() - 1);
            write_json(&places.dir.join(&path), start)?;
            let file = FileFact::of(&places.dir, &path)?;
            let wall_us = start.end_us.saturating_sub(since_us);
            since_us = start.end_us;
            let said = vec![text::passing(comparison)];
            lines.append(&Step::StartEnded { file, said, wall_us }).map_err(Stop::from)
        })?;
        write_json(&places.dir.join(COMPARISON), &comparison)?;
        let files = vec![FileFact::of(&places.dir, COMPARISON)?];
        self.finish_block(block, files)
    }

    /// Notes the files of a finished block.
    fn finish_block(&mut self, block: u32, files: Vec<FileFact>) -> Result<(), Stop> {
        // The final report lists what the progress has, and must not list what the log does not.
        self.lines.append(&Step::BlockDone { block, files: files.clone() })?;
        self.progress.files.extend(files);
        self.progress.blocks_done.insert(block);
        Ok(())
    }

    /// Calibrates the machine if a processor is measured, and notes rates that differ from earlier
    /// calibrations. Returns `None` for a GPU and for a server that is already running.
    fn calibrate(&mut self) -> Result<Option<Calibration>, Stop> {
        // Calibration would disturb a server that runs already, and there is none of a GPU.
        if self.job.url.is_some() || self.job.on_gpu {
            return Ok(None);
        }
        let (cache, host) = (&self.world.cache.dir, self.world.identity.host.as_deref());
        let history = History::read(cache, host.unwrap_or_default());
        let found = calibration::calibrate(self.world.cores, self.world.clock);
        for said in history.unlike(found) {
            // Later calibrations are likely to find the same deviation.
            if self.noted.insert(said.figure) {
                self.lines.append(&Step::Noted { said: said.text })?;
            }
        }
        history.keep(found, cache, host.unwrap_or_default())?;
        Ok(Some(found))
    }

    /// Measures every run of a block and returns the records, without calibration, findings and
    /// hash.
    fn block(&mut self, block: u32, hardware: &HardwareFacts) -> Result<Vec<RunRecord>, Stop> {
        self.lines.append(&Step::BlockBegun { block })?;
        let runs = self.job.runs.iter().filter(|run| run.block == block);
        runs.map(|run| self.measure(run, hardware)).collect()
    }

    /// Writes the records of a block, then marks the block as done in the step log. A block with
    /// only some of its records must not count, because pairs of runs are compared.
    fn write(
        &mut self,
        block: u32,
        records: Vec<RunRecord>,
        calibrations: Option<(Calibration, Calibration)>,
    ) -> Result<(), Stop> {
        let mut files = Vec::new();
        for mut record in records {
            record.calibration =
                calibrations.map(|(before, after)| calibration::facts(before, after));
            judge::seal(&mut record)?;
            let path = record_path(&record.id);
            let text = to_file_text(&record)?;
            files::write_whole(&self.places.dir.join(&path), text.as_bytes())?;
            files.push(FileFact::of(&self.places.dir, &path)?);
        }
        self.finish_block(block, files)
    }

    fn measure(&mut self, run: &PlannedRun, hardware: &HardwareFacts) -> Result<RunRecord, Stop> {
        let (world, job) = (self.world, self.job);
        world.interrupt.check()?;
        self.budget_allows(run)?;
        self.lines.append(&Step::RunBegun { run: run.run.clone() })?;
        let variant = &job.variants[run.variant];
        let bench = bench(world, job, self.places, hardware);
        let (started, started_ms) = (world.clock.elapsed(), world.clock.unix_ms());
        let cell = &job.cell(run)?.ready;
        self.shared.is_kept = job.shares_server_with_next(run);
        let mut record = self.instruments.run(&bench, run, variant, cell, &mut self.shared)?;
        let took = world.clock.elapsed().saturating_sub(started);
        if let Some(step_ms) = clock_step_ms(started_ms, world.clock.unix_ms(), took) {
            degrade(&mut record, step_ms);
        }
        let wall_us = micros(took);
        self.progress.wall_us += wall_us;
        let said = outcome(&record);
        self.lines.append(&Step::RunEnded { run: run.run.clone(), said, wall_us })?;
        Ok(record)
    }

    /// Returns an error if the next run is expected to exceed what is left of the job's GPU-hours.
    /// A run of unknown duration is expected to take none.
    fn budget_allows(&self, run: &PlannedRun) -> Result<(), Stop> {
        let job = self.job;
        let Some(most) = job.gpu_hours_max else { return Ok(()) };
        let used = gpu_hours(self.progress.wall_us, job.gpus());
        let next = gpu_hours(job.cell(run)?.expected_us[run.variant], job.gpus());
        if used + next <= most {
            return Ok(());
        }
        let message = format!("{used:.1} GPU-hours are used, and the next run may take {next:.1}");
        Err(wrong_use!("{message}: {most:.1} are allowed"))
    }

    /// Moves the files of the runs of an interrupted block into a folder of their own, so that the
    /// block can be measured again.
    fn set_aside(&mut self, block: u32) -> Result<(), Stop> {
        let folder = format!("{}", self.progress.aside + 1);
        let aside = self.places.dir.join("aside").join(&folder);
        for run in self.job.runs.iter().filter(|run| run.block == block) {
            self.remove_container(run);
            let record = self.places.dir.join(record_path(&run.run));
            for path in [self.places.log(&run.run), self.places.measurement(&run.run), record] {
                let Some(name) = path.file_name().filter(|_| path.exists()) else { continue };
                files::make_dir(&aside)?;
                let to = aside.join(name);
                let moved =
                    announce(Change::Rename(&path, &to)).and_then(|()| fs::rename(&path, &to));
                moved.map_err(FileError::at("move", &path))?;
            }
        }
        Ok(self.lines.append(&Step::SetAside { block, folder })?)
    }

    /// Removes the container of an interrupted run, which may have outlived the node's process.
    fn remove_container(&self, run: &PlannedRun) {
        let image = self.job.variants[run.variant].built.image.as_ref();
        let words = image.and_then(|image| image.runtime.removal(&container_name(&run.run)));
        if let Some((program, args)) = words.as_deref().and_then(<[_]>::split_first) {
            // A container that does not exist needs no removal.
            let _ = Command::new(program).args(args).output();
        }
    }
}

/// Returns the settings and facts that the runs of a job share.
fn bench<'a>(
    world: &'a World,
    job: &'a Job,
    places: &'a CampaignPlaces,
    hardware: &'a HardwareFacts,
) -> Bench<'a> {
    Bench {
        world,
        campaign: &job.campaign,
        executor: &job.executor,
        places,
        hardware,
        url: job.url.as_deref(),
        timeout_s: job.timeout_s,
        limit: None,
    }
}

/// Summarizes a run in lines for the terminal. The first line has its rates, such as `1.52
/// requests/s, 301.40 output tokens/s`, or `no figures`; either is followed by its failure, if it
/// failed, and by its verdict, if that is not VALID. The reasons of the verdict are the other lines.
fn outcome(record: &RunRecord) -> Vec<String> {
    let mut line = match (&record.metrics, record.status) {
        (Some(metrics), Status::Ok | Status::Partial) => {
            let rate = |value: Option<f64>| value.map_or("?".to_owned(), |v| format!("{v:.2}"));
            let (requests, tokens) = (metrics.requests_per_s, metrics.output_tokens_per_s);
            format!("{} requests/s, {} output tokens/s", rate(requests), rate(tokens))
        }
        _ => "no figures".to_owned(),
    };
    if let Some(failure) = &record.failure {
        line.push_str("; failed: ");
        line.push_str(failure.message.lines().next().unwrap_or_default());
    }
    match record.validity.verdict {
        ValidityVerdict::Valid => {}
        ValidityVerdict::Degraded => line.push_str("; DEGRADED"),
        ValidityVerdict::Invalid => line.push_str("; INVALID"),
    }
    let mut said = vec![line];
    said.extend_from_slice(&record.validity.reasons);
    said
}

/// Returns by how many milliseconds the wall clock was set during a run, compared with a steady
/// clock, negative if it was set back; `None` up to [`CLOCK_STEP_MS_MIN`].
fn clock_step_ms(before_ms: u64, after_ms: u64, took: Duration) -> Option<i64> {
    let wall = i64::try_from(after_ms).ok()? - i64::try_from(before_ms).ok()?;
    let step = wall - i64::try_from(took.as_millis()).ok()?;
    (step.unsigned_abs() > CLOCK_STEP_MS_MIN).then_some(step)
}

/// Marks a record as DEGRADED, unless it is INVALID, because the wall clock was set during the run:
/// its times of day are wrong, its durations are not.
fn degrade(record: &mut RunRecord, step_ms: i64) {
    let reason = format!(
        "clock-step: the wall clock was set by {step_ms:+} ms during the run; durations are of \
         another clock"
    );
    record.validity.verdict = record.validity.verdict.max(ValidityVerdict::Degraded);
    record.validity.reasons.push(reason);
}

/// Free disk space, in bytes, that a node must have for the logs, measurements and records of a
/// job.
const FREE_BYTES_MIN: u64 = 256 << 20;

/// Returns the reason why this node cannot measure the job; `None` if it can.
///
/// # Errors
/// The wait for a tool was interrupted.
fn unfit(
    world: &World,
    job: &Job,
    dir: &Path,
    machine: &Machine,
) -> Result<Option<String>, ProcessError> {
    for (path, bytes) in &job.inputs {
        let shown = path.display();
        match size(path) {
            // Typically a path that is not on the cluster's shared file system.
            None => return Ok(Some(format!("`{shown}` is not on this node"))),
            Some(found) if found != *bytes => {
                let said = format!("`{shown}` has {found} bytes on this node, expected {bytes}");
                return Ok(Some(said));
            }
            Some(_) => {}
        }
    }
    if let Ok(disk) = statvfs(dir) {
        let free = disk.blocks_available() * disk.fragment_size();
        if free < FREE_BYTES_MIN {
            let (free, wanted) = (free >> 20, FREE_BYTES_MIN >> 20);
            let said = format!("{free} MiB of disk are free for the job, which needs {wanted} MiB");
            return Ok(Some(said));
        }
    }
    let mut version = world.tools.bench("--version");
    let answer = attempted(process::capture(&mut version, &world.interrupt))?;
    if !answer.is_some_and(|answer| answer.status.success()) {
        return Ok(Some(format!("`{BENCH}` does not run on this node")));
    }
    if let Some(expected) = &job.hardware_id
        && job.url.is_none()
    {
        let found = machine.id(job.on_gpu);
        if found != *expected {
            return Ok(Some(format!("this node is `{found}`, the campaign measures `{expected}`")));
        }
    }
    if !job.on_gpu {
        return Ok(None);
    }
    let errors = hardware::memory_errors(world)?;
    Ok(unfit_gpus(job.gpus(), machine, errors))
}

/// Returns the reason why the node's GPUs cannot be measured, `None` if they can: too few, in use
/// by others, divided, or with uncorrected memory errors.
fn unfit_gpus(wanted: u32, machine: &Machine, errors: Option<u64>) -> Option<String> {
    let found = machine.gpus.len();
    if found < wanted as usize {
        return Some(format!("the job needs {wanted} GPUs, and this node has {found}"));
    }
    if let Some(count) = machine.gpu_processes.filter(|count| *count > 0) {
        return Some(format!("{count} other processes are on the GPUs of this node"));
    }
    let shared = |gpu: &Gpu| gpu.state.as_ref().is_some_and(|state| state.mig == Some(true));
    if machine.gpus.iter().any(shared) {
        return Some("a GPU of this node is divided (MIG or partitions)".to_owned());
    }
    let errors = errors.filter(|count| *count > 0);
    errors.map(|count| format!("{count} uncorrected memory errors on the GPUs of this node"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_set_during_a_run_degrades_its_record() {
        let minute = Duration::from_secs(60);
        assert_eq!(clock_step_ms(1_000, 61_900, minute), None, "adjusted");
        assert_eq!(clock_step_ms(1_000, 3_661_000, minute), Some(3_600_000));
        assert_eq!(clock_step_ms(1_000_000, 1_000, minute), Some(-1_059_000));
        let mut record = RunRecord::default();
        degrade(&mut record, -1_059_000);
        assert_eq!(record.validity.verdict, ValidityVerdict::Degraded);
        let said = &record.validity.reasons[0];
        assert!(said.starts_with("clock-step: ") && said.contains("-1059000 ms"), "{said}");
        record.validity.verdict = ValidityVerdict::Invalid;
        degrade(&mut record, 2_000);
        assert_eq!(record.validity.verdict, ValidityVerdict::Invalid, "no better than it was");
    }
}

#[cfg(test)]
mod fitness_tests {
    use schema::run::GpuState;

    use super::*;

    #[test]
    fn gpus_have_to_be_enough_idle_whole_and_sound() {
        let gpu = Gpu::default();
        let state = GpuState { mig: Some(true), ..GpuState::default() };
        let divided = Gpu { state: Some(state), ..gpu.clone() };
        let machine = |gpus: &[&Gpu], processes| Machine {
            gpus: gpus.iter().map(|gpu| (*gpu).clone()).collect(),
            gpu_processes: processes,
            ..Machine::default()
        };
        for (machine, errors, said) in [
            (machine(&[&gpu], Some(0)), None, Some("the job needs 2 GPUs, and this node has 1")),
            (machine(&[&gpu, &gpu], Some(3)), None, Some("3 other processes are on the GPUs")),
            (machine(&[&gpu, &divided], None), None, Some("a GPU of this node is divided")),
            (machine(&[&gpu, &gpu], Some(0)), Some(7), Some("7 uncorrected memory errors")),
            (machine(&[&gpu, &gpu], Some(0)), Some(0), None),
            (machine(&[&gpu, &gpu], None), None, None),
        ] {
            let found = unfit_gpus(2, &machine, errors);
            match said {
                Some(said) => {
                    assert!(found.as_deref().is_some_and(|f| f.starts_with(said)), "{found:?}")
                }
                None => assert_eq!(found, None),
            }
        }
    }
}
