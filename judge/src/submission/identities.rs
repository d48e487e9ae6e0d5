//! Submission rules over names: one name stands for one thing, and no run is a copy of another.

use std::collections::BTreeMap;

use schema::run::RunRecord;

use super::{COPY, IDENTITY, Submission};
use crate::finding::Finding;

/// Number of samples from which equal histograms show a copy: few short waits can be equal by
/// chance.
const SAMPLES_MIN: u64 = 8;

/// Judges a submission by the rules B12 and B13.
pub(super) fn findings(submission: &Submission) -> Vec<Finding> {
    let mut found = names_of_two_things(submission);
    found.extend(copies(submission));
    found
}

/// Statement of a record that must be the same in all records: what is named, by which name, and
/// the value.
type Statement = (&'static str, String, String);

fn statements(record: &RunRecord) -> Vec<Statement> {
    let RunRecord { scenario, model, engine, hardware, .. } = record;
    let scenario_name = format!("{}@{}", scenario.id, scenario.rev);
    let release = format!("{} {}", engine.name, engine.release);
    let parts = match hardware.gpu.as_deref().unwrap_or_default() {
        [] => hardware.cpu_model.clone().zip(hardware.cores).map(|(cpu, n)| format!("{cpu}, {n}")),
        [gpu, ..] => Some(gpu.name.clone()),
    };
    // Each pair is stated both ways: a name has one file, and a file has one name.
    let pairs = [
        ("file of scenario", "scenario of file", &scenario_name, &scenario.file_sha256),
        ("weights of model", "model of weights", &model.id, &model.weights_sha256),
        ("commit of release", "release of commit", &release, &engine.commit),
        ("", "release of program", &release, &engine.binary_sha256),
        ("", "scenario of requests", &scenario_name, &scenario.manifest_sha256),
        ("processor of hardware", "", &hardware.id, &parts),
    ];
    let mut all = Vec::new();
    for (forth, back, name, value) in pairs {
        let Some(value) = value else { continue };
        if !forth.is_empty() {
            all.push((forth, name.clone(), value.clone()));
        }
        if !back.is_empty() {
            all.push((back, value.clone(), name.clone()));
        }
    }
    all
}

fn names_of_two_things(submission: &Submission) -> Vec<Finding> {
    let mut first: BTreeMap<(&str, String), (String, &str)> = BTreeMap::new();
    let mut found = Vec::new();
    for (run, is_submitted) in submission.all_runs() {
        for (what, name, value) in statements(&run.record) {
            let (known, path) =
                first.entry((what, name.clone())).or_insert((value.clone(), &run.path));
            if is_submitted && *known != value {
                let detail = format!("{what} `{name}` is `{value}`, and `{known}` in `{path}`");
                found.push(IDENTITY.breach(&run.path, detail));
            }
        }
    }
    found
}

fn copies(submission: &Submission) -> Vec<Finding> {
    let mut first: BTreeMap<String, &str> = BTreeMap::new();
    let mut found = Vec::new();
    for (run, is_submitted) in submission.all_runs() {
        let ok = run.record.counts.as_ref().and_then(|counts| counts.requests_ok);
        let Some(histograms) = &run.record.histograms else { continue };
        if ok.is_none_or(|ok| ok < SAMPLES_MIN) {
            continue;
        }
        // The distributions of latency that no two runs share; waits may all be zero.
        let latencies = [
            ("E2E", &histograms.e2e_us),
            ("TTFT", &histograms.ttft_us),
            ("ITL", &histograms.itl_chunk_us),
        ];
        let mut copied = None;
        for (name, histogram) in latencies {
            let Some(Ok(text)) = histogram.as_ref().map(serde_json::to_string) else { continue };
            let other = *first.entry(format!("{name} {text}")).or_insert(&run.path);
            if other != run.path {
                copied = Some((name, other));
            }
        }
        if let Some((name, other)) = copied.filter(|_| is_submitted) {
            let detail = format!("its latencies ({name}) are those of `{other}`");
            found.push(COPY.breach(&run.path, detail));
        }
    }
    found
}
