//! The way of weights to the device: through pinned memory, filled while the last is copied.

use std::sync::Arc;

use super::driver::{Address, Driver, Event, Pinned};
use engine_core::DeviceError;

/// Bytes of each half: more than a transfer has to begin with, and little beside a model.
const HALF_BYTES: usize = 16 << 20;

/// Two halves of pinned memory that take turns.
#[derive(Debug)]
pub struct Staging {
    driver: Arc<dyn Driver>,
    halves: Vec<(Pinned, Event)>,
    next: usize,
}

impl Staging {
    pub fn new(driver: Arc<dyn Driver>) -> Self {
        Self { driver, halves: Vec::new(), next: 0 }
    }

    /// Copies `rows` rows of `row_bytes` bytes to `to`, each as `fill` makes it. They are on their
    /// way when this returns.
    ///
    /// # Errors
    /// The device failed.
    pub fn send(
        &mut self,
        to: Address,
        rows: usize,
        row_bytes: usize,
        mut fill: impl FnMut(usize, &mut [u8]),
    ) -> Result<(), DeviceError> {
        let rows_of_half = (HALF_BYTES / row_bytes.max(1)).max(1);
        for first in (0..rows).step_by(rows_of_half) {
            let count = rows_of_half.min(rows - first);
            let bytes = count * row_bytes;
            let (half, event) = self.half(bytes)?;
            for (row, out) in half.bytes_mut()[..bytes].chunks_exact_mut(row_bytes).enumerate() {
                fill(first + row, out);
            }
            half.upload(to.plus(first * row_bytes), bytes)?;
            let event = *event;
            self.driver.mark(event)?;
        }
        Ok(())
    }

    /// Copies f32 to `to`.
    ///
    /// # Errors
    /// The device failed.
    pub fn send_f32(&mut self, to: Address, values: &[f32]) -> Result<(), DeviceError> {
        self.send(to, values.len(), size_of::<f32>(), |i, out| {
            out.copy_from_slice(&values[i].to_le_bytes());
        })
    }

    /// The half that has waited longer, once its copy has ended, with room for `bytes`.
    fn half(&mut self, bytes: usize) -> Result<&mut (Pinned, Event), DeviceError> {
        if self.halves.len() < 2 {
            let pinned = Pinned::new(&self.driver, HALF_BYTES)?;
            self.halves.push((pinned, self.driver.event()?));
            self.next = self.halves.len() - 1;
        } else {
            self.next = 1 - self.next;
            self.driver.wait(self.halves[self.next].1)?;
        }
        let half = &mut self.halves[self.next];
        if half.0.size() < bytes {
            half.0 = Pinned::new(&self.driver, bytes)?;
        }
        Ok(half)
    }
}
