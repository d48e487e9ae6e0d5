//! `redline bench`: measures the prefill and decode throughput of a model, on the CPU or a GPU,
//! without scheduler and HTTP server. It must not know what a step computes.

pub mod cases;
mod check;
mod gpu;
mod kernels;
pub mod list;
pub mod setup;
mod steps;
#[cfg(test)]
mod validations;

use std::fmt;
use std::num::NonZeroUsize;
use std::path::Path;

use anyhow::{Result, bail};
use serde::Serialize;
use serde_json::Value;

use crate::EnvironmentError;
use crate::config::{DeviceChoice, KvDtypeChoice, LoadFormat, no_gpu};
use crate::load::{self, DeviceInfo, LoadError, LoadOptions};
use crate::memory;
use engine_core::DeviceError;
use engine_core::clock::Clock;
use engine_cpu::{Isa, limits};
use engine_cuda::driver::Cubins;
use engine_weights::ModelSource;
use gpu::Kernel;
use kernels::{AttentionFigures, Kernels, MatmulFigures};
use steps::{Decode, Prefill, Speeds, Timed, median_seconds};

/// Options of `redline bench`: prompt lengths, batch sizes and device to measure, and the form of
/// the report.
#[derive(Debug, Clone, clap::Args)]
pub struct BenchFlags {
    /// Prompt lengths to measure prefill with, in tokens
    #[arg(short = 'p', value_name = "TOKENS", value_delimiter = ',', default_value = "512")]
    pub prompts: Vec<NonZeroUsize>,
    /// Number of decode steps per measurement
    #[arg(short = 'n', value_name = "STEPS", default_value = "128")]
    pub steps: NonZeroUsize,
    /// Numbers of sequences per decode step, each measured by itself
    #[arg(short = 'b', value_name = "BATCH", value_delimiter = ',', default_value = "1,8,32")]
    pub batches: Vec<NonZeroUsize>,
    /// Number of tokens that each sequence already has before the first decode step
    #[arg(long, value_name = "TOKENS", default_value = "128")]
    pub context: NonZeroUsize,
    /// Temperature at which decode steps sample their tokens; at 0 they take the likeliest ones
    #[arg(long, value_name = "T", default_value = "0", value_parser = temperature)]
    pub temperature: f32,
    /// Number of CPU compute threads [default: the machine's cores]
    #[arg(long, value_name = "N")]
    pub threads: Option<NonZeroUsize>,
    /// Read the weights (auto) or use random ones (random), as for `serve`
    #[arg(long, value_name = "FORMAT", default_value = "auto")]
    pub load_format: LoadFormat,
    /// Type of keys and values in the KV cache
    #[arg(long, visible_alias = "kv-cache-dtype", value_name = "TYPE", default_value = "auto")]
    pub kv_dtype: KvDtypeChoice,
    /// Device to measure; `auto` is the first supported GPU, else the CPU
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    pub device: DeviceChoice,
    /// Measures single GPU kernels at the sizes of published models; needs no MODEL
    #[arg(long)]
    pub kernels: bool,
    /// With `--kernels`: also compares their results with those of simple reference kernels
    #[arg(long, requires = "kernels")]
    pub check: bool,
    /// With `--kernels`: only those whose printed line has this text, such as `attention B64`
    #[arg(long, value_name = "TEXT", requires = "kernels")]
    pub filter: Option<String>,
    /// Print one JSON document instead of a table
    #[arg(long)]
    pub json: bool,
}

/// Reads a sampling temperature.
fn temperature(text: &str) -> Result<f32, String> {
    let number = text.parse().ok().filter(|number| (0.0..=2.0).contains(number));
    number.ok_or_else(|| "a temperature is a number from 0 to 2".to_owned())
}

