//! Matrix multiplication (matmul) on the CPU: weight matrices packed at load, and the choice of the
//! f32, bf16 or int8 GEMM for each of their parts.

use super::bf16::{self, Bf16};
use super::float::F32;
use super::gemm::{self, MicroKernel, Target, Weights};
use super::int8::{self, Int8, Width};
use super::isa::Isa;
use super::layout::Layout;
use super::moe::DispatchedRows;
use super::pool::Pool;
use super::shared::Shared;
use super::thread_split;
use engine_core::{HostMatrix, WeightType};

/// Arithmetic of the CPU's matrix multiplications, as the server's `--dtype` sets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Arithmetic {
    /// Multiplies all weight matrices in f32: the reference for the other choices.
    F32,
    /// Multiplies by the stored type of the weights: integer blocks and MXFP4 in int8; float types
    /// and FP8 in bf16 if the processor has bf16 instructions, else in f32.
    #[default]
    AsStored,
    /// Multiplies all weight matrices in bf16, whatever their stored type.
    Bf16,
    /// Multiplies all weight matrices in int8, whatever their stored type.
    Int8,
}

/// GEMM (f32, bf16 or int8) for which a part of a weight matrix is packed, with the format of the
/// packed weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Packing {
    F32(Layout),
    Bf16(bf16::Format),
    Int8(Width),
}

impl Arithmetic {
    /// Returns the GEMM and the format for which weights of type `stored` are packed on `isa`.
    fn packing(self, stored: WeightType, isa: Isa) -> Packing {
        match self {
            Self::Int8 => Packing::Int8(Width::of(stored)),
            Self::AsStored if stored.is_integer_blocks() => Packing::Int8(Width::of(stored)),
            Self::Bf16 => Packing::Bf16(bf16::Format::of(stored)),
            Self::AsStored if isa.has_bf16() => Packing::Bf16(bf16::Format::of(stored)),
            Self::F32 | Self::AsStored => Packing::F32(Layout::of(stored)),
        }
    }
}

/// Weight matrix `[N, K]` on the CPU: runs of consecutive output columns, each packed for one GEMM.
#[derive(Debug)]
pub struct Matrix {
    f32: Vec<Weights<F32>>,
    bf16: Vec<Weights<Bf16>>,
    pub(super) int8: Vec<Weights<Int8>>,
    pub(super) n: usize,
    pub(super) k: usize,
}

impl Matrix {
    /// Packs the host matrices `parts`, stacked along N, for multiplication in `arithmetic` on
    /// `isa`.
    pub(super) fn pack(
        parts: &[HostMatrix<'_>],
        arithmetic: Arithmetic,
        isa: Isa,
        pool: &mut Pool,
    ) -> Self {
        let k = parts[0].k;
        assert!(parts.iter().all(|part| part.k == k), "the parts share their inputs");
        let (f32, bf16, int8) = (Vec::new(), Vec::new(), Vec::new());
        let mut matrix = Self { f32, bf16, int8, n: 0, k };
        let packing = |part: &HostMatrix<'_>| arithmetic.packing(part.weight_type, isa);
        // Adjacent parts of one kind share tiles, so queries, keys and values are mostly one GEMM.
        for run in parts.chunk_by(|a, b| packing(a) == packing(b)) {
            let first = matrix.n;
            match packing(&run[0]) {
                Packing::F32(layout) => matrix.f32.push(Weights::pack(run, layout, first, pool)),
                Packing::Bf16(format) => matrix.bf16.push(Weights::pack(run, format, first, pool)),
                Packing::Int8(width) => matrix.int8.push(Weights::pack(run, width, first, pool)),
            }
            matrix.n += run.iter().map(|part| part.n).sum::<usize>();
        }
        matrix
    }

    /// Writes row `n` of the weight matrix, dequantized, to `out`, which has K elements.
    pub(super) fn row(&self, n: usize, out: &mut [f32]) {
        let is_found =
            row_of(&self.f32, n, out) || row_of(&self.bf16, n, out) || row_of(&self.int8, n, out);
        assert!(is_found, "the row is within the matrix");
    }

    /// Returns true if any output columns of the weight matrix are multiplied in bf16.
    pub(super) fn is_bf16(&self) -> bool {
        !self.bf16.is_empty()
    }

    /// Returns true if any output columns of the weight matrix are multiplied in int8.
    pub(super) fn is_int8(&self) -> bool {
        !self.int8.is_empty()
    }
}

/// Writes row `n` of a weight matrix, dequantized, to `out` if one of `runs` has it; returns
/// whether one does.
fn row_of<M: MicroKernel>(runs: &[Weights<M>], n: usize, out: &mut [f32]) -> bool {
    let run = runs.iter().find(|run| run.columns().contains(&n));
    run.inspect(|run| run.row(n, out)).is_some()
}

/// Activations to multiply by a weight matrix, row major: in f32, and also quantized to int8 if an
/// earlier operation wrote them so.
#[derive(Debug, Clone, Copy)]
pub(super) struct Input<'a> {
    pub values: &'a [f32],
    pub quantized: Option<&'a int8::Activations>,
}

