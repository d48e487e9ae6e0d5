//! Queries to the registry about a lab: its outline, its next round, its conclusion.

use std::path::Path;

use judge::diff::policy::{Standard, standard};
use judge::lab;
pub use judge::lab::Next;
use schema::lab::{LabFile, LabOutline};

use super::spec::PreparedLab;
use crate::publish::Registry;
use crate::stop::Stop;

/// The next round of a lab or its conclusion, and the same as text.
pub struct Answer {
    pub next: Next,
    /// The answer as text for people.
    pub text: String,
}

/// Number of rounds and launches that a lab takes at least and at most.
pub fn outline(lab: &LabFile) -> LabOutline {
    let Standard { file, quoted } = standard();
    lab::outline(lab, &file, &quoted)
}

/// Queries the next round or the conclusion, given the records of the lab's campaign.
///
/// # Errors
/// The registry's tool fails.
pub fn next(
    registry: &Registry<'_>,
    lab: &PreparedLab,
    campaign: &str,
    staged: &Path,
) -> Result<Answer, Stop> {
    let wanted = |path: &str| matches!(path.split('/').next(), Some("runs" | "events"));
    let loaded = store::load_figures(&[&registry.results(), staged], &wanted)?;
    let runs = loaded.standing().map(|run| &run.record);
    let of_lab = runs.filter(|run| run.campaign.as_ref().is_some_and(|slot| slot.id == campaign));
    let file = &lab.asked.file;
    let next = lab::next(file, &standard().file, lab.asked.runs_max, of_lab);
    Ok(Answer { text: lab::text::text(file, &next), next })
}
