//! Rows on their way to experts and back, sorted on the device.

use std::ops::Range;

use super::buffer::{Buffer, Number};
use super::driver::{Address, Arguments};
use super::launch::Launch;
use super::stream::{Room, Stream};
use engine_core::{DeviceError, Gate};

/// Experts that rows are routed among, and to, at most.
const EXPERTS_MAX: usize = 512;
const CHOSEN_MAX: usize = 32;

/// Memory for the routes of one layer after another.
#[derive(Debug, Default)]
pub struct Router {
    ids: Room,
    weights: Room,
    offsets: Room,
    sources: Room,
    slots: Room,
}

/// Where the rows of one layer go; they hold until the next are made.
#[derive(Debug)]
pub struct Routes {
    /// Pairs of a row and an expert, those of other ranks included.
    pub pairs: usize,
    chosen: usize,
    weights: Address,
    /// `[E + 1]` where the rows of each own expert begin.
    pub offsets: Address,
    /// How many rows are sent, the last of the offsets.
    sent: Address,
    sources: Address,
    slots: Address,
}

impl Router {
    /// Chooses `chosen` experts for each row, and sorts the rows by those in `own`.
    ///
    /// # Errors
    /// There are more experts than the kernel takes, or the device failed.
    pub fn route(
        &mut self,
        stream: &mut Stream,
        logits: &Buffer,
        chosen: usize,
        gate: Gate,
        own: Range<usize>,
    ) -> Result<Routes, DeviceError> {
        let (rows, experts) = (logits.rows(), logits.cols());
        if experts > EXPERTS_MAX || chosen > CHOSEN_MAX {
            let message = format!(
                "{chosen} of {experts} experts: the kernel takes {CHOSEN_MAX} of {EXPERTS_MAX}"
            );
            return Err(DeviceError { operation: "route", message });
        }
        let pairs = rows * chosen;
        let ids = stream.room(&mut self.ids, 4 * pairs)?;
        let weights = stream.room(&mut self.weights, 4 * pairs)?;
        let is_normalized = gate != Gate::SoftmaxTop { normalized: false };
        let arguments = Arguments::new().address(ids).address(weights).address(logits.f32());
        let sizes = [rows, experts, chosen, usize::from(is_normalized)];
        let arguments = sizes.iter().fold(arguments, |all, size| all.value(*size as u32));
        stream.launch("route", Launch::route(rows), &arguments)?;
        let offsets = stream.room(&mut self.offsets, 4 * (own.len() + 1))?;
        let sources = stream.room(&mut self.sources, 4 * pairs)?;
        let slots = stream.room(&mut self.slots, 4 * pairs)?;
        let arguments = Arguments::new().address(offsets).address(sources).address(slots);
        let arguments = arguments.address(ids).value(pairs as u32).value(own.start as u32);
        stream.launch("sort_pairs", Launch::sort_pairs(own.len()), &arguments)?;
        let sent = offsets.plus(4 * own.len());
        Ok(Routes { pairs, chosen, weights, offsets, sent, sources, slots })
    }
}

impl Routes {
    /// The rows of `x` side by side with those of their expert. Rows that are not sent stay.
    ///
    /// # Errors
    /// The device failed.
    pub fn dispatch(
        &self,
        stream: &mut Stream,
        x: &Buffer,
        out: &mut Buffer,
    ) -> Result<(), DeviceError> {
        assert_eq!((out.rows(), out.cols()), (self.pairs, x.cols()), "a row for each pair");
        let to = out.output(stream, Number::Bf16)?;
        let arguments = Arguments::new().address(to).address(x.bf16()).address(self.sources);
        let arguments = arguments.address(self.sent);
        let arguments = arguments.value(self.chosen as u32).value(x.cols() as u32);
        stream.launch("dispatch", Launch::row_copies(self.pairs, x.cols()), &arguments)
    }

    /// The sum of each row's results by their weights.
    ///
    /// # Errors
    /// The device failed.
    pub fn combine(
        &self,
        stream: &mut Stream,
        x: &Buffer,
        out: &mut Buffer,
    ) -> Result<(), DeviceError> {
        let rows = self.pairs / self.chosen;
        assert_eq!((out.rows(), out.cols()), (rows, x.cols()), "a row for each of the step");
        let to = out.output(stream, Number::Bf16)?;
        let arguments = Arguments::new().address(to).address(x.bf16()).address(self.slots);
        let arguments = arguments.address(self.weights);
        let arguments = arguments.value(self.chosen as u32).value(x.cols() as u32);
        stream.launch("combine", Launch::row_copies(rows, x.cols()), &arguments)
    }
}
