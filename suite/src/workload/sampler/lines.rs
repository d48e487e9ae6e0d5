//! Samplers of files with one request per line: traces in Mooncake's format, and the user's own
//! file.

use schema::scenario::Arrival;
use serde::Deserialize;

use super::draw::{Draw, Requests};
use crate::workload::generators::Pcg64;

/// Number of tokens in a block of a Mooncake trace.
const BLOCK_TOKENS: usize = 512;

/// Line of a trace: <https://github.com/kvcache-ai/Mooncake>, `FAST25-release`.
#[derive(Debug, Deserialize)]
struct Traced {
    /// Arrival time of the request, in milliseconds.
    timestamp: f64,
    input_length: usize,
    output_length: u64,
    /// Ids of the prompt's blocks of 512 tokens; an equal id means the same block after the same
    /// blocks.
    hash_ids: Vec<u64>,
}

/// Returns the first `count` requests of a trace by time, with times relative to the first one.
///
/// A trace has no text: the token ids of a block are drawn from `seed` and the block's id, so that
/// prompts share what the trace shares.
pub fn traced(draw: &Draw<'_>) -> anyhow::Result<Requests> {
    let (workload, dataset) = (draw.workload, draw.dataset()?);
    let mut lines: Vec<(usize, Traced)> = dataset.lines()?;
    lines.sort_by(|left, right| left.1.timestamp.total_cmp(&right.1.timestamp));
    lines.truncate(usize::try_from(workload.requests).unwrap_or(usize::MAX));
    let start = lines.first().map_or(0.0, |line| line.1.timestamp);
    let ids = draw.tokenizer.ordinary_ids();
    let mut requests = Vec::new();
    for (index, (number, line)) in lines.iter().enumerate() {
        // The last block may be used in part.
        let covered = line.hash_ids.len() * BLOCK_TOKENS;
        if line.input_length > covered {
            let message = format!(
                "its {} blocks cover {covered} of {} tokens",
                line.hash_ids.len(),
                line.input_length
            );
            return Err(dataset.line_error(*number, message));
        }
        let blocks = line.hash_ids.iter().flat_map(|block| block_ids(workload.seed, *block, &ids));
        let prompt: Vec<u32> = blocks.take(line.input_length).collect();
        let mut request = draw.of_ids(prompt, line.output_length, index)?;
        request.send_us = microseconds(line.timestamp - start);
        requests.push(request);
    }
    Ok(requests)
}

fn block_ids(seed: u64, block: u64, ids: &[u32]) -> Vec<u32> {
    let mut random = Pcg64::of_pair(seed, block);
    let mut position = || usize::try_from(random.integers(0, ids.len() as u64)).unwrap_or(0);
    (0..BLOCK_TOKENS).map(|_| ids[position()]).collect()
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "times of a trace are sorted, and far below 2^53 us"
)]
fn microseconds(ms: f64) -> u64 {
    (ms * 1000.0).round() as u64
}

/// Line of the user's own file.
#[derive(Debug, Deserialize)]
struct Own {
    prompt: OwnPrompt,
    output_tokens: Option<u64>,
    send_us: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum OwnPrompt {
    Text(String),
    Ids(Vec<u32>),
}

/// Returns all requests of the user's file, in its order.
pub fn own(draw: &Draw<'_>) -> anyhow::Result<Requests> {
    let (scenario, dataset) = (draw.scenario, draw.dataset()?);
    let timed = matches!(scenario.arrival, Arrival::Trace { .. });
    let mut requests = Vec::new();
    for (number, line) in dataset.lines::<Own>()? {
        let wrong = |message: &str| dataset.line_error(number, message.to_owned());
        let output_tokens = line
            .output_tokens
            .or(scenario.workload.output_tokens)
            .ok_or_else(|| wrong("it has no `output_tokens`, and neither has the scenario"))?;
        if timed && line.send_us.is_none() {
            return Err(wrong("it has no `send_us`, and `arrival.kind` is `trace`"));
        }
        let mut request = match line.prompt {
            OwnPrompt::Text(text) => draw.of_text(text, output_tokens, requests.len())?,
            OwnPrompt::Ids(ids) => draw.of_ids(ids, output_tokens, requests.len())?,
        };
        if request.prompt.is_empty() || output_tokens == 0 {
            return Err(wrong("its prompt or its answer has no tokens"));
        }
        request.send_us = line.send_us.unwrap_or(0);
        requests.push(request);
    }
    Ok(requests)
}
