//! Counts over all requests of a run, and the number of output tokens that each request and each of
//! its chunks is credited with.
//!
//! Sources of token counts, in order of trust: the server's own count, token ids, the suite's
//! tokenizer, chunks. The requested number is never credited.

use std::collections::BTreeMap;

use schema::manifest::Manifest;
use schema::run::{Counts, TokenSource};

use crate::client::sample::{ChunkStamp, Sample};
use crate::workload::tokenizer::Tokenizer;

/// Output tokens that a request is credited with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credit {
    /// Number of output tokens that the whole answer is credited with.
    pub tokens: u64,
    /// Source of the number of output tokens of the whole answer.
    pub source: TokenSource,
    /// Number of output tokens that each chunk of the answer is credited with.
    pub per_chunk: Vec<u64>,
    /// Source of the number of tokens in each chunk of the answer; `None` if the numbers are only
    /// estimated by the length of its text.
    pub chunk_source: Option<TokenSource>,
    /// Number of output tokens shown by token ids or running usage in the chunks, to be compared
    /// with the final count; `None` if there is no chunk or one shows neither.
    pub seen: Option<u64>,
}

/// Token counts of an answer's text by the suite's own tokenizer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Retokenized {
    /// Number of tokens in the whole text of the answer, by the suite's own tokenizer.
    pub tokens: u64,
    /// Number of the text's tokens that end in each chunk; `None` where every chunk shows its
    /// number of tokens itself.
    pub per_chunk: Option<Vec<u64>>,
}

/// Determines the output tokens that a sample's request is credited with, and their sources.
pub fn credit(sample: &Sample, retokenized: Option<&Retokenized>) -> Credit {
    let chunks = sample.chunks.len() as u64;
    let told: Option<Vec<u64>> =
        sample.chunks.iter().map(|chunk| chunk.tokens.map(u64::from)).collect();
    let seen = told.as_ref().map(|tokens| tokens.iter().sum()).filter(|_| chunks > 0);
    let (tokens, source) = match (sample.usage, seen, retokenized) {
        (Some(usage), _, _) if sample.usage_per_chunk => {
            (usage.completion_tokens, TokenSource::UsagePerChunk)
        }
        (Some(usage), _, _) => (usage.completion_tokens, TokenSource::Usage),
        (None, Some(seen), _) => (seen, TokenSource::UsagePerChunk),
        (None, None, Some(found)) if found.tokens > 0 => (found.tokens, TokenSource::Retokenized),
        _ => (chunks, TokenSource::Chunks),
    };
    let found = retokenized.and_then(|found| found.per_chunk.as_ref());
    let found = found.filter(|found| found.iter().any(|tokens| *tokens > 0));
    let (per_chunk, chunk_source) = match (told, found) {
        (Some(told), _) if chunks > 0 => (told, Some(TokenSource::UsagePerChunk)),
        _ if tokens == chunks => (vec![1; sample.chunks.len()], Some(TokenSource::Chunks)),
        (_, Some(found)) => (spread(tokens, found), Some(TokenSource::Retokenized)),
        _ => {
            let bytes = |chunk: &ChunkStamp| u64::from(chunk.text_bytes.max(1));
            (spread(tokens, &sample.chunks.iter().map(bytes).collect::<Vec<_>>()), None)
        }
    };
    Credit { tokens, source, per_chunk, chunk_source, seen }
}

/// Returns the number of tokens that end in each chunk, given the byte offsets `ends` in the whole
/// text at which tokens end. A token that ends beyond the chunks' text belongs to the last chunk.
pub fn tokens_per_chunk(ends: &[usize], chunks: &[ChunkStamp]) -> Vec<u64> {
    let mut per_chunk = vec![0; chunks.len()];
    let (mut chunk, mut chunk_end) = (0, chunks.first().map_or(0, bytes_of));
    for end in ends {
        while *end > chunk_end && chunk + 1 < chunks.len() {
            chunk += 1;
            chunk_end += bytes_of(&chunks[chunk]);
        }
        if let Some(tokens) = per_chunk.get_mut(chunk) {
            *tokens += 1;
        }
    }
    per_chunk
}

fn bytes_of(chunk: &ChunkStamp) -> usize {
    usize::try_from(chunk.text_bytes).unwrap_or(usize::MAX)
}

