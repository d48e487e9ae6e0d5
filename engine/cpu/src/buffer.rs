//! Activation buffers of the CPU. Operations write them a few rows at a time by each thread, and
//! also quantize them to int8 if the device has matrices for the int8 GEMM.

#![expect(unsafe_code, reason = "threads write disjoint rows of one buffer")]

use super::int8::{Activations, Quantizer};
use super::isa::Isa;
use super::memory::grow;
use super::shared::Shared;

/// Activation buffer `[rows, cols]` of the CPU, row major, with an optional copy quantized to int8.
#[derive(Debug, Default)]
pub struct Buffer {
    rows: usize,
    cols: usize,
    /// Activations, at least `rows * cols` of them: reshaping to fewer rows keeps the allocation.
    data: Vec<f32>,
    quantized: Activations,
    /// True when `quantized` is the int8 copy of the buffer's current activations.
    is_quantized: bool,
}

impl Buffer {
    /// Returns an activation buffer with `cols` columns and no rows.
    pub(super) fn new(cols: usize) -> Self {
        Self { cols, ..Self::default() }
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    pub(super) fn cols(&self) -> usize {
        self.cols
    }

    /// Sets the numbers of rows and columns of the activation buffer; its content is unspecified
    /// afterwards.
    pub(super) fn reshape(&mut self, rows: usize, cols: usize) {
        (self.rows, self.cols, self.is_quantized) = (rows, cols, false);
        grow(&mut self.data, rows * cols);
    }

    /// Returns the activations of the buffer, row major.
    pub(super) fn values(&self) -> &[f32] {
        &self.data[..self.rows * self.cols]
    }

    /// Returns the activations of the buffer for writing, and discards their quantized copy.
    pub(super) fn values_mut(&mut self) -> &mut [f32] {
        self.is_quantized = false;
        &mut self.data[..self.rows * self.cols]
    }

    /// Returns the activations of row `row` of the buffer.
    pub(super) fn row(&self, row: usize) -> &[f32] {
        &self.values()[row * self.cols..(row + 1) * self.cols]
    }

    /// Returns the activations quantized to int8; none if the last operation that wrote the buffer
    /// did not quantize them.
    pub(super) fn quantized(&self) -> Option<&Activations> {
        self.is_quantized.then_some(&self.quantized)
    }

    /// Returns the activation buffer as the output of an operation, which also quantizes it to int8
    /// if `quantized`.
    pub(super) fn output(&mut self, isa: Isa, quantized: bool) -> Output<'_> {
        self.is_quantized = quantized;
        let (rows, cols) = (self.rows, self.cols);
        Output {
            rows,
            cols,
            values: Shared::new(&mut self.data[..rows * cols]),
            quantizer: quantized.then(|| self.quantized.quantizer(isa, rows, cols)),
        }
    }
}

/// Output of an elementwise or row operation: an activation buffer whose rows are divided among
/// threads.
pub(super) struct Output<'a> {
    pub rows: usize,
    pub cols: usize,
    values: Shared<'a, f32>,
    quantizer: Option<Quantizer<'a>>,
}

impl Output<'_> {
    /// Calls `write` to fill `rows` rows of the output from row `first` on, and then quantizes the
    /// rows if the output is also wanted in int8.
    ///
    /// # Safety
    /// No other thread uses these rows during the call.
    pub(super) unsafe fn write(&self, first: usize, rows: usize, write: impl FnOnce(&mut [f32])) {
        // SAFETY: the caller vouches for the rows.
        unsafe {
            let values = self.values.part(first * self.cols, rows * self.cols);
            write(values);
            if let Some(quantizer) = &self.quantizer {
                // Right after they were written, the rows are still in the thread's cache.
                quantizer.quantize(first, values);
            }
        }
    }
}
