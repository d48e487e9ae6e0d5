//! Queries to the registry about a lab: its outline, its next round, its conclusion.

use std::path::Path;

use schema::lab::{Candidate, LabOutline, Round};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::asked::ReadyLab;
use crate::process;
use crate::publish::{Registry, ended};
use crate::stop::Stop;
use crate::tools::{RESULTS, ToolError};

const VERB: &str = "lab";

/// The registry's answer about a lab: the next round or the conclusion.
#[derive(Debug, Deserialize)]
pub struct Answer {
    /// The answer as text for people.
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

/// The part of a conclusion that the campaign acts on.
#[derive(Debug, Deserialize)]
pub struct Concluded {
    /// Recommended candidate; `None` if none runs within the limits.
    pub recommended: Option<Candidate>,
}

/// Queries how many rounds and runs a lab file may lead to.
///
/// # Errors
/// The registry's tool fails.
pub fn outline(registry: &Registry<'_>, file: &Path) -> Result<LabOutline, Stop> {
    read(registry, |command| command.arg(file).arg("--outline"))
}

/// Queries the next round or the conclusion, given the records of the lab's campaign.
///
/// # Errors
/// The registry's tool fails.
pub fn next(
    registry: &Registry<'_>,
    lab: &ReadyLab,
    (campaign, overlay): (&str, &Path),
) -> Result<Answer, Stop> {
    read(registry, |command| {
        command.arg(&lab.path).args(["--campaign", campaign]);
        // The limit may be lower than in the lab's file, because runs took longer than expected.
        command.args(["--runs-max", &lab.asked.runs_max.to_string()]);
        command.arg("--registry").arg(registry.dir).arg("--overlay").arg(overlay)
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
