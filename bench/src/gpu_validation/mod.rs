//! GPU validation of a release on a machine without network and compiler, such as one that is
//! rented for an hour. A bundle is packed on a machine with network and compiler, run on the GPU
//! machine stage by stage, and its results are collected in the registry.
//!
//! `gpu-validation collect` turns the results of a bundle into records of runs and of kernels, pages
//! and a commit.

mod archive;
mod cubins;
mod each_test;
pub mod pack;
pub mod run;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use campaign::files;
use campaign::kernels::fill;
use campaign::places::CampaignPlaces;
use campaign::plan::release::is_development;
use campaign::process::{self, describe};
use campaign::publish::{Named, Registry, write, write_campaign};
use campaign::stop::Stop;
use campaign::world::World;
use schema::campaign::{CampaignRecord, CampaignStatus, PlannedRun, SCHEMA};
use schema::canonical::to_file_text;
use schema::exit::Exit;
use schema::gpu_validation::{
    BUNDLE_SCHEMA, Outcome, Stage, StageReport, StageWork, ValidationBundle,
};
use schema::kernel::{KernelBench, KernelRecord};
use schema::run::Time;
use schema::untrusted::parser_message;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use self::run::{MachineFile, line};
use crate::cli::{CollectFlags, GpuValidation, HereFlags};

/// File name of the facts about a bundle (its release, stages and limits), in the bundle's folder
/// and in that of its results.
const DESCRIPTION: &str = "bundle.json";
/// File name of the facts about the measured machine, in the folder of a bundle's results.
const MACHINE: &str = "machine.json";

/// Returns the path of a file of the stage `stage` in the results' folder: its report (extension
/// `json`), or an output of its command (`stdout`, `stderr`).
fn stage_file(results: &Path, stage: &str, extension: &str) -> PathBuf {
    results.join("stages").join(format!("{stage}.{extension}"))
}

/// Returns the path in a bundle of the workload manifest that was drawn for a scenario with a
/// tokenizer.
fn plan_file(bundle: &Path, scenario: &str, tokenizer: &str) -> PathBuf {
    bundle.join("plans").join(format!("{scenario}-{tokenizer}.json"))
}

/// Runs a subcommand of `gpu-validation`: pack, here, run or collect.
///
/// # Errors
/// The command line is wrong, the machine does not fit, a program is missing or does not build, a
/// file cannot be obtained, read or written, git or the registry refuses the records, or the run is
/// interrupted. A failing stage is no error, but gives exit code 1.
pub fn run(world: &World, step: &GpuValidation) -> Result<Exit, Stop> {
    match step {
        GpuValidation::Pack(flags) => pack::run(world, flags).map(|_| Exit::Well),
        GpuValidation::Here(flags) => here(world, flags),
        GpuValidation::Run(flags) => run::run(world, flags),
        GpuValidation::Collect(flags) => collect(world, flags),
    }
}

/// Packs a GPU validation, runs the bundle on this machine, and collects its results, also those of
/// stages that failed.
fn here(world: &World, flags: &HereFlags) -> Result<Exit, Stop> {
    let bundle = pack::run(world, &flags.pack)?;
    let results = bundle.with_file_name(format!("results-{}", read_bundle(&bundle)?.campaign));
    let mut validate = Command::new(bundle.join(pack::SCRIPT_NAME));
    validate.arg("--out").arg(&results);
    let status = process::show(&mut validate, &world.interrupt)?;
    // One failed stage does not make the figures of the others worthless.
    if !status.success() && status.code() != Some(Exit::Worse.code().into()) {
        let said = describe(status);
        return Err(Stop::environment(format!("the stages could not be run: {said}")));
    }
    collect(world, &CollectFlags { results, registry: flags.registry.clone() })
}

