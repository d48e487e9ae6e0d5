//! State of the server's prefix cache around a run: reset before the clock starts, verified, and
//! primed if the scenario requires it; after the run, its hits are counted and the hits to expect
//! from the prompts computed.

use std::collections::BTreeSet;

use schema::canonical::sha256_hex;
use schema::engine::{ApiFormat, EngineFile};
use schema::manifest::{Manifest, ManifestRequest};
use schema::run::{CacheFacts, CacheState};
use schema::scenario::Scenario;
use serde_json::Value;

use crate::client::control::Server;
use crate::client::sample::Sample;
use crate::measure::summary::{float, whole};
use crate::measure::tally::is_planned;
use crate::telemetry::Watch;
use crate::workload::sampler::Plan;

/// Result of resetting the server's prefix cache before a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Emptied {
    /// The cache was not reset: the scenario requires no reset, the engine has no reset route (only
    /// a freshly started server has a cold cache), or the server did not answer the request with
    /// success.
    No,
    /// The cache was reset, and a second reset freed no pages, or the server does not report how
    /// many it freed.
    Yes,
    /// The cache was reset, but the first reset left pages behind, because a second one still freed
    /// some.
    NotAtOnce,
}

/// Resets the server's prefix cache twice and returns the result: a second reset that frees nothing
/// shows that the first one worked.
pub fn empty(server: &Server, engine: &EngineFile) -> Emptied {
    let Some(route) = &engine.cache.reset_route else { return Emptied::No };
    if server.post(route).is_err() {
        return Emptied::No;
    }
    // A server that does not report `freed_pages` is trusted to have reset its cache.
    let left = server.post(route).unwrap_or(Value::Null)["freed_pages"].as_u64();
    if left.unwrap_or(0) == 0 { Emptied::Yes } else { Emptied::NotAtOnce }
}

/// Returns the requests that prime the prefix cache: for each measured prompt one with its
/// beginning, the share `cache.share` of its tokens, and one output token. A prompt whose share is
/// less than one token gets no request; without priming in the scenario, none does.
pub fn priming(scenario: &Scenario, plan: &Plan) -> Vec<ManifestRequest> {
    let Some(share) = scenario.cache.share else { return Vec::new() };
    let begin = |request: &ManifestRequest| {
        let length = whole((share * float(request.prompt.len() as u64)).floor());
        let length = usize::try_from(length).unwrap_or(usize::MAX).min(request.prompt.len());
        let prompt = request.prompt[..length].to_vec();
        ManifestRequest { prompt, output_tokens: 1, ..ManifestRequest::default() }
    };
    let beginnings = plan.manifest.requests.iter().map(begin);
    beginnings.filter(|request| !request.prompt.is_empty()).collect()
}

/// State of the prefix cache around a run: the result of the reset, and the requests that primed
/// it.
#[derive(Clone, Debug)]
pub struct Observed {
    /// Result of resetting the prefix cache before the run.
    pub emptied: Emptied,
    /// Requests that primed the prefix cache before the clock started, in the order sent.
    pub priming: Vec<ManifestRequest>,
}

