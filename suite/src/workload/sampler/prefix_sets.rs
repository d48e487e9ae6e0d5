//! Samplers of groups with a shared prefix: `prefix-groups@sglang` and `prefix-repetition@vllm`.

use super::draw::{Draw, LowerBound, Requests, uniform};
use crate::workload::generators::PythonRandom;

/// Draws requests as SGLang's `generated-shared-prefix` does, with one turn and in shuffled order.
///
/// SGLang uses the vocabulary in the order of a hash map, which differs between processes; here the
/// ids are ascending.
pub fn sglang(draw: &Draw<'_>) -> anyhow::Result<Requests> {
    let Draw { workload, tokenizer, .. } = *draw;
    let groups = workload.groups.unwrap_or(1);
    let ratio = workload.range_ratio.unwrap_or(1.0);
    let mut numbers = draw.numpy()?;
    let mut lengths = |bound: Option<u64>, count: u64| match bound.unwrap_or(0) {
        // For a bound of zero, SGLang draws no length.
        0 => vec![0; usize::try_from(count).unwrap_or(0)],
        bound => uniform(&mut numbers, bound, ratio, count, LowerBound::One),
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

/// Draws requests as vLLM's `prefix_repetition` does.
///
/// As ids, prefix and suffix are sent as drawn, so that lengths and shared prefixes are exact; as
/// text, tokens may merge where the two meet.
pub fn vllm(draw: &Draw<'_>) -> anyhow::Result<Requests> {
    let Draw { workload, tokenizer, .. } = *draw;
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
