//! Submission rules over one run: its kind, its verdicts, its clocks, and figures that the quality
//! rules leave free.

use schema::event::unix_s_of;
use schema::run::{Kind, Level, RunRecord, Status};

use super::{CLOCK, DERIVED, MEASURED, UNBROKEN, VERDICTS};
use crate::finding::Finding;
use crate::quantile::Bins;
use crate::rules::{RULES, float};
use crate::validity;

/// Largest difference, in seconds, between the two clocks of a run: start and end are stored as
/// whole seconds, and starting and stopping takes a moment.
const CLOCK_S_MAX: f64 = 1.25;
/// Largest difference between the two clocks as a share of the duration, for the correction of the
/// wall clock by a time server.
const CLOCK_SHARE: f64 = 0.002;
/// Largest time in seconds by which the submitter's clock may be ahead of the maintainer's.
const AHEAD_S_MAX: i64 = 3_600;
/// Relative difference tolerated between the stored standard deviation and the histogram's bounds.
const DEVIATION_SHARE: f64 = 0.02;

/// Judges one run by the rules B04, B05, B06, B07 and B16.
pub(super) fn findings(path: &str, record: &RunRecord, unix_s: i64) -> Vec<Finding> {
    let mut found = Vec::new();
    if record.kind != Kind::Measured {
        let kind = record.kind.name();
        found.push(MEASURED.breach(path, format!("the run is of kind `{kind}`")));
    }
    let errors = crate::failed(record).into_iter().filter(|check| check.level == Level::Error);
    found.extend(errors.map(|check| {
        let detail = format!("{}: {}", check.rule, check.detail.unwrap_or_default());
        // Some rules make no figure doubtful, such as that over outputs that were not checked.
        let is_harmless = crate::rule(&check.rule).is_some_and(|rule| rule.affects.is_empty());
        Finding { breach: !is_harmless, ..UNBROKEN.breach(path, detail) }
    }));
    found.extend(verdict_problems(record).into_iter().map(|text| VERDICTS.breach(path, text)));
    found.extend(clock_problem(record, unix_s).map(|text| CLOCK.breach(path, text)));
    found.extend(derived_problems(record).into_iter().map(|text| DERIVED.breach(path, text)));
    found
}

/// Returns what is wrong with the stored reservations and verdicts of a run. Only runs of today's
/// rules are judged: the verdicts of older ones follow from rules that have changed.
fn verdict_problems(record: &RunRecord) -> Vec<String> {
    if record.checks_rev != crate::CHECKS_REV || record.metrics.is_none() {
        return Vec::new();
    }
    let stored = &record.validity;
    let has = |id: &str| stored.reasons.iter().any(|reason| reason.split(':').next() == Some(id));
    let mut wrong = Vec::new();
    for condition in RULES.iter().filter(|rule| rule.until.is_none()).flat_map(|r| r.conditions) {
        let Some(reason) = condition.reason else { continue };
        // Reasons that need more than the record are not known here.
        if let Some(Err(figures)) = condition.outcome(record, None)
            && !has(reason.id)
        {
            wrong.push(format!("the reason `{}` is missing: {figures}", reason.id));
        }
    }
    let due = validity::verdicts(record);
    if stored.metrics != due {
        let differs = |name: &&String| stored.metrics.get(*name) != due.get(*name);
        let named = due.keys().chain(stored.metrics.keys()).find(differs);
        let named = named.map_or("", String::as_str);
        wrong.push(format!("the verdict on `{named}` does not follow from the record"));
    }
    let headline = validity::headline(record);
    if stored.verdict < headline {
        let (stored, due) = (stored.verdict.name(), headline.name());
        wrong.push(format!("the verdict is `{stored}`, and the figures give `{due}`"));
    }
    wrong
}

/// Returns how the wall clock of a run contradicts its duration, or the present time.
fn clock_problem(record: &RunRecord, unix_s: i64) -> Option<String> {
    let time = record.time.as_ref()?;
    let finished = time.finished_at.as_deref().and_then(unix_s_of)?;
    if finished > unix_s.saturating_add(AHEAD_S_MAX) {
        return Some(format!("it ended {} s from now", finished - unix_s));
    }
    let started = time.started_at.as_deref().and_then(unix_s_of)?;
    let wall_s = float(time.wall_us?) / 1e6;
    let between = finished.checked_sub(started)?;
    #[expect(clippy::cast_precision_loss, reason = "seconds between two dates are below 2^53")]
    let beyond_s = between as f64 - wall_s;
    let tolerance_s = CLOCK_S_MAX + CLOCK_SHARE * wall_s;
    // A failed request may end after the last token of the answered ones.
    let is_late = record.status == Status::Ok && beyond_s > tolerance_s;
    (is_late || beyond_s < -tolerance_s).then(|| {
        format!("{between} s lie between its start and its end, and it lasted {wall_s:.3} s")
    })
}

