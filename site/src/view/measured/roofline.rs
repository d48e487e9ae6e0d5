//! View of Redline beside the limits of a machine (roofline): steps of a model, its largest
//! kernels, and kernel benchmarks with a share of a limit, from the latest kernel record. Shares
//! were computed when they were measured.

use std::collections::BTreeMap;

use judge::Stored;
use schema::kernel::{
    AttentionBench, BenchLimits, DecodeBench, KernelBench, KernelRecord, ModelBench, PrefillBench,
    ProductBench,
};
use serde::Serialize;

use super::{OWN, distinct};
use crate::catalog::Catalog;
use crate::format;
use crate::link::Target;
use crate::{order, outside};

/// Roofline of one hardware, from its latest kernel record.
#[derive(Debug, Clone, Serialize)]
pub struct Roofline {
    pub engine: String,
    pub release: String,
    pub hardware: String,
    pub device: String,
    pub measured: String,
    pub record: Target,
    pub command: String,
    /// Name of the model, data type of its matrix multiplications, and number of threads; `None`
    /// where no model was measured.
    pub model: Option<String>,
    /// Limits that the machine reached without other load, each with its unit.
    pub limits: Vec<String>,
    pub steps: Vec<StepRow>,
    pub kernels: Vec<KernelRow>,
    /// Number of kernel benchmarks in the record; `with_share` counts those with a share of a
    /// limit.
    pub benches: usize,
    pub with_share: usize,
}

/// Row of the roofline: a step or a kernel of the model.
#[derive(Debug, Clone, Serialize)]
pub struct StepRow {
    pub what: String,
    pub reached: String,
    pub share: String,
    pub limit: String,
}

/// Row of the roofline: an operation in one data type, with the instruction set that comes closest
/// to the limit.
#[derive(Debug, Clone, Serialize)]
pub struct KernelRow {
    pub op: String,
    pub dtype: String,
    pub isa: String,
    pub shapes: usize,
    /// Largest share of the limit over the shapes; `most_shape` is its shape.
    pub most: String,
    pub most_shape: String,
    pub least: String,
    pub least_shape: String,
}

/// Returns the roofline of each hardware, from the latest record of the latest release that
/// measured a limit.
pub fn all(catalog: &Catalog) -> Vec<Roofline> {
    let with_limit = |stored: &&Stored<KernelRecord>| {
        let record = &stored.record;
        let any = record.benches.iter().any(|bench| bench.limit_share.is_some());
        record.engine.name == OWN && (any || record.model_bench.is_some())
    };
    let records: Vec<&Stored<KernelRecord>> =
        catalog.registry.kernels.iter().filter(with_limit).collect();
    let hardware = distinct(records.iter().map(|stored| stored.record.hardware.id.as_str()));
    let latest = |hardware: &str| {
        let here = records.iter().filter(|stored| stored.record.hardware.id == hardware);
        here.max_by(|a, b| {
            order::releases(&a.record.engine.release, &b.record.engine.release)
                .then_with(|| a.record.id.cmp(&b.record.id))
        })
    };
    hardware.into_iter().filter_map(latest).map(|stored| roofline(stored)).collect()
}

fn roofline(stored: &Stored<KernelRecord>) -> Roofline {
    let record = &stored.record;
    let bench = record.model_bench.as_ref();
    let cpu = record.hardware.cpu_model.as_deref().unwrap_or("-");
    let cores = record.hardware.cores.map(|n| format!(", {n} cores")).unwrap_or_default();
    let gpu = record.hardware.gpu.as_ref().and_then(|gpus| gpus.first());
    let device = gpu.map_or_else(|| format!("{cpu}{cores}"), |gpu| gpu.name.clone());
    let day = record.time.started_at.as_deref().unwrap_or("day unknown");
    let release = outside::name(&record.engine.release);
    Roofline {
        engine: outside::name(&record.engine.name),
        hardware: outside::name(&record.hardware.id),
        device: outside::name(&device),
        measured: outside::short_hash(day, 10),
        record: Target::Record { path: stored.path.clone() },
        command: format!("cargo xtask kernels {release}"),
        release,
        model: bench.map(model),
        limits: bench.map(|bench| limits(&bench.limits)).unwrap_or_default(),
        steps: bench.map(steps).unwrap_or_default(),
        kernels: kernels(&record.benches),
        benches: record.benches.len(),
        with_share: record.benches.iter().filter(|bench| bench.limit_share.is_some()).count(),
    }
}

fn model(bench: &ModelBench) -> String {
    let threads = if bench.threads == 1 { "thread" } else { "threads" };
    let (name, dtype) = (outside::name(&bench.model), outside::name(&bench.dtype));
    format!("{name}, computed in {dtype} on {} {threads}", bench.threads)
}

