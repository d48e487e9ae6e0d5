//! Quality rules over what a record states about itself: no unexplained gaps, build and machine
//! identified, times in order, prefix cache as cold as claimed.

use schema::event::unix_s_of;
use schema::id::ulid_unix_ms;
use schema::run::{Gpu, Level, RunRecord, Status, unexplained_nulls};

use super::{claim, float};
use crate::rule::{Finding, Rule, Scope, on_cpu};

/// Number of unexplained nulls that a finding lists before it says "and more".
const NAMED: usize = 6;

/// Share of query tokens by which prefix-cache hits may exceed the hits that the workload's own
/// repeats predict.
pub const EXCESS_HITS_MAX: f64 = 0.01;

pub(super) const COMPLETE: Rule = Rule {
    id: "E02",
    title: "every field is known or says why not",
    why: "A missing figure without a reason cannot be told from one that was forgotten.",
    level: Level::Error,
    level_on_cpu: Level::Error,
    since: 1,
    scope: Scope::ALL,
    look: complete,
};

pub(super) const PROVENANCE: Rule = Rule {
    id: "E10",
    title: "the measured program is a clean build that its hash identifies",
    why: "Figures of a program that nobody can build again cannot be checked or repaired.",
    level: Level::Error,
    level_on_cpu: Level::Error,
    since: 1,
    scope: Scope::MEASURED,
    look: provenance,
};

pub(super) const HARDWARE: Rule = Rule {
    id: "E11",
    title: "the machine is described: driver, memory and clocks of a GPU, else CPU, cores, kernel",
    why: "The same GPU name covers parts that differ by a factor; drivers and clocks move figures.",
    level: Level::Error,
    level_on_cpu: Level::Error,
    since: 1,
    scope: Scope::MEASURED,
    look: hardware,
};

pub(super) const PREFIX_HITS: Rule = Rule {
    id: "E12",
    title: "no more prefix-cache hits than the workload's own repeats explain",
    why: "A seeded workload repeated on a warm server measured the cache: published cases read \
          up to 2.3 times too fast.",
    level: Level::Error,
    level_on_cpu: Level::Error,
    since: 1,
    scope: Scope::MEASURED_FIGURES,
    look: prefix_hits,
};

pub(super) const TIMES: Rule = Rule {
    id: "E18",
    title: "it was started after its campaign was planned, and ended after it was started",
    why: "A run of another time than its campaign's is no part of the comparison, and a clock that \
          went back measured nothing.",
    level: Level::Error,
    level_on_cpu: Level::Error,
    since: 5,
    scope: Scope::MEASURED,
    look: times,
};

fn complete(record: &RunRecord) -> Finding {
    let Ok(value) = serde_json::to_value(record) else {
        return Some(Err("the record has no JSON form: a rate in it is not a number".to_owned()));
    };
    let mut missing = unexplained_nulls(&value);
    if record.status == Status::Failed && record.failure.is_none() {
        missing.insert(0, "failure".to_owned());
    }
    Some(claim(missing.is_empty(), || {
        let named = missing.iter().take(NAMED).map(|path| format!("`{path}`"));
        let more = missing.len().saturating_sub(NAMED);
        let tail = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!("null without a reason: {}{tail}", named.collect::<Vec<_>>().join(", "))
    }))
}

fn provenance(record: &RunRecord) -> Finding {
    let engine = &record.engine;
    if engine.dirty == Some(true) {
        return Some(Err("built from a working tree with changes".to_owned()));
    }
    let identified = engine.binary_sha256.as_deref().is_some_and(is_sha256)
        || engine.image_digest.as_deref().is_some_and(|digest| !digest.is_empty());
    Some(claim(identified, || "neither `binary_sha256` nor `image_digest` is known".to_owned()))
}

fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn hardware(record: &RunRecord) -> Finding {
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
    Some(claim(missing.is_empty(), || format!("unknown: `{}`", missing.join("`, `"))))
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

fn times(record: &RunRecord) -> Finding {
    let time = record.time.as_ref()?;
    let started = time.started_at.as_deref().and_then(unix_s_of)?;
    let planned = record.campaign.as_ref().and_then(|slot| ulid_unix_ms(&slot.id));
    let planned = planned.and_then(|ms| i64::try_from(ms / 1_000).ok());
    let finished = time.finished_at.as_deref().and_then(unix_s_of);
    let early = planned.filter(|planned| started < *planned);
    let back = finished.filter(|finished| *finished < started);
    Some(claim(early.is_none() && back.is_none(), || match early {
        Some(planned) => format!("it was started {} s before its campaign", planned - started),
        None => format!("it ended {} s before it was started", started - back.unwrap_or(started)),
    }))
}

fn prefix_hits(record: &RunRecord) -> Finding {
    let cache = record.cache.as_ref()?;
    let (query, hit) = (cache.query_tokens?, cache.hit_tokens?);
    let expected = cache.expected_hit_tokens.unwrap_or(0);
    let excess = hit.saturating_sub(expected);
    Some(claim(float(excess) <= EXCESS_HITS_MAX * float(query), || {
        format!(
            "{hit} of {query} prompt tokens came from the cache, the workload predicts {expected}"
        )
    }))
}
