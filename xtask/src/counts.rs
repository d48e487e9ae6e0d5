//! `cargo xtask counts`: compares instruction counts of the kernels and the scheduler with
//! committed ones, so that a regression shows on any machine, without timing.
//!
//! It must not know kernels or shapes: the engine's example `counts` lists its cases and runs one
//! of them at a time under callgrind.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::shell::Shell;

/// Path of the committed instruction counts, from the workspace's root.
const FILE: &str = "engine/benches/counts.toml";

/// Comment at the head of the committed file of instruction counts.
const HEAD: &str = "\
# Instructions of one call on one thread: docs/notes/guards.md. Written by `cargo xtask counts --renew`.
";

/// Growth of an instruction count, in percent, that is not a regression. The kernels' own code is
/// the same on every machine with this compiler, and callgrind hides the processor, but another C
/// library copies and fills memory with other instructions.
const GROWTH_PERCENT: u64 = 2;

/// Fall of an instruction count, in percent, from which the committed count must be lowered: a
/// limit far above the actual count would not notice a regression.
const SHRINKAGE_PERCENT: u64 = 5;

/// Option that makes callgrind count only within the example's function `counted`, by its mangled
/// name.
const COUNTED: &str = "--toggle-collect=*6counts7counted*";

/// Contents of the committed file of instruction counts.
#[derive(Debug, Deserialize, PartialEq, Eq)]
struct Committed {
    /// `rustc --version` of the compiler that built the counted code.
    compiler: String,
    instructions: BTreeMap<String, u64>,
}

/// Counts the instructions of every case and compares them with the committed ones; exit code 1 if
/// a count is out of bounds or not committed. With `renew` writes the counts instead. Without
/// valgrind nothing is counted (exit code 0, or 4 with `renew`), and with another compiler nothing
/// is compared (0).
///
/// # Errors
/// The example does not build or run, `rustc` cannot be run, valgrind fails or counts nothing, or
/// the committed file cannot be read, parsed or written.
pub fn run(shell: &Shell, renew: bool) -> Result<u8> {
    // Every machine can run `ci`; only writing new counts requires valgrind.
    if shell.read(Path::new("valgrind"), &["--version"]).is_err() {
        eprintln!("no valgrind: instructions are not counted");
        return Ok(if renew { 4 } else { 0 });
    }
    let compiler = shell.read(Path::new("rustc"), &["--version"])?.trim().to_owned();
    let path = shell.root.join(FILE);
    if renew {
        let counted = Committed { compiler, instructions: count(shell)? };
        std::fs::write(&path, counted.text()).with_context(|| format!("cannot write `{FILE}`"))?;
        eprintln!("{} counts in {FILE}", counted.instructions.len());
        return Ok(0);
    }
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read `{FILE}`"))?;
    let committed: Committed =
        toml::from_str(&text).with_context(|| format!("`{FILE}` is not as --renew writes it"))?;
    // Another compiler generates other code, so that its counts cannot be compared.
    if committed.compiler != compiler {
        eprintln!(
            "the committed counts are from {}, but this is {compiler}: not compared\n\
             hint: `cargo xtask counts --renew` writes counts for this compiler",
            committed.compiler
        );
        return Ok(0);
    }
    let findings = committed.compare(&count(shell)?);
    findings.iter().for_each(|finding| eprintln!("{finding}"));
    if !findings.is_empty() {
        eprintln!("hint: if this is intended, run `cargo xtask counts --renew` and commit {FILE}");
    }
    Ok(u8::from(!findings.is_empty()))
}

/// Counts the instructions of every case of the example `counts`; returns the counts by case.
fn count(shell: &Shell) -> Result<BTreeMap<String, u64>> {
    shell.cargo("build --quiet --locked --release --workspace --example counts")?;
    let example = shell.built("examples/counts");
    let names = shell.read::<&str>(&example, &[])?;
    names.lines().map(|name| Ok((name.to_owned(), count_one(shell, &example, name)?))).collect()
}

