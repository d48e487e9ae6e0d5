//! Views of the explorer, a page that draws any metric of any runs, and of the page of files for
//! programs. The explorer's data are a file of their own, because they grow with the registry.

use std::collections::BTreeMap;

use judge::order;
use judge::validity::value;
use minijinja::{Value, context};
use schema::metric::METRICS;
use serde_json::{Value as Json, json};

use crate::catalog::{self, Catalog, Run};
use crate::format::Scale;
use crate::{chart, outside};

/// Names of the fields by which the explorer tells runs apart, in the order in which each run in
/// its data has them.
const NAMES: [&str; 6] = ["engine", "release", "hardware", "model", "scenario", "kind"];

/// Builds the view of the explorer's page, without the explorer's data.
pub fn view(catalog: &Catalog) -> Value {
    context! {
        runs => drawable(catalog).count(),
        metrics => METRICS.iter().map(|metric| metric.title).collect::<Value>(),
    }
}

/// Builds the view of the page of files for programs: number of records of each kind, and the
/// schemas.
pub fn data_view(catalog: &Catalog) -> Value {
    context! {
        runs => catalog.runs.len(),
        kernels => catalog.registry.kernels.len(),
        campaigns => catalog.registry.campaigns.len(),
        events => catalog.registry.events.len(),
        schemas => schema::schemas::all().iter().map(|(name, _)| *name).collect::<Value>(),
    }
}

/// Returns the runs that answered every request and whose figures may enter a summary.
fn drawable<'a>(catalog: &'a Catalog<'a>) -> impl Iterator<Item = &'a Run<'a>> {
    catalog.runs.iter().filter(|run| run.is_usable())
}

fn names(run: &Run) -> [String; NAMES.len()] {
    let record = run.record;
    [
        outside::name(&record.engine.name),
        outside::name(&record.engine.release),
        outside::name(&record.hardware.id),
        outside::name(&record.model.id),
        outside::name(&catalog::scenario(record)),
        record.kind.name().to_owned(),
    ]
}

/// Formats the data of the explorer as JSON. `names` lists the texts of each field, `colors` has the
/// style sheet's variable with the color of each engine, `metrics` describes the metrics and the
/// divisor for their display, and each entry of `runs` is an array of
/// indices into `names`, the run's id, its start, and its metrics in stored units. An unknown value
/// is null.
pub fn data(catalog: &Catalog) -> String {
    let mut texts: [BTreeMap<String, usize>; NAMES.len()] = Default::default();
    for run in drawable(catalog) {
        for (column, text) in names(run).into_iter().enumerate() {
            texts[column].insert(text, 0);
        }
    }
    let mut listed = serde_json::Map::new();
    for (column, name) in texts.iter_mut().zip(NAMES) {
        let mut sorted: Vec<String> = column.keys().cloned().collect();
        sorted.sort_by(|a, b| order::natural(a, b).then_with(|| a.cmp(b)));
        for (index, text) in sorted.iter().enumerate() {
            column.insert(text.clone(), index);
        }
        listed.insert(name.to_owned(), json!(sorted));
    }
    let metric = |metric: &schema::metric::Metric| {
        let scale = Scale::fit(metric.unit, 0.0);
        let (name, title) = (metric.name, metric.title);
        json!({ "name": name, "title": title, "unit": scale.unit, "divisor": scale.divisor })
    };
    let line = |run: &Run| {
        let mut cells: Vec<Json> =
            names(run).iter().zip(&texts).map(|(text, known)| json!(known[text])).collect();
        let time = run.record.time.as_ref();
        cells.push(json!(outside::name(&run.record.id)));
        cells.push(json!(time.and_then(|time| time.started_at.as_deref()).map(outside::name)));
        // A figure that does not pass the truth gate is null; one that is not finite has no JSON
        // form and becomes null.
        cells.extend(METRICS.iter().map(|metric| json!(value(metric, run.record))));
        Json::Array(cells)
    };
    let metrics: Vec<Json> = METRICS.iter().map(metric).collect();
    let runs: Vec<Json> = drawable(catalog).map(line).collect();
    let colors: BTreeMap<&str, String> =
        texts[0].keys().map(|engine| (engine.as_str(), chart::variable(engine))).collect();
    json!({ "names": listed, "colors": colors, "metrics": metrics, "runs": runs }).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_run_that_counts_is_a_line_with_its_names_and_figures() {
        let registry = samples::registry::registry(samples::registry::records());
        let catalog = Catalog::of(&registry);
        let parsed: Json = serde_json::from_str(&data(&catalog)).expect("JSON");
        let runs = parsed["runs"].as_array().expect("runs");
        assert_eq!(runs.len(), drawable(&catalog).count());
        assert!(runs.len() > 50, "{}", runs.len());
        assert_eq!(parsed["colors"], json!({ "redline": "--s0" }));
        assert_eq!(parsed["names"]["release"], json!(["v0.9.1", "v0.9.2", "v0.10.0"]));
        for run in runs {
            let run = run.as_array().expect("a line");
            assert_eq!(run.len(), NAMES.len() + 2 + METRICS.len());
            let release = run[1].as_u64().and_then(|index| usize::try_from(index).ok());
            assert!(release.is_some_and(|index| index < 3), "{run:?}");
        }
    }
}
