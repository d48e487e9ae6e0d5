//! Times work on the device by the device's own clock, between two events, without host time in
//! between.

use std::sync::Arc;

use super::driver::{Driver, Event};
use crate::Result;

/// Stopwatch for work on the device: a pair of timed events in the stream.
#[derive(Debug)]
pub struct Stopwatch {
    driver: Arc<dyn Driver>,
    from: Event,
    to: Event,
}

/// Statistics, over several timed runs, of the time of one call of a function on the device, in
/// nanoseconds; a run's time is divided by its number of calls.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Timing {
    /// Median over the timed runs of the time of one call, in nanoseconds, by which speeds are
    /// compared.
    pub median_ns: f64,
    /// Median absolute deviation, over the timed runs, of the time of one call from its median, in
    /// nanoseconds.
    pub mad_ns: f64,
    /// Time of one call in the fastest timed run, in nanoseconds, from which hardware limits are
    /// computed.
    pub least_ns: f64,
    /// Number of timed runs that the statistics are of.
    pub samples: usize,
}

impl Timing {
    /// Computes the statistics of `samples`, the time of one call in each timed run, in
    /// nanoseconds.
    ///
    /// # Panics
    /// `samples` is empty.
    fn of(mut samples: Vec<f64>) -> Self {
        let median_ns = median(&mut samples);
        let least_ns = samples[0];
        let mut deviations: Vec<f64> = samples.iter().map(|x| (x - median_ns).abs()).collect();
        let mad_ns = median(&mut deviations);
        Self { median_ns, mad_ns, least_ns, samples: samples.len() }
    }
}

/// Sorts `samples` and returns their median; with an even number, the mean of the middle two.
fn median(samples: &mut [f64]) -> f64 {
    samples.sort_unstable_by(f64::total_cmp);
    let (half, is_odd) = (samples.len() / 2, samples.len() % 2 == 1);
    if is_odd { samples[half] } else { f64::midpoint(samples[half - 1], samples[half]) }
}

impl Stopwatch {
    /// Creates a stopwatch for work in the driver's stream.
    ///
    /// # Errors
    /// The device reports an error.
    pub fn new(driver: &Arc<dyn Driver>) -> Result<Self> {
        let (from, to) = (driver.timed_event()?, driver.timed_event()?);
        Ok(Self { driver: Arc::clone(driver), from, to })
    }

    /// Times `samples` runs of `work`, which consists of `calls` calls, after a run that warms up,
    /// and returns the statistics of the time of one call. The runs replay a CUDA graph of `work`,
    /// so that no host time is included. Before the capture `work` is called once without it, to
    /// allocate all memory that it needs.
    ///
    /// # Errors
    /// `work` fails, or the device reports an error.
    ///
    /// # Panics
    /// `samples` is 0.
    pub fn time(
        &self,
        calls: usize,
        samples: usize,
        mut work: impl FnMut() -> Result<()>,
    ) -> Result<Timing> {
        let driver = &self.driver;
        work()?;
        driver.wait_all()?;
        driver.begin_capture()?;
        let worked = work();
        // The capture is ended even after an error, since the stream could not be used otherwise.
        let graph = driver.end_capture();
        worked?;
        let graph = graph?;
        let sample = || {
            driver.mark(self.from)?;
            driver.replay(graph)?;
            driver.mark(self.to)?;
            driver.wait(self.to)?;
            Ok(driver.elapsed_ns(self.from, self.to)? / calls as f64)
        };
        let all: Result<Vec<f64>> = (0..=samples).map(|_| sample()).collect();
        driver.release_graph(graph);
        // The first run warms up and does not count.
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
