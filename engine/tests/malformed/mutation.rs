//! Pseudo-random mutations of inputs, the same on every run.

use engine_core::random::{GOLDEN_GAMMA, mix};

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
        self.state = self.state.wrapping_add(GOLDEN_GAMMA);
        (mix(self.state) % below.max(1) as u64) as usize
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