fn limits(limits: &BenchLimits) -> Vec<String> {
    let mut shown = vec![format!("{} in int8", rate(limits.int8_ops_per_s, "op/s"))];
    shown.extend(limits.bf16_flops_per_s.map(|bf16| format!("{} in bf16", rate(bf16, "flop/s"))));
    shown.push(format!("{} in f32", rate(limits.f32_flops_per_s, "flop/s")));
    shown.push(format!("{} read from memory", rate(limits.read_bytes_per_s, "B/s")));
    shown
}

/// Formats a rate in billions or trillions per second: `4.01 Top/s`.
fn rate(value: f64, unit: &str) -> String {
    let (divisor, prefix) = if value >= 1e12 { (1e12, "T") } else { (1e9, "G") };
    format!("{} {prefix}{unit}", format::rounded(value / divisor, None))
}

fn share(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// Rows of the model's steps: prefill, then decode, then single kernels.
fn steps(bench: &ModelBench) -> Vec<StepRow> {
    let arithmetic = format!("arithmetic in {}", outside::name(&bench.dtype));
    let prefill = bench.prefill.iter().map(|row| prefill(row, &arithmetic));
    let decode = bench.decode.iter().map(decode);
    let products = bench.products.iter().map(product);
    let attention = bench.attention.iter().map(attention);
    prefill.chain(decode).chain(products).chain(attention).collect()
}

fn prefill(row: &PrefillBench, limit: &str) -> StepRow {
    StepRow {
        what: format!("a prompt of {} tokens", format::whole(row.tokens)),
        reached: tokens_per_s(row.tokens_per_s),
        share: share(row.limit_share),
        limit: limit.to_owned(),
    }
}

fn decode(row: &DecodeBench) -> StepRow {
    let context = format::whole(row.context);
    let sequences = match row.batch {
        1 => "one sequence".to_owned(),
        batch => format!("each of {batch} sequences"),
    };
    StepRow {
        what: format!("a token for {sequences}, after {context}"),
        reached: tokens_per_s(row.tokens_per_s),
        share: row.limit_share.map_or_else(|| "-".to_owned(), share),
        limit: "reading memory".to_owned(),
    }
}

fn product(row: &ProductBench) -> StepRow {
    let [rows, n, k] = [row.rows, row.n, row.k].map(format::whole);
    let stored = outside::name(&row.weight_dtype);
    StepRow {
        what: format!("product of {rows} rows by {n} x {k} in {stored}"),
        reached: rate(row.ops_per_s, "op/s"),
        share: share(row.limit_share),
        limit: format!("arithmetic in {}", outside::name(&row.dtype)),
    }
}

fn attention(row: &AttentionBench) -> StepRow {
    let reads = row.limit == "read_bytes_per_s";
    let rows = if row.rows == 1 { "one row".to_owned() } else { format!("{} rows", row.rows) };
    StepRow {
        what: format!("attention of {rows} over {} positions", format::whole(row.context)),
        reached: match reads {
            true => rate(row.kv_bytes_per_s, "B/s"),
            false => rate(row.flops_per_s, "flop/s"),
        },
        share: share(row.limit_share),
        limit: if reads { "reading memory" } else { "arithmetic in f32" }.to_owned(),
    }
}

fn tokens_per_s(value: f64) -> String {
    format!("{} tokens/s", format::rounded(value, None))
}

/// Returns a row for each operation and data type that has a share of a limit.
fn kernels(benches: &[KernelBench]) -> Vec<KernelRow> {
    let mut groups: BTreeMap<(&str, &str), Vec<(f64, &KernelBench)>> = BTreeMap::new();
    for bench in benches {
        if let Some(share) = bench.limit_share.filter(|share| share.is_finite()) {
            groups
                .entry((bench.op.as_str(), bench.dtype.as_str()))
                .or_default()
                .push((share, bench));
        }
    }
    groups.into_values().filter_map(|mut group| kernel(&mut group)).collect()
}

fn kernel(group: &mut Vec<(f64, &KernelBench)>) -> Option<KernelRow> {
    group.sort_by(|a, b| b.0.total_cmp(&a.0));
    let isa = &group.first()?.1.isa;
    group.retain(|(_, bench)| bench.isa == *isa);
    let ((most, best), (least, worst)) = (group.first()?, group.last()?);
    Some(KernelRow {
        op: outside::name(&best.op),
        dtype: outside::name(&best.dtype),
        isa: outside::name(isa),
        shapes: group.len(),
        most: share(*most),
        most_shape: outside::name(&best.shape),
        least: share(*least),
        least_shape: outside::name(&worst.shape),
    })
}
