//! Run record: combines the facts of a finished or failed run into a `run.v1` record. Pure: no
//! clock, no files.

use schema::measurement::Measurement;
use schema::probe::Probe;
use schema::run::{
    CampaignSlot, EngineFacts, Failure, HardwareFacts, Kind, Memory, ModelFacts, RunRecord, SCHEMA,
    ScenarioFacts, ServerFacts, Status, Time, Validity, ValidityVerdict,
};
use schema::setup::ClientPlace;
use serde_json::Value;

use crate::catalog::ScenarioEntry;
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
    /// that was already running), environment, variant, and the time from start to ready, measured
    /// from outside.
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

/// Returns true unless the run of a record ended with status `ok` and is not INVALID.
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

/// Combines the model facts that the server reports with those that the campaign knows; the
/// server's are preferred because they describe what ran.
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

/// Returns the number of the machine's GPUs that worked during the measurement; `None` if they were
/// not sampled.
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
    facts.seed.get_or_insert(scenario.workload.seed);
    facts.requests.get_or_insert(scenario.workload.requests);
    facts.arrival.get_or_insert_with(|| scenario.arrival.clone());
    facts.warmup.get_or_insert_with(|| scenario.warmup.clone());
}

/// Marks the record as failed, or as partial if requests were answered. The campaign's description
/// of the failure replaces the load generator's, because the campaign observed the server as well.
fn fail(record: &mut RunRecord, failure: Failure) {
    let answered = record.counts.as_ref().and_then(|counts| counts.requests_ok).unwrap_or(0);
    record.status = if answered > 0 { Status::Partial } else { Status::Failed };
    let reason = format!("the run failed: {}", failure.message.lines().next().unwrap_or_default());
    let mut reasons = std::mem::take(&mut record.validity.reasons);
    reasons.push(reason);
    record.validity = Validity { verdict: ValidityVerdict::Invalid, reasons };
    record.failure = Some(failure);
}

#[cfg(test)]
mod tests;
