//! Publication of finished runs: writes records to the staged results, and calls `redline-results`
//! and `redline-site` to commit them, render pages and print tables.

pub(crate) mod finish;
pub(crate) mod gate;
pub(crate) mod ingest;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use judge::alternation::compare::Gate;
use judge::diff::{Filter, diff, waivers};
use schema::campaign::CampaignRecord;
use schema::canonical::{record_sha256, to_file_text};
use schema::comparison::{Decision, Diff};
use schema::exit::Exit;
use schema::run::RunRecord;
use serde::Serialize;
use serde_json::Value;

use crate::files::{self, files_below};
use crate::process::{self, Interrupt};
use crate::stop::Stop;
use crate::tools::{RESULTS, SITE, Tools, ended};
use crate::world::World;

/// The registry of records in a repository: its files are read directly, and changed and rendered
/// through `redline-results` and `redline-site`.
#[derive(Debug)]
pub struct Registry<'a> {
    tools: &'a Tools,
    /// Repository of the registry, with the folder `results/`.
    dir: &'a Path,
    interrupt: &'a Interrupt,
}

/// Writes a run's record to the staged results, a folder laid out like `results/`; returns the
/// file's path. The record replaces an earlier one of the same run: a run that was recorded as
/// failed, before its job was carried out again, lies in the folder of another configuration.
///
/// # Errors
/// The record has no path under `results/` or no JSON form, the file cannot be written, or the
/// earlier one cannot be removed.
pub fn write_run(staged: &Path, record: &RunRecord) -> Result<PathBuf, Stop> {
    let path = write(staged, &schema::path::of_run(record)?, record)?;
    let of_same_run = |other: &PathBuf| other.file_name() == path.file_name() && *other != path;
    for earlier in files_below(&staged.join("runs")).into_iter().filter(of_same_run) {
        files::remove(&earlier)?;
    }
    Ok(path)
}

/// Adds the hash to a campaign's record and writes it to the staged results; returns the file's
/// path.
///
/// # Errors
/// The record has no canonical form or no path under `results/`, or the file cannot be written.
pub fn write_campaign(staged: &Path, record: &mut CampaignRecord) -> Result<PathBuf, Stop> {
    record.record_sha256 = record_sha256(record)?;
    write(staged, &schema::path::of_campaign(record)?, record)
}

/// Writes any record to `place`, a path relative to the staged results; returns the file's path.
///
/// # Errors
/// The record has no JSON form, or the file cannot be written.
pub fn write<T: Serialize>(staged: &Path, place: &str, record: &T) -> Result<PathBuf, Stop> {
    let path = staged.join(place);
    let text = to_file_text(record)?;
    files::write_whole(&path, text.as_bytes())?;
    Ok(path)
}

impl<'a> Registry<'a> {
    /// Returns the registry in the repository `dir`.
    pub fn new(world: &'a World, dir: &'a Path) -> Self {
        Self { tools: &world.tools, dir, interrupt: &world.interrupt }
    }

    /// Returns the path of the folder with the registry's records.
    pub fn results(&self) -> PathBuf {
        self.dir.join("results")
    }

    /// Checks that records can be committed to the registry, before hours of measuring and not
    /// after.
    ///
    /// # Errors
    /// Records cannot be committed, for a cause that the registry's tool has printed; or the tool
    /// cannot be run or is interrupted.
    pub fn preflight(&self) -> Result<(), Stop> {
        self.must(RESULTS, "preflight", |command| command.stdout(Stdio::null()))
    }

    /// Renders the Markdown pages of the releases in the staged results, into the staged results.
    ///
    /// # Errors
    /// The site's tool cannot be run, fails or is interrupted.
    pub fn render_pages(&self, staged: &Path) -> Result<(), Stop> {
        // Pages go into the staged results, so that one commit contains records and pages.
        self.must(SITE, "pages", |command| {
            let command = command.arg("--overlay").arg(staged).arg("--only-overlay");
            command.arg("--out").arg(staged).stdout(Stdio::null())
        })
    }

    /// Commits the staged results to the registry; returns the commit's hash if the tool reports
    /// it.
    ///
    /// # Errors
    /// A record fails a check, the commit cannot be made, or the registry's tool cannot be run or
    /// is interrupted.
    pub fn record(&self, staged: &Path, message: &str) -> Result<Option<String>, Stop> {
        let mut command = self.tools.results("record");
        command.arg(staged).arg("--registry").arg(self.dir);
        command.args(["--message", message, "--json"]);
        let written = process::capture(&mut command, self.interrupt)?;
        if !written.status.success() {
            eprint!("{}", written.stderr);
            return Err(ended(RESULTS, "record", written.status));
        }
        let answer: Value = serde_json::from_str(&written.stdout).unwrap_or_default();
        Ok(answer.get("commit").and_then(Value::as_str).map(str::to_owned))
    }

