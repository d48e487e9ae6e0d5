//! Makes a bundle: selected runs of a registry, their campaign records, and a signed manifest.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, bail};
use judge::facts::run_facts;
use judge::{Registry, Stored};
use schema::canonical::{sha256_hex, to_file_text};
use schema::event::rfc3339_of;
use schema::run::{Kind, RunRecord};
use schema::submission::{
    MANIFEST_SCHEMA, ManifestEntry, NAMESPACE, SCHEMA, SubmissionBundle, SubmissionManifest,
    SubmittedFile, WithheldRun,
};
use store::folder::Listing;
use store::layout::RunParts;

use super::{BUNDLE_BYTES_MAX, signature};
use crate::list::Filter;

/// Submitter of a bundle, and the file of the key that signs it.
#[derive(Debug, Clone, Copy)]
pub struct Submitter<'a> {
    /// Name of the submitter, as the maintainer's list of allowed signers has it.
    pub name: &'a str,
    /// File of an ed25519 key: the private key, or the public key of one that an agent holds.
    pub key: &'a Path,
}

/// Bundle that was made, and what is in it.
#[derive(Debug)]
pub struct Made {
    /// Text of the bundle's file.
    pub text: String,
    /// Number of runs in the bundle.
    pub runs: usize,
    /// Number of files in the bundle.
    pub files: usize,
    /// Number of retracted runs that were left out.
    pub withheld: usize,
}

/// Makes a bundle of the measured runs of the folders `roots` that `filter` selects, with their
/// campaign records and, where only engine, release and hardware are selected, the kernel records.
/// Retracted records are left out, and the manifest names the runs among them.
///
/// # Errors
///
/// No run is selected, a file cannot be read, the bundle is too large, or it cannot be signed.
pub fn bundle(
    roots: &[&Path],
    filter: &Filter,
    submitter: Submitter<'_>,
    unix_s: i64,
) -> Result<Made> {
    let loaded = store::load(roots)?;
    let is_selected = |run: &&Stored<RunRecord>| {
        run.record.kind == Kind::Measured && filter.covers(&run_facts(&run.record))
    };
    let selected: Vec<&Stored<RunRecord>> = loaded.runs.iter().filter(is_selected).collect();
    let (withheld, runs): (Vec<_>, Vec<_>) =
        selected.into_iter().partition(|run| loaded.retracted.contains_key(&run.record.id));
    if runs.is_empty() {
        bail!(
            "no measured run is selected\nhint: `redline-results list` with the same flags shows \
             the runs"
        );
    }
    let withheld = withheld.into_iter().map(|run| WithheldRun {
        run: run.record.id.clone(),
        reason: loaded.retracted[&run.record.id].reason.clone(),
    });
    let withheld: Vec<WithheldRun> = withheld.collect();
    let mut files = Vec::new();
    for (path, root) in paths(&loaded, &runs, filter) {
        files.push(file(roots[root], path)?);
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    let (count, left_out) = (files.len(), withheld.len());
    let made_at = rfc3339_of(unix_s).context("the clock shows no time")?;
    let manifest = manifest(&files, withheld, submitter.name, made_at);
    let manifest = to_file_text(&manifest)?;
    let signature = signature::sign(submitter.key, NAMESPACE, manifest.as_bytes())?;
    let bundle = SubmissionBundle { schema: SCHEMA.to_owned(), manifest, signature, files };
    let text = to_file_text(&bundle)?;
    if text.len() as u64 > BUNDLE_BYTES_MAX {
        let bytes = text.len();
        bail!(
            "the bundle has {bytes} bytes, more than {BUNDLE_BYTES_MAX}\nhint: select fewer runs, \
             such as those of one campaign"
        );
    }
    Ok(Made { text, runs: runs.len(), files: count, withheld: left_out })
}

/// Returns path and root of each file of a bundle: the runs, their campaigns, and kernel records.
fn paths<'a>(
    loaded: &'a Registry,
    runs: &[&'a Stored<RunRecord>],
    filter: &Filter,
) -> Vec<(&'a str, usize)> {
    let ids: BTreeSet<&str> = runs
        .iter()
        .filter_map(|run| run.record.campaign.as_ref().map(|slot| slot.id.as_str()))
        .collect();
    let campaigns = loaded.campaigns.iter().filter(|one| ids.contains(one.record.id.as_str()));
    let RunParts { model, scenario, .. } = &filter.parts;
    let is_narrow = model.is_some() || scenario.is_some() || filter.campaign.is_some();
    let builds: BTreeSet<[&str; 3]> = runs
        .iter()
        .map(|run| {
            let RunRecord { engine, hardware, .. } = &run.record;
            [engine.name.as_str(), engine.release.as_str(), hardware.id.as_str()]
        })
        .collect();
    let kernels = loaded.kernels.iter().filter(|one| {
        let (engine, hardware) = (&one.record.engine, &one.record.hardware.id);
        let build = [engine.name.as_str(), engine.release.as_str(), hardware.as_str()];
        !is_narrow && builds.contains(&build) && !loaded.retracted.contains_key(&one.record.id)
    });
    let runs = runs.iter().map(|run| (run.path.as_str(), run.root));
    let campaigns = campaigns.map(|one| (one.path.as_str(), one.root));
    runs.chain(campaigns).chain(kernels.map(|one| (one.path.as_str(), one.root))).collect()
}

/// Reads a file as it is: the manifest's hash is of the bytes that the registry stores.
fn file(root: &Path, path: &str) -> Result<SubmittedFile> {
    let listing = Listing { root: root.to_owned(), ..Listing::default() };
    let text = String::from_utf8(listing.read(path)?);
    let text = text.with_context(|| format!("`{path}` is not UTF-8"))?;
    Ok(SubmittedFile { path: path.to_owned(), text })
}

fn manifest(
    files: &[SubmittedFile],
    withheld: Vec<WithheldRun>,
    submitter: &str,
    made_at: String,
) -> SubmissionManifest {
    let entry = |file: &SubmittedFile| ManifestEntry {
        path: file.path.clone(),
        bytes: file.text.len() as u64,
        sha256: sha256_hex(file.text.as_bytes()),
    };
    SubmissionManifest {
        schema: MANIFEST_SCHEMA.to_owned(),
        submitter: submitter.to_owned(),
        made_at,
        files: files.iter().map(entry).collect(),
        withheld,
    }
}
