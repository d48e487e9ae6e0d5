//! Metrics of the process for Prometheus: counters, gauges and histograms, and their text format.
//!
//! The worker sets the values; this module must not know who reads them. Text format 0.0.4:
//! <https://prometheus.io/docs/instrumenting/exposition_formats/>.

use std::fmt::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// How a sequence ended, or that a request was refused: label `outcome` of the metric
/// `redline_requests_total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The output ended with an end token, a stop string or stop token, or a complete structure.
    Stop,
    /// The output reached `max_tokens`.
    Length,
    /// The sequence was aborted, as when its client closed the connection.
    Abort,
    /// The request was refused: with a 4xx status, by the scheduler, or because the server is
    /// loading or draining.
    Refused,
    /// The engine could not continue the sequence.
    Error,
}

impl Outcome {
    // In the order of declaration, since `count_request` uses `outcome as usize` as index.
    const ALL: [Self; 5] = [Self::Stop, Self::Length, Self::Abort, Self::Refused, Self::Error];

    fn label(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Abort => "abort",
            Self::Refused => "refused",
            Self::Error => "error",
        }
    }
}

/// All metrics that `/metrics` shows. Requests are counted per sequence: `n` choices count `n`
/// times; a request that is refused before it has sequences counts once.
#[derive(Debug)]
#[expect(missing_docs, reason = "`numbers` and `histograms` give the help text of each")]
pub struct Metrics {
    pub requests_running: AtomicU64,
    pub requests_waiting: AtomicU64,
    pub kv_pages_used: AtomicU64,
    pub kv_pages_touched: AtomicU64,
    pub kv_pages: AtomicU64,
    pub prompt_tokens: AtomicU64,
    pub generation_tokens: AtomicU64,
    pub draft_tokens: AtomicU64,
    pub accepted_tokens: AtomicU64,
    pub prefix_cache_query_tokens: AtomicU64,
    pub prefix_cache_hit_tokens: AtomicU64,
    pub preemptions: AtomicU64,
    requests: [AtomicU64; Outcome::ALL.len()],
    pub queue_seconds: Histogram,
    pub ttft_seconds: Histogram,
    pub tpot_seconds: Histogram,
    pub step_seconds: Histogram,
    pub step_tokens: Histogram,
}

/// Upper bounds, in seconds, of the buckets of histograms of times: three per decade are enough for
/// a dashboard, since the load generator measures latencies itself.
const SECONDS: &[f64] = &[
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0,
    200.0, 500.0,
];
/// Upper bounds of the buckets of the histogram `step_tokens`, in tokens: powers of two.
const TOKENS: &[f64] = &[
    1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0,
    16384.0,
];

impl Default for Metrics {
    fn default() -> Self {
        Self {
            requests_running: AtomicU64::default(),
            requests_waiting: AtomicU64::default(),
            kv_pages_used: AtomicU64::default(),
            kv_pages_touched: AtomicU64::default(),
            kv_pages: AtomicU64::default(),
            prompt_tokens: AtomicU64::default(),
            generation_tokens: AtomicU64::default(),
            draft_tokens: AtomicU64::default(),
            accepted_tokens: AtomicU64::default(),
            prefix_cache_query_tokens: AtomicU64::default(),
            prefix_cache_hit_tokens: AtomicU64::default(),
            preemptions: AtomicU64::default(),
            requests: Default::default(),
            queue_seconds: Histogram::new(SECONDS),
            ttft_seconds: Histogram::new(SECONDS),
            tpot_seconds: Histogram::new(SECONDS),
            step_seconds: Histogram::new(SECONDS),
            step_tokens: Histogram::new(TOKENS),
        }
    }
}

impl Metrics {
    /// Counts one ended sequence, or one refused request, by its outcome in
    /// `redline_requests_total`.
    pub fn count_request(&self, outcome: Outcome) {
        self.requests[outcome as usize].fetch_add(1, Relaxed);
    }

    /// Renders the `/metrics` page in Prometheus' text format.
    pub fn render(&self) -> String {
        let mut out = String::with_capacity(8 * 1024);
        for (name, kind, help, value) in self.numbers() {
            head(&mut out, name, kind, help);
            // Writing to a string cannot fail.
            let _ = writeln!(out, "redline_{name} {}", value.load(Relaxed));
        }
        head(&mut out, "requests_total", "counter", "Finished sequences by how they ended.");
        for outcome in Outcome::ALL {
            let (label, count) = (outcome.label(), self.requests[outcome as usize].load(Relaxed));
            let _ = writeln!(out, "redline_requests_total{{outcome=\"{label}\"}} {count}");
        }
        for (name, help, histogram) in self.histograms() {
            head(&mut out, name, "histogram", help);
            histogram.render(&mut out, name);
        }
        out
    }

