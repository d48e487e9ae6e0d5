//! Submissions: bundles that carry records from one registry to another, signed by their submitter.
//!
//! Reading order: this file (reading a bundle of a stranger within bounds), [`export`] (making one),
//! [`signature`] and [`signers`] (who signed it), [`verdict`] (may it be accepted).

pub mod export;
pub mod signature;
pub mod signers;
pub mod verdict;

use std::collections::{BTreeMap, BTreeSet};

use judge::finding::Finding;
use judge::submission::{FORM, MANIFEST};
use schema::canonical::sha256_hex;
use schema::submission::{
    MANIFEST_SCHEMA, SCHEMA, SubmissionBundle, SubmissionManifest, SubmittedFile,
};
use schema::untrusted::{excerpt, parser_message};
use store::layout::FileKind;
use store::storage::RECORD_BYTES_MAX;

/// Largest bundle, in bytes: about 2,000 runs. Nothing in a bundle is compressed, so that this
/// bounds the memory of a check too.
pub const BUNDLE_BYTES_MAX: u64 = 64 << 20;
/// Largest number of files in a bundle.
const FILES_MAX: usize = 5_000;
/// Longest path of a file in a bundle, in bytes.
const PATH_BYTES_MAX: usize = 512;
/// Largest number of findings about one bundle; a count replaces the others.
const FINDINGS_MAX: usize = 200;
/// Name that findings about a bundle as a whole have in place of a path.
pub const WHOLE: &str = "(bundle)";
/// Number of characters of a stranger's name that a message repeats.
const NAME_CHARS: usize = 80;

/// Bundle that was read: its manifest, its signature, and its records by path.
#[derive(Debug, Clone, Default)]
pub struct Bundle {
    /// Manifest, parsed.
    pub manifest: SubmissionManifest,
    /// Text of the manifest, which is what the submitter signed.
    pub manifest_text: String,
    /// SSH signature over the text of the manifest.
    pub signature: String,
    /// Records by their paths below `results/`, as text.
    pub files: BTreeMap<String, String>,
}

impl Bundle {
    /// Reads a bundle from bytes of any origin, and checks its form and its hashes. The bundle has
    /// only files that are named and hashed by the manifest, lie where records lie, and come once.
    ///
    /// # Errors
    ///
    /// The bytes are not a bundle; the finding says why.
    pub fn parse(bytes: &[u8]) -> Result<(Self, Vec<Finding>), Finding> {
        let unreadable = |what: &str, error: serde_json::Error| {
            let said = parser_message(&error);
            FORM.breach(WHOLE, format!("not a `{what}` document: {said}"))
        };
        let bundle: SubmissionBundle =
            serde_json::from_slice(bytes).map_err(|error| unreadable(SCHEMA, error))?;
        known_schema(&bundle.schema, SCHEMA)?;
        let manifest: SubmissionManifest = serde_json::from_str(&bundle.manifest)
            .map_err(|error| unreadable(MANIFEST_SCHEMA, error))?;
        known_schema(&manifest.schema, MANIFEST_SCHEMA)?;
        if bundle.files.len().max(manifest.files.len()) > FILES_MAX {
            return Err(FORM.breach(WHOLE, format!("it has more than {FILES_MAX} files")));
        }
        let mut found = name_problem(&manifest.submitter).into_iter().collect::<Vec<_>>();
        let files = files_of(bundle.files, &manifest, &mut found);
        let SubmissionBundle { manifest: manifest_text, signature, .. } = bundle;
        Ok((Self { manifest, manifest_text, signature, files }, found))
    }
}

fn known_schema(found: &str, known: &str) -> Result<(), Finding> {
    let shown = excerpt(found, NAME_CHARS);
    let detail = || format!("schema is `{shown}`, this program reads `{known}`");
    if found == known { Ok(()) } else { Err(FORM.breach(WHOLE, detail())) }
}