impl<'a> Input<'a> {
    /// Returns the activations, rows of `k`, for a GEMM that converts them itself.
    fn plain<M: MicroKernel>(self, k: usize) -> gemm::Input<'a, M> {
        gemm::Input { values: self.values, k, converted: None }
    }

    /// Returns the activations, rows of `k`, for the int8 GEMM.
    fn in_int8(self, k: usize) -> gemm::Input<'a, Int8> {
        gemm::Input { values: self.values, k, converted: self.quantized }
    }
}

/// Working memory of the f32, bf16 and int8 GEMMs.
pub(super) struct Scratch {
    f32: thread_split::Scratch<F32>,
    bf16: thread_split::Scratch<Bf16>,
    int8: thread_split::Scratch<Int8>,
}

impl Scratch {
    pub(super) fn new(threads: usize) -> Self {
        Self {
            f32: thread_split::Scratch::new(threads),
            bf16: thread_split::Scratch::new(threads),
            int8: thread_split::Scratch::new(threads),
        }
    }
}

/// Computes the matmul `out = x * w^T`, the output columns of each kind of `w` with their own GEMM.
pub(super) fn matmul(
    isa: Isa,
    pool: &mut Pool,
    scratch: &mut Scratch,
    x: Input<'_>,
    w: &Matrix,
    out: &mut [f32],
) {
    let rows = x.values.len() / w.k;
    assert_eq!(x.values.len(), rows * w.k, "inputs are whole rows");
    assert_eq!(out.len(), rows * w.n, "as many output rows as input rows");
    let target = Target { out: &Shared::new(out), cols: w.n };
    scratch.f32.matmul(isa, pool, x.plain(w.k), &w.f32, target);
    scratch.bf16.matmul(isa, pool, x.plain(w.k), &w.bf16, target);
    scratch.int8.matmul(isa, pool, x.in_int8(w.k), &w.int8, target);
}

/// Computes the matmul of each expert's rows of `x` by its matrix, the output columns of each kind
/// with their own GEMM. The experts' matrices have one shape.
pub(super) fn expert_matmul(
    isa: Isa,
    pool: &mut Pool,
    scratch: &mut Scratch,
    x: Input<'_>,
    rows: DispatchedRows<'_>,
    experts: &[Matrix],
    out: &mut [f32],
) {
    let Some(Matrix { n, k, .. }) = experts.first() else { return };
    assert!(experts.iter().all(|w| (w.n, w.k) == (*n, *k)), "the experts have one shape");
    assert_eq!(x.values.len(), rows.inputs * k, "inputs are whole rows");
    assert_eq!(out.len(), rows.len() * n, "as many output rows as dispatched rows");
    let target = Target { out: &Shared::new(out), cols: *n };
    scratch.f32.grouped_matmul(isa, pool, x.plain(*k), rows, |i| &experts[i].f32, target);
    scratch.bf16.grouped_matmul(isa, pool, x.plain(*k), rows, |i| &experts[i].bf16, target);
    scratch.int8.grouped_matmul(isa, pool, x.in_int8(*k), rows, |i| &experts[i].int8, target);
}
