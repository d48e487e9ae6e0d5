//! Sampling on the device, and the return of sampled tokens and logits to the host: each step in
//! flight has pinned memory and an event, and the host waits for the oldest.

use std::collections::VecDeque;

use super::buffer::Buffer;
use super::driver::{Address, Arguments, Event, Pinned};
use super::launch::Launch;
use super::step::Plan;
use super::stream::{Room, Stream};
use engine_core::{DeviceError, Landed};

/// Token id that the sampling kernel writes for a row from which no token could be sampled.
const NONE: u32 = u32::MAX;

/// Sampled tokens on the device, and steps in flight to the host.
#[derive(Debug, Default)]
pub struct Landing {
    /// Partial argmax results: the likeliest token of each part of a row.
    best: Room,
    /// `[R]` token ids of the last step, including those of rows that do not sample.
    ids: Room,
    /// Number of tokens that `ids` has memory for.
    ids_max: usize,
    /// First row of the last step that sampled, and the number of rows that did.
    last: (u32, usize),
    /// Steps in flight (submitted, not yet completed), oldest first.
    in_flight: VecDeque<Flight>,
    /// Pinned memory and events of completed steps, to be reused.
    idle: Vec<Flight>,
    /// Tokens of the step completed last.
    tokens: Vec<Option<u32>>,
}

/// A step in flight: submitted to the device, its tokens and logits not yet on the host.
#[derive(Debug)]
struct Flight {
    /// Pinned host memory for the step's tokens, followed by its logits.
    host: Pinned,
    /// Event after the copies of the step's tokens and logits.
    landed: Event,
    /// Number of tokens that the step samples.
    draws: usize,
    /// Offset of the logits in the host memory, and their size, both in bytes.
    logits: (usize, usize),
}

impl Landing {
    /// Number of tokens that the last submitted step samples.
    pub fn drawn(&self) -> usize {
        self.last.1
    }

    /// First row of the last submitted step that samples.
    pub fn first_drawn(&self) -> u32 {
        self.last.0
    }

    /// Address of the last step's token ids on the device.
    pub fn ids(&self) -> Address {
        self.ids.address()
    }

    /// Grows the memory for token ids to `rows` rows. The ids of the last step are kept, since the
    /// next step may read them as its input.
    ///
    /// # Errors
    /// The device does not have enough memory.
    pub fn reserve(&mut self, stream: &mut Stream, rows: usize) -> Result<(), DeviceError> {
        if rows > self.ids_max || self.ids_max == 0 {
            stream.keeping_room(&mut self.ids, 4 * rows.max(1))?;
            self.ids_max = rows.max(1);
        }
        Ok(())
    }

    /// Takes the argmax of each row of `logits`, then samples in the rows that have sampling
    /// parameters.
    ///
    /// # Errors
    /// The device reports an error.
    pub fn draw(
        &mut self,
        stream: &mut Stream,
        logits: &Buffer,
        plan: &Plan,
    ) -> Result<(), DeviceError> {
        let (rows, vocab) = (logits.rows(), logits.cols());
        let launch = Launch::argmax_part(rows, vocab);
        let parts = launch.grid[0] as usize;
        let best = stream.room(&mut self.best, 8 * rows * parts)?;
        let arguments = Arguments::new().address(best).address(logits.f32()).value(vocab as u32);
        stream.launch("argmax_part", launch, &arguments)?;
        let arguments = Arguments::new().address(self.ids()).address(best).value(parts as u32);
        stream.launch("argmax_merge", Launch::argmax_merge(rows), &arguments)?;
        // The ids are those of greedy sampling now; the next kernel replaces those of other rows.
        let draws = plan.at(plan.layout.draws);
        let arguments = Arguments::new().address(self.ids()).address(logits.f32()).address(draws);
        stream.launch("sample", Launch::sample(rows), &arguments.value(vocab as u32))
    }

    /// Starts the copies of a step's sampled tokens and logits to the host, and makes it a step in
    /// flight.
    ///
    /// # Errors
    /// The device reports an error.
    pub fn depart(
        &mut self,
        stream: &Stream,
        logits: Address,
        vocab: usize,
        plan: &Plan,
    ) -> Result<(), DeviceError> {
        let Plan { reads, draws, .. } = *plan;
        let logit_bytes = 4 * reads * vocab;
        // Aligned, so that the logits can be read in place as f32.
        let start = (4 * draws).next_multiple_of(16);
        let mut flight = self.flight(stream, start + logit_bytes)?;
        if draws > 0 {
            // Rows whose logits are read come first, and their token ids are not needed.
            flight.host.download(0, self.ids().plus(4 * reads), 4 * draws)?;
        }
        if logit_bytes > 0 {
            flight.host.download(start, logits, logit_bytes)?;
        }
        stream.driver().mark(flight.landed)?;
        flight.draws = draws;
        flight.logits = (start, logit_bytes);
        self.last = (reads as u32, draws);
        self.in_flight.push_back(flight);
        Ok(())
    }

    /// Pinned memory of at least `bytes` bytes and an event, reused from a completed step where
    /// possible.
    fn flight(&mut self, stream: &Stream, bytes: usize) -> Result<Flight, DeviceError> {
        match self.idle.pop() {
            Some(flight) if flight.host.size() >= bytes => Ok(flight),
            small => {
                let landed = match &small {
                    Some(flight) => flight.landed,
                    None => stream.driver().event()?,
                };
                // Released first, so that old and new memory need not fit at the same time.
                drop(small);
                let host = Pinned::new(stream.driver(), bytes)?;
                Ok(Flight { host, landed, draws: 0, logits: (0, 0) })
            }
        }
    }

    /// Waits until the oldest step in flight is complete and returns its tokens and logits.
    ///
    /// # Errors
    /// The device reports an error, or no step is in flight.
    pub fn land(&mut self, stream: &Stream) -> Result<Landed<'_>, DeviceError> {
        let Some(flight) = self.in_flight.pop_front() else {
            let message = "no step is in flight".to_owned();
            return Err(DeviceError { operation: "land", message });
        };
        stream.driver().wait(flight.landed)?;
        // Inserted first because `flight` pops the last: memory that the caller still reads is
        // reused as late as possible.
        self.idle.insert(0, flight);
        let Flight { host, draws, logits: (start, bytes), .. } = &self.idle[0];
        let ids: &[u32] = bytemuck::cast_slice(&host.bytes()[..4 * draws]);
        self.tokens.clear();
        self.tokens.extend(ids.iter().map(|id| (*id != NONE).then_some(*id)));
        let logits = bytemuck::cast_slice(&host.bytes()[*start..start + bytes]);
        Ok(Landed { logits, tokens: &self.tokens })
    }
}
