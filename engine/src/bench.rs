//! `redline bench`: measures how fast a model computes on the CPU or a GPU, without scheduler and
//! server. Knows nothing of the operations inside a step.

mod gpu;
mod kernels;
mod steps;

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroUsize;
use std::path::Path;

use serde::Serialize;

use crate::config::{DeviceChoice, LoadFormat, PAGE_TOKENS};
use crate::launch::{NO_GPU, random_seed};
use crate::load::{self, LoadError, LoadOptions};
use engine_core::DeviceError;
use engine_core::clock::Clock;
use engine_cpu::{Isa, limits};
use engine_cuda::driver::Cubins;
use engine_weights::{ModelFiles, ModelSource};
use kernels::{Attention, Kernels, Product};
use steps::{Decode, Prefill, Speeds, Timed, median_seconds, pages_each};

/// Options of `redline bench`.
#[derive(Debug, Clone, clap::Args)]
pub struct BenchFlags {
    /// Prompt lengths for prefill
    #[arg(short = 'p', value_name = "TOKENS", value_delimiter = ',', default_value = "512")]
    pub prompts: Vec<NonZeroUsize>,
    /// Decode steps per measurement
    #[arg(short = 'n', value_name = "STEPS", default_value = "128")]
    pub steps: NonZeroUsize,
    /// Sequences per decode step
    #[arg(short = 'b', value_name = "BATCH", value_delimiter = ',', default_value = "1,8,32")]
    pub batches: Vec<NonZeroUsize>,
    /// Tokens that each sequence has before the first decode step
    #[arg(long, value_name = "TOKENS", default_value = "128")]
    pub context: NonZeroUsize,
    /// Threads to compute with [default: the machine's cores]
    #[arg(long, value_name = "N")]
    pub threads: Option<NonZeroUsize>,
    /// Whether to read the weights or to make them up, as for `serve`
    #[arg(long, value_name = "FORMAT", default_value = "auto")]
    pub load_format: LoadFormat,
    /// Device to measure; `auto` selects the first supported GPU, or the CPU if there is none
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    pub device: DeviceChoice,
    /// Measure single GPU kernels at the sizes of published models; needs no MODEL
    #[arg(long)]
    pub kernels: bool,
    /// Print one JSON document instead of a table
    #[arg(long)]
    pub json: bool,
}

/// Error of `redline bench`, each with its own message.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what happened, and to what")]
pub enum BenchError {
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    Step(#[from] DeviceError),
    #[error("{}", NO_GPU)]
    NoGpu,
    #[error(
        "`--kernels` measures GPU kernels; hint: use `--device cuda`, or `cargo xtask kernels` for the \
         kernels of the CPU"
    )]
    KernelsOfCpu,
    #[error("no MODEL is given; hint: name a model, or use `--kernels`, which needs none")]
    NoModel,
    #[error("{wanted} tokens are requested, but a sequence has at most {max_seq_len}")]
    TooLong { wanted: usize, max_seq_len: usize },
}

impl BenchError {
    /// Exit code of the process for this error.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::TooLong { .. } | Self::KernelsOfCpu | Self::NoModel => 2,
            Self::Step(_) | Self::NoGpu => 4,
            Self::Load(error) => error.exit_code(),
        }
    }
}

/// Report of one model on the CPU.
#[derive(Debug, Serialize)]
struct Report {
    engine: &'static str,
    version: &'static str,
    model: String,
    device: &'static str,
    device_name: String,
    threads: usize,
    dtype: &'static str,
    prefill: Vec<Prefill>,
    decode: Vec<Decode>,
    products: Vec<Product>,
    attention: Vec<Attention>,
    limits: Limits,
    /// Reason for each missing figure, by its path in the report.
    absent: BTreeMap<&'static str, &'static str>,
}

/// Measured hardware limits of the processor, with which figures are compared.
#[derive(Debug, Serialize)]
struct Limits {
    int8_ops_per_s: f64,
    /// Throughput of bf16 arithmetic; none where the processor has no bf16 instructions.
    bf16_flops_per_s: Option<f64>,
    f32_flops_per_s: f64,
    read_bytes_per_s: f64,
}

impl Limits {
    fn measure(isa: Isa, threads: usize, clock: Clock) -> Result<Self, DeviceError> {
        Ok(Self {
            int8_ops_per_s: limits::int8_ops_per_s(isa, threads, clock),
            bf16_flops_per_s: limits::bf16_flops_per_s(isa, threads, clock),
            f32_flops_per_s: limits::f32_flops_per_s(isa, threads, clock),
            read_bytes_per_s: limits::read_bytes_per_s(isa, threads, clock)?,
        })
    }

    /// Limit in operations per second of the arithmetic in which a model's matrix multiplications
    /// are computed.
    fn ops_per_s(&self, compute_dtype: &str) -> f64 {
        match (compute_dtype, self.bf16_flops_per_s) {
            ("int8", _) => self.int8_ops_per_s,
            ("bf16", Some(limit)) => limit,
            _ => self.f32_flops_per_s,
        }
    }
}

/// Model to measure, and the folder with downloaded models.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// Folder, `.gguf` file or hub id of the model; none to measure single kernels.
    pub model: Option<&'a str>,
    /// Cache folder in which hub ids are looked up.
    pub hub_cache: Option<&'a Path>,
}

