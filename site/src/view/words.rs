//! Words that pages show for values of records: failures, arrival processes, verdicts and so on.

use judge::rule::Family;
use schema::metric::{Gates, METRICS};
use schema::run::{Failure, FailureClass, Phase, PromptForm, RunRecord};
use schema::scenario::{Arrival, Growth};
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

/// Returns the words for a class of failure.
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

/// Returns the words for the phase in which a run failed, to follow `while`.
fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Build => "building",
        Phase::Load => "loading",
        Phase::Warmup => "warming up",
        Phase::Measure => "measuring",
    }
}

/// Formats families of metrics that a rule affects: `all metrics`, or their names.
pub fn families(families: &[Family]) -> String {
    if families == Family::ALL {
        return "all metrics".to_owned();
    }
    let name = |family: &Family| match family {
        Family::Throughput => "throughput",
        Family::Ttft => "TTFT",
        Family::Tpot => "TPOT",
        Family::Itl => "ITL",
        Family::E2e => "E2E",
        Family::Energy => "energy",
    };
    let names: Vec<&str> = families.iter().map(name).collect();
    if names.is_empty() { "no metric".to_owned() } else { names.join(", ") }
}

/// Returns the words for the form in which prompts were sent.
pub fn prompt_form(form: PromptForm) -> &'static str {
    match form {
        PromptForm::TokenIds => "token ids",
        PromptForm::Text => "text",
    }
}

/// Formats a failure in words: its class, its phase and its message.
pub fn failure(failure: &Failure) -> String {
    format!("{} while {}: {}", class(failure.class), phase(failure.phase), failure.message)
}

/// Formats the arrival process of requests in words that end a sentence.
fn arrival(arrival: &Arrival) -> String {
    let when = match arrival {
        Arrival::AllAtOnce => "all at once".to_owned(),
        Arrival::Closed { concurrency } => return format!("{concurrency} at a time"),
        Arrival::Constant { requests_per_s, .. } => format!("{requests_per_s} requests/s, evenly"),
        Arrival::Poisson { requests_per_s, .. } => format!("{requests_per_s} requests/s, Poisson"),
        Arrival::Gamma { requests_per_s, shape, .. } => {
            format!("{requests_per_s} requests/s, gamma of shape {shape}")
        }
        Arrival::Ramp { from_requests_per_s: from, to_requests_per_s: to, growth, .. } => {
            let growth = match growth {
                Growth::Time => "",
                Growth::RequestLinear => ", linear in the requests",
                Growth::RequestExponential => ", exponential in the requests",
            };
            format!("from {from} to {to} requests/s{growth}")
        }
        Arrival::Trace { speed, .. } => format!("at the trace's times, {speed} times as fast"),
    };
    let cap = arrival.concurrency_max().map(|cap| format!(", at most {cap} at a time"));
    when + &cap.unwrap_or_default()
}

/// Formats the number of requests of a run and their arrival process; `None` where the number is
/// not known.
pub fn requests(record: &RunRecord) -> Option<String> {
    let when = record.scenario.arrival.as_ref().map(|when| format!(", {}", arrival(when)));
    let requests = format::whole(record.scenario.requests?);
    Some(requests + &when.unwrap_or_default())
}

/// Formats the noise of release-blocking metrics, `Output tokens ±8.1 %`, from the percentages by
/// which a release differs from itself, by metric name.
pub fn noise<'a>(found: impl Iterator<Item = (&'a String, &'a f64)>) -> Vec<String> {
    let found: Vec<(&String, &f64)> = found.collect();
    let mut words = Vec::new();
    for metric in METRICS.iter().filter(|metric| metric.gates != Gates::Never) {
        let own = found.iter().filter(|(name, _)| *name == metric.name);
        words.extend(own.map(|(_, pct)| format!("{} {}", metric.title, format::plus_minus(**pct))));
    }
    words
}

/// Returns the words for the kind of a verdict.
pub fn verdict(verdict: VerdictKind) -> &'static str {
    match verdict {
        VerdictKind::ChangedConfig => "changed config",
        VerdictKind::NewFailure => "new failure",
        VerdictKind::FixedFailure => "fixed failure",
        one_word => one_word.name(),
    }
}
