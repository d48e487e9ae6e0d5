//! Peak arithmetic and memory rates of the processor (roofline), measured by loops that do nothing
//! else. It must know no kernel of the engine and no model.
//!
//! A peak is a rate that was reached at least once, so the best of several runs counts and not the
//! median. All threads run at once, because they share power, caches and memory.

#![expect(unsafe_code, reason = "loads by pointer; threads write disjoint parts of one buffer")]

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

use super::isa::{DotKernel, Isa, Kernel, PairKernel};
use super::lanes::{Dots, LANES, Lanes, Pairs};
use super::memory::{Aligned, fetch, reserve};
use super::pool::Pool;
use super::shared::Shared;
use engine_core::DeviceError;
use engine_core::clock::Clock;

/// Number of runs of a measurement that last at least [`RUN_SECONDS`]; the fastest of them gives
/// the peak rate.
const RUNS: usize = 6;
/// Smallest duration, in seconds, of a run that counts in a measurement, long enough to make the
/// start of the threads negligible. After a shorter run the number of rounds is doubled.
const RUN_SECONDS: f64 = 0.02;
/// Number of consecutive instructions that add to one accumulator in a measuring loop. The sum of
/// that many of the largest int8 dot products still fits in an i32.
const STEPS: usize = 4096;
/// Number of bytes of the int8 weights of one dot product for 16 columns, which is also the size of
/// a cache line.
const LINE: usize = 64;
/// Number of bytes that each thread reads to measure the memory's read rate, far more than its
/// share of any cache.
const READ_BYTES: usize = 256 << 20;
/// Number of memory streams that a thread reads side by side, so that many cache lines are in
/// flight at once.
const STREAMS: usize = 4;
/// Prefetch distance of each memory stream in bytes.
const AHEAD: usize = 2 << 10;

/// Measures the peak int8 operations per second of `threads` threads together; a multiplication and
/// its addition to an i32 count as two operations. Operands come from the L1 cache, because a tile
/// of sums leaves no registers for them.
pub fn int8_ops_per_s(isa: Isa, threads: usize, clock: Clock) -> f64 {
    peak_rate(threads, clock, |loops| isa.run_dots(loops))
}

/// Measures the peak bf16 operations per second of `threads` threads together; a multiplication and
/// its addition to an f32 count as two operations. Returns none if the instruction set has no bf16
/// dot products.
pub fn bf16_flops_per_s(isa: Isa, threads: usize, clock: Clock) -> Option<f64> {
    isa.has_bf16().then(|| peak_rate(threads, clock, |loops| isa.run_pairs(loops)))
}

/// Measures the peak f32 operations per second of `threads` threads together; a fused multiply-add
/// counts as two operations.
pub fn f32_flops_per_s(isa: Isa, threads: usize, clock: Clock) -> f64 {
    peak_rate(threads, clock, |loops| isa.run(loops))
}

