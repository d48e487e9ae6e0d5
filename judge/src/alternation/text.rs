//! Progress of an alternating comparison in one line. Display only.

use schema::alternation::AlternatingComparison;

use super::compare::minutes;
use super::{Call, judge};
use crate::diff::words::{interval, percent};

/// Upper end of an interval, in percent, above which it only says that more starts are needed: two
/// starts can give a million percent.
const KNOWN_PCT_MAX: f64 = 100.0;

/// Formats how far a comparison is and what it has found: starts and time, then each
/// release-blocking metric with its interval or its call.
pub fn passing(comparison: &AlternatingComparison) -> String {
    let spent_us = comparison.starts.last().map_or(0, |start| start.end_us);
    let mut line = format!(
        "start {}, {} of {}",
        comparison.starts.len(),
        minutes(spent_us),
        minutes(comparison.budget_us)
    );
    for judged in judge(comparison).iter().filter(|judged| judged.gates) {
        let found = match judged.call {
            Call::Worse => format!("{} worse", percent(judged.effect_pct)),
            Call::Better => format!("{} better", percent(judged.effect_pct)),
            Call::Unchanged => format!("unchanged within {} %", judged.min_effect_pct),
            Call::Open if judged.interval_pct.1 > KNOWN_PCT_MAX => "not known yet".to_owned(),
            Call::Open => interval(judged.interval_pct),
        };
        line += &format!("; {} {found}", judged.metric.title);
    }
    line
}
