//! What the device asks of a library of dense products: a product by one of the algorithms that the
//! library itself proposes for it. Knows no weights and no clock.
//!
//! Matrices lie column after column here, as in cuBLASLt.
//! Source: [cuBLAS 13.0](https://docs.nvidia.com/cuda/cublas/), `cublasLtMatmul`.

use std::fmt;

use super::Address;
use crate::buffer::Number;
use engine_core::DeviceError;

/// A matrix in memory, column after column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Columns {
    /// Data type of keys and values.
    pub number: Number,
    /// Elements of a column.
    pub rows: usize,
    /// Columns, at least one.
    pub cols: usize,
    /// Elements from one column to the next.
    pub stride: usize,
}

impl Columns {
    /// A matrix `[rows, cols]` that lies row after row is its transposed one, column after column.
    fn of_rows(number: Number, rows: usize, cols: usize) -> Self {
        Self { number, rows: cols, cols: rows, stride: cols }
    }

    /// Bytes from the first element to the last.
    pub fn bytes(&self) -> usize {
        ((self.cols - 1) * self.stride + self.rows) * self.number.bytes()
    }
}

/// One side of a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Side {
    /// As it lies in memory.
    pub matrix: Columns,
    /// Whether it is turned over before it is multiplied.
    pub is_transposed: bool,
}

/// `d = alpha * a * b + beta * d`, summed in f32.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ColumnProduct {
    /// The left factor.
    pub a: Side,
    /// The right factor.
    pub b: Side,
    /// The result, never turned over.
    pub d: Columns,
    /// Factor of the product.
    pub alpha: f32,
    /// Factor of what the result held before; 0 does not read it.
    pub beta: f32,
}

impl ColumnProduct {
    /// `out [rows, n] = x [rows, k] * w [n, k]^T`, all row after row: turned over it is
    /// `out^T = w * x^T`, and what lies row after row is transposed already.
    pub fn of_weights(rows: usize, n: usize, k: usize, result: Number) -> Self {
        let side = |rows, is_transposed| Side {
            matrix: Columns::of_rows(Number::Bf16, rows, k),
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

/// A way to compute products, as the library itself writes it down; it means nothing to another
/// version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Algorithm(pub [u64; 8]);

/// Where a product finds its matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operands {
    /// The left factor.
    pub a: Address,
    /// The right factor.
    pub b: Address,
    /// The result.
    pub d: Address,
    /// [`WORKSPACE_BYTES`] that no other product uses meanwhile.
    pub workspace: Address,
}

/// What an algorithm may use: as much as NVIDIA advises for Hopper, and more than older GPUs need.
pub const WORKSPACE_BYTES: usize = 32 << 20;

/// A library on one GPU. Products only begin, in the order of the driver's stream, and may be
/// recorded with its launches.
pub trait Blas: Send + Sync + fmt::Debug {
    /// Versions of the library and of the driver.
    fn version(&self) -> &str;

    /// At most `most` algorithms for `product`, those first that the library thinks fastest.
    ///
    /// # Errors
    /// The library failed.
    fn algorithms(
        &self,
        product: &ColumnProduct,
        most: usize,
    ) -> Result<Vec<Algorithm>, DeviceError>;

    /// Whether `algorithm`, proposed for a product of other sizes, computes this one.
    fn takes(&self, product: &ColumnProduct, algorithm: Algorithm) -> bool;

    /// Begins `product`.
    ///
    /// # Errors
    /// The library or the device failed.
    fn multiply(
        &self,
        product: &ColumnProduct,
        algorithm: Algorithm,
        operands: &Operands,
    ) -> Result<(), DeviceError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_turn_over_into_columns_without_moving() {
        let product = ColumnProduct::of_weights(3, 8, 16, Number::F32);
        let (rows_of_a, cols_of_a) = (product.a.matrix.cols, product.a.matrix.rows);
        assert_eq!((rows_of_a, cols_of_a), (product.d.rows, product.b.matrix.rows), "a fits");
        assert_eq!(product.b.matrix.cols, product.d.cols, "b fits");
        assert_eq!(
            [product.a.matrix.stride, product.b.matrix.stride, product.d.stride],
            [16, 16, 8]
        );
        assert_eq!(product.a.matrix.bytes(), 2 * 8 * 16);
        assert_eq!(product.d.bytes(), 4 * 3 * 8);
    }
}
