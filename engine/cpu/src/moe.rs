//! MoE routing on the CPU: top-k experts of each row, dispatch of rows to experts and weighted sum.
//!
//! A row's experts depend on its own logits only, and its result is summed in the order of expert
//! indices, so neither depends on other rows of the step.

use std::ops::Range;

use engine_core::Gate;

/// MoE routing of a step on the CPU: the rows that each of this rank's experts computes, and their
/// weights.
#[derive(Debug)]
pub struct Routes {
    /// Index, in the step, of the row that each dispatched row is copied from, grouped by expert.
    sources: Vec<usize>,
    /// Weight of each dispatched row's expert output in the sum for the row that it was copied
    /// from.
    weights: Vec<f32>,
    /// Expert index and range of dispatched rows, for each of this rank's experts that has any, in
    /// rising order of experts.
    groups: Vec<(usize, Range<usize>)>,
}

impl Routes {
    /// Selects, for each row of logits, the `top_k` of `experts` experts with the largest router
    /// logits, of equal ones those of lower index. Keeps only the experts in the range `own`, those
    /// of this rank, and numbers them from its start.
    pub(super) fn choose(
        logits: &[f32],
        experts: usize,
        top_k: usize,
        gate: Gate,
        own: Range<usize>,
    ) -> Self {
        assert!(0 < top_k && top_k <= experts, "some of the experts");
        let mut by_expert = vec![Vec::new(); experts];
        let mut order = Vec::with_capacity(experts);
        for (row, logits) in logits.chunks_exact(experts).enumerate() {
            order.clear();
            order.extend(0..experts);
            // A stable order on equal logits makes the choice the same on every device and rank.
            order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
            let best = &order[..top_k];
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

    /// Returns the number of rows dispatched to this rank's experts: one per pair of a row and one
    /// of its top-k experts on this rank.
    pub(super) fn rows(&self) -> usize {
        self.sources.len()
    }

    /// Iterates over this rank's experts that have rows: expert index and range of dispatched rows.
    pub(super) fn groups(&self) -> impl Iterator<Item = (usize, Range<usize>)> + '_ {
        self.groups.iter().cloned()
    }

    /// Copies rows of `cols` columns to their experts (MoE dispatch): dispatched row `i` is a copy
    /// of the row of `x` that it comes from.
    pub(super) fn dispatch(&self, x: &[f32], cols: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.rows() * cols, "a row for each that is sent");
        for (source, out) in self.sources.iter().zip(out.chunks_exact_mut(cols)) {
            out.copy_from_slice(&x[source * cols..(source + 1) * cols]);
        }
    }

    /// Sums the experts' outputs into rows of `cols` columns (MoE combine): zeroes `out`, then adds
    /// each dispatched row of `x`, times its weight, to the row of `out` that it came from.
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

/// Returns the MoE weights of one row's top-k experts `best`, which are in the order of falling
/// logits.
fn weights(logits: &[f32], best: &[usize], gate: Gate) -> Vec<f32> {
    // Subtracting the largest logit keeps the exponentials from overflowing.
    let largest = logits[best[0]];
    let mut weights: Vec<f32> = best.iter().map(|i| (logits[*i] - largest).exp()).collect();
    let total: f32 = match gate {
        Gate::SoftmaxTop { normalized: false } => {
            logits.iter().map(|logit| (logit - largest).exp()).sum()
        }
        // Softmax over all experts followed by division by the sum of the top k equals softmax over
        // the top k.
        Gate::SoftmaxTop { normalized: true } | Gate::TopSoftmax => weights.iter().sum(),
    };
    weights.iter_mut().for_each(|weight| *weight /= total);
    weights
}
