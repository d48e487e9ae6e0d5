//! What was asked, answered and counted, over all requests of a run.

use std::collections::BTreeMap;

use schema::manifest::Manifest;
use schema::run::{Counts, TokenSource};

use super::credit::{Credit, Retokenized, credit, tokens_per_chunk};
use crate::client::sample::Sample;
use crate::workload::tokenizer::Tokenizer;

/// A request that was answered, with its tokens.
#[derive(Clone, Debug)]
pub struct Answered<'a> {
    /// Its times.
    pub sample: &'a Sample,
    /// Its output tokens.
    pub credit: Credit,
    /// As the manifest has them.
    pub prompt_tokens: u64,
    /// Output tokens that were asked for.
    pub requested: u64,
    /// Tokens that our own tokenizer makes of the answer; none where it was not asked.
    pub retokenized: Option<u64>,
}

/// Credits every request that was answered.
pub fn answered<'a>(
    samples: &'a [Sample],
    manifest: &Manifest,
    tokenizer: &Tokenizer,
) -> Vec<Answered<'a>> {
    let ok = samples.iter().zip(&manifest.requests).filter(|(sample, _)| sample.is_ok());
    ok.map(|(sample, request)| {
        let retokenized = retokenized(sample, tokenizer);
        Answered {
            sample,
            credit: credit(sample, retokenized.as_ref()),
            prompt_tokens: request.prompt.len() as u64,
            requested: request.output_tokens,
            retokenized: retokenized.map(|found| found.tokens),
        }
    })
    .collect()
}

/// The text of an answer in our own tokens, chunk by chunk where nothing else tells.
fn retokenized(sample: &Sample, tokenizer: &Tokenizer) -> Option<Retokenized> {
    if sample.chunks.iter().all(|chunk| chunk.tokens.is_some()) {
        let tokens = tokenizer.count(&sample.text).ok()?;
        return Some(Retokenized { tokens, per_chunk: None });
    }
    let ends = tokenizer.token_ends(&sample.text).ok()?;
    let per_chunk = Some(tokens_per_chunk(&ends, &sample.chunks));
    Some(Retokenized { tokens: ends.len() as u64, per_chunk })
}

/// Counts a run. Token counts are over the requests that were answered, so that they stand to
/// each other and to the times as they should; what a failed request produced is not counted.
pub fn counts(samples: &[Sample], answered: &[Answered<'_>]) -> Counts {
    let mut failures = BTreeMap::new();
    let mut finish_reasons = BTreeMap::new();
    for sample in samples {
        if let Some(failure) = &sample.failure {
            *failures.entry(failure.kind.to_string()).or_insert(0) += 1;
        } else {
            let reason = sample.finish_reason.clone().unwrap_or_else(|| "none given".to_owned());
            *finish_reasons.entry(reason).or_insert(0) += 1;
        }
    }
    let sum = |count: fn(&Answered<'_>) -> u64| Some(answered.iter().map(count).sum());
    let retokenized: Option<u64> = answered.iter().map(|request| request.retokenized).sum();
    Counts {
        requests_planned: Some(samples.len() as u64),
        requests_ok: Some(answered.len() as u64),
        requests_failed: Some((samples.len() - answered.len()) as u64),
        failures: Some(failures),
        finish_reasons: Some(finish_reasons),
        input_tokens: sum(|request| request.prompt_tokens),
        output_tokens_requested: sum(|request| request.requested),
        output_tokens_reported: sum(|request| request.credit.tokens),
        output_tokens_retokenized: retokenized,
        output_chunks: sum(|request| request.sample.chunks.len() as u64),
        token_source: least_trusted(answered.iter().map(|request| request.credit.source)),
        chunk_token_source: chunk_source(answered),
    }
}

/// How the tokens of chunks are known; none where those of some answer are not.
fn chunk_source(answered: &[Answered<'_>]) -> Option<TokenSource> {
    let sources: Option<Vec<_>> =
        answered.iter().map(|request| request.credit.chunk_source).collect();
    least_trusted(sources?.into_iter())
}

fn least_trusted(sources: impl Iterator<Item = TokenSource>) -> Option<TokenSource> {
    let trust = |source: &TokenSource| match source {
        TokenSource::UsagePerChunk => 0,
        TokenSource::Usage => 1,
        TokenSource::Retokenized => 2,
        TokenSource::Chunks => 3,
        TokenSource::Requested => 4,
    };
    sources.max_by_key(trust)
}
