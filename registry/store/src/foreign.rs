//! Runs in the formats of other projects' dashboards: PyTorch's benchmark format, which the PyTorch
//! HUD shows, and the results that InferenceX shows.
//!
//! PyTorch's keys are those of `benchmark.oss_ci_benchmark_v3` in the repository pytorch/test-infra
//! (`clickhouse_db_schema`), InferenceX's those of `utils/process_result.py` at 843c6254 in the
//! repository SemiAnalysisAI/InferenceX. Columns about a change and its CI job (`repo`, `head_sha`,
//! `workflow_id` and the like) are left to the program that uploads to PyTorch's table. A column of
//! texts gets texts, and a key whose value is not known is left out, or empty where InferenceX needs
//! it. Names of figures are those of vLLM's result files, which both
//! take over. A figure that a rule calls INVALID is left out. ITL is left out as well: both mean gaps
//! between chunks, and records have gaps between tokens.

use judge::validity::{headline, is_presentable, value};
use schema::id::ulid_unix_ms;
use schema::metric::by_name;
use schema::path::config_name;
use schema::run::{Kind, RunRecord};
use schema::scenario::Arrival;
use serde_json::{Map, Value, json};

/// Rates, each with its name in records, in result files of vLLM and, per GPU, in those of
/// InferenceX, which have no rate of requests.
const RATES: &[(&str, &str, Option<&str>)] = &[
    ("requests_per_s", "request_throughput", None),
    ("input_tokens_per_s", "input_throughput", Some("input_tput_per_gpu")),
    ("output_tokens_per_s", "output_throughput", Some("output_tput_per_gpu")),
    ("total_tokens_per_s", "total_token_throughput", Some("tput_per_gpu")),
];
/// Latencies, each with the stem of its names in records and in result files.
const LATENCIES: &[(&str, &str)] = &[("ttft_us", "ttft"), ("tpot_us", "tpot"), ("e2e_us", "e2el")];
/// Statistics of latencies, each with its name in records and in result files.
const STATISTICS: &[(&str, &str)] =
    &[("mean", "mean"), ("p50", "median"), ("p95", "p95"), ("p99", "p99")];
const MICROSECONDS_PER_MS: f64 = 1e3;
const MICROSECONDS_PER_S: f64 = 1e6;
const BYTES_PER_GB: u64 = 1_000_000_000;

/// True for a run that is exported: this suite measured it, and its figures may be shown.
fn is_exported(run: &RunRecord) -> bool {
    run.kind == Kind::Measured && is_presentable(run)
}

/// Returns the rates of a run that may be shown, per second, each with its names in result files of
/// vLLM and InferenceX.
fn rates(run: &RunRecord) -> impl Iterator<Item = (&'static str, Option<&'static str>, f64)> {
    RATES.iter().filter_map(move |(own, vllm, per_gpu)| Some((*vllm, *per_gpu, shown(own, run)?)))
}

/// Returns the latencies of a run that may be shown, by statistic and quantity, in microseconds.
fn latencies(run: &RunRecord) -> impl Iterator<Item = (&'static str, &'static str, f64)> {
    LATENCIES.iter().flat_map(move |(own, theirs)| {
        STATISTICS.iter().filter_map(move |(statistic, name)| {
            Some((*name, *theirs, shown(&format!("{own}_{statistic}"), run)?))
        })
    })
}

fn shown(name: &str, run: &RunRecord) -> Option<f64> {
    value(by_name(name)?, run)
}

/// Formats runs in PyTorch's benchmark format: a list with an object for each metric of a run.
pub fn pytorch_hud<'a>(runs: impl Iterator<Item = &'a RunRecord>) -> Value {
    runs.filter(|run| is_exported(run)).flat_map(metrics_of).collect()
}

fn metrics_of(run: &RunRecord) -> Vec<Value> {
    let mut shared = json!({
        "timestamp": ulid_unix_ms(&run.id).map(|ms| ms / 1000),
        "schema_version": "v3",
        "benchmark": {
            "name": "Redline",
            "mode": "inference",
            "dtype": run.model.dtype,
            "extra_info": {
                "scenario": format!("{}@{}", run.scenario.id, run.scenario.rev),
                "configuration": config_name(run),
                "validity": headline(run).name(),
                "record": run.id,
                "record_sha256": run.record_sha256,
            },
        },
        "model": {
            "name": run.model.id,
            "type": run.model.weights,
            "backend": run.engine.name,
            "origins": run.model.source.iter().collect::<Vec<_>>(),
        },
        "runners": [runner(run)],
        "dependencies": {
            (run.engine.name.clone()): { "version": run.engine.release, "sha": run.engine.commit },
        },
    });
    drop_unknown(&mut shared);
    let info = counts(run);
    let figures = rates(run).map(|(name, _, value)| (name.to_owned(), value));
    let times = latencies(run).map(|(statistic, quantity, us)| {
        (format!("{statistic}_{quantity}_ms"), us / MICROSECONDS_PER_MS)
    });
    let object = |(name, value): (String, f64)| {
        let mut object = shared.clone();
        object["metric"] = json!({ "name": name, "benchmark_values": [value], "extra_info": info });
        object
    };
    figures.chain(times).map(object).collect()
}

