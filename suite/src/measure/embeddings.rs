//! Measurement of a run of embeddings, whose answers have no output tokens: what only tokens have is
//! absent, and not zero.

use schema::measurement::Measurement;
use schema::run::{Counts, Histograms, Metrics};

/// Beginnings of the names of metrics that only answers with output tokens have.
const OF_TOKENS: [&str; 4] = ["itl_", "output_", "tpot_", "ttft_"];

/// Keeps of the figures in `measurement` those that an embedding has: counts of requests and prompt
/// tokens, their rates, and E2E. Its answer was measured as one chunk without tokens, so that TTFT
/// would be E2E under another name.
pub fn without_output(measurement: &mut Measurement) {
    measurement.counts = measurement.counts.take().map(|counts| Counts {
        requests_planned: counts.requests_planned,
        requests_ok: counts.requests_ok,
        requests_failed: counts.requests_failed,
        failures: counts.failures,
        input_tokens: counts.input_tokens,
        input_token_source: counts.input_token_source,
        ..Counts::default()
    });
    measurement.metrics = measurement.metrics.take().map(|metrics| Metrics {
        requests_per_s: metrics.requests_per_s,
        input_tokens_per_s: metrics.input_tokens_per_s,
        total_tokens_per_s: metrics.total_tokens_per_s,
        concurrency_mean: metrics.concurrency_mean,
        goodput_per_s: metrics.goodput_per_s,
        e2e_us: metrics.e2e_us,
        e2e_scheduled_us: metrics.e2e_scheduled_us,
        ..Metrics::default()
    });
    measurement.histograms = measurement.histograms.take().map(|histograms| Histograms {
        e2e_us: histograms.e2e_us,
        e2e_scheduled_us: histograms.e2e_scheduled_us,
        queue_us: histograms.queue_us,
        connect_us: histograms.connect_us,
        schedule_lag_us: histograms.schedule_lag_us,
        ..Histograms::default()
    });
    let bounds = measurement.client.as_mut().and_then(|client| client.error_pct.as_mut());
    if let Some(bounds) = bounds {
        bounds.retain(|name, _| !OF_TOKENS.iter().any(|of| name.starts_with(*of)));
    }
}