    /// Builds the HTML site in the folder `out`.
    ///
    /// # Errors
    /// The site's tool cannot be run, fails or is interrupted.
    pub fn build_site(&self, out: &Path) -> Result<(), Stop> {
        self.must(SITE, "build", |command| command.arg("--out").arg(out).stdout(Stdio::null()))
    }

    /// Prints a release's table on standard output, with the records in `staged`, which are not
    /// committed, in addition to those of the registry.
    ///
    /// # Errors
    /// The site's tool cannot be run, fails or is interrupted.
    pub fn print_table(&self, of: Named<'_>, staged: Option<&Path>) -> Result<(), Stop> {
        self.must(SITE, "table", |command| {
            command.args(["--engine", of.engine, "--release", of.release]);
            command.args(["--hardware", of.hardware]).args(staged_arguments(staged))
        })
    }

    /// Returns the registry's comparison of release `of` with `baseline`, over the registry's
    /// records and those in `staged`, without waivers.
    ///
    /// # Errors
    /// A record cannot be read, or the releases cannot be compared.
    pub fn compare(&self, baseline: &str, of: Named<'_>, staged: &Path) -> Result<Diff, Stop> {
        Ok(self.compared(baseline, of, Some(staged))?.1)
    }

    /// Returns the decision of the registry's comparison of release `of` with `baseline`, over the
    /// registry's records and those in `staged`, which are not committed, with the waivers that have
    /// not ended at `unix_s` (seconds since 1970).
    ///
    /// # Errors
    /// A record cannot be read, or the releases cannot be compared.
    pub fn decide(
        &self,
        baseline: &str,
        of: Named<'_>,
        staged: Option<&Path>,
        unix_s: i64,
    ) -> Result<Decision, Stop> {
        let (loaded, mut diff) = self.compared(baseline, of, staged)?;
        waivers::apply(&mut diff, &loaded, unix_s);
        Ok(diff.decision)
    }

    fn compared(
        &self,
        baseline: &str,
        of: Named<'_>,
        staged: Option<&Path>,
    ) -> Result<(judge::Registry, Diff), Stop> {
        let results = self.results();
        let roots: Vec<&Path> = std::iter::once(results.as_path()).chain(staged).collect();
        let loaded = store::load_releases(&roots, &[baseline, of.release])?;
        let (engine, hardware) = (Some(of.engine.to_owned()), Some(of.hardware.to_owned()));
        let diff = diff(&loaded, baseline, of.release, &Filter { engine, hardware })?;
        Ok((loaded, diff))
    }

    /// Prints the registry's comparison of release `of` with `baseline`, over the registry's
    /// records and those in `staged`, which are not committed; returns the comparison's exit code.
    ///
    /// # Errors
    /// The registry's tool cannot be run, is interrupted, or cannot compare the releases.
    pub fn diff(&self, baseline: &str, of: Named<'_>, staged: Option<&Path>) -> Result<Exit, Stop> {
        let mut command = self.tools.results("diff");
        command.args([baseline, of.release, "--registry"]).arg(self.dir);
        command
            .args(["--engine", of.engine, "--hardware", of.hardware])
            .args(staged_arguments(staged));
        let status = process::show(&mut command, self.interrupt)?;
        match status.code() {
            Some(0) => Ok(Exit::Well),
            Some(1) => Ok(Exit::Worse),
            Some(3) => Ok(Exit::Inconclusive),
            _ => Err(ended(RESULTS, "diff", status)),
        }
    }

    /// Runs a tool that has to succeed, with its output on this process's standard streams.
    /// `add` adds its arguments.
    fn must(
        &self,
        name: &str,
        verb: &str,
        add: impl FnOnce(&mut Command) -> &mut Command,
    ) -> Result<(), Stop> {
        let mut command = self.tools.command(name, verb);
        command.arg("--registry").arg(self.dir);
        let status = process::show(add(&mut command), self.interrupt)?;
        if status.success() { Ok(()) } else { Err(ended(name, verb, status)) }
    }
}

/// Returns the arguments by which a tool also reads records that are not committed.
fn staged_arguments(staged: Option<&Path>) -> impl Iterator<Item = &OsStr> {
    staged.into_iter().flat_map(|staged| [OsStr::new("--overlay"), staged.as_os_str()])
}

/// A release of an engine on a hardware, by which the registry's tools select runs.
#[derive(Debug, Clone, Copy)]
pub struct Named<'a> {
    pub engine: &'a str,
    pub release: &'a str,
    pub hardware: &'a str,
}

/// Returns what the alternating comparisons in a campaign's record say.
pub fn in_turns(record: &CampaignRecord) -> Diff {
    let words = ["cargo", "xtask"].map(str::to_owned).into_iter();
    let command: Vec<String> = words.chain(record.command.iter().cloned()).collect();
    let comparison = Gate {
        campaign: &record.id,
        hardware: &record.hardware,
        command: &command,
        comparisons: &record.alternations,
    };
    comparison.diff()
}
