//! `redline bench` on a GPU: steps as the server runs them, and single kernels, compared with
//! hardware limits measured in the same process.

use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use anyhow::{Result, bail};
use serde::Serialize;
use serde_json::json;

use super::cases::Case;
use super::check::CaseCheck;
use super::list;
use super::setup::{LEFT_OUT, Make, Names, Setup};
use super::steps::{Speeds, Timed};
use super::{BenchFlags, Report};
use crate::load::{LoadError, LoadOptions, load_on, log_libraries};
use crate::log;
use engine_core::DeviceError;
use engine_core::clock::Clock;
use engine_cuda::Cuda;
use engine_cuda::driver::gpu::Gpu;
use engine_cuda::driver::{Cubins, Driver};
use engine_cuda::generation;
use engine_cuda::limits::{Limits, Sizes};
use engine_cuda::occupancy::{Occupancy, occupancies};
use engine_cuda::stopwatch::Stopwatch;
use engine_weights::{Checkpoint, ModelSource};

/// Number of timed runs of a kernel case, whose median is reported.
const SAMPLES: usize = 11;
/// Smallest number of calls of a kernel case in one timed run, so that a run is long compared with
/// the resolution of a CUDA event.
const CALLS_MIN: usize = 4;
/// Memory in bytes that the layers of a kernel case may fill together with weights, KV pages,
/// states or activations; a case with one larger layer exceeds it.
const LAYERS_BYTES: usize = 256 << 20;

/// Measurement of one kernel case: an element of `benches` in a `kernel.v1` record.
#[derive(Debug, Serialize)]
pub(super) struct Kernel {
    op: &'static str,
    shape: String,
    dtype: String,
    isa: &'static str,
    device: &'static str,
    median_ns: f64,
    mad_ns: f64,
    samples: usize,
    bytes: u64,
    flops: u64,
    limit_share: f64,
    /// Comparison with the reference; `None` without `--check`.
    #[serde(skip_serializing_if = "Option::is_none")]
    check: Option<CaseCheck>,
}

/// Opens the first GPU, and measures the model if one is given, and the kernels if `flags` say so.
///
/// # Errors
/// The GPU cannot be opened, fails or does not have enough memory; the model cannot be loaded or
/// run; or the lengths in `flags` exceed the model's context.
pub(super) fn run(
    source: Option<ModelSource>,
    flags: &BenchFlags,
    cubins: &Cubins,
    clock: Clock,
) -> Result<Report> {
    let bench = Bench { driver: Gpu::open(0, cubins)?, cubins, clock };
    log_libraries(bench.driver.blas().is_none());
    let limits = Limits::measure(&bench.driver, cubins.choices.clone(), Sizes::FULL)?;
    let mut cases = if flags.kernels { list::gpu() } else { Vec::new() };
    if flags.check {
        cases.extend(list::checks());
    }
    bench.report(source, flags, limits, &cases)
}

/// GPU that was opened for measurements, with the cache of compiled kernels and the time source
/// that they need.
pub(super) struct Bench<'a> {
    pub(super) driver: Arc<dyn Driver>,
    pub(super) cubins: &'a Cubins,
    pub(super) clock: Clock,
}

