//! Quality rules over derived figures: rates, percentiles and peaks must follow from the integers
//! and histograms stored beside them.

use schema::run::{Kind, Metrics, RunRecord, Summary};
use schema::scenario::Tier;

use super::counts::credited_output;
use super::{claim, float, within};
use crate::quantile::{Bins, Bounds, samples_needed};
use crate::rule::{Condition, Family, Outcome, Rule, Scope};

/// Tolerated relative difference between a measured or simulated rate and its count divided by the
/// wall time.
pub const RATE_SHARE: f64 = 0.001;
/// Tolerated relative difference between an imported rate and its count divided by the wall time:
/// figures published elsewhere are rounded more coarsely.
pub const RATE_SHARE_IMPORTED: f64 = 0.02;

/// Rounding error of a published rate with two decimals, which in slow runs is larger than the
/// tolerated relative difference.
const PRINTED_RATE: f64 = 0.005_001;

/// Largest ratio of the best second's output rate to the mean output rate that rule E36 accepts of
/// imported results.
pub const PEAK_TIMES_MEAN: f64 = 20.0;

/// Rounding error of a stored time, in microseconds, which is a whole number.
const ROUNDING_US: f64 = 1.0;

/// Quality rules over derived figures, ordered by id.
pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "E06",
        title: "rates equal counts divided by wall time, within 0.1 % (imports: 2 %)",
        finding: "rate contradicts counts",
        why: "One page printed a gain of 15.6 % that was 10.0 % by the tokens and seconds on the \
              same page.",
        scope: Scope::FIGURES,
        affects: &[Family::Throughput],
        conditions: &[Condition::new(rates).invalid(
            "rate-identity",
            "the rate differs by more than 0.1 % from output tokens over the run's duration",
        )],
        ..Rule::ERROR
    },
    Rule {
        id: "E07",
        title: "percentiles rise and agree with their histogram within one bin",
        finding: "percentiles contradict samples",
        why: "A percentile that contradicts its own samples was computed from something else.",
        scope: Scope::FIGURES,
        affects: Family::LATENCIES,
        conditions: &[
            Condition::new(rising).invalid("percentiles", "a percentile is below a lower one"),
            Condition::new(in_histogram),
        ],
        ..Rule::ERROR
    },
    Rule {
        id: "E08",
        title: "the best second is between 1 and 20 times the mean rate",
        finding: "implausible peak rate",
        why: "A peak of millions of tokens per second comes from a buffered stream, not from an \
              engine.",
        scope: Scope::FIGURES,
        affects: &[Family::Throughput],
        until: Some(8),
        successor: Some("E36"),
        conditions: &[Condition::new(peak_low), Condition::new(peak_high)],
        ..Rule::ERROR
    },
    Rule {
        id: "E36",
        title: "the best second has at least the mean rate; of imported results at most 20 times it",
        finding: "implausible peak rate",
        why: "Other tools print peaks of millions of tokens per second for streams that a buffer \
              held back. In a run of this suite, where every chunk is stamped, few answers after \
              long prompts reach any multiple of the mean.",
        since: Some(9),
        scope: Scope::FIGURES,
        affects: &[Family::Throughput],
        conditions: &[
            Condition::new(peak_low).invalid("peak", "the best second is below the mean one"),
            Condition::new(peak_of_import),
        ],
        ..Rule::ERROR
    },
    Rule {
        id: "W11",
        title: "there are enough samples for the percentiles shown",
        finding: "few samples",
        why: "For 99 % confidence a p99 needs 662 samples, a p95 130, a p90 64.",
        scope: Scope::FIGURES.but_lite(),
        affects: Family::LATENCIES,
        conditions: &[Condition::new(samples).note(
            "few-samples",
            "the answers are too few to bound the p99 with 99 % confidence (not on -lite)",
        )],
        ..Rule::WARNING
    },
];

