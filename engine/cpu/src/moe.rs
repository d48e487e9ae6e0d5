//! Rows on their way to experts and back.
//!
//! A row's experts depend on its own logits only, and its result is summed in the order of its
//! experts' numbers, so that neither depends on other rows.

use std::ops::Range;

use engine_core::Gate;

/// Where each row of a step goes.
#[derive(Debug)]
pub struct Routes {
    /// Row of the step that each dispatched row comes from, grouped by expert.
    sources: Vec<usize>,
    /// Weight of each dispatched row.
    weights: Vec<f32>,
    /// Dispatched rows of each expert that has any, experts rising.
    groups: Vec<(usize, Range<usize>)>,
}

impl Routes {
    /// Chooses `chosen` of the `experts` for each row of logits, and keeps those in `own`, numbered
    /// from its start.
    pub(super) fn choose(
        logits: &[f32],
        experts: usize,
        chosen: usize,
        gate: Gate,
        own: Range<usize>,
    ) -> Self {
        assert!(0 < chosen && chosen <= experts, "some of the experts");
        let mut by_expert = vec![Vec::new(); experts];
        let mut order = Vec::with_capacity(experts);
        for (row, logits) in logits.chunks_exact(experts).enumerate() {
            order.clear();
            order.extend(0..experts);
            order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
            let best = &order[..chosen];
            for (expert, weight) in best.iter().zip(weights(logits, best, gate)) {
                by_expert[*expert].push((row, weight));
            }
        }
        let mut routes = Self { sources: Vec::new(), weights: Vec::new(), groups: Vec::new() };
        for (expert, rows) in by_expert.drain(own).enumerate() {
            if rows.is_empty() {
                continue;
            }
            let start = routes.sources.len();
            routes.groups.push((expert, start..start + rows.len()));
            for (row, weight) in rows {
                routes.sources.push(row);
                routes.weights.push(weight);
            }
        }
        routes
    }

    /// Dispatched rows.
    pub(super) fn rows(&self) -> usize {
        self.sources.len()
    }

    /// Each expert with its dispatched rows.
    pub(super) fn groups(&self) -> impl Iterator<Item = (usize, Range<usize>)> + '_ {
        self.groups.iter().cloned()
    }

    /// `out[i] = x[source of i]`, rows of `cols`.
    pub(super) fn dispatch(&self, x: &[f32], cols: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.rows() * cols, "a row for each that is sent");
        for (source, out) in self.sources.iter().zip(out.chunks_exact_mut(cols)) {
            out.copy_from_slice(&x[source * cols..(source + 1) * cols]);
        }
    }

    /// `out[source of i] += weight of i * x[i]`, from zero, rows of `cols`.
    pub(super) fn combine(&self, x: &[f32], cols: usize, out: &mut [f32]) {
        assert_eq!(x.len(), self.rows() * cols, "a row for each that was sent");
        out.fill(0.0);
        for ((source, weight), x) in
            self.sources.iter().zip(&self.weights).zip(x.chunks_exact(cols))
        {
            let out = &mut out[source * cols..(source + 1) * cols];
            out.iter_mut().zip(x).for_each(|(out, x)| *out += weight * x);
        }
    }
}

/// Weights of the experts `best` of one row.
fn weights(logits: &[f32], best: &[usize], gate: Gate) -> Vec<f32> {
    // The first of the best has the largest logit.
    let largest = logits[best[0]];
    let mut weights: Vec<f32> = best.iter().map(|i| (logits[*i] - largest).exp()).collect();
    let total: f32 = match gate {
        Gate::SoftmaxTop { normalized: false } => {
            logits.iter().map(|logit| (logit - largest).exp()).sum()
        }
        // Dividing by the sum over all experts and then by what the best have of it is dividing
        // by the sum over the best.
        Gate::SoftmaxTop { normalized: true } | Gate::TopSoftmax => weights.iter().sum(),
    };
    weights.iter_mut().for_each(|weight| *weight /= total);
    weights
}
