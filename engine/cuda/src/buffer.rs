//! Activation buffers in GPU memory: shape, element type (DType) and address of each.

use super::driver::Address;
use super::group::Operand;
use super::stream::{GrowableBuffer, Stream};
use crate::Result;

/// Element type (DType) of a buffer of activations in GPU memory.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
pub enum DType {
    /// bf16, two bytes: element type of all activations except scores.
    Bf16,
    /// f32, four bytes: element type of scores that are compared with one another, which are router
    /// logits and the logits of the language model head.
    F32,
}

impl DType {
    /// Returns the size in bytes of one element of this type.
    pub fn bytes(self) -> usize {
        match self {
            Self::Bf16 => 2,
            Self::F32 => 4,
        }
    }
}

/// Activation buffer in GPU memory, `[rows, cols]`, row major. Its element type is that of the
/// operation that wrote it last.
#[derive(Debug)]
pub struct Buffer {
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) dtype: DType,
    room: GrowableBuffer,
    /// Copy of the buffer's elements in host memory as f32, filled when the buffer is read back.
    pub(super) host: Vec<f32>,
}

impl Buffer {
    pub(super) fn new(cols: usize) -> Self {
        Self {
            rows: 0,
            cols,
            dtype: DType::Bf16,
            room: GrowableBuffer::default(),
            host: Vec::new(),
        }
    }

    /// Gives an activation buffer the shape `[rows, cols]` with elements of bf16, and grows its
    /// memory where that is needed; its content is unspecified afterwards.
    pub(super) fn reshape(&mut self, stream: &mut Stream, rows: usize, cols: usize) -> Result<()> {
        (self.rows, self.cols) = (rows, cols);
        self.output(stream, DType::Bf16).map(|_| ())
    }

    /// Returns the device address at which an operation writes the whole buffer as elements of
    /// `dtype`, after growing the memory where that is needed.
    pub(super) fn output(&mut self, stream: &mut Stream, dtype: DType) -> Result<Address> {
        self.dtype = dtype;
        // An empty buffer still needs an address, which kernels take as an argument.
        stream.grow(&mut self.room, (self.rows * self.cols * dtype.bytes()).max(1))
    }

    /// Returns the device address of the buffer for an operation that reads bf16. Panics if the
    /// buffer's elements are f32.
    pub(super) fn bf16(&self) -> Address {
        assert_eq!(self.dtype, DType::Bf16, "the operation takes bf16");
        self.room.address()
    }

    /// Returns the device address of the buffer for an operation that reads f32. Panics if the
    /// buffer's elements are bf16.
    pub(super) fn f32(&self) -> Address {
        assert_eq!(self.dtype, DType::F32, "the operation takes f32");
        self.room.address()
    }

    /// Returns all elements of the buffer as one operand of a collective operation (all-reduce,
    /// all-gather).
    pub(super) fn operand(&self) -> Operand {
        let (at, count) = (self.room.address(), self.rows * self.cols);
        Operand { at, count, dtype: self.dtype }
    }

    /// Returns the device address of the buffer, whatever its element type.
    pub(super) fn address(&self) -> Address {
        self.room.address()
    }
}