/// Removes keys whose value is not known, at any depth: a column has its default then.
fn drop_unknown(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, value| !value.is_null());
            map.values_mut().for_each(drop_unknown);
        }
        Value::Array(list) => list.iter_mut().for_each(drop_unknown),
        _ => {}
    }
}

/// Returns the numbers of requests and tokens of a run, and its duration in seconds, as texts by their
/// names in result files; those that are not known are left out.
#[expect(clippy::cast_precision_loss, reason = "times of a run are far below 2^53 us")]
fn counts(run: &RunRecord) -> Map<String, Value> {
    let counts = run.counts.clone().unwrap_or_default();
    let wall = run.time.as_ref().and_then(|time| time.wall_us);
    let named = [
        ("completed", counts.requests_ok.map(|count| count.to_string())),
        ("failed", counts.requests_failed.map(|count| count.to_string())),
        ("total_input_tokens", counts.input_tokens.map(|count| count.to_string())),
        ("total_output_tokens", counts.output_tokens_reported.map(|count| count.to_string())),
        ("duration", wall.map(|us| (us as f64 / MICROSECONDS_PER_S).to_string())),
    ];
    let known = named.into_iter().filter_map(|(name, text)| Some((name.to_owned(), text?.into())));
    known.collect()
}

fn runner(run: &RunRecord) -> Value {
    let hardware = &run.hardware;
    let gpus = hardware.gpu.as_deref().unwrap_or_default();
    let gpu_bytes = gpus.iter().map(|gpu| gpu.memory_bytes).sum::<Option<u64>>();
    json!({
        "name": hardware.id,
        "type": hardware.id,
        "cpu_info": hardware.cpu_model,
        "cpu_count": hardware.cores,
        "avail_mem_in_gb": hardware.ram_bytes.map(|bytes| bytes / BYTES_PER_GB),
        "gpu_info": gpus.first().map(|gpu| &gpu.name),
        "gpu_count": gpus.len(),
        "avail_gpu_mem_in_gb": gpu_bytes.map(|bytes| bytes / BYTES_PER_GB),
    })
}

/// Formats runs as InferenceX's results, an object for each. Its figures are per GPU at a concurrency,
/// so a run without a GPU or without a limit of its concurrency is left out.
pub fn inferencex<'a>(runs: impl Iterator<Item = &'a RunRecord>) -> Value {
    runs.filter(|run| is_exported(run)).filter_map(result_of).collect()
}

