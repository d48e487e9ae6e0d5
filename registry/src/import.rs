//! Imports results published elsewhere: `reports` reads them, and they are stored under the name
//! of their source file and never used as a baseline. Parts that cannot be read are reported with
//! their line and never guessed.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use reports::Unread;
use schema::path::of_report;
use schema::run::RunRecord;

/// Hardware as the importing user states it, because published pages rarely do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// Id of the hardware that the results were measured on.
    pub hardware: String,
    /// Evidence for the hardware, as a sentence.
    pub evidence: String,
}

/// Result of importing one file: records, and parts that could not be read.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Imported {
    /// Path below `results/` and record of each result, in the order of the file.
    pub records: Vec<(PathBuf, RunRecord)>,
    /// Results in the file that cannot be read, with their lines.
    pub unread: Vec<Unread>,
}

/// Imports the results in `text`. `file` is the file's name without folders, `source` the folder
/// below `imports/` for the records.
///
/// # Errors
///
/// `source` or the id of the claimed hardware cannot be part of a path, or a record has no JSON
/// form.
pub fn import(text: &str, file: &str, source: &str, claim: Option<&Claim>) -> Result<Imported> {
    ensure!(
        is_name(source),
        "`{source}` cannot be the name of a source: lower-case letters, digits, `-`, `_` and `.`"
    );
    let hardware = claim.map_or("", |claim| claim.hardware.as_str());
    ensure!(
        claim.is_none() || is_name(hardware),
        "`{hardware}` cannot be the id of a hardware: lower-case letters, digits, `-` and `.`"
    );
    let reading = reports::read(file, text);
    let mut imported = Imported { unread: reading.unread, ..Imported::default() };
    for (index, mut record) in reading.records.into_iter().enumerate() {
        // File and reader make the id, so that importing a file again gives the same records.
        let (sha256, reader) = match &record.source {
            Some(source) => (source.sha256.as_str(), source.reader),
            None => ("", None),
        };
        let folder = of_report(source, sha256.get(..8).unwrap_or_default(), reader);
        // Numbers are padded, so that the file names sort in the order of the results.
        let block = format!("{:03}", index + 1);
        let report = folder.rsplit('/').next().unwrap_or_default();
        record.id = format!("{report}-{block}");
        if record.engine.release.is_empty() {
            record.engine.release = "unknown".to_owned();
        }
        name_model(&mut record);
        state_hardware(&mut record, claim);
        judge::seal(&mut record)
            .with_context(|| format!("a record of `{file}` has no JSON form"))?;
        imported.records.push((PathBuf::from(format!("{folder}/{block}.json")), record));
    }
    Ok(imported)
}

/// Replaces the model's name as the page gives it by the suite's kind of id, where that is a valid
/// name: its last path component in lower case. The page's name becomes the model's source then,
/// unless it has more than one `/`: that is a path on a machine, and no source is set.
fn name_model(record: &mut RunRecord) {
    let written = record.model.id.clone();
    let name = written.rsplit('/').next().unwrap_or_default().to_lowercase();
    // The reader writes `unknown` where the page names no model.
    if written != "unknown" && is_name(&name) {
        record.model.id = name;
        // A path on somebody's machine is not a source that anyone else could look up.
        if written.matches('/').count() <= 1 {
            record.model.source = Some(written);
        }
    }
}

fn state_hardware(record: &mut RunRecord, claim: Option<&Claim>) {
    record.hardware.claimed = claim.is_some();
    if let Some(Claim { hardware, evidence }) = claim {
        record.hardware.id.clone_from(hardware);
        record.hardware.evidence = Some(evidence.clone());
    }
}

/// Derives the name of a source from a file's name: the stem in lower case, with hyphens for all
/// characters but ASCII letters, digits, `-`, `_` and `.`.
pub fn source_of(file: &str) -> String {
    let stem = file.rsplit_once('.').map_or(file, |(stem, _)| stem).to_lowercase();
    let fit = |c: char| if is_fit(c) { c } else { '-' };
    // The name is trimmed, because one that begins with a dot would be refused.
    stem.chars().map(fit).collect::<String>().trim_matches(['-', '.']).to_owned()
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.len() <= 100 && !text.starts_with('.') && text.chars().all(is_fit)
}

fn is_fit(c: char) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit() || "-_.".contains(c)
}

#[cfg(test)]
mod lossless;
#[cfg(test)]
mod tests;
