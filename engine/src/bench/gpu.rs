//! `redline bench` on a GPU: steps as the server runs them, and single kernels, compared with
//! hardware limits measured in the same process.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use super::steps::{self, Decode, Prefill, Speeds, Timed, pages_each};
use super::{BenchError, BenchFlags, Subject, shown};
use crate::config::PAGE_TOKENS;
use crate::launch::random_seed;
use crate::load::{LoadError, LoadOptions, load_on};
use crate::say::say;
use engine_core::clock::Clock;
use engine_cuda::driver::gpu::Gpu;
use engine_cuda::driver::{Cubins, Driver};
use engine_cuda::generation;
use engine_cuda::limits::{Limits, Sizes};
use engine_cuda::table::cases::{Case, standard};
use engine_cuda::table::{LAYERS_BYTES, Measured, Table};
use engine_weights::{Checkpoint, ModelSource};

/// Report of one GPU: figures of a model, of kernels, or of both.
#[derive(Debug, Serialize)]
struct Report {
    engine: &'static str,
    version: &'static str,
    device: &'static str,
    device_name: String,
    /// GPU architecture for which kernels were compiled, such as `sm_90a`.
    isa: &'static str,
    #[serde(flatten)]
    steps: Option<Steps>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kernels: Vec<Kernel>,
    limits: Reached,
    /// Reason for each missing figure, by its path in the report.
    absent: BTreeMap<&'static str, &'static str>,
}

/// Figures of a model's prefill and decoding steps.
#[derive(Debug, Serialize)]
struct Steps {
    model: String,
    dtype: &'static str,
    prefill: Vec<Prefill>,
    decode: Vec<Decode>,
}

/// Figures of one kernel case, an element of `benches` in a `kernel.v1` record.
#[derive(Debug, Serialize)]
struct Kernel {
    op: &'static str,
    shape: String,
    dtype: &'static str,
    isa: &'static str,
    device: &'static str,
    median_ns: f64,
    mad_ns: f64,
    samples: usize,
    bytes: u64,
    flops: u64,
    limit_share: f64,
}

/// Measured hardware limits of the GPU, with which figures are compared.
#[derive(Debug, Serialize)]
struct Reached {
    bf16_flops_per_s: f64,
    read_bytes_per_s: f64,
    /// Version of the GEMM library that may compute matrix multiplications; none where it is not
    /// installed.
    library: Option<String>,
}

/// Opens the first GPU, measures what `flags` select, and returns the report as text.
///
/// # Errors
/// The GPU cannot be opened, or the model cannot be loaded or run.
pub(super) fn run(
    subject: Subject<'_>,
    flags: &BenchFlags,
    cubins: &Cubins,
    clock: Clock,
) -> Result<String, BenchError> {
    // Looked up first, so that a wrong model name is reported before a minute of measuring.
    let source = match subject.model {
        None if flags.kernels => None,
        _ => Some(subject.source()?),
    };
    let driver: Arc<dyn Driver> = Gpu::open(0, cubins)?;
    let bench = Bench { driver, cubins, clock };
    let limits = Limits::measure(&bench.driver, cubins.choices.clone(), Sizes::FULL)?;
    let cases = if flags.kernels { standard() } else { Vec::new() };
    Ok(shown(&bench.report(source, flags, limits, &cases)?, flags.json))
}

/// Open GPU with what its measurements need.
struct Bench<'a> {
    driver: Arc<dyn Driver>,
    cubins: &'a Cubins,
    clock: Clock,
}

