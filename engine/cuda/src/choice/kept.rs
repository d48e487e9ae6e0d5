//! Measured choices between GEMM implementations in a JSON file, for the next start on the same GPU
//! with the same libraries.
//!
//! A file that cannot be read, or that was written for another GPU, driver, library or kernel
//! source, is ignored: the choices are measured again and the file is overwritten.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{Choices, Shape, Way};
use crate::buffer::DType;
use crate::driver::{Algorithm, keep};
use engine_weights::hex;

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

/// File that stores the GEMM choices measured in one environment (GPU, libraries, kernels). Its
/// name is derived from the environment, so that a cache folder holds the files of several GPUs.
#[derive(Debug, Clone)]
pub struct Kept {
    path: PathBuf,
    key: Key,
}

/// JSON content of the file of measured GEMM choices.
#[derive(Debug, Serialize, Deserialize)]
struct File {
    #[serde(flatten)]
    key: Key,
    choices: Vec<Choice>,
}

/// JSON form of one measured GEMM choice: the implementation for weights `[n, k]` and a bucket of
/// rows.
#[derive(Debug, Serialize, Deserialize)]
struct Choice {
    n: usize,
    k: usize,
    result: ResultType,
    rows: usize,
    /// cuBLASLt's opaque encoding of the chosen algorithm; `None` means Redline's own kernels.
    algorithm: Option<[u64; 8]>,
}

/// Element type of a matrix multiplication's result as the JSON file writes it, for [`DType`].
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ResultType {
    Bf16,
    F32,
}

impl Kept {
    pub fn new(folder: &Path, key: Key) -> Self {
        let mut hash = Sha256::new();
        for text in [&key.gpu, &key.library, &key.kernels] {
            // The length separates the texts, so that moving a character between them changes the
            // hash.
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text);
        }
        let path = folder.join(format!("{}.json", &hex(&hash.finalize())[..16]));
        Self { path, key }
    }

    /// Returns the stored GEMM choices; empty where the file is missing, damaged or of another
    /// environment.
    pub fn read(&self) -> Choices {
        let file = fs::read(&self.path).ok();
        let file: Option<File> = file.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let mut choices = Choices::default();
        // The name has only a part of the hash, so the whole key is compared too.
        let own = file.filter(|file| file.key == self.key).map_or(Vec::new(), |file| file.choices);
        for Choice { n, k, result, rows, algorithm } in own {
            let result = match result {
                ResultType::Bf16 => DType::Bf16,
                ResultType::F32 => DType::F32,
            };
            let way = algorithm.map_or(Way::Own, |words| Way::Library(Algorithm(words)));
            choices.set(Shape { n, k, result }, rows, way);
        }
        choices
    }

    /// Writes the measured GEMM choices to the file. A folder that cannot be written is no error:
    /// the cache only saves time at the next start.
    pub fn write(&self, choices: &Choices) {
        let one = |((shape, rows), way): (&(Shape, usize), &Way)| Choice {
            n: shape.n,
            k: shape.k,
            result: match shape.result {
                DType::Bf16 => ResultType::Bf16,
                DType::F32 => ResultType::F32,
            },
            rows: *rows,
            algorithm: match way {
                Way::Own => None,
                Way::Library(Algorithm(words)) => Some(*words),
            },
        };
        let file = File { key: self.key.clone(), choices: choices.0.iter().map(one).collect() };
        let text = serde_json::to_vec_pretty(&file).expect("plain values are JSON");
        keep(&self.path, &text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
