//! Kernel records beside the limits of their machines, and beside those of earlier releases: which
//! record is the newest, which kernels come closest to a limit, and which became faster.

use std::collections::BTreeMap;

use schema::kernel::{KernelBench, KernelRecord};

use crate::order;
use crate::records::Stored;

/// Returns one kernel record for each hardware, ordered by hardware: the latest record of the
/// newest release of `engine`. Records with neither a model benchmark nor a share of a limit are
/// left out.
pub fn newest<'a>(
    records: &'a [Stored<KernelRecord>],
    engine: &str,
) -> Vec<&'a Stored<KernelRecord>> {
    let mut newest: BTreeMap<&str, &Stored<KernelRecord>> = BTreeMap::new();
    for stored in records {
        let record = &stored.record;
        let any = record.benches.iter().any(|bench| bench.limit_share.is_some());
        if record.engine.name != engine || !(any || record.model_benches().next().is_some()) {
            continue;
        }
        let known = newest.entry(&record.hardware.id).or_insert(stored);
        let by_release = order::releases(&known.record.engine.release, &record.engine.release);
        if by_release.then_with(|| known.record.id.cmp(&record.id)).is_le() {
            *known = stored;
        }
    }
    newest.into_values().collect()
}

/// Shares of a limit that one operation in one data type reached, with the instruction set that
/// comes closest to the limit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reached<'a> {
    /// Benchmark of the operation with the largest share of a limit, and that share.
    pub most: (&'a KernelBench, f64),
    /// Benchmark with the smallest share of a limit in the instruction set of the largest, and that
    /// share.
    pub least: (&'a KernelBench, f64),
    /// Number of benchmarks of the operation and data type, one per shape, that have a share of a
    /// limit in that instruction set.
    pub shapes: usize,
}

/// Returns the shares of a limit that each operation and data type reached, ordered by operation,
/// then data type. Benchmarks without a finite share are left out.
pub fn reached(benches: &[KernelBench]) -> Vec<Reached<'_>> {
    let mut groups: BTreeMap<(&str, &str), Vec<(&KernelBench, f64)>> = BTreeMap::new();
    for bench in benches {
        if let Some(share) = bench.limit_share.filter(|share| share.is_finite()) {
            groups.entry((&bench.op, &bench.dtype)).or_default().push((bench, share));
        }
    }
    let mut found = Vec::new();
    for mut group in groups.into_values() {
        group.sort_by(|a, b| b.1.total_cmp(&a.1));
        let most = group[0];
        group.retain(|(bench, _)| bench.isa == most.0.isa);
        found.push(Reached { most, least: group[group.len() - 1], shapes: group.len() });
    }
    found
}

/// Kernel benchmark of a release beside that of an earlier one: the same operation, shape, data type
/// and instruction set.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Change<'a> {
    /// Benchmark of the earlier release.
    pub baseline: &'a KernelBench,
    /// Benchmark of the later release.
    pub candidate: &'a KernelBench,
    /// Ratio of the median times of a call, later release to earlier: below 1, the later is faster.
    pub ratio: f64,
}

/// Returns the record that a kernel record is compared with: of the releases of its engine before its
/// own that were measured on the same hardware, the latest record of the newest. `None` where none
/// was measured there.
pub fn before<'a>(
    records: &'a [Stored<KernelRecord>],
    candidate: &KernelRecord,
) -> Option<&'a Stored<KernelRecord>> {
    let release = |record: &KernelRecord| record.engine.release.clone();
    let is_earlier = |stored: &&Stored<KernelRecord>| {
        let record = &stored.record;
        record.engine.name == candidate.engine.name
            && record.hardware.id == candidate.hardware.id
            && order::releases(&release(record), &release(candidate)).is_lt()
    };
    records.iter().filter(is_earlier).max_by(|a, b| {
        let by_release = order::releases(&release(&a.record), &release(&b.record));
        by_release.then_with(|| a.record.id.cmp(&b.record.id))
    })
}