/// Distributes a number of tokens in proportion to `weights`; the parts add up to `tokens` if a
/// weight is above zero.
fn spread(tokens: u64, weights: &[u64]) -> Vec<u64> {
    let total: u128 = weights.iter().copied().map(u128::from).sum();
    let (mut before, mut given) = (0, 0);
    let share = |weight: &u64| {
        before += u128::from(*weight);
        // The cumulated share less what was given, so that rounding errors do not add up.
        let due = u128::from(tokens) * before / total.max(1);
        let due = u64::try_from(due).unwrap_or(tokens);
        let now = due - given;
        given = due;
        now
    };
    weights.iter().map(share).collect()
}

/// Answered request with its token counts.
#[derive(Clone, Debug)]
pub struct Answered<'a> {
    /// Sample of the request, with its times and chunks.
    pub sample: &'a Sample,
    /// Output tokens that the request is credited with.
    pub credit: Credit,
    /// Number of the request's prompt tokens: of the workload manifest, or, where the prompt was
    /// made without a tokenizer, of the server's usage. `None` if neither is known.
    pub prompt_tokens: Option<u64>,
    /// Number of output tokens that the request asked for.
    pub requested: u64,
    /// Number of tokens in the answer's text by the suite's own tokenizer; `None` if it cannot
    /// tokenize the text, and for a tool call, of which the text is only a part.
    pub retokenized: Option<u64>,
    /// Number of output tokens whose ids decode to the answer's text, 0 where they decode to another;
    /// `None` where the server returned no ids.
    pub decoded: Option<u64>,
}

/// Returns the answered requests of a run with their token counts.
pub fn answered<'a>(
    samples: &'a [Sample],
    manifest: &Manifest,
    tokenizer: Option<&Tokenizer>,
) -> Vec<Answered<'a>> {
    let ok = samples.iter().zip(&manifest.requests).filter(|(sample, _)| sample.is_ok());
    ok.map(|(sample, request)| {
        let retokenized = tokenizer.and_then(|tokenizer| retokenized(sample, tokenizer));
        let planned = Some(request.prompt.len() as u64).filter(|_| is_planned(manifest));
        Answered {
            sample,
            credit: credit(sample, retokenized.as_ref()),
            prompt_tokens: planned.or(sample.usage.map(|usage| usage.prompt_tokens)),
            requested: request.output_tokens,
            // The text of a tool call lacks tokens that the model wrote: its count would be too small.
            retokenized: retokenized.filter(|_| !sample.has_tool_call).map(|found| found.tokens),
            decoded: tokenizer.and_then(|tokenizer| decoded(sample, tokenizer)),
        }
    })
    .collect()
}

/// True when the lengths of the manifest's prompts are known before they are sent, because they were
/// made with a tokenizer.
pub fn is_planned(manifest: &Manifest) -> bool {
    manifest.tokenizer_sha256.is_some()
}

/// Test helper: returns each sample as an answered request with one prompt token and one requested
/// output token, whose output tokens the suite's own tokenizer has not counted.
#[cfg(test)]
pub fn untokenized(samples: &[Sample]) -> Vec<Answered<'_>> {
    let answered = |sample| Answered {
        sample,
        credit: credit(sample, None),
        prompt_tokens: Some(1),
        requested: 1,
        retokenized: None,
        decoded: None,
    };
    samples.iter().map(answered).collect()
}

/// Counts the tokens of an answer's text by the suite's own tokenizer, also for each chunk where a
/// chunk does not show its number of tokens; `None` if the text cannot be tokenized.
fn retokenized(sample: &Sample, tokenizer: &Tokenizer) -> Option<Retokenized> {
    if sample.chunks.iter().all(|chunk| chunk.tokens.is_some()) {
        let tokens = tokenizer.count(&sample.text).ok()?;
        return Some(Retokenized { tokens, per_chunk: None });
    }
    let ends = tokenizer.token_ends(&sample.text).ok()?;
    let per_chunk = Some(tokens_per_chunk(&ends, &sample.chunks));
    Some(Retokenized { tokens: ends.len() as u64, per_chunk })
}

/// Counts the output tokens whose ids the server returned, if they decode to the answer's text; 0 if
/// not, and `None` where the server returned no ids. Ids that stand for no text, such as special
/// tokens, are not counted, so that they cannot make an answer longer.
fn decoded(sample: &Sample, tokenizer: &Tokenizer) -> Option<u64> {
    if sample.ids.is_empty() {
        return None;
    }
    let ids = tokenizer.ids_with_text(&sample.ids);
    let is_text = tokenizer.decode(&ids).is_ok_and(|text| text == sample.text);
    Some(if is_text { ids.len() as u64 } else { 0 })
}

