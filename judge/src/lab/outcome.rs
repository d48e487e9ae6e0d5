//! What the launches of one candidate in one round came to.

use std::collections::BTreeMap;

use serde::Serialize;

/// One launch.
#[derive(Debug, Clone, PartialEq)]
pub enum Launch {
    /// The objective's metric, above zero, and those that the objective bounds.
    Measured {
        /// In the metric's unit.
        value: f64,
        /// Names of metrics to their figures, in their units.
        bounded: BTreeMap<String, f64>,
    },
    /// It has none.
    Failed(Failure),
}

/// Why a launch has no figure that stands beside others.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Failure {
    /// In words.
    pub reason: String,
    /// Share of the requests that were answered.
    pub survived: Option<f64>,
}

/// The launches under each profile, repeat by repeat. After a failure there may be none.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outcomes(pub Vec<Vec<Launch>>);

impl Outcomes {
    /// The first launch that failed, of the profiles in their order.
    #[must_use]
    pub fn failure(&self) -> Option<&Failure> {
        self.0.iter().flatten().find_map(|launch| match launch {
            Launch::Failed(failure) => Some(failure),
            Launch::Measured { .. } => None,
        })
    }

    /// The objective's metric under each profile.
    #[must_use]
    pub fn figures(&self) -> Vec<Vec<f64>> {
        self.each(|launch| match launch {
            Launch::Measured { value, .. } => Some(*value),
            Launch::Failed(_) => None,
        })
    }

    /// A bounded metric under each profile.
    #[must_use]
    pub fn bounded(&self, metric: &str) -> Vec<Vec<f64>> {
        self.each(|launch| match launch {
            Launch::Measured { bounded, .. } => bounded.get(metric).copied(),
            Launch::Failed(_) => None,
        })
    }

    fn each(&self, figure: impl Fn(&Launch) -> Option<f64>) -> Vec<Vec<f64>> {
        self.0.iter().map(|launches| launches.iter().filter_map(&figure).collect()).collect()
    }
}
