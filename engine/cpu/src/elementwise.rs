//! Elementwise and row operations on activations: RMS norm, residual addition, bias, gated
//! activations (SwiGLU, GeGLU) and sigmoid gates.

#![expect(unsafe_code, reason = "threads write disjoint rows of one buffer")]

use super::buffer::Output;
use super::isa::{Isa, Kernel};
use super::lanes::{LANES, Lanes};
use super::pool::Pool;
use super::shared::Shared;

/// Weights and epsilon of an [`rms_norm`].
#[derive(Clone, Copy)]
pub(super) struct Norm<'a> {
    pub weight: &'a [f32],
    pub epsilon: f32,
}

/// Computes the RMS norm of each row: `out = x / sqrt(mean(x^2) + epsilon) * weight`.
pub(super) fn rms_norm(isa: Isa, pool: &mut Pool, x: &[f32], norm: Norm<'_>, out: &Output<'_>) {
    let cols = norm.weight.len();
    assert_eq!(x.len(), out.rows * cols, "as many outputs as inputs");
    pool.rows(out.rows, cols, &|first, rows| {
        let x = &x[first * cols..(first + rows) * cols];
        // SAFETY: items are disjoint rows.
        unsafe { out.write(first, rows, |out| isa.run(NormRows { x, norm, out })) };
    });
}

/// Adds the residual, `x += delta`, then computes the [`rms_norm`] of `x`.
pub(super) fn add_rms_norm(
    isa: Isa,
    pool: &mut Pool,
    x: &mut [f32],
    delta: &[f32],
    norm: Norm<'_>,
    out: &Output<'_>,
) {
    let cols = norm.weight.len();
    assert!(x.len() == out.rows * cols && x.len() == delta.len(), "as many outputs as inputs");
    let x = Shared::new(x);
    pool.rows(out.rows, cols, &|first, rows| {
        let part = first * cols..(first + rows) * cols;
        // SAFETY: items are disjoint rows.
        unsafe {
            let x = x.part(part.start, part.len());
            // The rows are normed right after the addition, while they are in the cache.
            isa.run(Add { x, delta: &delta[part] });
            out.write(first, rows, |out| isa.run(NormRows { x, norm, out }));
        }
    });
}

/// Kernel that computes the RMS norm of some rows.
struct NormRows<'a> {
    x: &'a [f32],
    norm: Norm<'a>,
    out: &'a mut [f32],
}

impl Kernel for NormRows<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let cols = self.norm.weight.len();
        for (x, out) in self.x.chunks_exact(cols).zip(self.out.chunks_exact_mut(cols)) {
            let scale = self.norm.scale(lanes, x);
            let scales = lanes.splat(scale);
            let (weights, weights_tail) = self.norm.weight.as_chunks::<LANES>();
            let (x, x_tail) = x.as_chunks::<LANES>();
            let (out, out_tail) = out.as_chunks_mut::<LANES>();
            for ((x, w), out) in x.iter().zip(weights).zip(out) {
                let scaled = lanes.mul(lanes.lift(x), scales);
                *out = lanes.lower(lanes.mul(scaled, lanes.lift(w)));
            }
            for ((x, w), out) in x_tail.iter().zip(weights_tail).zip(out_tail) {
                *out = x * scale * w;
            }
        }
    }
}

impl Norm<'_> {
    /// Returns `1 / sqrt(mean(x^2) + epsilon)` of one row, the factor of its RMS norm.
    #[inline(always)]
    fn scale<L: Lanes>(&self, lanes: L, x: &[f32]) -> f32 {
        let (whole, tail) = x.as_chunks::<LANES>();
        let mut squares = lanes.splat(0.0);
        for x in whole {
            let x = lanes.lift(x);
            squares = lanes.fma(x, x, squares);
        }
        let tail: f32 = tail.iter().map(|x| x * x).sum();
        let mean = (lanes.sum(squares) + tail) / x.len() as f32;
        1.0 / (mean + self.epsilon).sqrt()
    }
}

