//! A made-up campaign as somebody would submit it: two releases in turns on one machine, with every
//! group of facts that a measured run has. It says `measured`, so that the rules about measured runs
//! judge it.

use std::collections::BTreeMap;

use schema::campaign::{CampaignRecord, CampaignStatus, PlannedRun};
use schema::canonical::{record_sha256, sha256_hex};
use schema::event::rfc3339_of;
use schema::run::{Gpu, Kind, RunRecord, Slice, Time};
use schema::telemetry::{EnergySource, GpuTelemetry, Series, ServerTelemetry, Spread, Telemetry};
use serde_json::Value;

use crate::{EPOCH_MS, Request, Sample, campaign_id, reseal};

/// Releases, scenarios and number of repeats of the made-up campaign.
const RELEASES: [(&str, f64); 2] = [("v0.9.1", 0.1), ("v0.9.2", 0.104)];
const SCENARIOS: [(&str, f64); 2] = [("balanced-lite", 1.0), ("thinking-lite", 0.8)];
const REPEATS: u32 = 3;
/// Time from the start of a run to that of the next, in seconds.
const SPACING_S: i64 = 90;
/// Length of a slice in microseconds.
const SLICE_US: u64 = 1_000_000;
/// Power that the made-up GPU draws and may draw, in milliwatts.
const POWER_MW: [u64; 2] = [520_000, 700_000];

/// Machine of a made-up campaign.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Machine {
    /// Two cores and no GPU.
    Cpu,
    /// One GPU, whose power and energy were measured.
    Gpu,
}

/// The runs of the made-up campaign number `serial`, and its record. Campaigns of different numbers
/// have different ids and times.
///
/// # Panics
/// A figure is not a number.
pub fn campaign(machine: Machine, serial: u64) -> (Vec<RunRecord>, CampaignRecord) {
    faster_campaign(machine, serial, 1.0)
}

/// The same campaign, whose later release is faster by the factor `gain`.
///
/// # Panics
/// A figure is not a number.
pub fn faster_campaign(
    machine: Machine,
    serial: u64,
    gain: f64,
) -> (Vec<RunRecord>, CampaignRecord) {
    let id = campaign_id(serial * 10_000);
    let mut runs = Vec::new();
    for repeat in 1..=REPEATS {
        let cells =
            RELEASES.iter().flat_map(|release| SCENARIOS.map(|scenario| (release, scenario)));
        for (position, ((release, speed), (scenario, share))) in (0_u32..).zip(cells) {
            let number = serial * 10_000 + 1 + runs.len() as u64;
            let sample = Sample {
                release: (*release).to_owned(),
                scenario: scenario.to_owned(),
                serial: number,
                campaign: (id.clone(), repeat - 1, position),
                repeat,
                speed: speed * share * if *release == RELEASES[1].0 { gain } else { 1.0 },
                seed: number,
                ..Sample::default()
            };
            let start_s = i64::try_from(EPOCH_MS / 1_000 + serial * 10_000).unwrap_or(0)
                + 60
                + i64::try_from(runs.len()).unwrap_or(0) * SPACING_S;
            runs.push(measured(&sample, machine, start_s));
        }
    }
    let mut record = CampaignRecord {
        schema: schema::campaign::SCHEMA.to_owned(),
        id,
        releases: RELEASES.map(|(release, _)| release.to_owned()).to_vec(),
        hardware: runs[0].hardware.id.clone(),
        plan: runs.iter().map(PlannedRun::of).collect(),
        status: CampaignStatus::Complete,
        ..CampaignRecord::default()
    };
    record.record_sha256 = record_sha256(&record).expect("made-up figures are numbers");
    (runs, record)
}

/// The run of a sample as if this suite had measured it from `start_s` on.
fn measured(sample: &Sample, machine: Machine, start_s: i64) -> RunRecord {
    let mut record = sample.record();
    record.kind = Kind::Measured;
    record.absent.clear();
    let wall_us = record.time.as_ref().and_then(|time| time.wall_us).unwrap_or(0);
    let end_s = start_s + i64::try_from(wall_us / 1_000_000).unwrap_or(0);
    if let Some(time) = &mut record.time {
        *time = Time {
            started_at: rfc3339_of(start_s),
            finished_at: rfc3339_of(end_s),
            ..time.clone()
        };
    }
    let requests = sample.requests(crate::REQUESTS);
    if let Some(metrics) = &mut record.metrics {
        metrics.slices = Some(slices(&requests, wall_us));
        metrics.ttft_scheduled_us = metrics.ttft_us.clone();
        metrics.e2e_scheduled_us = metrics.e2e_us.clone();
    }
    record.telemetry = Some(telemetry(&record));
    match machine {
        Machine::Cpu => record.calibration = Some(calibration(sample.seed)),
        Machine::Gpu => on_gpu(&mut record, wall_us),
    }
    reseal(record)
}

