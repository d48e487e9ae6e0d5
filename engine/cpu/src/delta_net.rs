//! Gated DeltaNet (linear attention with recurrent state) on the CPU, between the layer's input and
//! output projections: causal convolution, delta rule, gated norm.
//!
//! A work item is one key head of one sequence, with the value heads that share it. It computes its
//! rows in blocks, and the delta rule of a block token by token in rising position, so the result
//! has the same bits however a sequence is cut into prefill chunks and whatever shares its steps.
//! Columns of the recurrent state matrix do not depend on one another, so a few of them run through
//! all tokens of a block while they are in the L1 cache. Why this is not the chunked form:
//! `docs/notes/cpu-delta-net.md`. Source: Yang, Kautz, Hatamizadeh 2024, "Gated Delta Networks", in
//! the form of Qwen3.5 (transformers, `modeling_qwen3_5.py`).

#![expect(unsafe_code, reason = "threads write disjoint heads of one buffer and of one slot")]

mod rule;

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use super::isa::{Isa, Kernel};
use super::kv::StepMetadata;
use super::lanes::{LANES, Lanes};
use super::pool::Pool;
use super::shared::Shared;
use super::state::{Head, State};
use engine_core::{DeltaNetLayer, DeltaNetShape, ScheduledSequence, StateShape};
use rule::{Gates, Tokens};

/// Largest number of rows of a sequence whose queries, keys and values are convolved before the
/// delta rule is applied to them. The state matrix is loaded into the L1 cache once per block, and
/// the vectors of a block of heads of 128 elements, 96 KiB, stay in the L2 cache.
pub(super) const BLOCK_ROWS: usize = 64;
/// Epsilon of the L2 norm of queries and keys, which keeps the scale of an all-zero vector finite.
const L2_EPSILON: f32 = 1e-6;

/// Working memory of gated DeltaNet, that of each thread.
#[derive(Debug)]
pub(super) struct Scratch(Vec<Mutex<Work>>);

impl Scratch {
    pub(super) fn new(threads: usize) -> Self {
        Self((0..threads).map(|_| Mutex::default()).collect())
    }
}

/// Working memory of one thread of gated DeltaNet, for a block of rows of one head. Vectors are
/// padded with zeros to whole 16-lane vectors.
#[derive(Debug, Default)]
struct Work {
    /// Queries of the block's rows, scaled to the L2 norm `1 / sqrt(key dim)`, `[rows][key dim]`.
    queries: Vec<[f32; LANES]>,
    /// Keys of the block's rows, scaled to the L2 norm 1, `[rows][key dim]`.
    keys: Vec<[f32; LANES]>,
    /// Values of the block's rows for one value head, `[rows][value dim]`, which the delta rule
    /// replaces by its results.
    values: Vec<[f32; LANES]>,
    gates: Vec<Gates>,
}

/// Arguments of a gated DeltaNet layer, without the buffers it writes.
#[derive(Clone, Copy)]
pub(super) struct DeltaNet<'a> {
    pub isa: Isa,
    /// Output of the DeltaNet layer's input projection, `[T, cols]`, in the column order of
    /// [`DeltaNetShape`].
    pub projected: &'a [f32],
    pub layer: &'a DeltaNetLayer<Vec<f32>>,
    pub step: &'a StepMetadata,
}

impl DeltaNet<'_> {
    /// Computes the gated DeltaNet layer for all sequences of the step and writes it to `out`, of
    /// shape `[T, value heads * value dim]`. The caller must have checked, by [`State::check`],
    /// that every sequence of the step has a state slot that exists.
    pub(super) fn run(
        &self,
        pool: &mut Pool,
        scratch: &Scratch,
        state: &mut State,
        out: &mut [f32],
    ) {
        assert_eq!(self.layer.shape, state.shape.net, "the states are of this shape");
        let (heads, states) = (self.layer.shape.key_heads, state.shape);
        let storage = &Shared::new(bytemuck::cast_slice_mut(&mut state.storage));
        let out = &Shared::new(out);
        pool.items(self.step.sequences.len() * heads, &|thread, item| {
            let (sequence, head) = (&self.step.sequences[item / heads], item % heads);
            let work = &scratch.0[thread];
            self.isa.run(Item { call: *self, sequence, head, states, storage, work, out });
        });
    }
}

