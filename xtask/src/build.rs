//! Building the suite's programs, and running one of them.

use std::ffi::OsString;

use anyhow::Result;

use crate::shell::Shell;

/// The programs of the suite. The engine is not among them: a release is built from its own
/// worktree.
const TOOLS: &[&str] = &[
    "redline-bench",
    "redline-emitter",
    "redline-floor",
    "redline-results",
    "redline-site",
    "redline-campaign",
];

/// Verbs of `redline-results` that have the pages rendered, by the program beside it.
const RENDERING: &[&str] = &["retract", "annotate", "waive", "epoch", "sync", "import"];

/// Builds every program of the suite; they lie beside each other and find each other there.
///
/// # Errors
/// The build fails.
pub fn tools(shell: &Shell) -> Result<()> {
    build(shell, TOOLS)
}

/// Builds programs with the features that the whole workspace asks for: with `--package` cargo
/// would choose the features of that package alone, and compile the dependencies once more.
fn build(shell: &Shell, programs: &[&str]) -> Result<()> {
    let mut arguments = vec!["build", "--quiet", "--release", "--locked", "--workspace"];
    for program in programs {
        arguments.extend(["--bin", program]);
    }
    eprintln!("building {}", programs.join(", "));
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
    match RENDERING.contains(&verb) {
        true => build(shell, &["redline-results", "redline-site"])?,
        false => build(shell, &["redline-results"])?,
    }
    run(shell, "redline-results", verb, rest)
}

/// Renders the site; with `--check` compares the committed pages with what they would be, with
/// `--pages` renders those anew, with `--open` serves the site and follows its sources.
///
/// # Errors
/// The program does not build.
pub fn run_site(shell: &Shell, rest: &[OsString]) -> Result<u8> {
    build(shell, &["redline-site"])?;
    match rest.split_first() {
        Some((word, rest)) if word == "--check" => run(shell, "redline-site", "check", rest),
        Some((word, rest)) if word == "--open" => run(shell, "redline-site", "preview", rest),
        Some((word, rest)) if word == "--pages" => {
            let mut pages: Vec<OsString> = ["--out", "results"].map(OsString::from).into();
            pages.extend_from_slice(rest);
            run(shell, "redline-site", "pages", &pages)
        }
        _ => run(shell, "redline-site", "build", rest),
    }
}

fn run(shell: &Shell, program: &str, verb: &str, rest: &[OsString]) -> Result<u8> {
    let mut arguments = vec![OsString::from(verb)];
    arguments.extend_from_slice(rest);
    shell.exit_code(&shell.built(program), &arguments)
}