impl Observed {
    /// Returns the record's facts about the prefix cache, such as state, tokens queried, hits, and
    /// hits expected from the prompts.
    pub fn facts(
        &self,
        assignment: &super::Assignment<'_>,
        samples: &[Sample],
        watch: &Watch<'_>,
    ) -> CacheFacts {
        // Without a counter of the server, the `usage` of the answers still states the hits.
        let hits = watch.grown("prefix_hit_tokens").or_else(|| cached_in_usage(samples));
        let pages = assignment.probed.page_tokens.and_then(|tokens| usize::try_from(tokens).ok());
        // Prompts that were made without a tokenizer have no token ids to compare.
        let planned = is_planned(&assignment.plan.manifest);
        let expected = pages.filter(|_| planned).map(|pages| {
            // Hits among the priming requests happen before the clock starts and do not count.
            let ahead = expected_hit_tokens(&self.priming, pages);
            let all = [&self.priming[..], &assignment.plan.manifest.requests].concat();
            expected_hit_tokens(&all, pages) - ahead
        });
        let is_chat = assignment.engine.request.dialect() == ApiFormat::Chat;
        let templates = if is_chat { added_tokens(samples, &assignment.plan.manifest) } else { 0 };
        let expected = expected.map(|expected| expected + templates);
        let off = assignment.probed.probe.server.prefix_cache == Some(false);
        let primed = !self.priming.is_empty();
        let state = match self.emptied {
            // Without a prefix cache every request is computed in full.
            _ if off => CacheState::Cold,
            Emptied::Yes if !primed => CacheState::Cold,
            // Entries that a failed reset leaves behind have the same effect as priming.
            Emptied::Yes | Emptied::NotAtOnce => CacheState::Primed,
            Emptied::No => CacheState::Unknown,
        };
        let sent_ahead = self.priming.iter().map(|request| request.prompt.len() as u64).sum();
        CacheFacts {
            state,
            emptied: Some(matches!(self.emptied, Emptied::Yes)),
            query_tokens: watch.grown("prefix_query_tokens"),
            hit_tokens: hits,
            expected_hit_tokens: expected,
            primed_tokens: primed.then_some(sent_ahead),
        }
    }
}

/// Returns the largest number of prompt tokens that the requests of a run can take from a prefix
/// cache which no earlier request filled, whatever its page size: beginnings that prompts of
/// `manifest` share, and all tokens that are not the prompt's own. `None` where an answer does not
/// state the length of its prompt.
pub fn shared_tokens(samples: &[Sample], manifest: &Manifest) -> Option<u64> {
    let mut answers = samples.iter().filter(|sample| sample.is_ok());
    if answers.any(|sample| sample.usage.is_none()) {
        return None;
    }
    let ids = manifest.requests.iter().map(|request| request.prompt.as_slice());
    let ids: Vec<&[u32]> = ids.collect();
    // A token has at least one byte of the text.
    let texts = manifest.requests.iter().filter(|request| request.prompt.is_empty());
    let texts = texts.filter_map(|request| request.text.as_deref());
    let texts: Vec<&[u8]> = texts.map(str::as_bytes).collect();
    Some(common(ids) + common(texts) + added_tokens(samples, manifest))
}

/// Returns the total length of the beginnings that each prompt shares with one before it, in any
/// order of the prompts.
fn common<T: Ord>(mut prompts: Vec<&[T]>) -> u64 {
    // In sorted order, no earlier prompt has a longer beginning in common than the one before.
    prompts.sort_unstable();
    let shared = |pair: &[&[T]]| {
        let both = pair[0].iter().zip(pair[1]);
        both.take_while(|(left, right)| left == right).count() as u64
    };
    prompts.windows(2).map(shared).sum()
}

/// Returns the number of tokens of a request's prompt without those of a chat template: of its ids,
/// or one for each word of its text, which has at least one.
fn own_tokens(request: &ManifestRequest) -> u64 {
    let words = || request.text.as_deref().map_or(0, |text| text.split_whitespace().count());
    let tokens = if request.prompt.is_empty() { words() } else { request.prompt.len() };
    tokens as u64
}

/// Returns the number of tokens that the chat template, with the tools of a request, added to the
/// answered prompts. They are the same ones in all prompts, so that each may come from the cache.
fn added_tokens(samples: &[Sample], manifest: &Manifest) -> u64 {
    let answered = samples.iter().zip(&manifest.requests).filter(|(sample, _)| sample.is_ok());
    let added = answered.filter_map(|(sample, request)| {
        Some(sample.usage?.prompt_tokens.saturating_sub(own_tokens(request)))
    });
    added.sum()
}

fn cached_in_usage(samples: &[Sample]) -> Option<u64> {
    let ok = samples.iter().filter(|sample| sample.is_ok());
    ok.map(|sample| sample.usage?.cached_tokens).sum()
}

