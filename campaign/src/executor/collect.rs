//! Collection of a job's records: verifies each file that the node wrote, byte for byte, and copies
//! its records into the campaign's staged results.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use schema::canonical::record_sha256;
use schema::run::RunRecord;

use crate::executor::job::{Done, FileFact, Progress, read_steps};
use crate::files::{files_below, read_text};
use crate::places::CampaignPlaces;
use crate::publish::write_run;
use crate::stop::Stop;

/// Builds the error of a file or record that is not what its node wrote.
fn unsound(what: String) -> Stop {
    Stop::wrong_use(what).with_hint("copy the job's folder again, or remove it and measure again")
}

/// Copies the records of a job's finished blocks into the staged results; returns the
/// job's progress and the ids of the copied runs.
///
/// # Errors
/// A file is missing, or differs from what the node wrote.
pub fn collect(places: &CampaignPlaces, staged: &Path) -> Result<(Progress, Vec<String>), Stop> {
    let progress = Progress::of(&read_steps(places)?);
    // The two files are written separately; a record that only one of them lists means damage.
    if let Some(done) = Done::read(places)? {
        let known: BTreeSet<&str> = progress.files.iter().map(|file| file.path.as_str()).collect();
        if let Some(lost) = done.files.iter().find(|file| !known.contains(file.path.as_str())) {
            let path = places.dir.join(&lost.path);
            return Err(other_file(&path, "the job's step log does not list it"));
        }
    }
    let mut runs = Vec::new();
    for file in &progress.files {
        let record = verified(&places.dir, file)?;
        write_run(staged, &record)?;
        runs.push(record.id);
    }
    Ok((progress, runs))
}

fn other_file(path: &Path, what: &str) -> Stop {
    unsound(format!("`{}` is not the file that its node wrote: {what}", path.display()))
}

/// Reads a run's record below `dir`, after checking its file's size and SHA-256 against `fact`.
fn verified(dir: &Path, fact: &FileFact) -> Result<RunRecord, Stop> {
    let path = dir.join(&fact.path);
    let other = |what: &str| other_file(&path, what);
    if fact.path.split('/').any(|part| part == "..") || Path::new(&fact.path).is_absolute() {
        return Err(other("its path leads out of the job's folder"));
    }
    // Files may have crossed a network file system or been copied by hand since the node wrote
    // them.
    let found = FileFact::of(dir, &fact.path)?;
    if found != *fact {
        let what = format!(
            "{} bytes of SHA-256 {}, expected {} of {}",
            found.bytes, found.sha256, fact.bytes, fact.sha256
        );
        return Err(other(&what));
    }
    serde_json::from_str(&read_text(&path)?).map_err(|error| other(&error.to_string()))
}

/// Checks the staged records of `runs`: each must lie at its own path, carry the hash of its
/// content, and contain the findings that the rules give for its figures.
///
/// # Errors
/// A record is missing or fails a check.
pub fn check(staged: &Path, runs: &[String]) -> Result<(), Stop> {
    let files = files_below(&staged.join("runs"));
    for run in runs {
        let unsound = |what: &str| {
            unsound(format!("run `{run}` in `{}` is not sound: {what}", staged.display()))
        };
        let is_of = |path: &&PathBuf| path.file_stem().is_some_and(|stem| *stem == **run);
        let path = files.iter().find(is_of).ok_or_else(|| unsound("it is missing"))?;
        let record = read_record(path)?;
        let place = schema::path::of_run(&record)?;
        if staged.join(&place) != **path {
            return Err(unsound(&format!("its path must be `{place}`")));
        }
        if record_sha256(&record)? != record.record_sha256 {
            return Err(unsound("its hash does not match its content"));
        }
        if judge::findings_at(&record, record.checks_rev) != record.checks {
            return Err(unsound("its findings differ from those of the rules"));
        }
    }
    Ok(())
}

/// Reads every run record of the staged results, in the order of the plan.
///
/// # Errors
/// A file is not a run record.
pub fn records(staged: &Path) -> Result<Vec<RunRecord>, Stop> {
    let files = files_below(&staged.join("runs"));
    let mut records = files.iter().map(|path| read_record(path)).collect::<Result<Vec<_>, _>>()?;
    // Run ids are ULIDs that count up in the order of planning.
    records.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(records)
}

fn read_record(path: &Path) -> Result<RunRecord, Stop> {
    serde_json::from_str(&read_text(path)?)
        .map_err(|error| Stop::wrong_use(format!("`{}` is not a record: {error}", path.display())))
}
