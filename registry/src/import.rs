//! Imports results published elsewhere: `reports` reads them, and they are stored under the name
//! of their source file and never used as a baseline. Parts that cannot be read are reported with
//! their line and never guessed.

use std::collections::BTreeMap;
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
    let name = model_id(&written);
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

/// Facts about all results of a report that the importing user states, because the report does not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stated {
    /// Id of the engine, such as `vllm`.
    pub engine: Option<String>,
    /// Release of the engine, such as `v0.10.1`.
    pub release: Option<String>,
    /// Model, by its id or its name in the hub.
    pub model: Option<String>,
    /// Id of the scenario.
    pub scenario: Option<String>,
}

/// Values of facts that a report does not state: the reader's word for it, and the kinds of API that
/// vLLM's tool names in place of an engine.
const UNSTATED: [&str; 5] =
    ["unknown", "openai", "openai-chat", "openai-comp", "openai-embeddings"];

/// Adds the facts that the user states to the results of a report, and to their records that it was
/// the user who stated them.
///
/// # Errors
///
/// A result states another value, a value cannot be part of a path, or a record has no JSON form.
pub fn complete(imported: &mut Imported, stated: &Stated) -> Result<()> {
    for (_, record) in &mut imported.records {
        let model = stated.model.as_ref().map(|model| model_id(model));
        let release = stated.release.as_ref().map(|release| release_name(release));
        let mut words = BTreeMap::new();
        if record.model.id == "unknown" && model.is_some() {
            record.model.source =
                stated.model.clone().filter(|model| model.matches('/').count() == 1);
        }
        for (name, value, fact) in [
            ("engine", &stated.engine, &mut record.engine.name),
            ("release", &release, &mut record.engine.release),
            ("model", &model, &mut record.model.id),
            ("scenario", &stated.scenario, &mut record.scenario.id),
        ] {
            let Some(value) = value else { continue };
            let is_fit = is_name(value);
            ensure!(
                is_fit,
                "`--{name} {value}` has other characters than a-z, 0-9, `-`, `_` and `.`"
            );
            if UNSTATED.contains(&fact.as_str()) {
                fact.clone_from(value);
                words.insert(name.to_owned(), value.clone());
            }
            ensure!(
                fact == value,
                "`--{name} {value}` contradicts the report, which states `{fact}`\nhint: leave it out"
            );
        }
        if let Some(source) = record.source.as_mut().filter(|_| !words.is_empty()) {
            source.stated = Some(words);
        }
        judge::seal(record).context("a record has no JSON form")?;
    }
    Ok(())
}

/// Returns the suite's kind of id for a model's name: its last path component in lower case.
fn model_id(written: &str) -> String {
    written.rsplit('/').next().unwrap_or_default().to_lowercase()
}

/// Returns the name of a release, which begins with `v` where it is a version.
fn release_name(written: &str) -> String {
    let is_version = written.starts_with(|first: char| first.is_ascii_digit());
    if is_version { format!("v{written}") } else { written.to_owned() }
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
