//! Pseudo-random mutations of inputs, the same on every run, for tests that run the fuzz targets
//! without a fuzzer.

use std::fs;
use std::path::{Path, PathBuf};

/// Extreme numbers, which lengths, counts and offsets must be checked against.
const EXTREMES: [u64; 8] = [0, 1, 255, 1 << 31, (1 << 32) + 1, 1 << 62, u64::MAX - 31, u64::MAX];

/// Generator of mutations of one input; each call starts from the original.
pub struct Mutations {
    /// State of the random number generator.
    state: u64,
    original: Vec<u8>,
    changed: Vec<u8>,
}

impl Mutations {
    pub fn new(seed: u64, original: Vec<u8>) -> Self {
        Self { state: seed, changed: original.clone(), original }
    }

    fn number(&mut self, below: usize) -> usize {
        // SplitMix64 (Steele, Lea and Flood, 2014).
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % below.max(1) as u64) as usize
    }

    /// Returns the input with one to three changes.
    pub fn next(&mut self) -> &[u8] {
        self.changed.clone_from(&self.original);
        for _ in 0..=self.number(3) {
            self.change();
        }
        &self.changed
    }

    fn change(&mut self) {
        let len = self.changed.len();
        let at = self.number(len);
        let run = self.number(16).min(len - at);
        match self.number(6) {
            0 if len > 0 => self.changed[at] ^= 1 << self.number(8),
            1 if len > 0 => self.changed[at] = self.number(256) as u8,
            2 => {
                let extreme = EXTREMES[self.number(EXTREMES.len())].to_le_bytes();
                let end = len.min(at + 8);
                self.changed[at..end].copy_from_slice(&extreme[..end - at]);
            }
            3 => drop(self.changed.drain(at..at + run)),
            4 => {
                let copy = self.changed[at..at + run].to_vec();
                let to = self.number(len);
                self.changed.splice(to..to, copy);
            }
            _ => self.changed.truncate(at),
        }
    }
}

/// Returns the files in `folder`, sorted by name.
pub fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder of inputs");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    paths
}

/// Runs the fuzz target `run` over the files `paths`, and over `count` mutations of each.
pub fn run_mutated(paths: &[PathBuf], run: fn(&[u8]), count: usize) {
    run_mutated_by(0, paths, run, count);
}

/// Does what [`run_mutated`] does, whose mutations are those of seed 0.
pub fn run_mutated_by(seed: u64, paths: &[PathBuf], run: fn(&[u8]), count: usize) {
    assert!(paths.len() >= 3, "{} inputs", paths.len());
    let first = 1 + seed * paths.len() as u64;
    for (seed, path) in (first..).zip(paths) {
        let input = fs::read(path).expect("readable");
        run(&input);
        let mut mutations = Mutations::new(seed, input);
        for _ in 0..count {
            run(mutations.next());
        }
    }
}
