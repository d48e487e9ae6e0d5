//! Choice between GEMM implementations for bf16 weights: Redline's own kernels, or one of
//! cuBLASLt's algorithms. Plain data and rules; measured times are passed in by the caller.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::buffer::DType;
use super::driver::{Algorithm, keep};
use crate::Result;
use engine_weights::hex;

/// Largest number of candidate algorithms to request from cuBLASLt for one matrix multiplication.
pub const ALGORITHMS: usize = 8;
/// Share of our own kernels' time that an algorithm of cuBLASLt must stay below to be chosen. A
/// gain of less than 2 % is noise, and our own kernels give the same bits on every start.
const GAIN: f64 = 0.98;

/// Shape of matrix multiplications that share their choices: weights `[n, k]`, and the element type
/// of the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Shape {
    pub n: usize,
    pub k: usize,
    pub result: DType,
}

/// GEMM implementation that computes a matrix multiplication.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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

/// Returns the fastest implementation among our own kernels and cuBLASLt's `algorithms`; an
/// algorithm is considered only if it is more than 2 % faster than our own kernels. `measure`
/// returns the nanoseconds of one matrix multiplication, or `None` if the implementation turns out
/// not to support it.
///
/// # Errors
/// `measure` fails, for another reason than that the implementation does not support the size.
pub fn fastest(
    algorithms: &[Algorithm],
    mut measure: impl FnMut(Way) -> Result<Option<f64>>,
) -> Result<Way> {
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

/// Environment for which measured GEMM choices are valid: a file that was written for another one
/// is ignored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// Name of the GPU as its driver reports it.
    pub gpu: String,
    /// Versions of cuBLASLt and of the CUDA driver.
    pub library: String,
    /// SHA-256 of the sources of Redline's own kernels, in lower-case hex.
    pub kernels: String,
}

/// JSON file of the GEMM choices measured in one environment (GPU, libraries, kernels), for the next
/// start there. Its name is derived from the environment, so that a cache folder holds the files of
/// several GPUs.
#[derive(Debug, Clone)]
pub struct Kept {
    path: PathBuf,
    key: Key,
}

impl Kept {
    pub fn new(folder: &Path, key: Key) -> Self {
        let hash = Sha256::digest(serde_json::to_vec(&key).expect("texts are JSON"));
        Self { path: folder.join(format!("{}.json", &hex(&hash)[..16])), key }
    }

    /// Returns the stored GEMM choices; empty where the file is missing, damaged or of another
    /// environment. The choices are then measured again and the file is overwritten.
    pub fn read(&self) -> Choices {
        let bytes = fs::read(&self.path).unwrap_or_default();
        // The name has only a part of the hash, so the whole key is compared too.
        match serde_json::from_slice::<(Key, Vec<_>)>(&bytes) {
            Ok((key, choices)) if key == self.key => Choices(choices.into_iter().collect()),
            _ => Choices::default(),
        }
    }

    /// Writes the measured GEMM choices to the file. A folder that cannot be written is no error:
    /// the cache only saves time at the next start.
    pub fn write(&self, choices: &Choices) {
        let file = (&self.key, choices.0.iter().collect::<Vec<_>>());
        keep(&self.path, &serde_json::to_vec_pretty(&file).expect("plain values are JSON"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { n: 64, k: 128, result: DType::Bf16 };

    fn algorithm(number: u64) -> Algorithm {
        Algorithm([number; 8])
    }

    /// Test helper: returns the implementation that `fastest` chooses where our own kernels take
    /// `own` nanoseconds and algorithm `i` takes `times[i]`; `None` means that it does not support
    /// the size.
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
        let failed = |_| Err(crate::failed("x", "gone"));
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

    fn key(gpu: &str) -> Key {
        let [gpu, library, kernels] = [gpu, "cuBLASLt 130002", "ab"].map(str::to_owned);
        Key { gpu, library, kernels }
    }

    fn choices() -> Choices {
        let mut choices = Choices::default();
        let shape = Shape { n: 64, k: 128, result: DType::Bf16 };
        choices.set(shape, 8, Way::Own);
        choices.set(shape, 16, Way::Library(Algorithm([1, 2, 3, 4, 5, 6, 7, u64::MAX])));
        choices.set(Shape { result: DType::F32, ..shape }, 16, Way::Library(Algorithm([9; 8])));
        choices
    }

    #[test]
    fn choices_come_back_as_they_were_for_the_same_key_alone() {
        let folder = tempfile::TempDir::new().unwrap();
        let at = folder.path().join("made/when/needed");
        let kept = Kept::new(&at, key("one"));
        assert!(kept.read().is_empty());
        kept.write(&choices());
        assert_eq!(kept.read(), choices());
        assert!(Kept::new(&at, key("two")).read().is_empty());
    }

    #[test]
    fn what_is_not_of_the_key_or_not_whole_counts_as_none() {
        let folder = tempfile::TempDir::new().unwrap();
        let (one, two) =
            (Kept::new(folder.path(), key("one")), Kept::new(folder.path(), key("two")));
        one.write(&choices());
        let whole = fs::read(&one.path).unwrap();
        fs::write(&two.path, &whole).unwrap();
        assert!(two.read().is_empty(), "the file of another");
        for damaged in [&whole[..whole.len() / 2], b"", b"[]", b"{\"choices\": []}"] {
            fs::write(&one.path, damaged).unwrap();
            assert!(one.read().is_empty());
        }
        one.write(&choices());
        assert_eq!(one.read(), choices(), "written anew");
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_no_failure() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let kept = Kept::new(&file.path().join("below"), key("one"));
        kept.write(&choices());
        assert!(kept.read().is_empty());
    }
}
