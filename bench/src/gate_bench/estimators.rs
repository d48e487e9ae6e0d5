//! Comparison of estimators and covariates on alternations that were recorded here: which of them
//! makes the interval over the starts narrowest, and whether it sees an effect where there is none.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use campaign::Stop;
use campaign::files::{FileError, files_below};
use judge::alternation::estimators::{Width, widths};
use judge::quantile::median;
use schema::alternation::{Alternation, SCHEMA};
use schema::event::unix_s_of;
use schema::metric::by_name;

use super::trial::Trial;
use crate::float;

/// Metrics for which the estimators are compared.
const METRICS: [&str; 3] = ["output_tokens_per_s", "ttft_us_p50", "tpot_us_p50"];

/// Estimator, and what the pairs are corrected for.
type Key = (&'static str, &'static str);

/// Comparison that was recorded: its starts, and true where trials say that both variants were
/// identical.
struct Recorded {
    starts: Vec<Alternation>,
    is_same: bool,
}

/// Reads the alternations below `folder` and renders the half-width of each estimator, and its bias
/// where both variants were identical code: `same` has the trials of such, in which the comparisons
/// were made.
///
/// # Errors
/// A file cannot be read, or no comparison of two or more starts lies there.
pub fn render(folder: &Path, same: &[&Trial]) -> Result<String, Stop> {
    let comparisons = read(folder, same)?;
    if comparisons.is_empty() {
        let folder = folder.display();
        return Err(Stop::wrong_use(format!("no alternations of several starts in `{folder}`"))
            .with_hint(
                "`gate-bench` leaves those of its trials under `target/gate-bench/trials`",
            ));
    }
    Ok(table(&comparisons))
}

/// Returns the comparisons below `folder`, those with two or more starts.
fn read(folder: &Path, same: &[&Trial]) -> Result<Vec<Recorded>, Stop> {
    let mut comparisons: BTreeMap<PathBuf, BTreeMap<u64, Alternation>> = BTreeMap::new();
    for path in files_below(folder) {
        // Files of a comparison are named by an id and the number of the start.
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let Some((id, number)) = stem.rsplit_once('-') else { continue };
        let (Ok(number), Some("json")) =
            (number.parse(), path.extension().and_then(|ext| ext.to_str()))
        else {
            continue;
        };
        let text = fs::read_to_string(&path).map_err(FileError::at("read", &path))?;
        let Ok(found) = serde_json::from_str::<Alternation>(&text) else { continue };
        if found.schema == SCHEMA {
            comparisons.entry(path.with_file_name(id)).or_default().insert(number, found);
        }
    }
    let starts = comparisons.into_values().map(|starts| starts.into_values().collect());
    let several = starts.filter(|starts: &Vec<Alternation>| starts.len() > 1);
    let recorded = |starts: Vec<Alternation>| {
        let began = starts[0].started_at.as_deref().and_then(unix_s_of);
        let is_same = began.is_some_and(|began| same.iter().any(|trial| is_within(trial, began)));
        Recorded { starts, is_same }
    };
    Ok(several.map(recorded).collect())
}

/// True where the trial ran at this time, in seconds since 1970: its alternations do not name it.
fn is_within(trial: &Trial, unix_s: i64) -> bool {
    let length_s = i64::try_from(trial.wall_us.div_ceil(1_000_000)).unwrap_or(i64::MAX);
    let began = unix_s_of(&trial.began_at);
    began.is_some_and(|began| (began..=began.saturating_add(length_s)).contains(&unix_s))
}

/// What an estimator gave for a metric in each comparison.
#[derive(Default)]
struct Given {
    half_widths_pct: Vec<f64>,
    /// Effects between identical variants, which the estimator should not see.
    biases_pct: Vec<f64>,
}

impl Given {
    /// Formats the median half-width and the mean bias.
    fn cells(&self) -> String {
        let width = median(&self.half_widths_pct);
        let width = width.map_or_else(String::new, |width| format!("{width:.2}"));
        let count = self.biases_pct.len() as u64;
        let bias = match count {
            0 => String::new(),
            _ => format!("{:+.2}", self.biases_pct.iter().sum::<f64>() / float(count)),
        };
        format!("{width} | {bias}")
    }
}

