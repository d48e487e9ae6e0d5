//! The kernel benchmarks become one record; the files of criterion are prepared.

use std::fs;

use schema::canonical::record_sha256;
use schema::kernel::KernelRecord;
use schema::path::of_kernels;

use crate::scratch::{Scratch, files_below};

#[test]
fn the_benches_of_a_release_are_committed() {
    let scratch = Scratch::new();
    let needles = ["matmul/T512_K576_N1536_q4_1/avx512", "1.50 us", "commit   c0ffee"];
    scratch.run(&["kernels", "v0.9.2"]).expect(0, &needles);
    let results = scratch.root().join("results");
    let path = files_below(&results.join("kernels")).remove(0);
    let text = fs::read_to_string(&path).unwrap();
    let record: KernelRecord = serde_json::from_str(&text).unwrap();
    assert_eq!(path.strip_prefix(&results).unwrap().to_str(), of_kernels(&record).ok().as_deref());
    assert_eq!(record.record_sha256, record_sha256(&record).unwrap());
    assert_eq!(record.engine.release, "v0.9.2");
    // The release itself measured the first model of the target, and its record has no path.
    let bench = record.model_bench.expect("a bench of the model");
    assert_eq!(
        (bench.model.as_str(), bench.threads, bench.dtype.as_str()),
        ("tiny", Some(2), "int8")
    );
    assert_eq!((bench.prefill[0].tokens, bench.prefill[0].limit_share), (512, 0.5));
    assert_eq!((bench.decode[0].limit_share, bench.limits.read_bytes_per_s), (None, 4e10));
    // 750,250 operations in 1,500.5 ns are half of what the machine does in f32.
    assert!((record.benches[0].limit_share.unwrap() - 0.5).abs() < 1e-9);
}

#[test]
fn a_release_that_measures_no_model_still_has_its_op_benches() {
    let scratch = Scratch::new();
    let env = [("REDLINE_FAKE", "mute")];
    let noted = "`redline bench` printed no bench of a model";
    scratch.run_with(&["kernels", "v0.9.2"], &env).expect(0, &[noted, "commit   c0ffee"]);
    let path = files_below(&scratch.root().join("results/kernels")).remove(0);
    let record: KernelRecord = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    assert_eq!((record.benches.len(), record.model_bench), (1, None));
    assert_eq!(record.benches[0].limit_share, None);
    let asked = ["kernels", "v0.9.2", "--model", "tiny"];
    scratch.run_with(&asked, &env).expect(4, &[noted]);
    scratch.run(&["kernels", "--model", "gone"]).expect(2, &["`gone`", "tiny"]);
}

#[test]
fn the_benches_of_the_working_tree_stay_under_target() {
    let scratch = Scratch::new();
    scratch.run(&["kernels"]).expect(0, &["kernels/redline/v0.9.3-dev/", "(not committed)"]);
    assert!(!scratch.root().join("results").exists());
    assert!(!scratch.calls().contains("results record"));
}
