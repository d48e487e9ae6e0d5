//! Exports a run as the CSV of LMDeploy's `profile_restful_api.py` v0.9.2, in the dialect of
//! Python's `csv`.

use schema::run::Summary;

use super::figures::{Figures, python_float, statistic};

/// Header and one row of the CSV. LMDeploy counts the requested output tokens.
pub fn csv(figures: &Figures<'_>) -> String {
    let cells = cells(figures);
    // |Python's `csv` ends rows with carriage return and line feed.
    let row = |cells: Vec<String>| cells.join(",") + "\r\n";
    let head = cells.iter().map(|(name, _)| (*name).to_owned()).collect();
    row(head) + &row(cells.into_iter().map(|(_, value)| quoted(value)).collect())
}

fn cells(figures: &Figures<'_>) -> Vec<(&'static str, String)> {
    let (counts, metrics) = (figures.counts, figures.metrics);
    let workload = figures.asked.random();
    let word = |value: Option<&str>| value.unwrap_or_default().to_owned();
    let count = |value: Option<u64>| value.map(|value| value.to_string()).unwrap_or_default();
    let float = |value: Option<f64>| value.map(python_float).unwrap_or_default();
    let mean = |summary: &Option<Summary>| float(statistic(summary.as_ref(), |all| all.mean));
    let output = counts.output_tokens_requested;
    vec![
        ("backend", word(figures.asked.backend.as_deref())),
        ("dataset_name", word(figures.asked.dataset_name())),
        ("sharegpt_output_len", count(figures.asked.sharegpt_output_len())),
        ("random_input_len", count(workload.and_then(|workload| workload.input_tokens))),
        ("random_output_len", count(workload.and_then(|workload| workload.output_tokens))),
        ("random_range_ratio", float(workload.and_then(|workload| workload.range_ratio))),
        ("request_rate", figures.request_rate_word()),
        ("completed", figures.completed.to_string()),
        ("total_input_tokens", count(counts.input_tokens)),
        ("total_output_tokens", count(output)),
        ("duration", python_float(figures.seconds)),
        ("request_throughput", float(figures.per_second(Some(figures.completed)))),
        ("input_throughput", float(figures.per_second(counts.input_tokens))),
        ("output_throughput", float(figures.per_second(output))),
        ("mean_e2e_latency_ms", mean(&metrics.e2e_us)),
        ("mean_ttft_ms", mean(&metrics.ttft_us)),
        ("mean_tpot_ms", mean(&metrics.tpot_us)),
        ("mean_itl_ms", mean(&metrics.itl_chunk_us)),
    ]
}

fn quoted(value: String) -> String {
    let plain = !value.contains([',', '"', '\r', '\n']);
    if plain { value } else { format!("\"{}\"", value.replace('"', "\"\"")) }
}
