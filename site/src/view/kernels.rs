//! View of the kernel benchmarks of a release on a hardware, beside those of the release before.

use judge::Stored;
use judge::kernels::{Change, changes};
use judge::order;
use minijinja::{Value, context};
use schema::kernel::{KernelBench, KernelRecord};

use super::figure::Figure;
use super::hardware;
use crate::catalog::ReleaseKey;
use crate::link::Target;
use crate::{format, outside};

/// Largest number of benchmark rows in one piece of a kernel record on a page.
const ROWS_MAX: usize = 100;

/// Builds the view of the kernel benchmarks `records`, which share engine, release and hardware,
/// and separately the pieces of the records, newest first, because they are split into pages.
/// `baseline` is the record of an earlier release that they are compared with.
pub fn view(
    records: &[&Stored<KernelRecord>],
    baseline: Option<&KernelRecord>,
) -> (Value, Vec<Value>) {
    let first = records.first().map(|stored| &stored.record);
    let name = |read: fn(&KernelRecord) -> &str| {
        first.map(|record| outside::name(read(record))).unwrap_or_default()
    };
    let view = context! {
        engine => name(|record| &record.engine.name),
        release => name(|record| &record.engine.release),
        hardware => name(|record| &record.hardware.id),
        baseline => baseline.map(|record| context! {
            release => outside::name(&record.engine.release),
            id => outside::name(&record.id),
            page => Target::Kernels(ReleaseKey::new(
                &record.engine.name,
                &record.engine.release,
                &record.hardware.id,
            )),
        }),
    };
    // Paths end in ids, which begin with their time: the reverse order is newest first.
    (view, records.iter().rev().flat_map(|stored| pieces(stored, baseline)).collect())
}

/// Splits a kernel record into pieces that each fit a page. A record that has only speeds of models
/// is one piece.
fn pieces(stored: &Stored<KernelRecord>, baseline: Option<&KernelRecord>) -> Vec<Value> {
    let record = &stored.record;
    let earlier = baseline.map_or(&[][..], |baseline| &baseline.benches);
    let changes = changes(earlier, &record.benches);
    let mut benches: Vec<_> = record.benches.iter().zip(changes).collect();
    benches.sort_by(|(a, _), (b, _)| {
        a.op.cmp(&b.op)
            .then_with(|| order::natural(&a.shape, &b.shape))
            .then_with(|| (&a.dtype, &a.isa).cmp(&(&b.dtype, &b.isa)))
    });
    let device = hardware::name(&record.hardware).unwrap_or_else(|| "-".to_owned());
    let piece = |benches: &[(&KernelBench, Option<Change<'_>>)]| {
        context! {
            id => outside::name(&record.id),
            record => Target::Record { path: stored.path.clone() },
            started => outside::name(record.time.started_at.as_deref().unwrap_or("-")),
            device => outside::name(&device),
            rows => benches.iter().map(|(bench, change)| row(bench, *change)).collect::<Value>(),
        }
    };
    match benches.is_empty() {
        true => vec![piece(&[])],
        false => benches.chunks(ROWS_MAX).map(piece).collect(),
    }
}

/// Builds the row of a kernel benchmark: one operation at one shape, and what it took in an earlier
/// release.
fn row(bench: &KernelBench, change: Option<Change<'_>>) -> Value {
    let missing = || Figure::missing("the earlier release has no such benchmark");
    let ratio = |change: Change<'_>| {
        let (after, before) = (change.candidate.median_ns, change.baseline.median_ns);
        Figure::plain(format::rounded(change.ratio, None), format!("{after} ns to {before} ns"))
    };
    context! {
        op => outside::name(&bench.op),
        shape => outside::name(&bench.shape),
        dtype => outside::name(&bench.dtype),
        isa => outside::name(&bench.isa),
        median => median(bench),
        before => change.map_or_else(missing, |change| median(change.baseline)),
        ratio => change.map_or_else(missing, ratio),
        samples => format::whole(bench.samples),
        bytes_per_s => giga(bench.bytes, bench.median_ns, "the op's traffic is not stated"),
        flops_per_s => giga(bench.flops, bench.median_ns, "the op's arithmetic is not stated"),
        limit => match bench.limit_share {
            Some(share) => Figure::plain(
                format!("{:.0}", share * 100.0),
                format!("{share} of the machine's limit"),
            ),
            None => Figure::missing("no limit was measured"),
        },
    }
}

/// Builds the figure of the median time per call with its deviation, in microseconds.
fn median(bench: &KernelBench) -> Figure {
    let spread = (bench.median_ns > 0.0).then(|| bench.mad_ns / bench.median_ns * 100.0);
    let median = Figure::plain(
        format::rounded(bench.median_ns / 1e3, Some(bench.mad_ns / 1e3)),
        format!("{} ns, deviation {} ns", bench.median_ns, bench.mad_ns),
    );
    Figure { spread: spread.map(format::plus_minus), ..median }
}

/// Returns the rate of one call in billions per second: `amount` (bytes or operations) per time of
/// the call; a missing figure with `reason` where `amount` or the time is not known.
fn giga(amount: Option<u64>, median_ns: f64, reason: &str) -> Figure {
    let Some(amount) = amount.filter(|_| median_ns > 0.0) else { return Figure::missing(reason) };
    // One per nanosecond is a billion per second.
    let value = format::as_f64(amount) / median_ns;
    Figure::plain(format::rounded(value, None), format!("{amount} in {median_ns} ns"))
}
