//! Building the suite's programs, and running one of them.

use std::ffi::OsString;

use anyhow::Result;

use crate::shell::Shell;

/// The packages whose programs make up the suite. The engine is not among them: a release is
/// built from its own worktree.
const TOOLS: &[&str] = &["suite", "registry", "site", "campaign"];

/// Builds every program of the suite; they lie beside each other and find each other there.
///
/// # Errors
/// The build fails.
pub fn tools(shell: &Shell) -> Result<()> {
    build(shell, TOOLS)
}

fn build(shell: &Shell, packages: &[&str]) -> Result<()> {
    let mut arguments = vec!["build", "--quiet", "--release", "--locked", "--bins"];
    for package in packages {
        arguments.extend(["--package", package]);
    }
    eprintln!("building {}", packages.join(", "));
    shell.cargo(&arguments)
}

/// Runs `redline-campaign VERB REST`.
///
/// # Errors
/// The suite does not build.
pub fn run_campaign(shell: &Shell, verb: &str, rest: &[OsString]) -> Result<u8> {
    tools(shell)?;
    run(shell, "redline-campaign", verb, rest)
}

/// Runs `redline-results VERB REST` over the registry of this tree.
///
/// # Errors
/// The program does not build.
pub fn run_results(shell: &Shell, verb: &str, rest: &[OsString]) -> Result<u8> {
    build(shell, &["registry"])?;
    run(shell, "redline-results", verb, rest)
}

/// Renders the site, or with `--check` compares the committed pages with what they would be.
///
/// # Errors
/// The program does not build.
pub fn run_site(shell: &Shell, rest: &[OsString]) -> Result<u8> {
    build(shell, &["site"])?;
    let (check, rest): (Vec<_>, Vec<_>) = rest.iter().cloned().partition(|word| word == "--check");
    run(shell, "redline-site", if check.is_empty() { "build" } else { "check" }, &rest)
}

fn run(shell: &Shell, program: &str, verb: &str, rest: &[OsString]) -> Result<u8> {
    let mut arguments = vec![OsString::from(verb)];
    arguments.extend_from_slice(rest);
    shell.exit_code(&shell.built(program), &arguments)
}
