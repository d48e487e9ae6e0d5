//! The device's one stream: launches, memory that grows to the largest step, and records of decoding
//! steps by their number of rows.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::driver::{Address, Arguments, Driver, Memory, Record};
use super::launch::Launch;
use engine_core::DeviceError;

/// What is known of the steps of one bucket.
#[derive(Debug, Clone, Copy)]
enum Seen {
    /// One ran, so that all memory has its size.
    Once,
    Recorded {
        record: Record,
        logits: Address,
    },
}

/// Memory that grows to the largest step and then stays where it is.
#[derive(Debug, Default)]
pub struct Room(Option<Memory>);

impl Room {
    /// Where it is; nowhere before it was ever used.
    pub fn address(&self) -> Address {
        self.0.as_ref().map_or(Address::NULL, Memory::address)
    }
}

#[derive(Debug)]
pub struct Stream {
    driver: Arc<dyn Driver>,
    /// By number of rows.
    buckets: BTreeMap<usize, Seen>,
    recording: Option<usize>,
}

impl Stream {
    pub fn new(driver: Arc<dyn Driver>) -> Self {
        Self { driver, buckets: BTreeMap::new(), recording: None }
    }

    pub fn driver(&self) -> &Arc<dyn Driver> {
        &self.driver
    }

    /// As `Driver::launch`.
    ///
    /// # Errors
    /// The device failed.
    pub fn launch(
        &self,
        entry: &str,
        launch: Launch,
        arguments: &Arguments,
    ) -> Result<(), DeviceError> {
        self.driver.launch(entry, launch, arguments)
    }

    /// `room` with at least `bytes` bytes, of unspecified content. Where it has to grow it moves, and
    /// what was recorded no longer holds.
    ///
    /// # Errors
    /// The device has not that much memory.
    pub fn room(&mut self, room: &mut Room, bytes: usize) -> Result<Address, DeviceError> {
        match &room.0 {
            Some(memory) if memory.bytes() >= bytes => Ok(memory.address()),
            _ => {
                self.forget()?;
                room.0 = None;
                let memory = room.0.insert(Memory::new(&self.driver, bytes)?);
                Ok(memory.address())
            }
        }
    }

    /// As [`Stream::room`], and keeps the content.
    ///
    /// # Errors
    /// As [`Stream::room`].
    pub fn keeping_room(&mut self, room: &mut Room, bytes: usize) -> Result<Address, DeviceError> {
        if room.0.as_ref().is_none_or(|memory| memory.bytes() < bytes) {
            let mut larger = Room::default();
            let to = self.room(&mut larger, bytes)?;
            if let Some(old) = &room.0 {
                self.driver.copy(to, old.address(), old.bytes())?;
                self.driver.wait_all()?;
            }
            *room = larger;
        }
        Ok(room.address())
    }

    /// Drops all records: what they name is about to move.
    fn forget(&mut self) -> Result<(), DeviceError> {
        if self.recording.is_some() {
            let message = "memory moved while a step was recorded".to_owned();
            return Err(DeviceError { operation: "record", message });
        }
        for seen in std::mem::take(&mut self.buckets).into_values() {
            if let Seen::Recorded { record, .. } = seen {
                self.driver.release_record(record);
            }
        }
        Ok(())
    }

    /// How far the steps of `rows` rows are known: 0 not at all, 1 one ran, 2 one was recorded.
    pub fn known(&self, rows: usize) -> u8 {
        match self.buckets.get(&rows) {
            None => 0,
            Some(Seen::Once) => 1,
            Some(Seen::Recorded { .. }) => 2,
        }
    }

    /// Runs a step of `rows` rows as it was recorded, and says where its logits are. The first such
    /// step is run by its operations, and the second is recorded while they are called. `known` is
    /// [`Stream::known`], or less where others know less.
    ///
    /// # Errors
    /// The device failed.
    pub fn replay(&mut self, rows: usize, known: u8) -> Result<Option<Address>, DeviceError> {
        match self.buckets.get(&rows) {
            Some(Seen::Recorded { record, logits }) if known == 2 => {
                self.driver.replay(*record)?;
                return Ok(Some(*logits));
            }
            Some(Seen::Recorded { record, .. }) => self.driver.release_record(*record),
            _ => {}
        }
        if known == 0 {
            self.buckets.insert(rows, Seen::Once);
        } else {
            self.buckets.remove(&rows);
            self.driver.begin_record()?;
            self.recording = Some(rows);
        }
        Ok(None)
    }

    /// Ends the record of a step, if there is one, and runs it. Its logits are at `logits`.
    ///
    /// # Errors
    /// The device failed.
    pub fn finish(&mut self, logits: Address) -> Result<(), DeviceError> {
        let Some(rows) = self.recording.take() else { return Ok(()) };
        let record = self.driver.end_record()?;
        self.buckets.insert(rows, Seen::Recorded { record, logits });
        self.driver.replay(record)
    }

    /// Memory that records may name has moved: pages, or places for state.
    ///
    /// # Errors
    /// A step is being recorded.
    pub fn moved(&mut self) -> Result<(), DeviceError> {
        self.forget()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let _failed = self.forget();
    }
}

/// The bucket of a decoding step of `rows` rows: 1, 2, 4, then multiples of 8 to 64, of 16 to 256,
/// and of 32.
pub fn bucket(rows: usize) -> usize {
    match rows {
        0..=2 => rows.max(1),
        3..=4 => 4,
        5..=64 => rows.next_multiple_of(8),
        65..=256 => rows.next_multiple_of(16),
        _ => rows.next_multiple_of(32),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_their_rows_and_waste_few() {
        for rows in 1..=1024 {
            let padded = bucket(rows);
            assert!(rows <= padded && bucket(padded) == padded, "{rows}: {padded}");
            assert!(padded - rows < (rows / 4).max(8), "{rows}: {padded}");
        }
        assert_eq!([1, 3, 9, 63, 65, 257].map(bucket), [1, 4, 16, 64, 80, 288]);
    }
}
