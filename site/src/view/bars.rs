//! Engines side by side as bars: a chart a metric, a group a scenario. Knows figures, and nothing of
//! pages.

use schema::metric::{Metric, by_name};

use super::charts::mark_of;
use super::figure::{self, Figure};
use super::grid::Row;
use crate::chart::{Bar, BarGroup, Bars, Chart};
use crate::outside;

/// What is drawn: the metric, and what a reader must know of it.
const DRAWN: [(&str, &str); 3] = [
    ("output_tokens_per_s", "More is better."),
    ("tpot_us_p50", "Less is better: what a user waits for each further token."),
    (
        "ttft_us_p50",
        "Less is better: what a user waits for the first token, which is time in the queue where \
         all requests come at once.",
    ),
];

/// A chart of more bars than this is no longer read; the tables have them all.
const BARS_MAX: usize = 40;

/// A chart for each metric that is drawn and that some of `rows` knows; none where there are too many
/// bars. Each row comes with its name.
#[must_use]
pub fn charts(rows: &[(String, &Row)], scenarios: &[&str]) -> Vec<Chart> {
    let bars = rows.iter().flat_map(|(_, row)| row.cells.iter().flatten()).count();
    if bars > BARS_MAX {
        return Vec::new();
    }
    let drawn = DRAWN.iter().filter_map(|(name, reading)| Some((by_name(name)?, *reading)));
    drawn.filter_map(|(metric, reading)| chart(metric, reading, rows, scenarios)).collect()
}

fn chart(
    metric: &Metric,
    reading: &str,
    rows: &[(String, &Row)],
    scenarios: &[&str],
) -> Option<Chart> {
    let every: Vec<_> =
        rows.iter().flat_map(|(_, row)| row.cells.iter().flatten().copied()).collect();
    let scale = figure::scale(metric, &every);
    let mut groups = Vec::new();
    let mut listed = Vec::new();
    for (column, scenario) in scenarios.iter().enumerate() {
        let mut bars = Vec::new();
        for (series, row) in rows {
            let Some(cell) = row.cells[column] else { continue };
            let figure = Figure::of(metric, scale, cell);
            let found = figure::summary(metric, cell);
            let line =
                [outside::name(scenario), series.clone(), figure.shown(), figure.title.clone()];
            listed.push(line.to_vec());
            let drawn = |value: f64| value / scale.divisor;
            bars.push(Bar {
                series: series.clone(),
                value: found.map(|found| drawn(found.median)),
                range: found.filter(|f| f.n > 1).map(|f| (drawn(f.min), drawn(f.max))),
                text: if found.is_some() { figure.shown() } else { "no figure".to_owned() },
                mark: mark_of(cell),
            });
        }
        groups.push(BarGroup { label: outside::name(scenario), bars });
    }
    if !groups.iter().flat_map(|group| &group.bars).any(|bar| bar.value.is_some()) {
        return None;
    }
    let (title, unit) = match scale.unit {
        "/s" => (format!("{} per second", metric.title), "per second"),
        unit => (metric.title.to_owned(), unit),
    };
    let caption = format!(
        "{reading} Median over launches, whiskers span them. Gray: a single run. Hollow: claimed \
         by others."
    );
    let unit = unit.to_owned();
    let head = format!("{}, {unit}", metric.title);
    let drawn = Bars { title: title.clone(), description: caption.clone(), unit, groups };
    let heads = vec!["Scenario".into(), "Engine".into(), head, "Exactly".into()];
    Some(Chart { title, caption, svg: drawn.draw(), heads, rows: listed })
}
