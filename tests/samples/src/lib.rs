//! Made-up run records for tests: sound by every rule, and the same bytes on every machine. They
//! say `simulated`.

pub mod alternation;
pub mod lab;
pub mod registry;
pub mod submission;

use std::collections::BTreeMap;

use schema::canonical::sha256_hex;
use schema::histogram::HdrHistogram;
use schema::id::ulid;
use schema::random::SplitMix64;
use schema::run::{
    CacheFacts, CacheState, CampaignSlot, ClientFacts, Correctness, Counts, EngineFacts, Failure,
    FailureClass, HardwareFacts, Histograms, Kind, Memory, Metrics, ModelFacts, Phase, PromptForm,
    RunRecord, SCHEMA, ScenarioFacts, ServerFacts, Status, Summary, Time, TokenSource,
};
use schema::scenario::{Arrival, Tier, Warmup, WarmupSource};
use schema::verdict::Stage;
use serde_json::Value;

use judge::quantile::quantile;

/// Tokens of every prompt and of every answer.
const TOKENS: u64 = 128;
/// Requests of the scenario.
const REQUESTS: u64 = 32;
/// 2026-01-01T00:00:00Z: ids of samples count seconds from here.
const EPOCH_MS: u64 = 1_767_225_600_000;

/// The file of a made-up lab: what slows, what helps and what does not start is up to each test.
pub const LAB: &str = r#"question = "Which options are worth it?"
rev = 1
target = "cpu"
model = "smollm2-135m-instruct-q4_1"
profiles = ["lab-sharegpt-lite", "lab-throughput-lite"]
objective = { metric = "total_tokens_per_s" }
engines = [{ id = "redline", version = "v0.9.2", flags = ["--threads", "2"] }]
combine = "staged"
budget = { runs = 400 }

[[axes]]
name = "batch"
engine = "redline"
options = [{ name = "4", flags = ["--max-batch-size", "4"] }]

[[axes]]
name = "kv"
engine = "redline"
options = [{ name = "f16", flags = ["--kv-dtype", "f16"] }, { name = "fp8", flags = ["--kv-dtype=fp8"] }]
"#;

/// What a made-up run is to look like.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    pub engine: String,
    pub release: String,
    pub hardware: String,
    pub model: String,
    pub scenario: String,
    /// Makes the id; two samples of one registry differ in it.
    pub serial: u64,
    /// Campaign id, block and position within the block.
    pub campaign: (String, u32, u32),
    /// `confirm` for a launch that confirms.
    pub stage: Option<Stage>,
    pub repeat: u32,
    /// Twice the speed halves every time.
    pub speed: f64,
    /// Noise of the times.
    pub seed: u64,
    /// Requests that failed, of 32.
    pub failed: u64,
    /// Flags that differ from the defaults.
    pub flags: BTreeMap<String, Value>,
    /// Further words of the server's command.
    pub argv: Vec<String>,
    /// Data type in which the server computes with the weights.
    pub dtype: String,
}

impl Default for Sample {
    fn default() -> Self {
        Self {
            engine: "redline".to_owned(),
            release: "v0.9.1".to_owned(),
            hardware: "cpu-example-simulated-f6m1s1-2c".to_owned(),
            model: "smollm2-135m-instruct-q4_1".to_owned(),
            scenario: "balanced-lite".to_owned(),
            serial: 1,
            campaign: (ulid(EPOCH_MS, 1), 0, 0),
            stage: None,
            repeat: 1,
            speed: 1.0,
            seed: 1,
            failed: 0,
            flags: BTreeMap::new(),
            argv: Vec::new(),
            dtype: "f32".to_owned(),
        }
    }
}

/// Id of the made-up campaign number `serial`.
pub fn campaign_id(serial: u64) -> String {
    ulid(EPOCH_MS + serial * 1_000, u128::from(serial))
}

