//! Machine calibration: a short fixed measurement of the processor's memory bandwidth and
//! multiply-add rate on all cores. Run before and after each block, it shows whether the machine
//! stayed the same; compared with earlier calibrations, whether it is the machine it was. It
//! measures no engine.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::path::Path;
use std::thread;
use std::time::Duration;

use judge::quantile::median;
use schema::canonical::sha256_hex;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::clock::Clock;
use crate::files::{read_text, write_whole};
use crate::stop::Stop;

/// Duration of each of the calibration's two measurements.
const MEASURED: Duration = Duration::from_millis(200);
/// Size in bytes of the memory that each core reads repeatedly: larger than any cache's share of
/// one core.
const BYTES_PER_CORE: usize = 32 << 20;
/// Number of independent accumulators of the multiply-add measurement, so that no addition waits
/// for the previous one.
const LANES: usize = 64;
/// Number of multiply-adds per accumulator between two readings of the clock.
const ROUNDS: usize = 20_000;
/// Largest relative difference between a calibrated rate and the median of earlier calibrations
/// that is tolerated; a larger one is reported to the user.
const TOLERANCE: f64 = 0.02;
/// Number of earlier calibrations that are needed to compare a new one with their median; with
/// fewer, nothing is compared.
const HISTORY_MIN: usize = 3;
/// Largest number of calibrations that are kept for a machine; beyond it the oldest are dropped.
const HISTORY_MAX: usize = 64;

/// Result of a machine calibration: two rates.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// Rate of single-precision multiplications and additions in portable code, in 10^9 per second,
    /// over all cores.
    pub gflops: f64,
    /// Memory read bandwidth in 10^9 bytes per second, over all cores.
    pub memory_gbps: f64,
}

/// Runs the machine calibration on `cores` threads. Each rate is the sum over the threads of the
/// best round of each, since other activity on the machine can only slow a round down.
pub fn calibrate(cores: u32, clock: Clock) -> Calibration {
    let sum_of = |one: fn(Clock) -> f64| {
        let rates = thread::scope(|scope| {
            let threads: Vec<_> = (0..cores.max(1)).map(|_| scope.spawn(|| one(clock))).collect();
            threads.into_iter().filter_map(|thread| thread.join().ok()).sum::<f64>()
        });
        rates / 1e9
    };
    Calibration { gflops: sum_of(multiply_add), memory_gbps: sum_of(read_memory) }
}

/// Measures the multiplications and additions of one thread, in operations per second.
#[expect(clippy::cast_precision_loss, reason = "operations of a round are far below 2^53")]
fn multiply_add(clock: Clock) -> f64 {
    let mut lanes = [1.0_f32; LANES];
    // Hidden from the optimizer, which would otherwise compute the loop's result at build time.
    let (factor, term) = (black_box(0.999_f32), black_box(0.001_f32));
    best_rate(clock, (2 * LANES * ROUNDS) as f64, || {
        for _ in 0..ROUNDS {
            for lane in &mut lanes {
                *lane = *lane * factor + term;
            }
        }
        // Keeps the loop, whose result nobody uses.
        black_box(&lanes);
    })
}

/// Measures the memory read bandwidth of one thread, in bytes per second.
#[expect(clippy::cast_precision_loss, reason = "bytes of a round are far below 2^53")]
fn read_memory(clock: Clock) -> f64 {
    let words = vec![1_u64; BYTES_PER_CORE / size_of::<u64>()];
    best_rate(clock, BYTES_PER_CORE as f64, || {
        black_box(words.iter().fold(0_u64, |sum, word| sum.wrapping_add(*word)));
    })
}

/// Repeats `round`, which does `work` operations or reads `work` bytes, for the time [`MEASURED`];
/// returns the highest rate in operations or bytes per second.
fn best_rate(clock: Clock, work: f64, mut round: impl FnMut()) -> f64 {
    let began = clock.elapsed();
    let mut best = 0.0_f64;
    while clock.elapsed() < began + MEASURED {
        let started = clock.elapsed();
        round();
        best = best.max(work / (clock.elapsed() - started).as_secs_f64().max(1e-9));
    }
    best
}

/// Builds the object `calibration` of a record from the calibrations before and after its block.
pub fn facts(before: Calibration, after: Calibration) -> BTreeMap<String, Value> {
    [
        ("gflops_before", before.gflops),
        ("gflops_after", after.gflops),
        ("memory_gbps_before", before.memory_gbps),
        ("memory_gbps_after", after.memory_gbps),
    ]
    .map(|(field, value)| (field.to_owned(), Value::from(value)))
    .into()
}

/// Description of one of a calibration's rates: a phrase for messages, its unit, and the function
/// that returns its value.
type Figure = (&'static str, &'static str, fn(&Calibration) -> f64);

