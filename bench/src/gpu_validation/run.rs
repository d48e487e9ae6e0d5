//! The command `gpu-validation run`: runs the stages of a bundle that have not run yet. It needs
//! neither network nor compiler nor git.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use schema::exit::Exit;
use schema::gpu_validation::{Outcome, STAGE_SCHEMA, StageReport, ValidationBundle};
use schema::run::HardwareFacts;
use serde::{Deserialize, Serialize};

use crate::cli::RunFlags;
use crate::gpu_validation::stage::StageRunner;
use crate::gpu_validation::{DESCRIPTION, MACHINE, read_bundle, read_json, stage_file, write_json};
use campaign::files;
use campaign::node::hardware;
use campaign::plan::target;
use campaign::process::{self, describe};
use campaign::stop::Stop;
use campaign::world::World;

/// Content of `machine.json`: facts about the machine on which the results were measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MachineFile {
    pub hardware: HardwareFacts,
}

/// Runs the bundle that contains this program.
///
/// # Errors
/// The machine does not match the GPU validation, or a stage cannot be attempted.
pub fn run(world: &World, flags: &RunFlags) -> Result<Exit, Stop> {
    let bundle = &world.places.root;
    let described = read_bundle(bundle)?;
    refuse_unknown(&described, &flags.only)?;
    let results = flags.out.clone().unwrap_or_else(|| PathBuf::from("validation-results"));
    let archive_path = results.with_extension("tar.gz");
    let hardware = machine(world, &described, &results)?;
    // A copy of the description, so that results can be read without the bundle.
    let description = bundle.join(DESCRIPTION);
    fs::copy(&description, results.join(DESCRIPTION))
        .map_err(files::FileError::at("copy", &description))?;
    let runner = StageRunner {
        world,
        described: &described,
        bundle,
        results: &results,
        hardware: &hardware,
    };
    let mut reports = Vec::new();
    let total = described.stages.len();
    for (index, stage) in described.stages.iter().enumerate() {
        if !flags.only.is_empty() && !flags.only.contains(&stage.id) {
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
                let report = carry_out(&runner, stage)?;
                write_json(&path, &report)?;
                archive(world, &results, &archive_path)?;
                report
            }
        };
        world.console.note(&line(&report));
        reports.push(report);
    }
    world.console.answer(&format!("results  {}", archive_path.display()));
    let failed = reports.iter().any(|report| report.outcome == Outcome::Failed);
    Ok(if failed { Exit::Worse } else { Exit::Well })
}

fn carry_out(
    runner: &StageRunner<'_>,
    stage: &schema::gpu_validation::Stage,
) -> Result<StageReport, Stop> {
    let clock = &runner.world.clock;
    let (started, started_at) = (clock.elapsed(), clock.rfc3339());
    let (outcome, detail) = runner.carry_out(stage)?;
    let wall = clock.elapsed().saturating_sub(started);
    Ok(StageReport {
        schema: STAGE_SCHEMA.to_owned(),
        stage: stage.id.clone(),
        outcome,
        detail: detail.map(|text| runner.world.identity.redact(&text)),
        started_at,
        wall_us: u64::try_from(wall.as_micros()).unwrap_or(u64::MAX),
    })
}

/// Describes a report in a line: `done`, or the outcome and its reason.
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

/// Detects the machine, and checks that it matches the bundle and earlier results in the same
/// folder.
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

/// Writes all results into the archive. It is renewed after every stage, because the machine may be
/// taken away at any time.
fn archive(world: &World, results: &Path, to: &Path) -> Result<(), Stop> {
    let mut tar = Command::new("tar");
    tar.arg("-czf").arg(to).arg("-C").arg(results).arg(".");
    let status = process::show(&mut tar, &world.interrupt)?;
    if status.success() {
        return Ok(());
    }
    Err(Stop::environment(format!("the archive of results: tar ended with {}", describe(status))))
}
