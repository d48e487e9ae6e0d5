//! The op benches become one record; criterion itself is stood in for.

use std::fs;

use schema::canonical::record_sha256;
use schema::kernel::KernelRecord;
use schema::path::of_kernels;
use schema::run::unexplained_nulls;

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
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(unexplained_nulls(&value), Vec::<String>::new());
    assert_eq!(record.engine.release, "v0.9.2");
}

#[test]
fn the_benches_of_the_working_tree_stay_under_target() {
    let scratch = Scratch::new();
    scratch.run(&["kernels"]).expect(0, &["kernels/redline/v0.9.3-dev/", "(not committed)"]);
    assert!(!scratch.root().join("results").exists());
    assert!(!scratch.calls().contains("results record"));
}