impl Subject<'_> {
    /// Finds the files of the model.
    fn source(&self) -> Result<ModelSource, BenchError> {
        let model = self.model.ok_or(BenchError::NoModel)?;
        Ok(ModelSource::find(model, self.hub_cache).map_err(LoadError::from)?)
    }
}

/// Loads a model, measures it and returns the report as text.
///
/// # Errors
/// The model cannot be loaded or run, a requested length exceeds its maximum, or a requested GPU
/// does not exist.
pub fn run(
    subject: Subject<'_>,
    flags: &BenchFlags,
    cubins: &Cubins,
    clock: Clock,
) -> Result<String, BenchError> {
    let has_gpu = flags.device != DeviceChoice::Cpu && !engine_cuda::usable().is_empty();
    match (flags.device, has_gpu) {
        (_, true) => gpu::run(subject, flags, cubins, clock),
        (DeviceChoice::Cuda, false) => Err(BenchError::NoGpu),
        _ if flags.kernels => Err(BenchError::KernelsOfCpu),
        _ => on_cpu(subject, flags, clock),
    }
}

/// Measures a model on the CPU.
fn on_cpu(subject: Subject<'_>, flags: &BenchFlags, clock: Clock) -> Result<String, BenchError> {
    let source = subject.source()?;
    let isa = Isa::best();
    let options = LoadOptions {
        threads: flags.threads,
        isa: Some(isa),
        random_seed: random_seed(flags.load_format),
        ..LoadOptions::default()
    };
    let mut loaded = load::load(&source, &options)?;
    // The hash of the weights is computed in the background, and would take processor time from the
    // measurement.
    let _unused = loaded.weights_sha256.wait();
    let info = loaded.info().clone();
    let pages_each = pages_each(flags, &info)?;
    let widest = flags.batches.iter().map(|batch| batch.get()).max().unwrap_or(1);
    loaded.model.allocate_kv(widest * pages_each, PAGE_TOKENS)?;
    loaded.model.allocate_states(widest)?;
    let limits = Limits::measure(isa, loaded.device.threads, clock)?;
    let mut timed = Timed { model: loaded.model.as_mut(), pages_each, clock };
    let speeds = Speeds {
        ops_per_s: limits.ops_per_s(info.compute_dtype),
        read_bytes_per_s: limits.read_bytes_per_s,
        weight_bytes: stored_bytes(&source.files),
    };
    let (prefill, decode) = timed.rows(flags, &speeds)?;
    let kernels = Kernels { isa, threads: loaded.device.threads, clock, limits: &limits };
    let (products, attention) = (kernels.products(&info)?, kernels.attention(&info)?);
    let mut absent = BTreeMap::new();
    if decode.iter().any(|row| row.limit_share.is_none()) {
        absent.insert("decode.limit_share", "the system does not say how large the weights are");
    }
    if limits.bf16_flops_per_s.is_none() {
        absent.insert("limits.bf16_flops_per_s", "the processor has no products of bf16");
    }
    let report = Report {
        engine: "redline",
        version: env!("CARGO_PKG_VERSION"),
        model: source.id,
        device: loaded.device.kind,
        device_name: loaded.device.name,
        threads: loaded.device.threads,
        dtype: info.compute_dtype,
        prefill,
        decode,
        products,
        attention,
        limits,
        absent,
    };
    Ok(shown(&report, flags.json))
}

/// Report as text: JSON, or a table for people.
fn shown<R: Serialize + fmt::Display>(report: &R, as_json: bool) -> String {
    if as_json {
        let json = serde_json::to_string_pretty(report).expect("plain values are JSON");
        json + "\n"
    } else {
        report.to_string()
    }
}

/// Bytes of the weight files: the least that a step reads, if weights are not unpacked to a larger
/// form. None where the file system does not report the size.
fn stored_bytes(files: &ModelFiles) -> Option<f64> {
    match files {
        ModelFiles::Gguf(path) => Some(path.metadata().ok()?.len() as f64),
        ModelFiles::Folder(folder) => {
            let entries = folder.read_dir().ok()?.flatten();
            let weights = entries
                .filter(|entry| entry.path().extension().is_some_and(|e| e == "safetensors"));
            Some(weights.filter_map(|entry| Some(entry.metadata().ok()?.len() as f64)).sum())
        }
    }
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { int8_ops_per_s, bf16_flops_per_s, f32_flops_per_s, read_bytes_per_s } = self;
        write!(f, "limits: {:.0} Gop/s in int8, ", int8_ops_per_s / 1e9)?;
        if let Some(limit) = bf16_flops_per_s {
            write!(f, "{:.0} Gflop/s in bf16, ", limit / 1e9)?;
        }
        let (computed, read) = (f32_flops_per_s / 1e9, read_bytes_per_s / 1e9);
        write!(f, "{computed:.0} Gflop/s in f32, memory reads {read:.1} GB/s")
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} {} · {} in {}", self.engine, self.version, self.model, self.dtype)?;
        writeln!(f, "{} · {} threads", self.device_name, self.threads)?;
        writeln!(f, "{}", self.limits)?;
        steps::write(f, self.dtype, &self.prefill, &self.decode)?;
        self.products.iter().try_for_each(|product| writeln!(f, "{product}"))?;
        self.attention.iter().try_for_each(|attention| writeln!(f, "{attention}"))?;
        Ok(())
    }
}