/// Applies the RMS norm to rows in place, with the same bits as [`rms_norm`].
#[inline(always)]
pub(super) fn norm_rows<L: Lanes>(lanes: L, x: &mut [f32], norm: Norm<'_>) {
    for row in x.chunks_exact_mut(norm.weight.len()) {
        let scale = norm.scale(lanes, row);
        row.iter_mut().zip(norm.weight).for_each(|(x, w)| *x = *x * scale * w);
    }
}

/// Kernel that adds a residual to some rows, `x += delta`.
struct Add<'a> {
    x: &'a mut [f32],
    delta: &'a [f32],
}

impl Kernel for Add<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, _lanes: L) {
        for (x, delta) in self.x.iter_mut().zip(self.delta) {
            *x += delta;
        }
    }
}

/// Adds the vector `bias` to every row of `x`.
pub(super) fn add_bias(pool: &mut Pool, x: &mut [f32], bias: &[f32]) {
    let cols = bias.len();
    assert_eq!(x.len() % cols, 0, "whole rows");
    let (rows, x) = (x.len() / cols, Shared::new(x));
    pool.rows(rows, cols, &|first, rows| {
        // SAFETY: items are disjoint rows.
        let x = unsafe { x.part(first * cols, rows * cols) };
        for row in x.chunks_exact_mut(cols) {
            row.iter_mut().zip(bias).for_each(|(x, bias)| *x += bias);
        }
    });
}

/// Gated activation function, which combines a gate and an up projection element by element.
pub(super) trait Rule: Copy + Sync {
    /// Computes the gated activation of 16 gates and 16 up projections. Implementations must be
    /// `#[inline(always)]`.
    fn one<L: Lanes>(self, lanes: L, gate: L::V, up: L::V) -> L::V;
}

/// SwiGLU, a gated activation: `silu(gate) * up`.
#[derive(Clone, Copy)]
pub(super) struct Silu;

impl Rule for Silu {
    #[inline(always)]
    fn one<L: Lanes>(self, lanes: L, gate: L::V, up: L::V) -> L::V {
        lanes.mul(times_sigmoid(lanes, gate, gate), up)
    }
}

/// GeGLU, a gated activation: `gelu(gate) * up`, with the tanh approximation of GELU.
#[derive(Clone, Copy)]
pub(super) struct GeluTanh;

impl Rule for GeluTanh {
    #[inline(always)]
    fn one<L: Lanes>(self, lanes: L, gate: L::V, up: L::V) -> L::V {
        // (1 + tanh(z)) / 2 = sigmoid(2 z), and z = sqrt(2 / pi) * (gate + 0.044715 * gate^3).
        const LINEAR: f32 = 1.595_769;
        const CUBIC: f32 = LINEAR * 0.044_715;
        let square = lanes.mul(gate, gate);
        let factor = lanes.fma(square, lanes.splat(CUBIC), lanes.splat(LINEAR));
        lanes.mul(times_sigmoid(lanes, gate, lanes.mul(gate, factor)), up)
    }
}

/// Clamped SwiGLU, a gated activation (gpt-oss): `(up + 1) * gate * sigmoid(alpha * gate)`, with
/// `gate` limited to at most `limit` and `up` to `-limit..=limit`.
#[derive(Clone, Copy)]
pub(super) struct ClampedSwiglu {
    pub alpha: f32,
    pub limit: f32,
}

impl Rule for ClampedSwiglu {
    #[inline(always)]
    fn one<L: Lanes>(self, lanes: L, gate: L::V, up: L::V) -> L::V {
        let gate = lanes.min(gate, lanes.splat(self.limit));
        let up = lanes.min(lanes.max(up, lanes.splat(-self.limit)), lanes.splat(self.limit));
        let gated = times_sigmoid(lanes, gate, lanes.mul(gate, lanes.splat(self.alpha)));
        lanes.mul(lanes.add(up, lanes.splat(1.0)), gated)
    }
}

/// Returns `x * sigmoid(z)`, computed as `x / (1 + e^-z)`.
#[inline(always)]
fn times_sigmoid<L: Lanes>(lanes: L, x: L::V, z: L::V) -> L::V {
    let e = lanes.exp(lanes.sub(lanes.splat(0.0), z));
    lanes.div(x, lanes.add(lanes.splat(1.0), e))
}

