//! Files that the commands write, each by a rename so that it is complete or not there, and the files
//! of a run in progress: a measurement that says `partial` until the run has ended, and the samples
//! file, to which each sample is added when its request ends.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use schema::canonical::{to_canonical, to_file_text};
use schema::measurement::Measurement;
use schema::run::{ScenarioFacts, Status};
use schema::samples::{Head, SCHEMA};
use serde::Serialize;

use super::progress::Progress;
use crate::client::drive::{DriveError, Observer, Tally};
use crate::client::sample::Sample;
use crate::clock::utc_now;
use crate::session::journal::Journal;
use crate::session::unfinished;

/// Writes `value` to `path` as indented JSON; the file is complete or not there.
pub fn json<T: Serialize>(path: &Path, value: &T) -> anyhow::Result<()> {
    text(path, &to_file_text(value)?)
}

/// Writes `value` to `path` as one line of canonical JSON, for large values that only programs
/// read.
pub fn compact<T: Serialize>(path: &Path, value: &T) -> anyhow::Result<()> {
    text(path, &(to_canonical(value)? + "\n"))
}

/// Writes `text` to `path` atomically; the file is complete or not there.
pub fn text(path: &Path, text: &str) -> anyhow::Result<()> {
    let name = path.file_name().with_context(|| format!("`{}` is not a file", path.display()))?;
    // The same folder means the same file system, on which a rename is atomic.
    let beside = path.with_file_name(format!(".{}.{}", name.to_string_lossy(), std::process::id()));
    let written = put(&beside, text.as_bytes()).and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        // Only the write error is reported; a leftover temporary file is recognizable by its name.
        let _ = fs::remove_file(&beside);
    }
    written.with_context(|| format!("cannot write `{}`", path.display()))
}

fn put(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    // Without this, a power failure could leave an empty file under the final name.
    file.sync_all()
}

/// Observer of a run that writes samples to disk and shows the progress.
pub struct Keeper {
    out: PathBuf,
    samples: PathBuf,
    journal: Journal,
    progress: Progress,
    kept: u64,
}

impl Keeper {
    /// Creates both files: the measurement at `out`, and the samples file with the same stem and
    /// the ending `.samples.jsonl`.
    ///
    /// # Errors
    /// One of the files cannot be written.
    pub fn begin(
        out: &Path,
        facts: &ScenarioFacts,
        requests: u64,
        progress: Progress,
    ) -> anyhow::Result<Self> {
        let samples = out.with_extension("samples.jsonl");
        let head = Head {
            schema: SCHEMA.to_owned(),
            scenario: format!("{}@{}", facts.id, facts.rev),
            manifest_sha256: facts.manifest_sha256.clone(),
            started_at: utc_now(),
            origin_ns: None,
            requests,
        };
        let name = samples.file_name().unwrap_or_default().to_string_lossy();
        // The placeholder is written before anything is sent, so that even a killed run leaves it.
        json(out, &unfinished(facts, &name))?;
        let journal = Journal::create(&samples, head)
            .with_context(|| format!("cannot write samples `{}`", samples.display()))?;
        Ok(Self { out: out.to_owned(), samples, journal, progress, kept: 0 })
    }

    /// Completes both files after the run has ended with `measurement`.
    ///
    /// # Errors
    /// One of the files cannot be written.
    pub fn finish(mut self, measurement: &Measurement) -> anyhow::Result<()> {
        self.progress.finish();
        self.journal
            .finish(measurement.status)
            .with_context(|| format!("cannot write samples `{}`", self.samples.display()))?;
        json(&self.out, measurement)
    }

    /// Closes the files of a run that ended early with `error`: its samples are kept, and the
    /// placeholder measurement is deleted.
    pub fn abandon(mut self, error: DriveError) -> anyhow::Error {
        self.progress.finish();
        // The error that ended the run is reported; a failure of the clean-up would hide it.
        let _ = fs::remove_file(&self.out);
        let _ = self.journal.finish(Status::Partial);
        if self.kept == 0 {
            let _ = fs::remove_file(&self.samples);
            return error.into();
        }
        let (kept, samples) = (self.kept, self.samples.display());
        anyhow::Error::from(error).context(format!("{kept} samples are kept in `{samples}`"))
    }
}

impl Observer for Keeper {
    fn stands(&mut self, tally: &Tally) {
        self.progress.show(tally);
        // Flushing here and not per sample gives the writer thread few, larger pieces.
        self.journal.flush();
    }

    fn ended(&mut self, index: usize, sample: &Sample) {
        self.kept += 1;
        self.journal.sample(index, sample);
    }
}
