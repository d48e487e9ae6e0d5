//! Samplers of synthetic prompts that run through the vocabulary: `random@vllm` and
//! `random@inferencex`.
//!
//! Both draw lengths and a start id for each request, take consecutive ids from there, and then
//! decode and encode up to ten times until the text has the requested number of tokens.

use schema::manifest::ManifestRequest;
use schema::run::PromptForm;
use schema::scenario::Workload;

use super::lengths::{LowerBound, scaled, uniform};
use super::seed32;
use crate::workload::generators::{NumpyRandom, Pcg64};
use crate::workload::tokenizer::Tokenizer;

/// Maximum number of rounds in which a text is corrected to its length.
const ROUNDS: usize = 10;

/// Draws requests as vLLM's `random` does.
pub fn vllm(
    workload: &Workload,
    tokenizer: &Tokenizer,
    form: PromptForm,
) -> anyhow::Result<Vec<ManifestRequest>> {
    let mut random = Pcg64::seed(workload.seed);
    let size = tokenizer.vocabulary_size() as u64;
    let ratio = workload.range_ratio.unwrap_or(0.0);
    let specials = tokenizer.specials_added() as u64;
    let input = workload.input_tokens.unwrap_or(0).saturating_sub(specials);
    let output = workload.output_tokens.unwrap_or(0);
    let prefix_tokens = workload.prefix_tokens.unwrap_or(0);
    let shortest = scaled(input, 1.0 - ratio);
    let mut draw = |low: u64, high: u64| -> Vec<u64> {
        (0..workload.requests).map(|_| random.integers(low, high + 1)).collect()
    };
    // The order of draws is vLLM's: lengths, offsets, prefix.
    let inputs = draw(shortest, scaled_up(input, 1.0 + ratio));
    let least = scaled(output, 1.0 - ratio).max(1);
    let outputs = draw(least, scaled_up(output, 1.0 + ratio).max(1));
    let offsets = draw(0, size - 1);
    if prefix_tokens + shortest == 0 {
        return Err(super::empty(0, "a prompt"));
    }
    let ids = tokenizer.ordinary_ids();
    let count = ids.len() as u64;
    let prefix = (0..prefix_tokens).map(|_| at(&ids, random.integers(0, count))).collect();
    let mut settle =
        |ids| settled(tokenizer, ids, || narrow(random.integers(0, size))).map(|found| found.0);
    Runs { prefix, ids: &ids, inputs, outputs, offsets }.requests(tokenizer, form, &mut settle)
}

/// Draws requests as InferenceX's `random` does.
pub fn inferencex(
    workload: &Workload,
    tokenizer: &Tokenizer,
    form: PromptForm,
) -> anyhow::Result<Vec<ManifestRequest>> {
    let mut random = NumpyRandom::seed(seed32(workload)?);
    let size = tokenizer.vocabulary_size() as u64;
    let ratio = workload.range_ratio.unwrap_or(1.0);
    let prefix_tokens = workload.prefix_tokens.unwrap_or(0);
    // InferenceX draws the prefix before the lengths.
    let prefix = (0..prefix_tokens).map(|_| narrow(random.randint(0, size))).collect();
    let mut draw = |bound: Option<u64>| {
        uniform(&mut random, bound.unwrap_or(0), ratio, workload.requests, LowerBound::Zero)
    };
    let (inputs, outputs) = (draw(workload.input_tokens), draw(workload.output_tokens));
    let offsets = (0..workload.requests).map(|_| random.randint(0, size)).collect();
    let ids: Vec<u32> = (0..size).map(narrow).collect();
    let mut settle =
        |ids| settled(tokenizer, ids, || narrow(random.randint(0, size))).map(|found| found.0);
    Runs { prefix, ids: &ids, inputs, outputs, offsets }.requests(tokenizer, form, &mut settle)
}

/// Drawn inputs of the prompts: a common prefix, and lengths and start ids for each request.
struct Runs<'a> {
    prefix: Vec<u32>,
    /// Vocabulary ids that a prompt runs through, cyclically.
    ids: &'a [u32],
    inputs: Vec<u64>,
    outputs: Vec<u64>,
    offsets: Vec<u64>,
}

impl Runs<'_> {
    fn requests(
        self,
        tokenizer: &Tokenizer,
        form: PromptForm,
        settle: &mut dyn FnMut(Vec<u32>) -> anyhow::Result<String>,
    ) -> anyhow::Result<Vec<ManifestRequest>> {
        let lengths = self.inputs.iter().zip(&self.outputs);
        let mut requests = Vec::new();
        for (index, ((input, output), offset)) in lengths.zip(&self.offsets).enumerate() {
            let count = self.ids.len() as u64;
            let run = (0..*input).map(|j| at(self.ids, (offset + index as u64 + j) % count));
            let text = settle(self.prefix.iter().copied().chain(run).collect())?;
            requests.push(of_text(tokenizer, form, text, *output, index)?);
        }
        Ok(requests)
    }
}

/// Returns a request with this text, whose ids are the ones that a server makes of the text.
pub fn of_text(
    tokenizer: &Tokenizer,
    form: PromptForm,
    text: String,
    output_tokens: u64,
    index: usize,
) -> anyhow::Result<ManifestRequest> {
    let prompt = tokenizer.encode(&text)?;
    for (what, empty) in [("a prompt", prompt.is_empty()), ("an answer", output_tokens == 0)] {
        if empty {
            return Err(super::empty(index, what));
        }
    }
    let text = (form == PromptForm::Text).then_some(text);
    Ok(ManifestRequest { prompt, text, output_tokens, ..ManifestRequest::default() })
}

/// Returns text and ids that are `ids.len()` tokens long and that decode and encode into each
/// other: missing ids are drawn, surplus ids are cut. Some texts never settle and are returned as
/// they are.
pub fn settled(
    tokenizer: &Tokenizer,
    mut ids: Vec<u32>,
    mut extra: impl FnMut() -> u32,
) -> anyhow::Result<(String, Vec<u32>)> {
    let wanted = ids.len();
    let mut round = 0;
    loop {
        let text = tokenizer.decode(&ids)?;
        ids = tokenizer.encode_plain(&text)?;
        if round == ROUNDS || ids.len() == wanted {
            return Ok((text, ids));
        }
        round += 1;
        ids.truncate(wanted);
        while ids.len() < wanted {
            ids.push(extra());
        }
    }
}

/// Returns the id at `position`, which must be within the list.
fn at(ids: &[u32], position: u64) -> u32 {
    ids[usize::try_from(position).unwrap_or(usize::MAX)]
}

/// Returns a drawn id as 32 bits, which suffice for any vocabulary.
fn narrow(id: u64) -> u32 {
    u32::try_from(id).unwrap_or(u32::MAX)
}

/// Returns the tools' `ceil(mean * ratio)`.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "lengths are far below 2^53, the ratio is small and positive"
)]
fn scaled_up(mean: u64, ratio: f64) -> u64 {
    (mean as f64 * ratio).ceil() as u64
}