/// Returns the finding about a submitter's name that could not stand in a list of allowed signers
/// or in the message of a commit.
fn name_problem(submitter: &str) -> Option<Finding> {
    let is_plain = |c: char| c.is_ascii_graphic() && !matches!(c, ',' | '"' | '*' | '?' | '!');
    let is_name = !submitter.is_empty() && submitter.chars().all(is_plain);
    let is_short = submitter.len() <= NAME_CHARS;
    (!is_name || !is_short).then(|| {
        let detail = "the submitter is not a name without spaces, such as `ada@example.org`";
        FORM.breach(WHOLE, detail)
    })
}

/// Returns the files of a bundle that its manifest names with their hashes, and adds a finding to
/// `found` for each other file and for each that is missing.
fn files_of(
    submitted: Vec<SubmittedFile>,
    manifest: &SubmissionManifest,
    found: &mut Vec<Finding>,
) -> BTreeMap<String, String> {
    let mut due = BTreeMap::new();
    for entry in &manifest.files {
        if due.insert(entry.path.as_str(), entry).is_some() {
            let path = shown(&entry.path);
            found.push(MANIFEST.breach(&path, "the manifest names it twice"));
        }
    }
    let mut files = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for SubmittedFile { path, text } in submitted {
        let name = shown(&path);
        let entry = due.get(path.as_str());
        if let Some(problem) = place_problem(&path, text.len()) {
            found.push(FORM.breach(&name, problem));
        } else if !seen.insert(path.clone()) {
            found.push(FORM.breach(&name, "the bundle has it twice"));
        } else if let Some(entry) = entry {
            if entry.bytes != text.len() as u64 || entry.sha256 != sha256_hex(text.as_bytes()) {
                found.push(MANIFEST.breach(&name, "it is not the file that was signed"));
            }
            files.insert(path, text);
        } else {
            found.push(MANIFEST.breach(&name, "the manifest does not name it"));
        }
    }
    let missing = due.keys().filter(|path| !seen.contains(**path));
    found.extend(missing.map(|path| MANIFEST.breach(&shown(path), "the bundle lacks it")));
    if files.is_empty() {
        found.push(FORM.breach(WHOLE, "it has no record"));
    }
    files
}

/// Returns why a file cannot lie at `path` below `results/`, or is too large.
fn place_problem(path: &str, bytes: usize) -> Option<String> {
    let is_part = |part: &str| !matches!(part, "" | "." | "..");
    let is_plain = path.len() <= PATH_BYTES_MAX
        && path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\')
        && path.split('/').all(is_part);
    if !is_plain {
        return Some("its path is no path below `results/`".to_owned());
    }
    if !matches!(FileKind::of(path), FileKind::Run | FileKind::Kernels | FileKind::Campaign) {
        return Some("only run, kernel and campaign records are submitted".to_owned());
    }
    let is_large = bytes > RECORD_BYTES_MAX;
    is_large.then(|| format!("{bytes} bytes, more than {RECORD_BYTES_MAX}"))
}

/// Returns the beginning of a stranger's path for a message.
fn shown(path: &str) -> String {
    excerpt(path, PATH_BYTES_MAX)
}

/// Sorts findings, and replaces those beyond the limit by a count.
fn bounded(mut findings: Vec<Finding>) -> Vec<Finding> {
    // Breaches come first, so that no number of remarks hides one.
    findings.sort_by(|a, b| b.breach.cmp(&a.breach).then_with(|| a.cmp(b)));
    findings.dedup();
    let more = findings.len().saturating_sub(FINDINGS_MAX);
    if more > 0 {
        let is_breach = findings[FINDINGS_MAX..].iter().any(|finding| finding.breach);
        findings.truncate(FINDINGS_MAX);
        let rest = FORM.breach(WHOLE, format!("{more} more findings are not shown"));
        findings.push(Finding { breach: is_breach, ..rest });
    }
    findings
}
