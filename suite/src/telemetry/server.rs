//! Telemetry from the server's own counters: queue lengths, KV pages, tokens, prefix cache hits and
//! preemptions over a run.

use schema::engine::EngineFile;
use schema::telemetry::{ServerTelemetry, Spread};

use super::series::{Column, Together, growth, series, spread, whole};
use super::{Counters, Watch};
use crate::measure::Reasons;

const GAUGES: [&str; 3] = ["requests_running", "requests_waiting", "kv_pages_used"];
const COUNTERS: [&str; 5] =
    ["prompt_tokens", "output_tokens", "prefix_query_tokens", "prefix_hit_tokens", "preemptions"];

/// Samples in which the server reported its counters.
pub(super) struct Told<'a> {
    /// Times of the samples, in microseconds since the clock started.
    pub at_us: Vec<u64>,
    pub counters: Vec<&'a Counters>,
}

impl Watch<'_> {
    /// Telemetry from the server's counters; `None`, with the reason recorded, if it reported none
    /// of them.
    pub(super) fn server_facts(
        &self,
        start_ns: u64,
        reasons: &mut Reasons,
    ) -> Option<ServerTelemetry> {
        let told = self.looks.iter().filter_map(|look| Some((look.at_ns, look.server.as_ref()?)));
        let (at_us, counters): (Vec<u64>, Vec<&Counters>) =
            told.map(|(at_ns, counters)| (at_ns.saturating_sub(start_ns) / 1000, counters)).unzip();
        if counters.iter().all(|counters| counters.is_empty()) {
            let route = self.engine.metrics_route();
            let none = || format!("`{route}` holds none of its metrics");
            let why = self.trouble.clone().unwrap_or_else(none);
            return reasons.none("telemetry.server", &why);
        }
        let told = Told { at_us, counters };
        // Gauges are taken only from samples during the run, when the load was present.
        let during = self.looks.get(1..self.looks.len().saturating_sub(1)).unwrap_or_default();
        let mut gauge = |name: &str| -> Option<Spread> {
            let seen = during.iter().filter_map(|look| look.server.as_ref()?.get(name).copied());
            let why = self.unseen(name, "no look fell into the run");
            reasons.explain(&path(name), spread(seen.filter_map(whole)), &why)
        };
        let [requests_running, requests_waiting, kv_pages_used] = GAUGES.map(&mut gauge);
        let mut counter = |name: &str| {
            let why = self.unseen(name, "the server was gone after the run, or counted backwards");
            reasons.explain(&path(name), self.grown(name), &why)
        };
        let [prompt, output, query, hit, preemptions] = COUNTERS.map(&mut counter);
        let pages = told.counters.last().and_then(|counters| counters.get("kv_pages").copied());
        let why = self.unseen("kv_pages", "the server does not tell");
        Some(ServerTelemetry {
            requests_running,
            requests_waiting,
            kv_pages_used,
            kv_pages: reasons.explain(&path("kv_pages"), pages.and_then(whole), &why),
            prompt_tokens: prompt,
            output_tokens: output,
            prefix_query_tokens: query,
            prefix_hit_tokens: hit,
            preemptions,
            series: told.series(),
        })
    }

    /// Reason why a figure is missing: the engine file or the server has no such metric, else
    /// `other`.
    fn unseen(&self, name: &str, other: &str) -> String {
        let named = |engine: &EngineFile| engine.metrics.contains_key(name);
        let told = |look: &super::Look| {
            look.server.as_ref().is_some_and(|counters| counters.contains_key(name))
        };
        if !named(self.engine) {
            "the engine file names no such metric".to_owned()
        } else if !self.looks.iter().any(told) {
            format!("`{}` does not hold it", self.engine.metrics_route())
        } else {
            other.to_owned()
        }
    }
}

fn path(name: &str) -> String {
    format!("telemetry.server.{name}")
}

impl Told<'_> {
    /// Time series from the second sample on; the first, taken before the run, is the counters'
    /// baseline.
    fn series(&self) -> Option<schema::telemetry::Series> {
        let values = |name: &str| -> Option<Vec<f64>> {
            self.counters.iter().map(|counters| counters.get(name).copied()).collect()
        };
        let gauges = GAUGES.iter().filter_map(|name| {
            let values = values(name)?.split_off(1);
            Some((*name, Together::Mean, values))
        });
        let counters = COUNTERS.iter().filter_map(|name| {
            let values = values(name)?;
            let grown = values.windows(2).map(|pair| growth(pair[0], pair[1]).unwrap_or(0));
            Some((*name, Together::Sum, grown.map(super::series::float).collect()))
        });
        let columns: Vec<Column> = gauges.chain(counters).collect();
        series(self.at_us.get(1..)?, columns)
    }
}