/// Reads `bundle.json`, the facts about a bundle (such as its release and stages), from `dir`, the
/// folder of the bundle or of its results.
fn read_bundle(dir: &Path) -> Result<ValidationBundle, Stop> {
    let path = dir.join(DESCRIPTION);
    let described: ValidationBundle = read_json(&path)?;
    let found = &described.schema;
    if found != BUNDLE_SCHEMA {
        return Err(Stop::wrong_use(format!(
            "`{}` is a `{found}`, and this program reads `{BUNDLE_SCHEMA}`",
            path.display()
        )));
    }
    Ok(described)
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, Stop> {
    serde_json::from_str(&files::read_text(path)?).map_err(|error| {
        let said = parser_message(&error);
        Stop::wrong_use(format!("`{}` cannot be read: {said}", path.display()))
    })
}

fn write_json<T: Serialize>(path: &Path, document: &T) -> Result<(), Stop> {
    let text = to_file_text(document)?;
    Ok(files::write_whole(path, text.as_bytes())?)
}

/// Reads the results of a bundle, prints the outcome of each stage, and writes the records of
/// measured runs and kernels to the folder of staged results. If at least one run was measured and
/// the bundle is of a release, these records are committed to the registry; otherwise they are not.
///
/// # Errors
/// The folder or archive contains no readable results of a bundle, a program of Redline is missing,
/// the records, pages or site cannot be written, the registry refuses the records, or the wait is
/// interrupted.
fn collect(world: &World, flags: &CollectFlags) -> Result<Exit, Stop> {
    world.tools.check()?;
    let dir = unpacked(world, &flags.results)?;
    let described = read_bundle(&dir)?;
    let results = Results {
        world,
        machine: read_json(&dir.join(MACHINE))?,
        reports: reports(&described, &dir)?,
        staged: CampaignPlaces::at(&dir).staged(),
        described,
        dir,
    };
    for stage in &results.described.stages {
        let said = results.report(stage).map_or("not run".to_owned(), line);
        world.console.answer(&format!("{:<40} {said}", stage.id))?;
    }
    let kernels = results.kernel_record()?;
    if kernels > 0 {
        world.console.answer(&format!("kernels  {kernels}"))?;
    }
    let mut campaign = results.campaign_record();
    if campaign.plan.is_empty() {
        world.console.answer("records  none: no scenario was run")?;
        return Ok(results.exit());
    }
    write_campaign(&results.staged, &mut campaign)?;
    results.publish(flags, campaign.plan.len())?;
    Ok(results.exit())
}

/// Results of a bundle, read from the folder into which its stages wrote them.
struct Results<'a> {
    world: &'a World,
    dir: PathBuf,
    described: ValidationBundle,
    machine: MachineFile,
    /// Reports of the bundle's stages that have run, in the bundle's order of stages.
    reports: Vec<StageReport>,
    /// Folder of the staged results: the records that `collect` writes before they enter the
    /// registry.
    staged: PathBuf,
}

/// Returns the folder of a bundle's results; unpacks it first if the path `given` is an archive.
fn unpacked(world: &World, given: &Path) -> Result<PathBuf, Stop> {
    if given.is_dir() {
        return Ok(given.to_owned());
    }
    let name = given.file_name().unwrap_or_default().to_string_lossy().replace(".tar.gz", "");
    let dir = world.places.target("validations/collected").join(name);
    // An earlier archive of the same name may have had other files.
    if dir.exists() {
        fs::remove_dir_all(&dir).map_err(files::FileError::at("clear", &dir))?;
    }
    files::make_dir(&dir)?;
    let mut tar = Command::new("tar");
    // The archive consists of one archive for each stage.
    tar.args(["--ignore-zeros", "-xzf"]).arg(given).arg("-C").arg(&dir);
    let status = process::show(&mut tar, &world.interrupt)?;
    if status.success() {
        return Ok(dir);
    }
    let message = format!("`{}` cannot be unpacked: tar ended with", given.display());
    Err(Stop::wrong_use(format!("{message} {}", describe(status)))
        .with_hint("give the archive or the folder that `validate --out` wrote"))
}

/// Reads the reports of the bundle's stages that have run, in the bundle's order of stages.
fn reports(described: &ValidationBundle, results: &Path) -> Result<Vec<StageReport>, Stop> {
    let paths = described.stages.iter().map(|stage| stage_file(results, &stage.id, "json"));
    paths.filter(|path| path.exists()).map(|path| read_json(&path)).collect()
}

/// The field `kernels` of a stage command's JSON output; other fields are ignored.
#[derive(Debug, Deserialize)]
struct Printed {
    kernels: Vec<KernelBench>,
}

