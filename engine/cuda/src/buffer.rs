//! Activations on the device.

use super::driver::Address;
use super::group::Numbers;
use super::stream::{Room, Stream};
use engine_core::DeviceError;

/// Type of activations in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Number {
    /// Two bytes: of everything else.
    Bf16,
    /// Of scores that are compared: router logits, and those of the head.
    F32,
}

impl Number {
    /// Returns the bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            Self::Bf16 => 2,
            Self::F32 => 4,
        }
    }
}

/// Activations `[rows, cols]`, row major, in the type that the operation which wrote them has.
#[derive(Debug)]
pub struct Buffer {
    rows: usize,
    cols: usize,
    number: Number,
    room: Room,
    /// What was read of it.
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

    /// Gives it a shape, and room for bf16.
    pub(super) fn reshape(
        &mut self,
        stream: &mut Stream,
        rows: usize,
        cols: usize,
    ) -> Result<(), DeviceError> {
        (self.rows, self.cols) = (rows, cols);
        self.output(stream, Number::Bf16).map(|_| ())
    }

    /// Where an operation writes all of it.
    pub(super) fn output(
        &mut self,
        stream: &mut Stream,
        number: Number,
    ) -> Result<Address, DeviceError> {
        self.number = number;
        stream.room(&mut self.room, (self.rows * self.cols * number.bytes()).max(1))
    }

    /// Where its bf16 are.
    pub(super) fn bf16(&self) -> Address {
        assert_eq!(self.number, Number::Bf16, "the operation takes bf16");
        self.room.address()
    }

    /// Where its f32 are.
    pub(super) fn f32(&self) -> Address {
        assert_eq!(self.number, Number::F32, "the operation takes f32");
        self.room.address()
    }

    /// All that it holds.
    pub(super) fn numbers(&self) -> Numbers {
        let (at, count) = (self.room.address(), self.rows * self.cols);
        Numbers { at, count, number: self.number }
    }

    /// Where it is, whatever it holds.
    pub(super) fn address(&self) -> Address {
        self.room.address()
    }
}
