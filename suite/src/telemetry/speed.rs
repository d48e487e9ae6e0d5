//! Speed of the machine right before a slice: memory bandwidth and clock of its cores, from a
//! measurement of a few milliseconds. It explains part of what neighbors do to the slice.

use std::hint::black_box;
use std::thread;

use crate::clock::monotonic_ns;

/// Size of the memory that each core reads in a measurement, in bytes: larger than a second-level
/// cache, so that the read shows the bandwidth that neighbors share.
const BYTES: usize = 8 << 20;
/// Number of multiplications in a measurement, each of which waits for the one before.
const CHAIN: u32 = 300_000;

/// Measurement of the machine's speed, with the memory that it reads.
#[derive(Debug)]
pub struct SpeedProbe {
    /// One buffer for each core.
    buffers: Vec<Vec<u64>>,
}

/// Speed of the machine at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed {
    /// Memory bandwidth over all cores, in megabytes (10^6) per second.
    pub memory_mb_per_s: u64,
    /// Dependent multiplications per microsecond, mean over the cores. It is proportional to the
    /// cores' clock, and falls where a core is shared.
    pub multiplications_per_us: f64,
}

impl SpeedProbe {
    /// Returns a probe for `cores` cores; the memory is in place before the first measurement.
    pub fn new(cores: usize) -> Self {
        Self { buffers: vec![vec![1; BYTES / size_of::<u64>()]; cores.max(1)] }
    }

    /// Measures on all cores at once, in a few milliseconds.
    pub fn measure(&self) -> Speed {
        let found: Vec<(f64, f64)> = thread::scope(|scope| {
            let threads: Vec<_> =
                self.buffers.iter().map(|buffer| scope.spawn(|| (read(buffer), chain()))).collect();
            threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
        });
        let cores = found.len().max(1);
        let memory: f64 = found.iter().map(|(memory, _)| memory).sum();
        let chain: f64 = found.iter().map(|(_, chain)| chain).sum();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a machine reads less than 2^53 megabytes per second and has few cores"
        )]
        Speed { memory_mb_per_s: memory as u64, multiplications_per_us: chain / cores as f64 }
    }
}

/// Reads a buffer once; returns the bandwidth in bytes per microsecond, which are megabytes per
/// second.
#[expect(clippy::cast_precision_loss, reason = "a buffer has a few megabytes")]
fn read(buffer: &[u64]) -> f64 {
    let start_ns = monotonic_ns();
    black_box(buffer.iter().fold(0_u64, |sum, word| sum.wrapping_add(*word)));
    size_of_val(buffer) as f64 * 1e3 / elapsed_ns(start_ns)
}

/// Returns the rate of multiplications that wait for one another, per microsecond.
fn chain() -> f64 {
    let start_ns = monotonic_ns();
    let factor = black_box(0x9e37_79b9_7f4a_7c15_u64);
    let mut value = black_box(1_u64);
    for _ in 0..CHAIN {
        // The shift keeps the compiler from computing several steps at once.
        value = value.wrapping_mul(factor) ^ (value >> 29);
    }
    black_box(value);
    f64::from(CHAIN) * 1e3 / elapsed_ns(start_ns)
}

#[expect(clippy::cast_precision_loss, reason = "a measurement takes a few milliseconds")]
fn elapsed_ns(start_ns: u64) -> f64 {
    (monotonic_ns() - start_ns).max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_processor_reads_and_multiplies() {
        let found = SpeedProbe::new(2).measure();
        assert!(found.memory_mb_per_s > 10, "{found:?}");
        // Three cycles each at the least, on a clock of at most 10 GHz.
        let rate = found.multiplications_per_us;
        assert!(rate > 1.0 && rate < 10_000.0 / 3.0, "{found:?}");
    }
}
