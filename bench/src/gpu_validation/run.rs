//! The command `gpu-validation run`: runs the stages of a bundle that have not run yet. A stage runs a
//! command, or serves a model and measures a scenario. It needs neither network nor compiler nor git.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use schema::exit::Exit;
use schema::gpu_validation::{
    EachTest, Outcome, STAGE_SCHEMA, Stage, StageReport, StageWork, ValidationBundle,
};
use schema::run::{HardwareFacts, RunRecord};
use serde::{Deserialize, Serialize};

use crate::cli::RunFlags;
use crate::gpu_validation::archive::append_results;
use crate::gpu_validation::each_test::Tests;
use crate::gpu_validation::pack::{TESTS, tokenizer_of};
use crate::gpu_validation::{
    DESCRIPTION, MACHINE, cubins, plan_file, read_bundle, read_json, stage_file, write_json,
};
use crate::local_bench;
use campaign::files::{self, FileError};
use campaign::inputs::cache::sha256_file;
use campaign::inputs::{CONFIG, GIVEN, Obtained, TOKENIZER};
use campaign::node::hardware;
use campaign::node::record::is_bad;
use campaign::node::run::{Bench, SharedServer};
use campaign::places::CampaignPlaces;
use campaign::plan::{Cell, PlannedRun, Variant, target};
use campaign::process::{Group, ProcessError, describe};
use campaign::publish::write_run;
use campaign::server_spec::{BuiltVariant, ReadyCell, ServerSpec};
use campaign::stop::Stop;
use campaign::world::World;

/// Time at the end of a call that is kept for stopping its last stage and archiving its results.
const ENDING: Duration = Duration::from_secs(5);
/// Environment variable by which the engine's tests on a GPU fail where there is none.
const REQUIRE_GPU: &str = "REDLINE_REQUIRE_GPU";

/// Content of `machine.json`: facts about the machine on which a bundle's stages were run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MachineFile {
    pub hardware: HardwareFacts,
}

/// Runs the stages of the bundle in whose folder this program lies, and archives their results.
///
/// # Errors
/// The machine does not match the GPU validation or the folder's earlier results, a stage does not
/// exist or cannot be attempted, the run is interrupted, or a file cannot be read or written.
pub fn run(world: &World, flags: &RunFlags) -> Result<Exit, Stop> {
    let bundle = &world.places.root;
    let described = read_bundle(bundle)?;
    refuse_unknown(&described, &flags.only)?;
    let deadline = deadline(&described, flags.call.as_deref())?;
    let results = flags.out.clone().unwrap_or_else(|| PathBuf::from("validation-results"));
    let archive_path = flags.archive.clone().unwrap_or_else(|| results.with_extension("tar.gz"));
    let hardware = machine(world, &described, &results)?;
    // A copy of the description, so that results can be read without the bundle.
    let description = bundle.join(DESCRIPTION);
    fs::copy(&description, results.join(DESCRIPTION))
        .map_err(FileError::at("copy", &description))?;
    let runner = StageRunner {
        world,
        described: &described,
        bundle,
        results: &results,
        hardware: &hardware,
        deadline,
    };
    let (mut reports, mut left) = (Vec::new(), Vec::new());
    let mut shared = SharedServer::default();
    let total = described.stages.len();
    for (index, stage) in described.stages.iter().enumerate() {
        let is_chosen = flags.only.is_empty() || flags.only.contains(&stage.id);
        if !is_chosen || flags.call.as_ref().is_some_and(|call| *call != stage.call) {
            continue;
        }
        world.interrupt.check()?;
        world
            .console
            .step(world.clock.elapsed(), &format!("Stage {} of {total}: {}", index + 1, stage.id));
        let path = stage_file(&results, &stage.id, "json");
        let report = match path.exists() {
            // Stages with a report are not repeated: an interrupted validation continues where it
            // was.
            true => read_json::<StageReport>(&path)?,
            false => {
                let next = described.stages.get(index + 1);
                shared.is_kept = next.is_some_and(|next| serves_as(stage, next));
                let Some(report) = runner.report(stage, &mut shared)? else {
                    world.console.note("left: the call's time is spent");
                    left.push(stage.id.as_str());
                    continue;
                };
                // The report is written at the end: an interrupted stage has none, and runs again.
                write_json(&path, &report)?;
                append_results(world, &results, &archive_path)?;
                report
            }
        };
        world.console.note(&line(&report));
        reports.push(report);
    }
    world.console.answer(&format!("results  {}", archive_path.display()))?;
    if !left.is_empty() {
        world
            .console
            .answer(&format!("left     {}; the same call again runs them", left.join(", ")))?;
    }
    let failed = reports.iter().any(|report| report.outcome == Outcome::Failed);
    Ok(match (failed, left.is_empty()) {
        (true, _) => Exit::Worse,
        (false, true) => Exit::Well,
        (false, false) => Exit::Inconclusive,
    })
}

