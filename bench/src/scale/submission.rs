//! The bundle of a made-up submission, which `submit check` is timed on: measured runs of many small
//! campaigns, signed with a key that is made for it.

use std::path::{Path, PathBuf};
use std::process::Command;

use campaign::files::{make_dir, read_text};
use campaign::process;
use campaign::stop::Stop;
use campaign::world::World;
use samples::submission::{Machine, campaign};
use schema::canonical::to_file_text;
use schema::path::{of_campaign, of_run};
use schema::submission::NAMESPACE;

use super::write;

/// Name of the made-up submitter.
const SUBMITTER: &str = "scale@example.org";
/// Number of records in the registry for each campaign of the bundle: with the default number of
/// records the bundle has nearly as many files as one may have.
const RECORDS_PER_CAMPAIGN: u64 = 131;

/// Signed bundle, and what a maintainer checks it with.
#[derive(Debug)]
pub struct SubmittedBundle {
    /// File of the bundle.
    pub file: PathBuf,
    /// List of allowed signers that has the submitter's key.
    pub signers: PathBuf,
    /// Number of runs in the bundle.
    pub runs: u64,
}

/// Writes measured runs into a results folder below `folder`, and makes a signed bundle of them for a
/// registry of `records` records.
///
/// # Errors
/// `ssh-keygen` or `redline-results` fails, a file cannot be written, or the run is interrupted.
pub fn submitted(world: &World, folder: &Path, records: u64) -> Result<SubmittedBundle, Stop> {
    let results = folder.join("results");
    make_dir(&results)?;
    let mut runs = 0;
    for serial in 1..=(records / RECORDS_PER_CAMPAIGN).max(1) {
        let (measured, record) = campaign(Machine::Cpu, serial);
        for run in &measured {
            write(&results.join(of_run(run)?), &to_file_text(run)?)?;
        }
        write(&results.join(of_campaign(&record)?), &to_file_text(&record)?)?;
        runs += measured.len() as u64;
    }
    let [key, file, signers] = ["key", "bundle.json", "signers"].map(|name| folder.join(name));
    let mut keygen = Command::new("ssh-keygen");
    keygen.args(["-q", "-t", "ed25519", "-N", "", "-C", "", "-f"]).arg(&key);
    process::text(&mut keygen, &world.interrupt)?;
    let public = read_text(&key.with_extension("pub"))?;
    write(&signers, &format!("{SUBMITTER} namespaces=\"{NAMESPACE}\" {public}"))?;
    let mut export = world.tools.results("export");
    export.arg("--bundle").arg(&file).arg("--sign").arg(&key);
    export.args(["--submitter", SUBMITTER, "--registry"]).arg(folder);
    process::text(&mut export, &world.interrupt)?;
    Ok(SubmittedBundle { file, signers, runs })
}
