//! The server's prefix cache: emptied before the clock starts, read back, primed where the scenario
//! asks for it, and counted after.

use schema::engine::EngineFile;
use schema::manifest::ManifestRequest;
use schema::run::{CacheFacts, CacheState};
use schema::scenario::Scenario;
use serde_json::Value;

use crate::client::control::Server;
use crate::client::sample::Sample;
use crate::measure::Reasons;
use crate::measure::summary::float;
use crate::telemetry::Watch;
use crate::workload::pack::Plan;
use crate::workload::prefix::expected_hit_tokens;

/// What became of the order to empty the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Emptied {
    /// The scenario takes it as it is found.
    NotAsked,
    /// The engine has no such route: only a fresh launch has a cold cache.
    Impossible,
    Refused,
    /// It was emptied, and a second order found nothing left, or the server does not say.
    Yes,
    /// A second order still found something.
    NotAtOnce,
}

/// Empties the cache, twice: the second answer is the proof of the first.
pub fn empty(server: &Server, engine: &EngineFile) -> Emptied {
    let Some(route) = &engine.cache.reset_route else { return Emptied::Impossible };
    if server.post(route).is_err() {
        return Emptied::Refused;
    }
    let left = server.post(route).unwrap_or(Value::Null)["freed_pages"].as_u64();
    if left.unwrap_or(0) == 0 { Emptied::Yes } else { Emptied::NotAtOnce }
}

/// What is sent ahead so that the cache holds the beginning of each measured prompt: nothing
/// where the scenario does not ask for it.
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

/// The cache around a run.
#[derive(Clone, Debug)]
pub struct Observed {
    pub emptied: Emptied,
    /// What was sent ahead.
    pub priming: Vec<ManifestRequest>,
}

impl Observed {
    /// The facts of a record.
    pub fn facts(
        &self,
        assignment: &super::Assignment<'_>,
        samples: &[Sample],
        watch: &Watch<'_>,
        reasons: &mut Reasons,
    ) -> CacheFacts {
        // Without counters the usage of each request still tells its hits.
        let hits = watch.grown("prefix_hit_tokens").or_else(|| cached_in_usage(samples));
        let pages = assignment.page_tokens.and_then(|tokens| usize::try_from(tokens).ok());
        let expected = pages.map(|pages| {
            let ahead = expected_hit_tokens(&self.priming, pages);
            let all = [&self.priming[..], &assignment.plan.manifest.requests].concat();
            expected_hit_tokens(&all, pages) - ahead
        });
        let off = assignment.prefix_cache == Some(false);
        let primed = !self.priming.is_empty();
        let state = match self.emptied {
            _ if off => CacheState::Cold,
            Emptied::Yes if !primed => CacheState::Cold,
            Emptied::Yes | Emptied::NotAtOnce => CacheState::Primed,
            Emptied::NotAsked | Emptied::Impossible | Emptied::Refused => CacheState::Unknown,
        };
        let sent_ahead = self.priming.iter().map(|request| request.prompt.len() as u64).sum();
        CacheFacts {
            state,
            emptied: Some(matches!(self.emptied, Emptied::Yes)),
            query_tokens: reasons.explain(
                "cache.query_tokens",
                watch.grown("prefix_query_tokens"),
                "the server does not count, or was gone after the run",
            ),
            hit_tokens: reasons.explain(
                "cache.hit_tokens",
                hits,
                "the server tells its hits neither as a counter nor with its usage",
            ),
            expected_hit_tokens: reasons.explain(
                "cache.expected_hit_tokens",
                expected,
                "the server does not tell how many tokens a page of its cache holds",
            ),
            primed_tokens: primed.then_some(sent_ahead),
        }
    }
}

fn cached_in_usage(samples: &[Sample]) -> Option<u64> {
    let ok = samples.iter().filter(|sample| sample.is_ok());
    ok.map(|sample| sample.usage?.cached_tokens).sum()
}
