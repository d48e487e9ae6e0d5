//! Arrival processes: the `arrival` table of a scenario, which decides when requests are sent.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::scenario::{InvalidFile, REQUESTS, bounded, is_default, out_of_range};

/// Arrival process of a scenario: when its requests are sent.
///
/// Except for `closed`, every send time is fixed before the run and no response delays it; only a
/// later turn of a conversation waits for the response before it. Where `concurrency_max` limits
/// the requests in flight, a request over the limit waits, and latencies from the scheduled send
/// count that wait.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Arrival {
    /// All at once: all requests are sent at the start of the run, except later turns of
    /// conversations.
    AllAtOnce,
    /// Closed loop: `concurrency` requests are in flight, and the next one is sent when one ends.
    Closed {
        /// Number of simulated users, which is the number of requests in flight.
        concurrency: u64,
    },
    /// Constant rate: one request every `1 / requests_per_s` seconds.
    Constant {
        /// Request rate, in requests per second.
        requests_per_s: f64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        /// Maximum number of requests in flight; further requests wait. Left out for no limit.
        concurrency_max: Option<u64>,
    },
    /// Poisson process: exponential gaps between requests, as from independent users.
    Poisson {
        /// Mean request rate, in requests per second.
        requests_per_s: f64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        /// Maximum number of requests in flight; further requests wait. Left out for no limit.
        concurrency_max: Option<u64>,
    },
    /// Gamma process: gaps between requests are gamma-distributed, in bursts for a `shape` below 1,
    /// as a Poisson process at 1, and more regular above 1.
    Gamma {
        /// Mean request rate, in requests per second.
        requests_per_s: f64,
        /// Shape parameter of the gamma distribution of gaps, without unit.
        shape: f64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        /// Maximum number of requests in flight; further requests wait. Left out for no limit.
        concurrency_max: Option<u64>,
    },
    /// Ramp: sends at a rate that changes from `from_requests_per_s` to `to_requests_per_s`.
    Ramp {
        /// Request rate at the start of the run, in requests per second.
        from_requests_per_s: f64,
        /// Request rate at the end of the run, in requests per second.
        to_requests_per_s: f64,
        #[serde(default, skip_serializing_if = "is_default")]
        /// Growth of the rate between both; linear in time where left out.
        growth: Growth,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        /// Shape parameter of the gamma distribution of gaps, for a growth by request only; regular
        /// gaps where left out.
        shape: Option<f64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        /// Maximum number of requests in flight; further requests wait. Left out for no limit.
        concurrency_max: Option<u64>,
    },
    /// Trace: requests are sent at the times in the dataset, divided by `speed`.
    Trace {
        #[serde(default = "one")]
        /// Speed as a factor by which the recorded times are divided: 2 sends the requests twice as
        /// fast as they were recorded.
        speed: f64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        /// Maximum number of requests in flight; further requests wait. Left out for no limit.
        concurrency_max: Option<u64>,
    },
}

/// Growth of the rate of a ramp.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Growth {
    /// Linear in time.
    #[default]
    Time,
    /// Linear in the number of the request, as vLLM's tool does it: the first part of the requests
    /// takes most of the time.
    RequestLinear,
    /// Exponential in the number of the request, as vLLM's tool does it.
    RequestExponential,
}

impl Growth {
    /// Returns the mean rate of a ramp between two rates, in requests per second.
    fn mean(self, from: f64, to: f64) -> f64 {
        let (share, times) = ((to - from) / from, (to / from).ln());
        match self {
            // The mean rate of a linear ramp is the midpoint of its ends.
            Self::Time => f64::midpoint(from, to),
            // Without a slope the quotients below are 0 / 0.
            _ if share.abs() < 1e-9 => from,
            // The mean gap is the integral of 1 / rate over the requests.
            Self::RequestLinear => (to - from) / times,
            Self::RequestExponential => times / (1.0 / from - 1.0 / to),
        }
    }
}

fn one() -> f64 {
    1.0
}

impl Arrival {
    /// Returns the maximum number of requests in flight: for a closed loop the number of its users,
    /// else `concurrency_max`. `None` where nothing limits it.
    pub fn concurrency_max(&self) -> Option<u64> {
        match self {
            Self::AllAtOnce => None,
            Self::Closed { concurrency } => Some(*concurrency),
            Self::Constant { concurrency_max, .. }
            | Self::Poisson { concurrency_max, .. }
            | Self::Gamma { concurrency_max, .. }
            | Self::Ramp { concurrency_max, .. }
            | Self::Trace { concurrency_max, .. } => *concurrency_max,
        }
    }

    /// Returns the expected time from the first to the last send of `requests` requests, in
    /// microseconds, at the mean request rate; 0 for an arrival process without a rate (all at
    /// once, closed loop, trace).
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "requests are far below 2^53, and rates are checked to be above zero"
    )]
    pub fn span_us(&self, requests: u64) -> u64 {
        let requests_per_s = match self {
            Self::AllAtOnce | Self::Closed { .. } | Self::Trace { .. } => return 0,
            Self::Constant { requests_per_s, .. }
            | Self::Poisson { requests_per_s, .. }
            | Self::Gamma { requests_per_s, .. } => *requests_per_s,
            Self::Ramp { from_requests_per_s, to_requests_per_s, growth, .. } => {
                growth.mean(*from_requests_per_s, *to_requests_per_s)
            }
        };
        (requests.saturating_sub(1) as f64 / requests_per_s * 1e6) as u64
    }

    pub(crate) fn check(&self) -> Result<(), InvalidFile> {
        let cap = match self {
            Self::Closed { .. } => "arrival.concurrency",
            _ => "arrival.concurrency_max",
        };
        // An absent limit passes as 1.
        bounded(cap, self.concurrency_max().unwrap_or(1), REQUESTS)?;
        match self {
            Self::AllAtOnce | Self::Closed { .. } => Ok(()),
            Self::Constant { requests_per_s, .. } | Self::Poisson { requests_per_s, .. } => {
                sound("arrival.requests_per_s", *requests_per_s)
            }
            Self::Gamma { requests_per_s, shape, .. } => {
                sound("arrival.requests_per_s", *requests_per_s)?;
                sound("arrival.shape", *shape)
            }
            Self::Ramp { from_requests_per_s, to_requests_per_s, growth, shape, .. } => {
                sound("arrival.from_requests_per_s", *from_requests_per_s)?;
                sound("arrival.to_requests_per_s", *to_requests_per_s)?;
                match shape {
                    Some(shape) if *growth == Growth::Time => {
                        let wanted = "left out where the rate grows with time";
                        Err(out_of_range("arrival.shape", wanted, shape))
                    }
                    shape => sound("arrival.shape", shape.unwrap_or(1.0)),
                }
            }
            Self::Trace { speed, .. } => sound("arrival.speed", *speed),
        }
    }
}

/// Checks that `value`, the rate, shape or speed under the key `key` of a scenario, is from 0.001
/// to 1,000,000. Any other value is an error that names the key.
fn sound(key: &str, value: f64) -> Result<(), InvalidFile> {
    match (1e-3..=1e6).contains(&value) {
        true => Ok(()),
        false => Err(out_of_range(key, "from 0.001 to 1000000", value)),
    }
}
