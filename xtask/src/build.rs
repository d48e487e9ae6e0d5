//! Builds the measurement programs and runs one of them; writes files that are generated from code.

use std::ffi::OsString;

use anyhow::{Context, Result, bail};

use crate::shell::Shell;

/// Name of the program that renders the site and the registry's pages.
const SITE: &str = "redline-site";

/// Picture of the terminal after the newest campaign, which README.md shows.
const TERMINAL: &str = "docs/images/release-bench.svg";

/// Names of the programs of a campaign, which are built together. The engine is not among them,
/// because a release of it is built from its own worktree.
const CAMPAIGN: &[&str] = &["redline-bench", "redline-results", SITE, "redline-campaign"];

/// Names of the programs that compare Redline with other engines and load generators, and that start
/// those of a campaign.
const PEERS: &[&str] = &["redline-emitter", "redline-floor", "redline-peers"];

/// Verbs of `redline-results` that also start `redline-site`, to render the pages.
const RENDERING: &[&str] = &["retract", "annotate", "waive", "epoch", "sync", "import"];

/// Builds programs with `--workspace`, and so with the features of the whole workspace: with
/// `--package` cargo would pick other features and compile the dependencies again.
///
/// # Errors
/// Cargo cannot be started, or a program does not build.
pub fn build(shell: &Shell, programs: &[&str]) -> Result<()> {
    eprintln!("building {}", programs.join(", "));
    let names = programs.join(" --bin ");
    shell.cargo(&format!("build --quiet --release --locked --workspace --bin {names}"))
}

/// Builds `program` and the measurement programs that it may start, runs `program VERB REST`, and
/// returns its exit code.
///
/// # Errors
/// A program does not build, cannot be started, or is killed by a signal.
pub fn and_run(shell: &Shell, program: &str, verb: &str, rest: &[OsString]) -> Result<u8> {
    match program {
        "redline-results" if RENDERING.contains(&verb) => build(shell, &[program, SITE])?,
        "redline-results" => build(shell, &[program])?,
        // Compiled for each pull request, so only what it needs.
        "redline-campaign" if verb == "gate" => build(shell, &["redline-bench", program])?,
        // Measurement programs find each other in the folder that they share.
        "redline-campaign" => build(shell, CAMPAIGN)?,
        _ => build(shell, &[CAMPAIGN, PEERS].concat())?,
    }
    run(shell, program, verb, rest)
}

/// Renders the site and returns the exit code. `--check` compares the committed pages with freshly
/// rendered ones, `--pages` renders the committed pages again, and `--open` serves the site and
/// follows its sources.
///
/// # Errors
/// The program does not build, cannot be started, or is killed by a signal.
pub fn and_render(shell: &Shell, rest: &[OsString]) -> Result<u8> {
    build(shell, &[SITE])?;
    match rest.split_first() {
        Some((word, rest)) if word == "--check" => {
            run(shell, SITE, "check", &with_document(Vec::new(), rest))
        }
        Some((word, rest)) if word == "--open" => run(shell, SITE, "preview", rest),
        Some((word, rest)) if word == "--pages" => {
            let pages = ["--out", "results"].map(OsString::from).into();
            run(shell, SITE, "pages", &with_document(pages, rest))
        }
        _ => run(shell, SITE, "build", rest),
    }
}

/// Builds the server of the working tree and runs `redline chat` with the arguments `rest`, which
/// begin with the model; returns its exit code. A model of the suite is fetched before.
///
/// # Errors
/// A program does not build, cannot be started, or is killed by a signal; or the model cannot be
/// fetched.
pub fn and_chat(shell: &Shell, rest: &[OsString]) -> Result<u8> {
    let Some((model, flags)) = rest.split_first() else {
        bail!("`cargo xtask chat` needs a model\nhint: `ls suite/models`");
    };
    let name = model.to_string_lossy();
    let is_of_suite = shell.root.join(format!("suite/models/{name}.toml")).is_file();
    build(shell, if is_of_suite { &["redline", "redline-campaign"] } else { &["redline"] })?;
    let path = if is_of_suite {
        let fetched = shell.read(&shell.built("redline-campaign"), &["fetch", &*name])?;
        // A line has the id, two spaces and the path.
        let path = fetched.trim_end().split_once("  ").context("`fetch` printed no path")?.1;
        OsString::from(path)
    } else {
        model.clone()
    };
    run(shell, "redline", "chat", &[vec![path], flags.to_vec()].concat())
}

/// Writes the JSON Schemas and the reference pages of files, which are committed and generated from
/// the Rust types, or with `check` prints which of them are stale. Returns cargo's exit code, which
/// is not 0 if one is stale or the generator does not build or fails.
///
/// # Errors
/// Cargo cannot be started, or is killed by a signal.
pub fn generated_files(shell: &Shell, check: bool) -> Result<u8> {
    let line = "run --quiet --release --locked --bin redline-schema -- schema/json docs/reference";
    shell.cargo_code(&format!("{line}{}", if check { " --check" } else { "" }))
}

/// Returns the arguments `words`, then the flag `--document` with the page that shows values from
/// this tree's registry, then `rest`. The flag is left out if `rest` names another registry,
/// overlay or output folder.
fn with_document(mut words: Vec<OsString>, rest: &[OsString]) -> Vec<OsString> {
    let names_another = |word: &OsString| {
        let word = word.to_string_lossy();
        // The beginning is compared, because a value may follow after `=` in the same word.
        ["--registry", "--overlay", "--out"].iter().any(|flag| word.starts_with(flag))
    };
    if !rest.iter().any(names_another) {
        let own = ["--document", "docs/method/performance.md", "--terminal", TERMINAL];
        words.extend(own.map(OsString::from));
    }
    words.extend_from_slice(rest);
    words
}

fn run(shell: &Shell, program: &str, verb: &str, rest: &[OsString]) -> Result<u8> {
    let arguments = [vec![OsString::from(verb)], rest.to_vec()].concat();
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
