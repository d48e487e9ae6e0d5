//! From a job's folder to records in the campaign's: what a node says that it wrote is verified,
//! byte for byte, before it is taken.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use schema::canonical::record_sha256;
use schema::run::RunRecord;

use crate::executor::job::{FileFact, JobPlaces};
use crate::files::FileError;
use crate::node::record::RecordError;
use crate::node::steps::{self, Progress};
use crate::publish::write_run;
use crate::stop::Stop;

/// A file or record that is not what its node wrote.
fn unsound(what: String) -> Stop {
    Stop::wrong_use(what).with_hint("copy the job's folder again, or remove it and measure again")
}

/// Takes the records of the blocks that a job has finished into `overlay`, and says what it did.
///
/// # Errors
/// A file is not there, or not what the node wrote.
pub fn collect(places: &JobPlaces, staged: &Path) -> Result<(Progress, Vec<String>), Stop> {
    let progress = Progress::of(&steps::read(&places.steps())?);
    if let Some(done) = places.read_done()? {
        let known: BTreeSet<&str> = progress.files.iter().map(|file| file.path.as_str()).collect();
        if let Some(lost) = done.files.iter().find(|file| !known.contains(file.path.as_str())) {
            let path = places.dir().join(&lost.path);
            return Err(other_file(&path, "the job's steps know nothing of it"));
        }
    }
    let mut runs = Vec::new();
    for file in &progress.files {
        let record = verified(places.dir(), file)?;
        write_run(staged, &record)?;
        runs.push(record.id);
    }
    Ok((progress, runs))
}

fn other_file(path: &Path, what: &str) -> Stop {
    unsound(format!("`{}` is not the file that its node wrote: {what}", path.display()))
}

/// The record that a file holds, where it is the one that was written.
fn verified(dir: &Path, fact: &FileFact) -> Result<RunRecord, Stop> {
    let path = dir.join(&fact.path);
    let other = |what: &str| other_file(&path, what);
    if fact.path.split('/').any(|part| part == "..") || Path::new(&fact.path).is_absolute() {
        return Err(other("its path leads out of the job's folder"));
    }
    let found = FileFact::of(dir, &fact.path)?;
    if found != *fact {
        let what = format!(
            "{} bytes of SHA-256 {}, expected {} of {}",
            found.bytes, found.sha256, fact.bytes, fact.sha256
        );
        return Err(other(&what));
    }
    let text = fs::read_to_string(&path).map_err(FileError::at("read", &path))?;
    serde_json::from_str(&text).map_err(|error| other(&error.to_string()))
}

/// Checks that the records of some runs are sound: signed over what they hold, with the findings
/// that their figures give, at their place.
///
/// # Errors
/// One is missing, or is not.
pub fn check(staged: &Path, runs: &[String]) -> Result<(), Stop> {
    let files = files_below(&staged.join("runs"));
    for run in runs {
        let unsound = |what: &str| {
            unsound(format!("run `{run}` in `{}` is not sound: {what}", staged.display()))
        };
        let is_of = |path: &&PathBuf| path.file_stem().is_some_and(|stem| *stem == **run);
        let path = files.iter().find(is_of).ok_or_else(|| unsound("it is not there"))?;
        let record = read_record(path)?;
        let place = schema::path::of_run(&record).map_err(RecordError::from)?;
        if staged.join(&place) != **path {
            return Err(unsound(&format!("its place is `{place}`")));
        }
        if record_sha256(&record).map_err(RecordError::from)? != record.record_sha256 {
            return Err(unsound("its hash is of another content"));
        }
        if judge::findings_at(&record, record.checks_rev) != record.checks {
            return Err(unsound("its findings are not those of its figures"));
        }
    }
    Ok(())
}

/// Every run's record below `overlay`, in the order of the plan.
///
/// # Errors
/// A file there is no record.
pub fn records(staged: &Path) -> Result<Vec<RunRecord>, Stop> {
    let files = files_below(&staged.join("runs"));
    let mut records = files.iter().map(|path| read_record(path)).collect::<Result<Vec<_>, _>>()?;
    // Ids count up in the order of planning.
    records.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(records)
}

fn read_record(path: &Path) -> Result<RunRecord, Stop> {
    let text = fs::read_to_string(path).map_err(FileError::at("read", path))?;
    serde_json::from_str(&text)
        .map_err(|error| Stop::wrong_use(format!("`{}` is no record: {error}", path.display())))
}

/// Every file below a folder, sorted; none where there is no folder.
#[must_use]
pub fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let entries = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    for path in entries {
        match path.is_dir() {
            true => files.extend(files_below(&path)),
            false => files.push(path),
        }
    }
    files.sort();
    files
}
