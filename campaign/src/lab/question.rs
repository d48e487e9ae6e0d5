//! What the registry says of a lab: what it may come to, what is launched next, what was found.

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

/// What a lab does next.
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
    lab: &ReadyLab,
    (campaign, overlay): (&str, &Path),
) -> Result<Next, Stop> {
    read(registry, |command| of_campaign(command, registry, lab, (campaign, overlay)))
}

/// What a lab has found, for people.
///
/// # Errors
/// The registry's tool fails.
pub fn said(registry: &Registry<'_>, lab: &ReadyLab, of: (&str, &Path)) -> Result<String, Stop> {
    let mut command = registry.tools.results(VERB);
    of_campaign(&mut command, registry, lab, of);
    let answer = process::capture(&mut command, registry.interrupt)?;
    match answer.status.success() {
        true => Ok(answer.stdout),
        false => Err(refused(&answer)),
    }
}

fn of_campaign<'a>(
    command: &'a mut std::process::Command,
    registry: &Registry<'_>,
    lab: &ReadyLab,
    (campaign, overlay): (&str, &Path),
) -> &'a mut std::process::Command {
    command.arg(&lab.path).args(["--campaign", campaign]);
    command.args(["--runs-max", &lab.asked.runs_max.to_string()]);
    command.arg("--registry").arg(registry.dir).arg("--overlay").arg(overlay)
}

fn read<T: DeserializeOwned>(
    registry: &Registry<'_>,
    tell: impl FnOnce(&mut std::process::Command) -> &mut std::process::Command,
) -> Result<T, Stop> {
    let mut command = registry.tools.results(VERB);
    tell(&mut command).args(["--format", "json"]);
    let answer = process::capture(&mut command, registry.interrupt)?;
    if !answer.status.success() {
        return Err(refused(&answer));
    }
    let unreadable = |error: serde_json::Error| ToolError::Answer {
        name: RESULTS,
        verb: VERB,
        detail: error.to_string(),
    };
    Ok(serde_json::from_str(&answer.stdout).map_err(unreadable)?)
}

fn refused(answer: &process::Written) -> Stop {
    eprint!("{}", answer.stderr);
    ended(RESULTS, VERB, answer.status)
}