/// Returns the largest number of prompt tokens that an empty prefix cache with pages of
/// `page_tokens` tokens can serve when `requests` are sent in order.
///
/// A page counts when an earlier prompt has the same tokens from its start to the page's end. The
/// last token of a prompt is always computed, since its logits are needed. The number is an upper
/// bound: of two equal prompts in flight at once, the second may miss.
fn expected_hit_tokens(requests: &[ManifestRequest], page_tokens: usize) -> u64 {
    if page_tokens == 0 {
        return 0;
    }
    let mut seen = BTreeSet::new();
    let mut hits = 0;
    for request in requests {
        let usable = request.prompt.len().saturating_sub(1) / page_tokens;
        let mut leading = true;
        let mut chain = String::new();
        for (index, page) in request.prompt.chunks_exact(page_tokens).enumerate() {
            let tokens = page.iter().flat_map(|id| id.to_le_bytes());
            let bytes: Vec<u8> = chain.bytes().chain(tokens).collect();
            // The chained hash stands for the page and everything before it.
            chain = sha256_hex(&bytes);
            let new = seen.insert(chain.clone());
            // A cache matches prefixes only: after the first miss no later page hits.
            leading &= !new;
            if leading && index < usable {
                hits += page_tokens as u64;
            }
        }
    }
    hits
}

#[cfg(test)]
mod tests {
    use schema::run::PromptForm;

    use super::*;
    use crate::client::delta::Usage;

    fn request(prompt: Vec<u32>) -> ManifestRequest {
        ManifestRequest { prompt, output_tokens: 1, ..ManifestRequest::default() }
    }

    #[test]
    fn only_whole_leading_pages_seen_before_count() {
        let long: Vec<u32> = (0..40).collect();
        let mut other = long.clone();
        other[20] = 99;
        let cases = [
            ("one prompt cannot hit itself", vec![long.clone()], 0),
            ("a repeated prompt hits its whole pages", vec![long.clone(), long.clone()], 32),
            ("a difference in page two leaves page one", vec![long.clone(), other], 16),
            ("the last token is always computed", vec![long[..32].into(), long[..32].into()], 16),
            ("equal pages further on do not lead", vec![long.clone(), long[16..].into()], 0),
        ];
        for (claim, prompts, expected) in cases {
            let requests: Vec<_> = prompts.into_iter().map(request).collect();
            assert_eq!(expected_hit_tokens(&requests, 16), expected, "{claim}");
        }
    }

    /// Shared tokens of a run whose answers all report a prompt of `length` tokens, if any.
    fn shared(requests: Vec<ManifestRequest>, length: Option<u64>) -> Option<u64> {
        let usage = length.map(|prompt_tokens| Usage { prompt_tokens, ..Usage::default() });
        let samples = vec![Sample { usage, ..Sample::default() }; requests.len()];
        let manifest = Manifest {
            schema: String::new(),
            scenario: String::new(),
            seed: 1,
            prompt_form: PromptForm::Text,
            dataset_sha256: None,
            tokenizer_sha256: None,
            requests,
        };
        shared_tokens(&samples, &manifest)
    }

    #[test]
    fn a_run_shares_beginnings_of_prompts_and_what_the_template_adds() {
        let prompts = |all: [&[u32]; 3]| all.map(|ids| request(ids.to_vec())).to_vec();
        let three = prompts([&[1, 2, 3, 4], &[5, 2, 3, 4], &[1, 2, 9, 4]]);
        assert_eq!(shared(three.clone(), Some(4)), Some(2), "two tokens of one prompt");
        assert_eq!(shared(three.clone(), Some(10)), Some(2 + 3 * 6), "six tokens of a template");
        assert_eq!(shared(three, None), None);
        let same = prompts([&[1, 2], &[1, 2], &[1, 2]]);
        assert_eq!(shared(same, Some(2)), Some(4), "the first one is computed");
        let text = |text: &str| ManifestRequest {
            text: Some(text.to_owned()),
            ..ManifestRequest::default()
        };
        let words = vec![text("time year"), text("people way")];
        assert_eq!(shared(words.clone(), Some(2)), Some(0));
        assert_eq!(shared(words, Some(3)), Some(2), "each has a token more than words");
    }
}
