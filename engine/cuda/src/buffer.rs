//! Activation buffers in GPU memory: shape, element type (DType) and address of each.

use super::driver::Address;
use super::group::Numbers;
use super::stream::{Room, Stream};
use engine_core::DeviceError;

/// Element type (DType) of a buffer of activations in GPU memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Number {
    /// Two bytes: of everything else.
    Bf16,
    /// Single precision, for scores that are compared with one another: router logits and the
    /// logits of the language model head.
    F32,
}

impl Number {
    /// Bytes of one element of this type.
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
    rows: usize,
    cols: usize,
    number: Number,
    room: Room,
    /// Copy of the elements in host memory, filled when the buffer is read back.
    pub(super) host: Vec<f32>,
}

impl Buffer {
    pub(super) fn new(cols: usize) -> Self {
        Self { rows: 0, cols, number: Number::Bf16, room: Room::default(), host: Vec::new() }
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    pub(super) fn cols(&self) -> usize {
        self.cols
    }

    pub(super) fn number(&self) -> Number {
        self.number
    }

    /// Gives the buffer the shape `[rows, cols]` and allocates memory for it as bf16.
    pub(super) fn reshape(
        &mut self,
        stream: &mut Stream,
        rows: usize,
        cols: usize,
    ) -> Result<(), DeviceError> {
        (self.rows, self.cols) = (rows, cols);
        self.output(stream, Number::Bf16).map(|_| ())
    }

    /// Returns the address at which an operation writes the whole buffer as elements of `number`,
    /// after growing the memory where that is needed.
    pub(super) fn output(
        &mut self,
        stream: &mut Stream,
        number: Number,
    ) -> Result<Address, DeviceError> {
        self.number = number;
        // An empty buffer still needs an address, which kernels take as an argument.
        stream.room(&mut self.room, (self.rows * self.cols * number.bytes()).max(1))
    }

    /// Address of the buffer, for an operation that reads bf16. Panics if the buffer holds f32.
    pub(super) fn bf16(&self) -> Address {
        assert_eq!(self.number, Number::Bf16, "the operation takes bf16");
        self.room.address()
    }

    /// Address of the buffer, for an operation that reads f32. Panics if the buffer holds bf16.
    pub(super) fn f32(&self) -> Address {
        assert_eq!(self.number, Number::F32, "the operation takes f32");
        self.room.address()
    }

    /// All elements of the buffer as one operand of a collective operation (all-reduce,
    /// all-gather).
    pub(super) fn numbers(&self) -> Numbers {
        let (at, count) = (self.room.address(), self.rows * self.cols);
        Numbers { at, count, number: self.number }
    }

    /// Address of the buffer, whatever its element type.
    pub(super) fn address(&self) -> Address {
        self.room.address()
    }
}
