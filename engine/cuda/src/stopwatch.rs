//! How long the device takes for what it is given, by its own clock.

use std::sync::Arc;

use super::driver::{Driver, Event};
use engine_core::DeviceError;

/// Two marks in the stream.
#[derive(Debug)]
pub struct Stopwatch {
    driver: Arc<dyn Driver>,
    from: Event,
    to: Event,
}

/// Times of one call, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Timing {
    /// The middle one, which counts where speeds are compared.
    pub median_ns: f64,
    /// Median absolute deviation.
    pub mad_ns: f64,
    /// The shortest, which counts where limits are found.
    pub least_ns: f64,
    /// How many times there are.
    pub samples: usize,
}

impl Timing {
    /// What `samples` runs say of one call.
    ///
    /// # Panics
    /// There is no sample.
    fn of(mut samples: Vec<f64>) -> Self {
        let median_ns = median(&mut samples);
        let least_ns = samples[0];
        let mut deviations: Vec<f64> = samples.iter().map(|x| (x - median_ns).abs()).collect();
        let mad_ns = median(&mut deviations);
        Self { median_ns, mad_ns, least_ns, samples: samples.len() }
    }
}

/// Sorts `samples`; the mean of both where two are in the middle.
fn median(samples: &mut [f64]) -> f64 {
    samples.sort_unstable_by(f64::total_cmp);
    let (half, is_odd) = (samples.len() / 2, samples.len() % 2 == 1);
    if is_odd { samples[half] } else { f64::midpoint(samples[half - 1], samples[half]) }
}

impl Stopwatch {
    /// A stopwatch in the driver's stream.
    ///
    /// # Errors
    /// The device failed.
    pub fn new(driver: &Arc<dyn Driver>) -> Result<Self, DeviceError> {
        let (from, to) = (driver.timed_event()?, driver.timed_event()?);
        Ok(Self { driver: Arc::clone(driver), from, to })
    }

    /// Times of one of the `calls` calls that `work` begins, from `samples` runs of all of them after one
    /// that warms up. They are recorded, so that no time of the host's is in between; `work` is first
    /// called without that, and takes all memory that it needs.
    ///
    /// # Errors
    /// As `work`, or the device failed.
    ///
    /// # Panics
    /// There is no sample.
    pub fn time(
        &self,
        calls: usize,
        samples: usize,
        mut work: impl FnMut() -> Result<(), DeviceError>,
    ) -> Result<Timing, DeviceError> {
        let driver = &self.driver;
        work()?;
        driver.wait_all()?;
        driver.begin_record()?;
        let worked = work();
        let record = driver.end_record();
        worked?;
        let record = record?;
        let sample = || {
            driver.mark(self.from)?;
            driver.replay(record)?;
            driver.mark(self.to)?;
            driver.wait(self.to)?;
            Ok(driver.elapsed_ns(self.from, self.to)? / calls as f64)
        };
        let all: Result<Vec<f64>, DeviceError> = (0..=samples).map(|_| sample()).collect();
        driver.release_record(record);
        Ok(Timing::of(all?.split_off(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timing_is_the_middle_of_its_samples_and_how_far_they_are_from_it() {
        let Timing { median_ns, mad_ns, least_ns, samples } =
            Timing::of(vec![5.0, 1.0, 100.0, 3.0, 4.0]);
        assert_eq!((median_ns, mad_ns, least_ns, samples), (4.0, 1.0, 1.0, 5));
        assert_eq!(Timing::of(vec![2.0, 4.0]).median_ns, 3.0);
    }
}
