//! Run record: combines the facts of a finished or failed run into a `run.v1` record, and classifies
//! failures. An engine's failure is a result: it is recorded and never retried. Pure: no clock, no
//! files.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use schema::measurement::Measurement;
use schema::probe::Probe;
use schema::run::{
    CampaignSlot, EngineFacts, Failure, FailureClass, HardwareFacts, Kind, Memory, ModelFacts,
    Phase, RunRecord, SCHEMA, ScenarioFacts, ServerFacts, Status, Time, Validity, ValidityVerdict,
};
use schema::setup::ClientPlace;
use serde_json::Value;

use crate::catalog::ScenarioEntry;
use crate::process::describe;
use crate::redact::Identity;

/// Names of server flags that differ between runs without changing the configuration, such as the
/// port. They are left out of the record's server configuration and of its hash.
const PLACES: &[&str] = &["api-key-file", "host", "model", "model-name", "port", "profile"];

/// All facts of a run from which its record is built.
#[derive(Debug, Clone)]
pub struct Parts<'a> {
    pub id: &'a str,
    pub campaign: CampaignSlot,
    pub engine: EngineFacts,
    pub scenario: &'a ScenarioEntry,
    pub dataset_sha256: Option<&'a str>,
    pub hardware: HardwareFacts,
    /// Facts about the server that the campaign itself knows: its command line (`None` for a server
    /// that was already running), environment, variant, tensor-parallel size, and the time from
    /// start to ready, measured from outside.
    pub started: ServerFacts,
    pub model: ModelFacts,
    pub probe: Option<Probe>,
    pub measurement: Option<Measurement>,
    pub failure: Option<Failure>,
    pub rss_bytes_max: Option<u64>,
    pub started_at: String,
    pub finished_at: String,
    /// Names of host and user, which are removed from the record.
    pub identity: &'a Identity,
}

/// Builds a record from the facts of a run; `judge::seal` adds findings and hash.
pub fn assemble(parts: Parts<'_>) -> RunRecord {
    let mut record = RunRecord {
        schema: SCHEMA.to_owned(),
        id: parts.id.to_owned(),
        kind: Kind::Measured,
        campaign: Some(parts.campaign),
        engine: parts.engine,
        hardware: parts.hardware,
        memory: Some(Memory { rss_bytes_max: parts.rss_bytes_max, gpu_bytes_max: None }),
        ..RunRecord::default()
    };
    let Probe { server, model, .. } = parts.probe.unwrap_or_default();
    record.server = Some(server_facts(server, parts.started, parts.identity));
    record.model = model_facts(model, parts.model);
    if let Some(measurement) = parts.measurement {
        measurement.fill(&mut record);
    }
    if let (Some(memory), Some(telemetry)) = (&mut record.memory, &record.telemetry) {
        memory.gpu_bytes_max = telemetry.gpu_memory_used_bytes_max();
    }
    fill_scenario(&mut record.scenario, parts.scenario, parts.dataset_sha256);
    let started = record.server.as_ref().is_some_and(|server| server.argv.is_some());
    let gpus_used = if started { gpus_used(&record) } else { None };
    if let (Some(server), Some(_)) = (&mut record.server, gpus_used) {
        server.parallel.get_or_insert_default().gpus_used = gpus_used;
    }
    if let Some(client) = &mut record.client {
        let sockets_max = client.streams_max;
        let place = ClientPlace { sockets_max, stream: Some(true), ..ClientPlace::default() };
        client.place = Some(ClientPlace { same_host: started.then_some(true), ..place });
    }
    let time = record.time.get_or_insert_with(Time::default);
    time.started_at.get_or_insert(parts.started_at);
    time.finished_at.get_or_insert(parts.finished_at);
    if let Some(failure) = parts.failure {
        fail(&mut record, failure);
    }
    record
}

/// Returns true if the run of a record did not end with status `ok`, or its verdict is INVALID.
pub fn is_bad(record: &RunRecord) -> bool {
    record.status != Status::Ok || record.validity.verdict == ValidityVerdict::Invalid
}

fn server_facts(reported: ServerFacts, started: ServerFacts, identity: &Identity) -> ServerFacts {
    // A configuration may contain paths, which include user names.
    let clean = |(flag, value): (String, Value)| match value {
        Value::String(text) => (flag, Value::String(identity.redact(&text))),
        other => (flag, other),
    };
    let config = reported.config.map(|config| {
        let kept = config.into_iter().filter(|(flag, _)| !PLACES.contains(&flag.as_str()));
        kept.map(clean).collect()
    });
    ServerFacts {
        config,
        argv: started.argv,
        env: started.env,
        variant: started.variant,
        tp: reported.tp.or(started.tp),
        // The server's own figure is finer.
        startup_us: reported.startup_us.or(started.startup_us),
        ..reported
    }
}

