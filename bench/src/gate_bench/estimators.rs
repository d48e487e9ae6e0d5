//! Comparison of estimators on alternations that were recorded here: which of them makes the
//! interval over the starts narrowest.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use campaign::Stop;
use campaign::files::{FileError, files_below};
use judge::alternation::estimators::{Width, widths};
use judge::quantile::median;
use schema::alternation::{Alternation, SCHEMA};
use schema::metric::by_name;

/// Metrics for which the estimators are compared.
const METRICS: [&str; 3] = ["output_tokens_per_s", "ttft_us_p50", "tpot_us_p50"];

/// Estimator, and true where pairs are corrected for steal.
type Key = (&'static str, bool);

/// Reads the alternations below `folder` and renders the median half-width of each estimator over
/// the comparisons.
///
/// # Errors
/// A file cannot be read, or no comparison of two or more starts lies there.
pub fn render(folder: &Path) -> Result<String, Stop> {
    let comparisons = read(folder)?;
    if comparisons.is_empty() {
        let folder = folder.display();
        return Err(Stop::wrong_use(format!("no alternations of several starts in `{folder}`"))
            .with_hint(
                "`gate-bench` leaves those of its trials under `target/gate-bench/trials`",
            ));
    }
    Ok(table(&comparisons))
}

/// Returns the starts of each comparison below `folder`, those with two or more.
fn read(folder: &Path) -> Result<Vec<Vec<Alternation>>, Stop> {
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
    Ok(starts.filter(|starts: &Vec<Alternation>| starts.len() > 1).collect())
}

fn table(comparisons: &[Vec<Alternation>]) -> String {
    let starts: usize = comparisons.iter().map(Vec::len).sum();
    let mut order: Vec<Key> = Vec::new();
    let mut found: BTreeMap<(Key, &str), Vec<f64>> = BTreeMap::new();
    for metric in METRICS {
        for starts in comparisons {
            for Width { estimator, corrected, half_width_pct, .. } in
                widths(&starts.iter().collect::<Vec<_>>(), metric)
            {
                let key = (estimator, corrected);
                if !order.contains(&key) {
                    order.push(key);
                }
                found.entry((key, metric)).or_default().push(half_width_pct);
            }
        }
    }
    let title = |name: &str| by_name(name).map_or("", |metric| metric.title);
    let mut text = format!(
        "| estimator | corrected for steal | {} |\n|---|---|---|---|---|\n",
        METRICS.map(|name| format!("{}, half-width, %", title(name))).join(" | ")
    );
    for key in order {
        let width = |metric| {
            let widths = found.get(&(key, metric)).and_then(|widths| median(widths));
            widths.map_or(String::new(), |width| format!("{width:.2}"))
        };
        let is = if key.1 { "yes" } else { "no" };
        text += &format!("| {} | {is} | {} |\n", key.0, METRICS.map(width).join(" | "));
    }
    let count = comparisons.len();
    format!("{text}\nMedians over {count} comparisons with {starts} starts.\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_alternations_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a-1.json"), "{}").unwrap();
        let stop = render(dir.path()).unwrap_err();
        assert!(stop.to_string().contains("no alternations of several starts"), "{stop}");
    }
}
