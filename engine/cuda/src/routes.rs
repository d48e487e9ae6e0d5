//! MoE routing on the device: top-k experts of each row, dispatch of rows to experts, and
//! combination of their results.

use std::ops::Range;

use super::buffer::{Buffer, DType};
use super::driver::{Address, Arguments};
use super::launch::Launch;
use super::stream::{GrowableBuffer, Stream};
use engine_core::{DeviceError, Gate};

/// Largest number of experts of a layer, and largest number of experts per row (top-k), that the
/// kernel supports.
const EXPERTS_MAX: usize = 512;
const CHOSEN_MAX: usize = 32;

/// Buffers for the routes of a layer, reused by the next.
#[derive(Debug, Default)]
pub struct Router {
    ids: GrowableBuffer,
    weights: GrowableBuffer,
    offsets: GrowableBuffer,
    sources: GrowableBuffer,
    slots: GrowableBuffer,
}

/// Routes of one MoE layer: which rows go to which experts. Valid until the next layer is routed.
#[derive(Debug)]
pub struct Routes {
    /// Number of (row, expert) pairs, including those whose expert belongs to another rank.
    pub pairs: usize,
    /// Number of experts per row (top-k).
    chosen: usize,
    /// Address of the f32 weight of each pair.
    weights: Address,
    /// Address of `[E + 1]` offsets: where the rows of each of this rank's experts begin.
    pub offsets: Address,
    /// Address of the number of rows sent to this rank's experts, the last of the offsets.
    sent: Address,
    /// Address of the pair that each sorted row comes from.
    sources: Address,
    /// Address of the sorted row of each pair.
    slots: Address,
}

impl Router {
    /// Selects the top-k experts of each row (`chosen` many) and sorts the rows by expert, for
    /// those experts in `own`.
    ///
    /// # Errors
    /// There are more experts than the kernel supports, or the device reports an error.
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
        let ids = stream.grow(&mut self.ids, 4 * pairs)?;
        let weights = stream.grow(&mut self.weights, 4 * pairs)?;
        let is_normalized = gate != Gate::SoftmaxTop { normalized: false };
        let arguments = Arguments::new().address(ids).address(weights).address(logits.f32());
        let sizes = [rows, experts, chosen, usize::from(is_normalized)];
        let arguments = sizes.iter().fold(arguments, |all, size| all.value(*size as u32));
        stream.launch("route", Launch::route(rows), &arguments)?;
        let offsets = stream.grow(&mut self.offsets, 4 * (own.len() + 1))?;
        let sources = stream.grow(&mut self.sources, 4 * pairs)?;
        let slots = stream.grow(&mut self.slots, 4 * pairs)?;
        let arguments = Arguments::new().address(offsets).address(sources).address(slots);
        let arguments = arguments.address(ids).value(pairs as u32).value(own.start as u32);
        stream.launch("sort_pairs", Launch::sort_pairs(own.len()), &arguments)?;
        let sent = offsets.plus(4 * own.len());
        Ok(Routes { pairs, chosen, weights, offsets, sent, sources, slots })
    }
}

impl Routes {
    /// Copies the rows of `x` to `out`, sorted by expert. Rows of `out` behind the last pair sent
    /// are left unchanged.
    ///
    /// # Errors
    /// The device reports an error.
    pub fn dispatch(
        &self,
        stream: &mut Stream,
        x: &Buffer,
        out: &mut Buffer,
    ) -> Result<(), DeviceError> {
        assert_eq!((out.rows(), out.cols()), (self.pairs, x.cols()), "a row for each pair");
        let to = out.output(stream, DType::Bf16)?;
        let arguments = Arguments::new().address(to).address(x.bf16()).address(self.sources);
        let arguments = arguments.address(self.sent);
        let arguments = arguments.value(self.chosen as u32).value(x.cols() as u32);
        stream.launch("dispatch", Launch::row_copies(self.pairs, x.cols()), &arguments)
    }

    /// Sums the expert results of each row, weighted by the router.
    ///
    /// # Errors
    /// The device reports an error.
    pub fn combine(
        &self,
        stream: &mut Stream,
        x: &Buffer,
        out: &mut Buffer,
    ) -> Result<(), DeviceError> {
        let rows = self.pairs / self.chosen;
        assert_eq!((out.rows(), out.cols()), (rows, x.cols()), "a row for each of the step");
        let to = out.output(stream, DType::Bf16)?;
        let arguments = Arguments::new().address(to).address(x.bf16()).address(self.slots);
        let arguments = arguments.address(self.weights);
        let arguments = arguments.value(self.chosen as u32).value(x.cols() as u32);
        stream.launch("combine", Launch::row_copies(rows, x.cols()), &arguments)
    }
}