/// Combines the model facts that the server reports with those that the campaign knows. Id, source,
/// quantization and chat template are the campaign's; of the others the server's are preferred,
/// because they describe what ran.
fn model_facts(reported: ModelFacts, known: ModelFacts) -> ModelFacts {
    ModelFacts {
        id: known.id,
        source: known.source,
        revision: reported.revision.or(known.revision),
        weights: reported.weights.or(known.weights),
        weights_sha256: reported.weights_sha256.or(known.weights_sha256),
        format: reported.format.or(known.format),
        dtype: reported.dtype,
        parameters: reported.parameters,
        tokenizer_sha256: reported.tokenizer_sha256,
        ..known
    }
}

/// Returns the number of the machine's GPUs that worked during the measurement, 0 on a machine
/// without GPUs; `None` if they were not sampled.
fn gpus_used(record: &RunRecord) -> Option<u32> {
    if record.hardware.gpu.as_ref()?.is_empty() {
        return Some(0);
    }
    let gpus = record.telemetry.as_ref()?.gpus.as_ref()?;
    u32::try_from(gpus.iter().filter(|gpu| gpu.worked).count()).ok()
}

fn fill_scenario(facts: &mut ScenarioFacts, entry: &ScenarioEntry, dataset_sha256: Option<&str>) {
    let scenario = &entry.scenario;
    facts.id = entry.id.clone();
    facts.rev = scenario.rev;
    facts.tier = scenario.tier;
    facts.file_sha256.get_or_insert_with(|| entry.file_sha256.clone());
    facts.dataset_sha256 = facts.dataset_sha256.take().or(dataset_sha256.map(str::to_owned));
    facts.dataset.clone_from(&scenario.workload.dataset);
    facts.seed.get_or_insert(scenario.workload.seed);
    facts.requests.get_or_insert(scenario.workload.requests);
    facts.arrival.get_or_insert_with(|| scenario.arrival.clone());
    facts.warmup.get_or_insert_with(|| scenario.warmup.clone());
}

/// Marks the record as INVALID and as failed, or as partial if requests were answered. The
/// campaign's class and message of the failure replace the load generator's, because the campaign
/// observed the server as well.
fn fail(record: &mut RunRecord, failure: Failure) {
    let answered = record.counts.as_ref().and_then(|counts| counts.requests_ok).unwrap_or(0);
    record.status = if answered > 0 { Status::Partial } else { Status::Failed };
    let reason = format!("the run failed: {}", failure.message.lines().next().unwrap_or_default());
    let mut reasons = std::mem::take(&mut record.validity.reasons);
    reasons.push(reason);
    record.validity =
        Validity { verdict: ValidityVerdict::Invalid, reasons, ..Validity::default() };
    record.failure = Some(failure);
}

/// Failure of a run, as the campaign observed it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Happening {
    /// The server's process ended, with this status, before the server was ready.
    ExitedBeforeReady(ExitStatus),
    /// The server was not ready within `limit_s` seconds; `said` is its last answer to a probe, or
    /// why there was none.
    NotReady { limit_s: u64, said: String },
    /// The server's answer about its own configuration cannot be parsed, for this reason.
    Unreadable(String),
    /// The server runs, but reports another version than the one that was started.
    OtherVersion { expected: String, found: String },
    /// The server's process ended, with this status, during the measurement.
    Died(ExitStatus),
    /// The server does not answer after the load generator has failed, and its process, if this job
    /// started it, runs; the text says how the last probe failed.
    Silent(String),
    /// The load generator did not end within `limit_s` seconds.
    Stuck { limit_s: u64 },
}

const SIGKILL: i32 = 9;
/// Exit code of servers for a flag or value that they do not support.
const REFUSED: i32 = 2;