/// Counts the instructions of one case of the example `counts`.
fn count_one(shell: &Shell, example: &Path, name: &str) -> Result<u64> {
    // valgrind prints the count in its log, which goes to standard output here.
    // Names stay mangled, because `COUNTED` selects the function by its mangled name.
    let fixed = "--tool=callgrind --callgrind-out-file=/dev/null --log-fd=1 --demangle=no";
    let example = example.display().to_string();
    let words: Vec<&str> = fixed.split(' ').chain([COUNTED, &example, name]).collect();
    let log = shell.read(Path::new("valgrind"), &words)?;
    collected(&log).with_context(|| format!("callgrind counted nothing in `{name}`:\n{log}"))
}

/// Returns the total number of instructions in callgrind's log; `None` if it is missing or zero.
fn collected(log: &str) -> Option<u64> {
    let line = log.lines().find_map(|line| line.split_once("Collected :"))?;
    // Zero means that no function matched `COUNTED`, such as after it was renamed.
    line.1.trim().parse().ok().filter(|count| *count > 0)
}

impl Committed {
    fn text(&self) -> String {
        let line = |(name, count): (&String, &u64)| format!("\"{name}\" = {count}\n");
        let counts: String = self.instructions.iter().map(line).collect();
        format!("{HEAD}compiler = \"{}\"\n\n[instructions]\n{counts}", self.compiler)
    }

    /// Returns one line for each instruction count that is out of bounds or not committed.
    /// Committed cases that were not counted are skipped: they need instructions that this
    /// processor lacks.
    fn compare(&self, counted: &BTreeMap<String, u64>) -> Vec<String> {
        let compare = |(name, now): (&String, &u64)| {
            let Some(then) = self.instructions.get(name) else {
                return Some(format!("{name}: {now} instructions, and none are committed"));
            };
            let percent = 100.0 * now.abs_diff(*then) as f64 / *then as f64;
            // Integers keep the bounds exact.
            let more = 100 * now > (100 + GROWTH_PERCENT) * then;
            let less = 100 * now < (100 - SHRINKAGE_PERCENT) * then;
            let line = |what| format!("{name}: {now} instructions, {percent:.1} % {what} {then}");
            match (more, less) {
                (true, _) => Some(line("more than")),
                (_, true) => Some(line("less than") + ": lower it"),
                (false, false) => None,
            }
        };
        counted.iter().filter_map(compare).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(entries: &[(&str, u64)]) -> BTreeMap<String, u64> {
        entries.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
    }

    #[test]
    fn a_count_has_a_bound_on_either_side() {
        let instructions = counts(&[("a", 1000), ("b", 1000), ("c", 1000), ("d", 1000)]);
        let committed = Committed { compiler: String::new(), instructions };
        let within = counts(&[("a", 1020), ("b", 950)]);
        assert!(committed.compare(&within).is_empty());
        let without = counts(&[("a", 1021), ("b", 949), ("c", 1000), ("new", 5)]);
        assert_eq!(
            committed.compare(&without),
            [
                "a: 1021 instructions, 2.1 % more than 1000",
                "b: 949 instructions, 5.1 % less than 1000: lower it",
                "new: 5 instructions, and none are committed",
            ]
        );
    }

    #[test]
    fn what_is_written_is_read_again() {
        let instructions = counts(&[("matmul/T1_bf16/avx2", 7), ("schedule", 8)]);
        let committed = Committed { compiler: "rustc 1".to_owned(), instructions };
        assert_eq!(toml::from_str::<Committed>(&committed.text()).expect("TOML"), committed);
    }

    #[test]
    fn a_run_that_never_came_to_the_function_is_no_count() {
        assert_eq!(collected("==1== Events    : Ir\n==1== Collected : 463083\n"), Some(463_083));
        assert_eq!(collected("==1== Collected : 0\n"), None);
        assert_eq!(collected("error: no case\n"), None);
    }
}
