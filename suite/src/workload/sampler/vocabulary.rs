//! Samplers of synthetic prompts that run through the vocabulary: `random@vllm` and
//! `random@inferencex`.
//!
//! Both draw lengths and a start id for each request, take consecutive ids from there, and then
//! decode and encode up to ten times until the text has the requested number of tokens.

use super::draw::{Draw, LowerBound, Requests, empty, scaled, scaled_up, uniform};
use crate::workload::generators::Pcg64;

/// Draws requests as vLLM's `random` does.
pub fn vllm(draw: &Draw<'_>) -> anyhow::Result<Requests> {
    let Draw { workload, tokenizer, .. } = *draw;
    let mut random = Pcg64::seed(workload.seed);
    let size = tokenizer.vocabulary_size() as u64;
    let ratio = workload.range_ratio.unwrap_or(0.0);
    let specials = tokenizer.specials_added() as u64;
    let input = workload.input_tokens.unwrap_or(0).saturating_sub(specials);
    let output = workload.output_tokens.unwrap_or(0);
    let prefix_tokens = workload.prefix_tokens.unwrap_or(0);
    let shortest = scaled(input, 1.0 - ratio);
    let mut lengths = |low: u64, high: u64| -> Vec<u64> {
        (0..workload.requests).map(|_| random.integers(low, high + 1)).collect()
    };
    // The order of draws is vLLM's: lengths, offsets, prefix.
    let inputs = lengths(shortest, scaled_up(input, 1.0 + ratio));
    let least = scaled(output, 1.0 - ratio).max(1);
    let outputs = lengths(least, scaled_up(output, 1.0 + ratio).max(1));
    let offsets = lengths(0, size - 1);
    if prefix_tokens + shortest == 0 {
        return Err(empty(0, "a prompt"));
    }
    let ids = tokenizer.ordinary_ids();
    let count = ids.len() as u64;
    let prefix = (0..prefix_tokens).map(|_| at(&ids, random.integers(0, count))).collect();
    let mut settle =
        |ids| draw.settled(ids, || narrow(random.integers(0, size))).map(|found| found.0);
    Runs { prefix, ids: &ids, inputs, outputs, offsets }.requests(draw, &mut settle)
}

/// Draws requests as InferenceX's `random` does.
pub fn inferencex(draw: &Draw<'_>) -> anyhow::Result<Requests> {
    let Draw { workload, tokenizer, .. } = *draw;
    let mut random = draw.numpy()?;
    let size = tokenizer.vocabulary_size() as u64;
    let ratio = workload.range_ratio.unwrap_or(1.0);
    let prefix_tokens = workload.prefix_tokens.unwrap_or(0);
    // InferenceX draws the prefix before the lengths.
    let prefix = (0..prefix_tokens).map(|_| narrow(random.randint(0, size))).collect();
    let mut lengths = |bound: Option<u64>| {
        uniform(&mut random, bound.unwrap_or(0), ratio, workload.requests, LowerBound::Zero)
    };
    let (inputs, outputs) = (lengths(workload.input_tokens), lengths(workload.output_tokens));
    let offsets = (0..workload.requests).map(|_| random.randint(0, size)).collect();
    let ids: Vec<u32> = (0..size).map(narrow).collect();
    let mut settle =
        |ids| draw.settled(ids, || narrow(random.randint(0, size))).map(|found| found.0);
    Runs { prefix, ids: &ids, inputs, outputs, offsets }.requests(draw, &mut settle)
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
        draw: &Draw<'_>,
        settle: &mut dyn FnMut(Vec<u32>) -> anyhow::Result<String>,
    ) -> anyhow::Result<Requests> {
        let lengths = self.inputs.iter().zip(&self.outputs);
        let mut requests = Vec::new();
        for (index, ((input, output), offset)) in lengths.zip(&self.offsets).enumerate() {
            let count = self.ids.len() as u64;
            let run = (0..*input).map(|j| at(self.ids, (offset + index as u64 + j) % count));
            let text = settle(self.prefix.iter().copied().chain(run).collect())?;
            requests.push(draw.of_text(text, *output, index)?);
        }
        Ok(requests)
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