/// Classifies a failure of a run and writes its message, with the end of the server's log. `phase`
/// is how far the load generator had come, if known.
pub fn classify(
    happening: &Happening,
    phase: Option<Phase>,
    log_tail: &str,
    identity: &Identity,
) -> Failure {
    let during = phase.unwrap_or(Phase::Measure);
    let (class, phase, what) = match happening {
        Happening::ExitedBeforeReady(status) => {
            let class = match status.code() {
                // Argument parsers, Rust's and Python's, exit with 2 for an unknown flag or value.
                Some(REFUSED) => FailureClass::Unsupported,
                _ => death(*status, log_tail),
            };
            let what = format!("the server ended with {} before it was ready", describe(*status));
            (class, Phase::Load, what)
        }
        Happening::NotReady { limit_s, said } => {
            let what = format!("the server was not ready after {limit_s} s: {said}");
            (FailureClass::Hang, Phase::Load, what)
        }
        Happening::Unreadable(said) => {
            let what = format!("the server's description of itself cannot be read: {said}");
            (FailureClass::BadOutput, Phase::Load, what)
        }
        Happening::OtherVersion { expected, found } => {
            let what = format!("the server reports version {found}, expected {expected}");
            (FailureClass::Infrastructure, Phase::Load, what)
        }
        Happening::Died(status) => {
            let what = format!("the server ended with {} during the run", describe(*status));
            (death(*status, log_tail), during, what)
        }
        Happening::Silent(said) => {
            let what = format!("the server runs and no longer answers: {said}");
            (FailureClass::Hang, during, what)
        }
        Happening::Stuck { limit_s } => {
            let what = format!("the run did not end within {limit_s} s");
            (FailureClass::Hang, during, what)
        }
    };
    let mut message = identity.redact(&what);
    let tail = identity.tail(log_tail);
    if !tail.is_empty() {
        message.push_str("\nlast lines of the server:\n");
        message.push_str(&tail);
    }
    Failure { class, phase, message }
}

/// Classifies the death of a server. SIGKILL without a request to end can only come from the
/// kernel's out-of-memory killer; other deaths name memory in the log or are crashes.
fn death(status: ExitStatus, log_tail: &str) -> FailureClass {
    let log = log_tail.to_lowercase();
    let says_memory = ["out of memory", "cannot allocate memory", "memory allocation of"]
        .iter()
        .any(|needle| log.contains(needle));
    if status.signal() == Some(SIGKILL) || says_memory {
        FailureClass::Oom
    } else {
        FailureClass::Crash
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod failure_tests {
    use super::*;

    fn exit(code: i32) -> ExitStatus {
        ExitStatus::from_raw(code << 8)
    }

    fn signal(number: i32) -> ExitStatus {
        ExitStatus::from_raw(number)
    }

    #[test]
    fn every_way_to_fail_has_its_class_and_phase() {
        use FailureClass as C;
        for (happening, log, class, phase) in [
            (Happening::ExitedBeforeReady(exit(1)), "", C::Crash, Phase::Load),
            (Happening::ExitedBeforeReady(exit(2)), "", C::Unsupported, Phase::Load),
            (Happening::ExitedBeforeReady(signal(9)), "", C::Oom, Phase::Load),
            (Happening::ExitedBeforeReady(signal(11)), "", C::Crash, Phase::Load),
            (Happening::Died(exit(101)), "CUDA: Out of memory", C::Oom, Phase::Measure),
            (
                Happening::Died(signal(6)),
                "memory allocation of 9 bytes failed",
                C::Oom,
                Phase::Measure,
            ),
            (Happening::Died(exit(0)), "", C::Crash, Phase::Measure),
            (Happening::NotReady { limit_s: 5, said: String::new() }, "", C::Hang, Phase::Load),
            (Happening::Unreadable("x".into()), "", C::BadOutput, Phase::Load),
            (Happening::Silent("x".into()), "", C::Hang, Phase::Measure),
            (Happening::Stuck { limit_s: 9 }, "", C::Hang, Phase::Measure),
        ] {
            let failure = classify(&happening, None, log, &Identity::default());
            assert_eq!((failure.class, failure.phase), (class, phase), "{happening:?}");
        }
        let warm =
            classify(&Happening::Died(exit(1)), Some(Phase::Warmup), "", &Identity::default());
        assert_eq!(warm.phase, Phase::Warmup);
    }

    #[test]
    fn the_message_ends_with_the_servers_last_words_without_paths() {
        let happening = Happening::ExitedBeforeReady(exit(4));
        let log = "loading\nerror: cannot read `/home/ada/m.gguf`: cut short\n";
        let failure = classify(&happening, None, log, &Identity::default());
        assert_eq!(
            failure.message,
            "the server ended with exit code 4 before it was ready\n\
             last lines of the server:\n\
             loading\nerror: cannot read `{path}/m.gguf`: cut short"
        );
    }
}