fn rates(record: &RunRecord) -> Outcome {
    let (counts, metrics) = (record.counts.as_ref()?, record.metrics.as_ref()?);
    let wall_us = record.time.as_ref()?.wall_us.filter(|wall| *wall > 0)?;
    let (share, rounding) = match record.kind {
        Kind::Imported => (RATE_SHARE_IMPORTED, PRINTED_RATE),
        Kind::Measured | Kind::Simulated => (RATE_SHARE, 0.0),
    };
    let per_s = |count: u64| float(count) * 1e6 / float(wall_us);
    let output = credited_output(counts);
    let gpus = record.server.as_ref().and_then(|server| server.tp).filter(|tp| *tp > 0);
    let total = output.zip(counts.input_tokens).map(|(output, input)| per_s(output) + per_s(input));
    let pairs = [
        ("requests_per_s", metrics.requests_per_s, counts.requests_ok.map(per_s)),
        ("input_tokens_per_s", metrics.input_tokens_per_s, counts.input_tokens.map(per_s)),
        ("output_tokens_per_s", metrics.output_tokens_per_s, output.map(per_s)),
        ("total_tokens_per_s", metrics.total_tokens_per_s, total),
        (
            "output_tokens_per_s_per_gpu",
            metrics.output_tokens_per_s_per_gpu,
            output.zip(gpus).map(|(output, gpus)| per_s(output) / f64::from(gpus)),
        ),
    ];
    let known = pairs.iter().filter_map(|(name, stored, due)| Some((name, (*stored)?, (*due)?)));
    let mut known = known.peekable();
    known.peek()?;
    let wrong: Vec<String> = known
        .filter(|(_, stored, due)| !within(*stored, *due, share))
        .filter(|(_, stored, due)| (stored - due).abs() > rounding)
        .map(|(name, stored, due)| format!("`{name}` is {stored:.2}, its counts give {due:.2}"))
        .collect();
    claim(wrong.is_empty(), || wrong.join("; "))
}

/// Returns a sentence about the first percentile (or maximum) of `summary` that is below the next
/// lower percentile; `None` where none is.
fn falling(name: &str, summary: &Summary) -> Option<String> {
    let steps = [
        ("p50", summary.p50),
        ("p90", summary.p90),
        ("p95", summary.p95),
        ("p99", summary.p99),
        ("max", summary.max),
    ];
    let known: Vec<_> = steps.iter().filter_map(|(step, value)| Some((step, (*value)?))).collect();
    let fall = known.windows(2).find(|pair| pair[1].1 < pair[0].1)?;
    let [(low, below), (high, above)] = fall else { return None };
    Some(format!("`{name}` {high} is {above} us, below its {low} of {below} us"))
}

/// Returns sentences on contradictions between the histogram called `name` and the record: a number
/// of samples that is not the number of requests, or a mean, percentile or maximum that the bins
/// rule out.
fn contradictions(name: &str, metrics: &Metrics, bins: &Bins, record: &RunRecord) -> Vec<String> {
    let mut wrong = Vec::new();
    let ok = record.counts.as_ref().and_then(|counts| counts.requests_ok);
    if let Some(ok) = ok.filter(|ok| per_request(name) && *ok != bins.samples) {
        wrong.push(format!("`{name}` has {} samples for {ok} requests", bins.samples));
    }
    let summaries = metrics.summaries();
    let Some(summary) = summaries.iter().find(|(of, _)| *of == name).and_then(|(_, s)| *s) else {
        return wrong;
    };
    let figures: [(&str, Option<u64>, Option<Bounds>); 6] = [
        ("mean", summary.mean, bins.mean()),
        ("p50", summary.p50, bins.quantile(0.5)),
        ("p90", summary.p90, bins.quantile(0.9)),
        ("p95", summary.p95, bins.quantile(0.95)),
        ("p99", summary.p99, bins.quantile(0.99)),
        ("max", summary.max, bins.quantile(1.0)),
    ];
    for (figure, stored, bounds) in figures {
        let (Some(stored), Some((low, high))) = (stored, bounds) else { continue };
        if float(stored) < low - ROUNDING_US || float(stored) > high + ROUNDING_US {
            wrong.push(format!(
                "`{name}` {figure} is {stored} us, its histogram says {low:.0} to {high:.0}"
            ));
        }
    }
    wrong
}

/// True for `ttft_us` and `e2e_us`, the histograms whose samples rule E07 compares with the number
/// of successful requests.
fn per_request(name: &str) -> bool {
    matches!(name, "ttft_us" | "e2e_us")
}

