//! Telemetry from the server's own counters: queue lengths, KV pages, tokens, prefix cache hits and
//! preemptions over a run.

use schema::telemetry::{ServerTelemetry, Spread};

use super::series::{Column, Together, growth, series, spread, whole};
use super::{Counters, Watch};
use crate::measure::summary::float;

const GAUGES: [&str; 3] = ["requests_running", "requests_waiting", "kv_pages_used"];
const COUNTERS: [&str; 5] =
    ["prompt_tokens", "output_tokens", "prefix_query_tokens", "prefix_hit_tokens", "preemptions"];

/// Samples in which the server reported its counters.
pub(super) struct Reported<'a> {
    /// Times of the samples, in microseconds since the clock started.
    pub at_us: Vec<u64>,
    pub counters: Vec<&'a Counters>,
}

impl Watch<'_> {
    /// Telemetry from the server's counters; `None` if it reported none of them.
    pub(super) fn server_facts(&self, start_ns: u64) -> Option<ServerTelemetry> {
        let told = self.looks.iter().filter_map(|look| Some((look.at_ns, look.server.as_ref()?)));
        let (at_us, counters): (Vec<u64>, Vec<&Counters>) =
            told.map(|(at_ns, counters)| (at_ns.saturating_sub(start_ns) / 1000, counters)).unzip();
        if counters.iter().all(|counters| counters.is_empty()) {
            return None;
        }
        let told = Reported { at_us, counters };
        // Gauges are taken only from samples during the run, when the load was present.
        let during = self.looks.get(1..self.looks.len().saturating_sub(1)).unwrap_or_default();
        let gauge = |name: &str| -> Option<Spread> {
            let seen = during.iter().filter_map(|look| look.server.as_ref()?.get(name).copied());
            spread(seen.filter_map(whole))
        };
        let [requests_running, requests_waiting, kv_pages_used] = GAUGES.map(gauge);
        let [prompt, output, query, hit, preemptions] = COUNTERS.map(|name| self.grown(name));
        let pages = told.counters.last().and_then(|counters| counters.get("kv_pages").copied());
        Some(ServerTelemetry {
            requests_running,
            requests_waiting,
            kv_pages_used,
            kv_pages: pages.and_then(whole),
            prompt_tokens: prompt,
            output_tokens: output,
            prefix_query_tokens: query,
            prefix_hit_tokens: hit,
            preemptions,
            series: told.series(),
        })
    }
}

impl Reported<'_> {
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
            Some((*name, Together::Sum, grown.map(float).collect()))
        });
        let columns: Vec<Column> = gauges.chain(counters).collect();
        series(self.at_us.get(1..)?, columns)
    }
}
