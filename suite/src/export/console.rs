//! Writes the console blocks titled `Serving Benchmark Result` of LMDeploy, SGLang and vLLM: 50
//! columns, values from column 42 on. The tools pad some lines with spaces at the end; these are
//! left out, as on published pages.

use schema::run::Summary;

use super::figures::{Figures, Statistic, statistic};
use super::requests::Requests;
use super::vllm::{self, Quantity};

const E2E: &str = "End-to-End Latency";
const TTFT: &str = "Time to First Token";
const TPOT: &str = "Time per Output Token (excl. 1st token)";

/// Text of a console block while it is being written.
struct Block(String);

impl Block {
    fn begin() -> Self {
        Self(format!("{:=^50}\n", " Serving Benchmark Result "))
    }

    fn end(self) -> String {
        self.0 + &"=".repeat(50) + "\n"
    }

    fn section(&mut self, title: &str) {
        self.0 += &format!("{title:-^50}\n");
    }

    fn word(&mut self, label: &str, value: &str) {
        self.0 += &format!("{label:<40} {value}\n");
    }

    /// Adds a line with a count, unless the value is unknown.
    fn count(&mut self, label: &str, value: Option<u64>) {
        if let Some(value) = value {
            self.word(label, &value.to_string());
        }
    }

    fn figure(&mut self, label: &str, value: Option<f64>) {
        if let Some(value) = value {
            self.word(label, &format!("{value:.2}"));
        }
    }

    /// Adds one line for each statistic of a latency metric.
    fn statistics(&mut self, name: &str, summary: Option<&Summary>, shown: &[Statistic]) {
        for (label, of) in shown {
            self.figure(&format!("{label} {name} (ms):"), statistic(summary, of));
        }
    }
}

const MEAN: Statistic = ("Mean", |summary| summary.mean);
const MEDIAN: Statistic = ("Median", |summary| summary.p50);
const P90: Statistic = ("P90", |summary| summary.p90);
const P95: Statistic = ("P95", |summary| summary.p95);
const P99: Statistic = ("P99", |summary| summary.p99);
const MAX: Statistic = ("Max", |summary| summary.max);

/// LMDeploy's console block, which counts the requested output tokens.
pub fn lmdeploy(figures: &Figures<'_>) -> String {
    let (counts, metrics) = (figures.counts, figures.metrics);
    let mut block = Block::begin();
    block.word("Backend:", figures.asked.backend());
    block.word("Traffic request rate:", &figures.request_rate_word());
    block.count("Successful requests:", Some(figures.completed));
    block.figure("Benchmark duration (s):", Some(figures.seconds));
    block.count("Total input tokens:", counts.input_tokens);
    block.count("Total generated tokens:", counts.output_tokens_requested);
    block.count("Total generated tokens (retokenized):", counts.output_tokens_retokenized);
    block.figure("Request throughput (req/s):", figures.per_second(Some(figures.completed)));
    block.figure("Input token throughput (tok/s):", figures.per_second(counts.input_tokens));
    let output = figures.per_second(counts.output_tokens_requested);
    block.figure("Output token throughput (tok/s):", output);
    block.section(E2E);
    block.statistics("E2E Latency", metrics.e2e_us.as_ref(), &[MEAN, MEDIAN]);
    block.section(TTFT);
    block.statistics("TTFT", metrics.ttft_us.as_ref(), &[MEAN, MEDIAN, P99]);
    block.section(TPOT);
    block.statistics("TPOT", metrics.tpot_us.as_ref(), &[MEAN, MEDIAN, P99]);
    block.section("Inter-token Latency");
    block.statistics("ITL", metrics.itl_chunk_us.as_ref(), &[MEAN, MEDIAN, P99]);
    block.end()
}