impl Bench<'_> {
    /// Measures the kernel cases, and the steps of a model if one is given, and returns the report.
    /// Prints the occupancy of kernels first.
    pub(super) fn report(
        &self,
        source: Option<ModelSource>,
        flags: &BenchFlags,
        limits: Limits,
        cases: &[Make<Cuda>],
    ) -> Result<Report> {
        let facts = self.driver.facts();
        let isa = generation(facts.capability);
        let low_occupancy = self.low_occupancy()?;
        let (kernels, failed_cases) = self.kernels(flags, limits, cases)?;
        let device = Report::new("cuda", facts.name.clone());
        let mut report = match source {
            Some(source) => self.steps(source, flags, limits, device)?,
            None => device,
        };
        let library = self.driver.blas().map(|blas| blas.version().to_owned());
        let Limits { bf16_flops_per_s, read_bytes_per_s } = limits;
        report.device_lines = format!(
            "{} ({isa}, {})\nlimits: {:.0} Tflop/s in bf16, memory reads {:.1} GB/s",
            facts.name,
            library.as_deref().unwrap_or("no GEMM library"),
            bf16_flops_per_s / 1e12,
            read_bytes_per_s / 1e9
        );
        // `library` is the version of the GEMM library that may compute matrix multiplications.
        let limits = json!({
            "bf16_flops_per_s": bf16_flops_per_s, "read_bytes_per_s": read_bytes_per_s,
            "library": library,
        });
        Ok(Report { isa: Some(isa), kernels, low_occupancy, failed_cases, limits, ..report })
    }

    /// Prints how many blocks of each kernel a multiprocessor runs at once, as the driver says, and
    /// returns the kernels whose grids assume more.
    fn low_occupancy(&self) -> Result<Vec<&'static str>> {
        let all = occupancies(&*self.driver)?;
        all.iter().for_each(|occupancy| log::log_lines(&occupancy.to_string()));
        let low = all.iter().filter(|occupancy| !occupancy.is_enough());
        Ok(low.map(|Occupancy { entry, .. }| *entry).collect())
    }

    /// Measures the kernel cases one after another, and prints each result to standard error at
    /// once, because all of them take minutes and the user may stop earlier. Returns the
    /// measurements, and with `--check` the number of cases that failed or are wrong.
    fn kernels(
        &self,
        flags: &BenchFlags,
        limits: Limits,
        cases: &[Make<Cuda>],
    ) -> Result<(Vec<Kernel>, usize)> {
        let (mut kernels, mut failed) = (Vec::new(), 0);
        for (index, make) in cases.iter().enumerate() {
            let (filter, is_printed) = (flags.filter.clone(), flags.check);
            let names = Rc::new(Names { filter, is_printed, ..Names::default() });
            let setup = Setup { names: Some(Rc::clone(&names)), ..self.setup(LAYERS_BYTES) };
            let kernel = make(setup).and_then(|case| self.kernel(limits, case, flags.check));
            match kernel {
                Ok(kernel) => {
                    log::log_lines(&kernel.to_string());
                    failed += usize::from(kernel.check.as_ref().is_some_and(|one| !one.is_within));
                    kernels.push(kernel);
                }
                Err(error) if error.operation == LEFT_OUT => {}
                Err(error) if flags.check => {
                    failed += 1;
                    log::log_lines(&format!("{}: FAILED: {error}", names.current.borrow()));
                    // An access to memory that is not allocated ends all work of the process.
                    if let Err(error) = self.driver.wait_all() {
                        let left = cases.len() - index - 1;
                        log(format_args!(
                            "the GPU takes no more work of this process ({error}): {left} cases are \
                             left out"
                        ));
                        break;
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        // A misspelt filter would otherwise pass as a check of nothing.
        if let (Some(text), true, 0) = (&flags.filter, kernels.is_empty(), failed) {
            bail!(
                "`--filter` selects no kernel: none has `{text}` in its line; hint: without it the \
                 lines of all are printed"
            );
        }
        Ok((kernels, failed))
    }

    /// Creates a device object on the opened GPU for one case. The weights, KV pages, states or
    /// activations of the case's layers take at most `memory` bytes together, unless one layer
    /// takes more.
    pub(super) fn setup(&self, memory: usize) -> Setup<Cuda> {
        let device = Cuda::new(Arc::clone(&self.driver)).keeping(self.cubins.choices.clone());
        Setup::new(device, memory)
    }

    /// Measures a kernel case, after comparing its results with the reference if `is_checked`.
    fn kernel(
        &self,
        limits: Limits,
        mut case: Case,
        is_checked: bool,
    ) -> Result<Kernel, DeviceError> {
        let check = if is_checked { CaseCheck::of((case.check)()?) } else { None };
        let calls = case.layers.max(CALLS_MIN);
        let timing = Stopwatch::new(&self.driver)?
            .time(calls, SAMPLES, || (0..calls).try_for_each(|_| (case.run)()))?;
        let seconds = timing.median_ns / 1e9;
        let read = case.bytes as f64 / seconds / limits.read_bytes_per_s;
        let computed = case.flops as f64 / seconds / limits.bf16_flops_per_s;
        Ok(Kernel {
            op: case.op,
            shape: case.shape,
            dtype: case.dtype,
            isa: generation(self.driver.facts().capability),
            device: "cuda",
            median_ns: timing.median_ns,
            mad_ns: timing.mad_ns,
            samples: timing.samples,
            bytes: case.bytes,
            flops: case.flops,
            limit_share: read.max(computed),
            check,
        })
    }

    /// Loads a model on the GPU, measures its prefill and decode steps and adds them to `report`.
    fn steps(
        &self,
        source: ModelSource,
        flags: &BenchFlags,
        limits: Limits,
        mut report: Report,
    ) -> Result<Report> {
        let seed = flags.load_format.random_seed();
        let cubins = self.cubins.clone();
        let kv = flags.kv_dtype;
        let options = LoadOptions { random_seed: seed, kv, cubins, ..LoadOptions::default() };
        let checkpoint = Checkpoint::open(&source.files, seed).map_err(LoadError::from)?;
        let free_before = self.driver.memory()?.free;
        let mut model = load_on(Arc::clone(&self.driver), &checkpoint, &options)?;
        let weight_bytes = free_before.saturating_sub(self.driver.memory()?.free);
        let info = model.info().clone();
        let mut timed = Timed::new(model.as_mut(), flags, self.clock)?;
        let speeds = Speeds {
            ops_per_s: limits.bf16_flops_per_s,
            read_bytes_per_s: limits.read_bytes_per_s,
            // Which experts a step reads is known on the device only.
            weight_bytes: (!info.has_experts).then_some(weight_bytes as f64),
        };
        (report.prefill, report.decode) = timed.rows(flags, &speeds)?;
        (report.model, report.dtype) = (Some(source.id), Some(info.compute_dtype));
        Ok(report)
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
        )?;
        match &self.check {
            Some(check) => write!(f, " {check}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use clap::Parser;
    use serde_json::Value;

    use std::sync::LazyLock;

    use super::super::cases::{Matmul, MoeOp, MoeShape, RowOp, Step};
    use super::super::{ChecksFailed, document};
    use super::*;
    use crate::emulated::{Emulated, Script};

    use engine_core::{AttentionShape, DeltaNetShape, KvType, WeightType};

    const KERNEL_NS: f64 = 2000.0;
    pub(in super::super) const LIMITS: Limits =
        Limits { read_bytes_per_s: 1e9, bf16_flops_per_s: 1e12 };

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        flags: BenchFlags,
    }

    pub(in super::super) fn flags(words: &[&str]) -> BenchFlags {
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

    /// Test helper: returns an emulated GPU to measure on, on which every kernel takes 2 µs; `None`
    /// where kernels cannot be compiled for the host.
    fn bench() -> Option<Bench<'static>> {
        static CUBINS: LazyLock<Cubins> = LazyLock::new(Cubins::default);
        let script = Script { ns: |_| KERNEL_NS, ..Script::default() };
        let driver: Arc<dyn Driver> = Emulated::with(1 << 30, script)?;
        Some(Bench { driver, cubins: &CUBINS, clock: Clock::start() })
    }

    /// Test helper: measures on an emulated GPU on which every kernel takes 2 µs, with the command
    /// line `words`, and returns the report; `None` where kernels cannot be compiled for the host.
    fn report(source: Option<ModelSource>, words: &[&str], cases: &[Make<Cuda>]) -> Option<Report> {
        Some(bench()?.report(source, &flags(words), LIMITS, cases).unwrap())
    }

    pub(in super::super) fn json(report: &Report) -> Value {
        serde_json::to_value(report).unwrap()
    }

    const STEPS: [&str; 10] =
        ["--load-format", "random", "-p", "5,20", "-n", "4", "-b", "1,3", "--context", "7"];

    #[test]
    fn steps_of_a_gpu_run_ahead_and_have_shares_of_its_limits() {
        for (model, has_share) in [(DENSE, true), (EXPERTS, false)] {
            let folder = config(model);
            let source = ModelSource::find(folder.path().to_str().unwrap(), None).unwrap();
            let Some(report) = report(Some(source), &STEPS, &[]) else { return };
            let text = report.to_string();
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
            assert!(json["limits"]["library"].is_null() && json.get("kernels").is_none());
            assert_eq!(text.lines().count(), 7, "{text}");
        }
    }

    #[test]
    fn a_kernel_of_which_fewer_blocks_run_than_its_grid_assumes_fails_the_command() {
        static CUBINS: LazyLock<Cubins> = LazyLock::new(Cubins::default);
        for (registers, failed) in [(1 << 16, false), (1 << 15, true)] {
            let Some(driver) = Emulated::with(1 << 30, Script { registers, ..Script::default() })
            else {
                return;
            };
            let bench = Bench { driver, cubins: &CUBINS, clock: Clock::start() };
            let report = bench.report(None, &flags(&["--kernels"]), LIMITS, &[]).unwrap();
            assert_eq!(report.low_occupancy.contains(&"attention_bf16_128"), failed);
            let document = document(&report, false);
            assert_eq!(document.is_err(), failed);
            if let Err(error) = document {
                let (told, kernel) = (error.to_string(), "`attention_bf16_128`");
                assert!(told.contains("fewer blocks") && told.contains(kernel), "{told}");
                let printed = &error.downcast_ref::<ChecksFailed>().unwrap().document;
                assert!(printed.contains("limits: "), "measurements are printed: {printed}");
            }
        }
    }

    #[test]
    fn limits_are_work_over_the_time_of_the_device() {
        let Some(Bench { driver, .. }) = bench() else { return };
        let sizes = Sizes { read_bytes: 1 << 16, matmul: 64 };
        let Limits { read_bytes_per_s, bf16_flops_per_s } =
            Limits::measure(&driver, None, sizes).unwrap();
        let is_near = |got: f64, want: f64| (got / want - 1.0).abs() < 1e-9;
        assert!(is_near(read_bytes_per_s, f64::from(1 << 16) / (KERNEL_NS / 1e9)));
        assert!(is_near(bf16_flops_per_s, 2.0 * 64f64.powi(3) / (KERNEL_NS / 1e9)));
    }

    /// Test helper: returns a benchmark case of each kind, at a size that a processor can emulate,
    /// with its number of kernel launches per call.
    pub(in super::super) fn small() -> Vec<(Make<Cuda>, f64)> {
        let shape = AttentionShape { heads: 4, kv_heads: 2, head_dim: 64, scale: 0.125 };
        let attention = |kv_type, window, sequences, rows, context| -> Make<Cuda> {
            let step = Step { sequences, rows, context };
            Box::new(move |setup| setup.attention(("x", shape, window), kv_type, step))
        };
        let matmul = |weight_type, t| -> Make<Cuda> {
            let matmul = Matmul { t, k: 128, n: 64, weight_type };
            Box::new(move |setup| setup.matmul("matmul", matmul, false))
        };
        let experts = |weight_type, t| -> Make<Cuda> {
            let moe = MoeShape { experts: 8, top_k: 2, hidden: 128, intermediate: 32 };
            Box::new(move |setup| setup.moe(MoeOp::ExpertMatmul(weight_type), moe, t))
        };
        let delta_net = |sequences, rows| -> Make<Cuda> {
            let (key_dim, value_dim) = (32, 32);
            let net = DeltaNetShape { key_heads: 1, value_heads: 2, key_dim, value_dim, taps: 4 };
            Box::new(move |setup| setup.delta_net(net, sequences, rows))
        };
        vec![
            (matmul(WeightType::Bf16, 20), 1.0),
            (matmul(WeightType::F8E4M3, 3), 1.0),
            (experts(WeightType::Bf16, 1), 1.0),
            (experts(WeightType::F8E4M3, 3), 1.0),
            (experts(WeightType::Mxfp4, 40), 1.0),
            (attention(KvType::Bf16, None, 2, 1, 39), 2.0),
            (attention(KvType::Fp8, Some(16), 1, 20, 20), 2.0),
            (delta_net(2, 1), 2.0),
            (delta_net(1, 5), 2.0),
            (Box::new(|setup| setup.rows(RowOp::AddRmsNorm, 3, 64)), 1.0),
            (Box::new(|setup| setup.rows(RowOp::SiluMul, 3, 64)), 1.0),
        ]
    }

    #[test]
    fn every_kind_of_case_is_timed_with_its_share_of_the_nearer_limit() {
        let Some(bench) = bench() else { return };
        let free = bench.driver.memory().unwrap().free;
        for (make, launches) in small() {
            let case = make(bench.setup(100_000)).unwrap();
            let kernel = bench.kernel(LIMITS, case, false).unwrap();
            let what = format!("{kernel:?}");
            assert!((kernel.median_ns - launches * KERNEL_NS).abs() < 1e-6, "{what}");
            assert_eq!((kernel.mad_ns < 1e-6, kernel.samples), (true, SAMPLES), "{what}");
            let shares = [kernel.bytes as f64 / 1e9, kernel.flops as f64 / 1e12];
            let share = shares[0].max(shares[1]) / (kernel.median_ns / 1e9);
            let got = kernel.limit_share;
            assert!(got > 0.0 && (got / share - 1.0).abs() < 1e-9, "{what}");
            assert_eq!(bench.driver.memory().unwrap().free, free, "{what}: memory is given back");
        }
    }

    #[test]
    fn kernels_are_what_a_record_of_kernels_holds() {
        let Some(report) = report(None, &["--kernels"], &[small().remove(0).0]) else { return };
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
        assert!(report.to_string().contains("2.00 us"), "{report}");
    }
}
