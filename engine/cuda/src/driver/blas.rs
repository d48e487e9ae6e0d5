//! Interface to a vendor's GEMM library: matrix multiplication by one of the algorithms that the
//! library proposes. Knows no weights and no clock.
//!
//! Matrices in this file are column major, as in cuBLASLt. Source: [cuBLAS
//! 13.0](https://docs.nvidia.com/cuda/cublas/), `cublasLtMatmul`.

use std::fmt;

use super::Address;
use crate::Result;
use crate::buffer::DType;

/// Layout of a column-major matrix in device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Columns {
    /// Data type of the matrix elements.
    pub dtype: DType,
    /// Number of rows of the matrix, which is the number of elements of one column.
    pub rows: usize,
    /// Number of columns of the matrix, at least one.
    pub cols: usize,
    /// Leading dimension of the matrix: number of elements from the start of one column to the
    /// start of the next.
    pub stride: usize,
}

impl Columns {
    /// Returns the column-major layout of a row-major matrix `[rows, cols]`: that of its transpose.
    fn of_rows(dtype: DType, rows: usize, cols: usize) -> Self {
        Self { dtype, rows: cols, cols: rows, stride: cols }
    }

    /// Returns the number of bytes from the first element of the matrix to the end of the last.
    pub fn bytes(&self) -> usize {
        ((self.cols - 1) * self.stride + self.rows) * self.dtype.bytes()
    }
}

/// One factor of a matrix multiplication.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Side {
    /// Layout of the factor in device memory, before any transposition.
    pub matrix: Columns,
    /// True if the factor is transposed before it is multiplied.
    pub is_transposed: bool,
}

/// Column-major matrix multiplication `d = alpha * a * b + beta * d`, accumulated in f32.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ColumnMatmul {
    /// Left factor of the matrix multiplication: its layout and transposition.
    pub a: Side,
    /// Right factor of the matrix multiplication: its layout and transposition.
    pub b: Side,
    /// Layout of the result matrix, which is never transposed.
    pub d: Columns,
    /// Scalar by which the product of the two matrices is multiplied.
    pub alpha: f32,
    /// Scalar by which the previous content of the result is multiplied before it is added; 0 means
    /// that the content is not read.
    pub beta: f32,
}

impl ColumnMatmul {
    /// Returns the column-major multiplication that computes the row-major `out [rows, n] = x
    /// [rows, k] * w [n, k]^T`: transposing both sides gives `out^T = w * x^T`, and a row-major
    /// matrix read in column-major order is already its transpose.
    pub fn of_weights(rows: usize, n: usize, k: usize, result: DType) -> Self {
        let side = |rows, is_transposed| Side {
            matrix: Columns::of_rows(DType::Bf16, rows, k),
            is_transposed,
        };
        Self {
            a: side(n, true),
            b: side(rows, false),
            d: Columns::of_rows(result, rows, n),
            alpha: 1.0,
            beta: 0.0,
        }
    }
}

/// cuBLASLt algorithm in the library's own opaque encoding, valid only for the library version that
/// returned it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Algorithm(pub [u64; 8]);

/// Device addresses of the operands of a matrix multiplication.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operands {
    /// Device address of the left factor of a matrix multiplication.
    pub a: Address,
    /// Device address of the right factor of a matrix multiplication.
    pub b: Address,
    /// Device address of the result of a matrix multiplication.
    pub d: Address,
    /// Device address of scratch memory of [`WORKSPACE_BYTES`] bytes that no concurrent matrix
    /// multiplication uses.
    pub workspace: Address,
}

/// Size in bytes of the scratch memory that a cuBLASLt algorithm may use: what NVIDIA recommends
/// for Hopper, and more than older GPUs need.
pub const WORKSPACE_BYTES: usize = 32 << 20;

/// GEMM library (cuBLASLt) on one GPU. Calls are asynchronous in the order of the driver's stream,
/// and a CUDA graph can capture them.
pub trait Blas: Send + Sync + fmt::Debug {
    /// Returns the version of the GEMM library and that of the CUDA driver, as one text.
    fn version(&self) -> &str;

    /// Returns at most `most` algorithms of the library for `matmul`, the one that the library
    /// estimates to be fastest first; none if it supports no such multiplication.
    ///
    /// # Errors
    /// The library or the device reports an error.
    fn algorithms(&self, matmul: &ColumnMatmul, most: usize) -> Result<Vec<Algorithm>>;

    /// Returns true if an algorithm that was proposed for a multiplication of other sizes supports
    /// `matmul` too; false also if the library reports an error.
    fn takes(&self, matmul: &ColumnMatmul, algorithm: Algorithm) -> bool;

    /// Starts the matrix multiplication `matmul` by `algorithm` on the stream and returns at once.
    ///
    /// # Errors
    /// The library or the device reports an error.
    fn multiply(
        &self,
        matmul: &ColumnMatmul,
        algorithm: Algorithm,
        operands: &Operands,
    ) -> Result<()>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_turn_over_into_columns_without_moving() {
        let matmul = ColumnMatmul::of_weights(3, 8, 16, DType::F32);
        let (rows_of_a, cols_of_a) = (matmul.a.matrix.cols, matmul.a.matrix.rows);
        assert_eq!((rows_of_a, cols_of_a), (matmul.d.rows, matmul.b.matrix.rows), "a fits");
        assert_eq!(matmul.b.matrix.cols, matmul.d.cols, "b fits");
        assert_eq!([matmul.a.matrix.stride, matmul.b.matrix.stride, matmul.d.stride], [16, 16, 8]);
        assert_eq!(matmul.a.matrix.bytes(), 2 * 8 * 16);
        assert_eq!(matmul.d.bytes(), 4 * 3 * 8);
    }
}
