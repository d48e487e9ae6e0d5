//! CUDA stream of the device: kernel launches, growable buffers, and CUDA graph capture and replay
//! of decoding steps by their padded number of rows (bucket).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::driver::{Address, Arguments, CudaGraph, Driver, Memory};
use super::launch::Launch;
use crate::{Result, failed};

/// State of the CUDA graph of one bucket (padded number of rows): a step ran, or a step was
/// captured and can be replayed.
#[derive(Debug, Clone, Copy)]
enum Seen {
    /// One step of the bucket ran without capture, so that all buffers have their size.
    Once,
    Captured {
        graph: CudaGraph,
        logits: Address,
    },
}

/// Growable buffer in device memory: it grows to the size that the largest step needs and then
/// stays at its address.
#[derive(Debug, Default)]
pub struct GrowableBuffer(Option<Memory>);

impl GrowableBuffer {
    /// Returns the device address of the buffer; null before its first use.
    pub fn address(&self) -> Address {
        self.0.as_ref().map_or(Address::NULL, Memory::address)
    }
}

/// Stream of one device, with the captured CUDA graphs of its decoding steps.
#[derive(Debug)]
pub struct Stream {
    /// Driver in whose stream all work of the device runs.
    pub driver: Arc<dyn Driver>,
    /// State of each CUDA graph, by the padded number of rows (bucket).
    buckets: BTreeMap<usize, Seen>,
    /// Padded number of rows of the step that is being captured now; `None` outside a capture.
    capturing: Option<usize>,
}

impl Stream {
    /// Creates a stream without any captured CUDA graph.
    pub fn new(driver: Arc<dyn Driver>) -> Self {
        Self { driver, buckets: BTreeMap::new(), capturing: None }
    }

    /// Launches the kernel of the name `entry` in the stream, as [`Driver::launch`] does.
    ///
    /// # Errors
    /// No kernel has that name, or the device reports an error.
    pub fn launch(&self, entry: &str, launch: Launch, arguments: &Arguments) -> Result<()> {
        self.driver.launch(entry, launch, arguments)
    }

    /// Grows a buffer to at least `bytes` bytes, of unspecified content, and returns its address.
    /// Growing moves the buffer, so all captured CUDA graphs are released.
    ///
    /// # Errors
    /// The device does not have enough memory or reports an error, or the buffer would move during
    /// a capture.
    pub fn grow(&mut self, room: &mut GrowableBuffer, bytes: usize) -> Result<Address> {
        match &room.0 {
            Some(memory) if memory.bytes() >= bytes => Ok(memory.address()),
            _ => {
                self.forget()?;
                // Released first, so that old and new memory need not fit at the same time.
                room.0 = None;
                let memory = room.0.insert(Memory::new(&self.driver, bytes)?);
                Ok(memory.address())
            }
        }
    }

    /// Grows a buffer as [`Stream::grow`] does, and keeps its content.
    ///
    /// # Errors
    /// The device does not have enough memory or reports an error, or the buffer would move during
    /// a capture.
    pub fn grow_keeping(&mut self, room: &mut GrowableBuffer, bytes: usize) -> Result<Address> {
        if room.0.as_ref().is_none_or(|memory| memory.bytes() < bytes) {
            let mut larger = GrowableBuffer::default();
            let to = self.grow(&mut larger, bytes)?;
            if let Some(old) = &room.0 {
                self.driver.copy(to, old.address(), old.bytes())?;
                self.driver.wait_all()?;
            }
            *room = larger;
        }
        Ok(room.address())
    }

    /// Releases all captured CUDA graphs and forgets which buckets ran, as is needed before memory
    /// that the graphs name moves.
    ///
    /// # Errors
    /// A step is being captured.
    pub fn forget(&mut self) -> Result<()> {
        if self.capturing.is_some() {
            return Err(failed("capture", "memory moved during CUDA graph capture"));
        }
        for seen in std::mem::take(&mut self.buckets).into_values() {
            if let Seen::Captured { graph, .. } = seen {
                self.driver.release_graph(graph);
            }
        }
        Ok(())
    }

    /// Returns the state of the CUDA graph for `rows` rows as a number that ranks can compare: 0 no
    /// step ran since the graphs were last released, 1 one ran, 2 one was captured.
    pub fn known(&self, rows: usize) -> u8 {
        match self.buckets.get(&rows) {
            None => 0,
            Some(Seen::Once) => 1,
            Some(Seen::Captured { .. }) => 2,
        }
    }

    /// Replays the CUDA graph for `rows` rows and returns the address of its logits. The first step
    /// of a bucket is launched kernel by kernel, and the second is captured while its operations
    /// are called; both return `None`. `known` is [`Stream::known`], or less where another rank's
    /// state is less.
    ///
    /// # Errors
    /// The device reports an error.
    pub fn replay(&mut self, rows: usize, known: u8) -> Result<Option<Address>> {
        match self.buckets.get(&rows) {
            Some(Seen::Captured { graph, logits }) if known == 2 => {
                self.driver.replay(*graph)?;
                return Ok(Some(*logits));
            }
            // Another rank has to capture again, so this rank captures with it.
            Some(Seen::Captured { graph, .. }) => self.driver.release_graph(*graph),
            _ => {}
        }
        if known == 0 {
            self.buckets.insert(rows, Seen::Once);
        } else {
            self.buckets.remove(&rows);
            self.driver.begin_capture()?;
            self.capturing = Some(rows);
        }
        Ok(None)
    }

    /// Ends the capture of a step, if one is in progress, and replays it once, since a capture
    /// executes nothing. The step's logits are at `logits`.
    ///
    /// # Errors
    /// The device reports an error.
    pub fn finish(&mut self, logits: Address) -> Result<()> {
        let Some(rows) = self.capturing.take() else { return Ok(()) };
        let graph = self.driver.end_capture()?;
        self.buckets.insert(rows, Seen::Captured { graph, logits });
        self.driver.replay(graph)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let _failed = self.forget();
    }
}

/// Returns the CUDA graph bucket of a decoding step: the number of rows to which its `rows` rows
/// are padded, 1, 2, 4, then multiples of 8 up to 64, of 16 up to 256, and of 32.
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
