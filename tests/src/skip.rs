//! Skipped tests: a test that needs something the machine lacks says what, and in CI only the listed
//! reasons are accepted.

/// Reasons for a skip that CI accepts: things that `.ci/run` cannot install on a hosted machine.
const LISTED: &[&str] = &[
    "a GPU",
    "NCCL",
    "the published pages",
    "processors with AVX-512 BF16",
    "more open files",
    "mounts",
    "kernel receive stamps",
    "certificate authorities",
];

/// Reports that a test cannot run here: `missing` is what the machine lacks, and `hint` how to get it.
///
/// # Panics
/// In CI (`CI` is set), if `missing` is not listed in this file.
pub fn skip(missing: &str, hint: &str) {
    println!("skipped: {missing} is missing; hint: {hint}");
    let in_ci = std::env::var_os("CI").is_some();
    assert!(
        !in_ci || LISTED.contains(&missing),
        "{missing} is missing, and tests/src/skip.rs does not list it; hint: install it in .ci/run"
    );
}