/// Counts the requests, failures and tokens of a run. Token counts include only answered requests,
/// so that they match the times; tokens of failed requests are not counted.
pub fn counts(samples: &[Sample], answered: &[Answered<'_>], manifest: &Manifest) -> Counts {
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
    let input_tokens: Option<u64> = answered.iter().map(|request| request.prompt_tokens).sum();
    let is_reported = !is_planned(manifest) && input_tokens.is_some();
    Counts {
        requests_planned: Some(samples.len() as u64),
        requests_ok: Some(answered.len() as u64),
        requests_failed: Some((samples.len() - answered.len()) as u64),
        failures: Some(failures),
        finish_reasons: Some(finish_reasons),
        input_tokens,
        input_token_source: is_reported.then_some(TokenSource::Usage),
        output_tokens_requested: sum(|request| request.requested),
        output_tokens_reported: sum(|request| request.credit.tokens),
        output_tokens_retokenized: retokenized,
        output_tokens_decoded: answered.iter().map(|request| request.decoded).sum(),
        output_chunks: sum(|request| request.sample.chunks.len() as u64),
        token_source: least_trusted(answered.iter().map(|request| request.credit.source)),
        chunk_token_source: chunk_source(answered),
    }
}

/// Returns the least trusted source of the numbers of tokens in chunks; `None` if those of some
/// answer are only estimated, or there is no answer.
fn chunk_source(answered: &[Answered<'_>]) -> Option<TokenSource> {
    let ranked = |request: &Answered<'_>| {
        let source = request.credit.chunk_source?;
        // Chunks that are as many as the tokens which something else has counted are not a guess:
        // the count of the whole answer confirms them.
        let is_confirmed =
            source == TokenSource::Chunks && request.credit.source != TokenSource::Chunks;
        Some((trust(if is_confirmed { request.credit.source } else { source }), source))
    };
    let sources: Option<Vec<_>> = answered.iter().map(ranked).collect();
    sources?.into_iter().max_by_key(|(rank, _)| *rank).map(|(_, source)| source)
}

fn least_trusted(sources: impl Iterator<Item = TokenSource>) -> Option<TokenSource> {
    sources.max_by_key(|source| trust(*source))
}

/// Returns the rank of a source of token counts: the larger, the less it is trusted.
fn trust(source: TokenSource) -> u8 {
    match source {
        TokenSource::UsagePerChunk => 0,
        TokenSource::Usage => 1,
        TokenSource::Retokenized => 2,
        TokenSource::Chunks => 3,
        TokenSource::Requested => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::delta::Usage;

    fn sample(chunks: &[(Option<u32>, u32)], usage: Option<u64>) -> Sample {
        let stamp = |(tokens, text_bytes): &(Option<u32>, u32)| ChunkStamp {
            at_ns: 0,
            lag_ns: 0,
            early_ns: 0,
            tokens: *tokens,
            text_bytes: *text_bytes,
        };
        Sample {
            chunks: chunks.iter().map(stamp).collect(),
            usage: usage.map(|completion_tokens| Usage { completion_tokens, ..Usage::default() }),
            ..Sample::default()
        }
    }

    #[test]
    fn the_most_trusted_count_is_credited() {
        type Case =
            (&'static str, Vec<(Option<u32>, u32)>, Option<u64>, Option<u64>, (u64, TokenSource));
        let told = vec![(Some(2), 4), (Some(1), 2)];
        let bare = vec![(None, 4), (None, 2)];
        let cases: [Case; 5] = [
            ("usage before ids", told.clone(), Some(4), None, (4, TokenSource::Usage)),
            ("ids where no usage", told, None, Some(9), (3, TokenSource::UsagePerChunk)),
            ("our own count", bare.clone(), None, Some(5), (5, TokenSource::Retokenized)),
            ("chunks at last", bare.clone(), None, None, (2, TokenSource::Chunks)),
            ("chunks where no text", bare, None, Some(0), (2, TokenSource::Chunks)),
        ];
        for (claim, chunks, usage, retokenized, expected) in cases {
            let retokenized = retokenized.map(|tokens| Retokenized { tokens, per_chunk: None });
            let found = credit(&sample(&chunks, usage), retokenized.as_ref());
            assert_eq!((found.tokens, found.source), expected, "{claim}");
        }
    }

    #[test]
    fn ids_that_make_the_text_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let text = r#"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],
            "normalizer":null,"pre_tokenizer":{"type":"Whitespace"},"post_processor":null,
            "decoder":null,"model":{"type":"WordLevel","vocab":{"a":0,"b":1},"unk_token":"a"}}"#;
        std::fs::write(folder.path().join("tokenizer.json"), text).unwrap();
        let tokenizer = Tokenizer::open(folder.path()).unwrap();
        for (ids, text, expected) in [
            (vec![], "b a", None),
            (vec![1, 0], "b a", Some(2)),
            (vec![1, 7, 0], "b a", Some(2)),
            (vec![1, 0], "b b", Some(0)),
            (vec![1, 0], "b a a", Some(0)),
        ] {
            let sample = Sample { ids: ids.clone(), text: text.to_owned(), ..Sample::default() };
            assert_eq!(decoded(&sample, &tokenizer), expected, "{ids:?} {text}");
        }
    }

    #[test]
    fn tokens_of_chunks_are_told_or_one_each_or_spread_by_text() {
        let told = credit(&sample(&[(Some(2), 4), (Some(1), 2)], Some(3)), None);
        let source = Some(TokenSource::UsagePerChunk);
        assert_eq!((told.per_chunk, told.chunk_source, told.seen), (vec![2, 1], source, Some(3)));
        let one_each = credit(&sample(&[(None, 9), (None, 1)], Some(2)), None);
        let source = Some(TokenSource::Chunks);
        assert_eq!((one_each.per_chunk, one_each.chunk_source), (vec![1, 1], source));
        let spread = credit(&sample(&[(None, 10), (None, 30), (None, 0)], Some(7)), None);
        assert_eq!((spread.per_chunk, spread.chunk_source), (vec![1, 5, 1], None));
    }

    #[test]
    fn an_answer_with_as_many_chunks_as_tokens_does_not_speak_for_those_with_more() {
        // As llama.cpp sends them: most answers have a chunk more than tokens, whose text is held
        // back until its bytes are whole; of one, both counts are equal.
        let retokenized = Retokenized { tokens: 2, per_chunk: Some(vec![1, 0, 1]) };
        let more = sample(&[(None, 4), (None, 0), (None, 2)], Some(2));
        let equal = sample(&[(None, 4), (None, 2)], Some(2));
        fn answer<'a>(sample: &'a Sample, retokenized: Option<&Retokenized>) -> Answered<'a> {
            let mut answered = untokenized(std::slice::from_ref(sample));
            answered[0].credit = credit(sample, retokenized);
            answered.remove(0)
        }
        let most = || answer(&more, Some(&retokenized));
        let found = chunk_source(&[most(), answer(&equal, None), most()]);
        assert_eq!(found, Some(TokenSource::Retokenized));
        let alone = chunk_source(&[answer(&equal, None)]);
        assert_eq!(alone, Some(TokenSource::Chunks), "one token in each");
        // Without any count of tokens, chunks are the last resort.
        let uncounted = sample(&[(None, 4), (None, 2)], None);
        let found = chunk_source(&[most(), answer(&uncounted, None)]);
        assert_eq!(found, Some(TokenSource::Chunks));
    }

    #[test]
    fn where_only_the_sum_is_told_our_own_tokenizer_says_which_chunk_holds_how_many() {
        // Tokens end at bytes 2, 5, 6, 9 and 12 of chunks that end at 4, 6 and 12.
        let chunks = [(None, 4), (None, 2), (None, 6)];
        let with_usage = sample(&chunks, Some(5));
        let per_chunk = tokens_per_chunk(&[2, 5, 6, 9, 12], &with_usage.chunks);
        assert_eq!(per_chunk, [1, 2, 2]);
        let found = Retokenized { tokens: 5, per_chunk: Some(per_chunk) };
        let credited = credit(&with_usage, Some(&found));
        let source = Some(TokenSource::Retokenized);
        assert_eq!((credited.per_chunk, credited.chunk_source), (vec![1, 2, 2], source));
        let more = credit(&sample(&chunks, Some(10)), Some(&found));
        assert_eq!((more.tokens, more.per_chunk), (10, vec![2, 4, 4]), "the server's sum is kept");
        assert_eq!(tokens_per_chunk(&[1, 99], &with_usage.chunks), [1, 0, 1]);
        assert_eq!(tokens_per_chunk(&[1], &[]), [0; 0]);
    }
}
