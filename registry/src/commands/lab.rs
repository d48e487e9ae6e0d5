//! Command `lab`: prints what a lab has found, or which runs it makes next.

use std::fs;

use anyhow::Context as _;
use judge::Registry;
use judge::diff::policy;
use judge::lab::{self, LabTooSmall, Next, next};
use schema::exit::Exit;
use schema::lab::parse;
use schema::run::RunRecord;
use serde::Serialize;

use crate::cli::{Format, LabArguments};

/// Prints the lab's next round or conclusion, computed from the records of its campaign alone.
pub fn run(given: &LabArguments) -> anyhow::Result<Exit> {
    let file = given.file.display();
    let text = fs::read_to_string(&given.file).with_context(|| format!("cannot read `{file}`"))?;
    let lab = parse(&text).with_context(|| format!("`{file}` is no lab"))?;
    let policy::Standard { file: policy, quoted } = policy::standard();
    if given.outline {
        let outline = lab::outline(&lab, &policy, &quoted);
        crate::print(&match given.format {
            Format::Json => crate::json(&outline)?,
            _ => lab::text::outlined(&outline),
        })?;
        return Ok(Exit::Well);
    }
    let runs_max = given.runs_max.or(lab.budget.runs).unwrap_or(u32::MAX);
    let least = lab::runs_min(&lab, &policy);
    if runs_max < least {
        return Err(LabTooSmall { runs_max, least }.into());
    }
    let loaded = load(given)?;
    let of_lab = |run: &&RunRecord| {
        run.campaign.as_ref().map(|campaign| &campaign.id) == given.campaign.as_ref()
    };
    let runs = loaded.standing().map(|run| &run.record).filter(of_lab);
    let next = next(&lab, &policy, runs_max, runs);
    let text = lab::text::text(&lab, &next);
    crate::print(&match given.format {
        Format::Json => crate::json(&Answer { next: &next, text })?,
        _ => text,
    })?;
    Ok(Exit::Well)
}

/// Answer for programs, together with its text for people, so that a caller needs only one
/// request.
#[derive(Serialize)]
struct Answer<'a> {
    #[serde(flatten)]
    next: &'a Next,
    text: String,
}

/// Loads all runs without their histograms.
fn load(given: &LabArguments) -> anyhow::Result<Registry> {
    let roots = given.sources.roots();
    let roots: Vec<_> = roots.iter().map(std::path::PathBuf::as_path).collect();
    let wanted = |path: &str| matches!(path.split('/').next(), Some("runs" | "events"));
    Ok(crate::said(store::load_figures(&roots, &wanted)?))
}
