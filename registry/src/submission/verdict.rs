//! Verdict on a bundle: its form, its signature, the storage rules, and the submission rules of
//! `judge` over its records and those of the maintainer's registry.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use anyhow::Result;
use judge::Stored;
use judge::diff::words::plural;
use judge::finding::{Finding, HISTORY, ID};
use judge::submission::{SIGNATURE, Submission, findings};
use rayon::prelude::*;
use schema::canonical::sha256_hex;
use schema::exit::Exit;
use schema::submission::NAMESPACE;
use serde::Serialize;
use store::folder::Listing;
use store::layout::FileKind;
use store::storage::{self, Parsed};

use super::signers::Signers;
use super::{Bundle, WHOLE, bounded, signature};
use crate::repository::RESULTS;

/// Verdict on a bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Sound: nothing speaks against the bundle.
    Sound,
    /// Doubtful: the findings are remarks, which a maintainer decides about.
    Doubtful,
    /// Unsound: a finding refuses the bundle.
    Unsound,
}

/// Result of the check of a bundle.
#[derive(Debug, Clone, Serialize)]
pub struct Checked {
    /// Verdict on the bundle.
    pub verdict: Verdict,
    /// Name of the submitter, as the manifest states it.
    pub submitter: String,
    /// Fingerprint of the key that signed the manifest; `None` where the signature does not verify.
    pub key: Option<String>,
    /// True where a list of allowed signers has the key for the submitter's name; `None` where no
    /// list was given.
    pub is_allowed: Option<bool>,
    /// SHA-256 of the manifest, lower-case hex.
    pub manifest_sha256: String,
    /// Number of readable files in the bundle by kind: `runs`, `campaigns`, `kernels`.
    pub files: BTreeMap<&'static str, usize>,
    /// Number of runs that the submitter says to have retracted and left out.
    pub withheld: usize,
    /// Findings about the bundle, breaches first.
    pub findings: Vec<Finding>,
}

impl Checked {
    /// Returns the exit code of the check.
    pub fn exit(&self) -> Exit {
        match self.verdict {
            Verdict::Sound => Exit::Well,
            Verdict::Doubtful => Exit::Inconclusive,
            Verdict::Unsound => Exit::Unsound,
        }
    }

    /// Returns a sentence about who signed the bundle.
    pub fn signed_by(&self) -> String {
        let Self { submitter, key, is_allowed, .. } = self;
        let Some(key) = key else { return format!("nobody as {submitter}") };
        let listed = match is_allowed {
            Some(true) => "an allowed signer",
            Some(false) => "not an allowed signer",
            None => "not compared with a list of signers",
        };
        format!("{submitter} with {key}, {listed}")
    }
}

impl fmt::Display for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let files: Vec<String> =
            self.files.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        let files = if files.is_empty() { "no records".to_owned() } else { files.join(", ") };
        writeln!(f, "submission: {files}, {} left out as retracted", self.withheld)?;
        writeln!(f, "signed by: {}", self.signed_by())?;
        for finding in &self.findings {
            writeln!(f, "{finding}")?;
        }
        let breaches = self.findings.iter().filter(|finding| finding.breach).count();
        match self.verdict {
            Verdict::Sound => write!(f, "verdict: sound"),
            Verdict::Doubtful => {
                let remarks = plural(self.findings.len(), "remark");
                write!(f, "verdict: doubtful, {remarks}: the maintainer decides")
            }
            Verdict::Unsound if breaches == 1 => write!(f, "verdict: unsound, 1 breach"),
            Verdict::Unsound => write!(f, "verdict: unsound, {breaches} breaches"),
        }
    }
}