/// Returns the time, since the command began, at which the call `id` has to end; `None` without a
/// call.
fn deadline(described: &ValidationBundle, id: Option<&str>) -> Result<Option<Duration>, Stop> {
    let Some(id) = id else { return Ok(None) };
    let known = described.calls.iter().find(|call| call.id == id);
    let known = known.ok_or_else(|| {
        let ids: Vec<&str> = described.calls.iter().map(|call| call.id.as_str()).collect();
        Stop::wrong_use(format!("there is no call `{id}`"))
            .with_hint(format!("the calls are {}", ids.join(", ")))
    })?;
    Ok(Some(Duration::from_secs(known.limit_s)))
}

/// Formats a stage's report as one line: its outcome (`done`, `failed` or `skipped`), followed by
/// the report's detail if there is one.
pub fn line(report: &StageReport) -> String {
    let outcome = match report.outcome {
        Outcome::Done => "done",
        Outcome::Failed => "failed",
        Outcome::Skipped => "skipped",
    };
    match &report.detail {
        None => outcome.to_owned(),
        Some(detail) => format!("{outcome}: {detail}"),
    }
}

fn refuse_unknown(described: &ValidationBundle, only: &[String]) -> Result<(), Stop> {
    let known: Vec<&str> = described.stages.iter().map(|stage| stage.id.as_str()).collect();
    match only.iter().find(|id| !known.contains(&id.as_str())) {
        None => Ok(()),
        Some(id) => Err(Stop::wrong_use(format!("there is no stage `{id}`"))
            .with_hint(format!("the stages are {}", known.join(", ")))),
    }
}

/// Detects the machine's hardware, and checks that it matches the bundle and any earlier results in
/// the folder `results`; writes the facts about the machine into the folder.
fn machine(
    world: &World,
    described: &ValidationBundle,
    results: &Path,
) -> Result<HardwareFacts, Stop> {
    let seen = hardware::detect(world)?;
    let on_gpu = !described.matches.device_name.is_empty();
    if on_gpu && !target::fits(&described.matches, &seen.gpus) {
        let wanted = described.matches.device_name.join(" or ");
        return Err(Stop::environment(format!(
            "validation `{}` needs a GPU named like {wanted}, and this machine has {}",
            described.validation,
            seen.gpus.first().map_or("none".to_owned(), |gpu| format!("`{}`", gpu.name)),
        ))
        .with_hint("`--validation rehearsal` packs one for any machine"));
    }
    let hardware = seen.facts(&seen.id(on_gpu));
    let path = results.join(MACHINE);
    if path.exists() {
        let before: MachineFile = read_json(&path)?;
        // Results of two machines in one folder could not be told apart later.
        if before.hardware.id != hardware.id {
            let (id, before) = (&hardware.id, &before.hardware.id);
            return Err(Stop::wrong_use(format!(
                "`{}` holds results of {before}, and this is {id}",
                results.display()
            ))
            .with_hint("give another folder: `--out DIR`"));
        }
    }
    let file = MachineFile { hardware };
    write_json(&path, &file)?;
    Ok(file.hardware)
}

/// Runner of a bundle's stages, with what they share: facts about the bundle and the hardware, and
/// folders.
#[derive(Debug)]
struct StageRunner<'a> {
    world: &'a World,
    described: &'a ValidationBundle,
    /// Folder of the bundle, which can be copied to a machine without network and compiler.
    bundle: &'a Path,
    /// Folder into which the results of the bundle's stages are written.
    results: &'a Path,
    hardware: &'a HardwareFacts,
    /// Time, since the command began, at which the call has to end; `None` without a limit.
    deadline: Option<Duration>,
}

/// Outcome of a stage, with a phrase for its report: the reason for the outcome, or the output rate
/// that a scenario measured; `None` where there is nothing to say.
type Ended = (Outcome, Option<String>);

