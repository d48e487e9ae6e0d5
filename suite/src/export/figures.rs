//! Figures of a run that every tool's report contains, in the reports' units.

use schema::run::{
    ClientFacts, Counts, Metrics, ScenarioFacts, Status, Summary, Time, TokenSource, Validity,
};
use schema::scenario::Arrival;

use super::{Report, ReportFacts};
use crate::measure::summary::float;

/// Figures of a run in which at least one request was answered.
#[derive(Clone, Copy, Debug)]
pub struct Figures<'a> {
    pub asked: &'a ReportFacts,
    pub scenario: &'a ScenarioFacts,
    pub counts: &'a Counts,
    pub metrics: &'a Metrics,
    pub time: &'a Time,
    pub client: Option<&'a ClientFacts>,
    pub status: Status,
    pub validity: &'a Validity,
    pub seconds: f64,
    pub completed: u64,
    pub failed: u64,
}

impl<'a> Figures<'a> {
    /// Collects the figures of a measurement; `None` if no request was answered.
    pub fn of(report: &Report<'a>) -> Option<Self> {
        let measurement = report.measurement;
        let (counts, time) = (measurement.counts.as_ref()?, measurement.time.as_ref()?);
        Some(Self {
            asked: report.asked,
            scenario: &measurement.scenario,
            counts,
            metrics: measurement.metrics.as_ref()?,
            time,
            client: measurement.client.as_ref(),
            status: measurement.status,
            validity: &measurement.validity,
            seconds: float(time.wall_us?) / 1e6,
            completed: counts.requests_ok?,
            failed: counts.requests_failed.unwrap_or(0),
        })
    }

    /// Rate of `count` in units per second of the run.
    pub fn per_second(&self, count: Option<u64>) -> Option<f64> {
        count.map(|count| float(count) / self.seconds)
    }

    /// Output tokens that the server itself counted (usage), else `fallback`.
    pub fn reported_or(&self, fallback: Option<u64>) -> Option<u64> {
        match self.counts.token_source {
            Some(TokenSource::Usage | TokenSource::UsagePerChunk) => {
                self.counts.output_tokens_reported
            }
            _ => fallback,
        }
    }

    /// Requested rate of the arrival process, in requests per second; `None` if all requests came
    /// at once, in a closed loop, in a ramp or by a trace.
    pub fn request_rate(&self) -> Option<f64> {
        match self.scenario.arrival.as_ref()? {
            Arrival::Constant { requests_per_s, .. }
            | Arrival::Poisson { requests_per_s, .. }
            | Arrival::Gamma { requests_per_s, .. } => Some(*requests_per_s),
            Arrival::AllAtOnce
            | Arrival::Closed { .. }
            | Arrival::Ramp { .. }
            | Arrival::Trace { .. } => None,
        }
    }

    /// Requested rate as the tools print it: a number, `inf`, `trace` or `ramp`.
    pub fn request_rate_word(&self) -> String {
        match self.scenario.arrival {
            Some(Arrival::Trace { .. }) => "trace".to_owned(),
            Some(Arrival::Ramp { .. }) => "ramp".to_owned(),
            _ => self.request_rate().map_or_else(|| "inf".to_owned(), python_float),
        }
    }

    pub fn max_concurrency(&self) -> Option<u64> {
        self.scenario.arrival.as_ref()?.concurrency_max()
    }

    /// Largest number of requests in flight at the same time.
    pub fn concurrent_max(&self) -> Option<u64> {
        self.client.map(|client| client.streams_max).unwrap_or_default()
    }
}

/// Formats a float as Python does, always with a decimal point.
pub fn python_float(value: f64) -> String {
    // `{:?}` prints `1.0` where `{}` prints `1`.
    format!("{value:?}")
}

/// Converts microseconds to milliseconds.
pub fn ms(us: Option<u64>) -> Option<f64> {
    us.map(|us| float(us) / 1e3)
}

/// Name of a statistic in a report, and the function that reads it from a summary.
pub type Statistic = (&'static str, fn(&Summary) -> Option<u64>);

/// Reads one statistic of a latency summary, in milliseconds.
pub fn statistic(
    summary: Option<&Summary>,
    of: impl FnOnce(&Summary) -> Option<u64>,
) -> Option<f64> {
    ms(of(summary?))
}
