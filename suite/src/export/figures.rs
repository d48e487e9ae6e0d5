//! The figures of a run that every report has, in the units of reports.

use schema::run::{
    ClientFacts, Counts, Metrics, ScenarioFacts, Status, Summary, Time, TokenSource, Validity,
};
use schema::scenario::Arrival;

use super::{Asked, Report};
use crate::measure::summary::float;

/// A run in which some request was answered.
#[derive(Clone, Copy, Debug)]
pub struct Figures<'a> {
    pub asked: &'a Asked,
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
    /// None where no request was answered.
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

    /// `count` a second.
    pub fn per_second(&self, count: Option<u64>) -> Option<f64> {
        count.map(|count| float(count) / self.seconds)
    }

    /// The server's own count of output tokens; else what `fallback` gives.
    pub fn reported_or(&self, fallback: Option<u64>) -> Option<u64> {
        match self.counts.token_source {
            Some(TokenSource::Usage | TokenSource::UsagePerChunk) => {
                self.counts.output_tokens_reported
            }
            _ => fallback,
        }
    }

    /// Requests a second that were asked for; none where all came at once or in a trace's time.
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

    /// The same as tools print it.
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

    /// Most requests that ran at one time.
    pub fn concurrent_max(&self) -> Option<u64> {
        self.client.map(|client| client.streams_max).unwrap_or_default()
    }
}

/// A float as Python prints it: with a point, always.
pub fn python_float(value: f64) -> String {
    format!("{value:?}")
}

/// Microseconds as milliseconds.
pub fn ms(us: Option<u64>) -> Option<f64> {
    us.map(|us| float(us) / 1e3)
}

/// A statistic by its name in a report, and how it is read.
pub type Statistic = (&'static str, fn(&Summary) -> Option<u64>);

/// A statistic of a summary in milliseconds.
pub fn statistic(
    summary: Option<&Summary>,
    of: impl FnOnce(&Summary) -> Option<u64>,
) -> Option<f64> {
    ms(of(summary?))
}