impl StageRunner<'_> {
    /// Runs one stage of the bundle and returns its report with outcome and times; `None` if the
    /// call's time was spent before the stage had ended.
    fn report(
        &self,
        stage: &Stage,
        shared: &mut SharedServer,
    ) -> Result<Option<StageReport>, Stop> {
        if self.limit().is_zero() {
            return Ok(None);
        }
        let clock = &self.world.clock;
        let (started, started_at) = (clock.elapsed(), clock.rfc3339());
        let (outcome, detail) = self.carry_out(stage, shared)?;
        if outcome == Outcome::Failed && self.limit().is_zero() {
            return Ok(None);
        }
        let wall = clock.elapsed().saturating_sub(started);
        Ok(Some(StageReport {
            schema: STAGE_SCHEMA.to_owned(),
            stage: stage.id.clone(),
            outcome,
            detail: detail.map(|text| self.world.identity.redact(&text)),
            started_at,
            wall_us: u64::try_from(wall.as_micros()).unwrap_or(u64::MAX),
        }))
    }

    /// Runs one stage of the bundle and returns its outcome.
    ///
    /// # Errors
    /// The run is interrupted, a file cannot be read or written, or the machine or a tool of
    /// Redline fails; the stage then has no report, and the next call runs it again.
    fn carry_out(&self, stage: &Stage, shared: &mut SharedServer) -> Result<Ended, Stop> {
        match &stage.work {
            StageWork::Command { argv, needs, model, prints, each_test } => match needs {
                // For example `compute-sanitizer`, which a rented machine may lack: no failure of
                // the release.
                Some(program) if !self.is_installed(program) => {
                    Ok((Outcome::Skipped, Some(format!("`{program}` is not on this machine"))))
                }
                _ => {
                    let filled = self.filled(argv, model.as_deref());
                    match each_test {
                        None => self.command(&stage.id, &filled, prints.as_deref()),
                        Some(limits) => self.tests(&stage.id, argv, &filled, *limits),
                    }
                }
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
                    server: self.server_of(&cell.model),
                };
                self.scenario(&slot, cell, shared)
            }
        }
    }

    /// Returns the number of the server that the stages of a model share: the position of the
    /// model's first stage.
    fn server_of(&self, model: &str) -> Option<u32> {
        self.described.stages.iter().find_map(|stage| match &stage.work {
            StageWork::Scenario { model: of, position, .. } if of == model => Some(*position),
            _ => None,
        })
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

    /// Runs a stage's program; its standard output and error go to files of the stage, and its exit
    /// status decides the outcome. A program that cannot be started, exceeds the stage's time limit,
    /// or does not print the text `prints` has failed.
    fn command(&self, stage: &str, argv: &[String], prints: Option<&str>) -> Result<Ended, Stop> {
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
        self.prepare(&mut command);
        let mut group = match Group::start(&mut command) {
            Ok(group) => group,
            // This is no error of the whole run, because the other stages can still be run.
            Err(error @ ProcessError::Start { .. }) => {
                return Ok((Outcome::Failed, Some(error.to_string())));
            }
            Err(error) => return Err(error.into()),
        };
        let ended = group.wait(Some(self.limit()), &self.world.interrupt)?;
        Ok(match ended {
            Some(status) if status.success() => {
                let said = fs::read(stage_file(self.results, stage, "stdout")).unwrap_or_default();
                let said = String::from_utf8_lossy(&said);
                match prints.filter(|text| !said.contains(text)) {
                    Some(text) => (Outcome::Failed, Some(format!("it did not print `{text}`"))),
                    None => (Outcome::Done, None),
                }
            }
            Some(status) => (Outcome::Failed, Some(format!("it ended with {}", describe(status)))),
            None => {
                group.end(Duration::from_secs(5));
                let limit_s = self.described.stage_limit_s;
                (Outcome::Failed, Some(format!("it had not ended after {limit_s} s")))
            }
        })
    }

    /// Sets the working directory and the environment of a stage's program.
    fn prepare(&self, command: &mut Command) {
        // Test programs look for their fixtures below the working directory.
        command.current_dir(self.bundle).envs(self.cubins());
        if !self.described.matches.device_name.is_empty() {
            command.env(REQUIRE_GPU, "1");
        }
    }

    /// Runs each test of a stage's test program in a process of its own. The stage's standard
    /// output has a line for each test, and the folder `STAGE.tests` beside it their outputs.
    /// `argv` has the placeholder of the test program, `filled` its path.
    fn tests(
        &self,
        stage: &str,
        argv: &[String],
        filled: &[String],
        limits: EachTest,
    ) -> Result<Ended, Stop> {
        let is_tests = |word: &String| TESTS.iter().any(|(placeholder, _)| placeholder == word);
        let Some(program) = argv.iter().position(is_tests) else {
            return Ok((Outcome::Failed, Some("the stage names no test program".to_owned())));
        };
        let tests = Tests {
            argv: filled,
            program,
            limits,
            stage_limit: self.limit(),
            outputs: stage_file(self.results, stage, "tests"),
            prepare: &|command| self.prepare(command),
            interrupt: &self.world.interrupt,
        };
        let (outcome, detail, lines) = tests.run()?;
        files::write_whole(&stage_file(self.results, stage, "stdout"), lines.as_bytes())?;
        Ok((outcome, detail))
    }

    /// Serves a model, sends it the bundle's workload manifest of the scenario, and writes the
    /// run's record.
    fn scenario(
        &self,
        slot: &PlannedRun,
        cell: Cell,
        shared: &mut SharedServer,
    ) -> Result<Ended, Stop> {
        let world = self.world;
        let places = CampaignPlaces::at(self.results);
        let bench = Bench {
            limit: Some(self.limit()),
            ..local_bench(world, &self.described.campaign, &places, self.hardware)
        };
        let (spec, ready) = (self.spec()?, self.ready(cell)?);
        let record = bench.run_shared(slot, &spec, &ready, shared, &mut |_| Ok(()))?;
        // A run that the end of the call has cut off is measured again.
        if !self.limit().is_zero() {
            write_run(&places.staged(), &record)?;
        }
        let outcome = if is_bad(&record) { Outcome::Failed } else { Outcome::Done };
        Ok((outcome, Some(detail(&record))))
    }

    /// Returns the environment variable with the folder of the kernels' machine code, if the bundle
    /// has one.
    fn cubins(&self) -> Option<(String, String)> {
        let folder = self.bundle.join(cubins::FOLDER);
        let named = || (cubins::VARIABLE.to_owned(), folder.to_string_lossy().into_owned());
        folder.is_dir().then(named)
    }

    fn spec(&self) -> Result<ServerSpec, Stop> {
        let facts = self.described.engine.clone();
        let mut engine = self.world.catalog.engine(&facts.name)?;
        engine.file.launch.env.extend(self.cubins());
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

    /// Returns the path in the bundle that the server is given as its model: a GGUF file in the
    /// model's folder if there is one, else the folder.
    fn served(&self, model: &str) -> PathBuf {
        let folder = self.bundle.join("models").join(model);
        let mut files = fs::read_dir(&folder).into_iter().flatten().flatten();
        let gguf = files.find(|entry| entry.path().extension().is_some_and(|e| e == "gguf"));
        gguf.map_or(folder, |entry| entry.path())
    }

    fn program(&self, name: &str) -> PathBuf {
        self.bundle.join("bin").join(name)
    }

    fn is_installed(&self, program: &str) -> bool {
        self.world.search_path.iter().any(|dir| dir.join(program).is_file())
    }

    /// Returns the time limit of a stage that starts now, which ends before its call has to.
    fn limit(&self) -> Duration {
        let limit = Duration::from_secs(self.described.stage_limit_s);
        let end = self.deadline.map(|deadline| deadline.saturating_sub(ENDING));
        let left = end.map(|end| end.saturating_sub(self.world.clock.elapsed()));
        left.map_or(limit, |left| left.min(limit))
    }
}

/// Returns true if both stages measure scenarios of one model.
fn serves_as(stage: &Stage, next: &Stage) -> bool {
    let model = |stage: &Stage| match &stage.work {
        StageWork::Scenario { model, .. } => Some(model.clone()),
        StageWork::Command { .. } => None,
    };
    model(stage).is_some() && model(stage) == model(next)
}

/// Formats a run in a line: its output rate such as `8123.45 output tokens/s` and the reasons of
/// its verdict, or the message of its failure.
fn detail(record: &RunRecord) -> String {
    if let Some(failure) = &record.failure {
        return failure.message.clone();
    }
    let rate = record.metrics.as_ref().and_then(|metrics| metrics.output_tokens_per_s);
    let rate = rate.map_or("no figures".to_owned(), |rate| format!("{rate:.2} output tokens/s"));
    let reasons = record.validity.reasons.join("; ");
    if reasons.is_empty() { rate } else { format!("{rate}; {reasons}") }
}