/// SGLang's console block, which counts the output tokens that the server reports, else the
/// requested ones.
pub fn sglang(figures: &Figures<'_>) -> String {
    let (counts, metrics) = (figures.counts, figures.metrics);
    let output = figures.reported_or(counts.output_tokens_requested);
    let mut block = Block::begin();
    block.word("Backend:", figures.asked.backend());
    block.word("Traffic request rate:", &figures.request_rate_word());
    let cap = figures.max_concurrency().map_or("not set".to_owned(), |cap| cap.to_string());
    block.word("Max request concurrency:", &cap);
    block.count("Successful requests:", Some(figures.completed));
    block.figure("Benchmark duration (s):", Some(figures.seconds));
    block.count("Total input tokens:", counts.input_tokens);
    block.count("Total input text tokens:", counts.input_tokens);
    block.count("Total generated tokens:", output);
    block.count("Total generated tokens (retokenized):", counts.output_tokens_retokenized);
    block.figure("Request throughput (req/s):", figures.per_second(Some(figures.completed)));
    block.figure("Input token throughput (tok/s):", figures.per_second(counts.input_tokens));
    block.figure("Output token throughput (tok/s):", figures.per_second(output));
    block.figure("Peak output token throughput (tok/s):", metrics.output_tokens_per_s_peak);
    block.count("Peak concurrent requests:", figures.concurrent_max());
    let total = counts.input_tokens.zip(output).map(|(input, output)| input + output);
    block.figure("Total token throughput (tok/s):", figures.per_second(total));
    block.figure("Concurrency:", metrics.concurrency_mean);
    block.section(E2E);
    block.statistics("E2E Latency", metrics.e2e_us.as_ref(), &[MEAN, MEDIAN, P90, P99]);
    block.section(TTFT);
    block.statistics("TTFT", metrics.ttft_us.as_ref(), &[MEAN, MEDIAN, P99]);
    block.section(TPOT);
    block.statistics("TPOT", metrics.tpot_us.as_ref(), &[MEAN, MEDIAN, P99]);
    block.section("Inter-Token Latency");
    block.statistics("ITL", metrics.itl_chunk_us.as_ref(), &[MEAN, MEDIAN, P95, P99, MAX]);
    block.end()
}

/// vLLM's console block, which counts the output tokens that the server reports, else those of the
/// tokenizer.
pub fn vllm(figures: &Figures<'_>, requests: &Requests<'_>) -> String {
    let (counts, metrics) = (figures.counts, figures.metrics);
    let output = figures.reported_or(counts.output_tokens_retokenized);
    let mut block = Block::begin();
    block.count("Successful requests:", Some(figures.completed));
    block.count("Failed requests:", Some(figures.failed));
    block.count("Maximum request concurrency:", figures.max_concurrency());
    block.figure("Request rate configured (RPS):", figures.request_rate());
    block.figure("Benchmark duration (s):", Some(figures.seconds));
    block.count("Total input tokens:", counts.input_tokens);
    block.count("Total generated tokens:", output);
    block.figure("Request throughput (req/s):", figures.per_second(Some(figures.completed)));
    block.figure("Request goodput (req/s):", vllm::goodput(figures));
    block.figure("Output token throughput (tok/s):", figures.per_second(output));
    block.figure("Peak output token throughput (tok/s):", metrics.output_tokens_per_s_peak);
    // vLLM's tool prints this count with two decimals, like a float.
    let most = figures.concurrent_max().map(crate::measure::summary::float);
    block.figure("Peak concurrent requests:", most);
    let total = counts.input_tokens.zip(output).map(|(input, output)| input + output);
    block.figure("Total token throughput (tok/s):", figures.per_second(total));
    for quantity in &figures.asked.selection.quantities {
        let summary = quantity.summary(metrics);
        let (name, title) = match quantity {
            Quantity::Ttft => ("TTFT", TTFT),
            Quantity::Tpot => ("TPOT", TPOT),
            Quantity::Itl => ("ITL", "Inter-token Latency"),
            Quantity::E2el => ("E2EL", "End-to-end Latency"),
        };
        block.section(title);
        block.statistics(name, summary, &[MEAN, MEDIAN]);
        for percentile in &figures.asked.selection.percentiles {
            let value = vllm::percentile_ms(*quantity, *percentile, metrics, requests);
            block.figure(&format!("P{percentile} {name} (ms):"), value);
        }
    }
    block.end()
}