fn result_of(run: &RunRecord) -> Option<Value> {
    let concurrency = match run.scenario.arrival.as_ref()? {
        Arrival::Closed { concurrency } => *concurrency,
        Arrival::Constant { concurrency_max, .. }
        | Arrival::Poisson { concurrency_max, .. }
        | Arrival::Gamma { concurrency_max, .. } => (*concurrency_max)?,
        _ => return None,
    };
    let server = run.server.as_ref()?;
    let ranks =
        server.tp.filter(|_| !run.hardware.gpu.as_deref().unwrap_or_default().is_empty())?;
    let config = server.config.as_ref();
    let drafts = config.and_then(|config| config.get("speculative-algorithm")?.as_str());
    let counts = run.counts.as_ref()?;
    // Its lengths are those that were requested; a record has those of the requests that were answered.
    let mean = |tokens: Option<u64>| tokens?.checked_div(counts.requests_ok?);
    let mut result = json!({
        "hw": run.hardware.id,
        "conc": concurrency,
        "image": run.engine.build.as_ref().and_then(|build| build.image.clone()).unwrap_or_default(),
        "model": run.model.id,
        "infmax_model_prefix": run.model.id,
        "framework": run.engine.name,
        "precision": run.model.dtype.clone().unwrap_or_default(),
        "spec_decoding": drafts.unwrap_or("none"),
        "disagg": false,
        "recipe_fingerprint": server.config_sha256.clone().unwrap_or_default(),
        "isl": mean(counts.input_tokens)?,
        "osl": mean(counts.output_tokens_reported)?,
        "is_multinode": false,
        "tp": ranks,
        "pp": 1,
        "dcp_size": 1,
        "pcp_size": 1,
        "ep": 1,
        "dp_attention": "false",
    });
    for (_, per_gpu, value) in rates(run) {
        if let Some(key) = per_gpu {
            result[key] = (value / f64::from(ranks)).into();
        }
    }
    for (statistic, quantity, us) in latencies(run) {
        result[format!("{statistic}_{quantity}")] = (us / MICROSECONDS_PER_S).into();
        if quantity == "tpot" && us > 0.0 {
            result[format!("{statistic}_intvty")] = (MICROSECONDS_PER_S / us).into();
        }
    }
    Some(result)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use samples::Sample;
    use schema::run::Gpu;

    use super::*;

    /// Test helper: returns a measured run of four users on two GPUs.
    fn run() -> RunRecord {
        let mut run = RunRecord { kind: Kind::Measured, ..Sample::default().record() };
        let gpu = Gpu { name: "NVIDIA H200".to_owned(), ..Gpu::default() };
        run.hardware.gpu = Some(vec![gpu.clone(), gpu]);
        run.server.as_mut().unwrap().tp = Some(2);
        run.scenario.arrival = Some(Arrival::Closed { concurrency: 4 });
        run
    }

    fn of(name: &str, run: &RunRecord) -> f64 {
        by_name(name).unwrap().value(run).unwrap()
    }

    #[test]
    fn the_hud_has_an_object_for_each_figure() {
        let run = run();
        let exported = pytorch_hud([&run].into_iter());
        let objects = exported.as_array().unwrap();
        let values = |name: &str| {
            let found = objects.iter().find(|object| object["metric"]["name"] == name);
            found.map(|object| object["metric"]["benchmark_values"].clone())
        };
        assert_eq!(values("median_ttft_ms"), Some(json!([of("ttft_us_p50", &run) / 1e3])));
        assert_eq!(values("output_throughput"), Some(json!([of("output_tokens_per_s", &run)])));
        assert_eq!(objects[0]["runners"][0]["gpu_count"], 2);
        assert_eq!(objects[0]["metric"]["extra_info"]["completed"], "32");
    }

    /// Test helper: adds the path and the type of each value of `value` to `found`. A list's items are
    /// `[]`, and keys that a table does not name are `*`.
    fn shape(value: &Value, path: &str, found: &mut BTreeSet<String>) {
        let below = |key: &str| match path {
            "" => key.to_owned(),
            "dependencies" => "dependencies.*".to_owned(),
            _ if path.ends_with("extra_info") => format!("{path}.*"),
            _ => format!("{path}.{key}"),
        };
        let kind = match value {
            Value::Object(map) => {
                return map.iter().for_each(|(key, value)| shape(value, &below(key), found));
            }
            Value::Array(list) => {
                return list.iter().for_each(|value| shape(value, &format!("{path}[]"), found));
            }
            Value::String(_) => "text",
            Value::Bool(_) => "flag",
            Value::Number(number) if number.is_u64() => "count",
            Value::Number(_) => "number",
            Value::Null => "null",
        };
        found.insert(format!("{path}: {kind}"));
    }

    /// Columns of PyTorch's table, with their types.
    const HUD: &[&str] = &[
        "timestamp: count",
        "schema_version: text",
        "name: text",
        "repo: text",
        "head_branch: text",
        "head_sha: text",
        "workflow_id: count",
        "run_attempt: count",
        "job_id: count",
        "servicelab_experiment_id: count",
        "servicelab_trial_id: count",
        "runners[].name: text",
        "runners[].type: text",
        "runners[].cpu_info: text",
        "runners[].cpu_count: count",
        "runners[].mem_info: text",
        "runners[].avail_mem_in_gb: count",
        "runners[].gpu_info: text",
        "runners[].gpu_count: count",
        "runners[].gpu_mem_info: text",
        "runners[].avail_gpu_mem_in_gb: count",
        "runners[].extra_info.*: text",
        "benchmark.name: text",
        "benchmark.mode: text",
        "benchmark.dtype: text",
        "benchmark.extra_info.*: text",
        "model.name: text",
        "model.type: text",
        "model.backend: text",
        "model.origins[]: text",
        "model.extra_info.*: text",
        "dependencies.*.repo: text",
        "dependencies.*.branch: text",
        "dependencies.*.sha: text",
        "dependencies.*.version: text",
        "dependencies.*.extra_info.*: text",
        "metric.name: text",
        "metric.benchmark_values[]: number",
        "metric.target_value: number",
        "metric.extra_info.*: text",
    ];
    /// Columns that the export does not fill: those of the change and of its CI job, which the uploader
    /// knows, and what no record has.
    const NOT_OURS: &[&str] = &[
        "name",
        "repo",
        "head_branch",
        "head_sha",
        "workflow_id",
        "run_attempt",
        "job_id",
        "servicelab_experiment_id",
        "servicelab_trial_id",
        "runners[].mem_info",
        "runners[].gpu_mem_info",
        "runners[].extra_info.*",
        "model.extra_info.*",
        "dependencies.*.repo",
        "dependencies.*.branch",
        "dependencies.*.extra_info.*",
        "metric.target_value",
    ];

    /// Test helper: returns a run that knows all that the exports can state.
    fn whole() -> RunRecord {
        let mut run = run();
        let gpu =
            Gpu { memory_bytes: Some(141_000_000_000), ..run.hardware.gpu.unwrap().remove(0) };
        run.hardware.gpu = Some(vec![gpu.clone(), gpu]);
        (run.hardware.cpu_model, run.hardware.cores) = (Some("x86".to_owned()), Some(8));
        run.hardware.ram_bytes = Some(64_000_000_000);
        run.model.weights = Some("bf16".to_owned());
        run.model.source = Some("org/model".to_owned());
        run.engine.commit = Some("1a2b3c".to_owned());
        run
    }

    #[test]
    fn the_hud_gets_the_columns_of_its_table_in_their_types() {
        let columns: BTreeSet<String> = HUD.iter().map(|column| (*column).to_owned()).collect();
        let wanted = columns
            .iter()
            .filter(|column| NOT_OURS.iter().all(|name| column.split(':').next() != Some(name)));
        let mut found = BTreeSet::new();
        for object in pytorch_hud([&whole()].into_iter()).as_array().unwrap() {
            shape(object, "", &mut found);
        }
        assert_eq!(found.iter().collect::<Vec<_>>(), wanted.collect::<Vec<_>>());
        let mut bare = run();
        (bare.model.dtype, bare.model.weights, bare.model.source) = (None, None, None);
        (bare.hardware.cpu_model, bare.hardware.cores) = (None, None);
        let mut less = BTreeSet::new();
        for object in pytorch_hud([&bare].into_iter()).as_array().unwrap() {
            shape(object, "", &mut less);
        }
        assert!(less.is_subset(&columns), "nothing is null: {less:?}");
    }

    #[test]
    fn inferencex_gets_the_keys_of_its_script_in_their_types() {
        let mut wanted: BTreeSet<String> = [
            "hw: text",
            "conc: count",
            "image: text",
            "model: text",
            "infmax_model_prefix: text",
            "framework: text",
            "precision: text",
            "spec_decoding: text",
            "disagg: flag",
            "recipe_fingerprint: text",
            "isl: count",
            "osl: count",
            "is_multinode: flag",
            "tp: count",
            "pp: count",
            "dcp_size: count",
            "pcp_size: count",
            "ep: count",
            "dp_attention: text",
            "tput_per_gpu: number",
            "output_tput_per_gpu: number",
            "input_tput_per_gpu: number",
        ]
        .map(str::to_owned)
        .into();
        // The script takes over every latency of vLLM's result, and the inverse of TPOT.
        for statistic in ["mean", "median", "p95", "p99"] {
            for quantity in ["ttft", "tpot", "e2el", "intvty"] {
                wanted.insert(format!("{statistic}_{quantity}: number"));
            }
        }
        let mut bare = run();
        (bare.model.dtype, bare.server.as_mut().unwrap().config_sha256) = (None, None);
        bare.engine.build = None;
        for run in [whole(), bare] {
            let mut found = BTreeSet::new();
            shape(&inferencex([&run].into_iter())[0], "", &mut found);
            assert_eq!(found, wanted);
        }
    }

    #[test]
    fn inferencex_has_figures_per_gpu_and_times_in_seconds() {
        let run = run();
        let exported = inferencex([&run].into_iter());
        let result = &exported[0];
        assert_eq!(result["tput_per_gpu"], json!(of("total_tokens_per_s", &run) / 2.0));
        assert_eq!(result["conc"], 4);
        assert_eq!(result["mean_ttft"], json!(of("ttft_us_mean", &run) / 1e6));
        assert_eq!(result["p99_intvty"], json!(1e6 / of("tpot_us_p99", &run)));
    }

    #[test]
    fn what_is_invalid_or_made_up_is_not_exported() {
        let none = json!([]);
        let mut invalid = run();
        invalid.counts.as_mut().unwrap().output_tokens_reported = Some(1);
        judge::seal(&mut invalid).unwrap();
        assert_eq!(pytorch_hud([&invalid].into_iter()), none);
        let made_up = RunRecord { kind: Kind::Simulated, ..run() };
        assert_eq!(pytorch_hud([&made_up].into_iter()), none);
        let mut on_cpu = run();
        on_cpu.hardware.gpu = Some(Vec::new());
        assert_eq!(inferencex([&on_cpu].into_iter()), none);
        let mut at_once = run();
        at_once.scenario.arrival = Some(Arrival::AllAtOnce);
        assert_eq!(inferencex([&at_once].into_iter()), none);
    }
}
