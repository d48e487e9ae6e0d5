//! Submission rules over the limits of the machine: power of the GPUs, memory bandwidth, arithmetic.

use schema::run::{Gpu, RunRecord};
use serde_json::Value;

use super::{POWER, ROOFLINE};
use crate::finding::Finding;
use crate::rules::float;

/// Share of the power limit by which a GPU's mean power may exceed it: the driver's counter and its
/// limit are not calibrated to each other.
const POWER_SHARE: f64 = 0.1;
/// Bytes of one weight, at least: four bits, as in the smallest formats in use.
const WEIGHT_BYTES_MIN: f64 = 0.5;
/// Ratio of what a CPU may read from its caches to the memory bandwidth that the machine calibration
/// measured. On recorded runs weights were read with at most 0.4 of the bandwidth.
const CACHES: f64 = 4.0;

/// Limits of a GPU model by a part of its name: memory bandwidth in GB/s, and dense operations of
/// the smallest data type in 10^12 per second. Of several variants the fastest counts, as its
/// manufacturer states it. The first entry that matches is taken.
const GPUS: &[(&str, f64, f64)] = &[
    ("B200", 8_000.0, 10_000.0),
    ("MI300X", 5_325.0, 2_615.0),
    ("H200", 4_800.0, 1_979.0),
    ("H100", 3_938.0, 1_979.0),
    ("A100", 2_039.0, 624.0),
    ("L40S", 864.0, 733.0),
    ("L40", 864.0, 724.0),
    ("L4", 300.0, 242.0),
    ("A10", 600.0, 250.0),
    ("V100", 1_134.0, 130.0),
    ("T4", 320.0, 130.0),
    ("RTX 4090", 1_008.0, 661.0),
    ("RTX 3090", 936.0, 285.0),
];

/// Judges one run by the rules B14 and B15.
pub(super) fn findings(path: &str, record: &RunRecord) -> Vec<Finding> {
    let mut found = Vec::new();
    found.extend(power_problem(record).map(|text| POWER.breach(path, text)));
    found.extend(bandwidth_problem(record).map(|text| ROOFLINE.remark(path, text)));
    found.extend(arithmetic_problem(record).map(|text| ROOFLINE.remark(path, text)));
    found
}

fn gpus(record: &RunRecord) -> &[Gpu] {
    record.hardware.gpu.as_deref().unwrap_or_default()
}

fn power_problem(record: &RunRecord) -> Option<String> {
    let wall_s = float(record.time.as_ref()?.wall_us.filter(|wall| *wall > 0)?) / 1e6;
    let used = record.telemetry.as_ref()?.gpus.as_deref()?;
    let pairs = used.iter().zip(gpus(record)).enumerate();
    pairs.into_iter().find_map(|(index, (used, gpu))| {
        let watts = float(used.energy_mj?) / 1e3 / wall_s;
        let limit = float(gpu.power_limit_mw?) / 1e3;
        (watts > limit * (1.0 + POWER_SHARE)).then(|| {
            format!("GPU {index} used {watts:.0} W on average, and its limit is {limit:.0} W")
        })
    })
}

/// Returns the memory bandwidth of the machine, in bytes per second, that no run can exceed; `None`
/// where neither a known GPU nor a calibration says so.
fn bandwidth(record: &RunRecord) -> Option<f64> {
    if let Some((gbps, _)) = gpu_limits(record) {
        return Some(gbps * 1e9);
    }
    let calibration = record.calibration.as_ref().filter(|_| gpus(record).is_empty())?;
    let read = ["memory_gbps_before", "memory_gbps_after"];
    let read = read.iter().filter_map(|name| calibration.get(*name).and_then(Value::as_f64));
    read.reduce(f64::max).map(|gbps| gbps * 1e9 * CACHES)
}

/// Returns memory bandwidth and operations of all ranks' GPUs, in the units of [`GPUS`].
fn gpu_limits(record: &RunRecord) -> Option<(f64, f64)> {
    let name = &gpus(record).first()?.name;
    let (_, gbps, tops) = GPUS.iter().find(|(part, ..)| name.contains(part))?;
    let ranks = f64::from(record.server.as_ref()?.tp?.max(1));
    Some((gbps * ranks, tops * ranks))
}

/// Compares the median TPOT with the time to read all weights once.
fn bandwidth_problem(record: &RunRecord) -> Option<String> {
    let weights = float(record.model.parameters?) * WEIGHT_BYTES_MIN;
    let tpot_us = record.metrics.as_ref()?.tpot_us.as_ref()?.p50.filter(|us| *us > 0)?;
    let least_us = weights / bandwidth(record)? * 1e6;
    (float(tpot_us) < least_us).then(|| {
        format!("the median TPOT is {tpot_us} us, and reading the weights takes {least_us:.0} us")
    })
}

/// Compares the tokens that were computed with the arithmetic of the GPUs.
fn arithmetic_problem(record: &RunRecord) -> Option<String> {
    let (_, tops) = gpu_limits(record)?;
    let counts = record.counts.as_ref()?;
    let hits = record.cache.as_ref().and_then(|cache| cache.hit_tokens).unwrap_or(0);
    let tokens = counts.input_tokens?.saturating_sub(hits) + counts.output_tokens_reported?;
    let wall_s = float(record.time.as_ref()?.wall_us.filter(|wall| *wall > 0)?) / 1e6;
    // A token is multiplied by each weight and added: two operations.
    let needed = 2.0 * float(record.model.parameters?) * float(tokens) / wall_s / 1e12;
    (needed > tops).then(|| {
        format!("its tokens need {needed:.0} * 10^12 operations/s, and the GPUs have {tops:.0}")
    })
}
