//! One stage of a GPU validation: runs a command, or serves a model and measures a scenario.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use schema::gpu_validation::{Outcome, Stage, StageWork, ValidationBundle};
use schema::run::{HardwareFacts, RunRecord};

use crate::gpu_validation::pack::{TESTS, tokenizer_of};
use crate::gpu_validation::{plan_file, stage_file};
use crate::local_bench;
use campaign::files::{self, FileError};
use campaign::inputs::cache::sha256_file;
use campaign::inputs::{CONFIG, GIVEN, Obtained, TOKENIZER};
use campaign::node::record::is_bad;
use campaign::node::run::Bench;
use campaign::places::CampaignPlaces;
use campaign::plan::{Cell, PlannedRun, Variant};
use campaign::process::{Group, ProcessError, describe};
use campaign::publish::write_run;
use campaign::server_spec::{BuiltVariant, ReadyCell, ServerSpec};
use campaign::stop::Stop;
use campaign::world::World;

/// Everything that the stages of a bundle share.
#[derive(Debug)]
pub struct StageRunner<'a> {
    pub world: &'a World,
    pub described: &'a ValidationBundle,
    /// Folder of the bundle, which can be copied to a machine without network and compiler.
    pub bundle: &'a Path,
    /// Folder of the bundle's results.
    pub results: &'a Path,
    pub hardware: &'a HardwareFacts,
}

/// Outcome of a stage, with the reason or the measured figures.
pub type Ended = (Outcome, Option<String>);

