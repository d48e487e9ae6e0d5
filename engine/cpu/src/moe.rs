//! MoE routing on the CPU: top-k experts of each row, dispatch of rows to experts and weighted sum.
//!
//! A row's experts depend on its own logits only, and its result is summed in the order of expert
//! indices, so neither depends on other rows of the step.

#![expect(unsafe_code, reason = "threads write disjoint rows")]

use std::ops::Range;

use super::isa::{Isa, Kernel};
use super::lanes::Lanes;
use super::pool::Pool;
use super::shared::Shared;
use engine_core::Gate;

/// Number of elements of a vectorized operation that take about as long as comparing one logit.
const LOGIT_COST: usize = 8;

/// MoE routing of a step on the CPU: the rows that each of this rank's experts computes, and their
/// weights.
#[derive(Debug)]
pub struct Routes {
    /// Index, in the step, of the row that each dispatched row is, grouped by expert.
    sources: Vec<usize>,
    /// Expert index and range of dispatched rows, for each of this rank's experts that has any, in
    /// rising order of experts.
    groups: Vec<(usize, Range<usize>)>,
    /// Index of each dispatched row and weight of its expert's output, row by row of the step,
    /// those of a row in rising order of experts.
    outputs: Vec<(usize, f32)>,
    /// Index of each step row's first entry in `outputs`, and then the number of entries.
    firsts: Vec<usize>,
}

/// Rows of a MoE layer that are sorted by expert: which rows each expert multiplies.
#[derive(Debug, Clone, Copy)]
pub(super) struct DispatchedRows<'a> {
    /// Expert index and range of dispatched rows, in rising order of both.
    pub groups: &'a [(usize, Range<usize>)],
    /// Number of rows of the input.
    pub inputs: usize,
    /// Index in the input of each dispatched row; none if the input has the dispatched rows.
    pub sources: Option<&'a [usize]>,
}

impl DispatchedRows<'_> {
    /// Returns the number of dispatched rows.
    pub(super) fn len(self) -> usize {
        self.groups.last().map_or(0, |(_, rows)| rows.end)
    }
}

impl Routes {
    /// Selects, for each row of logits, the `top_k` of `experts` experts with the largest router
    /// logits, of equal ones those of lower index. Keeps only the experts in the range `own`, those
    /// of this rank, and numbers them from its start.
    pub(super) fn choose(
        pool: &mut Pool,
        logits: &[f32],
        experts: usize,
        top_k: usize,
        gate: Gate,
        own: Range<usize>,
    ) -> Self {
        assert!(0 < top_k && top_k <= experts, "some of the experts");
        let rows = logits.len() / experts;
        let mut best = vec![(0, 0.0); rows * top_k];
        let shared = Shared::new(&mut best);
        pool.rows(rows, LOGIT_COST * experts, &|first, rows| {
            // SAFETY: items are disjoint rows.
            let best = unsafe { shared.part(first * top_k, rows * top_k) };
            let logits = &logits[first * experts..(first + rows) * experts];
            for (logits, best) in logits.chunks_exact(experts).zip(best.chunks_exact_mut(top_k)) {
                select(logits, gate, best);
            }
        });
        Self::sorted(&best, top_k, own)
    }

    /// Sorts the rows of a step by expert. `best` has each row's top-k experts and their weights,
    /// in rising order of experts.
    fn sorted(best: &[(usize, f32)], top_k: usize, own: Range<usize>) -> Self {
        // Number of rows of each expert, and then the index of its next dispatched row.
        let mut next = vec![0; own.len()];
        let is_own = |(expert, _): &&(usize, f32)| own.contains(expert);
        for (expert, _) in best.iter().filter(is_own) {
            next[expert - own.start] += 1;
        }
        let (mut groups, mut all) = (Vec::new(), 0);
        for (expert, next) in next.iter_mut().enumerate() {
            let rows = all..all + *next;
            (*next, all) = (rows.start, rows.end);
            if !rows.is_empty() {
                groups.push((expert, rows));
            }
        }
        let (mut sources, mut outputs) = (vec![0; all], Vec::with_capacity(all));
        let mut firsts = vec![0];
        for (row, best) in best.chunks_exact(top_k).enumerate() {
            for (expert, weight) in best.iter().filter(is_own) {
                let next = &mut next[expert - own.start];
                sources[*next] = row;
                outputs.push((*next, *weight));
                *next += 1;
            }
            firsts.push(outputs.len());
        }
        Self { sources, groups, outputs, firsts }
    }

    /// Returns the number of rows dispatched to this rank's experts: one per pair of a row and one
    /// of its top-k experts on this rank.
    pub(super) fn rows(&self) -> usize {
        self.sources.len()
    }

    /// Returns the number of rows of the step.
    fn step_rows(&self) -> usize {
        self.firsts.len() - 1
    }