/// Checks the bundle in `bytes` against the registry in `dir`, at the time `unix_s` in seconds since
/// 1970. Returns the bundle too; `None` where it cannot be read.
///
/// # Errors
///
/// A file of the registry cannot be read.
pub fn check(
    bytes: &[u8],
    dir: &Path,
    signers: Option<&Signers>,
    unix_s: i64,
) -> Result<(Checked, Option<Bundle>)> {
    let (bundle, mut found) = match Bundle::parse(bytes) {
        Ok((bundle, found)) => (Some(bundle), found),
        Err(finding) => (None, vec![finding]),
    };
    let read = bundle.clone().unwrap_or_default();
    let (key, is_allowed) = match signed(&read, signers, unix_s) {
        Ok((key, is_allowed)) => (Some(key), is_allowed),
        Err(finding) => {
            found.extend(bundle.is_some().then_some(finding));
            (None, None)
        }
    };
    if is_allowed == Some(false) {
        let name = &read.manifest.submitter;
        let detail = format!("no list has the key for `{name}` at this time");
        found.push(SIGNATURE.breach(WHOLE, detail));
    }
    let (mut submission, kinds, of_files) = records(&read, unix_s);
    found.extend(of_files);
    let results = dir.join(RESULTS);
    let listing = Listing::of_wanted(&results, &|path| {
        matches!(path.split('/').next(), Some("runs" | "campaigns" | "kernels"))
    })?;
    found.extend(against_registry(&read, &listing)?);
    add_known(&mut submission, &listing)?;
    submission.withheld = read.manifest.withheld.iter().map(|run| run.run.clone()).collect();
    found.extend(findings(&submission));
    let findings = bounded(found);
    let verdict = match findings.first() {
        None => Verdict::Sound,
        Some(_) if findings.iter().any(|finding| finding.breach) => Verdict::Unsound,
        Some(_) => Verdict::Doubtful,
    };
    let checked = Checked {
        verdict,
        submitter: read.manifest.submitter.clone(),
        key,
        is_allowed,
        manifest_sha256: sha256_hex(read.manifest_text.as_bytes()),
        files: kinds,
        withheld: submission.withheld.len(),
        findings,
    };
    Ok((checked, bundle))
}

/// Verifies the signature of a bundle. Returns the fingerprint of its key, and whether `signers` has
/// the key for the submitter.
fn signed(
    bundle: &Bundle,
    signers: Option<&Signers>,
    unix_s: i64,
) -> Result<(String, Option<bool>), Finding> {
    let message = bundle.manifest_text.as_bytes();
    let key = signature::verify(&bundle.signature, NAMESPACE, message)
        .map_err(|why| SIGNATURE.breach(WHOLE, format!("the signature does not hold: {why}")))?;
    let name = &bundle.manifest.submitter;
    let is_allowed = signers.map(|signers| signers.allow(&key, name, NAMESPACE, unix_s));
    Ok((key.fingerprint(), is_allowed))
}

/// Parsed records of a bundle, their number by kind, and the findings of the storage rules.
type Records = (Submission, BTreeMap<&'static str, usize>, Vec<Finding>);

fn records(bundle: &Bundle, unix_s: i64) -> Records {
    let verified = bundle.files.par_iter();
    let verified = verified.map(|(path, text)| (path, storage::verified(path, text.as_bytes())));
    let verified: Vec<_> = verified.collect();
    let mut submission = Submission { unix_s, ..Submission::default() };
    let (mut kinds, mut found, mut ids) = (BTreeMap::new(), Vec::new(), Vec::new());
    for (path, verified) in verified {
        let (parsed, of_file) = match verified {
            Ok(verified) => verified,
            Err(finding) => {
                found.push(Finding { breach: true, ..finding });
                continue;
            }
        };
        found.extend(of_file);
        if let Some(id) = parsed.id() {
            let unix_ms = unix_s.unsigned_abs().saturating_mul(1_000);
            let future = storage::from_the_future(path, id, unix_ms);
            found.extend(future.map(|remark| Finding { breach: true, ..remark }));
            ids.push((id.to_owned(), path.as_str()));
        }
        let kind = match parsed {
            Parsed::Run(record) => {
                submission.runs.push(Stored { path: path.clone(), root: 0, record: *record });
                "runs"
            }
            Parsed::Campaign(record) => {
                submission.campaigns.push(Stored { path: path.clone(), root: 0, record });
                "campaigns"
            }
            _ => "kernels",
        };
        *kinds.entry(kind).or_insert(0) += 1;
    }
    found.extend(storage::repeated_ids(ids.iter().map(|(id, path)| (id.as_str(), *path)), ID));
    (submission, kinds, found)
}

/// Finds files of a bundle that contradict the registry: other content under the same path, or an id
/// that another record has.
fn against_registry(bundle: &Bundle, listing: &Listing) -> Result<Vec<Finding>> {
    let mut found = Vec::new();
    let held: BTreeSet<&str> = listing.files.iter().map(|(path, _)| path.as_str()).collect();
    for (path, text) in &bundle.files {
        if held.contains(path.as_str()) && listing.read(path)? != text.as_bytes() {
            let detail = "the registry has a record with other content under this path";
            found.push(Finding::breach(HISTORY, path, detail));
        }
    }
    let id = |path: &'_ str| -> Option<String> {
        Some(path.rsplit('/').next()?.split('.').next()?.to_owned())
    };
    let paths = held.into_iter().chain(bundle.files.keys().map(String::as_str));
    let ids: Vec<(String, &str)> = paths.filter_map(|path| Some((id(path)?, path))).collect();
    let ids = ids.iter().map(|(id, path)| (id.as_str(), *path));
    found.extend(storage::repeated_ids(ids, ID));
    // The registry's own records are the business of `check`.
    found.retain(|finding| bundle.files.contains_key(&finding.path));
    Ok(found)
}