impl StageRunner<'_> {
    /// Runs one stage.
    ///
    /// # Errors
    /// Interrupted, or the machine or a Redline tool fails; the stage then has no result and runs
    /// again next time.
    pub fn carry_out(&self, stage: &Stage) -> Result<Ended, Stop> {
        match &stage.work {
            StageWork::Command { argv, needs, model } => match needs {
                // For example `compute-sanitizer`, which a rented machine may lack: no failure of
                // the release.
                Some(program) if !self.is_installed(program) => {
                    Ok((Outcome::Skipped, Some(format!("`{program}` is not on this machine"))))
                }
                _ => self.command(&stage.id, &self.filled(argv, model.as_deref())),
            },
            StageWork::Scenario { model, tp, scenario, run, position } => {
                let (model, scenario) = (model.clone(), scenario.clone());
                let cell = Cell { model, tp: *tp, scenario, ..Cell::default() };
                let slot = PlannedRun {
                    run: run.clone(),
                    variant: 0,
                    cell: 0,
                    block: *position,
                    position: 0,
                    repeat: 1,
                    stage: None,
                };
                self.scenario(&slot, cell)
            }
        }
    }

    fn filled(&self, argv: &[String], model: Option<&str>) -> Vec<String> {
        let shown = |path: PathBuf| path.to_string_lossy().into_owned();
        let model = model.map_or(String::new(), |model| shown(self.served(model)));
        let fill = |word: &String| match word.as_str() {
            "{redline}" => shown(self.program("redline")),
            "{model}" => model.clone(),
            _ => {
                let tests = TESTS.iter().find(|(placeholder, _)| placeholder == word);
                tests.map_or(word.clone(), |(_, package)| shown(self.program(package)))
            }
        };
        argv.iter().map(fill).collect()
    }

    /// Runs a program; its output goes to files of the stage.
    fn command(&self, stage: &str, argv: &[String]) -> Result<Ended, Stop> {
        let Some((program, args)) = argv.split_first() else {
            return Ok((Outcome::Failed, Some("the stage names no program".to_owned())));
        };
        let open = |stream| -> Result<File, FileError> {
            let path = stage_file(self.results, stage, stream);
            files::make_dir(path.parent().unwrap_or(Path::new(".")))?;
            File::create(&path).map_err(FileError::at("write", &path))
        };
        let mut command = Command::new(program);
        command.args(args).stdout(open("stdout")?).stderr(open("stderr")?);
        // Test programs look for their fixtures below the working directory.
        command.current_dir(self.bundle);
        let mut group = match Group::start(&mut command) {
            Ok(group) => group,
            Err(error @ ProcessError::Start { .. }) => {
                return Ok((Outcome::Failed, Some(error.to_string())));
            }
            Err(error) => return Err(error.into()),
        };
        let ended = group.wait(Some(self.limit()), &self.world.interrupt)?;
        Ok(match ended {
            Some(status) if status.success() => (Outcome::Done, None),
            Some(status) => (Outcome::Failed, Some(format!("it ended with {}", describe(status)))),
            None => {
                group.end(Duration::from_secs(5));
                let limit_s = self.described.stage_limit_s;
                (Outcome::Failed, Some(format!("it had not ended after {limit_s} s")))
            }
        })
    }

    /// Serves a model and sends the workload manifest that the bundle contains for the scenario.
    fn scenario(&self, slot: &PlannedRun, cell: Cell) -> Result<Ended, Stop> {
        let world = self.world;
        let places = CampaignPlaces::at(self.results);
        let bench = Bench {
            limit: Some(self.limit()),
            ..local_bench(world, &self.described.campaign, &places, self.hardware)
        };
        let record = bench.run(slot, &self.spec()?, &self.ready(cell)?, &mut |_| Ok(()))?;
        write_run(&places.staged(), &record)?;
        let outcome = if is_bad(&record) { Outcome::Failed } else { Outcome::Done };
        Ok((outcome, Some(detail(&record))))
    }

    fn spec(&self) -> Result<ServerSpec, Stop> {
        let facts = self.described.engine.clone();
        let engine = self.world.catalog.engine(&facts.name)?;
        let mut variant = Variant::plain(&facts.name, &facts.release);
        variant.flags.clone_from(&self.described.flags);
        let (binary, version) = (self.program("redline"), self.described.version.clone());
        Ok(ServerSpec {
            engine,
            built: BuiltVariant::program(variant, facts, binary, Some(version)),
        })
    }

    fn ready(&self, cell: Cell) -> Result<ReadyCell, Stop> {
        let scenario = self.world.catalog.scenario(&cell.scenario)?;
        let file = self.world.catalog.model(&cell.model)?;
        let tokenizer = tokenizer_of(self.world, &cell.model)?;
        let path = self.served(&cell.model);
        let model = match file.sha256 {
            None => {
                let sha256 = sha256_file(&path.join(CONFIG))?;
                Obtained::shape(path, sha256)
            }
            Some(sha256) => Obtained::file(path, sha256, GIVEN.to_owned()),
        };
        let plan = Some(plan_file(self.bundle, &cell.scenario, &tokenizer));
        let tokenizer = match model.random_weights {
            true => model.path.join(TOKENIZER),
            false => model.path.clone(),
        };
        Ok(ReadyCell { cell, scenario, model, dataset: None, tokenizer, plan })
    }

    /// Returns the path that the server is given: the folder of a model, or the one GGUF file in
    /// it.
    fn served(&self, model: &str) -> PathBuf {
        let folder = self.bundle.join("models").join(model);
        let mut files = std::fs::read_dir(&folder).into_iter().flatten().flatten();
        let gguf = files.find(|entry| entry.path().extension().is_some_and(|e| e == "gguf"));
        gguf.map_or(folder, |entry| entry.path())
    }

    fn program(&self, name: &str) -> PathBuf {
        self.bundle.join("bin").join(name)
    }

    fn is_installed(&self, program: &str) -> bool {
        self.world.search_path.iter().any(|dir| dir.join(program).is_file())
    }

    fn limit(&self) -> Duration {
        Duration::from_secs(self.described.stage_limit_s)
    }
}

/// Summarizes a run: `8123.45 output tokens/s` with findings, or the failure.
fn detail(record: &RunRecord) -> String {
    if let Some(failure) = &record.failure {
        return failure.message.clone();
    }
    let rate = record.metrics.as_ref().and_then(|metrics| metrics.output_tokens_per_s);
    let rate = rate.map_or("no figures".to_owned(), |rate| format!("{rate:.2} output tokens/s"));
    let reasons = record.validity.reasons.join("; ");
    if reasons.is_empty() { rate } else { format!("{rate}; {reasons}") }
}
