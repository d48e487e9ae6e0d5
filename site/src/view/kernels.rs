//! View of the kernel benchmarks of a release on a hardware.

use judge::Stored;
use schema::kernel::{KernelBench, KernelRecord};
use serde::Serialize;

use super::figure::Figure;
use super::pager::PartLink;
use crate::link::Target;
use crate::{format, order, outside};

/// View of the kernel benchmarks: pieces of one kernel record after another, newest first.
#[derive(Debug, Clone, Serialize)]
pub struct KernelsView {
    pub engine: String,
    pub release: String,
    pub hardware: String,
    pub records: Vec<KernelsRecord>,
    pub pager: Vec<PartLink>,
}

/// Kernel record, or a piece of it.
#[derive(Debug, Clone, Serialize)]
pub struct KernelsRecord {
    pub id: String,
    pub record: Target,
    pub started: String,
    pub device: String,
    pub rows: Vec<KernelRow>,
}

/// Row of the table: one operation at one shape.
#[derive(Debug, Clone, Serialize)]
pub struct KernelRow {
    pub op: String,
    pub shape: String,
    pub dtype: String,
    pub isa: String,
    /// Median time per call with its deviation, in microseconds.
    pub median: Figure,
    pub samples: String,
    pub bytes_per_s: Figure,
    pub flops_per_s: Figure,
    pub limit: Figure,
}

impl KernelsView {
    /// Builds the view of `records`, which share engine, release and hardware.
    pub fn new(records: &[&Stored<KernelRecord>]) -> Self {
        let first = records.first().map(|stored| &stored.record);
        let name = |read: fn(&KernelRecord) -> &str| {
            first.map(|r| outside::name(read(r))).unwrap_or_default()
        };
        Self {
            engine: name(|record| &record.engine.name),
            release: name(|record| &record.engine.release),
            hardware: name(|record| &record.hardware.id),
            records: records
                .iter()
                // Paths end in ids, which begin with their time: the reverse order is newest
                // first.
                .rev()
                .flat_map(|stored| pieces(view(&stored.path, &stored.record)))
                .collect(),
            pager: Vec::new(),
        }
    }
}

/// Largest number of rows in a piece of a record.
const ROWS_MAX: usize = 100;

/// Splits a record into pieces that each fit a page.
fn pieces(record: KernelsRecord) -> Vec<KernelsRecord> {
    let piece = |rows: &[KernelRow]| KernelsRecord { rows: rows.to_vec(), ..record.clone() };
    record.rows.chunks(ROWS_MAX).map(piece).collect()
}

fn view(path: &str, record: &KernelRecord) -> KernelsRecord {
    let mut rows: Vec<KernelRow> = record.benches.iter().map(row).collect();
    rows.sort_by(|a, b| {
        a.op.cmp(&b.op)
            .then_with(|| order::natural(&a.shape, &b.shape))
            .then_with(|| (&a.dtype, &a.isa).cmp(&(&b.dtype, &b.isa)))
    });
    let cpu = record.hardware.cpu_model.as_deref().unwrap_or("-");
    let gpu = record.hardware.gpu.as_ref().and_then(|gpus| gpus.first());
    KernelsRecord {
        id: outside::name(&record.id),
        record: Target::Record { path: path.to_owned() },
        started: record.time.started_at.as_deref().map_or_else(|| "-".to_owned(), outside::name),
        device: outside::name(gpu.map_or(cpu, |gpu| &gpu.name)),
        rows,
    }
}

fn row(bench: &KernelBench) -> KernelRow {
    let spread = (bench.median_ns > 0.0).then(|| bench.mad_ns / bench.median_ns * 100.0);
    let median = Figure {
        text: format::rounded(bench.median_ns / 1e3, Some(bench.mad_ns / 1e3)),
        spread: spread.map(format::plus_minus),
        title: format!("{} ns, deviation {} ns", bench.median_ns, bench.mad_ns),
        missing: false,
    };
    KernelRow {
        op: outside::name(&bench.op),
        shape: outside::name(&bench.shape),
        dtype: outside::name(&bench.dtype),
        isa: outside::name(&bench.isa),
        median,
        samples: format::whole(bench.samples),
        bytes_per_s: giga(bench.bytes, bench.median_ns, "the op's traffic is not stated"),
        flops_per_s: giga(bench.flops, bench.median_ns, "the op's arithmetic is not stated"),
        limit: match bench.limit_share {
            Some(share) => Figure {
                text: format!("{:.0}", share * 100.0),
                spread: None,
                title: format!("{share} of the machine's limit"),
                missing: false,
            },
            None => Figure::missing("no limit was measured"),
        },
    }
}

/// Rate in billions per second, from an amount and the time of one call.
fn giga(amount: Option<u64>, median_ns: f64, reason: &str) -> Figure {
    let Some(amount) = amount.filter(|_| median_ns > 0.0) else { return Figure::missing(reason) };
    // One per nanosecond is a billion per second.
    let value = format::as_f64(amount) / median_ns;
    Figure {
        text: format::rounded(value, None),
        spread: None,
        title: format!("{amount} in {median_ns} ns"),
        missing: false,
    }
}
