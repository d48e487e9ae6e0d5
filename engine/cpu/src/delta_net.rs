//! Gated DeltaNet (linear attention with recurrent state) on the CPU, between the layer's input and
//! output projections: causal convolution, delta rule, gated norm.
//!
//! A work item is one key head of one sequence, with the value heads that share it. It computes its
//! rows one by one in rising position, so the result has the same bits however a sequence is cut
//! into prefill chunks and whatever shares its steps. Source: Yang, Kautz, Hatamizadeh 2024, "Gated
//! Delta Networks", in the form of Qwen3.5 (transformers, `modeling_qwen3_5.py`).

#![expect(unsafe_code, reason = "threads write disjoint heads of one buffer and of one slot")]

use super::isa::{Isa, Kernel};
use super::kv::StepMetadata;
use super::lanes::{LANES, Lanes};
use super::pool::Pool;
use super::shared::Shared;
use super::state::{Head, State};
use engine_core::{DeltaNetLayer, DeltaNetShape, ScheduledSequence, StateShape};

/// Largest supported size, in elements, of a key or value head of gated DeltaNet.
const DIM_MAX: usize = 512;
/// Epsilon of the L2 norm of queries and keys, which keeps the scale of an all-zero vector finite.
const L2_EPSILON: f32 = 1e-6;