fn table(comparisons: &[Recorded]) -> String {
    let starts: usize = comparisons.iter().map(|one| one.starts.len()).sum();
    let mut order: Vec<Key> = Vec::new();
    let mut found: BTreeMap<(Key, &str), Given> = BTreeMap::new();
    for metric in METRICS {
        for Recorded { starts, is_same } in comparisons {
            for width in widths(&starts.iter().collect::<Vec<_>>(), metric) {
                let Width { estimator, corrected_for, effect_pct, half_width_pct } = width;
                let key = (estimator, corrected_for);
                if !order.contains(&key) {
                    order.push(key);
                }
                let given = found.entry((key, metric)).or_default();
                given.half_widths_pct.push(half_width_pct);
                given.biases_pct.extend(is_same.then_some(effect_pct));
            }
        }
    }
    let title = |name: &str| by_name(name).map_or("", |metric| metric.title);
    let heads = METRICS.map(|name| format!("{}, half-width, % | bias, %", title(name)));
    let mut text = format!(
        "| estimator | corrected for | {} |\n|---|---|---|---|---|---|---|---|\n",
        heads.join(" | ")
    );
    for key in order {
        let cells = METRICS.map(|metric| {
            let given = found.get(&(key, metric));
            given.map_or_else(|| " | ".to_owned(), Given::cells)
        });
        text += &format!("| {} | {} | {} |\n", key.0, key.1, cells.join(" | "));
    }
    let (count, same) = (comparisons.len(), comparisons.iter().filter(|one| one.is_same).count());
    format!(
        "{text}\nHalf-widths are medians over {count} comparisons with {starts} starts; biases are \
         means over the {same} of them whose variants were identical code.\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use schema::run::ScenarioFacts;
    use serde_json::json;

    #[test]
    fn a_folder_without_alternations_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a-1.json"), "{}").unwrap();
        let stop = render(dir.path(), &[]).unwrap_err();
        assert!(stop.to_string().contains("no alternations of several starts"), "{stop}");
    }

    /// Starts of two comparisons at 01:02 and 02:02, the candidate slower by 2 % and by 10 %.
    fn recorded(dir: &Path) {
        let comparisons =
            [("a", "2026-11-26T01:02:03Z", 102), ("b", "2026-11-26T02:02:03Z", 110_u64)];
        for (id, started_at, candidate) in comparisons {
            for number in 1..=3_u64 {
                let slice = |variant: &str, elapsed_us: u64| {
                    json!({
                        "pair": 0, "variant": variant, "start_us": 0, "elapsed_us": elapsed_us,
                        "requests_failed": 0, "output_tokens": 100, "ttft_us_p50": null,
                        "tpot_us_p50": null, "itl_us_p99": null, "idle_cpu_us": 0, "steal_us": 0,
                        "memory_mb_per_s": 10_000, "multiplications_per_us": 1000.0,
                    })
                };
                // Starts scatter by a thousandth.
                let scale = 1000 * (1000 + number);
                let slices =
                    [slice("baseline", 100_000_000), slice("candidate", candidate * scale)];
                let tail = json!({"ttft_us_p99": null, "tpot_us_p99": null});
                let start = json!({
                    "schema": SCHEMA, "scenario": ScenarioFacts::default(), "seed": 1,
                    "started_at": started_at, "slice_requests": 1, "prefix_cache": "cold",
                    "slices": slices, "baseline": tail, "candidate": tail,
                    "outputs": {"compared": 0, "differ": 0},
                });
                fs::write(dir.join(format!("{id}-{number}.json")), start.to_string()).unwrap();
            }
        }
    }

    #[test]
    fn the_bias_is_that_of_comparisons_within_trials_of_identical_code() {
        let dir = tempfile::tempdir().unwrap();
        recorded(dir.path());
        let trial: Trial = serde_json::from_value(json!({
            "began_at": "2026-11-26T01:02:00Z", "hardware": "cpu-x-2c", "kind": "same",
            "commit": "0123456789abcdef", "budget_us": 1, "whole": false, "scenarios": [],
            "pooled": [], "decision": "ship", "any_worse": false, "all_unchanged": true,
            "found_us": null, "spent_us": 1, "wall_us": 90_000_000,
        }))
        .unwrap();
        let shown = render(dir.path(), &[&trial]).unwrap();
        let line = "| Hodges-Lehmann | steal |";
        let row = shown.lines().find(|row| row.starts_with(line)).unwrap();
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        // Throughput is 1 / 1.02204 in the middle start; other metrics were not recorded.
        assert_eq!(cells[4..], ["-2.16", "", "", "", "", ""], "{shown}");
        assert!(shown.contains("over the 1 of them whose variants were identical"), "{shown}");
        assert!(shown.contains("| Hodges-Lehmann | steal, then clock | "), "{shown}");
    }
}