/// Returns the highest rate, in operations per second, that `threads` threads together reached in a
/// [`MeasuringLoop`]. `run` runs the loop for one number type: int8, bf16 or f32.
fn peak_rate(threads: usize, clock: Clock, run: impl Fn(MeasuringLoop<'_>) + Sync) -> f64 {
    best_rate(&mut Pool::new(threads), clock, &|_, rounds| {
        let mut ops = 0;
        run(MeasuringLoop { rounds, ops: &mut ops });
        ops
    })
}

/// Measures the peak rate, in bytes per second, at which `threads` threads together read memory.
///
/// # Errors
/// Returns an error if the system does not reserve the memory to read, or its size overflows.
pub fn read_bytes_per_s(isa: Isa, threads: usize, clock: Clock) -> Result<f64, DeviceError> {
    read_rate(isa, threads, clock, READ_BYTES)
}

/// Measures the peak read rate of memory, in bytes per second, with `bytes` bytes per thread, which
/// must be whole cache lines of every stream.
fn read_rate(isa: Isa, threads: usize, clock: Clock, bytes: usize) -> Result<f64, DeviceError> {
    let mut pool = Pool::new(threads);
    let threads = pool.threads();
    let mut memory = reserve("read", "bytes to read", &[threads, bytes])?;
    let memory = Shared::new(&mut memory[..]);
    // Untouched pages all map to one page of zeros, which stays in the cache, so they are written
    // first. The reading thread itself does it, so that its pages lie on its own memory node.
    // SAFETY: each thread has a part of its own.
    pool.each(&|thread| unsafe { memory.part(thread * bytes, bytes) }.fill(1));
    Ok(best_rate(&mut pool, clock, &|thread, rounds| {
        // SAFETY: nobody writes any more.
        let part = unsafe { memory.view(thread * bytes, bytes) };
        (0..rounds).for_each(|_| isa.run_dots(Reading(black_box(part))));
        (rounds * bytes) as u64
    }))
}

/// Returns the highest rate, in operations or bytes per second, that all threads of `pool` together
/// reached. `work(thread, rounds)` returns the number of operations that it computed or of bytes
/// that it read, which is proportional to `rounds`.
fn best_rate(pool: &mut Pool, clock: Clock, work: &(dyn Fn(usize, usize) -> u64 + Sync)) -> f64 {
    let (mut best, mut rounds, mut runs) = (0.0f64, 1, 0);
    while runs < RUNS {
        let done = AtomicU64::new(0);
        let start = clock.elapsed();
        pool.each(&|thread| {
            done.fetch_add(work(thread, rounds), Ordering::Relaxed);
        });
        let seconds = (clock.elapsed() - start).as_secs_f64();
        if seconds < RUN_SECONDS {
            rounds *= 2;
            continue;
        }
        best = best.max(done.into_inner() as f64 / seconds);
        runs += 1;
    }
    best
}

/// Kernel that measures a peak rate by computations whose accumulators stay in registers. The
/// kernel trait through which it is run decides the number type: int8, bf16 or f32.
struct MeasuringLoop<'a> {
    rounds: usize,
    /// Output of the measuring loop: the number of operations that it computed.
    ops: &'a mut u64,
}

impl DotKernel for MeasuringLoop<'_> {
    /// Runs the measuring loop for int8: dot products in tiles.
    #[inline(always)]
    fn run<D: Dots>(self, dots: D) {
        // So many sums fit in registers next to one vector of weights per group and one row, and
        // they are enough that no instruction waits for its own previous result.
        *self.ops = match <D::Lanes as Lanes>::ACCUMULATORS {
            24.. => int8_dot_rate::<D, 8, 3>(dots, self.rounds),
            _ => int8_dot_rate::<D, 5, 1>(dots, self.rounds),
        };
    }
}

/// Runs [`STEPS`] int8 dot products for each accumulator of a tile of `MR` rows by `NR` groups of
/// 16 columns, `rounds` times. Returns the number of int8 operations.
#[inline(always)]
fn int8_dot_rate<D: Dots, const MR: usize, const NR: usize>(dots: D, rounds: usize) -> u64 {
    let mut weights = Aligned::zeroed(NR * LINE);
    weights.bytes_mut().fill(3);
    let rows = [[-5i8; 4]; MR];
    for _ in 0..rounds {
        let mut sums = [[dots.start(black_box(1)); NR]; MR];
        for _ in 0..STEPS {
            // The compiler must not know the operands, or it would share products or compute them
            // only once.
            let (weights, rows) = black_box((weights.bytes().as_ptr(), &rows));
            // SAFETY: there are as many weights, and a row is four bytes.
            let w: [D::Weights; NR] =
                std::array::from_fn(|g| unsafe { dots.weights(weights.add(g * LINE)) });
            for (sums, row) in sums.iter_mut().zip(rows) {
                // SAFETY: as above.
                let x = unsafe { dots.row(row.as_ptr()) };
                for (sum, w) in sums.iter_mut().zip(&w) {
                    *sum = dots.dot(*sum, *w, x);
                }
            }
        }
        black_box(sums);
    }
    (rounds * STEPS * MR * NR * LINE * 2) as u64
}

