//! Quality rules over what a record states about itself: no unexplained gaps, build and machine
//! identified, times in order, prefix cache as cold as claimed.

use std::fmt::Display;

use schema::event::unix_s_of;
use schema::id::ulid_unix_ms;
use schema::run::{CacheState, Gpu, RunRecord, Status};
use serde_json::Value;

use super::{claim, float};
use crate::rule::{Condition, Evidence, Outcome, Rule, Scope, on_cpu};

/// Number of unexplained nulls that a finding lists before it says "and more".
const NAMED: usize = 6;

/// Tolerated difference, as a share of the prompt tokens, between prefix-cache hits and the hits
/// that the workload's repeated prefixes and primed prompts predict.
pub const HITS_SHARE: f64 = 0.01;

/// Largest share of the prompt tokens that may come from a prefix cache which earlier requests
/// filled. Prompts that are shorter by this share have a TTFT that is shorter by about as much, and
/// that is its minimum effect.
const WARM_SHARE_MAX: f64 = 0.05;

const CACHE_MISMATCH: &str = "prefix hits exceed what the plan explains by 1 % of the prompt \
     tokens, or fall as far short of what was primed";

/// Quality rules over what a record states about itself, ordered by id.
pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "E02",
        title: "a failed run states why, and listed reasons for missing values are complete",
        finding: "missing reason",
        why: "Without a reason, a value that could not be measured looks like one that was \
              forgotten.",
        scope: Scope::ALL,
        conditions: &[Condition::new(complete)],
        ..Rule::ERROR
    },
    Rule {
        id: "E10",
        title: "the engine is a clean build that its hash identifies",
        finding: "build not reproducible",
        why: "Nobody can check the figures of a program that cannot be built again.",
        scope: Scope::MEASURED,
        conditions: &[Condition::new(provenance)],
        ..Rule::ERROR
    },
    Rule {
        id: "E11",
        title: "the machine is described: driver, memory and clocks of a GPU, or CPU, cores and \
                kernel",
        finding: "machine not described",
        why: "One GPU name covers parts that differ by a factor, and drivers and clocks change \
              figures.",
        scope: Scope::MEASURED,
        conditions: &[Condition::new(hardware)],
        ..Rule::ERROR
    },
    Rule {
        id: "E12",
        title: "prefix-cache hits are no more than the repeated prefixes of the workload explain",
        finding: "unexplained cache hits",
        why: "A seeded workload that is repeated on a warm server measures the cache: published \
              cases read up to 2.3 times too fast.",
        conditions: &[Condition::new(excess_hits).invalid("cache-mismatch", CACHE_MISMATCH)],
        ..Rule::ERROR
    },
    Rule {
        id: "E18",
        title: "the run started after its campaign was planned, and ended after it started",
        finding: "times out of order",
        why: "A run that is older than its campaign is no part of it, and a clock that went back \
              measured nothing.",
        since: Some(5),
        scope: Scope::MEASURED,
        conditions: &[Condition::new(times)],
        ..Rule::ERROR
    },
    Rule {
        id: "cache-primed",
        title: "the prefix cache holds the prompts that were sent to fill it",
        finding: "prefix cache not primed",
        why: "A server that dropped these prefixes was measured with another cache.",
        since: None,
        conditions: &[Condition::new(missing_hits).invalid("cache-mismatch", CACHE_MISMATCH)],
        ..Rule::ERROR
    },
    Rule {
        id: "cache-not-empty",
        title: "a prefix cache that was reset is empty",
        finding: "prefix cache not empty",
        why: "Prompts that the cache still holds are not computed.",
        since: None,
        conditions: &[Condition::new(cache_empty)
            .degraded("cache-not-empty", "the prefix cache was reset and still held something")],
        ..Rule::WARNING
    },
    Rule {
        id: "cache-warm",
        title: "at most 5 % of the prompt tokens came from a prefix cache that earlier requests \
                filled",
        finding: "warm prefix cache",
        why: "Prompts that the cache holds are not computed: a scenario that is repeated on one \
              server can have a sixth of its TTFT. Another seed draws other prompts.",
        since: None,
        conditions: &[Condition::fresh(warm_hits).degraded(
            "cache-warm",
            "more than 5 % of the prompt tokens came from a prefix cache that was not known to be \
             empty, beyond what the run's own prompts share",
        )],
        ..Rule::WARNING
    },
];

