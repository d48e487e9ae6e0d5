//! Tokens that steps draw, and their way and that of logits back: steps end on the device, and land
//! when somebody waits for them.

use std::collections::VecDeque;

use super::buffer::Buffer;
use super::driver::{Address, Arguments, Event, Pinned};
use super::launch::Launch;
use super::step::Plan;
use super::stream::{Room, Stream};
use engine_core::{DeviceError, Landed};

/// What a row has that could not draw.
const NONE: u32 = u32::MAX;

/// Tokens on the device, and what is on its way.
#[derive(Debug, Default)]
pub struct Landing {
    /// The likeliest token of each part of a row.
    best: Room,
    /// `[R]` tokens of the last step, those of rows that draw nothing included.
    ids: Room,
    /// How many there is room for.
    ids_max: usize,
    /// Of the last step, the row that drew first, and how many did.
    last: (u32, usize),
    in_flight: VecDeque<Flight>,
    idle: Vec<Flight>,
    tokens: Vec<Option<u32>>,
}

/// A step on its way back: tokens, then logits.
#[derive(Debug)]
struct Flight {
    host: Pinned,
    landed: Event,
    draws: usize,
    /// First byte and number of the logits.
    logits: (usize, usize),
}

impl Landing {
    /// How many tokens the last step drew.
    pub fn drawn(&self) -> usize {
        self.last.1
    }

    /// The row of the last step that drew first.
    pub fn first_drawn(&self) -> u32 {
        self.last.0
    }

    /// Where the tokens of the last step are.
    pub fn ids(&self) -> Address {
        self.ids.address()
    }

    /// Makes room for the tokens of `rows` rows; those of the last step stay.
    ///
    /// # Errors
    /// The device is full.
    pub fn reserve(&mut self, stream: &mut Stream, rows: usize) -> Result<(), DeviceError> {
        if rows > self.ids_max || self.ids_max == 0 {
            stream.keeping_room(&mut self.ids, 4 * rows.max(1))?;
            self.ids_max = rows.max(1);
        }
        Ok(())
    }

    /// Takes the likeliest token of each row of `logits`, and draws for those that want it.
    ///
    /// # Errors
    /// The device failed.
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
        let draws = plan.at(plan.layout.draws);
        let arguments = Arguments::new().address(self.ids()).address(logits.f32()).address(draws);
        stream.launch("sample", Launch::sample(rows), &arguments.value(vocab as u32))
    }

    /// Sends a step's tokens and logits back.
    ///
    /// # Errors
    /// The device failed.
    pub fn depart(
        &mut self,
        stream: &Stream,
        logits: Address,
        vocab: usize,
        plan: &Plan,
    ) -> Result<(), DeviceError> {
        let Plan { reads, draws, .. } = *plan;
        let logit_bytes = 4 * reads * vocab;
        let start = (4 * draws).next_multiple_of(16);
        let mut flight = self.flight(stream, start + logit_bytes)?;
        if draws > 0 {
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

    fn flight(&mut self, stream: &Stream, bytes: usize) -> Result<Flight, DeviceError> {
        match self.idle.pop() {
            Some(flight) if flight.host.size() >= bytes => Ok(flight),
            small => {
                let landed = match &small {
                    Some(flight) => flight.landed,
                    None => stream.driver().event()?,
                };
                drop(small);
                let host = Pinned::new(stream.driver(), bytes)?;
                Ok(Flight { host, landed, draws: 0, logits: (0, 0) })
            }
        }
    }

    /// Waits for the oldest step on its way.
    ///
    /// # Errors
    /// The device failed, or no step is on its way.
    pub fn land(&mut self, stream: &Stream) -> Result<Landed<'_>, DeviceError> {
        let Some(flight) = self.in_flight.pop_front() else {
            let message = "no step is in flight".to_owned();
            return Err(DeviceError { operation: "land", message });
        };
        stream.driver().wait(flight.landed)?;
        // The one that is shown is the last to be used again.
        self.idle.insert(0, flight);
        let Flight { host, draws, logits: (start, bytes), .. } = &self.idle[0];
        let ids: &[u32] = bytemuck::cast_slice(&host.bytes()[..4 * draws]);
        self.tokens.clear();
        self.tokens.extend(ids.iter().map(|id| (*id != NONE).then_some(*id)));
        let logits = bytemuck::cast_slice(&host.bytes()[*start..start + bytes]);
        Ok(Landed { logits, tokens: &self.tokens })
    }
}