/// Work item of gated DeltaNet: one key head of one sequence.
struct Item<'a, 'b> {
    call: DeltaNet<'a>,
    sequence: &'a ScheduledSequence,
    head: usize,
    states: StateShape,
    storage: &'a Shared<'b, f32>,
    work: &'a Mutex<Work>,
    out: &'a Shared<'b, f32>,
}

impl Kernel for Item<'_, '_> {
    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let Some(slot) = self.sequence.state else { return };
        let head = Head::new(&self.call.layer.shape);
        let start = |slot| head.start(&self.states, self.call.layer.index, slot, self.head);
        // SAFETY: the step gives each slot to one sequence only, and only this item has the head.
        let state = unsafe { self.storage.part(start(slot.slot), head.elements()) };
        if self.sequence.position == 0 {
            state.fill(0.0);
        } else if let Some(load) = slot.load {
            // SAFETY: no sequence of the step writes a state slot that another one loads.
            state.copy_from_slice(unsafe { self.storage.view(start(load), head.elements()) });
        }
        let (history, matrices) = state.split_at_mut(head.history());
        let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        for first in (0..self.sequence.rows).step_by(BLOCK_ROWS) {
            let rows = first..(first + BLOCK_ROWS).min(self.sequence.rows);
            self.advance(lanes, &rows, history, matrices, &mut work);
        }
        self.remember(history);
        if let Some(save) = slot.save {
            // SAFETY: as for the sequence's own slot.
            unsafe { self.storage.part(start(save), head.elements()) }.copy_from_slice(state);
        }
    }
}

impl Item<'_, '_> {
    fn shape(&self) -> &DeltaNetShape {
        &self.call.layer.shape
    }

    /// Returns the input projection of row `row` of the work item's sequence, counted from its
    /// first row in the step.
    #[inline(always)]
    fn projected(&self, row: usize) -> &[f32] {
        let cols = self.shape().cols();
        &self.call.projected[(self.sequence.row + row) * cols..][..cols]
    }

    /// Returns the first column and the number of columns of the key head's query, key and values
    /// among the convolved channels.
    #[inline(always)]
    fn channels(&self) -> [(usize, usize); 3] {
        let DeltaNetShape { key_heads, key_dim, value_dim, .. } = *self.shape();
        let keys = key_heads * key_dim;
        let values = self.shape().group() * value_dim;
        let (query, key) = (self.head * key_dim, keys + self.head * key_dim);
        [(query, key_dim), (key, key_dim), (2 * keys + self.head * values, values)]
    }

