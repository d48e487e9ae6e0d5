//! Sampler of prompts that need neither dataset nor tokenizer: common English words, drawn with the
//! workload's seed and sent as text. Most of these words are one token in the vocabularies in use, so
//! that a prompt's length in tokens is close to its number of words; the tokenizer counts it if one
//! is given, else the server.

use schema::manifest::ManifestRequest;

use super::{Draw, Requests, filled};
use crate::workload::generators::PythonRandom;

/// Words of the prompts, separated by white space.
const WORDS: &str = include_str!("words.txt");

/// Draws requests of `input_tokens` words and `output_tokens` output tokens each.
///
/// # Errors
/// A length is zero, or the tokenizer rejects a prompt.
pub fn words(draw: &Draw<'_>) -> anyhow::Result<Requests> {
    let workload = draw.workload;
    let words: Vec<&str> = WORDS.split_whitespace().collect();
    let (input, output) = (workload.input_tokens.unwrap_or(0), workload.output_tokens.unwrap_or(0));
    let length = usize::try_from(input).unwrap_or(usize::MAX);
    let mut random = PythonRandom::seed(workload.seed);
    let mut requests = Requests::new();
    for index in 0..usize::try_from(workload.requests).unwrap_or(usize::MAX) {
        filled(index, [("a prompt", input), ("an answer", output)])?;
        let text = random.choices(&words, length).join(" ");
        let prompt = draw.tokenizer.map(|tokenizer| tokenizer.encode(&text)).transpose()?;
        requests.push(ManifestRequest {
            prompt: prompt.unwrap_or_default(),
            text: Some(text),
            output_tokens: output,
            ..ManifestRequest::default()
        });
    }
    Ok(requests)
}