impl PairKernel for MeasuringLoop<'_> {
    /// Runs the measuring loop for bf16: dot products in independent chains.
    #[inline(always)]
    fn run<P: Pairs>(self, pairs: P) {
        const CHAINS: usize = 24;
        let lanes = pairs.lanes();
        // Ones, and the smallest normal bf16: the sums stay finite and no operand is zero.
        let (ones, small) = (black_box([0x3f80u16; 2 * LANES]), black_box([0x0080u16; 2]));
        // SAFETY: they are 64 bytes, and two bf16.
        let (w, x) = unsafe { (pairs.weights(ones.as_ptr().cast()), pairs.row(small.as_ptr())) };
        for _ in 0..self.rounds {
            let mut sums: [_; CHAINS] = std::array::from_fn(|i| lanes.splat(black_box(i as f32)));
            for _ in 0..STEPS {
                for sum in &mut sums {
                    *sum = pairs.dot(*sum, w, x);
                }
            }
            black_box(sums);
        }
        *self.ops = (self.rounds * STEPS * CHAINS * LANES * 2 * 2) as u64;
    }
}

impl Kernel for MeasuringLoop<'_> {
    /// Runs the measuring loop for f32: fused multiply-adds in independent chains, so that each
    /// waits only for its predecessor in its own chain.
    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        *self.ops = match L::ACCUMULATORS {
            24.. => float_chains::<L, 24>(lanes, self.rounds),
            _ => float_chains::<L, 6>(lanes, self.rounds),
        };
    }
}

/// Runs [`STEPS`] f32 multiply-adds for each of `CHAINS` vectors, `rounds` times. Returns the
/// number of f32 operations.
#[inline(always)]
fn float_chains<L: Lanes, const CHAINS: usize>(lanes: L, rounds: usize) -> u64 {
    // Each step computes x / 2 + 1, so sums stay finite. Chains start from different values, or the
    // compiler could merge them.
    let (half, one) = (lanes.splat(black_box(0.5)), lanes.splat(black_box(1.0)));
    for _ in 0..rounds {
        let mut sums: [L::V; CHAINS] = std::array::from_fn(|i| lanes.splat(black_box(i as f32)));
        for _ in 0..STEPS {
            for sum in &mut sums {
                *sum = lanes.fma(*sum, half, one);
            }
        }
        black_box(sums);
    }
    (rounds * STEPS * CHAINS * LANES * 2) as u64
}

/// Kernel that reads a range of memory once, in several streams at once, to measure the read rate.
struct Reading<'a>(&'a [u8]);

impl DotKernel for Reading<'_> {
    #[inline(always)]
    fn run<D: Dots>(self, dots: D) {
        let lanes = dots.lanes();
        let mut sums = [lanes.splat(0.0); STREAMS];
        let stream_bytes = self.0.len() / STREAMS;
        for line in (0..stream_bytes).step_by(LINE) {
            for (stream, sum) in sums.iter_mut().enumerate() {
                let from = self.0[stream * stream_bytes + line..][..LINE].as_ptr();
                fetch(from.wrapping_add(AHEAD));
                // SAFETY: the line holds sixteen f32, of any bits.
                *sum = lanes.add(*sum, unsafe { lanes.load(from.cast()) });
            }
        }
        black_box(sums);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_instruction_set_has_positive_finite_limits() {
        let clock = Clock::start();
        for isa in Isa::detected() {
            for threads in [1, 2] {
                let limits = [
                    int8_ops_per_s(isa, threads, clock),
                    bf16_flops_per_s(isa, threads, clock).unwrap_or(1.0),
                    f32_flops_per_s(isa, threads, clock),
                    read_rate(isa, threads, clock, 1 << 20).unwrap(),
                ];
                let are_limits = limits.iter().all(|limit| limit.is_finite() && *limit > 0.0);
                assert!(are_limits, "{} x {threads}: {limits:?}", isa.name());
            }
        }
    }
}
