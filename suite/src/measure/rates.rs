//! The metrics of a record: rates over the wall, and the summaries of the distributions.

use schema::run::{Counts, Metrics, Time};

use super::distribution::Distributions;
use super::slo::{Slo, goodput};
use super::stall::stalls;
use super::summary::{float, summarize, summarize_requests};
use super::tally::Answered;
use super::to_us;
use super::window::{Wall, peak_per_second, slices, steady, token_times, tokens_within};

const SECOND_NS: u64 = 1_000_000_000;

/// Computes the metrics of a run whose wall is known.
///
/// `gpus` is how many GPUs the server runs on, where it runs on any; `slos` are the limits of
/// goodput.
pub fn metrics(
    answered: &[Answered<'_>],
    wall: Wall,
    counts: &Counts,
    all: &Distributions,
    gpus: Option<u32>,
    slos: &[Slo],
) -> Metrics {
    let wall_us = to_us(wall.length_ns());
    let rate = |count: Option<u64>| count.map(|count| float(count) * 1e6 / float(wall_us.max(1)));
    let output = rate(counts.output_tokens_reported);
    let total = counts.input_tokens.zip(counts.output_tokens_reported).map(|(i, o)| i + o);
    let times = token_times(answered);
    let steady_rate = steady(answered)
        .map(|window| float(tokens_within(&times, &window)) * 1e9 / float(window.length_ns()));
    let peak = (wall.length_ns() >= SECOND_NS).then(|| float(peak_per_second(&times)));
    let busy: u64 = all.e2e_ns.iter().sum();
    let per_gpu = output.zip(gpus).map(|(output, gpus)| output / f64::from(gpus.max(1)));
    Metrics {
        requests_per_s: rate(counts.requests_ok),
        input_tokens_per_s: rate(counts.input_tokens),
        output_tokens_per_s: output,
        total_tokens_per_s: rate(total),
        output_tokens_per_s_per_gpu: per_gpu,
        output_tokens_per_s_steady: steady_rate,
        output_tokens_per_s_peak: peak,
        concurrency_mean: Some(float(busy) / float(wall.length_ns().max(1))),
        goodput_per_s: goodput(slos, answered, wall),
        // The energy is told by what looks on: see `telemetry`.
        joules_per_output_token: None,
        ttft_us: summarize_requests(all.ttft_ns.clone()),
        tpot_us: summarize_requests(all.tpot_ns.clone()),
        itl_chunk_us: summarize(all.itl_chunk_ns.clone()),
        itl_token_us: all.itl_token_ns.clone().and_then(summarize),
        e2e_us: summarize_requests(all.e2e_ns.clone()),
        ttft_scheduled_us: summarize_requests(all.ttft_scheduled_ns.clone()),
        e2e_scheduled_us: summarize_requests(all.e2e_scheduled_ns.clone()),
        ttft_event_us: summarize_requests(all.ttft_event_ns.clone()),
        ttft_content_us: summarize_requests(all.ttft_content_ns.clone()),
        ttft_parts_us: all.parts(),
        stalls: stalls(&all.itl_chunk_ns),
        slices: Some(slices(answered, &times, wall)),
    }
}

/// Lengths of the run and of its parts.
pub fn lengths(answered: &[Answered<'_>], wall: Wall) -> Time {
    let window = steady(answered);
    Time {
        wall_us: Some(to_us(wall.length_ns())),
        window_us: window.map(|window| to_us(window.length_ns())),
        ramp_us: window.map(|window| to_us(window.start_ns.saturating_sub(wall.start_ns))),
        drain_us: window.map(|window| to_us(wall.end_ns.saturating_sub(window.end_ns))),
        ..Time::default()
    }
}
