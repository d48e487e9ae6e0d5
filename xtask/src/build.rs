//! Builds the measurement programs and runs one of them.

use std::ffi::OsString;

use anyhow::Result;

use crate::shell::Shell;

/// Measurement programs to build. The engine is not among them, because a release of it is built
/// from its own worktree.
const TOOLS: &[&str] = &[
    "redline-bench",
    "redline-emitter",
    "redline-floor",
    "redline-results",
    "redline-site",
    "redline-campaign",
    "redline-peers",
];

/// Verbs of `redline-results` that also start `redline-site`, to render the pages.
const RENDERING: &[&str] = &["retract", "annotate", "waive", "epoch", "sync", "import"];

/// Builds all measurement programs. They find each other in the folder that they share.
///
/// # Errors
/// The build fails.
pub fn tools(shell: &Shell) -> Result<()> {
    build(shell, TOOLS)
}

/// Builds programs with `--workspace`, and so with the features of the whole workspace: with
/// `--package` cargo would pick other features and compile the dependencies again.
fn build(shell: &Shell, programs: &[&str]) -> Result<()> {
    let mut arguments = vec!["build", "--quiet", "--release", "--locked", "--workspace"];
    for program in programs {
        arguments.extend(["--bin", program]);
    }
    eprintln!("building {}", programs.join(", "));
    shell.cargo(&arguments)
}

/// Builds the measurement programs and runs `redline-campaign VERB REST`.
///
/// # Errors
/// A program does not build or cannot be started.
pub fn run_campaign(shell: &Shell, verb: &str, rest: &[OsString]) -> Result<u8> {
    tools(shell)?;
    run(shell, "redline-campaign", verb, rest)
}

/// Builds and runs `redline-peers VERB REST`.
///
/// # Errors
/// A program does not build or cannot be started.
pub fn run_peers(shell: &Shell, verb: &str, rest: &[OsString]) -> Result<u8> {
    tools(shell)?;
    run(shell, "redline-peers", verb, rest)
}

/// Builds and runs `redline-results VERB REST` on the registry of this tree.
///
/// # Errors
/// A program does not build or cannot be started.
pub fn run_results(shell: &Shell, verb: &str, rest: &[OsString]) -> Result<u8> {
    // These verbs start `redline-site`, which must be up to date.
    match RENDERING.contains(&verb) {
        true => build(shell, &["redline-results", "redline-site"])?,
        false => build(shell, &["redline-results"])?,
    }
    run(shell, "redline-results", verb, rest)
}

/// Renders the site. `--check` compares the committed pages with freshly rendered ones, `--pages`
/// renders the committed pages again, and `--open` serves the site and follows its sources.
///
/// # Errors
/// The program does not build or cannot be started.
pub fn run_site(shell: &Shell, rest: &[OsString]) -> Result<u8> {
    build(shell, &["redline-site"])?;
    match rest.split_first() {
        Some((word, rest)) if word == "--check" => {
            run(shell, "redline-site", "check", &with_document(Vec::new(), rest))
        }
        Some((word, rest)) if word == "--open" => run(shell, "redline-site", "preview", rest),
        Some((word, rest)) if word == "--pages" => {
            let pages = ["--out", "results"].map(OsString::from).into();
            run(shell, "redline-site", "pages", &with_document(pages, rest))
        }
        _ => run(shell, "redline-site", "build", rest),
    }
}

/// Arguments `words` and `rest`, with the document that shows this tree's figures between them. The
/// document is left out if another registry, overlay or output folder is named.
fn with_document(mut words: Vec<OsString>, rest: &[OsString]) -> Vec<OsString> {
    let names_another = |word: &OsString| {
        let word = word.to_string_lossy();
        ["--registry", "--overlay", "--out"].iter().any(|flag| word.starts_with(flag))
    };
    if !rest.iter().any(names_another) {
        words.extend(["--document", "docs/method/performance.md"].map(OsString::from));
    }
    words.extend_from_slice(rest);
    words
}

fn run(shell: &Shell, program: &str, verb: &str, rest: &[OsString]) -> Result<u8> {
    let mut arguments = vec![OsString::from(verb)];
    arguments.extend_from_slice(rest);
    shell.exit_code(&shell.built(program), &arguments)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_belongs_to_this_trees_registry_alone() {
        let given = |line: &str| {
            let rest: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
            let words = with_document(Vec::new(), &rest);
            assert!(words.ends_with(&rest));
            words.len() > rest.len()
        };
        assert!(given(""));
        for line in ["--registry elsewhere", "--registry=elsewhere", "--overlay o --only-overlay"] {
            assert!(!given(line), "{line}");
        }
    }
}
