//! Matrix multiplication (GEMM) with weights, for any number of rows: by Redline's own kernels, or
//! for bf16 by cuBLASLt where that was measured to be faster.

mod tune;

use std::path::PathBuf;

pub use tune::fill;

use super::buffer::{Buffer, DType};
use super::choice::{Choices, Shape, Way};
use super::driver::{Address, Algorithm, Arguments, ColumnMatmul, Driver, Memory, Operands};
use super::launch::Launch;
use super::launch::matmul::{MatrixType, ROWS_MAX};
use super::stream::{GrowableBuffer, Stream};
use super::weights::{Matrix, Vector};
use crate::{Result, failed};
use engine_core::DeviceError;

/// Matrix multiplication with weights, and the state that it keeps: buffers and measured choices.
#[derive(Debug, Default)]
pub struct Gemm {
    /// Buffer for the f32 partial sums of split-K multiplications.
    parts: GrowableBuffer,
    /// Measured choices between our own kernels and cuBLASLt, by shape of the weights and number of
    /// rows.
    choices: Choices,
    /// Scratch memory of cuBLASLt's algorithms; `None` before tuning, and after it if no algorithm
    /// was chosen for any shape.
    workspace: Option<Memory>,
    /// Shapes of the bf16 multiplications so far, for which tuning will measure the
    /// implementations.
    seen: tune::Seen,
    /// Folder in which measured GEMM choices are stored; `None` stores none.
    kept: Option<PathBuf>,
    /// True if our own kernels compute all results in f32. Every rank computes the router logits
    /// for itself, and all must get the same bits to select the same experts.
    own_scores: bool,
}

/// Device addresses of input rows `x` and output rows of a matrix multiplication, and the number of
/// rows.
#[derive(Debug, Clone, Copy)]
struct Rows {
    x: Address,
    out: Address,
    count: usize,
}

impl Gemm {
    /// Creates a [`Gemm`] whose measured choices are stored in the folder `kept`; `None` stores
    /// none.
    pub fn keeping(kept: Option<PathBuf>) -> Self {
        Self { kept, ..Self::default() }
    }

    /// Computes the matrix multiplication `out = x * w^T` with a result of type `dtype`.
    ///
    /// # Errors
    /// The weights are in a format that is supported for experts only, memory cannot be allocated,
    /// or the device reports an error.
    pub fn matmul(
        &mut self,
        stream: &mut Stream,
        x: &Buffer,
        w: &Matrix,
        out: &mut Buffer,
        dtype: DType,
    ) -> Result<()> {
        assert_eq!((x.cols, out.cols, out.rows), (w.k, w.n, x.rows), "shapes fit");
        let to = out.output(stream, dtype)?;
        let rows = Rows { x: x.bf16(), out: to, count: x.rows };
        // Warm-up steps register here the shapes that `tune` measures.
        self.seen.add(stream, rows.count, w, dtype);
        let way = match self.algorithm(stream.driver.as_ref(), rows.count, w, dtype) {
            Some(algorithm) => Way::Library(algorithm),
            None => Way::Own,
        };
        self.multiply(stream, rows, w, dtype, way)
    }

    /// Returns the cuBLASLt algorithm that was measured to be the fastest for the shape of `w`, if
    /// it supports the number of rows; `None` means our own kernels.
    fn algorithm(
        &self,
        driver: &dyn Driver,
        rows: usize,
        w: &Matrix,
        result: DType,
    ) -> Option<Algorithm> {
        let is_fixed = w.matrix_type != MatrixType::Bf16 || self.is_own(result);
        if self.choices.is_empty() || rows == 0 || is_fixed {
            return None;
        }
        let Way::Library(algorithm) = self.choices.way(Shape { n: w.n, k: w.k, result }, rows)?
        else {
            return None;
        };
        let matmul = ColumnMatmul::of_weights(rows, w.n, w.k, result);
        // The algorithm was proposed for the largest number of rows of the bucket, so a smaller one
        // is checked.
        let takes = rows.is_power_of_two() || driver.blas()?.takes(&matmul, algorithm);
        takes.then_some(algorithm)
    }

    /// Returns true if our own kernels must compute results of this type, whatever is faster.
    fn is_own(&self, result: DType) -> bool {
        self.own_scores && result == DType::F32
    }

    /// Computes a matrix multiplication by the implementation `way`.
    fn multiply(
        &mut self,
        stream: &mut Stream,
        rows: Rows,
        w: &Matrix,
        dtype: DType,
        way: Way,
    ) -> Result<()> {
        match (way, rows.count) {
            (_, 0) => Ok(()),
            (Way::Library(algorithm), _) => self.by_library(stream, rows, w, dtype, algorithm),
            (Way::Own, 1..=ROWS_MAX) => self.few_rows(stream, rows, w, dtype),
            (Way::Own, _) => many_rows(stream, rows, w, dtype),
        }
    }

    /// Computes a matrix multiplication by an algorithm of cuBLASLt.
    fn by_library(
        &self,
        stream: &Stream,
        rows: Rows,
        w: &Matrix,
        dtype: DType,
        algorithm: Algorithm,
    ) -> Result<()> {
        let blas = stream.driver.blas().expect("it proposed the algorithm");
        let workspace = self.workspace.as_ref().expect("it was allocated with the choice");
        let matmul = ColumnMatmul::of_weights(rows.count, w.n, w.k, dtype);
        let operands = Operands {
            a: w.weights.address(),
            b: rows.x,
            d: rows.out,
            workspace: workspace.address(),
        };
        blas.multiply(&matmul, algorithm, &operands)
    }

