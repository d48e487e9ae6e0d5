//! What the registry says of a lab: what it may come to, what is launched next, what was found.

use std::path::Path;

use schema::lab::{Candidate, LabOutline, Round};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::file::PreparedLab;
use crate::process;
use crate::publish::{Registry, ended};
use crate::stop::Stop;
use crate::tools::{RESULTS, ToolError};

const VERB: &str = "lab";

/// What a lab does next, or has found.
#[derive(Debug, Deserialize)]
pub struct Answer {
    /// The same for people.
    pub text: String,
    #[serde(flatten)]
    pub next: Next,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Next {
    Round(Round),
    Conclusion(Concluded),
}

/// What of a conclusion a campaign acts on.
#[derive(Debug, Deserialize)]
pub struct Concluded {
    /// None where no candidate runs within the bounds.
    pub recommended: Option<Candidate>,
}

/// What the lab of a file may come to.
///
/// # Errors
/// The registry's tool fails.
pub fn outline(registry: &Registry<'_>, file: &Path) -> Result<LabOutline, Stop> {
    read(registry, |command| command.arg(file).arg("--outline"))
}

/// What a lab does next, by the records of its campaign.
///
/// # Errors
/// The registry's tool fails.
pub fn next(
    registry: &Registry<'_>,
    lab: &PreparedLab,
    (campaign, staged): (&str, &Path),
) -> Result<Answer, Stop> {
    read(registry, |command| {
        command.arg(&lab.path).args(["--campaign", campaign]);
        command.args(["--runs-max", &lab.asked.runs_max.to_string()]);
        command.arg("--registry").arg(registry.dir).arg("--overlay").arg(staged)
    })
}

fn read<T: DeserializeOwned>(
    registry: &Registry<'_>,
    tell: impl FnOnce(&mut std::process::Command) -> &mut std::process::Command,
) -> Result<T, Stop> {
    let mut command = registry.tools.results(VERB);
    tell(&mut command).args(["--format", "json"]);
    let answer = process::capture(&mut command, registry.interrupt)?;
    if !answer.status.success() {
        eprint!("{}", answer.stderr);
        return Err(ended(RESULTS, VERB, answer.status));
    }
    let unreadable = |error: serde_json::Error| ToolError::Answer {
        name: RESULTS,
        verb: VERB,
        detail: error.to_string(),
    };
    Ok(serde_json::from_str(&answer.stdout).map_err(unreadable)?)
}
