//! `submission.v1`: bundle of records that one person sends to the maintainer of another registry,
//! with a signed manifest.
//!
//! A bundle is one JSON document of texts, so that it has no links, no file modes and no
//! compression, and every size is bounded by the size of the document.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Schema name of a bundle of records.
pub const SCHEMA: &str = "submission.v1";
/// Schema name of the manifest in a bundle of records.
pub const MANIFEST_SCHEMA: &str = "submission-manifest.v1";
/// Namespace of the SSH signature over a manifest: a signature that was made for another purpose
/// does not verify.
pub const NAMESPACE: &str = "redline-submission";

/// `submission.v1`: bundle of records with a signed manifest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SubmissionBundle {
    /// Name of this schema, always `submission.v1`.
    pub schema: String,
    /// Manifest as the exact text that is signed: a `submission-manifest.v1` document.
    pub manifest: String,
    /// SSH signature over the bytes of `manifest`, as `ssh-keygen -Y sign` prints it.
    pub signature: String,
    /// Records of the bundle, in the order of their paths.
    pub files: Vec<SubmittedFile>,
}

/// File of a bundle: a record with its path.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SubmittedFile {
    /// Path of the record below `results/`.
    pub path: String,
    /// Content of the record's file.
    pub text: String,
}

/// `submission-manifest.v1`: list of a bundle's files with their hashes, and its submitter.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SubmissionManifest {
    /// Name of this schema, always `submission-manifest.v1`.
    pub schema: String,
    /// Submitter, as a maintainer's list of allowed signers names the person.
    pub submitter: String,
    /// Time at which the bundle was made, RFC 3339 in UTC.
    pub made_at: String,
    /// Files of the bundle, in the order of their paths.
    pub files: Vec<ManifestEntry>,
    /// Runs that the submitter retracted and did not put into the bundle, each with its reason.
    pub withheld: Vec<WithheldRun>,
}

/// Entry of a manifest: path, size and hash of one file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ManifestEntry {
    /// Path of the file below `results/`.
    pub path: String,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// SHA-256 of the file, lower-case hex.
    pub sha256: String,
}

/// Run that its submitter retracted, and that is therefore not in the bundle.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WithheldRun {
    /// Id of the retracted run.
    pub run: String,
    /// Reason for which the submitter retracted the run.
    pub reason: String,
}
