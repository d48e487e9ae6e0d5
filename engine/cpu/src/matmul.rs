//! Matrix multiplication on the CPU: dispatch to the f32, bf16 or int8 GEMM for each run of
//! columns.

use super::isa::Isa;
use super::pack::{Matrix, Run};
use super::pool::Pool;
use super::shared::Shared;
use super::{bf16, float, int8};

/// Working memory of the f32, bf16 and int8 GEMMs.
#[derive(Debug)]
pub(super) struct Scratch {
    float: float::Scratch,
    rounded: bf16::Activations,
    bf16: bf16::Scratch,
    activations: int8::Activations,
    int8: int8::Scratch,
}

impl Scratch {
    pub(super) fn new(threads: usize) -> Self {
        Self {
            float: float::Scratch::new(threads),
            rounded: bf16::Activations::default(),
            bf16: bf16::Scratch::new(threads),
            activations: int8::Activations::default(),
            int8: int8::Scratch::new(threads),
        }
    }
}

/// Output target of a GEMM, which writes some of the `cols` columns of each row.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target<'a, 'b> {
    pub out: &'a Shared<'b, f32>,
    /// Number of columns of the whole output, the distance from row to row.
    pub cols: usize,
}

/// Activations to multiply, row major.
#[derive(Debug, Clone, Copy)]
pub(super) struct Input<'a> {
    pub values: &'a [f32],
    /// The same rows quantized to 8 bits, if an earlier operation wrote them so.
    pub codes: Option<&'a int8::Activations>,
}

impl<'a> Input<'a> {
    /// Returns activations without a quantized copy as input of a matmul.
    pub(super) fn values(values: &'a [f32]) -> Self {
        Self { values, codes: None }
    }
}

/// Computes `out = x * w^T`, converting the activations once to each form that a run of `w` needs.
pub(super) fn matmul(
    isa: Isa,
    pool: &mut Pool,
    scratch: &mut Scratch,
    x: Input<'_>,
    w: &Matrix,
    out: &mut [f32],
) {
    let Input { values, codes } = x;
    let rows = values.len() / w.k;
    assert_eq!(values.len(), rows * w.k, "inputs are whole rows");
    assert_eq!(out.len(), rows * w.n, "as many output rows as input rows");
    let target = Target { out: &Shared::new(out), cols: w.n };
    if w.is_int8() && codes.is_none() {
        scratch.activations.quantize(isa, pool, values, w.k);
    }
    // Several runs of columns share the converted activations, hence the conversions before the
    // loop.
    let codes = codes.unwrap_or(&scratch.activations);
    if w.is_float() {
        scratch.float.take(pool, values, w.k);
    }
    if w.is_bf16() {
        scratch.rounded.round(isa, pool, values, w.k);
    }
    for run in &w.runs {
        match run {
            Run::Float(packed) => {
                float::product(isa, pool, &scratch.float, values, packed, target);
            }
            Run::Bf16(weights) => {
                bf16::product(isa, pool, &scratch.bf16, &scratch.rounded, weights, target);
            }
            Run::Int8(weights) => {
                int8::product(isa, pool, &scratch.int8, codes, weights, target);
            }
        }
    }
}
