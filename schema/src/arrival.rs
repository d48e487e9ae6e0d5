//! When requests are sent: the `arrival` of a scenario.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::scenario::{ScenarioError, positive};

/// When requests are sent.
///
/// But for `closed`, every send time is fixed before the run, and no answer delays it. A cap,
/// `concurrency_max`, makes requests wait for a connection; their times still count from when they
/// were due.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Arrival {
    /// All at the start.
    AllAtOnce,
    /// At most `concurrency` requests at a time, the next when one ends.
    Closed {
        /// Users.
        concurrency: u64,
    },
    /// One request every `1 / requests_per_s`.
    Constant {
        /// The mean rate.
        requests_per_s: f64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        /// Requests at one time, at most; the others wait.
        concurrency_max: Option<u64>,
    },
    /// Independent users: gaps are exponential.
    Poisson {
        /// The mean rate.
        requests_per_s: f64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        /// Requests at one time, at most; the others wait.
        concurrency_max: Option<u64>,
    },
    /// Gaps are gamma variates of this shape: below 1 in bursts, at 1 Poisson, above more even.
    Gamma {
        /// The mean rate.
        requests_per_s: f64,
        /// Of the gamma distribution.
        shape: f64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        /// Requests at one time, at most; the others wait.
        concurrency_max: Option<u64>,
    },
    /// Evenly, at a rate that goes from the one to the other in a straight line over the run.
    Ramp {
        /// The rate at the start.
        from_requests_per_s: f64,
        /// The rate at the end.
        to_requests_per_s: f64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        /// Requests at one time, at most; the others wait.
        concurrency_max: Option<u64>,
    },
    /// At the data set's own times, `speed` times as fast.
    Trace {
        #[serde(default = "one")]
        /// 2 for twice as fast.
        speed: f64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        /// Requests at one time, at most; the others wait.
        concurrency_max: Option<u64>,
    },
}

fn one() -> f64 {
    1.0
}

impl Arrival {
    /// Most requests that are under way at a time; none where nothing caps them.
    #[must_use]
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

    /// Time from the first of so many requests to the last, as far as rates say it; none where it is
    /// up to answers or data.
    #[must_use]
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
            Self::Ramp { from_requests_per_s, to_requests_per_s, .. } => {
                f64::midpoint(*from_requests_per_s, *to_requests_per_s)
            }
        };
        (requests.saturating_sub(1) as f64 / requests_per_s * 1e6) as u64
    }

    pub(crate) fn check(&self) -> Result<(), ScenarioError> {
        let cap = match self {
            Self::Closed { .. } => "arrival.concurrency",
            _ => "arrival.concurrency_max",
        };
        positive(cap, self.concurrency_max().unwrap_or(1))?;
        match self {
            Self::AllAtOnce | Self::Closed { .. } => Ok(()),
            Self::Constant { requests_per_s, .. } | Self::Poisson { requests_per_s, .. } => {
                sound("arrival.requests_per_s", *requests_per_s)
            }
            Self::Gamma { requests_per_s, shape, .. } => {
                sound("arrival.requests_per_s", *requests_per_s)?;
                sound("arrival.shape", *shape)
            }
            Self::Ramp { from_requests_per_s, to_requests_per_s, .. } => {
                sound("arrival.from_requests_per_s", *from_requests_per_s)?;
                sound("arrival.to_requests_per_s", *to_requests_per_s)
            }
            Self::Trace { speed, .. } => sound("arrival.speed", *speed),
        }
    }
}

/// Rates, shapes and speeds are numbers that a clock in microseconds can follow.
fn sound(key: &'static str, value: f64) -> Result<(), ScenarioError> {
    if (1e-3..=1e6).contains(&value) {
        return Ok(());
    }
    Err(ScenarioError::Range { key, wanted: "from 0.001 to 1000000", found: value.to_string() })
}