impl Sample {
    /// The record, judged and sealed.
    pub fn record(&self) -> RunRecord {
        let mut record = RunRecord {
            schema: SCHEMA.to_owned(),
            id: ulid(EPOCH_MS + self.serial * 1_000, u128::from(self.serial) << 16),
            kind: Kind::Simulated,
            status: if self.failed > 0 { Status::Partial } else { Status::Ok },
            campaign: Some(CampaignSlot {
                id: self.campaign.0.clone(),
                block: self.campaign.1,
                position: self.campaign.2,
                repeat: self.repeat,
                executor: "local".to_owned(),
                stage: self.stage,
                server_runs_before: None,
            }),
            engine: self.engine_facts(),
            server: Some(self.server_facts()),
            model: self.model_facts(),
            scenario: self.scenario_facts(),
            hardware: self.hardware_facts(),
            client: Some(client_facts()),
            cache: Some(CacheFacts {
                state: CacheState::Cold,
                emptied: Some(true),
                query_tokens: Some(REQUESTS * TOKENS),
                hit_tokens: Some(0),
                expected_hit_tokens: Some(0),
                ..CacheFacts::default()
            }),
            memory: Some(Memory { rss_bytes_max: Some(400 << 20), gpu_bytes_max: None }),
            correctness: Some(Correctness {
                prompts: Some(8),
                tokens_sha256: Some(sha256_hex(b"tokens")),
                ids_source: None,
                reference: None,
                agreement: Some(1.0),
                ..Correctness::default()
            }),
            ..RunRecord::default()
        };
        self.measure(&mut record);
        explain(&mut record);
        reseal(record)
    }

    /// A run of the same cell whose server ran out of memory while it loaded: no figures.
    pub fn failed_record(&self) -> RunRecord {
        let mut record = self.record();
        record.status = Status::Failed;
        record.failure = Some(Failure {
            class: FailureClass::Oom,
            phase: Phase::Load,
            message: "the server ended before it was ready".to_owned(),
        });
        record.absent.clear();
        for group in ["time", "client", "cache", "counts", "histograms", "metrics", "correctness"] {
            record.absent.insert(group.to_owned(), "the server never became ready".to_owned());
        }
        (record.time, record.client, record.cache) = (None, None, None);
        (record.counts, record.histograms, record.metrics) = (None, None, None);
        record.correctness = None;
        explain(&mut record);
        reseal(record)
    }

    fn engine_facts(&self) -> EngineFacts {
        EngineFacts {
            name: self.engine.clone(),
            release: self.release.clone(),
            commit: Some(sha256_hex(self.release.as_bytes())[..40].to_owned()),
            dirty: Some(false),
            binary_sha256: Some(sha256_hex(self.release.as_bytes())),
            features: Some(Vec::new()),
            toolchain: Some("rustc 1.95.0".to_owned()),
            image_digest: None,
            ..EngineFacts::default()
        }
    }

    fn server_facts(&self) -> ServerFacts {
        let mut config: BTreeMap<String, Value> = BTreeMap::from([
            ("cache-max-entry-count".to_owned(), Value::from(0.8)),
            ("max-batch-size".to_owned(), Value::from(128)),
            ("max-prefill-token-num".to_owned(), Value::from(512)),
        ]);
        config.extend(self.flags.clone());
        let config_sha256 = schema::canonical::sha256_of(&config).ok();
        let argv = ["serve", "{model}", "--port", "{port}"].map(str::to_owned).into_iter();
        ServerFacts {
            argv: Some(argv.chain(self.argv.iter().cloned()).collect()),
            env: Some(BTreeMap::new()),
            config: Some(config),
            config_sha256,
            variant: None,
            tp: Some(1),
            device: Some("cpu".to_owned()),
            max_batch_size: Some(128),
            kv_bytes: Some(64 << 20),
            kv_dtype: Some("f32".to_owned()),
            prefix_cache: Some(true),
            startup_us: Some(250_000),
            weights_load_us: Some(90_000),
            ..ServerFacts::default()
        }
    }

    fn model_facts(&self) -> ModelFacts {
        ModelFacts {
            id: self.model.clone(),
            source: Some("path".to_owned()),
            revision: None,
            weights: Some("real".to_owned()),
            weights_sha256: Some(sha256_hex(self.model.as_bytes())),
            format: Some("gguf".to_owned()),
            dtype: Some(self.dtype.clone()),
            parameters: Some(134_515_008),
            tokenizer_sha256: Some(sha256_hex(b"tokenizer")),
            ..ModelFacts::default()
        }
    }

