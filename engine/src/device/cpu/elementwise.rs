//! Operations on single rows: norms and the gated activation.

#![expect(unsafe_code, reason = "threads write disjoint rows of one buffer")]

use super::isa::{Isa, Kernel};
use super::lanes::{LANES, Lanes};
use super::pool::Pool;
use super::shared::Shared;

/// Elements below which an operation is quicker on the calling thread alone.
const PARALLEL_ELEMENTS: usize = 16_384;

/// Cuts `rows` rows of `cols` columns into items of `(first, count)` for the pool.
fn for_rows(pool: &mut Pool, rows: usize, cols: usize, task: &(dyn Fn(usize, usize) + Sync)) {
    if rows * cols < PARALLEL_ELEMENTS || pool.threads() == 1 {
        return task(0, rows);
    }
    let per_item = rows.div_ceil(4 * pool.threads());
    pool.items(rows.div_ceil(per_item), &|_, item| {
        let first = item * per_item;
        task(first, per_item.min(rows - first));
    });
}

/// The arguments of [`rms_norm`] beside its rows.
#[derive(Clone, Copy)]
pub(super) struct Norm<'a> {
    pub weight: &'a [f32],
    pub epsilon: f32,
}

/// `out = x / sqrt(mean(x^2) + epsilon) * weight`.
pub(super) fn rms_norm(isa: Isa, pool: &mut Pool, x: &[f32], norm: Norm<'_>, out: &mut [f32]) {
    let cols = norm.weight.len();
    assert_eq!(x.len(), out.len(), "as many outputs as inputs");
    let out = Shared::new(out);
    for_rows(pool, x.len() / cols, cols, &|first, rows| {
        // SAFETY: items are disjoint rows.
        let out = unsafe { out.part(first * cols, rows * cols) };
        let x = &x[first * cols..(first + rows) * cols];
        isa.run(NormRows { x, norm, out });
    });
}

/// `x += delta`, then [`rms_norm`] of `x`.
pub(super) fn add_rms_norm(
    isa: Isa,
    pool: &mut Pool,
    x: &mut [f32],
    delta: &[f32],
    norm: Norm<'_>,
    out: &mut [f32],
) {
    let cols = norm.weight.len();
    assert!(x.len() == out.len() && x.len() == delta.len(), "as many outputs as inputs");
    let (rows, x, out) = (x.len() / cols, Shared::new(x), Shared::new(out));
    for_rows(pool, rows, cols, &|first, rows| {
        let part = first * cols..(first + rows) * cols;
        // SAFETY: items are disjoint rows.
        let (x, out) =
            unsafe { (x.part(part.start, part.len()), out.part(part.start, part.len())) };
        isa.run(Add { x, delta: &delta[part] });
        isa.run(NormRows { x, norm, out });
    });
}

struct NormRows<'a> {
    x: &'a [f32],
    norm: Norm<'a>,
    out: &'a mut [f32],
}

impl Kernel for NormRows<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let cols = self.norm.weight.len();
        let (weights, weights_tail) = self.norm.weight.as_chunks::<LANES>();
        for (x, out) in self.x.chunks_exact(cols).zip(self.out.chunks_exact_mut(cols)) {
            let (x, x_tail) = x.as_chunks::<LANES>();
            let (out, out_tail) = out.as_chunks_mut::<LANES>();
            let mut squares = lanes.splat(0.0);
            for x in x {
                let x = lanes.lift(x);
                squares = lanes.fma(x, x, squares);
            }
            let tail: f32 = x_tail.iter().map(|x| x * x).sum();
            let mean = (lanes.sum(squares) + tail) / cols as f32;
            let scale = 1.0 / (mean + self.norm.epsilon).sqrt();
            let scales = lanes.splat(scale);
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

/// `out = silu(gate) * up`, `gate_up` being rows of `cols` gates and then `cols` ups.
pub(super) fn silu_mul(isa: Isa, pool: &mut Pool, gate_up: &[f32], cols: usize, out: &mut [f32]) {
    assert_eq!(gate_up.len(), 2 * out.len(), "two inputs for each output");
    let (rows, out) = (out.len() / cols, Shared::new(out));
    for_rows(pool, rows, cols, &|first, rows| {
        // SAFETY: items are disjoint rows.
        let out = unsafe { out.part(first * cols, rows * cols) };
        let gate_up = &gate_up[2 * first * cols..2 * (first + rows) * cols];
        isa.run(SiluMul { gate_up, cols, out });
    });
}

struct SiluMul<'a> {
    gate_up: &'a [f32],
    cols: usize,
    out: &'a mut [f32],
}

impl Kernel for SiluMul<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let cols = self.cols;
        for (row, out) in self.gate_up.chunks_exact(2 * cols).zip(self.out.chunks_exact_mut(cols)) {
            let (gate, gate_tail) = row[..cols].as_chunks::<LANES>();
            let (up, up_tail) = row[cols..].as_chunks::<LANES>();
            let (out, out_tail) = out.as_chunks_mut::<LANES>();
            for ((gate, up), out) in gate.iter().zip(up).zip(out) {
                *out = silu_mul_lanes(lanes, gate, up);
            }
            let (mut gate, mut up) = ([0.0; LANES], [0.0; LANES]);
            gate[..gate_tail.len()].copy_from_slice(gate_tail);
            up[..up_tail.len()].copy_from_slice(up_tail);
            let tail = silu_mul_lanes(lanes, &gate, &up);
            out_tail.copy_from_slice(&tail[..gate_tail.len()]);
        }
    }
}

/// `x *= sigmoid(gate)`, in rows of `cols`.
pub(super) fn sigmoid_mul(isa: Isa, pool: &mut Pool, x: &mut [f32], gate: &[f32], cols: usize) {
    assert_eq!(x.len(), gate.len(), "a gate for each element");
    let (rows, x) = (x.len() / cols, Shared::new(x));
    for_rows(pool, rows, cols, &|first, rows| {
        let part = first * cols..(first + rows) * cols;
        // SAFETY: items are disjoint rows.
        let x = unsafe { x.part(part.start, part.len()) };
        isa.run(SigmoidMul { x, gate: &gate[part] });
    });
}

struct SigmoidMul<'a> {
    x: &'a mut [f32],
    gate: &'a [f32],
}

impl Kernel for SigmoidMul<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let one = lanes.splat(1.0);
        for (x, gate) in self.x.chunks_mut(LANES).zip(self.gate.chunks(LANES)) {
            let (mut padded, mut gates) = ([0.0; LANES], [0.0; LANES]);
            padded[..x.len()].copy_from_slice(x);
            gates[..gate.len()].copy_from_slice(gate);
            let e = lanes.exp(lanes.sub(lanes.splat(0.0), lanes.lift(&gates)));
            let y = lanes.lower(lanes.div(lanes.lift(&padded), lanes.add(one, e)));
            x.copy_from_slice(&y[..x.len()]);
        }
    }
}

#[inline(always)]
fn silu_mul_lanes<L: Lanes>(lanes: L, gate: &[f32; LANES], up: &[f32; LANES]) -> [f32; LANES] {
    let (gate, up) = (lanes.lift(gate), lanes.lift(up));
    let e = lanes.exp(lanes.sub(lanes.splat(0.0), gate));
    let silu = lanes.div(gate, lanes.add(lanes.splat(1.0), e));
    lanes.lower(lanes.mul(silu, up))
}
