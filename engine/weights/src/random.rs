//! Pseudo-random weights from a seed, to measure the speed of models in any published shape without
//! their weight files.

use std::borrow::Cow;
use std::num::NonZeroUsize;
use std::thread;

use half::{bf16, f16};

use super::TensorData;
use engine_core::WeightType;
use engine_core::random::{GOLDEN_GAMMA, mix};

/// Standard deviation of random weights: that of the initialization in published configurations.
const DEVIATION: f32 = 0.02;
/// Ratio of a uniform distribution's half width to its standard deviation.
const SQRT_3: f32 = 1.732_050_8;

/// Factor that turns uniform random numbers in [-1, 1) into the weights of a bf16 tensor.
pub const BF16_FACTOR: f32 = DEVIATION * SQRT_3;

/// Larger of the two scales of the blocks of an MXFP4 tensor: 2^-7, as an exponent with bias 127.
/// The smaller one is half of it. They yield a standard deviation of 0.023.
pub const MXFP4_SCALE: u8 = 120;

/// Returns the start of the pseudo-random stream of tensor `name`, from which the host or a device
/// generates its weights.
pub fn stream_start(seed: u64, name: &str) -> u64 {
    // FNV-1a of the name gives each tensor its own stream, whatever the order of generation.
    let start = 0xcbf2_9ce4_8422_2325 ^ seed;
    name.bytes().fold(start, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3))
}

/// Pseudo-random stream of a tensor's weights (SplitMix64); holds the counter.
struct Stream(u64);

impl Stream {
    fn new(seed: u64, name: &str) -> Self {
        Self(stream_start(seed, name))
    }

    /// Returns a copy of the stream that skips `words` 64-bit words, at constant cost.
    fn after(&self, words: usize) -> Self {
        Self(self.0.wrapping_add(GOLDEN_GAMMA.wrapping_mul(words as u64)))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN_GAMMA);
        mix(self.0)
    }

    /// Returns the stream's next random number, uniform in [-1, 1).
    fn uniform(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    }

    /// Returns four random numbers, uniform in [-1, 1), from one word of the stream: 16 bits each,
    /// more precise than a bf16 can hold.
    fn four(&mut self) -> [f32; 4] {
        let word = self.next();
        std::array::from_fn(|i| f32::from((word >> (16 * i)) as i16) / 32768.0)
    }

    /// Fills `out` with the bytes of the stream's words.
    fn fill(&mut self, out: &mut [u8]) {
        for out in out.chunks_mut(8) {
            let word = self.next().to_le_bytes();
            out.copy_from_slice(&word[..out.len()]);
        }
    }

    /// Fills `out` with E4M3 floats, four from each word of the stream.
    fn fill_e4m3(&mut self, out: &mut [u8]) {
        for out in out.chunks_exact_mut(4) {
            for (x, out) in self.four().into_iter().zip(out) {
                let magnitude = (x.abs() * 17.0) as u8;
                *out = if x < 0.0 { magnitude | 0x80 } else { magnitude };
            }
        }
    }
}

/// Returns true if the system grants the memory of a random tensor of this type and shape; it is
/// reserved for the check and freed at once. Shapes come from a configuration that may be wrong or
/// hostile.
pub(super) fn has_room(weight_type: WeightType, shape: &[usize]) -> bool {
    let elements = shape.iter().try_fold(1usize, |n, size| n.checked_mul(*size));
    let bytes = elements.and_then(|n| n.checked_mul(weight_type.block_bytes()));
    // The reservation is freed at once and was never touched, so it costs nothing.
    bytes.is_some_and(|n| Vec::<u8>::new().try_reserve_exact(n / weight_type.block()).is_ok())
}