    /// Computes a block of rows of a DeltaNet key head: convolves queries, keys and values,
    /// normalizes queries and keys, applies the delta rule to each value head that shares the key
    /// head, and writes the gated norm of the results.
    #[inline(always)]
    fn advance<L: Lanes>(
        &self,
        lanes: L,
        rows: &Range<usize>,
        history: &[f32],
        matrices: &mut [f32],
        work: &mut Work,
    ) {
        let DeltaNetShape { key_dim, value_dim, .. } = *self.shape();
        let group = self.shape().group();
        let [(query_col, _), (key_col, _), (values_col, _)] = self.channels();
        self.convolve(lanes, rows, history, (query_col, 0..key_dim), &mut work.queries);
        self.convolve(lanes, rows, history, (key_col, key_dim..2 * key_dim), &mut work.keys);
        let width = key_dim.div_ceil(LANES);
        for query in work.queries.chunks_exact_mut(width) {
            normalize(lanes, query, 1.0 / (key_dim as f32).sqrt());
        }
        for key in work.keys.chunks_exact_mut(width) {
            normalize(lanes, key, 1.0);
        }
        let matrices = matrices.chunks_exact_mut(Head::new(self.shape()).matrix);
        for (i, matrix) in matrices.enumerate() {
            let (head, first) = (self.head * group + i, i * value_dim);
            let own = 2 * key_dim + first..2 * key_dim + first + value_dim;
            self.convolve(lanes, rows, history, (values_col + first, own), &mut work.values);
            work.gates.clear();
            work.gates.extend(rows.clone().map(|row| self.gates(row, head)));
            let tokens = Tokens {
                queries: work.queries.as_flattened(),
                keys: work.keys.as_flattened(),
                key_dim,
                gates: &work.gates,
                groups: value_dim.div_ceil(LANES),
            };
            let (matrix, _) = matrix.as_chunks_mut::<LANES>();
            tokens.update(lanes, matrix, &mut work.values);
            for (row, x) in rows.clone().zip(work.values.chunks_exact(tokens.groups)) {
                self.gated_norm(lanes, row, head, x);
            }
        }
    }

    /// Computes the causal convolution and SiLU of some channels of a block of rows, and leaves the
    /// results in `out`, padded. `channels` is their first column in the input projection and their
    /// range among the channels of the key head, in whose order `history` is laid out. Inputs are
    /// added from the oldest on, whether they come from the history or from the step, so the cut
    /// between steps changes no bit.
    #[inline(always)]
    fn convolve<L: Lanes>(
        &self,
        lanes: L,
        rows: &Range<usize>,
        history: &[f32],
        channels: (usize, Range<usize>),
        out: &mut Vec<[f32; LANES]>,
    ) {
        let (conv_cols, past) = (self.shape().conv_cols(), self.shape().taps - 1);
        let all_channels = Head::new(self.shape()).channels;
        let (col, own) = channels;
        let groups = own.len().div_ceil(LANES);
        out.clear();
        out.resize(rows.len() * groups, [0.0; LANES]);
        for (row, out) in rows.clone().zip(out.chunks_exact_mut(groups)) {
            let sums = &mut out.as_flattened_mut()[..own.len()];
            for tap in 0..=past {
                let weights = &self.call.layer.conv[tap * conv_cols + col..][..own.len()];
                let inputs = match (row + tap).checked_sub(past) {
                    Some(row) => &self.projected(row)[col..][..own.len()],
                    None => &history[(row + tap) * all_channels..][own.clone()],
                };
                for ((sum, w), x) in sums.iter_mut().zip(weights).zip(inputs) {
                    *sum += w * x;
                }
            }
            for v in out {
                *v = lanes.lower(silu(lanes, lanes.lift(v)));
            }
        }
    }

    /// Stores the last inputs of the causal convolution in the head's history, for the next step.
    #[inline(always)]
    fn remember(&self, history: &mut [f32]) {
        let Head { channels, past, .. } = Head::new(self.shape());
        let rows = self.sequence.rows;
        for kept in 0..past {
            match (rows + kept).checked_sub(past) {
                Some(row) => {
                    let mut to = &mut history[kept * channels..(kept + 1) * channels];
                    for (col, len) in self.channels() {
                        let (part, rest) = to.split_at_mut(len);
                        part.copy_from_slice(&self.projected(row)[col..col + len]);
                        to = rest;
                    }
                }
                None => {
                    let from = (rows + kept) * channels;
                    history.copy_within(from..from + channels, kept * channels);
                }
            }
        }
    }

    /// Returns the gates of the delta rule of value head `head` for row `row` of the work item's
    /// sequence.
    fn gates(&self, row: usize, head: usize) -> Gates {
        let DeltaNetShape { value_heads, value_dim, .. } = *self.shape();
        let (layer, projected) = (self.call.layer, self.projected(row));
        let scalars = &projected[self.shape().conv_cols() + value_heads * value_dim..];
        let (beta, rate) = (scalars[head], scalars[value_heads + head]);
        Gates {
            decay: (layer.rate[head] * softplus(rate + layer.bias[head])).exp(),
            beta: 1.0 / (1.0 + (-beta).exp()),
        }
    }