    /// Returns the counters and gauges: of each its name without the prefix `redline_`, type, help
    /// text and value.
    fn numbers(&self) -> [(&'static str, &'static str, &'static str, &AtomicU64); 12] {
        [
            ("requests_running", "gauge", "Running sequences.", &self.requests_running),
            ("requests_waiting", "gauge", "Sequences waiting to run.", &self.requests_waiting),
            ("kv_pages_used", "gauge", "KV pages held by sequences.", &self.kv_pages_used),
            (
                "kv_pages_touched",
                "gauge",
                "KV pages used at least once since the start.",
                &self.kv_pages_touched,
            ),
            ("kv_pages", "gauge", "KV pages allocated.", &self.kv_pages),
            (
                "prompt_tokens_total",
                "counter",
                "Prompt tokens of admitted sequences.",
                &self.prompt_tokens,
            ),
            ("generation_tokens_total", "counter", "Sampled tokens.", &self.generation_tokens),
            (
                "spec_decode_num_draft_tokens_total",
                "counter",
                "Draft tokens of speculative decoding.",
                &self.draft_tokens,
            ),
            (
                "spec_decode_num_accepted_tokens_total",
                "counter",
                "Draft tokens that became output.",
                &self.accepted_tokens,
            ),
            (
                "prefix_cache_query_tokens_total",
                "counter",
                "Prompt tokens looked up in the prefix cache.",
                &self.prefix_cache_query_tokens,
            ),
            (
                "prefix_cache_hit_tokens_total",
                "counter",
                "Prompt tokens found in the prefix cache.",
                &self.prefix_cache_hit_tokens,
            ),
            (
                "preemptions_total",
                "counter",
                "Times a sequence was preempted for an older one.",
                &self.preemptions,
            ),
        ]
    }

    /// Returns the histograms: of each its name without the prefix `redline_`, help text and
    /// values.
    fn histograms(&self) -> [(&'static str, &'static str, &Histogram); 5] {
        [
            ("queue_seconds", "From arrival to the first step.", &self.queue_seconds),
            ("ttft_seconds", "From arrival to the first token.", &self.ttft_seconds),
            ("tpot_seconds", "Mean time per token after the first.", &self.tpot_seconds),
            ("step_seconds", "Duration of a step.", &self.step_seconds),
            ("step_tokens", "Tokens computed in a step.", &self.step_tokens),
        ]
    }
}

/// Appends the `# HELP` and `# TYPE` lines of a metric in Prometheus' text format to `out`.
fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP redline_{name} {help}\n# TYPE redline_{name} {kind}");
}

/// Histogram of a metric with fixed buckets. A lock keeps the sum of the values and the numbers per
/// bucket consistent; it is cheap, because one thread writes and readers are rare.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [f64],
    state: Mutex<HistogramState>,
}

#[derive(Debug, Default, Clone)]
struct HistogramState {
    /// Number of values in each bucket of a histogram; the last bucket has the values above the
    /// last bound.
    counts: Vec<u64>,
    sum: f64,
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Self {
        let counts = vec![0; bounds.len() + 1];
        Self { bounds, state: Mutex::new(HistogramState { counts, sum: 0.0 }) }
    }

    /// Adds one value to the histogram.
    pub fn observe(&self, value: f64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        // A panic of another thread leaves the counts usable.
        let mut state = self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        state.counts[bucket] += 1;
        state.sum += value;
    }

    /// Adds one duration to the histogram, in seconds.
    pub fn observe_time(&self, value: Duration) {
        self.observe(value.as_secs_f64());
    }

    fn render(&self, out: &mut String, name: &str) {
        let state = self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        let mut total = 0;
        // Buckets are cumulative in Prometheus' format.
        for (bound, count) in self.bounds.iter().zip(&state.counts) {
            total += count;
            let _ = writeln!(out, "redline_{name}_bucket{{le=\"{bound}\"}} {total}");
        }
        total += state.counts[self.bounds.len()];
        let _ = writeln!(out, "redline_{name}_bucket{{le=\"+Inf\"}} {total}");
        let _ = writeln!(out, "redline_{name}_sum {}\nredline_{name}_count {total}", state.sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_counts_in_its_bucket_and_all_above() {
        let histogram = Histogram::new(&[1.0, 2.0]);
        for value in [0.5, 1.0, 1.5, 9.0] {
            histogram.observe(value);
        }
        let mut out = String::new();
        histogram.render(&mut out, "x");
        expect_test::expect![[r#"
            redline_x_bucket{le="1"} 2
            redline_x_bucket{le="2"} 3
            redline_x_bucket{le="+Inf"} 4
            redline_x_sum 12
            redline_x_count 4
        "#]]
        .assert_eq(&out);
    }

    #[test]
    fn every_outcome_has_a_line_of_its_own() {
        let metrics = Metrics::default();
        metrics.count_request(Outcome::Length);
        let page = metrics.render();
        assert!(page.contains("redline_requests_total{outcome=\"length\"} 1\n"));
        assert_eq!(page.matches("redline_requests_total{").count(), Outcome::ALL.len());
    }
}
