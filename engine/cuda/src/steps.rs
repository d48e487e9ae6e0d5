//! Upload of each step's metadata through pinned memory, in one copy, and the cos/sin table of its
//! positions.

use super::device::RUN_AHEAD;
use super::driver::{Address, Arguments, Pinned};
use super::launch::Launch;
use super::staging::Staging;
use super::step::{Draft, Plan};
use super::stream::{Room, Stream};
use super::weights::Part;
use engine_core::{DeviceError, Rotation};

/// Smallest size of the metadata buffer in bytes: page tables of about 256 sequences of 8,000
/// tokens.
const BYTES_MIN: usize = 1 << 20;

/// Buffers for the metadata of steps, and for their cos/sin tables.
#[derive(Debug, Default)]
pub struct Steps {
    metadata: Room,
    turns: Room,
    /// Rotary embedding used last, with its inverse frequencies on the device.
    frequencies: Option<(Rotation, Part)>,
    /// Pinned buffers used in rotation: the copies of steps in flight may still read the others.
    pinned: Vec<Pinned>,
    /// Index of the pinned buffer used last.
    next: usize,
}

impl Steps {
    /// Writes a step's metadata and starts its copy to the device; returns its address there.
    /// Tokens sampled by the previous step are those of its rows from `first_drawn` on.
    ///
    /// # Errors
    /// The device does not have enough memory, or reports an error.
    pub fn send(
        &mut self,
        stream: &mut Stream,
        draft: &Draft<'_>,
        first_drawn: u32,
    ) -> Result<Address, DeviceError> {
        let bytes = 4 * draft.layout.words;
        // Page tables grow with every page; rounding up keeps the buffer in place, so that captured
        // CUDA graphs stay valid.
        let room = bytes.next_power_of_two().max(BYTES_MIN);
        // One buffer more than steps in flight, so that the one written now is not being copied.
        if self.pinned.len() <= RUN_AHEAD {
            self.pinned.push(Pinned::new(stream.driver(), room)?);
            self.next = self.pinned.len() - 1;
        } else {
            self.next = (self.next + 1) % self.pinned.len();
        }
        let pinned = &mut self.pinned[self.next];
        if pinned.size() < bytes {
            *pinned = Pinned::new(stream.driver(), room)?;
        }
        let words = bytemuck::cast_slice_mut(&mut pinned.bytes_mut()[..bytes]);
        draft.write(first_drawn, words);
        let metadata = stream.room(&mut self.metadata, room)?;
        pinned.upload(metadata, bytes)?;
        Ok(metadata)
    }

    /// Computes the cos/sin table for the positions of a step.
    ///
    /// # Errors
    /// The device does not have enough memory, or reports an error.
    pub fn turn(
        &mut self,
        stream: &mut Stream,
        staging: &mut Staging,
        rotation: &Rotation,
        plan: &Plan,
    ) -> Result<Address, DeviceError> {
        let (rows, pairs) = (plan.layout.rows.all, plan.pairs);
        let turns = stream.room(&mut self.turns, (8 * rows * pairs).max(1))?;
        if !matches!(&self.frequencies, Some((known, _)) if known == rotation) {
            let part = Part::new(stream.driver(), 4 * pairs)?;
            staging.send_f32(part.address(), &rotation.inverse_frequencies)?;
            self.frequencies = Some((rotation.clone(), part));
        }
        let (_, frequencies) = self.frequencies.as_ref().expect("they were just sent");
        if pairs > 0 {
            let arguments = Arguments::new().address(turns).address(plan.at(plan.layout.positions));
            let arguments = arguments.address(frequencies.address());
            let arguments = arguments.value(rows as u32).value(pairs as u32).value(rotation.factor);
            stream.launch("turns", Launch::turns(rows, pairs), &arguments)?;
        }
        Ok(turns)
    }
}
