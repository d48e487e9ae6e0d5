//! Measures whole steps of a model: prefill of prompts, and decoding. It must not know the device.

use std::fmt;
use std::num::NonZeroUsize;

use anyhow::{Result, bail};
use serde::Serialize;

use super::BenchFlags;
use crate::config::PAGE_TOKENS;
use engine_core::clock::Clock;
use engine_core::sample::Sampling;
use engine_core::{DeviceError, LogitRows, ScheduledSequence, StateSlots, StepBatch, StepToken};
use engine_model::Model;

/// Number of timed runs of each measurement, whose median is reported.
const REPEATS: usize = 3;

/// Measurement of prefill: one prompt that is computed in one step.
#[derive(Debug, Serialize)]
pub(super) struct Prefill {
    tokens: usize,
    tokens_per_s: f64,
    /// Share of the machine's limit for arithmetic in the model's data type that prefill reaches, 0
    /// to 1, counting the multiplications by the layers' matrices only. Attention, norms and logits
    /// are not counted, so that the share stays below 1.
    limit_share: f64,
}

/// Measurement of decoding: one token per sequence and step.
#[derive(Debug, Serialize)]
pub(super) struct Decode {
    batch: usize,
    context: usize,
    /// Temperature at which the steps sampled their tokens; left out where they took the likeliest.
    #[serde(skip_serializing_if = "is_greedy")]
    temperature: f32,
    tokens_per_s: f64,
    /// Share of the memory bandwidth that decoding reaches, 0 to 1, counting for each step one read
    /// of the weights (their size is in [`Speeds`]) and of the KV cache; `None` where the size of
    /// the weights is not known.
    pub limit_share: Option<f64>,
}

fn is_greedy(temperature: &f32) -> bool {
    *temperature == 0.0
}

/// Limits of the machine and size of the weights, from which the shares of the limits are computed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Speeds {
    /// Limit of the machine in operations per second, in the type in which matrix multiplications
    /// are computed.
    pub ops_per_s: f64,
    /// Measured memory bandwidth of the machine in bytes per second.
    pub read_bytes_per_s: f64,
    /// Size in bytes of the weights that a step reads, whatever its number of rows; `None` where
    /// that is not known, as for random weights on a CPU, or differs from step to step, as for a
    /// model with experts.
    pub weight_bytes: Option<f64>,
}

/// Model to measure. Its device samples a token of each sequence in each step, and a model that
/// runs ahead gets a step before the previous one is complete, as in the server.
pub(super) struct Timed<'a> {
    model: &'a mut dyn Model,
    clock: Clock,
    temperature: f32,
}

impl<'a> Timed<'a> {
    /// Allocates the model's memory for the longest sequence and the largest batch in `flags`; an
    /// error if the model does not take such a sequence, or the device fails or does not have
    /// enough memory.
    pub fn new(model: &'a mut dyn Model, flags: &BenchFlags, clock: Clock) -> Result<Self> {
        let most = |counts: &[NonZeroUsize]| counts.iter().max().map_or(1, |count| count.get());
        let (prompt, context, widest) =
            (most(&flags.prompts), flags.context.get(), most(&flags.batches));
        let (wanted, max_seq_len) =
            (prompt.max(context + flags.steps.get()), model.info().max_seq_len);
        if wanted > max_seq_len {
            bail!("{wanted} tokens are requested, but a sequence has at most {max_seq_len}");
        }
        model.profile_run(prompt.max(context), widest)?;
        // Prompts are measured one at a time, and pages for the largest batch serve all smaller ones.
        let decoding = widest * (context + flags.steps.get()).div_ceil(PAGE_TOKENS);
        model.allocate_kv(decoding.max(prompt.div_ceil(PAGE_TOKENS)), PAGE_TOKENS)?;
        model.allocate_states(widest)?;
        Ok(Self { model, clock, temperature: flags.temperature })
    }

