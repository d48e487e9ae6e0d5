//! Bar charts of engines side by side: one chart per metric, one group of bars per scenario. Knows
//! figures, but no pages.

use schema::metric::{Metric, by_name};

use super::charts::mark_of;
use super::figure::{self, Figure};
use super::grid::Row;
use crate::chart::{Bar, BarGroup, Bars, Chart};
use crate::outside;

/// Metrics that are drawn, each with a sentence on how to read it.
const DRAWN: [(&str, &str); 3] = [
    ("output_tokens_per_s", "More is better."),
    ("tpot_us_p50", "Less is better: what a user waits for each further token."),
    (
        "ttft_us_p50",
        "Less is better: what a user waits for the first token, which is time in the queue where \
         all requests come at once.",
    ),
];

/// Largest number of bars in a chart. A chart with more is unreadable; the tables contain all
/// figures.
const BARS_MAX: usize = 40;

/// Returns a chart for each drawn metric that some of `rows` have; none where there would be too
/// many bars. Each row comes with its series name.
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