impl Bench<'_> {
    /// Measures the kernel cases, and the steps of a model if one is given.
    fn report(
        &self,
        source: Option<ModelSource>,
        flags: &BenchFlags,
        limits: Limits,
        cases: &[Case],
    ) -> Result<Report, BenchError> {
        let facts = self.driver.facts();
        let mut absent = BTreeMap::new();
        let library = self.driver.blas().map(|blas| blas.version().to_owned());
        if library.is_none() {
            absent.insert("limits.library", "cuBLASLt is not installed");
        }
        let kernels = self.kernels(limits, cases)?;
        let steps = source.map(|source| self.steps(source, flags, limits)).transpose()?;
        let decode = steps.iter().flat_map(|steps| &steps.decode);
        if decode.into_iter().any(|row| row.limit_share.is_none()) {
            let reason = "which experts a step reads is known on the device only";
            absent.insert("decode.limit_share", reason);
        }
        Ok(Report {
            engine: "redline",
            version: env!("CARGO_PKG_VERSION"),
            device: "cuda",
            device_name: facts.name.clone(),
            isa: generation(facts.capability),
            steps,
            kernels,
            limits: Reached {
                bf16_flops_per_s: limits.bf16_flops_per_s,
                read_bytes_per_s: limits.read_bytes_per_s,
                library,
            },
            absent,
        })
    }

    /// Measures the kernel cases one after another, and prints each result at once.
    fn kernels(&self, limits: Limits, cases: &[Case]) -> Result<Vec<Kernel>, BenchError> {
        let kept = self.cubins.choices.clone();
        let table = Table { driver: &self.driver, kept, limits, layers_bytes: LAYERS_BYTES };
        let isa = generation(self.driver.facts().capability);
        let one = |case: &Case| {
            let Measured { timing, bytes, flops, limit_share, .. } = table.measure(*case)?;
            let kernel = Kernel {
                op: case.op(),
                shape: case.shape(),
                dtype: case.dtype(),
                isa,
                device: "cuda",
                median_ns: timing.median_ns,
                mad_ns: timing.mad_ns,
                samples: timing.samples,
                bytes,
                flops,
                limit_share,
            };
            // Printed at once, because all cases together take minutes and the user may stop
            // earlier.
            say(format_args!("{kernel}"));
            Ok(kernel)
        };
        cases.iter().map(one).collect()
    }

    /// Loads the model and measures its steps.
    fn steps(
        &self,
        source: ModelSource,
        flags: &BenchFlags,
        limits: Limits,
    ) -> Result<Steps, BenchError> {
        let seed = random_seed(flags.load_format);
        let cubins = self.cubins.clone();
        let options = LoadOptions { random_seed: seed, cubins, ..LoadOptions::default() };
        let checkpoint = Checkpoint::open(&source.files, seed).map_err(LoadError::from)?;
        let free_before = self.driver.memory()?.free;
        let mut model = load_on(Arc::clone(&self.driver), &checkpoint, &options)?;
        let weight_bytes = free_before.saturating_sub(self.driver.memory()?.free);
        let info = model.info().clone();
        let pages_each = pages_each(flags, &info)?;
        let widest = flags.batches.iter().map(|batch| batch.get()).max().unwrap_or(1);
        let longest = flags.prompts.iter().chain([&flags.context]).map(|tokens| tokens.get());
        model.profile_run(longest.max().unwrap_or(1), widest)?;
        model.allocate_kv(widest * pages_each, PAGE_TOKENS)?;
        model.allocate_states(widest)?;
        let speeds = Speeds {
            ops_per_s: limits.bf16_flops_per_s,
            read_bytes_per_s: limits.read_bytes_per_s,
            // Which experts a step reads is known on the device only.
            weight_bytes: (!info.has_experts).then_some(weight_bytes as f64),
        };
        let mut timed = Timed { model: model.as_mut(), pages_each, clock: self.clock };
        let (prefill, decode) = timed.rows(flags, &speeds)?;
        Ok(Steps { model: source.id, dtype: info.compute_dtype, prefill, decode })
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { op, shape, dtype, median_ns, mad_ns, bytes, flops, limit_share, .. } = self;
        write!(
            f,
            "{op:<14} {shape:<34} {dtype:<6} {:>9.2} us +- {:<6.2} {:>7.1} GB/s {:>8.2} Tflop/s {:>4.0} % of its limit",
            median_ns / 1e3,
            mad_ns / 1e3,
            *bytes as f64 / median_ns,
            *flops as f64 / median_ns / 1e3,
            limit_share * 100.0
        )
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { engine, version, device_name, isa, steps, kernels, limits, .. } = self;
        match steps {
            Some(Steps { model, dtype, .. }) => {
                writeln!(f, "{engine} {version} {model} in {dtype}")?
            }
            None => writeln!(f, "{engine} {version}")?,
        }
        let library = limits.library.as_deref().unwrap_or("no GEMM library");
        writeln!(f, "{device_name} ({isa}, {library})")?;
        writeln!(
            f,
            "limits: {:.0} Tflop/s in bf16, memory reads {:.1} GB/s",
            limits.bf16_flops_per_s / 1e12,
            limits.read_bytes_per_s / 1e9
        )?;
        if let Some(Steps { dtype, prefill, decode, .. }) = steps {
            steps::write(f, dtype, prefill, decode)?;
        }
        kernels.iter().try_for_each(|kernel| writeln!(f, "{kernel}"))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::Value;

    use super::*;
    use crate::emulated::{Emulated, Script};
    use engine_cuda::launch::matmul::MatrixType;

    const LIMITS: Limits = Limits { read_bytes_per_s: 1e9, bf16_flops_per_s: 1e12 };

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        flags: BenchFlags,
    }

    fn flags(words: &[&str]) -> BenchFlags {
        Line::parse_from([&["bench"], words].concat()).flags
    }

    fn config(more: &str) -> tempfile::TempDir {
        let folder = tempfile::TempDir::new().unwrap();
        let text = format!(
            r#"{{"hidden_size": 64, "intermediate_size": 64, "head_dim": 32, "num_attention_heads": 2,
            "num_key_value_heads": 1, "num_hidden_layers": 1, "vocab_size": 96,
            "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
            "tie_word_embeddings": false, "hidden_act": "silu", "attention_bias": false,
            "torch_dtype": "bfloat16", {more}}}"#
        );
        std::fs::write(folder.path().join("config.json"), text).unwrap();
        folder
    }

    const DENSE: &str = r#""architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3""#;
    const EXPERTS: &str = r#""architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
        "moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2,
        "norm_topk_prob": true, "decoder_sparse_step": 1, "mlp_only_layers": []"#;

    /// Report of an emulated GPU on which every kernel takes 2 µs.
    fn report(source: Option<ModelSource>, words: &[&str], cases: &[Case]) -> Option<Report> {
        let script = Script { ns: |_| 2000.0, ..Script::default() };
        let driver: Arc<dyn Driver> = Emulated::with(1 << 30, script)?;
        let bench = Bench { driver, cubins: &Cubins::default(), clock: Clock::start() };
        Some(bench.report(source, &flags(words), LIMITS, cases).unwrap())
    }

    fn json(report: &Report) -> Value {
        serde_json::from_str(&shown(report, true)).unwrap()
    }

    const STEPS: [&str; 10] =
        ["--load-format", "random", "-p", "5,20", "-n", "4", "-b", "1,3", "--context", "7"];

    #[test]
    fn steps_of_a_gpu_run_ahead_and_have_shares_of_its_limits() {
        for (model, has_share) in [(DENSE, true), (EXPERTS, false)] {
            let folder = config(model);
            let source = ModelSource::find(folder.path().to_str().unwrap(), None).unwrap();
            let Some(report) = report(Some(source), &STEPS, &[]) else { return };
            let text = shown(&report, false);
            let json = json(&report);
            assert_eq!([&json["device"], &json["dtype"]], ["cuda", "bf16"]);
            for (kind, is_positive) in [("prefill", true), ("decode", has_share)] {
                let rows = json[kind].as_array().unwrap();
                assert_eq!(rows.len(), 2, "{json}");
                for row in rows {
                    assert!(row["tokens_per_s"].as_f64().unwrap() > 0.0, "{row}");
                    let share = row["limit_share"].as_f64();
                    assert_eq!(share.is_some_and(|share| share > 0.0), is_positive, "{row}");
                }
            }
            assert_eq!(json["absent"]["decode.limit_share"].is_string(), !has_share);
            assert!(json["absent"]["limits.library"].is_string() && json.get("kernels").is_none());
            assert_eq!(text.lines().count(), 7, "{text}");
        }
    }

    #[test]
    fn kernels_are_what_a_record_of_kernels_holds() {
        let case = Case::Product { matrix_type: MatrixType::Bf16, rows: 20, n: 64, k: 128 };
        let Some(report) = report(None, &["--kernels"], &[case]) else { return };
        let json = json(&report);
        let kernel = &json["kernels"][0];
        assert_eq!(
            [&kernel["op"], &kernel["shape"], &kernel["dtype"]],
            ["matmul", "T20_K128_N64", "bf16"]
        );
        assert_eq!([&kernel["isa"], &kernel["device"]], ["sm_80", "cuda"]);
        assert_eq!(kernel["median_ns"], 2000.0);
        assert_eq!(kernel["flops"], 2 * 20 * 64 * 128);
        assert!(kernel["limit_share"].as_f64().unwrap() > 0.0);
        assert!(json.get("model").is_none() && json.get("prefill").is_none(), "{json}");
        assert!(shown(&report, false).contains("2.00 us"), "{report}");
    }
}
