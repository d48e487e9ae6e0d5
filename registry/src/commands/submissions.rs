//! Commands about bundles of records: `export --bundle`, `submit check` and `submit accept`.

use std::path::Path;

use anyhow::{Context, bail};
use judge::diff::words::plural;
use registry::repository::WorkTree;
use registry::submission::export::{Submitter, bundle};
use registry::submission::signers::Signers;
use registry::submission::verdict::{self, Verdict};
use registry::submission::{BUNDLE_BYTES_MAX, Bundle};
use schema::exit::Exit;
use schema::untrusted::one_line;

use super::additions::StagedResults;
use super::queries::{answer, paths};
use super::{World, print};
use crate::cli::{ExportArguments, SubmitAcceptArguments, SubmitCheckArguments};

/// Writes the selected runs as a signed bundle to the file `out`.
pub fn export(world: &World, given: &ExportArguments, out: &Path) -> anyhow::Result<Exit> {
    let key = given.sign.as_deref().context("a bundle needs a key: `--sign KEY`")?;
    let by_git = || WorkTree::open(&given.sources.place.registry)?.user_email();
    let name = given.submitter.clone().map_or_else(by_git, Ok)?;
    let submitter = Submitter { name: &name, key };
    let roots = given.sources.roots();
    let made = bundle(&paths(&roots), &given.filter(), submitter, world.unix_s())?;
    // A name that the receiver would refuse is refused here.
    let (read, found) =
        Bundle::parse(made.text.as_bytes()).map_err(|it| anyhow::anyhow!("{it}"))?;
    if let Some(finding) = found.first() {
        bail!("{}", one_line(&finding.detail));
    }
    let cannot = || format!("cannot write `{}`", out.display());
    whole_file::write(out, made.text.as_bytes()).with_context(cannot)?;
    let left = match made.withheld {
        0 => String::new(),
        count => format!(", without {} that are retracted", plural(count, "run")),
    };
    print(&format!(
        "{}: {} in {} files{left}, signed as {}",
        out.display(),
        plural(made.runs, "run"),
        made.files,
        read.manifest.submitter
    ))?;
    Ok(Exit::Well)
}

/// Checks a bundle and prints the verdict with its findings.
pub fn check(world: &World, given: &SubmitCheckArguments) -> anyhow::Result<Exit> {
    let signers = given.signers.as_deref().map(Signers::read).transpose()?;
    let bytes = whole_file::read(&given.bundle, "bundle", BUNDLE_BYTES_MAX)?;
    let registry = &given.place.registry;
    let (checked, _) = verdict::check(&bytes, registry, signers.as_ref(), world.unix_s())?;
    answer(given.format, &checked, || checked.to_string())?;
    Ok(checked.exit())
}

/// Commits the records of a bundle that passes the check, together with the pages that show them.
pub fn accept(world: &World, given: &SubmitAcceptArguments) -> anyhow::Result<Exit> {
    let signers = Signers::read(&given.signers)?;
    let bytes = whole_file::read(&given.bundle, "bundle", BUNDLE_BYTES_MAX)?;
    let registry = &given.renders.place.registry;
    let (checked, bundle) = verdict::check(&bytes, registry, Some(&signers), world.unix_s())?;
    let is_taken = match checked.verdict {
        Verdict::Sound => true,
        Verdict::Doubtful => given.despite.is_some(),
        Verdict::Unsound => false,
    };
    let Some(bundle) = bundle.filter(|_| is_taken) else {
        print(&format!("{checked}\nnothing was recorded"))?;
        if checked.verdict == Verdict::Doubtful {
            eprintln!("hint: `--despite REASON` accepts the bundle with its remarks");
        }
        return Ok(checked.exit());
    };
    let staged = StagedResults::new()?;
    for (path, text) in &bundle.files {
        staged.write(path.as_ref(), text)?;
    }
    let recorded = staged.commit(world, &given.renders, &message(&checked, given))?;
    let outcome = match (&recorded.commit, recorded.paths.len()) {
        (Some(commit), 1..) => format!("accepted: commit {commit} on {}", recorded.branch),
        _ => format!("nothing new: {} holds all {} files", recorded.branch, recorded.known),
    };
    print(&format!("{checked}\n{outcome}"))?;
    Ok(Exit::Well)
}

/// Returns the message of the commit that accepts a bundle: who signed what, and why remarks were
/// passed over.
fn message(checked: &verdict::Checked, given: &SubmitAcceptArguments) -> String {
    let runs = plural(checked.files.get("runs").copied().unwrap_or(0), "run");
    let key = checked.key.as_deref().unwrap_or_default();
    let mut text = format!(
        "submission: {runs} of {}\n\nSigned with ssh-ed25519 {key}.\nSHA-256 of the signed manifest: \
         {}.\n",
        checked.submitter, checked.manifest_sha256
    );
    if let (Verdict::Doubtful, Some(reason)) = (checked.verdict, &given.despite) {
        let rules: Vec<&str> = checked.findings.iter().map(|finding| finding.rule).collect();
        let rules = rules.join(", ");
        text.push_str(&format!("\nAccepted despite remarks ({rules}): {}\n", reason.trim()));
    }
    text
}