/// Measurements of a model or of kernels on one device, beside the limits of the machine: the JSON
/// document that `redline bench --json` prints.
#[derive(Debug, Default, Serialize)]
struct Report {
    engine: &'static str,
    version: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    device: &'static str,
    device_name: String,
    /// Number of CPU compute threads; `None` for a GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    threads: Option<usize>,
    /// GPU architecture for which kernels were compiled, such as `sm_90a`; `None` for a CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    isa: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dtype: Option<&'static str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    prefill: Vec<Prefill>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    decode: Vec<Decode>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    products: Vec<MatmulFigures>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    attention: Vec<AttentionFigures>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kernels: Vec<Kernel>,
    /// Number of kernel cases that failed, or whose results are wrong; not part of the JSON
    /// document.
    #[serde(skip)]
    failed_cases: usize,
    /// Kernels whose grids assume more blocks at once than a multiprocessor runs; not part of the JSON
    /// document.
    #[serde(skip)]
    low_occupancy: Vec<&'static str>,
    limits: Value,
    /// Lines about the device and its limits that the printed table begins with; not part of the
    /// JSON document.
    #[serde(skip)]
    device_lines: String,
}

impl Report {
    /// Creates the report of a device, without measurements.
    fn new(device: &'static str, device_name: String) -> Self {
        let (engine, version) = ("redline", env!("CARGO_PKG_VERSION"));
        Self { engine, version, device, device_name, ..Self::default() }
    }
}

/// Measured limits of the processor: peak arithmetic throughput per type, and read bandwidth of
/// memory. A model's throughput is judged against them.
#[derive(Debug, Serialize)]
struct Limits {
    int8_ops_per_s: f64,
    /// Peak throughput of bf16 multiplications with AVX-512 BF16, in operations per second; `None`
    /// where the processor has none.
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

    /// Returns the peak operations per second in the type in which a model's matrix multiplications
    /// are computed.
    fn ops_per_s(&self, compute_dtype: &str) -> f64 {
        match (compute_dtype, self.bf16_flops_per_s) {
            ("int8", _) => self.int8_ops_per_s,
            ("bf16", Some(limit)) => limit,
            _ => self.f32_flops_per_s,
        }
    }
}

/// Measures a model, single GPU kernels (`--kernels`), or both, and returns the table or JSON
/// document to print.
///
/// # Errors
/// The model cannot be found, loaded or run; the device cannot be opened, or its limits cannot be
/// measured; the lengths exceed the model's context; `--device cuda` finds no supported GPU;
/// neither MODEL nor `--kernels` is given; `--kernels` is given for a CPU; or a kernel case failed,
/// or a GPU runs fewer blocks of a kernel at once than its grid assumes ([`ChecksFailed`], which has
/// the document).
pub fn run(
    model: Option<&str>,
    hub_cache: Option<&Path>,
    flags: &BenchFlags,
    cubins: &Cubins,
    clock: Clock,
) -> Result<String> {
    let has_gpu = flags.device != DeviceChoice::Cpu && !engine_cuda::usable().is_empty();
    // `auto` falls back to the CPU; only `cuda` by name is an error without a GPU.
    match (flags.device, has_gpu) {
        (_, true) => {}
        (DeviceChoice::Cuda, false) => bail!(EnvironmentError(no_gpu())),
        _ if flags.kernels => bail!(
            "`--kernels` measures GPU kernels; hint: use `--device cuda`, or `cargo xtask kernels` \
             for the kernels of the CPU"
        ),
        _ => {}
    }
    // Looked up first, so that a wrong model name is reported before a minute of measuring.
    let source = model.map(|model| ModelSource::find(model, hub_cache)).transpose();
    let report = match source.map_err(LoadError::from)? {
        None if !flags.kernels => {
            bail!("no MODEL is given; hint: name a model, or use `--kernels`, which needs none")
        }
        Some(source) if !has_gpu => on_cpu(source, flags, clock)?,
        source => gpu::run(source, flags, cubins, clock)?,
    };
    document(&report, flags.json)
}

