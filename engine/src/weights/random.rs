//! Seeded random weights, so that speed at any published shape can be measured without its files.

use std::borrow::Cow;

use half::{bf16, f16};

use super::{TensorData, WeightType};

/// Standard deviation of the initialization that published configurations state.
const DEVIATION: f32 = 0.02;

/// SplitMix64 (Steele, Lea, Flood 2014): a counter through a mixing function.
struct Stream(u64);

impl Stream {
    fn new(seed: u64, name: &str) -> Self {
        // FNV-1a, so that each tensor has its own stream whatever order they are made in.
        let start = 0xcbf2_9ce4_8422_2325 ^ seed;
        Self(name.bytes().fold(start, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in [-1, 1).
    fn uniform(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    }

    fn extend(&mut self, out: &mut Vec<u8>, bytes: usize) {
        let end = out.len() + bytes;
        while out.len() < end {
            let word = self.next().to_le_bytes();
            out.extend_from_slice(&word[..word.len().min(end - out.len())]);
        }
    }
}

/// Random numbers for tensor `name`, but ones for the weights of norms.
pub fn tensor(
    seed: u64,
    name: &str,
    weight_type: WeightType,
    shape: &[usize],
) -> TensorData<'static> {
    let elements: usize = shape.iter().product();
    let is_norm = shape.len() < 2 && name.ends_with("norm.weight");
    let mut stream = Stream::new(seed, name);
    let bound = DEVIATION * 3f32.sqrt();
    let mut number = || if is_norm { 1.0 } else { bound * stream.uniform() };
    let bytes: Vec<u8> = match weight_type {
        WeightType::F32 => (0..elements).flat_map(|_| number().to_le_bytes()).collect(),
        WeightType::F16 => {
            (0..elements).flat_map(|_| f16::from_f32(number()).to_le_bytes()).collect()
        }
        WeightType::Bf16 => {
            (0..elements).flat_map(|_| bf16::from_f32(number()).to_le_bytes()).collect()
        }
        WeightType::Q4_1 => blocks(&mut stream, elements / 32, &[2.0 * bound / 15.0, -bound], 16),
        WeightType::Q8_0 => blocks(&mut stream, elements / 32, &[bound / 127.0], 32),
    };
    TensorData { weight_type, shape: shape.to_vec(), bytes: Cow::Owned(bytes) }
}

/// Random bytes for tensor `name`.
pub fn bytes(seed: u64, name: &str, count: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(count);
    Stream::new(seed, name).extend(&mut out, count);
    out
}

/// `count` blocks of the same f16 `heads` and random code bytes.
fn blocks(stream: &mut Stream, count: usize, heads: &[f32], code_bytes: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(count * (2 * heads.len() + code_bytes));
    for _ in 0..count {
        for head in heads {
            out.extend_from_slice(&f16::from_f32(*head).to_le_bytes());
        }
        stream.extend(&mut out, code_bytes);
    }
    out
}