/// Operation that applies a gated activation to rows, each of which holds all gates and then as
/// many up projections.
#[derive(Clone, Copy)]
pub(super) struct Gating<R>(pub R);

impl<R: Rule> Gating<R> {
    /// Computes the gated activation of `gate_up`, `[rows, 2 * cols]`, whose rows hold all gates
    /// and then all ups, and writes it to `out`, `[rows, cols]`.
    pub(super) fn run(self, isa: Isa, pool: &mut Pool, gate_up: &[f32], out: &Output<'_>) {
        let cols = out.cols;
        assert_eq!(gate_up.len(), 2 * out.rows * cols, "two inputs for each output");
        pool.rows(out.rows, cols, &|first, rows| {
            let gate_up = &gate_up[2 * first * cols..2 * (first + rows) * cols];
            let rule = self.0;
            // SAFETY: items are disjoint rows.
            unsafe {
                out.write(first, rows, |out| isa.run(GatedRows { rule, cols, gate_up, out }));
            }
        });
    }
}

/// Kernel that computes the gated activation of some rows.
struct GatedRows<'a, R> {
    rule: R,
    cols: usize,
    gate_up: &'a [f32],
    out: &'a mut [f32],
}

impl<R: Rule> Kernel for GatedRows<'_, R> {
    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let (rule, cols) = (self.rule, self.cols);
        for (row, out) in self.gate_up.chunks_exact(2 * cols).zip(self.out.chunks_exact_mut(cols)) {
            let (gate, gate_tail) = row[..cols].as_chunks::<LANES>();
            let (up, up_tail) = row[cols..].as_chunks::<LANES>();
            let (out, out_tail) = out.as_chunks_mut::<LANES>();
            for ((gate, up), out) in gate.iter().zip(up).zip(out) {
                *out = pass(lanes, rule, gate, up);
            }
            let (mut gate, mut up) = ([0.0; LANES], [0.0; LANES]);
            gate[..gate_tail.len()].copy_from_slice(gate_tail);
            up[..up_tail.len()].copy_from_slice(up_tail);
            let tail = pass(lanes, rule, &gate, &up);
            out_tail.copy_from_slice(&tail[..gate_tail.len()]);
        }
    }
}

/// Returns the gated activation of 16 gates and 16 up projections, loaded from and stored to
/// arrays.
#[inline(always)]
fn pass<L: Lanes, R: Rule>(
    lanes: L,
    rule: R,
    gate: &[f32; LANES],
    up: &[f32; LANES],
) -> [f32; LANES] {
    lanes.lower(rule.one(lanes, lanes.lift(gate), lanes.lift(up)))
}

/// Multiplies `x`, rows of `cols` elements, in place by `sigmoid(gate)`, element by element.
pub(super) fn sigmoid_mul(isa: Isa, pool: &mut Pool, x: &mut [f32], gate: &[f32], cols: usize) {
    assert_eq!(x.len(), gate.len(), "a gate for each element");
    let (rows, x) = (x.len() / cols, Shared::new(x));
    pool.rows(rows, cols, &|first, rows| {
        let part = first * cols..(first + rows) * cols;
        // SAFETY: items are disjoint rows.
        let x = unsafe { x.part(part.start, part.len()) };
        isa.run(SigmoidMul { x, gate: &gate[part] });
    });
}

/// Kernel that multiplies elements by sigmoid gates, `x *= sigmoid(gate)`.
struct SigmoidMul<'a> {
    x: &'a mut [f32],
    gate: &'a [f32],
}

impl Kernel for SigmoidMul<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        for (x, gate) in self.x.chunks_mut(LANES).zip(self.gate.chunks(LANES)) {
            let (mut padded, mut gates) = ([0.0; LANES], [0.0; LANES]);
            padded[..x.len()].copy_from_slice(x);
            gates[..gate.len()].copy_from_slice(gate);
            let y = times_sigmoid(lanes, lanes.lift(&padded), lanes.lift(&gates));
            let y = lanes.lower(y);
            x.copy_from_slice(&y[..x.len()]);
        }
    }
}
