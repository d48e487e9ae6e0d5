//! Error bounds of the client for runs whose records do not state them: those of suites before
//! v0.11. They are derived from what such a record says about its reads, and are wider than bounds
//! over the single chunks.

use schema::metric::{Metric, Unit};
use schema::run::{ClientFacts, Metrics, RunRecord, Summary};
use schema::scenario::Arrival;

use crate::quantile::Bins;

/// Percentiles of latencies, by the endings of their metrics' names.
const PERCENTILES: [(&str, f64); 3] = [("_p50", 0.50), ("_p95", 0.95), ("_p99", 0.99)];

/// Returns the bound of the error, in percent of the figure, that the client may have caused in
/// `metric` of `record`: the stated one, else one derived from the record. `None` where the record
/// suffices for neither.
pub(crate) fn of(metric: &Metric, record: &RunRecord) -> Option<f64> {
    let client = record.client.as_ref()?;
    match &client.error_pct {
        Some(stated) => stated.get(metric.name).copied(),
        // Without the kernel's stamps, every wait of the client is a part of the times.
        None if client.kernel_timestamps == Some(true) => derived(metric, record, client),
        None => None,
    }
}

fn derived(metric: &Metric, record: &RunRecord, client: &ClientFacts) -> Option<f64> {
    let metrics = record.metrics.as_ref()?;
    if metric.unit == Unit::PerSecond {
        return rate(record, metrics, client);
    }
    let moved = chunks_read_early(record)?;
    let lag_us = float(client.schedule_lag_us_p99?);
    let histograms = record.histograms.as_ref()?;
    let requests = float(record.counts.as_ref()?.requests_ok?);
    let (histogram, lag_us, ends) = match metric.name.split_once("_us_")?.0 {
        "ttft" => (histograms.ttft_us.as_ref()?, lag_us, moved.min(requests)),
        // A mean over answers of different lengths weighs an early chunk by an unknown length.
        "tpot" if moved > 0.0 && metric.name.ends_with("_mean") => return None,
        "tpot" => (histograms.tpot_us.as_ref()?, 0.0, moved.min(requests)),
        "itl_token" => (histograms.itl_token_us.as_ref()?, 0.0, moved),
        // The last chunk of an answer is the last of its read, whose stamp is exact.
        "e2e" => (histograms.e2e_us.as_ref()?, lag_us, 0.0),
        _ => return None,
    };
    let figure = metric.value(record).filter(|figure| *figure > 0.0)?;
    let bins = Bins::decode(histogram).ok()?;
    let error_us = match PERCENTILES.iter().find(|(ending, _)| metric.name.ends_with(ending)) {
        Some((_, share)) => shifted(&bins, *share, ends)?,
        // A first chunk is at most as early as the request is long in coming, and the gaps of an
        // answer add up to the time from its first to its last chunk.
        None => {
            let longest_us = float(metrics.ttft_us.as_ref()?.max?);
            ends.min(requests) * longest_us / float(bins.samples.max(1))
        }
    };
    Some((error_us + lag_us) / figure * 100.0)
}

/// Returns the number of chunks that were read together with a later one, so that their arrival is
/// not known: such chunks have the stamp of the later one, which is a gap of zero.
fn chunks_read_early(record: &RunRecord) -> Option<f64> {
    if record.client.as_ref()?.coalesced_read_share? == 0.0 {
        return Some(0.0);
    }
    let gaps = record.histograms.as_ref()?.itl_chunk_us.as_ref()?.bins().ok()?;
    Some(gaps.iter().filter(|bin| bin.low == 0).map(|bin| float(bin.count)).sum())
}

/// Returns by how much the percentile at `share` can move, in microseconds, if `moved` samples take
/// any other value.
fn shifted(bins: &Bins, share: f64, moved: f64) -> Option<f64> {
    if moved == 0.0 {
        return Some(0.0);
    }
    let ranks = moved / (float(bins.samples) - 1.0).max(1.0);
    let (low, _) = bins.quantile((share - ranks).max(0.0))?;
    let (from, to) = bins.quantile(share)?;
    let (_, high) = bins.quantile((share + ranks).min(1.0))?;
    // Beyond the ends of the distribution the samples bound nothing.
    let is_inside = share - ranks >= 0.0 && share + ranks <= 1.0;
    is_inside.then(|| (to - low).max(high - from))
}

/// Returns the error bound of rates in percent: the share of the machine's CPU time that the client
/// took, and the time for which its delays left streams idle or lengthened the run.
fn rate(record: &RunRecord, metrics: &Metrics, client: &ClientFacts) -> Option<f64> {
    let place = client.place.as_ref();
    let shares_cores =
        crate::rule::on_cpu(record) && place.and_then(|place| place.same_host) != Some(false);
    let cores = f64::from(record.hardware.cores?.max(1));
    let cpu_share = if shares_cores { client.cpu_share_p95? / cores } else { 0.0 };
    let lag_us = float(client.schedule_lag_us_p99?);
    let delayed = match record.scenario.arrival.as_ref().and_then(Arrival::concurrency_max) {
        Some(_) => {
            let waited_us = float(client.kernel_to_user_us_p99?);
            (lag_us + waited_us) / mean(metrics.e2e_us.as_ref())?
        }
        None => lag_us / float(record.time.as_ref()?.wall_us?.max(1)),
    };
    Some((cpu_share + delayed) * 100.0)
}

fn mean(summary: Option<&Summary>) -> Option<f64> {
    Some(float(summary?.mean.filter(|mean| *mean > 0)?))
}

#[expect(clippy::cast_precision_loss, reason = "times and counts of a run are far below 2^53")]
fn float(value: u64) -> f64 {
    value as f64
}
