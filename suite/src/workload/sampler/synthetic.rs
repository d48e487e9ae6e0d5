//! Samplers of synthetic prompts. Those that run through the vocabulary, `random@vllm`,
//! `random@inferencex` and `random-ids@sglang`, draw lengths and a start id for each request, take consecutive ids from there,
//! and then decode and encode up to ten times until the text has the requested number of tokens.
//! `prefix-groups@sglang` and `prefix-repetition@vllm` have groups with a shared prefix.

use schema::manifest::ManifestRequest;
use schema::run::PromptForm;

use super::{Draw, Requests, filled, scaled, scaled_up, uniform};
use crate::workload::generators::{Pcg64, PythonRandom};

/// Draws requests as the dataset `random` of vLLM's benchmark tool does.
pub fn random_vllm(draw: &Draw<'_>) -> anyhow::Result<Requests> {
    let (workload, tokenizer) = (draw.workload, draw.tokenizer()?);
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
    filled(0, [("a prompt", prefix_tokens + shortest)])?;
    let ids = tokenizer.ordinary_ids();
    let count = ids.len() as u64;
    let prefix = (0..prefix_tokens).map(|_| at(&ids, random.integers(0, count))).collect();
    let mut settle =
        |ids| draw.settled(ids, || narrow(random.integers(0, size))).map(|found| found.0);
    Runs { prefix, ids: &ids, inputs, outputs, offsets }.requests(draw, &mut settle)
}

/// Draws requests as the dataset `random-ids` of SGLang's benchmark tool does. The text is that of
/// the drawn ids, for which the server may count another length.
pub fn random_ids_sglang(draw: &Draw<'_>) -> anyhow::Result<Requests> {
    let (workload, tokenizer) = (draw.workload, draw.tokenizer()?);
    let mut random = draw.numpy()?;
    let size = tokenizer.vocabulary_size() as u64;
    let ratio = workload.range_ratio.unwrap_or(1.0);
    let mut lengths =
        |bound: Option<u64>| uniform(&mut random, bound.unwrap_or(0), ratio, workload.requests, 1);
    let (inputs, outputs) = (lengths(workload.input_tokens), lengths(workload.output_tokens));
    let is_text = draw.form == PromptForm::Text;
    // The server adds its special tokens to a text.
    let specials = if is_text { tokenizer.specials_added() as u64 } else { 0 };
    let mut requests = Vec::new();
    for (index, (input, output_tokens)) in (0..).zip(inputs.into_iter().zip(outputs)) {
        let offset = random.randint(0, size) + index;
        let length = input.saturating_sub(specials).max(1);
        let prompt: Vec<u32> = (0..length).map(|j| narrow((offset + j) % size)).collect();
        let text = is_text.then(|| tokenizer.decode(&prompt)).transpose()?;
        requests.push(ManifestRequest { prompt, text, output_tokens, ..Default::default() });
    }
    Ok(requests)
}

/// Draws requests as the dataset `random` of InferenceX's benchmark tool does.
pub fn random_inferencex(draw: &Draw<'_>) -> anyhow::Result<Requests> {
    let (workload, tokenizer) = (draw.workload, draw.tokenizer()?);
    let mut random = draw.numpy()?;
    let size = tokenizer.vocabulary_size() as u64;
    let ratio = workload.range_ratio.unwrap_or(1.0);
    let prefix_tokens = workload.prefix_tokens.unwrap_or(0);
    // InferenceX draws the prefix before the lengths.
    let prefix = (0..prefix_tokens).map(|_| narrow(random.randint(0, size))).collect();
    let mut lengths =
        |bound: Option<u64>| uniform(&mut random, bound.unwrap_or(0), ratio, workload.requests, 0);
    let (inputs, outputs) = (lengths(workload.input_tokens), lengths(workload.output_tokens));
    let offsets = (0..workload.requests).map(|_| random.randint(0, size)).collect();
    let ids: Vec<u32> = (0..size).map(narrow).collect();
    let mut settle =
        |ids| draw.settled(ids, || narrow(random.randint(0, size))).map(|found| found.0);
    Runs { prefix, ids: &ids, inputs, outputs, offsets }.requests(draw, &mut settle)
}