    fn scenario_facts(&self) -> ScenarioFacts {
        ScenarioFacts {
            id: self.scenario.clone(),
            rev: 1,
            tier: Tier::Lite,
            file_sha256: Some(sha256_hex(self.scenario.as_bytes())),
            manifest_sha256: Some(sha256_hex(format!("{}@1", self.scenario).as_bytes())),
            prompt_form: Some(PromptForm::TokenIds),
            dataset_sha256: Some(sha256_hex(b"dataset")),
            seed: Some(1),
            requests: Some(REQUESTS),
            arrival: Some(Arrival::AllAtOnce),
            warmup: Some(Warmup {
                requests: 2,
                from: WarmupSource::Disjoint,
                output_tokens_max: None,
            }),
            ..ScenarioFacts::default()
        }
    }

    fn hardware_facts(&self) -> HardwareFacts {
        HardwareFacts {
            id: self.hardware.clone(),
            claimed: false,
            evidence: None,
            gpu: Some(Vec::new()),
            cpu_model: Some("Example CPU, simulated".to_owned()),
            cpu_features: Some(vec!["avx2".to_owned()]),
            cores: Some(2),
            ram_bytes: Some(8 << 30),
            kernel: Some("6.1.0".to_owned()),
            ..HardwareFacts::default()
        }
    }

    /// Fills in the groups that a client measures.
    fn measure(&self, record: &mut RunRecord) {
        let ok = REQUESTS.saturating_sub(self.failed);
        let requests = self.requests(ok);
        let ttft: Vec<u64> = requests.iter().map(|request| request.ttft_us).collect();
        let e2e: Vec<u64> = requests.iter().map(Request::e2e_us).collect();
        let gaps: Vec<u64> = requests.iter().flat_map(|request| request.gaps_us.clone()).collect();
        let tpot: Vec<u64> =
            requests.iter().map(|request| request.streaming_us() / (TOKENS - 1)).collect();
        let wall_us = e2e.iter().copied().max().unwrap_or(1);
        let per_s = |count: u64| count as f64 * 1e6 / wall_us as f64;
        let tokens = ok * TOKENS;
        record.time = Some(Time {
            started_at: Some("2026-01-01T00:00:00Z".to_owned()),
            finished_at: Some("2026-01-01T00:00:30Z".to_owned()),
            wall_us: Some(wall_us),
            window_us: None,
            ramp_us: Some(ttft.iter().copied().max().unwrap_or(0)),
            drain_us: Some(wall_us - e2e.iter().copied().min().unwrap_or(wall_us)),
        });
        record.counts = Some(counts(ok, self.failed));
        record.metrics = Some(Metrics {
            requests_per_s: Some(per_s(ok)),
            input_tokens_per_s: Some(per_s(tokens)),
            output_tokens_per_s: Some(per_s(tokens)),
            total_tokens_per_s: Some(per_s(2 * tokens)),
            output_tokens_per_s_peak: Some(best_second(&requests) as f64),
            concurrency_mean: Some(e2e.iter().sum::<u64>() as f64 / wall_us as f64),
            goodput_per_s: Some(BTreeMap::new()),
            ttft_us: Some(summary(&ttft)),
            tpot_us: Some(summary(&tpot)),
            itl_chunk_us: Some(summary(&gaps)),
            itl_token_us: Some(summary(&gaps)),
            e2e_us: Some(summary(&e2e)),
            ..Metrics::default()
        });
        let stored = |samples: &[u64]| HdrHistogram::from_samples(samples.iter().copied()).ok();
        let zeros = vec![0; requests.len()];
        record.histograms = Some(Histograms {
            ttft_us: stored(&ttft),
            ttft_scheduled_us: stored(&ttft),
            tpot_us: stored(&tpot),
            itl_chunk_us: stored(&gaps),
            itl_token_us: stored(&gaps),
            e2e_us: stored(&e2e),
            e2e_scheduled_us: stored(&e2e),
            queue_us: stored(&zeros),
            connect_us: stored(&zeros),
            schedule_lag_us: stored(&zeros),
        });
    }

    fn requests(&self, ok: u64) -> Vec<Request> {
        let mut noise = SplitMix64(self.seed);
        let mut scaled = |base: u64, spread: u64| {
            ((base + noise.draw() % spread) as f64 / self.speed).round() as u64
        };
        (0..ok)
            .map(|index| Request {
                ttft_us: scaled(200_000 + 12_000 * index, 5_000),
                gaps_us: (1..TOKENS).map(|_| scaled(19_000, 2_000)).collect(),
            })
            .collect()
    }
}

