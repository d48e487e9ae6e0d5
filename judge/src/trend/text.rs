//! Prints trends of metrics over releases as text for a terminal. Display only.

use std::fmt::Write as _;

use schema::trend::Trend;
use schema::untrusted::one_line;

use crate::diff::words::{percent, title, value};
use crate::table::columns;

/// Formats every trend as a table with one line per point; marks the lines at which the level
/// changes.
pub fn text(trends: &[Trend]) -> String {
    let mut text = String::new();
    let mut cell = None;
    for trend in trends {
        // Writing to a string cannot fail.
        if cell != Some(&trend.cell) {
            let _ = writeln!(text, "{}", one_line(&title(&trend.cell)));
            cell = Some(&trend.cell);
        }
        let _ = writeln!(text, "  {}", trend.title);
        for line in columns(&lines(trend)).lines() {
            let _ = writeln!(text, "    {line}");
        }
        text.push('\n');
    }
    if trends.is_empty() {
        text.push_str("no series of two points or more\n");
    }
    text.push_str(
        "Medians over the launches of a release in a campaign. Points of different campaigns were \
         not measured side by side: a change of level says where to look, and is no verdict.\n",
    );
    text
}

fn lines(trend: &Trend) -> Vec<Vec<String>> {
    let mut lines =
        vec![["release", "campaign", "launches", "median", ""].map(str::to_owned).to_vec()];
    for (index, point) in trend.points.iter().enumerate() {
        let epoch = trend.segments.iter().find(|s| s.first == index).and_then(|s| s.epoch.as_ref());
        let change = trend.changes.iter().find(|change| change.point == index);
        let mark = match (epoch, change) {
            (Some(reason), _) => format!("a new epoch: {reason}"),
            (None, Some(change)) => {
                let word = if change.worse { "worse" } else { "better" };
                format!("a new level, {}, {word}", percent(change.step_pct))
            }
            (None, None) => String::new(),
        };
        lines.push(vec![
            point.release.clone(),
            point.campaign.clone().unwrap_or_else(|| "-".to_owned()),
            point.launches.to_string(),
            value(point.value, trend.unit),
            mark,
        ]);
    }
    lines
}
