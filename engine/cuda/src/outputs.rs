//! Sampling on the device, and the return of sampled tokens and logits to the host: each submitted
//! step has pinned memory and an event, and the host waits for the oldest.

use std::collections::VecDeque;

use super::buffer::Buffer;
use super::driver::{Address, Arguments, Event, Pinned};
use super::launch::Launch;
use super::step::StepMetadata;
use super::stream::{GrowableBuffer, Stream};
use crate::{Result, failed};
use engine_core::StepOutput;

/// Value in place of a token id that the argmax and sampling kernels leave for a row from which no
/// token could be sampled.
const NONE: u32 = u32::MAX;

/// Sampled tokens on the device, and the copies of submitted steps' outputs to the host.
#[derive(Debug, Default)]
pub struct StepOutputs {
    /// Buffer for partial argmax results: the likeliest token of each part of a row of logits.
    best: GrowableBuffer,
    /// Token ids of the last step's R rows that need logits, including those of rows that do not
    /// sample.
    ids: GrowableBuffer,
    /// Number of token ids that the buffer of the last step's token ids has memory for.
    ids_max: usize,
    /// Index, among the rows that need logits, of the last submitted step's first row that samples.
    pub first_sampled: u32,
    /// Number of tokens that the last submitted step samples on the device.
    pub sampled: usize,
    /// Copies to the host of submitted steps that have not completed, oldest first.
    submitted: VecDeque<HostCopy>,
    /// Pinned memory and events of completed steps, to be reused.
    idle: Vec<HostCopy>,
    /// Sampled tokens of the step completed last; `None` for a row from which no token could be
    /// sampled.
    tokens: Vec<Option<u32>>,
}

/// Copy of one step's sampled tokens and logits to the host.
#[derive(Debug)]
struct HostCopy {
    /// Pinned host memory for the step's sampled tokens, followed by its logits.
    host: Pinned,
    /// Event in the stream after the copies of the step's tokens and logits.
    copied: Event,
    /// Number of tokens that the step samples on the device.
    tokens: usize,
    /// Offset of the step's logits in the pinned memory, and their size, both in bytes.
    logits: (usize, usize),
}

impl StepOutputs {
    /// Returns the device address of the last step's token ids.
    pub fn ids(&self) -> Address {
        self.ids.address()
    }

    /// Grows the device memory for token ids to `rows` rows. The ids of the last step are kept,
    /// since the next step may read them as its input.
    ///
    /// # Errors
    /// Memory cannot be allocated, or the device reports an error.
    pub fn reserve(&mut self, stream: &mut Stream, rows: usize) -> Result<()> {
        if rows > self.ids_max || self.ids_max == 0 {
            stream.grow_keeping(&mut self.ids, 4 * rows.max(1))?;
            self.ids_max = rows.max(1);
        }
        Ok(())
    }

    /// Launches the sampling of a step: the argmax of each row of `logits`, then sampling in the
    /// rows that have sampling parameters.
    ///
    /// # Errors
    /// Memory cannot be allocated, or the device reports an error.
    pub fn sample(
        &mut self,
        stream: &mut Stream,
        logits: &Buffer,
        step: &StepMetadata,
    ) -> Result<()> {
        let (rows, vocab) = (logits.rows, logits.cols);
        let launch = Launch::argmax_part(rows, vocab);
        let parts = launch.grid[1] as usize;
        let best = stream.grow(&mut self.best, 8 * rows * parts)?;
        let arguments = Arguments::of([best, logits.f32()]).sizes([vocab]);
        stream.launch("argmax_part", launch, &arguments)?;
        let arguments = Arguments::of([self.ids(), best]).sizes([parts]);
        stream.launch("argmax_merge", Launch::argmax_merge(rows), &arguments)?;
        // The ids are those of greedy sampling now; the next kernel replaces those of other rows.
        let params = step.at(step.layout.sampling);
        let arguments = Arguments::of([self.ids(), logits.f32(), params]).sizes([vocab]);
        stream.launch("sample", Launch::sample(rows), &arguments)
    }

    /// Starts the copies of a submitted step's sampled tokens and logits to the host.
    ///
    /// # Errors
    /// Memory cannot be allocated, or the device reports an error.
    pub fn copy_to_host(
        &mut self,
        stream: &Stream,
        logits: Address,
        vocab: usize,
        step: &StepMetadata,
    ) -> Result<()> {
        let StepMetadata { reads, samples, .. } = *step;
        let logit_bytes = 4 * reads * vocab;
        // Aligned, so that the logits can be read in place as f32.
        let start = (4 * samples).next_multiple_of(16);
        let mut copy = self.idle_copy(stream, start + logit_bytes)?;
        if samples > 0 {
            // Rows whose logits are read come first, and their token ids are not needed.
            copy.host.download(0, self.ids().plus(4 * reads), 4 * samples)?;
        }
        if logit_bytes > 0 {
            copy.host.download(start, logits, logit_bytes)?;
        }
        stream.driver.mark(copy.copied)?;
        (copy.tokens, copy.logits) = (samples, (start, logit_bytes));
        (self.first_sampled, self.sampled) = (reads as u32, samples);
        self.submitted.push_back(copy);
        Ok(())
    }

    /// Returns pinned memory of at least `bytes` bytes and an event for the copy of a step's
    /// outputs, reused from a completed step where possible.
    fn idle_copy(&mut self, stream: &Stream, bytes: usize) -> Result<HostCopy> {
        let copied = match self.idle.pop() {
            Some(copy) if copy.host.size() >= bytes => return Ok(copy),
            // Memory that is too small is released here, so that old and new need not fit at the
            // same time.
            Some(small) => small.copied,
            None => stream.driver.event()?,
        };
        let host = Pinned::new(&stream.driver, bytes)?;
        Ok(HostCopy { host, copied, tokens: 0, logits: (0, 0) })
    }

    /// Waits until the oldest submitted step is complete and returns its tokens and logits.
    ///
    /// # Errors
    /// The device reports an error, or no step is in flight.
    pub fn complete(&mut self, stream: &Stream) -> Result<StepOutput<'_>> {
        let Some(copy) = self.submitted.pop_front() else {
            return Err(failed("complete", "no step is in flight"));
        };
        stream.driver.wait(copy.copied)?;
        // Inserted first because `idle_copy` pops the last: memory that the caller still reads is
        // reused as late as possible.
        self.idle.insert(0, copy);
        let HostCopy { host, tokens, logits: (start, bytes), .. } = &self.idle[0];
        let ids: &[u32] = bytemuck::cast_slice(&host.bytes()[..4 * tokens]);
        self.tokens.clear();
        self.tokens.extend(ids.iter().map(|id| (*id != NONE).then_some(*id)));
        let logits = bytemuck::cast_slice(&host.bytes()[*start..start + bytes]);
        Ok(StepOutput { logits, tokens: &self.tokens })
    }
}