/// Adds the records of the registry that the submission's are compared with: runs of the same
/// hardware and scenario, runs of the same campaigns, one run for each name, and the campaigns of
/// the submission. The number of other runs in a registry does not matter.
fn add_known(submission: &mut Submission, listing: &Listing) -> Result<()> {
    let places: BTreeSet<(String, String)> = submission
        .runs
        .iter()
        .filter_map(|run| place_of(&run.path).map(|(a, b)| (a.to_owned(), b.to_owned())))
        .collect();
    let campaigns: BTreeSet<String> = submission
        .runs
        .iter()
        .filter_map(|run| run.record.campaign.as_ref().map(|slot| format!("{}.json", slot.id)))
        .collect();
    let mut planned: BTreeSet<String> = BTreeSet::new();
    let name = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
    for (path, _) in &listing.files {
        if FileKind::of(path) == FileKind::Campaign
            && campaigns.contains(&name(path))
            && let Ok(Parsed::Campaign(record)) = storage::read(path, &listing.read(path)?)
        {
            planned.extend(record.plan.iter().map(|run| format!("{}.json", run.run)));
            let known = Stored { path: path.clone(), root: 1, record };
            submission.known_campaigns.push(known);
        }
    }
    let mut names: BTreeSet<(usize, &str)> = BTreeSet::new();
    let runs = listing.files.iter().map(|(path, _)| path.as_str());
    let runs = runs.filter(|path| FileKind::of(path) == FileKind::Run).filter(|path| {
        let parts: Vec<&str> = path.split('/').collect();
        // Engine with release, hardware, model and scenario: the first run of each is read.
        let release = &path[..path.len() - path.splitn(4, '/').nth(3).map_or(0, str::len)];
        let own = [(2, release), (3, parts[3]), (4, parts[4]), (6, parts[6])];
        // Counted, because each of the names must be noted.
        let is_new = own.into_iter().filter(|own| names.insert(*own)).count() > 0;
        let is_near =
            place_of(path).is_some_and(|(a, b)| places.contains(&(a.to_owned(), b.to_owned())));
        is_new || is_near || planned.contains(&name(path))
    });
    let runs: Vec<&str> = runs.collect();
    let read = runs.par_iter().map(|path| {
        let parsed = storage::read(path, &listing.read(path)?);
        Ok(match parsed {
            Ok(Parsed::Run(record)) => {
                Some(Stored { path: (*path).to_owned(), root: 1, record: *record })
            }
            _ => None,
        })
    });
    let read: Result<Vec<_>> = read.collect();
    submission.known_runs = read?.into_iter().flatten().collect();
    Ok(())
}

/// Returns hardware and scenario of the run at `path`.
fn place_of(path: &str) -> Option<(&str, &str)> {
    let mut parts = path.split('/').skip(3);
    Some((parts.next()?, parts.nth(2)?))
}
