//! `redline bench`: how fast a model computes, without scheduler and server.
//!
//! It times whole steps and knows nothing of what is in them.

mod kernels;

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroUsize;
use std::path::Path;

use serde::Serialize;

use crate::clock::Clock;
use crate::config::{LoadFormat, PAGE_TOKENS};
use crate::device::cpu::{Isa, limits};
use crate::launch::{PrepareError, random_seed};
use crate::model::{
    self, LoadError, LoadOptions, LogitRows, Model, ModelInfo, Segment, SegmentState, StepBatch,
    StepError, StepToken,
};
use crate::weights::{ModelFiles, ModelSource};
use kernels::{Attention, Kernels, Product};

/// Repeats of each measurement; the median counts.
const REPEATS: usize = 3;

/// What to measure.
#[derive(Debug, Clone, clap::Args)]
pub struct BenchFlags {
    /// Lengths of prompts
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
    /// As for `serve`
    #[arg(long, value_name = "FORMAT", default_value = "auto")]
    pub load_format: LoadFormat,
    /// Prints one JSON document instead of a table
    #[arg(long)]
    pub json: bool,
}

/// Why there is no measurement.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    Step(#[from] StepError),
    #[error("{wanted} tokens are asked for, but a sequence has at most {max_seq_len} here")]
    TooLong { wanted: usize, max_seq_len: usize },
}

impl BenchError {
    /// Exit code of the process.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::TooLong { .. } => 2,
            Self::Step(_) => 4,
            Self::Load(error) => PrepareError::load_exit_code(error),
        }
    }
}

/// One model's figures.
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
    /// Why a figure is missing, by its path.
    absent: BTreeMap<&'static str, &'static str>,
}

#[derive(Debug, Serialize)]
struct Prefill {
    tokens: usize,
    tokens_per_s: f64,
    /// Share of the arithmetic limit of the type that most is computed in: what the products of
    /// rows by the layers' matrices take of it. Attention, norms and the one row of logits do not
    /// count, so that there is always some distance from 1.
    limit_share: f64,
}

#[derive(Debug, Serialize)]
struct Decode {
    batch: usize,
    context: usize,
    tokens_per_s: f64,
    /// Share of the speed at which memory can be read: what a step's weights and KV cache take of
    /// it, if both are read once and weights are as large as in their files.
    limit_share: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Limits {
    int8_ops_per_s: f64,
    /// Nothing where the processor has no products of bf16.
    bf16_flops_per_s: Option<f64>,
    f32_flops_per_s: f64,
    read_bytes_per_s: f64,
}

impl Limits {
    fn measure(isa: Isa, threads: usize, clock: Clock) -> Result<Self, StepError> {
        Ok(Self {
            int8_ops_per_s: limits::int8_ops_per_s(isa, threads, clock),
            bf16_flops_per_s: limits::bf16_flops_per_s(isa, threads, clock),
            f32_flops_per_s: limits::f32_flops_per_s(isa, threads, clock),
            read_bytes_per_s: limits::read_bytes_per_s(isa, threads, clock)?,
        })
    }

    /// Operations per second in the type that a model's matrix products are computed in.
    fn ops_per_s(&self, compute_dtype: &str) -> f64 {
        match (compute_dtype, self.bf16_flops_per_s) {
            ("int8", _) => self.int8_ops_per_s,
            ("bf16", Some(limit)) => limit,
            _ => self.f32_flops_per_s,
        }
    }
}

/// Loads a model, measures it and returns what is to be printed.
///
/// # Errors
/// The model cannot be loaded or run, or is asked for more than it can take.
pub fn run(
    name: &str,
    hub_cache: Option<&Path>,
    flags: &BenchFlags,
    clock: Clock,
) -> Result<String, BenchError> {
    let source = ModelSource::find(name, hub_cache)?;
    let isa = Isa::best();
    let options = LoadOptions {
        threads: flags.threads,
        isa: Some(isa),
        random_seed: random_seed(flags.load_format),
        ..LoadOptions::default()
    };
    let mut loaded = model::load(&source, &options)?;
    // It is computed in the background, on a processor that would be missing from what is measured.
    let _unused = loaded.weights_sha256.wait();
    let info = loaded.info().clone();
    let pages_each = pages_each(flags, &info)?;
    let widest = flags.batches.iter().map(|batch| batch.get()).max().unwrap_or(1);
    loaded.model.allocate_kv(widest * pages_each, PAGE_TOKENS)?;
    loaded.model.allocate_states(widest)?;
    let limits = Limits::measure(isa, loaded.device.threads, clock)?;
    let mut timed = Timed { model: loaded.model.as_mut(), pages_each, clock };
    let (prefill, decode) = timed.rows(flags, &limits, stored_bytes(&source.files))?;
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
    Ok(if flags.json {
        let json = serde_json::to_string_pretty(&report).expect("plain values are JSON");
        json + "\n"
    } else {
        report.to_string()
    })
}

/// Pages of a sequence that is as long as any that `flags` ask for.
fn pages_each(flags: &BenchFlags, info: &ModelInfo) -> Result<usize, BenchError> {
    let longest = flags.prompts.iter().map(|tokens| tokens.get()).max().unwrap_or(1);
    let wanted = longest.max(flags.context.get() + flags.steps.get());
    let max_seq_len = info.max_seq_len;
    if wanted > max_seq_len {
        return Err(BenchError::TooLong { wanted, max_seq_len });
    }
    Ok(wanted.div_ceil(PAGE_TOKENS))
}

/// A model under a stopwatch.
struct Timed<'a> {
    model: &'a mut dyn Model,
    pages_each: usize,
    clock: Clock,
}