/// A calibrated rate that differs from earlier calibrations of the machine, with a text for the
/// user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unlike {
    pub figure: &'static str,
    pub text: String,
}

/// Earlier calibrations of this machine, kept in the cache under a hash of its host name.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct History {
    #[serde(rename = "probes")]
    pub calibrations: Vec<Calibration>,
}

impl History {
    /// Reads the calibrations kept in `dir` for the machine named `host`; empty if there is no
    /// readable file.
    pub fn read(dir: &Path, host: &str) -> Self {
        let text = read_text(&place(dir, host)).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    }

    /// Returns each rate of `now` that differs from the median of earlier calibrations by more than
    /// the share `TOLERANCE`; none if there are fewer than `HISTORY_MIN` earlier ones.
    pub fn unlike(&self, now: Calibration) -> Vec<Unlike> {
        if self.calibrations.len() < HISTORY_MIN {
            return Vec::new();
        }
        let figures: [Figure; 2] = [
            ("multiplies and adds at", "GFLOP/s", |found| found.gflops),
            ("reads memory at", "GB/s", |found| found.memory_gbps),
        ];
        let mut said = Vec::new();
        for (figure, unit, of) in figures {
            let before: Vec<f64> = self.calibrations.iter().map(of).collect();
            let share = median(&before).map_or(0.0, |usual| of(&now) / usual - 1.0);
            if share.abs() > TOLERANCE {
                let (rate, percent, count) = (of(&now), share * 100.0, self.calibrations.len());
                let text = format!(
                    "this machine {figure} {rate:.1} {unit}, {percent:+.1} % from the median of \
                     {count} earlier calibrations"
                );
                said.push(Unlike { figure, text });
            }
        }
        said
    }

    /// Adds the calibration `now` to the machine's earlier ones, drops the oldest so that at most
    /// 64 remain, and writes these to the machine's file in `dir`.
    ///
    /// # Errors
    /// The folder or the file cannot be written.
    pub fn keep(mut self, now: Calibration, dir: &Path, host: &str) -> Result<(), Stop> {
        self.calibrations.push(now);
        let first = self.calibrations.len().saturating_sub(HISTORY_MAX);
        self.calibrations.drain(..first);
        let text = serde_json::to_string(&self).unwrap_or_default();
        Ok(write_whole(&place(dir, host), text.as_bytes())?)
    }
}

fn place(dir: &Path, host: &str) -> std::path::PathBuf {
    dir.join("nodes").join(format!("{}.json", &sha256_hex(host.as_bytes())[..16]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calibration(gflops: f64, memory_gbps: f64) -> Calibration {
        Calibration { gflops, memory_gbps }
    }

    #[test]
    fn a_calibration_finds_what_every_processor_can_do() {
        let found = calibrate(1, Clock::start());
        assert!(found.gflops > 0.01 && found.memory_gbps > 0.01, "{found:?}");
        let facts = facts(found, found);
        let fields: Vec<&str> = facts.keys().map(String::as_str).collect();
        let both = ["gflops_after", "gflops_before", "memory_gbps_after", "memory_gbps_before"];
        assert_eq!(fields, both);
    }

    #[test]
    fn a_machine_is_compared_with_itself_once_it_is_known() {
        let mut history = History::default();
        for gflops in [100.0, 101.0] {
            history.calibrations.push(calibration(gflops, 10.0));
        }
        assert_eq!(history.unlike(calibration(1.0, 1.0)), [], "two values are no history");
        history.calibrations.push(calibration(99.0, 10.0));
        assert_eq!(history.unlike(calibration(101.9, 9.81)), []);
        let unlike = history.unlike(calibration(97.0, 10.0));
        let said: Vec<&str> = unlike.iter().map(|unlike| unlike.text.as_str()).collect();
        let expected = "this machine multiplies and adds at 97.0 GFLOP/s, -3.0 % from the median of \
                        3 earlier calibrations";
        assert_eq!(said, [expected]);
        assert_eq!(history.unlike(calibration(97.0, 11.0)).len(), 2);
    }

    #[test]
    fn history_is_kept_by_machine_and_does_not_grow_for_ever() {
        let dir = tempfile::tempdir().unwrap();
        for count in 0..70 {
            let history = History::read(dir.path(), "node-1");
            history.keep(calibration(f64::from(count), 1.0), dir.path(), "node-1").unwrap();
        }
        let history = History::read(dir.path(), "node-1");
        assert_eq!(history.calibrations.len(), HISTORY_MAX);
        assert_eq!(history.calibrations.last(), Some(&calibration(69.0, 1.0)));
        assert!(History::read(dir.path(), "node-2").calibrations.is_empty());
        let names = crate::files::files_below(dir.path());
        assert!(names.iter().all(|path| !path.to_string_lossy().contains("node-")), "{names:?}");
    }
}
