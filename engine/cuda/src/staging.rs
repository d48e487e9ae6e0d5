//! Upload of weights to the device through pinned memory in two halves: one is filled while the
//! other is copied.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread;

use super::driver::{Address, Driver, Event, Pinned};
use crate::Result;

/// Size in bytes of each half of the double buffer for uploads: large enough to hide the start-up
/// time of a transfer, and small compared with a model.
const HALF_BYTES: usize = 16 << 20;

/// Number of bytes per thread below which an upload is not divided among more threads.
const THREAD_BYTES: usize = 1 << 20;

/// Double buffer of pinned host memory for uploads.
#[derive(Debug)]
pub struct Staging {
    driver: Arc<dyn Driver>,
    /// Pinned memory of each half of the double buffer, with the event after its last copy.
    halves: Vec<(Pinned, Event)>,
    /// Index of the half of the double buffer that was used last.
    next: usize,
}

impl Staging {
    /// Creates a double buffer for uploads; its memory is allocated at first use.
    pub fn new(driver: Arc<dyn Driver>) -> Self {
        Self { driver, halves: Vec::new(), next: 0 }
    }

    /// Copies `rows` rows of `row_bytes` bytes each to the device address `to`; `fill` writes the
    /// bytes of a row, on all processors if there are many bytes. The copies may still be running when
    /// this returns.
    ///
    /// # Errors
    /// Memory cannot be allocated, or the device reports an error.
    pub fn send(
        &mut self,
        to: Address,
        rows: usize,
        row_bytes: usize,
        fill: impl Fn(usize, &mut [u8]) + Sync,
    ) -> Result<()> {
        let rows_of_half = (HALF_BYTES / row_bytes.max(1)).max(1);
        for first in (0..rows).step_by(rows_of_half) {
            let count = rows_of_half.min(rows - first);
            let bytes = count * row_bytes;
            let (half, event) = self.half(bytes)?;
            fill_rows(&mut half.bytes_mut()[..bytes], row_bytes, |row, out| fill(first + row, out));
            half.upload(to.plus(first * row_bytes), bytes)?;
            let event = *event;
            self.driver.mark(event)?;
        }
        Ok(())
    }

    /// Copies f32 values to the device address `to`.
    ///
    /// # Errors
    /// Memory cannot be allocated, or the device reports an error.
    pub fn send_f32(&mut self, to: Address, values: &[f32]) -> Result<()> {
        self.send(to, values.len(), size_of::<f32>(), |i, out| {
            out.copy_from_slice(&values[i].to_le_bytes());
        })
    }

    /// Returns a half of the double buffer for the next copy, with space for at least `bytes`
    /// bytes: one not used yet, else the one used longer ago, after a wait for the end of its last
    /// copy.
    fn half(&mut self, bytes: usize) -> Result<&mut (Pinned, Event)> {
        if self.halves.len() < 2 {
            let pinned = Pinned::new(&self.driver, HALF_BYTES)?;
            self.halves.push((pinned, self.driver.event()?));
            self.next = self.halves.len() - 1;
        } else {
            self.next = 1 - self.next;
            // The half may be overwritten only after its last copy has ended.
            self.driver.wait(self.halves[self.next].1)?;
        }
        let half = &mut self.halves[self.next];
        if half.0.size() < bytes {
            half.0 = Pinned::new(&self.driver, bytes)?;
        }
        Ok(half)
    }
}

/// Calls `fill` for each row of `row_bytes` bytes in `out`, on as many threads as are worth their
/// start.
fn fill_rows(out: &mut [u8], row_bytes: usize, fill: impl Fn(usize, &mut [u8]) + Sync) {
    let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let part = out.len().div_ceil(threads).max(THREAD_BYTES).next_multiple_of(row_bytes.max(1));
    let fill = &fill;
    thread::scope(|scope| {
        let mut parts = out.chunks_mut(part).enumerate().map(|(i, out)| {
            let first = i * part / row_bytes;
            move || {
                out.chunks_exact_mut(row_bytes)
                    .enumerate()
                    .for_each(|(i, out)| fill(first + i, out));
            }
        });
        let own = parts.next();
        parts.for_each(|part| {
            scope.spawn(part);
        });
        if let Some(mut own) = own {
            own();
        }
    });
}