/// Generates the random tensor `name` of this type and shape. Norm weights are ones; biases and
/// matrices have a standard deviation of about 0.02.
pub fn tensor(
    seed: u64,
    name: &str,
    weight_type: WeightType,
    shape: &[usize],
) -> TensorData<'static> {
    let elements: usize = shape.iter().product();
    let is_float = weight_type.block() == 1;
    // Norm weights of ones keep the activations of deep random models in a normal range.
    let is_scale = shape.len() < 2 && is_float && name.ends_with("norm.weight");
    let stream = &mut Stream::new(seed, name);
    let bytes = if is_scale {
        floats(weight_type, elements, || 1.0)
    } else {
        match weight_type {
            WeightType::F32 | WeightType::F16 => {
                floats(weight_type, elements, || DEVIATION * SQRT_3 * stream.uniform())
            }
            WeightType::Bf16 => bf16s(stream, elements),
            _ => blocks(stream, weight_type, elements / weight_type.block()),
        }
    };
    TensorData { weight_type, shape: shape.to_vec(), bytes: Cow::Owned(bytes) }
}

/// Builds a random tensor of a float type with `elements` elements, calling `number` for each of
/// them, and returns its bytes.
///
/// # Panics
/// Panics if the type is not a float type; the weights of norms always have a float type.
fn floats(weight_type: WeightType, elements: usize, mut number: impl FnMut() -> f32) -> Vec<u8> {
    let numbers = (0..elements).map(|_| number());
    match weight_type {
        WeightType::F32 => numbers.flat_map(f32::to_le_bytes).collect(),
        WeightType::F16 => numbers.flat_map(|x| f16::from_f32(x).to_le_bytes()).collect(),
        WeightType::Bf16 => numbers.flat_map(|x| bf16::from_f32(x).to_le_bytes()).collect(),
        _ => panic!("the scales of a norm are not stored as {}", weight_type.name()),
    }
}

/// Smallest number of bytes of a random tensor for which starting another thread is worthwhile.
const THREAD_BYTES: usize = 1 << 20;

/// Generates a random bf16 tensor on all processors, four weights per word of the stream.
fn bf16s(stream: &Stream, elements: usize) -> Vec<u8> {
    let mut out = vec![0; 2 * elements.next_multiple_of(4)];
    on_all_processors(stream, &mut out, [8, 1], fill_bf16);
    out.truncate(2 * elements);
    out
}

/// Fills `out` with `fill` on all processors: threads can start at any word of the stream. A piece of
/// `piece` bytes takes `words` words. Whole models may have billions of weights.
fn on_all_processors(
    stream: &Stream,
    out: &mut [u8],
    [piece, words]: [usize; 2],
    fill: impl Fn(Stream, &mut [u8]) + Sync,
) {
    let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let part = out.len().div_ceil(threads).max(THREAD_BYTES).next_multiple_of(piece);
    let fill = &fill;
    thread::scope(|scope| {
        let mut parts = out.chunks_mut(part).enumerate();
        let first = parts.next();
        for (i, out) in parts {
            let stream = stream.after(i * part / piece * words);
            scope.spawn(move || fill(stream, out));
        }
        if let Some((_, out)) = first {
            fill(stream.after(0), out);
        }
    });
}

/// Fills `out` with random bf16 weights, four per word of the stream.
fn fill_bf16(mut stream: Stream, out: &mut [u8]) {
    for out in out.chunks_exact_mut(8) {
        for (x, out) in stream.four().iter().zip(out.chunks_exact_mut(2)) {
            out.copy_from_slice(&bf16::from_f32(BF16_FACTOR * x).to_le_bytes());
        }
    }
}

/// Scale and minimum of every part of a random K-quant block, as integers that the block's own
/// scales multiply; `PART_SCALES` is a byte of such 6-bit integers packed.
const PART_SCALE: u8 = 42;
const PART_SCALES: u8 = 0xaa;