impl Timed<'_> {
    /// All that `flags` ask for, with its shares of `limits`.
    fn rows(
        &mut self,
        flags: &BenchFlags,
        limits: &Limits,
        weight_bytes: Option<f64>,
    ) -> Result<(Vec<Prefill>, Vec<Decode>), StepError> {
        let info = self.model.info().clone();
        let tokens_limit =
            limits.ops_per_s(info.compute_dtype) / (2 * info.active_layer_parameters) as f64;
        let mut prefill = Vec::new();
        for tokens in &flags.prompts {
            let tokens_per_s = self.prefill(tokens.get())?;
            let limit_share = tokens_per_s / tokens_limit;
            prefill.push(Prefill { tokens: tokens.get(), tokens_per_s, limit_share });
        }
        let mut decode = Vec::new();
        let context = flags.context.get();
        for batch in flags.batches.iter().map(|batch| batch.get()) {
            let tokens_per_s = self.decode(batch, context, flags.steps.get())?;
            let kv_bytes = (batch * context * info.kv_bytes_per_token) as f64;
            let limit_share = weight_bytes.map(|weights| {
                (weights + kv_bytes) * (tokens_per_s / batch as f64) / limits.read_bytes_per_s
            });
            decode.push(Decode { batch, context, tokens_per_s, limit_share });
        }
        Ok((prefill, decode))
    }

    /// Tokens per second of one prompt in one step.
    fn prefill(&mut self, tokens: usize) -> Result<f64, StepError> {
        let batch = self.batch(1, 0, tokens);
        self.median_rate(tokens, |model| {
            model.step(&batch)?;
            Ok(())
        })
    }

    /// Tokens per second of `steps` steps of one token for each sequence, from `context` on.
    fn decode(&mut self, sequences: usize, context: usize, steps: usize) -> Result<f64, StepError> {
        for sequence in 0..sequences {
            let mut fill = self.batch(sequences, 0, context);
            fill.segments = vec![fill.segments.swap_remove(sequence)];
            fill.tokens.truncate(context);
            self.model.step(&fill)?;
        }
        let batches: Vec<_> =
            (0..steps).map(|step| self.batch(sequences, context + step, 1)).collect();
        self.median_rate(sequences * steps, |model| {
            for batch in &batches {
                model.step(batch)?;
            }
            Ok(())
        })
    }

    /// Rows from `position` of each sequence; every sequence has pages of its own.
    fn batch(&self, sequences: usize, position: usize, rows: usize) -> StepBatch {
        let vocab_size = self.model.info().vocab_size;
        let mut batch = StepBatch::default();
        for sequence in 0..sequences {
            // Any ids will do, as long as sequences differ.
            let id = |row: usize| (sequence * 31 + (position + row) * 7) % vocab_size;
            batch.tokens.extend((0..rows).map(|row| StepToken::Known(id(row) as u32)));
            let first = sequence * self.pages_each;
            let pages = (first..first + self.pages_each).map(|page| page as u32).collect();
            let state = Some(SegmentState { place: sequence as u32, load: None, save: None });
            let logits = LogitRows::Last;
            batch.segments.push(Segment { rows, position, pages, logits, state });
        }
        batch
    }

    /// Median tokens per second over the repeats, after one that warms up.
    fn median_rate(
        &mut self,
        tokens: usize,
        mut work: impl FnMut(&mut dyn Model) -> Result<(), StepError>,
    ) -> Result<f64, StepError> {
        Ok(tokens as f64 / median_seconds(self.clock, || work(self.model))?)
    }
}

/// Median seconds of `work` over the repeats, after one that warms up.
fn median_seconds(
    clock: Clock,
    mut work: impl FnMut() -> Result<(), StepError>,
) -> Result<f64, StepError> {
    work()?;
    let mut seconds = [0.0; REPEATS];
    for seconds in &mut seconds {
        let start = clock.elapsed();
        work()?;
        *seconds = (clock.elapsed() - start).as_secs_f64();
    }
    seconds.sort_unstable_by(f64::total_cmp);
    Ok(seconds[REPEATS / 2])
}

/// What the weights take in their files: what has to be read at least, were nothing unpacked.
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
        for Prefill { tokens, tokens_per_s, limit_share } in &self.prefill {
            let (share, dtype) = (limit_share * 100.0, self.dtype);
            writeln!(
                f,
                "prefill {tokens:>12} tokens {tokens_per_s:>9.1} tokens/s {share:>4.0} % of {dtype} arithmetic"
            )?;
        }
        for Decode { batch, context, tokens_per_s, limit_share } in &self.decode {
            write!(f, "decode {batch:>5} x {context:>5} tokens {tokens_per_s:>9.1} tokens/s")?;
            match limit_share {
                Some(share) => writeln!(f, " {:>4.0} % of memory speed", share * 100.0)?,
                None => writeln!(f)?,
            }
        }
        self.products.iter().try_for_each(|product| writeln!(f, "{product}"))?;
        self.attention.iter().try_for_each(|attention| writeln!(f, "{attention}"))?;
        Ok(())
    }
}
