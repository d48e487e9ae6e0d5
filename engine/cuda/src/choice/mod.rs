//! Choice between GEMM implementations for bf16 weights: Redline's own kernels, or one of
//! cuBLASLt's algorithms. Plain data and rules; measured times are passed in by the caller.

mod kept;

use std::collections::BTreeMap;

pub use kept::{Kept, Key};

use super::buffer::DType;
use super::driver::Algorithm;
use engine_core::DeviceError;

/// Number of candidate algorithms to request from cuBLASLt for one matrix multiplication.
pub const ALGORITHMS: usize = 8;
/// Share of our own kernels' time that an algorithm of cuBLASLt must stay below to be chosen. A
/// gain of less than 2 % is noise, and our own kernels give the same bits on every start.
const GAIN: f64 = 0.98;

/// Shape of matrix multiplications that share their choices: weights `[n, k]`, and the element type
/// of the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shape {
    pub n: usize,
    pub k: usize,
    pub result: DType,
}

/// GEMM implementation that computes a matrix multiplication.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Redline's own matrix multiplication kernels.
    Own,
    /// An algorithm of NVIDIA's GEMM library cuBLASLt.
    Library(Algorithm),
}

/// Returns the bucket of a number of rows: the next power of two. All row counts of a bucket share
/// one choice.
pub fn row_bucket(rows: usize) -> usize {
    rows.next_power_of_two()
}

/// Returns the buckets of all numbers of rows from 1 to `rows`.
pub fn row_buckets(rows: usize) -> impl Iterator<Item = usize> {
    (0..=row_bucket(rows).ilog2()).map(|power| 1 << power)
}

/// Measured GEMM choices: for each weight shape and bucket of rows, the fastest implementation.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Choices(BTreeMap<(Shape, usize), Way>);

impl Choices {
    /// Returns the GEMM implementation for `rows` rows, or `None` if their bucket was not measured.
    pub fn way(&self, shape: Shape, rows: usize) -> Option<Way> {
        self.0.get(&(shape, row_bucket(rows))).copied()
    }

    /// Sets the GEMM implementation for all numbers of rows of a bucket.
    pub fn set(&mut self, shape: Shape, bucket: usize, way: Way) {
        self.0.insert((shape, bucket), way);
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns true if at least one measured choice is an algorithm of cuBLASLt.
    pub fn need_library(&self) -> bool {
        self.0.values().any(|way| *way != Way::Own)
    }
}

/// Returns the fastest of our own kernels and cuBLASLt's `algorithms`. `measure` returns the
/// nanoseconds of one matrix multiplication, or `None` if the implementation turns out not to
/// support it.
///
/// # Errors
/// A measurement fails for another reason than that the implementation does not support the size.
pub fn fastest(
    algorithms: &[Algorithm],
    mut measure: impl FnMut(Way) -> Result<Option<f64>, DeviceError>,
) -> Result<Way, DeviceError> {
    let own = measure(Way::Own)?.unwrap_or(f64::INFINITY);
    // Only our own kernels get the bonus; among the algorithms the fastest wins.
    let mut best = (Way::Own, own * GAIN);
    for algorithm in algorithms {
        let way = Way::Library(*algorithm);
        if let Some(ns) = measure(way)?.filter(|ns| *ns < best.1) {
            best = (way, ns);
        }
    }
    Ok(best.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { n: 64, k: 128, result: DType::Bf16 };

    fn algorithm(number: u64) -> Algorithm {
        Algorithm([number; 8])
    }

    /// Returns the implementation that is chosen where our own kernels take `own` nanoseconds and
    /// the library's algorithms take `times`.
    fn chosen(own: f64, times: &[Option<f64>]) -> Way {
        let algorithms: Vec<_> = (0..times.len()).map(|i| algorithm(i as u64)).collect();
        let measure = |way| match way {
            Way::Own => Ok(Some(own)),
            Way::Library(Algorithm(words)) => Ok(times[words[0] as usize]),
        };
        fastest(&algorithms, measure).unwrap()
    }

    #[test]
    fn the_fastest_is_chosen_and_ours_where_it_is_as_fast() {
        assert_eq!(chosen(100.0, &[]), Way::Own);
        let library = |i| Way::Library(algorithm(i));
        assert_eq!(chosen(100.0, &[Some(120.0), Some(90.0), Some(80.0), Some(85.0)]), library(2));
        assert_eq!(chosen(100.0, &[Some(99.0)]), Way::Own, "noise");
        assert_eq!(chosen(100.0, &[None, Some(97.0), None]), library(1), "what fails is left out");
    }

    #[test]
    fn a_failure_to_measure_is_told() {
        let failed = |_| Err(DeviceError { operation: "x", message: "gone".to_owned() });
        assert!(fastest(&[], failed).is_err());
    }

    #[test]
    fn rows_have_the_way_of_their_bucket() {
        let mut choices = Choices::default();
        choices.set(SHAPE, 64, Way::Library(algorithm(5)));
        choices.set(SHAPE, 128, Way::Own);
        let way = |rows| choices.way(SHAPE, rows);
        assert_eq!(
            [33, 64, 65, 128].map(way),
            [64, 64, 128, 128].map(|bucket| choices.way(SHAPE, bucket))
        );
        assert_eq!([way(32), way(129)], [None, None], "nobody measured them");
        assert_eq!(choices.way(Shape { result: DType::F32, ..SHAPE }, 64), None);
        assert!(choices.need_library());
    }

    #[test]
    fn buckets_reach_as_far_as_their_rows() {
        assert_eq!(row_buckets(1).collect::<Vec<_>>(), [1]);
        assert_eq!(row_buckets(17).collect::<Vec<_>>(), [1, 2, 4, 8, 16, 32]);
        for rows in 1..=1000 {
            assert!(row_buckets(rows).any(|bucket| bucket == row_bucket(rows)));
        }
    }
}
