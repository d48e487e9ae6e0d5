//! Kernel records beside the limits of their machines: which record is the newest, and which
//! kernels come closest to a limit.

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
        if record.engine.name != engine || !(any || record.model_bench.is_some()) {
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

    #[test]
    fn the_newest_record_with_a_limit_is_that_of_the_newest_release() {
        let record = |release: &str, id: &str, share| {
            let mut record = KernelRecord::default();
            record.engine.name = "redline".into();
            record.engine.release = release.into();
            record.id = id.into();
            record.benches = vec![bench("avx2", "1x1", share)];
            Stored { path: id.to_owned(), root: 0, record }
        };
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
