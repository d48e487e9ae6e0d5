//! State of the server's prefix cache around a run: reset before the clock starts, verified, primed
//! if the scenario wants it, and its hits counted afterwards.

use schema::engine::EngineFile;
use schema::manifest::ManifestRequest;
use schema::run::{CacheFacts, CacheState};
use schema::scenario::Scenario;
use serde_json::Value;

use crate::client::control::Server;
use crate::client::sample::Sample;
use crate::measure::summary::float;
use crate::telemetry::Watch;
use crate::workload::prefix::expected_hit_tokens;
use crate::workload::sampler::Plan;

/// Result of resetting the server's prefix cache before the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Emptied {
    /// The scenario uses the cache as it is, so no reset was requested.
    NotAsked,
    /// The engine has no reset route: only a freshly started server has a cold cache.
    Impossible,
    /// The server answered the reset request with an error, or not at all.
    Refused,
    /// The cache was reset, and a second reset freed nothing, or the server does not report what it
    /// freed.
    Yes,
    /// A second reset still freed pages, so the first had left some.
    NotAtOnce,
}

/// Resets the prefix cache twice: a second reset that frees nothing proves that the first one
/// worked.
pub fn empty(server: &Server, engine: &EngineFile) -> Emptied {
    let Some(route) = &engine.cache.reset_route else { return Emptied::Impossible };
    if server.post(route).is_err() {
        return Emptied::Refused;
    }
    // A server that does not report `freed_pages` is trusted to have reset its cache.
    let left = server.post(route).unwrap_or(Value::Null)["freed_pages"].as_u64();
    if left.unwrap_or(0) == 0 { Emptied::Yes } else { Emptied::NotAtOnce }
}

/// Requests that prime the prefix cache with the first `cache.share` of each measured prompt, one
/// output token each; empty if the scenario does not prime.
pub fn priming(scenario: &Scenario, plan: &Plan) -> Vec<ManifestRequest> {
    let Some(share) = scenario.cache.share else { return Vec::new() };
    let begin = |request: &ManifestRequest| {
        let length = share * float(request.prompt.len() as u64);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share of a prompt's length"
        )]
        let prompt = request.prompt[..length as usize].to_vec();
        ManifestRequest { prompt, output_tokens: 1, ..ManifestRequest::default() }
    };
    let beginnings = plan.manifest.requests.iter().map(begin);
    beginnings.filter(|request| !request.prompt.is_empty()).collect()
}

/// State of the prefix cache around a run: the result of the reset, and the requests that primed
/// it.
#[derive(Clone, Debug)]
pub struct Observed {
    /// Result of resetting the cache before the run.
    pub emptied: Emptied,
    /// Requests that primed the cache before the clock started, in the order sent.
    pub priming: Vec<ManifestRequest>,
}

impl Observed {
    /// Facts of the record about the prefix cache: state, tokens queried, hits, and hits expected
    /// from the prompts.
    pub fn facts(
        &self,
        assignment: &super::Assignment<'_>,
        samples: &[Sample],
        watch: &Watch<'_>,
    ) -> CacheFacts {
        // Without a counter of the server, the `usage` of the answers still states the hits.
        let hits = watch.grown("prefix_hit_tokens").or_else(|| cached_in_usage(samples));
        let pages = assignment.page_tokens.and_then(|tokens| usize::try_from(tokens).ok());
        let expected = pages.map(|pages| {
            // Hits among the priming requests happen before the clock starts and do not count.
            let ahead = expected_hit_tokens(&self.priming, pages);
            let all = [&self.priming[..], &assignment.plan.manifest.requests].concat();
            expected_hit_tokens(&all, pages) - ahead
        });
        let off = assignment.prefix_cache == Some(false);
        let primed = !self.priming.is_empty();
        let state = match self.emptied {
            // Without a prefix cache every request is computed in full.
            _ if off => CacheState::Cold,
            Emptied::Yes if !primed => CacheState::Cold,
            // Entries that a failed reset leaves behind have the same effect as priming.
            Emptied::Yes | Emptied::NotAtOnce => CacheState::Primed,
            Emptied::NotAsked | Emptied::Impossible | Emptied::Refused => CacheState::Unknown,
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

fn cached_in_usage(samples: &[Sample]) -> Option<u64> {
    let ok = samples.iter().filter(|sample| sample.is_ok());
    ok.map(|sample| sample.usage?.cached_tokens).sum()
}