/// Returns the table or the JSON document of a report; [`ChecksFailed`] where it has failures.
fn document(report: &Report, is_json: bool) -> Result<String> {
    let document = if is_json {
        serde_json::to_string_pretty(report).expect("plain values are JSON") + "\n"
    } else {
        report.to_string()
    };
    let mut failures = Vec::new();
    if report.failed_cases > 0 {
        failures.push(format!("{} kernel cases failed", report.failed_cases));
    }
    if !report.low_occupancy.is_empty() {
        let names: Vec<String> =
            report.low_occupancy.iter().map(|entry| format!("`{entry}`")).collect();
        failures.push(format!(
            "a multiprocessor runs fewer blocks than their grids assume of {}; hint: report the GPU \
             and its driver, on which these kernels are slow",
            names.join(", ")
        ));
    }
    if failures.is_empty() {
        return Ok(document);
    }
    Err(ChecksFailed { failures: failures.join("; "), document }.into())
}

/// Error: kernel cases failed, their results are wrong, or a GPU runs fewer blocks of a kernel at once
/// than its grid assumes. The measurements are printed all the same.
#[derive(Debug, thiserror::Error)]
#[error("{failures}")]
pub struct ChecksFailed {
    failures: String,
    /// Table or JSON document of all measurements.
    pub document: String,
}

/// Loads a model on the CPU; measures its prefill and decode steps, and the CPU's kernels at the
/// sizes of its layers; and returns the report.
fn on_cpu(source: ModelSource, flags: &BenchFlags, clock: Clock) -> Result<Report> {
    let isa = Isa::best();
    let options = LoadOptions {
        threads: flags.threads,
        isa: Some(isa),
        random_seed: flags.load_format.random_seed(),
        kv: flags.kv_dtype,
        ..LoadOptions::default()
    };
    let mut loaded = load::load(&source, &options)?;
    load::check_generates(loaded.model.info(), &source)?;
    // The digest of the weights is computed in the background, on a core that the measurement
    // needs.
    let _unused = loaded.weights_sha256.wait();
    let info = loaded.model.info().clone();
    let mut timed = Timed::new(loaded.model.as_mut(), flags, clock)?;
    let limits = Limits::measure(isa, loaded.device.threads, clock)?;
    // Random weights have no files, and a step of a mixture of experts reads some of them only.
    let is_read_whole = options.random_seed.is_none() && !info.has_experts;
    let speeds = Speeds {
        ops_per_s: limits.ops_per_s(info.compute_dtype),
        read_bytes_per_s: limits.read_bytes_per_s,
        weight_bytes: is_read_whole.then(|| memory::weights_bytes(&source.files) as f64),
    };
    let (prefill, decode) = timed.rows(flags, &speeds)?;
    let kernels = Kernels { isa, threads: loaded.device.threads, clock, limits: &limits };
    let (products, attention) = (kernels.matmuls(&info)?, kernels.attention(&info)?);
    let DeviceInfo { kind, name, threads, .. } = loaded.device;
    Ok(Report {
        model: Some(source.id),
        device_lines: format!("{name} · {threads} threads\n{limits}"),
        threads: Some(threads),
        dtype: Some(info.compute_dtype),
        prefill,
        decode,
        products,
        attention,
        limits: serde_json::to_value(&limits)?,
        ..Report::new(kind, name)
    })
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
        write!(f, "{} {}", self.engine, self.version)?;
        let dtype = self.dtype.unwrap_or_default();
        if let Some(model) = &self.model {
            write!(f, " {model} in {dtype}")?;
        }
        writeln!(f, "\n{}", self.device_lines)?;
        steps::write(f, dtype, &self.prefill, &self.decode)?;
        self.products.iter().try_for_each(|product| writeln!(f, "{product}"))?;
        self.attention.iter().try_for_each(|attention| writeln!(f, "{attention}"))?;
        self.kernels.iter().try_for_each(|kernel| writeln!(f, "{kernel}"))
    }
}