/// Returns the figures of a run that contradict its histograms or slices, of those that no quality
/// rule judges.
fn derived_problems(record: &RunRecord) -> Vec<String> {
    let mut wrong = deviation_problems(record);
    wrong.extend(scheduled_problems(record));
    wrong.extend(peak_problem(record));
    wrong
}

/// Compares standard deviations and upper confidence bounds with the histograms.
fn deviation_problems(record: &RunRecord) -> Vec<String> {
    let (Some(metrics), Some(histograms)) = (&record.metrics, &record.histograms) else {
        return Vec::new();
    };
    let mut wrong = Vec::new();
    for (name, summary) in metrics.summaries() {
        let histogram = histograms.named().into_iter().find(|(of, _)| *of == name);
        let bins = histogram.and_then(|(_, histogram)| Bins::decode(histogram?).ok());
        let (Some(summary), Some(bins)) = (summary, bins) else { continue };
        if let (Some(std), Some((low, high))) = (summary.std, bins.deviation()) {
            let slack = DEVIATION_SHARE * high + 1.0;
            if float(std) < low - slack || float(std) > high + slack {
                wrong.push(format!(
                    "`{name}` std is {std} us, its histogram says {low:.0} to {high:.0}"
                ));
            }
        }
        let bounds = [
            ("p90_upper", summary.p90, summary.p90_upper),
            ("p95_upper", summary.p95, summary.p95_upper),
            ("p99_upper", summary.p99, summary.p99_upper),
        ];
        let stray = bounds.into_iter().find(|(_, value, upper)| {
            let is_low = value.zip(*upper).is_some_and(|(value, upper)| upper < value);
            is_low || summary.max.zip(*upper).is_some_and(|(max, upper)| upper > max)
        });
        wrong.extend(stray.map(|(bound, ..)| {
            format!("`{name}` {bound} is not between the percentile and the maximum")
        }));
    }
    wrong
}

/// Compares latencies from the schedule with their histograms.
fn scheduled_problems(record: &RunRecord) -> Vec<String> {
    let (Some(metrics), Some(histograms)) = (&record.metrics, &record.histograms) else {
        return Vec::new();
    };
    let pairs = [
        ("ttft_scheduled_us", &metrics.ttft_scheduled_us, &histograms.ttft_scheduled_us),
        ("e2e_scheduled_us", &metrics.e2e_scheduled_us, &histograms.e2e_scheduled_us),
    ];
    let mut wrong = Vec::new();
    for (name, summary, histogram) in pairs {
        let bins = histogram.as_ref().and_then(|histogram| Bins::decode(histogram).ok());
        let (Some(summary), Some(bins)) = (summary, bins) else { continue };
        let figures = [
            ("mean", summary.mean, bins.mean()),
            ("p50", summary.p50, bins.quantile(0.5)),
            ("p99", summary.p99, bins.quantile(0.99)),
        ];
        for (figure, stored, bounds) in figures {
            let (Some(stored), Some((low, high))) = (stored, bounds) else { continue };
            if float(stored) < low - 1.0 || float(stored) > high + 1.0 {
                wrong.push(format!(
                    "`{name}` {figure} is {stored} us, its histogram says {low:.0} to {high:.0}"
                ));
            }
        }
    }
    wrong
}

/// Compares the best second with the slices: a window of one second lies in at most as many slices
/// as it can touch, and has at most their tokens.
fn peak_problem(record: &RunRecord) -> Option<String> {
    let metrics = record.metrics.as_ref()?;
    let peak = metrics.output_tokens_per_s_peak?;
    let slices = metrics.slices.as_ref()?;
    let length_us = slices.iter().map(|slice| slice.length_us).max().filter(|us| *us > 0)?;
    let touched = usize::try_from(1_000_000_u64.div_ceil(length_us) + 1).ok()?;
    let windows = (0..slices.len()).map(|first| {
        slices[first..].iter().take(touched).map(|slice| slice.output_tokens).sum::<u64>()
    });
    let most = windows.max()?;
    (peak > float(most) + 1.0)
        .then(|| format!("the best second has {peak:.0} tokens, the slices around it {most}"))
}
