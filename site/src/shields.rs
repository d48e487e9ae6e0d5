//! Badges for other websites: one JSON file per model and hardware, in the format that badge
//! servers read (endpoint schema version 1).

use judge::best::Candidate;
use serde::Serialize;

use crate::catalog::Catalog;
use crate::format;
use crate::judged;
use crate::link::part;
use crate::{order, outside};

/// Badge in the format of badge servers.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Shield {
    schema_version: u32,
    label: String,
    message: String,
    color: &'static str,
}

/// Returns path and text of every badge.
pub fn all(catalog: &Catalog) -> Vec<(String, String)> {
    let mut places: Vec<(&str, &str)> = catalog
        .runs
        .iter()
        .map(|run| (run.record.model.id.as_str(), run.record.hardware.id.as_str()))
        .collect();
    places.sort_unstable();
    places.dedup();
    let badge = |(model, hardware): (&str, &str)| {
        let shield = shield(catalog, model, hardware);
        let text = serde_json::to_string(&shield).unwrap_or_default();
        (path(model, hardware), text + "\n")
    };
    places.into_iter().map(badge).collect()
}

/// Path of the badge of `model` on `hardware`.
pub fn path(model: &str, hardware: &str) -> String {
    format!("badge/{}/{}.json", part(model), part(hardware))
}

/// Badge of the engine with the highest output throughput: measured here, else published
/// elsewhere. Only repeated measurements get a color.
fn shield(catalog: &Catalog, model: &str, hardware: &str) -> Shield {
    let ranked = judged::best(catalog, model, hardware);
    let batch = ranked.iter().filter(|ranked| ranked.level == "batch");
    let best =
        batch.filter_map(|ranked| Some((ranked.published, first(&ranked.answer.candidates)?)));
    // `false` sorts before `true`: measured figures are preferred.
    let (message, color) = match best.min_by_key(|(published, _)| *published) {
        None => ("no figures".to_owned(), "lightgrey"),
        Some((published, found)) => {
            let claimed = if published { ", claimed" } else { "" };
            let text = format!(
                "{} tokens/s, {} {} in {}{claimed}",
                format::rounded(found.figure.median, None),
                found.cell.engine,
                found.release,
                found.cell.scenario
            );
            let repeated = !published && found.figure.n > 1;
            (text, if repeated { "informational" } else { "lightgrey" })
        }
    };
    Shield {
        schema_version: 1,
        label: outside::name(&format!("{model} on {hardware}")),
        message: outside::name(&message),
        color,
    }
}

/// Returns the best candidate of the first scenario in page order.
fn first(candidates: &[Candidate]) -> Option<&Candidate> {
    let mut sorted: Vec<&Candidate> = candidates.iter().collect();
    sorted.sort_by(|a, b| order::scenarios(&a.cell.scenario, &b.cell.scenario));
    sorted.first().copied()
}
