//! Random activations and weights, made on the device: large operands take no time to copy.

use super::super::Cuda;
use super::super::buffer::{Buffer, DType};
use super::super::driver::{Address, Arguments};
use super::super::launch::Launch;
use super::super::launch::matmul::MatrixType;
use super::super::weights::Matrix;
use crate::Result;
use engine_core::WeightType;

/// Kind of random numbers that the kernel `reference_random` writes.
#[derive(Debug, Clone, Copy)]
enum Kind {
    E4m3 = 0,
    Mxfp4 = 1,
    Mxfp4Scales = 2,
    E4m3Scales = 3,
    Bf16 = 4,
}

impl Cuda {
    /// Creates a buffer `[rows, cols]` of random bf16 numbers from -1 to 1, others at each call.
    ///
    /// # Errors
    /// Memory cannot be allocated, or the device reports an error.
    pub fn random_buffer(&mut self, rows: usize, cols: usize) -> Result<Buffer> {
        let mut x = Buffer::new(cols);
        x.reshape(&mut self.stream, rows, cols)?;
        self.random_bf16(x.bf16(), rows * cols * DType::Bf16.bytes())?;
        Ok(x)
    }

    /// Creates a matrix `[n, k]` of random weights, others at each call: in e4m3 with random scales,
    /// in MXFP4, or else in bf16.
    ///
    /// # Errors
    /// Memory cannot be allocated, or the device reports an error.
    pub fn random_weights(
        &mut self,
        weight_type: WeightType,
        n: usize,
        k: usize,
    ) -> Result<Matrix> {
        let matrix_type = match weight_type {
            WeightType::F8E4M3 => MatrixType::E4m3,
            WeightType::Mxfp4 => MatrixType::Mxfp4,
            _ => MatrixType::Bf16,
        };
        let matrix = Matrix::room(&self.stream.driver, matrix_type, n, k)?;
        let (weight_bytes, scale_bytes) = matrix.bytes();
        // Padding rows keep their zeros.
        let bytes = weight_bytes / matrix.n * n;
        let (weights, scales) = (matrix.weights.address(), matrix.scales.address());
        match matrix_type {
            MatrixType::Bf16 => self.random_bf16(weights, bytes)?,
            MatrixType::E4m3 => {
                self.random_words(weights, bytes, Kind::E4m3, k)?;
                self.random_words(scales, scale_bytes, Kind::E4m3Scales, k)?;
            }
            MatrixType::Mxfp4 => {
                self.random_words(weights, bytes, Kind::Mxfp4, k)?;
                self.random_words(scales, scale_bytes, Kind::Mxfp4Scales, k)?;
            }
        }
        Ok(matrix)
    }

    fn next_seed(&mut self) -> u32 {
        self.random_seed += 1;
        self.random_seed
    }

    /// Writes `bytes` bytes, a multiple of 4, of random bf16 numbers.
    fn random_bf16(&mut self, to: Address, bytes: usize) -> Result<()> {
        const COLS: usize = 8;
        let (seed, rows) = (u64::from(self.next_seed()), bytes / (COLS * DType::Bf16.bytes()));
        let arguments = Arguments::of([to]).value(seed).value(0u64).value(COLS as u64);
        let arguments = arguments.value(rows as u64).value(COLS as u32).value(1.0f32);
        if rows > 0 {
            self.stream.launch("random_bf16", Launch::elements(rows, COLS), &arguments)?;
        }
        let rest = bytes % (COLS * DType::Bf16.bytes());
        self.random_words(to.plus(bytes - rest), rest, Kind::Bf16, COLS)
    }

    fn random_words(&mut self, to: Address, bytes: usize, kind: Kind, k: usize) -> Result<()> {
        let (seed, words) = (self.next_seed(), bytes / 4);
        if words == 0 {
            return Ok(());
        }
        let arguments = Arguments::of([to]).value(words as u64).value(seed).value(kind as u32);
        let arguments = arguments.value(k as u32);
        self.stream.launch("reference_random", Launch::reference_loop(words), &arguments)
    }
}