/// Judges and seals a record again after a test has changed it.
pub fn reseal(mut record: RunRecord) -> RunRecord {
    judge::seal(&mut record).expect("made-up figures are numbers");
    record
}

/// A request that was answered, with one gap between any two tokens.
struct Request {
    ttft_us: u64,
    gaps_us: Vec<u64>,
}

impl Request {
    fn streaming_us(&self) -> u64 {
        self.gaps_us.iter().sum()
    }

    fn e2e_us(&self) -> u64 {
        self.ttft_us + self.streaming_us()
    }
}

fn client_facts() -> ClientFacts {
    ClientFacts {
        name: Some("redline-bench".to_owned()),
        version: Some("0.1.0".to_owned()),
        cpu_share_p95: Some(0.12),
        loop_lag_us_p99: Some(150),
        kernel_timestamps: Some(true),
        kernel_to_user_us_p99: Some(60),
        coalesced_read_share: Some(0.0),
        schedule_lag_us_p99: Some(90),
        streams_max: Some(REQUESTS),
        ..ClientFacts::default()
    }
}

fn counts(ok: u64, failed: u64) -> Counts {
    let classes = (failed > 0).then(|| ("timeout".to_owned(), failed));
    let tokens = Some(ok * TOKENS);
    Counts {
        requests_planned: Some(ok + failed),
        requests_ok: Some(ok),
        requests_failed: Some(failed),
        failures: Some(classes.into_iter().collect()),
        finish_reasons: Some(BTreeMap::from([("length".to_owned(), ok)])),
        input_tokens: tokens,
        output_tokens_requested: tokens,
        output_tokens_reported: tokens,
        output_tokens_retokenized: tokens,
        output_chunks: tokens,
        token_source: Some(TokenSource::Usage),
        ..Counts::default()
    }
}

/// Reasons for everything that a sample leaves out.
fn explain(record: &mut RunRecord) {
    let reasons = [
        ("time.window_us", "shorter than 10 s"),
        ("metrics.output_tokens_per_s_steady", "shorter than 10 s"),
        ("metrics.output_tokens_per_s_per_gpu", "no GPU"),
        ("metrics.joules_per_output_token", "no GPU"),
        ("memory.gpu_bytes_max", "no GPU"),
        ("telemetry", "no GPU"),
        ("calibration", "not probed"),
    ];
    let reasons = reasons.map(|(path, reason)| (path.to_owned(), reason.to_owned()));
    record.absent.extend(reasons);
}

/// Mean, deviation and percentiles, linear between order statistics.
fn summary(samples: &[u64]) -> Summary {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    let Some((&max, count)) = sorted.last().zip(Some(sorted.len() as f64)) else {
        return Summary::default();
    };
    let mean = sorted.iter().sum::<u64>() as f64 / count;
    let square = |sample: &u64| (*sample as f64 - mean).powi(2);
    let std = (sorted.iter().map(square).sum::<f64>() / count).sqrt();
    let percentile = |share: f64| Some(quantile(&sorted, share)?.round() as u64);
    Summary {
        mean: Some(mean.round() as u64),
        std: Some(std.round() as u64),
        p50: percentile(0.5),
        p90: percentile(0.9),
        p95: percentile(0.95),
        p99: percentile(0.99),
        max: Some(max),
        ..Summary::default()
    }
}

/// Most tokens in any sliding second.
fn best_second(requests: &[Request]) -> usize {
    let times = |request: &Request| {
        let gaps = request.gaps_us.clone().into_iter();
        let later = gaps.scan(request.ttft_us, |at, gap| {
            *at += gap;
            Some(*at)
        });
        std::iter::once(request.ttft_us).chain(later).collect::<Vec<_>>()
    };
    let mut times: Vec<u64> = requests.iter().flat_map(times).collect();
    times.sort_unstable();
    let mut first = 0;
    let counts = (0..times.len()).map(|last| {
        while times[last] - times[first] >= 1_000_000 {
            first += 1;
        }
        last - first + 1
    });
    counts.max().unwrap_or(0)
}
