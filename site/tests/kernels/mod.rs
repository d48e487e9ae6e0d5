//! The page of kernels: it compares a release with the one that was measured before it.

use std::fs;

use schema::kernel::{KernelBench, KernelRecord};
use schema::run::RunRecord;

use super::{built, whole};

/// Kernel record of `release` with one benchmark.
pub fn record(like: &RunRecord, release: &str, median_ns: f64) -> judge::Stored<KernelRecord> {
    let mut engine = like.engine.clone();
    engine.release = release.to_owned();
    let record = KernelRecord {
        schema: schema::kernel::SCHEMA.into(),
        id: like.id.clone(),
        record_sha256: format!("k of {release}"),
        engine,
        hardware: like.hardware.clone(),
        benches: vec![KernelBench {
            op: "matmul_int8".into(),
            shape: "T512_K576_N1536".into(),
            dtype: "q4_1".into(),
            isa: "avx512".into(),
            device: "cpu".into(),
            median_ns,
            mad_ns: 1_234.5,
            samples: 40,
            bytes: Some(1 << 20),
            flops: None,
            limit_share: Some(0.614),
        }],
        ..KernelRecord::default()
    };
    judge::Stored { path: format!("kernels/redline/{release}/hw/x.json"), root: 0, record }
}

#[test]
fn kernels_stand_beside_those_of_the_release_before() {
    let (_guard, out) = built(&whole());
    let page = |release: &str| {
        let hardware = "cpu-example-simulated-f6m1s1-2c";
        let folder = out.join(format!("kernels/redline/{release}/{hardware}"));
        fs::read_to_string(folder.join("index.html")).expect("a page")
    };
    let (first, second) = (page("v0.9.1"), page("v0.10.0"));
    assert!(!first.contains("Ratio"), "nothing was measured before it");
    for part in
        [">v0.9.1 <small>us</small>", ">812<", ">650<", ">0.800<", "649876.5 ns to 812345.6 ns"]
    {
        assert!(second.contains(part), "no `{part}` in\n{second}");
    }
}
