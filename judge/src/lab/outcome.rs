//! Outcomes of the runs of one lab candidate in one round.

use std::collections::BTreeMap;

use serde::Serialize;

/// Outcome of one run of a lab.
#[derive(Debug, Clone, PartialEq)]
pub enum Launch {
    /// The run has a figure above zero for the objective's metric, and figures for the bounded
    /// metrics.
    Measured {
        /// Value of the objective's metric, in the metric's unit.
        value: f64,
        /// Values of the bounded metrics by metric name, in each metric's unit.
        bounded: BTreeMap<String, f64>,
    },
    /// The run has no usable figure.
    Failed(Failure),
}

/// Reason why a run of a lab has no figure that can be compared.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Failure {
    /// Cause of the failure, as a sentence.
    pub reason: String,
    /// Share of the planned requests that were answered, 0 to 1.
    pub survived: Option<f64>,
}

/// Runs of a candidate in a round: outer index is the profile, inner index the repeat. After a
/// failure the remaining runs may be missing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outcomes(pub Vec<Vec<Launch>>);

impl Outcomes {
    /// Returns the first failed run, searching the profiles in their order.
    pub fn failure(&self) -> Option<&Failure> {
        self.0.iter().flatten().find_map(|launch| match launch {
            Launch::Failed(failure) => Some(failure),
            Launch::Measured { .. } => None,
        })
    }

    /// Values of the objective's metric: outer index is the profile, inner index the repeat.
    pub fn figures(&self) -> Vec<Vec<f64>> {
        self.each(|launch| match launch {
            Launch::Measured { value, .. } => Some(*value),
            Launch::Failed(_) => None,
        })
    }

    /// Values of a bounded metric: outer index is the profile, inner index the repeat.
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