    /// Writes the gated RMS norm of the delta rule's results `x` for one row and one value head:
    /// `out = x / sqrt(mean(x^2) + epsilon) * weight * silu(gate)`.
    #[inline(always)]
    fn gated_norm<L: Lanes>(&self, lanes: L, row: usize, head: usize, x: &[[f32; LANES]]) {
        let DeltaNetShape { value_heads, value_dim, .. } = *self.shape();
        let gates = &self.projected(row)[self.shape().conv_cols() + head * value_dim..];
        let out = ((self.sequence.row + row) * value_heads + head) * value_dim;
        // SAFETY: items differ in sequence or head, so each writes its own columns.
        let out = unsafe { self.out.part(out, value_dim) };
        let mean = squares(lanes, x) / value_dim as f32;
        let scale = lanes.splat(1.0 / (mean + self.call.layer.epsilon).sqrt());
        let (weights, weights_tail) = self.call.layer.norm.as_chunks::<LANES>();
        let (gates, gates_tail) = gates[..value_dim].as_chunks::<LANES>();
        let (out, out_tail) = out.as_chunks_mut::<LANES>();
        for (((x, weight), gate), out) in x.iter().zip(weights).zip(gates).zip(out) {
            *out = gate_vector(lanes, scale, x, weight, gate);
        }
        if let Some(x) = x.get(weights.len()) {
            let tail = gate_vector(lanes, scale, x, &pad(weights_tail), &pad(gates_tail));
            out_tail.copy_from_slice(&tail[..out_tail.len()]);
        }
    }
}

/// Returns 16 elements of a gated RMS norm: `x * scale * weight * silu(gate)`.
#[inline(always)]
fn gate_vector<L: Lanes>(
    lanes: L,
    scale: L::V,
    x: &[f32; LANES],
    weight: &[f32; LANES],
    gate: &[f32; LANES],
) -> [f32; LANES] {
    let weighed = lanes.mul(lanes.mul(lanes.lift(x), scale), lanes.lift(weight));
    lanes.lower(lanes.mul(weighed, silu(lanes, lanes.lift(gate))))
}

/// Scales a vector to the L2 norm `length`, with an epsilon for vectors near zero.
#[inline(always)]
fn normalize<L: Lanes>(lanes: L, x: &mut [[f32; LANES]], length: f32) {
    let scale = lanes.splat(length / (squares(lanes, x) + L2_EPSILON).sqrt());
    for v in x {
        *v = lanes.lower(lanes.mul(lanes.lift(v), scale));
    }
}

/// Returns the sum of the squares of a vector's elements.
#[inline(always)]
fn squares<L: Lanes>(lanes: L, x: &[[f32; LANES]]) -> f32 {
    let mut sum = lanes.splat(0.0);
    for v in x {
        let v = lanes.lift(v);
        sum = lanes.fma(v, v, sum);
    }
    lanes.sum(sum)
}

/// Returns the SiLU activation, `x / (1 + e^-x)`, of each lane.
#[inline(always)]
fn silu<L: Lanes>(lanes: L, x: L::V) -> L::V {
    let e = lanes.exp(lanes.sub(lanes.splat(0.0), x));
    lanes.div(x, lanes.add(lanes.splat(1.0), e))
}

/// Returns the softplus, `ln(1 + e^x)`. Above 20 the result equals `x` in f32, and `e^x` could
/// overflow.
fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

/// Returns the elements of `x`, at most 16, padded with zeros to 16.
fn pad(x: &[f32]) -> [f32; LANES] {
    let mut out = [0.0; LANES];
    out[..x.len()].copy_from_slice(x);
    out
}
