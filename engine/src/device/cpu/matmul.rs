//! Matrix products: rows of activations by each run of a matrix, in what that run is kept for.

use super::isa::Isa;
use super::pack::{Matrix, Run};
use super::pool::Pool;
use super::shared::Shared;
use super::{float, int8};

/// Working memory of a matmul.
#[derive(Debug)]
pub(super) struct Scratch {
    float: float::Scratch,
    activations: int8::Activations,
    int8: int8::Scratch,
}

impl Scratch {
    pub(super) fn new(threads: usize) -> Self {
        Self {
            float: float::Scratch::new(threads),
            activations: int8::Activations::default(),
            int8: int8::Scratch::new(threads),
        }
    }
}

/// Where products go: rows of `cols`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target<'a, 'b> {
    pub out: &'a Shared<'b, f32>,
    /// Columns of the whole output.
    pub cols: usize,
}

/// `out = x * w^T` for rows `x`.
pub(super) fn matmul(
    isa: Isa,
    pool: &mut Pool,
    scratch: &mut Scratch,
    x: &[f32],
    w: &Matrix,
    out: &mut [f32],
) {
    let rows = x.len() / w.k;
    assert_eq!(x.len(), rows * w.k, "inputs are whole rows");
    assert_eq!(out.len(), rows * w.n, "outputs are as many rows");
    let target = Target { out: &Shared::new(out), cols: w.n };
    if w.is_int8() {
        scratch.activations.quantize(isa, pool, x, w.k);
    }
    if w.is_float() {
        scratch.float.take(pool, x, w.k);
    }
    for run in &w.runs {
        match run {
            Run::Float(packed) => {
                float::product(isa, pool, &scratch.float, x, packed, target);
            }
            Run::Int8(weights) => {
                let x = &scratch.activations;
                int8::product(isa, pool, &scratch.int8, x, weights, target);
            }
        }
    }
}
