//! Kernel benchmarks of a GPU validation as one record, read from commands that print a JSON
//! document with `kernels`, such as `redline bench --kernels --json`.

use std::fs;
use std::path::Path;

use schema::gpu_validation::{Outcome, StageReport, StageWork, ValidationBundle};
use schema::kernel::{KernelBench, KernelRecord, SCHEMA};
use schema::run::Time;
use serde::Deserialize;

use crate::gpu_validation::layout::ResultPlaces;
use crate::gpu_validation::run::MachineFile;
use campaign::kernels::fill;
use campaign::publish::write;
use campaign::stop::Stop;

/// The field of a command's JSON output that is read.
#[derive(Debug, Deserialize)]
struct Printed {
    kernels: Vec<KernelBench>,
}

/// Writes the record of all kernel benchmarks in the stages' outputs to the staged results
/// `overlay`; returns their number. The record has the bundle's own id, so that collecting again
/// makes the same record.
///
/// # Errors
/// The record has no path under `results/`, or the folder is not writable.
pub fn record(
    described: &ValidationBundle,
    machine: &MachineFile,
    reports: &[StageReport],
    results: &ResultPlaces,
    staged: &Path,
) -> Result<usize, Stop> {
    let (mut benches, mut wall_us, mut started_at) = (Vec::new(), 0, None);
    for stage in &described.stages {
        let report = reports.iter().find(|report| report.stage == stage.id);
        let report = report.filter(|report| report.outcome == Outcome::Done);
        let (StageWork::Command { .. }, Some(report)) = (&stage.work, report) else { continue };
        let printed = fs::read(results.output(&stage.id, "stdout")).unwrap_or_default();
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
        schema: SCHEMA.to_owned(),
        id: described.campaign.clone(),
        engine: described.engine.clone(),
        hardware: machine.hardware.clone(),
        time: Time { started_at, wall_us: Some(wall_us), ..Time::default() },
        ..KernelRecord::default()
    };
    fill(&mut record, benches)?;
    let place = schema::path::of_kernels(&record)?;
    write(staged, &place, &record)?;
    Ok(count)
}
