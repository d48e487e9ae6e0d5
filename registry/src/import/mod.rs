//! Other people's published results as records: read by `audit`, named by the file they stand in,
//! never a baseline. What cannot be read is reported by line and never guessed.

use std::path::PathBuf;

use reports::Unread;
use schema::run::RunRecord;

/// Hardware that an importer states, since pages do not show theirs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// Id of the hardware.
    pub hardware: String,
    /// What the claim rests on.
    pub evidence: String,
}

/// What a file holds.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Imported {
    /// Paths below `results/` and their records, in the order of the file.
    pub records: Vec<(PathBuf, RunRecord)>,
    /// What looks like a result and cannot be read.
    pub unread: Vec<Unread>,
}

/// An import that has no place in a registry.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ImportError {
    /// The source cannot be a folder's name.
    #[error("`{0}` cannot be the name of a source: lower-case letters, digits, `-`, `_` and `.`")]
    Source(String),
    /// The hardware cannot be a part of a path.
    #[error("`{0}` cannot be the id of a hardware: lower-case letters, digits, `-` and `.`")]
    Hardware(String),
    /// A figure is not a number.
    #[error("a record of `{file}` has no JSON form: {why}")]
    Seal {
        /// As it was given.
        file: String,
        /// In words.
        why: String,
    },
}

/// Reads the results in `text`. `file` is its name without folders, `source` the folder that they
/// get below `imports/`.
///
/// # Errors
/// A name is not fit for a path.
pub fn import(
    text: &str,
    file: &str,
    source: &str,
    claim: Option<&Claim>,
) -> Result<Imported, ImportError> {
    if !is_name(source) {
        return Err(ImportError::Source(source.to_owned()));
    }
    if let Some(claim) = claim.filter(|claim| !is_name(&claim.hardware)) {
        return Err(ImportError::Hardware(claim.hardware.clone()));
    }
    let reading = reports::read(file, text);
    let mut imported = Imported { unread: reading.unread, ..Imported::default() };
    for (index, mut record) in reading.records.into_iter().enumerate() {
        let digits: String =
            record.source.iter().flat_map(|source| source.sha256.chars().take(8)).collect();
        let block = format!("{:03}", index + 1);
        record.id = format!("{digits}-{block}");
        if record.engine.release.is_empty() {
            record.engine.release = "unknown".to_owned();
        }
        name_model(&mut record);
        state_hardware(&mut record, claim);
        judge::seal(&mut record)
            .map_err(|why| ImportError::Seal { file: file.to_owned(), why: why.to_string() })?;
        let path = ["imports", source, &digits, &format!("{block}.json")].iter().collect();
        imported.records.push((path, record));
    }
    Ok(imported)
}

/// The model's id is its name without the organization, in lower case, as the suite's are; what the
/// page wrote stays beside it.
fn name_model(record: &mut RunRecord) {
    let written = record.model.id.clone();
    let name = written.rsplit('/').next().unwrap_or_default().to_lowercase();
    if written != "unknown" && is_name(&name) {
        record.model.id = name;
        // A path of the machine is not a source that anyone could look up.
        if written.matches('/').count() <= 1 {
            record.model.source = Some(written);
            record.absent.remove("model.source");
        }
    }
}

fn state_hardware(record: &mut RunRecord, claim: Option<&Claim>) {
    match claim {
        Some(Claim { hardware, evidence }) => {
            record.hardware.id.clone_from(hardware);
            record.hardware.claimed = true;
            record.hardware.evidence = Some(evidence.clone());
        }
        None => {
            record.hardware.claimed = false;
            let reason = "the report does not say, and nobody claimed it".to_owned();
            record.absent.insert("hardware.id".to_owned(), reason);
        }
    }
}

/// The name of a source after a file: its stem in lower case, other characters as hyphens.
#[must_use]
pub fn source_of(file: &str) -> String {
    let stem = file.rsplit_once('.').map_or(file, |(stem, _)| stem).to_lowercase();
    let fit = |c: char| if is_fit(c) { c } else { '-' };
    stem.chars().map(fit).collect::<String>().trim_matches(['-', '.']).to_owned()
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.len() <= 100 && !text.starts_with('.') && text.chars().all(is_fit)
}

fn is_fit(c: char) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit() || "-_.".contains(c)
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod variants;