fn calibration(seed: u64) -> BTreeMap<String, Value> {
    let rates = [
        ("gflops_before", 68.0),
        ("gflops_after", 68.5),
        ("memory_gbps_before", 20.0),
        ("memory_gbps_after", 20.2),
    ];
    let near = |rate: f64| Value::from(rate + (seed % 7) as f64 / 100.0);
    rates.map(|(name, rate)| (name.to_owned(), near(rate))).into()
}

fn slices(requests: &[Request], wall_us: u64) -> Vec<Slice> {
    let count = wall_us.div_ceil(SLICE_US);
    let mut slices: Vec<Slice> = (0..count)
        .map(|index| Slice {
            start_us: index * SLICE_US,
            length_us: SLICE_US.min(wall_us - index * SLICE_US),
            ..Slice::default()
        })
        .collect();
    let last = slices.len() - 1;
    let at = |us: u64| usize::try_from(us / SLICE_US).unwrap_or(last).min(last);
    for request in requests {
        slices[0].requests_sent += 1;
        slices[at(request.e2e_us())].requests_ended += 1;
        let mut us = request.ttft_us;
        slices[at(us)].output_tokens += 1;
        for gap in &request.gaps_us {
            us += gap;
            slices[at(us)].output_tokens += 1;
        }
    }
    slices
}

/// The server's counters, which agree with the answers.
fn telemetry(record: &RunRecord) -> Telemetry {
    let counts = record.counts.clone().unwrap_or_default();
    let slices = record.metrics.as_ref().and_then(|metrics| metrics.slices.clone());
    let tokens: Vec<u64> =
        slices.unwrap_or_default().iter().map(|slice| slice.output_tokens).collect();
    let at_us = (1..=tokens.len() as u64).map(|index| index * SLICE_US).collect();
    let columns = BTreeMap::from([("output_tokens".to_owned(), tokens)]);
    let server = ServerTelemetry {
        prompt_tokens: counts.input_tokens,
        output_tokens: counts.output_tokens_reported,
        series: Some(Series { at_us, columns }),
        ..ServerTelemetry::default()
    };
    Telemetry { server: Some(server), ..Telemetry::default() }
}

/// Moves a run to a machine with a GPU.
fn on_gpu(record: &mut RunRecord, wall_us: u64) {
    "h100-80g".clone_into(&mut record.hardware.id);
    record.hardware.gpu = Some(vec![Gpu {
        name: "NVIDIA H100 80GB HBM3".to_owned(),
        memory_bytes: Some(80 << 30),
        driver: Some("580.1".to_owned()),
        vbios: None,
        power_limit_mw: Some(POWER_MW[1]),
        clocks_locked: Some(false),
        state: None,
    }]);
    "qwen3-8b".clone_into(&mut record.model.id);
    record.model.weights_sha256 = Some(sha256_hex(b"qwen3-8b"));
    record.model.parameters = Some(8_190_735_360);
    if let Some(server) = &mut record.server {
        server.device = Some("cuda".to_owned());
    }
    let energy_mj = POWER_MW[0] * wall_us / 1_000_000;
    let tokens = record.counts.as_ref().and_then(|counts| counts.output_tokens_reported);
    if let Some(metrics) = &mut record.metrics {
        metrics.joules_per_output_token =
            tokens.map(|tokens| energy_mj as f64 / 1_000.0 / tokens as f64);
        metrics.output_tokens_per_s_per_gpu = metrics.output_tokens_per_s;
    }
    let [power, _] = POWER_MW;
    let power = Spread { mean: power as f64, p5: power, p50: power, p95: power, max: power };
    let gpu = GpuTelemetry {
        worked: true,
        power_mw: Some(power),
        energy_mj: Some(energy_mj),
        energy_source: Some(EnergySource::Counter),
        ..GpuTelemetry::default()
    };
    if let Some(telemetry) = &mut record.telemetry {
        telemetry.gpus = Some(vec![gpu]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runs_break_no_rule() {
        for machine in [Machine::Cpu, Machine::Gpu] {
            for run in campaign(machine, 1).0 {
                let failed: Vec<_> = judge::failed(&run);
                assert!(failed.is_empty(), "{failed:?}");
            }
        }
    }
}
