//! Results of a bundle, which the command `gpu-validation collect` turns into records of runs and of
//! kernels, pages and a commit.

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
use schema::exit::Exit;
use schema::gpu_validation::{Outcome, Stage, StageReport, StageWork, ValidationBundle};
use schema::kernel::{KernelBench, KernelRecord, ModelBench};
use schema::run::Time;
use schema::untrusted::parser_message;
use serde::de::DeserializeOwned;
use serde_json::{Deserializer, Value};

use super::run::{MachineFile, line};
use super::{MACHINE, read_bundle, read_json, stage_file};
use crate::cli::CollectFlags;

/// Reads the results of a bundle, prints the outcome of each stage, and writes the records of
/// measured runs and kernels to the folder of staged results. If at least one run was measured and
/// the bundle is of a release, these records are committed to the registry; otherwise they are not.
///
/// # Errors
/// The folder or archive contains no readable results of a bundle, a program of Redline is missing,
/// the records, pages or site cannot be written, the registry refuses the records, or the wait is
/// interrupted.
pub fn collect(world: &World, flags: &CollectFlags) -> Result<Exit, Stop> {
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
    let figures = results.figures();
    for (what, count) in [("kernels", figures.kernels.len()), ("models ", figures.models.len())] {
        if count > 0 {
            world.console.answer(&format!("{what}  {count}"))?;
        }
    }
    results.write_kernel_record(figures)?;
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

/// Figures that `redline bench --json` printed in the command stages of a bundle that are done.
#[derive(Debug, Default)]
struct Figures {
    kernels: Vec<KernelBench>,
    models: Vec<ModelBench>,
    /// Duration of the stages with figures together, in microseconds.
    wall_us: u64,
    /// Start of the first stage with figures, RFC 3339 in UTC.
    started_at: Option<String>,
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
            random_order_seed: self.described.random_order_seed,
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

    /// Collects the figures that the command stages printed. Each document of a stage's output counts,
    /// because a command may run `redline bench` several times.
    fn figures(&self) -> Figures {
        let mut figures = Figures::default();
        for stage in &self.described.stages {
            let report = self.report(stage).filter(|report| report.outcome == Outcome::Done);
            let (StageWork::Command { model, .. }, Some(report)) = (&stage.work, report) else {
                continue;
            };
            let before = figures.kernels.len() + figures.models.len();
            for document in self.documents(stage) {
                if let Some(kernels) = document.get("kernels") {
                    let kernels = self.read::<Vec<KernelBench>>(stage, kernels.clone());
                    figures.kernels.extend(kernels.into_iter().flatten());
                }
                // The output has the path of the model; the record has its id.
                if let (Some(id), true) = (model, document.get("decode").is_some()) {
                    let bench = self.read::<ModelBench>(stage, document);
                    let named = bench.map(|bench| ModelBench { model: id.clone(), ..bench });
                    figures.models.extend(named);
                }
            }
            if figures.kernels.len() + figures.models.len() > before {
                figures.wall_us += report.wall_us;
                figures.started_at.get_or_insert_with(|| report.started_at.clone());
            }
        }
        figures
    }

    /// Reads the JSON documents that the command of a stage printed, up to the first text that is
    /// none. Other commands print none, which is no error.
    fn documents(&self, stage: &Stage) -> Vec<Value> {
        let printed = fs::read(stage_file(&self.dir, &stage.id, "stdout")).unwrap_or_default();
        Deserializer::from_slice(&printed).into_iter().map_while(Result::ok).collect()
    }

    /// Reads figures that the command of a stage printed; prints a note and returns `None` where
    /// they have another form, such as those of an older release.
    fn read<T: DeserializeOwned>(&self, stage: &Stage, figures: Value) -> Option<T> {
        let note = |error: &serde_json::Error| {
            let (id, said) = (&stage.id, parser_message(error));
            self.world.console.note(&format!("figures of stage `{id}` are left out: {said}"));
        };
        serde_json::from_value(figures).inspect_err(note).ok()
    }

    /// Writes the figures as one record to the staged results; writes none if there are no figures.
    /// The record has the bundle's own id, so that collecting again gives the same record.
    ///
    /// # Errors
    /// The record has no canonical JSON form or no path under `results/`, or it cannot be written.
    fn write_kernel_record(&self, figures: Figures) -> Result<(), Stop> {
        let Figures { kernels, models, wall_us, started_at } = figures;
        if kernels.is_empty() && models.is_empty() {
            return Ok(());
        }
        let mut models = models.into_iter();
        let mut record = KernelRecord {
            schema: schema::kernel::SCHEMA.to_owned(),
            id: self.described.campaign.clone(),
            engine: self.described.engine.clone(),
            hardware: self.machine.hardware.clone(),
            time: Time { started_at, wall_us: Some(wall_us), ..Time::default() },
            model_bench: models.next(),
            further_model_benches: models.collect(),
            ..KernelRecord::default()
        };
        fill(&mut record, kernels)?;
        let place = schema::path::of_kernels(&record)?;
        write(&self.staged, &place, &record)?;
        Ok(())
    }
}