    /// Returns the dispatched rows for an input that has them.
    pub(super) fn dispatched(&self) -> DispatchedRows<'_> {
        DispatchedRows { groups: &self.groups, inputs: self.rows(), sources: None }
    }

    /// Returns the dispatched rows for an input that has the rows of the step.
    pub(super) fn of_step(&self) -> DispatchedRows<'_> {
        let (groups, inputs) = (&self.groups[..], self.step_rows());
        DispatchedRows { groups, inputs, sources: Some(&self.sources) }
    }

    /// Copies rows of `cols` columns to their experts (MoE dispatch): dispatched row `i` is a copy
    /// of the row of `x` that it comes from.
    pub(super) fn dispatch(&self, pool: &mut Pool, x: &[f32], cols: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.rows() * cols, "a row for each that is sent");
        let out = Shared::new(out);
        pool.rows(self.rows(), cols, &|first, rows| {
            // SAFETY: items are disjoint rows.
            let out = unsafe { out.part(first * cols, rows * cols) };
            for (source, out) in self.sources[first..].iter().zip(out.chunks_exact_mut(cols)) {
                out.copy_from_slice(&x[source * cols..(source + 1) * cols]);
            }
        });
    }

    /// Adds to each dispatched row of `x` the bias of its expert. `biases` has one vector for each
    /// of this rank's experts, or is empty.
    pub(super) fn add_biases(&self, pool: &mut Pool, x: &mut [f32], biases: &[Vec<f32>]) {
        let Some(cols) = biases.first().map(Vec::len) else { return };
        assert_eq!(x.len(), self.rows() * cols, "a row for each that was sent");
        let x = Shared::new(x);
        pool.rows(self.rows(), cols, &|first, rows| {
            let end = first + rows;
            let group = self.groups.partition_point(|(_, rows)| rows.end <= first);
            for (expert, rows) in &self.groups[group..] {
                for row in rows.start.max(first)..rows.end.min(end) {
                    // SAFETY: items are disjoint rows.
                    let x = unsafe { x.part(row * cols, cols) };
                    x.iter_mut().zip(&biases[*expert]).for_each(|(x, bias)| *x += bias);
                }
            }
        });
    }

    /// Sums the experts' outputs into rows of `cols` columns (MoE combine): each row of `out`
    /// becomes the sum of the rows of `x` that were dispatched from it, times their weights.
    pub(super) fn combine(
        &self,
        isa: Isa,
        pool: &mut Pool,
        x: &[f32],
        cols: usize,
        out: &mut [f32],
    ) {
        let rows = self.step_rows();
        assert_eq!(x.len(), self.rows() * cols, "a row for each that was sent");
        assert_eq!(out.len(), rows * cols, "a row for each of the step");
        let out = Shared::new(out);
        pool.rows(rows, cols, &|first, rows| {
            for row in first..first + rows {
                let outputs = &self.outputs[self.firsts[row]..self.firsts[row + 1]];
                // SAFETY: items are disjoint rows.
                let out = unsafe { out.part(row * cols, cols) };
                isa.run(WeightedSum { x, outputs, out });
            }
        });
    }
}

/// Selects the experts with the largest of the logits of one row, as many as `best` has entries, of
/// equal ones those of lower index. Writes them with their MoE weights to `best`, in rising order
/// of experts.
fn select(logits: &[f32], gate: Gate, best: &mut [(usize, f32)]) {
    let mut selected = 0;
    for (expert, logit) in logits.iter().enumerate() {
        // Of equal logits the earlier one stays before the later one, so the choice is the same on
        // every device and rank.
        let stays = |other: &(usize, f32)| other.1.total_cmp(logit).is_ge();
        if selected == best.len() && stays(&best[selected - 1]) {
            continue;
        }
        let at = best[..selected].partition_point(stays);
        selected = best.len().min(selected + 1);
        best[at..selected].rotate_right(1);
        best[at] = (expert, *logit);
    }
    // Subtracting the largest logit keeps the exponentials from overflowing.
    let largest = best[0].1;
    best.iter_mut().for_each(|(_, weight)| *weight = (*weight - largest).exp());
    let total: f32 = match gate {
        Gate::SoftmaxTop { normalized: false } => {
            logits.iter().map(|logit| (logit - largest).exp()).sum()
        }
        // Softmax over all experts followed by division by the sum of the top k equals softmax over
        // the top k.
        Gate::SoftmaxTop { normalized: true } | Gate::TopSoftmax => {
            best.iter().map(|(_, weight)| weight).sum()
        }
    };
    best.iter_mut().for_each(|(_, weight)| *weight /= total);
    best.sort_unstable_by_key(|(expert, _)| *expert);
}

/// Kernel that computes one row of the MoE combine.
struct WeightedSum<'a> {
    x: &'a [f32],
    /// Index of each row of `x` that is added, and its weight.
    outputs: &'a [(usize, f32)],
    out: &'a mut [f32],
}

impl Kernel for WeightedSum<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, _lanes: L) {
        let cols = self.out.len();
        self.out.fill(0.0);
        for (row, weight) in self.outputs {
            let x = &self.x[row * cols..(row + 1) * cols];
            for (out, x) in self.out.iter_mut().zip(x) {
                *out += weight * x;
            }
        }
    }
}
