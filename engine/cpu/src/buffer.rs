//! Activations, and how operations write them: a few rows at a time, by threads, and in eight bits
//! beside where that is how they will be multiplied.

#![expect(unsafe_code, reason = "threads write disjoint rows of one buffer")]

use super::int8::{Activations, Coder};
use super::isa::Isa;
use super::shared::Shared;

/// Activations `[rows, cols]`, row major.
#[derive(Debug, Default)]
pub struct Buffer {
    rows: usize,
    cols: usize,
    /// At least `rows * cols`: a buffer that changes its shape is not filled anew each time.
    data: Vec<f32>,
    codes: Activations,
    /// Whether `codes` are those of the values.
    is_coded: bool,
}

impl Buffer {
    /// A buffer without rows.
    pub(super) fn new(cols: usize) -> Self {
        Self { cols, ..Self::default() }
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    pub(super) fn cols(&self) -> usize {
        self.cols
    }

    /// Gives it a shape, and unspecified content.
    pub(super) fn reshape(&mut self, rows: usize, cols: usize) {
        (self.rows, self.cols, self.is_coded) = (rows, cols, false);
        if self.data.len() < rows * cols {
            // Nothing is moved over and nothing kept to grow into: the largest step comes early.
            self.data = Vec::new();
            self.data = vec![0.0; rows * cols];
        }
    }

    pub(super) fn values(&self) -> &[f32] {
        &self.data[..self.rows * self.cols]
    }

    pub(super) fn values_mut(&mut self) -> &mut [f32] {
        self.is_coded = false;
        &mut self.data[..self.rows * self.cols]
    }

    /// Row `row`.
    pub(super) fn row(&self, row: usize) -> &[f32] {
        &self.values()[row * self.cols..(row + 1) * self.cols]
    }

    /// The values in eight bits, if they were written so.
    pub(super) fn codes(&self) -> Option<&Activations> {
        self.is_coded.then_some(&self.codes)
    }

    /// The buffer as what an operation writes, all of it: also in eight bits where `coded`.
    pub(super) fn output(&mut self, isa: Isa, coded: bool) -> Output<'_> {
        self.is_coded = coded;
        let (rows, cols) = (self.rows, self.cols);
        Output {
            rows,
            cols,
            values: Shared::new(&mut self.data[..rows * cols]),
            coder: coded.then(|| self.codes.coder(isa, rows, cols)),
        }
    }
}

/// A buffer that threads write, each its own rows.
pub(super) struct Output<'a> {
    pub rows: usize,
    pub cols: usize,
    values: Shared<'a, f32>,
    coder: Option<Coder<'a>>,
}

impl Output<'_> {
    /// Has `write` fill `rows` rows from `first`, and codes them while they are in the cache.
    ///
    /// # Safety
    /// Nobody else uses these rows meanwhile.
    pub(super) unsafe fn write(&self, first: usize, rows: usize, write: impl FnOnce(&mut [f32])) {
        // SAFETY: the caller vouches for the rows.
        unsafe {
            let values = self.values.part(first * self.cols, rows * self.cols);
            write(values);
            if let Some(coder) = &self.coder {
                coder.code(first, values);
            }
        }
    }
}