impl Results<'_> {
    fn report(&self, stage: &Stage) -> Option<&StageReport> {
        self.reports.iter().find(|report| report.stage == stage.id)
    }

    /// Returns the exit code of `collect`: success only if every stage of the bundle has a report
    /// and none failed.
    fn exit(&self) -> Exit {
        let failed = self.reports.iter().any(|report| report.outcome == Outcome::Failed);
        // A skipped stage has a report and does not count as missing.
        let missing = self.reports.len() < self.described.stages.len();
        if failed || missing { Exit::Worse } else { Exit::Well }
    }

    fn campaign_record(&self) -> CampaignRecord {
        let mut plan = Vec::new();
        let (mut wall_us, mut failed) = (0, false);
        for stage in &self.described.stages {
            let StageWork::Scenario { model, scenario, run, position, .. } = &stage.work else {
                continue;
            };
            let Some(report) = self.report(stage) else { continue };
            wall_us += report.wall_us;
            failed |= report.outcome == Outcome::Failed;
            plan.push(PlannedRun {
                run: run.clone(),
                engine: self.described.engine.name.clone(),
                release: self.described.engine.release.clone(),
                model: model.clone(),
                scenario: scenario.clone(),
                // The run is a block of its own: nothing is measured in alternation with it.
                block: *position,
                position: 0,
                stage: None,
            });
        }
        CampaignRecord {
            schema: SCHEMA.to_owned(),
            id: self.described.campaign.clone(),
            command: self
                .world
                .command
                .iter()
                .map(|word| self.world.identity.redact(word))
                .collect(),
            releases: vec![self.described.engine.release.clone()],
            hardware: self.machine.hardware.id.clone(),
            plan,
            budget: [("wall_us".to_owned(), Value::from(wall_us))].into(),
            status: if failed { CampaignStatus::Partial } else { CampaignStatus::Complete },
            ..CampaignRecord::default()
        }
    }

    /// Commits the staged records to the registry and builds the site, if the bundle is of a
    /// release; only prints the table of results if it is of a working tree.
    fn publish(&self, flags: &CollectFlags, runs: usize) -> Result<(), Stop> {
        let world = self.world;
        let dir = flags.registry.clone().unwrap_or_else(|| world.places.root.clone());
        let registry = Registry::new(world, &dir);
        let (engine, release) = (&self.described.engine.name, &self.described.engine.release);
        let hardware = &self.machine.hardware.id;
        let named = Named { engine, release, hardware };
        let version = release.trim_start_matches('v');
        // The registry refuses records of a working tree, so they are only shown.
        if self.described.engine.dirty != Some(false) || is_development(version) {
            registry.print_table(named, Some(&self.staged))?;
            let shown = world.places.shown(&self.staged);
            world
                .console
                .answer(&format!("records  {shown} (of a working tree: not committed)"))?;
            return Ok(());
        }
        // An unfit repository is reported here, before the pages are rendered.
        registry.preflight()?;
        registry.render_pages(&self.staged)?;
        let message = format!(
            "results: {engine} {release} on {hardware}\n\nruns: {runs}; validation {}, campaign {}\n",
            self.described.validation, self.described.campaign
        );
        let commit = registry.record(&self.staged, &message)?;
        registry.build_site(&world.places.site())?;
        registry.print_table(named, None)?;
        world.console.answer(&format!("commit   {}", commit.as_deref().unwrap_or("none")))?;
        Ok(())
    }

    /// Collects the kernel benchmarks from the outputs of all command stages that are done, writes
    /// them as one record to the staged results, and returns their number; writes no record if
    /// there are none. The record has the bundle's own id, so that collecting again gives the same
    /// record.
    ///
    /// # Errors
    /// The record has no canonical JSON form or no path under `results/`, or it cannot be written.
    fn kernel_record(&self) -> Result<usize, Stop> {
        let (mut benches, mut wall_us, mut started_at) = (Vec::new(), 0, None);
        for stage in &self.described.stages {
            let report = self.report(stage).filter(|report| report.outcome == Outcome::Done);
            let (StageWork::Command { .. }, Some(report)) = (&stage.work, report) else { continue };
            let printed = fs::read(stage_file(&self.dir, &stage.id, "stdout")).unwrap_or_default();
            // Other commands print no such document, which is no error.
            let Ok(Printed { kernels }) = serde_json::from_slice(&printed) else { continue };
            benches.extend(kernels);
            wall_us += report.wall_us;
            started_at.get_or_insert_with(|| report.started_at.clone());
        }
        let count = benches.len();
        if count == 0 {
            return Ok(0);
        }
        let mut record = KernelRecord {
            schema: schema::kernel::SCHEMA.to_owned(),
            id: self.described.campaign.clone(),
            engine: self.described.engine.clone(),
            hardware: self.machine.hardware.clone(),
            time: Time { started_at, wall_us: Some(wall_us), ..Time::default() },
            ..KernelRecord::default()
        };
        fill(&mut record, benches)?;
        let place = schema::path::of_kernels(&record)?;
        write(&self.staged, &place, &record)?;
        Ok(count)
    }
}
