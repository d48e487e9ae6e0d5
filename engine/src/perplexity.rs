//! `redline perplexity`: measures how well a model predicts a text, which shows whether matrix
//! multiplications of a type (`--dtype`) are accurate enough.
//!
//! Windows and scored positions are those of llama.cpp's `llama-perplexity`, so that both programs'
//! results for the same file and text are comparable: the text is cut into windows of equal length,
//! each begins with the BOS token where the model has one, and the second half of each is scored.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Serialize;

use crate::config::{DtypeChoice, KvDtypeChoice, PAGE_TOKENS};
use crate::load::{self, LoadError, LoadOptions};
use crate::tokenize::{Text, Tokenizer};
use engine_core::{DeviceError, LogitRows, ScheduledSequence, StateSlots, StepBatch};
use engine_model::Model;
use engine_weights::{Checkpoint, ModelSource, read_text};

/// Largest size in bytes of a text.
const TEXT_BYTES_MAX: u64 = 1 << 30;

/// Options of `redline perplexity`: text, windows, data type of the matrix multiplications,
/// threads, and form of the result.
#[derive(Debug, Clone, clap::Args)]
pub struct PerplexityFlags {
    /// Text file to predict, in UTF-8
    pub text: PathBuf,
    /// Number of tokens per window of the text
    #[arg(long, value_name = "TOKENS", default_value = "512")]
    pub context: NonZeroUsize,
    /// Number of windows to score, from the start of the text [default: all]
    #[arg(long, value_name = "N")]
    pub windows: Option<NonZeroUsize>,
    /// Type of the matrix multiplications; f32 is the reference path
    #[arg(long, value_name = "TYPE", default_value = "auto")]
    pub dtype: DtypeChoice,
    /// Type of keys and values in the KV cache
    #[arg(long, visible_alias = "kv-cache-dtype", value_name = "TYPE", default_value = "auto")]
    pub kv_dtype: KvDtypeChoice,
    /// Number of CPU compute threads [default: the machine's cores]
    #[arg(long, value_name = "N")]
    pub threads: Option<NonZeroUsize>,
    /// Prints one JSON document instead of a line of text
    #[arg(long)]
    pub json: bool,
}

/// Result of `redline perplexity` as it is printed: perplexity of one text under one model.
#[derive(Debug, Serialize)]
struct Report {
    model: String,
    dtype: &'static str,
    kv_dtype: &'static str,
    context: usize,
    windows: usize,
    /// Number of tokens, over all windows, whose probability was scored.
    scored: usize,
    perplexity: f64,
}

/// Loads a model, scores the text and returns the line or JSON document to print.
///
/// # Errors
/// The model cannot be found, loaded or run, or has no tokenizer; the text cannot be read or
/// tokenized, or is too short; or the window length is outside the range that the model takes.
pub fn run(name: &str, hub_cache: Option<&Path>, flags: &PerplexityFlags) -> Result<String> {
    let text = read_text(&flags.text, TEXT_BYTES_MAX).context("the text cannot be used")?;
    let source = ModelSource::find(name, hub_cache).map_err(LoadError::from)?;
    let options = LoadOptions {
        threads: flags.threads,
        dtype: flags.dtype,
        kv: flags.kv_dtype,
        ..LoadOptions::default()
    };
    let checkpoint =
        Checkpoint::open(&source.files, options.random_seed).map_err(LoadError::from)?;
    let mut loaded = load::load_checkpoint(&checkpoint, &options)?;
    load::check_generates(loaded.model.info(), &source)?;
    let tokenizer = Tokenizer::load(&checkpoint.config)
        .map_err(LoadError::from)?
        .context("the model has no tokenizer; hint: a folder needs its tokenizer.json")?;
    let info = loaded.model.info().clone();
    let context = flags.context.get();
    if context < 2 || context > info.max_seq_len {
        let max_seq_len = info.max_seq_len;
        bail!("`--context {context}` is out of range; the model takes 2 to {max_seq_len} tokens");
    }
    let tokens = tokenizer.encode(&text, false)?;
    let windows = flags.windows.map_or(usize::MAX, NonZeroUsize::get);
    let windows = windows.min(tokens.len() / context);
    if windows == 0 {
        let tokens = tokens.len();
        bail!("the text has {tokens} tokens, less than one window of {context}");
    }
    // Windows are computed one after another, so the KV pages of one suffice.
    loaded.model.allocate_kv(context.div_ceil(PAGE_TOKENS), PAGE_TOKENS)?;
    loaded.model.allocate_states(1)?;
    let mut total = 0.0;
    for window in tokens.chunks_exact(context).take(windows) {
        total += surprise(loaded.model.as_mut(), window, tokenizer.bos_id)?;
    }
    // The last token of a window predicts none of its tokens, so it is not scored.
    let scored = windows * (context - 1 - context / 2);
    let report = Report {
        model: source.id,
        dtype: info.compute_dtype,
        kv_dtype: info.kv_type.name(),
        context,
        windows,
        scored,
        perplexity: (total / scored as f64).exp(),
    };
    Ok(if flags.json {
        serde_json::to_string_pretty(&report).expect("plain values are JSON") + "\n"
    } else {
        format!(
            "perplexity {:.4} of {} in {} over {} tokens\n",
            report.perplexity, report.model, report.dtype, report.scored
        )
    })
}

/// Returns the sum of `-ln p` over the tokens in the second half of `window` except its first,
/// where `p` is the probability of a token given all tokens of the window before it. A given `bos`
/// replaces the window's first token.
fn surprise(model: &mut dyn Model, window: &[u32], bos: Option<u32>) -> Result<f64, DeviceError> {
    let mut tokens = window.to_vec();
    if let Some(bos) = bos {
        // llama-perplexity replaces the first token, too, instead of inserting one.
        tokens[0] = bos;
    }
    let rows = tokens.len();
    let vocab = model.info().vocab_size;
    let sequences = vec![ScheduledSequence {
        row: 0,
        rows,
        position: 0,
        pages: (0..rows.div_ceil(PAGE_TOKENS) as u32).collect(),
        logits: LogitRows::All,
        state: Some(StateSlots { slot: 0, load: None, save: None }),
    }];
    let logits = model.step(&StepBatch::known(&tokens, sequences))?;
    let scored = logits.chunks_exact(vocab).zip(&window[1..]).skip(rows / 2);
    Ok(scored.map(|(row, next)| negative_log_likelihood(row, *next)).sum())
}

/// Returns the negative log-likelihood of the token `id`: `-ln softmax(logits)[id]`.
fn negative_log_likelihood(logits: &[f32], id: u32) -> f64 {
    // Subtracting the maximum keeps `exp` from overflowing.
    let top = logits.iter().fold(f32::NEG_INFINITY, |top, x| top.max(*x));
    let sum: f64 = logits.iter().map(|x| f64::from(x - top).exp()).sum();
    sum.ln() - f64::from(logits[id as usize] - top)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_even_choice_is_as_surprising_as_there_are_ids() {
        let of = |logits: &[f32], id| negative_log_likelihood(logits, id).exp();
        assert!((of(&[3.0; 50], 7) - 50.0).abs() < 1e-6);
        assert!((of(&[0.0, 3.0_f32.ln()], 1) - 4.0 / 3.0).abs() < 1e-6);
        assert!((of(&[1000.0, -1000.0], 0) - 1.0).abs() < 1e-9);
    }
}