    /// Computes a matrix multiplication of at most [`ROWS_MAX`] rows by our own kernel, split along
    /// K where that was planned.
    fn few_rows(
        &mut self,
        stream: &mut Stream,
        rows: Rows,
        w: &Matrix,
        dtype: DType,
    ) -> Result<()> {
        let entry = w.matrix_type.matmul().ok_or_else(|| by_expert_only(w))?;
        let plan = &w.plan;
        // Without split-K the f32 output of the kernel is the result, and no merge is needed.
        let is_whole = plan.splits == 1;
        let [to, parts] = if is_whole {
            of_type(dtype, rows.out)
        } else {
            // Sized for the most rows, so that the buffer does not move when the batch grows.
            let bytes = plan.splits * ROWS_MAX * w.n * DType::F32.bytes();
            [Address::NULL, stream.grow(&mut self.parts, bytes)?]
        };
        let arguments = with_weights(Arguments::of([to, parts, rows.x]), w);
        // One structure of four sizes.
        let sizes = [rows.count, w.n, w.k, plan.steps].map(|size| size as u32);
        stream.launch(entry, plan.launch, &arguments.value(sizes))?;
        if is_whole {
            return Ok(());
        }
        let [narrow, wide] = of_type(dtype, rows.out);
        let arguments = Arguments::of([narrow, wide, parts]);
        let arguments = arguments.sizes([plan.splits, rows.count, w.n]);
        stream.launch("matmul_merge", Launch::elements(rows.count, w.n), &arguments)
    }

    /// Computes the grouped matrix multiplication of a mixture of experts: rows sorted by expert,
    /// each times the weights of its expert, plus the expert's bias if there are `biases`.
    /// `offsets` is the device address of the index of each expert's first row.
    ///
    /// # Errors
    /// Memory cannot be allocated, or the device reports an error.
    pub fn expert_matmul(
        &mut self,
        stream: &mut Stream,
        x: &Buffer,
        (experts, biases): (&[Matrix], &[Vector]),
        offsets: Address,
        out: &mut Buffer,
    ) -> Result<()> {
        let Some(w) = experts.first() else { return Ok(()) };
        assert_eq!((x.cols, out.cols, out.rows), (w.k, w.n, x.rows), "shapes fit");
        // The kernels compute the address of an expert's weights from its index.
        let last = &experts[experts.len() - 1].weights;
        let apart = (experts.len() - 1) * w.bytes().0;
        assert_eq!(last.address(), w.weights.address().plus(apart), "experts are stacked");
        let to = out.output(stream, DType::Bf16)?;
        let biases = biases.first().map_or(Address::NULL, |bias| bias.part.address());
        let arguments = with_weights(Arguments::of([to, x.bf16()]), w);
        let arguments = arguments.address(biases).address(offsets);
        let processors = stream.driver.facts().processors;
        if !Launch::is_grouped(processors, w.matrix_type, x.rows, experts.len()) {
            let launch = Launch::expert_matmul(experts.len(), w.n);
            stream.launch(w.matrix_type.expert_matmul(), launch, &arguments.sizes([w.n, w.k]))
        } else {
            let launch = Launch::grouped_matmul(processors, w.matrix_type);
            let arguments = arguments.sizes([experts.len(), w.n, w.k]);
            stream.launch(w.matrix_type.grouped_matmul(), launch, &arguments)
        }
    }
}

/// Computes a matrix multiplication of more than [`ROWS_MAX`] rows by our own kernel, tile by tile.
fn many_rows(stream: &Stream, rows: Rows, w: &Matrix, dtype: DType) -> Result<()> {
    let entry = w.matrix_type.tile_matmul().ok_or_else(|| by_expert_only(w))?;
    let [narrow, wide] = of_type(dtype, rows.out);
    let arguments = with_weights(Arguments::of([narrow, wide, rows.x]), w);
    let arguments = arguments.sizes([rows.count, w.n, w.k]);
    let processors = stream.driver.facts().processors;
    let launch = Launch::tile_matmul(processors, w.matrix_type, rows.count, w.n);
    stream.launch(entry, launch, &arguments)
}

/// Returns the addresses for a kernel's results in bf16 and in f32: `out` for the type `dtype`, and
/// null for the other.
fn of_type(dtype: DType, out: Address) -> [Address; 2] {
    match dtype {
        DType::Bf16 => [out, Address::NULL],
        DType::F32 => [Address::NULL, out],
    }
}

/// Returns the error for multiplying by weights in a format that is supported for experts only.
fn by_expert_only(w: &Matrix) -> DeviceError {
    let message = format!("weights of {:?} are multiplied by expert only", w.matrix_type);
    failed("matmul", message)
}

/// Appends the addresses of the weights and, for quantized formats, of their scales to a kernel's
/// arguments.
fn with_weights(arguments: Arguments, w: &Matrix) -> Arguments {
    let arguments = arguments.address(w.weights.address());
    match w.matrix_type {
        MatrixType::Bf16 => arguments,
        MatrixType::E4m3 | MatrixType::Mxfp4 => arguments.address(w.scales.address()),
    }
}
