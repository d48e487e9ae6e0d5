//! The way of what steps read beside activations: laid out in pinned memory, copied in one piece, and
//! from it the turns of positions.

use super::device::RUN_AHEAD;
use super::driver::{Address, Arguments, Pinned};
use super::launch::Launch;
use super::staging::Staging;
use super::step::{Draft, Plan};
use super::stream::{Room, Stream};
use super::weights::Part;
use engine_core::{DeviceError, Rotation};

/// Room for what steps read, at least: page tables of 256 sequences of 8,000 tokens.
const BYTES_MIN: usize = 1 << 20;

/// Memory for what steps read beside activations.
#[derive(Debug, Default)]
pub struct Steps {
    metadata: Room,
    turns: Room,
    /// Inverse frequencies of the rotation that was last asked for.
    frequencies: Option<(Rotation, Part)>,
    /// Filled in turns: the step before may still be on its way.
    pinned: Vec<Pinned>,
    next: usize,
}

impl Steps {
    /// Lays out a step and begins to copy it to the device; gives where it will be. Tokens that were
    /// drawn are those of rows `first_drawn ..` before.
    ///
    /// # Errors
    /// The device is full, or failed.
    pub fn send(
        &mut self,
        stream: &mut Stream,
        draft: &Draft<'_>,
        first_drawn: u32,
    ) -> Result<Address, DeviceError> {
        let bytes = 4 * draft.layout.words;
        // Page tables grow with every page, and what was recorded must not move each time.
        let room = bytes.next_power_of_two().max(BYTES_MIN);
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

    /// Computes the turns of a step's positions.
    ///
    /// # Errors
    /// As [`Steps::send`].
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