/// Compares each benchmark of `candidate`, in its order, with that of `baseline` which has the same
/// operation, shape, data type and instruction set; `None` where there is none, or one of both has no
/// median time.
pub fn changes<'a>(
    baseline: &'a [KernelBench],
    candidate: &'a [KernelBench],
) -> Vec<Option<Change<'a>>> {
    fn key(bench: &KernelBench) -> [&str; 4] {
        [&bench.op, &bench.shape, &bench.dtype, &bench.isa].map(String::as_str)
    }
    let is_timed = |bench: &KernelBench| bench.median_ns.is_finite() && bench.median_ns > 0.0;
    let earlier: BTreeMap<[&str; 4], &KernelBench> =
        baseline.iter().filter(|bench| is_timed(bench)).map(|bench| (key(bench), bench)).collect();
    let change = |candidate: &'a KernelBench| {
        let baseline = *earlier.get(&key(candidate)).filter(|_| is_timed(candidate))?;
        Some(Change { baseline, candidate, ratio: candidate.median_ns / baseline.median_ns })
    };
    candidate.iter().map(change).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bench(isa: &str, shape: &str, limit_share: Option<f64>) -> KernelBench {
        let (isa, shape) = (isa.to_owned(), shape.to_owned());
        KernelBench { op: "matmul".into(), isa, shape, limit_share, ..KernelBench::default() }
    }

    #[test]
    fn the_instruction_set_that_comes_closest_is_shown_with_its_extremes() {
        let benches = [
            bench("avx2", "1x1", Some(0.7)),
            bench("avx512", "1x1", Some(0.2)),
            bench("avx512", "8x8", Some(0.9)),
            bench("avx512", "9x9", None),
        ];
        let found = reached(&benches);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].most.1, found[0].least.1, found[0].shapes), (0.9, 0.2, 2));
        assert_eq!((&*found[0].most.0.shape, &*found[0].least.0.shape), ("8x8", "1x1"));
    }

    fn record(release: &str, id: &str, share: Option<f64>) -> Stored<KernelRecord> {
        let mut record = KernelRecord::default();
        record.engine.name = "redline".into();
        record.engine.release = release.into();
        record.id = id.into();
        record.benches = vec![bench("avx2", "1x1", share)];
        Stored { path: id.to_owned(), root: 0, record }
    }

    #[test]
    fn a_record_is_compared_with_the_newest_earlier_release_on_its_hardware() {
        let mut elsewhere = record("v0.11.0", "e", None);
        elsewhere.record.hardware.id = "elsewhere".into();
        let mut other = record("v0.11.0", "f", None);
        other.record.engine.name = "other".into();
        let records = [
            record("v0.9.2", "d", None),
            record("v0.10.0", "b", None),
            record("v0.10.0", "c", None),
            record("v0.10.0", "a", None),
            elsewhere,
            other,
            record("v0.12.0-dev", "g", None),
            record("v0.12.0", "h", None),
        ];
        let compared = |index: usize| {
            before(&records, &records[index].record).map(|found| found.record.id.as_str())
        };
        assert_eq!(compared(6), Some("c"), "the latest of the release before");
        assert_eq!(compared(7), Some("g"));
        assert_eq!(compared(2), Some("d"), "another record of the same release is none");
        assert_eq!([compared(0), compared(4), compared(5)], [None; 3]);
    }

    #[test]
    fn benchmarks_match_by_operation_shape_type_and_instruction_set() {
        let timed = |isa: &str, shape: &str, median_ns| KernelBench {
            median_ns,
            dtype: "q4_1".into(),
            ..bench(isa, shape, None)
        };
        let baseline = [
            timed("avx2", "1x1", 100.0),
            timed("avx512", "1x1", 50.0),
            timed("avx512", "9x9", 0.0),
            KernelBench { op: "rms_norm".into(), ..timed("avx512", "2x2", 10.0) },
            KernelBench { dtype: "f32".into(), ..timed("avx512", "3x3", 10.0) },
        ];
        let candidate = [
            timed("avx512", "9x9", 7.0),
            timed("avx512", "1x1", 40.0),
            timed("avx512", "2x2", 7.0),
            timed("avx512", "3x3", 7.0),
            timed("avx2", "1x1", 110.0),
            timed("portable", "1x1", 900.0),
        ];
        let found: Vec<_> = changes(&baseline, &candidate)
            .into_iter()
            .map(|change| change.map(|one| (one.baseline.median_ns, one.ratio)))
            .collect();
        let (faster, slower) = (Some((50.0, 0.8)), Some((100.0, 1.1)));
        assert_eq!(found, [None, faster, None, None, slower, None]);
    }

    #[test]
    fn the_newest_record_with_a_limit_is_that_of_the_newest_release() {
        let records = [
            record("v0.10.0", "a", Some(0.5)),
            record("v0.10.0", "b", Some(0.5)),
            record("v0.9.0", "c", Some(0.5)),
            record("v0.11.0", "d", None),
        ];
        assert_eq!(newest(&records, "redline"), [&records[1]]);
        assert!(newest(&records, "other").is_empty());
    }
}
