//! Mixture-of-experts (fused MoE) routing on the device: top-k experts of each row by softmax,
//! dispatch of rows to experts, and combination of their results.

use std::ops::Range;

use super::buffer::{Buffer, DType};
use super::driver::{Address, Arguments};
use super::launch::{Launch, SORT_BLOCK};
use super::stream::{GrowableBuffer, Stream};
use crate::{Result, failed};
use engine_core::Gate;

/// Largest number of experts of a layer that the kernels support.
const EXPERTS_MAX: usize = SORT_BLOCK;
/// Largest number of experts per row (top-k) that the routing kernel supports.
const CHOSEN_MAX: usize = 32;

/// Device buffers for the routes of one mixture-of-experts layer, reused by the next layer.
#[derive(Debug, Default)]
pub struct Router {
    pub ids: GrowableBuffer,
    pub weights: GrowableBuffer,
    /// Number of pairs of each expert in the chunk of each block that sorts them.
    counts: GrowableBuffer,
    pub offsets: GrowableBuffer,
    pub sources: GrowableBuffer,
    pub slots: GrowableBuffer,
}

/// Routes of one mixture-of-experts layer: which rows go to which experts. Valid until the next
/// layer is routed.
#[derive(Debug)]
pub struct Routes {
    /// Number of pairs of a row and one of its top-k experts, including those whose expert belongs
    /// to another rank.
    pub pairs: usize,
    /// Number of experts that each row is routed to (top-k).
    pub chosen: usize,
    /// Device address of the f32 weight of each pair of a row and an expert.
    pub weights: Address,
    /// Device address of `[E + 1]` offsets for this rank's E experts: the index of each expert's
    /// first sorted row, then the number of sorted rows.
    pub offsets: Address,
    /// Device address of the number of rows sent to this rank's experts, which is the last of the
    /// experts' offsets.
    pub sent: Address,
    /// Device address of the index, for each row sorted by expert, of its pair of a row and an
    /// expert.
    pub sources: Address,
    /// Device address of the index, for each pair of a row and an expert, of its row among the rows
    /// sorted by expert; `u32::MAX` for an expert of another rank.
    pub slots: Address,
}

impl Router {
    /// Selects the top-k experts of each row (`chosen` many) from the router's `logits`, and sorts
    /// the rows by expert, for the experts in the range `own` of this rank.
    ///
    /// # Errors
    /// There are more experts, or more experts per row, than the kernel supports, memory cannot be
    /// allocated, or the device reports an error.
    pub fn route(
        &mut self,
        stream: &mut Stream,
        logits: &Buffer,
        chosen: usize,
        gate: Gate,
        own: Range<usize>,
    ) -> Result<Routes> {
        let (rows, experts) = (logits.rows, logits.cols);
        if experts > EXPERTS_MAX || chosen > CHOSEN_MAX {
            let message = format!(
                "{chosen} of {experts} experts: the kernel takes {CHOSEN_MAX} of {EXPERTS_MAX}"
            );
            return Err(failed("route", message));
        }
        let pairs = rows * chosen;
        let ids = stream.grow(&mut self.ids, 4 * pairs)?;
        let weights = stream.grow(&mut self.weights, 4 * pairs)?;
        let is_normalized = gate != Gate::SoftmaxTop { normalized: false };
        let sizes = [rows, experts, chosen, usize::from(is_normalized)];
        let arguments = Arguments::of([ids, weights, logits.f32()]).sizes(sizes);
        stream.launch("route", Launch::route(rows), &arguments)?;
        let offsets = stream.grow(&mut self.offsets, 4 * (own.len() + 1))?;
        let sources = stream.grow(&mut self.sources, 4 * pairs)?;
        let slots = stream.grow(&mut self.slots, 4 * pairs)?;
        let (launch, sizes) = (Launch::sort_pairs(pairs), [pairs, own.start, own.len()]);
        let mut counts = Address::NULL;
        if launch.grid[0] > 1 {
            counts = stream.grow(&mut self.counts, 4 * launch.grid[0] as usize * own.len())?;
            stream.launch("count_pairs", launch, &Arguments::of([counts, ids]).sizes(sizes))?;
        }
        let arguments = Arguments::of([offsets, sources, slots, counts, ids]).sizes(sizes);
        stream.launch("sort_pairs", launch, &arguments)?;
        let sent = offsets.plus(4 * own.len());
        Ok(Routes { pairs, chosen, weights, offsets, sent, sources, slots })
    }
}

impl Routes {
    /// Copies each row of `x` to `out` once for each of its experts that belong to this rank,
    /// sorted by expert. The rows of `out` behind those of this rank's experts are left unchanged.
    ///
    /// # Errors
    /// Memory cannot be allocated, or the device reports an error.
    pub fn dispatch(&self, stream: &mut Stream, x: &Buffer, out: &mut Buffer) -> Result<()> {
        assert_eq!((out.rows, out.cols), (self.pairs, x.cols), "a row for each pair");
        let to = out.output(stream, DType::Bf16)?;
        let arguments = Arguments::of([to, x.bf16(), self.sources, self.sent]);
        let arguments = arguments.sizes([self.chosen, x.cols]);
        stream.launch("dispatch", Launch::row_copies(self.pairs, x.cols), &arguments)
    }

    /// Writes to `out`, for each row, the sum of the results `x` of those of its experts that
    /// belong to this rank, weighted by the router.
    ///
    /// # Errors
    /// Memory cannot be allocated, or the device reports an error.
    pub fn combine(&self, stream: &mut Stream, x: &Buffer, out: &mut Buffer) -> Result<()> {
        let rows = self.pairs / self.chosen;
        assert_eq!((out.rows, out.cols), (rows, x.cols), "a row for each of the step");
        let to = out.output(stream, DType::Bf16)?;
        let arguments = Arguments::of([to, x.bf16(), self.slots, self.weights]);
        let arguments = arguments.sizes([self.chosen, x.cols]);
        stream.launch("combine", Launch::row_copies(rows, x.cols), &arguments)
    }
}
