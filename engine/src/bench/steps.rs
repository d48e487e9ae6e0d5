//! Whole steps of a model under a stopwatch: prompts, and tokens after them. Knows no device.

use std::fmt;

use serde::Serialize;

use super::{BenchError, BenchFlags};
use crate::config::PAGE_TOKENS;
use engine_core::clock::Clock;
use engine_core::sample::Sampling;
use engine_core::{DeviceError, LogitRows, Segment, SegmentState, StepBatch, StepToken};
use engine_model::{Model, ModelInfo};

/// Repeats of each measurement; the median counts.
const REPEATS: usize = 3;

#[derive(Debug, Serialize)]
pub(super) struct Prefill {
    tokens: usize,
    tokens_per_s: f64,
    /// Share of the arithmetic limit of the type that most is computed in: what the products of
    /// rows by the layers' matrices take of it. Attention, norms and the one row of logits do not
    /// count, so that there is always some distance from 1.
    limit_share: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct Decode {
    batch: usize,
    context: usize,
    tokens_per_s: f64,
    /// Share of the speed at which memory can be read: what a step's weights and KV cache take of
    /// it, if both are read once and weights are as large as [`Speeds`] says.
    pub limit_share: Option<f64>,
}

/// What steps are compared with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Speeds {
    /// Limit of arithmetic in the type that products are computed in.
    pub ops_per_s: f64,
    pub read_bytes_per_s: f64,
    /// Weights that a step of any number of rows reads; none where that is not known.
    pub weight_bytes: Option<f64>,
}

/// Pages of a sequence that is as long as any that `flags` ask for.
pub(super) fn pages_each(flags: &BenchFlags, info: &ModelInfo) -> Result<usize, BenchError> {
    let longest = flags.prompts.iter().map(|tokens| tokens.get()).max().unwrap_or(1);
    let wanted = longest.max(flags.context.get() + flags.steps.get());
    let max_seq_len = info.max_seq_len;
    if wanted > max_seq_len {
        return Err(BenchError::TooLong { wanted, max_seq_len });
    }
    Ok(wanted.div_ceil(PAGE_TOKENS))
}

/// A model under a stopwatch. Where it runs ahead, it draws its own tokens, and a step is begun before
/// the last has landed, as in the server.
pub(super) struct Timed<'a> {
    pub model: &'a mut dyn Model,
    pub pages_each: usize,
    pub clock: Clock,
}

impl Timed<'_> {
    /// All that `flags` ask for, with its shares of `speeds`.
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
            decode.push(Decode { batch, context, tokens_per_s, limit_share });
        }
        Ok((prefill, decode))
    }

    /// Tokens per second of one prompt in one step.
    fn prefill(&mut self, tokens: usize) -> Result<f64, DeviceError> {
        let batch = self.batch(1, 0, tokens);
        self.median_rate(tokens, &[batch])
    }

    /// Tokens per second of `steps` steps of one token for each sequence, from `context` on.
    fn decode(
        &mut self,
        sequences: usize,
        context: usize,
        steps: usize,
    ) -> Result<f64, DeviceError> {
        for sequence in 0..sequences {
            let mut fill = self.batch(sequences, 0, context);
            fill.segments = vec![fill.segments.swap_remove(sequence)];
            fill.tokens.truncate(context);
            run(self.model, &[fill])?;
        }
        let mut batches: Vec<_> =
            (0..steps).map(|step| self.batch(sequences, context + step, 1)).collect();
        if self.model.run_ahead() > 0 {
            for batch in batches.iter_mut().skip(1) {
                batch.tokens = (0..sequences as u32).map(StepToken::Drawn).collect();
            }
        }
        self.median_rate(sequences * steps, &batches)
    }

    /// Rows from `position` of each sequence; every sequence has pages of its own.
    fn batch(&self, sequences: usize, position: usize, rows: usize) -> StepBatch {
        let vocab_size = self.model.info().vocab_size;
        let logits = match self.model.run_ahead() {
            0 => LogitRows::Last,
            _ => LogitRows::Draw(Sampling::greedy().draw_params(0)),
        };
        let mut batch = StepBatch::default();
        for sequence in 0..sequences {
            // Any ids will do, as long as sequences differ.
            let id = |row: usize| (sequence * 31 + (position + row) * 7) % vocab_size;
            batch.tokens.extend((0..rows).map(|row| StepToken::Known(id(row) as u32)));
            let first = sequence * self.pages_each;
            let pages = (first..first + self.pages_each).map(|page| page as u32).collect();
            let state = Some(SegmentState { place: sequence as u32, load: None, save: None });
            batch.segments.push(Segment { rows, position, pages, logits, state });
        }
        batch
    }

    /// Median over the repeats of the tokens per second of `batches`, which compute `tokens`.
    fn median_rate(&mut self, tokens: usize, batches: &[StepBatch]) -> Result<f64, DeviceError> {
        Ok(tokens as f64 / median_seconds(self.clock, || run(self.model, batches))?)
    }
}

/// Runs steps one after another, as many in flight as the model has.
fn run(model: &mut dyn Model, batches: &[StepBatch]) -> Result<(), DeviceError> {
    let ahead = model.run_ahead();
    for (step, batch) in batches.iter().enumerate() {
        model.launch(batch)?;
        if step >= ahead {
            model.land()?;
        }
    }
    (0..ahead.min(batches.len())).try_for_each(|_| model.land().map(|_| ()))
}

/// Median seconds of `work` over the repeats, after one that warms up.
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

/// A line for each.
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
    for Decode { batch, context, tokens_per_s, limit_share } in decode {
        write!(f, "decode {batch:>5} x {context:>5} tokens {tokens_per_s:>9.1} tokens/s")?;
        match limit_share {
            Some(share) => writeln!(f, " {:>4.0} % of memory speed", share * 100.0)?,
            None => writeln!(f)?,
        }
    }
    Ok(())
}