fn complete(record: &RunRecord) -> Outcome {
    let Ok(value) = serde_json::to_value(record) else {
        return Some(Err("the record has no JSON form: a rate in it is not a number".to_owned()));
    };
    let mut missing = Vec::new();
    if record.status == Status::Failed && record.failure.is_none() {
        missing.push("failure".to_owned());
    }
    // Suites before v0.11 gave a reason for each null; later ones give none.
    if !record.absent.is_empty() {
        unexplained_nulls(&value, "", record, &mut missing);
    }
    claim(missing.is_empty(), || {
        let named = missing.iter().take(NAMED).map(|path| format!("`{path}`"));
        let more = missing.len().saturating_sub(NAMED);
        let tail = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!("null without a reason: {}{tail}", named.collect::<Vec<_>>().join(", "))
    })
}

/// Dotted paths of record fields that may be null without a stored reason. `checks` is one of them,
/// because a finding of a rule that passed has no detail.
const NEED_NO_REASON: [&str; 8] = [
    "checks",
    "correctness.reference",
    "engine.image_digest",
    "failure",
    "hardware.evidence",
    "model.revision",
    "server.variant",
    "source",
];

/// Appends to `found` the dotted paths of nulls in `value`, which lies at `path` of `record`,
/// except those of [`NEED_NO_REASON`] and those where the record gives a reason for the path or for
/// an object that contains it.
fn unexplained_nulls(value: &Value, path: &str, record: &RunRecord, found: &mut Vec<String>) {
    if NEED_NO_REASON.contains(&path) || record.absent.contains_key(path) {
        return;
    }
    let below = |key: &dyn Display| match path {
        "" => key.to_string(),
        _ => format!("{path}.{key}"),
    };
    match value {
        Value::Null => found.push(path.to_owned()),
        Value::Object(map) => {
            for (key, value) in map {
                unexplained_nulls(value, &below(key), record, found);
            }
        }
        Value::Array(list) => {
            for (index, value) in list.iter().enumerate() {
                unexplained_nulls(value, &below(&index), record, found);
            }
        }
        Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn provenance(record: &RunRecord) -> Outcome {
    let engine = &record.engine;
    if engine.dirty == Some(true) {
        return Some(Err("built from a working tree with changes".to_owned()));
    }
    let identified = engine.binary_sha256.as_deref().is_some_and(is_sha256)
        || engine.image_digest.as_deref().is_some_and(|digest| !digest.is_empty());
    claim(identified, || "neither `binary_sha256` nor `image_digest` is known".to_owned())
}

fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn hardware(record: &RunRecord) -> Outcome {
    let facts = &record.hardware;
    let mut missing = Vec::new();
    if on_cpu(record) {
        let empty = |text: &Option<String>| text.as_deref().is_none_or(str::is_empty);
        missing.extend(empty(&facts.cpu_model).then_some("cpu_model"));
        missing.extend(facts.cores.is_none_or(|cores| cores == 0).then_some("cores"));
        missing.extend(empty(&facts.kernel).then_some("kernel"));
    } else {
        let gpus = facts.gpu.as_deref().unwrap_or_default();
        missing.extend(gpus.is_empty().then_some("gpu"));
        missing.extend(gpus.iter().flat_map(gpu_gaps));
    }
    claim(missing.is_empty(), || format!("unknown: `{}`", missing.join("`, `")))
}

fn gpu_gaps(gpu: &Gpu) -> impl Iterator<Item = &'static str> {
    let gaps = [
        ("gpu.name", gpu.name.is_empty()),
        ("gpu.memory_bytes", gpu.memory_bytes.is_none()),
        ("gpu.driver", gpu.driver.is_none()),
        ("gpu.clocks_locked", gpu.clocks_locked.is_none()),
    ];
    gaps.into_iter().filter_map(|(name, gap)| gap.then_some(name))
}

fn times(record: &RunRecord) -> Outcome {
    let time = record.time.as_ref()?;
    let started = time.started_at.as_deref().and_then(unix_s_of)?;
    let planned = record.campaign.as_ref().and_then(|slot| ulid_unix_ms(&slot.id));
    let planned = planned.and_then(|ms| i64::try_from(ms / 1_000).ok());
    let finished = time.finished_at.as_deref().and_then(unix_s_of);
    let early = planned.filter(|planned| started < *planned);
    let back = finished.filter(|finished| *finished < started);
    claim(early.is_none() && back.is_none(), || match early {
        Some(planned) => format!("it was started {} s before its campaign", planned - started),
        None => format!("it ended {} s before it was started", started - back.unwrap_or(started)),
    })
}

/// Returns the prefix-cache hits of a run, the hits that its workload predicts, and the tolerated
/// difference, all in prompt tokens; `None` where the record lacks hits or prediction.
fn hits(record: &RunRecord) -> Option<(u64, u64, f64)> {
    let cache = record.cache.as_ref()?;
    let prompts = cache.query_tokens.or_else(|| record.counts.as_ref()?.input_tokens);
    let tolerance = HITS_SHARE * float(prompts.unwrap_or(0));
    Some((cache.hit_tokens?, cache.expected_hit_tokens?, tolerance))
}

/// Returns the state of the prefix cache that the scenario asks for; cold where the record has
/// none.
fn cache_intended(record: &RunRecord) -> CacheState {
    record.scenario.cache.map_or(CacheState::Cold, |cache| cache.state)
}

fn excess_hits(record: &RunRecord) -> Outcome {
    if cache_intended(record) == CacheState::Unknown {
        return None;
    }
    let (hits, expected, tolerance) = hits(record)?;
    claim(float(hits) <= float(expected) + tolerance, || {
        format!("{hits} prompt tokens came from the prefix cache, {expected} could")
    })
}

fn warm_hits(record: &RunRecord, evidence: &Evidence) -> Outcome {
    let cache = record.cache.as_ref()?;
    let is_judged_elsewhere = match cache_intended(record) {
        CacheState::Unknown => false,
        // Rule E12 judges a cold cache where the hits to expect are known, and is stricter.
        CacheState::Cold => cache.expected_hit_tokens.is_some(),
        CacheState::Primed => true,
    };
    if is_judged_elsewhere {
        return None;
    }
    let (hits, shared) = (cache.hit_tokens?, evidence.prompt_tokens_shared?);
    let queried = cache.query_tokens.filter(|tokens| *tokens > 0);
    let prompts = queried.or_else(|| record.counts.as_ref()?.input_tokens)?;
    let warm = hits.saturating_sub(shared);
    claim(float(warm) <= WARM_SHARE_MAX * float(prompts), || {
        format!(
            "{hits} of {prompts} prompt tokens came from the prefix cache, and the run's own \
             prompts share {shared} at most"
        )
    })
}

fn missing_hits(record: &RunRecord) -> Outcome {
    record.cache.as_ref()?.primed_tokens?;
    let (hits, expected, tolerance) = hits(record)?;
    claim(float(hits) + tolerance >= float(expected), || {
        format!("{hits} prompt tokens came from the prefix cache, {expected} should have")
    })
}

fn cache_empty(record: &RunRecord) -> Outcome {
    let cache = record.cache.as_ref()?;
    let left = cache_intended(record) == CacheState::Cold && cache.state == CacheState::Primed;
    claim(!left, || {
        "the prefix cache was emptied, and a second reset still found something".to_owned()
    })
}