/// Generates `count` random quantized blocks on all processors: random quantized values with fixed
/// scales, except for a random sign (Q4_0, Q5_0) or exponent (MXFP4, one of two). Scales are chosen so
/// that the weights have about the standard deviation of all random weights; E4M3 floats have
/// magnitudes up to about 2^-5, in steps of 2^-9, and a scale of 1.
fn blocks(stream: &Stream, weight_type: WeightType, count: usize) -> Vec<u8> {
    let width = 2.0 * DEVIATION * SQRT_3;
    let part = f32::from(PART_SCALE);
    let halves = |scales: &[f32]| -> Vec<u8> {
        scales.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect()
    };
    let of_parts = |levels: f32| {
        [halves(&[width / levels / part, width / 2.0 / part]), vec![PART_SCALES; 12]].concat()
    };
    let (head, tail) = match weight_type {
        WeightType::Q4_0 => (halves(&[width / 16.0]), Vec::new()),
        WeightType::Q4_1 => (halves(&[width / 15.0, width / -2.0]), Vec::new()),
        WeightType::Q5_0 => (halves(&[width / 32.0]), Vec::new()),
        WeightType::Q5_1 => (halves(&[width / 31.0, width / -2.0]), Vec::new()),
        WeightType::Q8_0 => (halves(&[width / 2.0 / 127.0]), Vec::new()),
        WeightType::Q4K => (of_parts(15.0), Vec::new()),
        WeightType::Q5K => (of_parts(31.0), Vec::new()),
        WeightType::Q6K => {
            (Vec::new(), [vec![PART_SCALE; 16], halves(&[width / 63.0 / part])].concat())
        }
        WeightType::Mxfp4 => (vec![MXFP4_SCALE], Vec::new()),
        WeightType::F8E4M3 => (1f32.to_le_bytes().to_vec(), Vec::new()),
        _ => unreachable!("{} has no blocks", weight_type.name()),
    };
    let bytes = weight_type.block_bytes();
    let values = head.len()..bytes - tail.len();
    let is_signed = matches!(weight_type, WeightType::Q4_0 | WeightType::Q5_0);
    let words = match weight_type {
        // Four weights from each word.
        WeightType::F8E4M3 => values.len() / 4,
        _ => usize::from(is_signed || weight_type == WeightType::Mxfp4) + values.len().div_ceil(8),
    };
    let mut out = vec![0; count * bytes];
    on_all_processors(stream, &mut out, [bytes, words], |mut stream, out| {
        for out in out.chunks_exact_mut(bytes) {
            out[..values.start].copy_from_slice(&head);
            out[values.end..].copy_from_slice(&tail);
            match weight_type {
                // Their quantized values have a negative mean, so the scale's sign is random to
                // balance them.
                _ if is_signed => out[1] ^= (stream.next() as u8) & 0x80,
                WeightType::Mxfp4 => out[0] -= u8::from(stream.next().is_multiple_of(4)),
                _ => {}
            }
            match weight_type {
                WeightType::F8E4M3 => stream.fill_e4m3(&mut out[values.clone()]),
                _ => stream.fill(&mut out[values.clone()]),
            }
        }
    });
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_make_the_numbers_that_one_would() {
        let stream = || Stream::new(7, "x");
        let elements = 3 * THREAD_BYTES + 5;
        let mut want = vec![0; 2 * elements.next_multiple_of(4)];
        fill_bf16(stream(), &mut want);
        want.truncate(2 * elements);
        assert!(bf16s(&stream(), elements) == want);
        for (weight_type, words) in
            [(WeightType::Mxfp4, 3), (WeightType::F8E4M3, 8), (WeightType::Q5_0, 4)]
        {
            let bytes = weight_type.block_bytes();
            let count = 3 * THREAD_BYTES / bytes + 5;
            let all = blocks(&stream(), weight_type, count);
            // Fewer blocks than one thread makes, across the boundary of two threads' parts.
            let from = THREAD_BYTES / bytes - 2;
            let few = blocks(&stream().after(from * words), weight_type, 9);
            assert!(all[from * bytes..(from + 9) * bytes] == few, "{weight_type:?}");
        }
        let mut all = stream();
        for _ in 0..5 {
            all.next();
        }
        assert_eq!(stream().after(5).next(), all.next());
    }
}