fn peak_low(record: &RunRecord) -> Outcome {
    let metrics = record.metrics.as_ref()?;
    let (peak, mean) = (metrics.output_tokens_per_s_peak?, metrics.output_tokens_per_s?);
    let wall_s = float(record.time.as_ref()?.wall_us.filter(|wall| *wall > 0)?) / 1e6;
    // The best of the whole seconds that cover the run has at least their mean rate.
    let least = mean * wall_s / wall_s.ceil() * (1.0 - RATE_SHARE);
    claim(peak >= least, || peak_and_mean(peak, mean))
}

fn peak_high(record: &RunRecord) -> Outcome {
    let metrics = record.metrics.as_ref()?;
    let (peak, mean) = (metrics.output_tokens_per_s_peak?, metrics.output_tokens_per_s?);
    record.time.as_ref()?.wall_us.filter(|wall| *wall > 0)?;
    claim(peak <= mean * PEAK_TIMES_MEAN, || peak_and_mean(peak, mean))
}

fn peak_of_import(record: &RunRecord) -> Outcome {
    if record.kind == Kind::Imported { peak_high(record) } else { None }
}

fn peak_and_mean(peak: f64, mean: f64) -> String {
    format!("the best second has {peak:.1} tokens, the mean is {mean:.1}")
}

fn samples(record: &RunRecord) -> Outcome {
    let metrics = record.metrics.as_ref()?;
    let samples = record.counts.as_ref()?.requests_ok?;
    // In a measured run every latency has the same percentiles; other tools print p99 of one
    // latency and p95 of another.
    let latencies = [&metrics.e2e_us, &metrics.ttft_us, &metrics.tpot_us];
    let shown = if record.kind == Kind::Imported { 3 } else { 1 };
    let summaries: Vec<&Summary> = latencies.into_iter().flatten().take(shown).collect();
    summaries.first()?;
    if record.scenario.tier == Tier::Lite {
        return Some(Ok(()));
    }
    let any = |figure: fn(&Summary) -> Option<u64>| summaries.iter().find_map(|s| figure(s));
    let shown = [
        ("p90", 0.9, any(|summary| summary.p90)),
        ("p95", 0.95, any(|summary| summary.p95)),
        ("p99", 0.99, any(|summary| summary.p99)),
    ];
    let short: Vec<String> = shown
        .iter()
        .filter(|(_, share, value)| value.is_some() && samples < samples_needed(*share))
        .map(|(name, share, _)| format!("{name} needs {}", samples_needed(*share)))
        .collect();
    claim(short.is_empty(), || {
        format!("{samples} answers: {}{}", short.join(", "), bounds(metrics))
    })
}

/// Returns the end of a sentence with the upper bound of the p95 (else the p90) of TTFT, or an
/// empty text where the run has too few samples for one.
fn bounds(metrics: &Metrics) -> String {
    let ttft = metrics.ttft_us.as_ref();
    let p95 = ttft.and_then(|ttft| ttft.p95_upper).map(|us| ("p95", us));
    let bound = p95.or_else(|| Some(("p90", ttft?.p90_upper?)));
    bound.map_or_else(String::new, |(name, us)| format!("; the {name} of TTFT is at most {us} us"))
}

/// Checks that each percentile is at least the next lower percentile, in each latency summary.
fn rising(record: &RunRecord) -> Outcome {
    let summaries = record.metrics.as_ref()?.summaries().into_iter();
    let wrong: Vec<String> =
        summaries.filter_map(|(name, summary)| falling(name, summary?)).collect();
    claim(wrong.is_empty(), || wrong.join("; "))
}

/// Checks that each histogram of the record can be decoded, that those of TTFT and E2E have one
/// sample per successful request, and that each latency figure lies within its bins.
fn in_histogram(record: &RunRecord) -> Outcome {
    let (metrics, histograms) = (record.metrics.as_ref()?, record.histograms.as_ref()?);
    let mut wrong = Vec::new();
    for (name, histogram) in histograms.named() {
        let Some(histogram) = histogram else { continue };
        match Bins::decode(histogram) {
            Ok(bins) => wrong.extend(contradictions(name, metrics, &bins, record)),
            Err(error) => wrong.push(format!("`{name}`: {error}")),
        }
    }
    claim(wrong.is_empty(), || wrong.join("; "))
}