/// Query, key, value or output vector of one DeltaNet head, padded with zeros to whole 16-lane
/// vectors.
type Padded = [[f32; LANES]; DIM_MAX / LANES];

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
    pub(super) fn run(&self, pool: &mut Pool, state: &mut State, out: &mut [f32]) {
        let shape = &self.layer.shape;
        assert_eq!(*shape, state.shape.net, "the states are of this shape");
        assert!(shape.key_dim <= DIM_MAX && shape.value_dim <= DIM_MAX, "heads fit their buffers");
        let (heads, states) = (shape.key_heads, state.shape);
        let storage = &Shared::new(bytemuck::cast_slice_mut(&mut state.storage));
        let out = &Shared::new(out);
        pool.items(self.step.sequences.len() * heads, &|_, item| {
            let (sequence, head) = (&self.step.sequences[item / heads], item % heads);
            self.isa.run(Item { call: *self, sequence, head, states, storage, out });
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
        for row in 0..self.sequence.rows {
            self.advance(lanes, row, history, matrices);
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

    /// Computes one token of a DeltaNet key head: convolves query, key and values, normalizes query
    /// and key, applies the delta rule to each value head that shares the key head, and writes the
    /// gated norm of the results.
    #[inline(always)]
    fn advance<L: Lanes>(&self, lanes: L, row: usize, history: &[f32], matrices: &mut [f32]) {
        let DeltaNetShape { value_heads, key_dim, value_dim, .. } = *self.shape();
        let group = self.shape().group();
        let [(query_col, _), (key_col, _), (values_col, _)] = self.channels();
        let mut query = self.convolve(lanes, row, history, query_col, 0..key_dim);
        let mut key = self.convolve(lanes, row, history, key_col, key_dim..2 * key_dim);
        normalize(lanes, &mut query[..key_dim.div_ceil(LANES)], 1.0 / (key_dim as f32).sqrt());
        normalize(lanes, &mut key[..key_dim.div_ceil(LANES)], 1.0);
        let projected = self.projected(row);
        let gates = self.shape().conv_cols();
        let scalars = gates + value_heads * value_dim;
        for i in 0..group {
            let head = self.head * group + i;
            let at = 2 * key_dim + i * value_dim;
            let values_col = values_col + i * value_dim;
            let values = self.convolve(lanes, row, history, values_col, at..at + value_dim);
            let (beta, rate) = (projected[scalars + head], projected[scalars + value_heads + head]);
            let token = Token {
                query: query.as_flattened(),
                key: &key.as_flattened()[..key_dim],
                values: &values,
                decay: (self.call.layer.rate[head] * softplus(rate + self.call.layer.bias[head]))
                    .exp(),
                beta: 1.0 / (1.0 + (-beta).exp()),
            };
            let size = Head::new(self.shape()).matrix;
            let matrix = &mut matrices[i * size..(i + 1) * size];
            let mut sums = Padded::default();
            token.update(lanes, matrix, &mut sums[..value_dim.div_ceil(LANES)]);
            let gate = &projected[gates + head * value_dim..][..value_dim];
            let out = (self.sequence.row + row) * value_heads * value_dim + head * value_dim;
            // SAFETY: items differ in sequence or head, so each writes its own columns.
            let out = unsafe { self.out.part(out, value_dim) };
            self.gated_norm(lanes, &sums, gate, out);
        }
    }

    /// Computes the causal convolution and SiLU of `own.len()` channels of row `row` and returns
    /// the results. The channels begin at column `col` of the input projection; `own` is their
    /// range among the channels of the key head, in whose order `history` is laid out. Inputs are
    /// added from the oldest on, whether they come from the history or from the step, so the cut
    /// between steps changes no bit.
    #[inline(always)]
    fn convolve<L: Lanes>(
        &self,
        lanes: L,
        row: usize,
        history: &[f32],
        col: usize,
        own: std::ops::Range<usize>,
    ) -> Padded {
        let (conv_cols, past) = (self.shape().conv_cols(), self.shape().taps - 1);
        let channels = Head::new(self.shape()).channels;
        let mut out = Padded::default();
        let sums = &mut out.as_flattened_mut()[..own.len()];
        for tap in 0..=past {
            let weights = &self.call.layer.conv[tap * conv_cols + col..][..own.len()];
            let inputs = match (row + tap).checked_sub(past) {
                Some(row) => &self.projected(row)[col..][..own.len()],
                None => &history[(row + tap) * channels..][own.clone()],
            };
            for ((sum, w), x) in sums.iter_mut().zip(weights).zip(inputs) {
                *sum += w * x;
            }
        }
        for v in &mut out[..own.len().div_ceil(LANES)] {
            *v = lanes.lower(silu(lanes, lanes.lift(v)));
        }
        out
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

    /// Computes the gated RMS norm of one value head: `out = x / sqrt(mean(x^2) + epsilon) * weight
    /// * silu(gate)`.
    #[inline(always)]
    fn gated_norm<L: Lanes>(&self, lanes: L, x: &Padded, gate: &[f32], out: &mut [f32]) {
        let groups = out.len().div_ceil(LANES);
        let mean = squares(lanes, &x[..groups]) / out.len() as f32;
        let scale = lanes.splat(1.0 / (mean + self.call.layer.epsilon).sqrt());
        let weights = self.call.layer.norm.chunks(LANES);
        for (((x, gate), weight), out) in
            x.iter().zip(gate.chunks(LANES)).zip(weights).zip(out.chunks_mut(LANES))
        {
            let weighed = lanes.mul(lanes.mul(lanes.lift(x), scale), lanes.lift(&pad(weight)));
            let y = lanes.lower(lanes.mul(weighed, silu(lanes, lanes.lift(&pad(gate)))));
            out.copy_from_slice(&y[..out.len()]);
        }
    }
}

/// Inputs of the delta rule (gated DeltaNet) for one token and one value head.
struct Token<'a> {
    /// Query of a token, scaled to the L2 norm `1 / sqrt(key dim)` and padded: at least as long as
    /// `key`.
    query: &'a [f32],
    key: &'a [f32],
    values: &'a Padded,
    /// Factor of the previous recurrent state for this token, from 0 to 1.
    decay: f32,
    /// Fraction, from 0 to 1, by which the value that the recurrent state has for the key is
    /// replaced by the token's value.
    beta: f32,
}

impl Token<'_> {
    /// Applies the delta rule to the recurrent state matrix S: `S = decay S; S += key (values - S^T
    /// key)^T beta; out = S^T query`.
    #[inline(always)]
    fn update<L: Lanes>(&self, lanes: L, matrix: &mut [f32], out: &mut [[f32; LANES]]) {
        let (matrix, _) = matrix.as_chunks_mut::<LANES>();
        let groups = out.len();
        let mut first = 0;
        // Several groups side by side hide the latency of the sums. The order of additions within a
        // column stays the same, and so do the bits.
        while first + 4 <= groups {
            self.columns::<L, 4>(lanes, matrix, first, out);
            first += 4;
        }
        while first < groups {
            self.columns::<L, 1>(lanes, matrix, first, out);
            first += 1;
        }
    }

    /// Applies the delta rule to `G` groups of 16 columns of the recurrent state matrix, in two
    /// passes over its rows: the first reads the value that the state has for the key, the second
    /// updates the state and multiplies it by the query.
    #[inline(always)]
    fn columns<L: Lanes, const G: usize>(
        &self,
        lanes: L,
        matrix: &mut [[f32; LANES]],
        first: usize,
        out: &mut [[f32; LANES]],
    ) {
        let groups = out.len();
        let mut known = [lanes.splat(0.0); G];
        for (row, key) in matrix.chunks_exact(groups).zip(self.key) {
            let key = lanes.splat(*key);
            for (known, s) in known.iter_mut().zip(&row[first..first + G]) {
                *known = lanes.fma(lanes.lift(s), key, *known);
            }
        }
        let (decay, beta) = (lanes.splat(self.decay), lanes.splat(self.beta));
        for (known, value) in known.iter_mut().zip(&self.values[first..first + G]) {
            *known = lanes.mul(lanes.sub(lanes.lift(value), lanes.mul(decay, *known)), beta);
        }
        // Decay is applied in the second pass, together with the update, to write the matrix once.
        let delta = known;
        let mut sums = [lanes.splat(0.0); G];
        let inputs = self.key.iter().zip(self.query);
        for (row, (key, query)) in matrix.chunks_exact_mut(groups).zip(inputs) {
            let (key, query) = (lanes.splat(*key), lanes.splat(*query));
            for ((s, delta), sum) in row[first..first + G].iter_mut().zip(delta).zip(&mut sums) {
                let next = lanes.fma(key, delta, lanes.mul(decay, lanes.lift(s)));
                *sum = lanes.fma(next, query, *sum);
                *s = lanes.lower(next);
            }
        }
        for (out, sum) in out[first..].iter_mut().zip(sums) {
            *out = lanes.lower(sum);
        }
    }
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