    /// Measures prefill and decoding at the lengths and batch sizes in `flags`, with shares of the
    /// limits in `speeds`.
    pub fn rows(
        &mut self,
        flags: &BenchFlags,
        speeds: &Speeds,
    ) -> Result<(Vec<Prefill>, Vec<Decode>), DeviceError> {
        let info = self.model.info().clone();
        let tokens_limit = speeds.ops_per_s / (2 * info.active_layer_parameters) as f64;
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
            let limit_share = speeds.weight_bytes.map(|weights| {
                (weights + kv_bytes) * (tokens_per_s / batch as f64) / speeds.read_bytes_per_s
            });
            let temperature = self.temperature;
            decode.push(Decode { batch, context, temperature, tokens_per_s, limit_share });
        }
        Ok((prefill, decode))
    }

    /// Measures the prefill of a prompt of `tokens` tokens in one step; returns tokens per second.
    fn prefill(&mut self, tokens: usize) -> Result<f64, DeviceError> {
        let batch = self.batch(1, 0, tokens, tokens);
        self.median_rate(tokens, &[batch])
    }

    /// Measures `steps` decode steps of one token per sequence, after `context` tokens of each;
    /// returns tokens per second over all sequences.
    fn decode(
        &mut self,
        sequences: usize,
        context: usize,
        steps: usize,
    ) -> Result<f64, DeviceError> {
        let longest = context + steps;
        // One sequence per step, so that no step is larger than those that are measured.
        for sequence in 0..sequences {
            let mut fill = self.batch(sequences, 0, context, longest);
            let own = fill.sequences.swap_remove(sequence);
            fill.sequences = vec![ScheduledSequence { row: 0, ..own }];
            fill.tokens.truncate(context);
            run(self.model, &[fill])?;
        }
        let mut batches: Vec<_> =
            (0..steps).map(|step| self.batch(sequences, context + step, 1, longest)).collect();
        if self.model.run_ahead() > 0 {
            // Each step continues with the tokens that the step before sampled on the device.
            for batch in batches.iter_mut().skip(1) {
                batch.tokens = (0..sequences as u32).map(StepToken::Sampled).collect();
            }
        }
        self.median_rate(sequences * steps, &batches)
    }

    /// Builds a step of `rows` rows from `position` on of each sequence; each sequence has KV pages
    /// of its own for `longest` tokens.
    fn batch(&self, sequences: usize, position: usize, rows: usize, longest: usize) -> StepBatch {
        let pages_each = longest.div_ceil(PAGE_TOKENS);
        let vocab_size = self.model.info().vocab_size;
        let sampling = Sampling { temperature: self.temperature, ..Sampling::greedy() };
        let mut batch = StepBatch::default();
        for sequence in 0..sequences {
            // Any ids will do, as long as sequences differ.
            let id = |row: usize| (sequence * 31 + (position + row) * 7) % vocab_size;
            batch.tokens.extend((0..rows).map(|row| StepToken::Known(id(row) as u32)));
            let first = sequence * pages_each;
            let pages = (first..first + pages_each).map(|page| page as u32).collect();
            let sampling = Sampling { seed: sequence as u64, ..sampling.clone() };
            let logits = LogitRows::Sample(sampling.sample_params(position));
            let state = Some(StateSlots { slot: sequence as u32, load: None, save: None });
            batch.push(ScheduledSequence { row: 0, rows, position, pages, logits, state });
        }
        batch
    }

    /// Runs the steps `batches` several times, and returns the median rate of these runs in tokens
    /// per second; one run computes `tokens` tokens.
    fn median_rate(&mut self, tokens: usize, batches: &[StepBatch]) -> Result<f64, DeviceError> {
        Ok(tokens as f64 / median_seconds(self.clock, || run(self.model, batches))?)
    }
}

/// Submits steps in order, with as many in flight as the model allows, and waits until all are
/// complete.
fn run(model: &mut dyn Model, batches: &[StepBatch]) -> Result<(), DeviceError> {
    let ahead = model.run_ahead();
    for (step, batch) in batches.iter().enumerate() {
        model.submit(batch)?;
        if step >= ahead {
            model.complete()?;
        }
    }
    (0..ahead.min(batches.len())).try_for_each(|_| model.complete().map(|_| ()))
}

/// Runs `work` once to warm up and then several times, and returns its median time in seconds.
pub(super) fn median_seconds(
    clock: Clock,
    mut work: impl FnMut() -> Result<(), DeviceError>,
) -> Result<f64, DeviceError> {
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

/// Writes a line of the printed table for each measurement of prefill and of decoding.
pub(super) fn write(
    f: &mut fmt::Formatter<'_>,
    dtype: &str,
    prefill: &[Prefill],
    decode: &[Decode],
) -> fmt::Result {
    for Prefill { tokens, tokens_per_s, limit_share } in prefill {
        let share = limit_share * 100.0;
        writeln!(
            f,
            "prefill {tokens:>12} tokens {tokens_per_s:>9.1} tokens/s {share:>4.0} % of {dtype} arithmetic"
        )?;
    }
    for Decode { batch, context, temperature, tokens_per_s, limit_share } in decode {
        write!(f, "decode {batch:>5} x {context:>5} tokens {tokens_per_s:>9.1} tokens/s")?;
        if let Some(share) = limit_share {
            write!(f, " {:>4.0} % of memory speed", share * 100.0)?;
        }
        match temperature {
            0.0 => writeln!(f)?,
            temperature => writeln!(f, ", sampled at temperature {temperature}")?,
        }
    }
    Ok(())
}