/// Drawn values from which prompts that run through the vocabulary are built: a common prefix, and
/// an input length, an output length and a start position for each request.
struct Runs<'a> {
    prefix: Vec<u32>,
    /// Vocabulary ids from which a prompt takes consecutive ones, cyclically.
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

/// Returns the token id at `position` in `ids`, counted from 0; `ids` must be longer than that.
fn at(ids: &[u32], position: u64) -> u32 {
    ids[usize::try_from(position).unwrap_or(usize::MAX)]
}

/// Converts a drawn token id to 32 bits, which suffice for any vocabulary.
fn narrow(id: u64) -> u32 {
    u32::try_from(id).unwrap_or(u32::MAX)
}

/// Draws requests as the dataset `generated-shared-prefix` of SGLang's benchmark tool does, with
/// one turn and in shuffled order.
///
/// SGLang uses the vocabulary in the order of a hash map, which differs between processes; here the
/// ids are ascending.
pub fn prefix_groups_sglang(draw: &Draw<'_>) -> anyhow::Result<Requests> {
    let (workload, tokenizer) = (draw.workload, draw.tokenizer()?);
    let groups = workload.groups.unwrap_or(1);
    let ratio = workload.range_ratio.unwrap_or(1.0);
    let mut numbers = draw.numpy()?;
    let mut lengths = |bound: Option<u64>, count: u64| match bound.unwrap_or(0) {
        // For a bound of zero, SGLang draws no length.
        0 => vec![0; usize::try_from(count).unwrap_or(0)],
        bound => uniform(&mut numbers, bound, ratio, count, 1),
    };
    let prefix_lengths = lengths(workload.prefix_tokens, groups);
    let input_lengths = lengths(workload.input_tokens, workload.requests);
    let output_lengths = lengths(workload.output_tokens, workload.requests);
    let ids = tokenizer.ids();
    let mut random = PythonRandom::seed(workload.seed);
    let mut text = |length: u64| -> anyhow::Result<String> {
        tokenizer.decode(&random.choices(&ids, usize::try_from(length).unwrap_or(0)))
    };
    let texts = |lengths: Vec<u64>, text: &mut dyn FnMut(u64) -> anyhow::Result<String>| {
        lengths.into_iter().map(text).collect::<Result<Vec<String>, _>>()
    };
    let prefixes = texts(prefix_lengths, &mut text)?;
    let questions = texts(input_lengths, &mut text)?;
    let per_group = (questions.len() / prefixes.len().max(1)).max(1);
    let mut requests = Vec::new();
    for (index, (question, output)) in questions.iter().zip(output_lengths).enumerate() {
        let text = format!("{}\n\n{question}", prefixes[index / per_group]);
        requests.push(draw.of_text(text, output, index)?);
    }
    // SGLang shuffles with the generator that drew the texts.
    random.shuffle(&mut requests);
    Ok(requests)
}

/// Draws requests as the dataset `prefix_repetition` of vLLM's benchmark tool does.
///
/// As ids, prefix and suffix are sent as drawn, so that lengths and shared prefixes are exact; as
/// text, tokens may merge where the two meet.
pub fn prefix_repetition_vllm(draw: &Draw<'_>) -> anyhow::Result<Requests> {
    let (workload, tokenizer) = (draw.workload, draw.tokenizer()?);
    let groups = workload.groups.unwrap_or(1);
    let size = tokenizer.vocabulary_size() as u64;
    let mut numbers = draw.numpy()?;
    let mut id = || u32::try_from(numbers.randint(0, size)).unwrap_or(u32::MAX);
    let mut drawn = |length: Option<u64>| {
        let ids = (0..length.unwrap_or(0)).map(|_| id()).collect();
        draw.settled(ids, &mut id).map(|found| found.1)
    };
    let output_tokens = workload.output_tokens.unwrap_or(0);
    let mut requests = Vec::new();
    for _ in 0..groups {
        let prefix = drawn(workload.prefix_tokens)?;
        for _ in 0..workload.requests / groups.max(1) {
            let prompt = [&prefix[..], &drawn(workload.input_tokens)?].concat();
            requests.push(draw.of_ids(prompt, output_tokens, requests.len())?);
        }
    }
    PythonRandom::seed(workload.seed).shuffle(&mut requests);
    Ok(requests)
}
