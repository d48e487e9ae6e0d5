//! Words on pages for the values of records.

use schema::metric::{Gates, METRICS};
use schema::run::{FailureClass, Phase, PromptForm};
use schema::scenario::{Arrival, Tier};
use schema::verdict::VerdictKind;

use crate::format;

/// Splits a reason of a record's validity into id and sentence; the id is `-` where there is none.
pub fn reason(text: &str) -> (&str, &str) {
    let is_id = |id: &str| {
        !id.is_empty()
            && id.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
    };
    text.split_once(": ").filter(|(id, _)| is_id(id)).unwrap_or(("-", text))
}

/// Words for a class of failure.
pub fn class(class: FailureClass) -> &'static str {
    match class {
        FailureClass::Oom => "out of memory",
        FailureClass::Crash => "crash",
        FailureClass::Hang => "hang",
        FailureClass::Timeout => "timeout",
        FailureClass::BadOutput => "bad output",
        FailureClass::Unsupported => "unsupported",
        FailureClass::Infrastructure => "infrastructure",
        FailureClass::Preempted => "preempted",
    }
}

/// Words for the phase in which a run failed.
pub fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Build => "building",
        Phase::Load => "loading",
        Phase::Warmup => "warming up",
        Phase::Measure => "measuring",
    }
}

/// Words for the form in which prompts were sent.
pub fn prompt_form(form: PromptForm) -> &'static str {
    match form {
        PromptForm::TokenIds => "token ids",
        PromptForm::Text => "text",
    }
}

/// Word for the tier of a scenario.
pub fn tier(tier: Tier) -> &'static str {
    match tier {
        Tier::Full => "full",
        Tier::Quarter => "quarter",
        Tier::Lite => "lite",
    }
}

/// Words for the arrival of requests, to end a sentence.
pub fn arrival(arrival: &Arrival) -> String {
    match arrival {
        Arrival::AllAtOnce => "all at once".to_owned(),
        Arrival::Closed { concurrency } => format!("{concurrency} at a time"),
        Arrival::Constant { requests_per_s, .. } => {
            format!("{requests_per_s} requests/s, evenly{}", cap(arrival))
        }
        Arrival::Poisson { requests_per_s, .. } => {
            format!("{requests_per_s} requests/s, Poisson{}", cap(arrival))
        }
        Arrival::Gamma { requests_per_s, shape, .. } => {
            format!("{requests_per_s} requests/s, gamma of shape {shape}{}", cap(arrival))
        }
        Arrival::Ramp { from_requests_per_s: from, to_requests_per_s: to, .. } => {
            format!("from {from} to {to} requests/s{}", cap(arrival))
        }
        Arrival::Trace { speed, .. } => {
            format!("at the trace's times, {speed} times as fast{}", cap(arrival))
        }
    }
}

fn cap(arrival: &Arrival) -> String {
    let cap = arrival.concurrency_max();
    cap.map(|cap| format!(", at most {cap} at a time")).unwrap_or_default()
}

/// Noise of release-blocking metrics, `Output tokens ±8.1 %`, from the percentages by which a
/// release differs from itself, by metric name.
pub fn noise<'a>(found: impl Iterator<Item = (&'a String, &'a f64)>) -> Vec<String> {
    let found: Vec<(&String, &f64)> = found.collect();
    let gating = METRICS.iter().filter(|metric| metric.gates != Gates::Never);
    let of = |name: &'static str| found.iter().filter(move |(known, _)| *known == name);
    gating
        .flat_map(|metric| {
            of(metric.name)
                .map(|(_, pct)| format!("{} {}", metric.title, format::plus_minus(**pct)))
        })
        .collect()
}

/// Words for the kind of a verdict.
pub fn verdict(verdict: VerdictKind) -> &'static str {
    match verdict {
        VerdictKind::ChangedConfig => "changed config",
        VerdictKind::NewFailure => "new failure",
        VerdictKind::FixedFailure => "fixed failure",
        one_word => one_word.name(),
    }
}
