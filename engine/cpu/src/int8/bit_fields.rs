//! Blocks of 5- and 6-bit weights for the int8 GEMM: the bit fields in which a block holds its
//! values, the factors and addends that turn them into bytes, and their widening.
//!
//! A block is 32 steps of k of 16 columns: its head, then as many words of 32 bits per column as a
//! value has bits. A word is two halves of 16 bits with the same bit fields; the upper half has the
//! values of two steps of k later ([`step_of`]). The 16 pairs of values of a column are numbered in
//! rising k. Values are signed, so that a field in the topmost bits is the value times a power of
//! two; all but few fields are moved there by one shift.
//!
//! - 5 bits: word `i` has the pairs `3 i` to `3 i + 2`, from the top, and in its lowest bit bit `i`
//!   of pair 15. The head is a factor and an addend.
//! - 6 bits: the eight pairs of 16 steps are in three words. Each word has two pairs, from the top.
//!   The four bits below hold the lower bits of pair 2 in the first word, those of pair 5 in the
//!   second, and in the third the upper two bits of both. The head is a factor for each 16 steps.
//!
//! The byte of a value q is `factor * q + addend`, computed with [`FRACTION_BITS`] bits of fraction,
//! which are cut. Factors are finer than those of 4-bit weights, so that the byte is the one to
//! which the dequantized weight rounds.

#![expect(unsafe_code, reason = "loads from and stores to memory that callers vouch for")]

use super::ZERO;
use crate::lanes::{BLOCK, Dots, HEAD_BYTES, LANES, STEP, STEP_BYTES};

/// Number of bits of the fraction that a widened weight has before it is cut to a byte.
const FRACTION_BITS: i32 = 6;
/// Addend of blocks of 6-bit weights, and of zeros: the byte of weight 0 and half a step more, so
/// that cutting rounds to the nearest byte.
pub(super) const CENTER: i16 = ((2 * ZERO + 1) << (FRACTION_BITS - 1)) as i16;
/// Number of steps of k of 6-bit weights that share a factor.
pub(super) const SIX_STEPS: usize = 16;
/// Number of words of 32 bits that hold the 6-bit values of [`SIX_STEPS`] steps of a column.
const SIX_WORDS: usize = 3;
/// Number of words of 32 bits that hold the 5-bit values of a block of a column.
const FIVE_WORDS: usize = 5;

/// Returns the first step of k of pair `pair`; the second is two steps later. The even and the odd
/// pair of four steps are widened to alternate bytes.
fn step_of(pair: usize) -> usize {
    pair / 2 * STEP + pair % 2
}

/// Returns the pairs of quantized values of a column, one value in the lowest `bits` bits of each
/// half of a word.
fn pairs<const N: usize>(quantized: &[i8], bits: u32) -> [u32; N] {
    let steps = quantized.as_chunks::<STEP>().0;
    std::array::from_fn(|pair| {
        let four = u32::from_le_bytes(steps[pair / 2].map(i8::cast_unsigned));
        (four >> (8 * (pair % 2))) & (0x0001_0001 * ((1 << bits) - 1))
    })
}

/// Packs the 6-bit values of 16 steps of a column.
pub(super) fn pack_six(quantized: &[i8; SIX_STEPS]) -> [u32; SIX_WORDS] {
    let pairs: [u32; SIX_STEPS / 2] = pairs(quantized, 6);
    let low = |pair: usize| pairs[pair] & 0x000f_000f;
    let high = |pair: usize| (pairs[pair] >> 4) & 0x0003_0003;
    [
        (pairs[0] << 10) | (pairs[1] << 4) | low(2),
        (pairs[3] << 10) | (pairs[4] << 4) | low(5),
        (pairs[6] << 10) | (pairs[7] << 4) | (high(2) << 2) | high(5),
    ]
}

/// Packs the 5-bit values of a block of a column.
pub(super) fn pack_five(quantized: &[i8; BLOCK]) -> [u32; FIVE_WORDS] {
    let pairs: [u32; BLOCK / 2] = pairs(quantized, 5);
    std::array::from_fn(|i| {
        let [first, second, third] = [3 * i, 3 * i + 1, 3 * i + 2].map(|pair| pairs[pair]);
        (first << 11) | (second << 6) | (third << 1) | ((pairs[15] >> i) & 0x0001_0001)
    })
}

/// Returns the bytes to which the weights of column `lane` of a packed block are widened, which have
/// 5 or 6 bits.
pub(super) fn bytes(bits: usize, block: &[u8], lane: usize) -> [u8; BLOCK] {
    let head =
        |i: usize| -> i16 { bytemuck::pod_read_unaligned(&block[2 * (i * LANES + lane)..][..2]) };
    let word = |i: usize| -> u32 {
        bytemuck::pod_read_unaligned(&block[HEAD_BYTES + i * STEP_BYTES + lane * 4..][..4])
    };
    let mut bytes = [0; BLOCK];
    for pair in 0..BLOCK / 2 {
        let (field, factor, addend) = if bits == 6 {
            let first = pair / 8 * SIX_WORDS;
            let two = |shift: u32| ((word(first + 2) >> shift) & 0x0003_0003) << 14;
            let field = match pair % 8 {
                2 => ((word(first) & 0x000f_000f) << 10) | two(2),
                5 => ((word(first + 1) & 0x000f_000f) << 10) | two(0),
                pair if pair % 3 == 0 => word(first + pair / 3) & 0xfc00_fc00,
                pair => (word(first + pair / 3) << 6) & 0xfc00_fc00,
            };
            (field, head(pair / 8), CENTER)
        } else {
            let field = match pair {
                15 => (0..5).fold(0, |bits, i| bits | ((word(i) & 0x0001_0001) << (11 + i))),
                _ => (word(pair / 3) << (5 * (pair % 3))) & 0xf800_f800,
            };
            (field, head(0), head(1))
        };
        for (half, quantized) in [field as i16, (field >> 16) as i16].into_iter().enumerate() {
            let scaled = ((i32::from(quantized) * i32::from(factor)) >> 16) as i16;
            bytes[step_of(pair) + 2 * half] = (scaled.wrapping_add(addend) >> FRACTION_BITS) as u8;
        }
    }
    bytes
}

/// Number of times that a slope is halved to be below `limit` in magnitude, and quantized values
/// are doubled instead. It is zero also for blocks of zeros, whose slope may be anything.
fn doublings(slope: f32, limit: f32) -> i32 {
    (0..5).find(|n| slope.abs() < limit * (1 << n) as f32).unwrap_or(0)
}

/// Returns the upper 16 bits of the product of a factor and a quantized value of `bits` bits, which
/// is moved to the topmost bits.
#[inline(always)]
fn scaled(quantized: i8, bits: u32, factor: i16) -> i16 {
    ((i32::from(i16::from(quantized) << (16 - bits)) * i32::from(factor)) >> 16) as i16
}

/// Returns the range of addends with which `factor` widens quantized values of `bits` bits to the
/// bytes `wanted`; where there is none, its end is below its start. All numbers have 16 bits, so
/// that vector instructions of every processor compute them.
#[inline(always)]
fn addends<const N: usize>(
    quantized: &[i8; N],
    bits: u32,
    wanted: &[u8; N],
    factor: i16,
) -> (i16, i16) {
    const LAST: i16 = (1 << FRACTION_BITS) - 1;
    let (mut first, mut last) = (i16::MIN, i16::MAX);
    for (quantized, wanted) in quantized.iter().zip(wanted) {
        let addend =
            (i16::from(*wanted) << FRACTION_BITS).wrapping_sub(scaled(*quantized, bits, factor));
        first = first.max(addend);
        last = last.min(addend.wrapping_add(LAST));
    }
    (first, last)
}

/// Returns the 16-bit numbers next to `slope * scale`, the nearest first.
fn factors<const N: usize>(slope: f32, scale: f32) -> [i16; N] {
    let nearest = (slope * scale + 0.5f32.copysign(slope)) as i16;
    std::array::from_fn(|i| {
        let off = i.div_ceil(2) as i16;
        nearest.saturating_add(if i % 2 == 0 { -off } else { off })
    })
}

/// Returns the factor of 16 steps of 6-bit weights, and doubles the values where that takes a
/// factor of 16 bits. `slope` is the number of steps between bytes that value 1 stands for, and
/// `wanted` are the bytes to which the weights round.
///
/// The numbers to which a line through zero rounds are the same for all slopes between two adjacent
/// ones at which it meets a half, and for values up to 32 those differ by 1/1984 or more. One of
/// the two factors around the slope is therefore always exact, except for weights that are halfway
/// between two bytes: those may become either.
pub(super) fn fit_six(
    slope: f32,
    quantized: &mut [i8; SIX_STEPS],
    wanted: &[u8; SIX_STEPS],
) -> i16 {
    let n = doublings(slope, 7.99);
    quantized.iter_mut().for_each(|q| *q <<= n);
    let factors: [i16; 3] = factors(slope / (1 << n) as f32, 4096.0);
    let is_exact = |factor: &i16| {
        let (first, last) = addends(quantized, 6, wanted, *factor);
        (first..=last).contains(&CENTER)
    };
    factors.into_iter().find(is_exact).unwrap_or(factors[0])
}

/// Returns the factor and the addend of a block of 5-bit weights, and makes its values signed; the
/// arguments are those of [`fit_six`]. About one block in a thousand has no factor and addend that
/// are exact for all weights; in those, weights within some hundredths of a step of the middle
/// between two bytes become the wrong one.
pub(super) fn fit_five(
    slope: f32,
    quantized: &mut [i8; BLOCK],
    wanted: &[u8; BLOCK],
) -> (i16, i16) {
    let n = doublings(slope, 15.9);
    let least = quantized.iter().copied().min().unwrap_or(0);
    quantized.iter_mut().for_each(|q| *q = ((*q - least) << n) - 16);
    let mut best = (i16::MIN, 0, 0);
    for factor in factors::<9>(slope / (1 << n) as f32, 2048.0) {
        let (first, last) = addends(quantized, 5, wanted, factor);
        let length = last.saturating_sub(first);
        if length > best.0 {
            best = (length, factor, first.midpoint(last));
        }
        if length >= 0 {
            break;
        }
    }
    (best.1, best.2)
}

/// Factor and addend of 16 columns with which values in the topmost bits of 16 are widened.
#[derive(Clone, Copy)]
struct Head<D: Dots> {
    dots: D,
    factor: D::Halves,
    addend: D::Halves,
}

impl<D: Dots> Head<D> {
    /// Widens the weights of four steps of k of 16 columns, an even and an odd pair.
    ///
    /// # Safety
    /// 64 bytes can be written at `to`.
    #[inline(always)]
    unsafe fn widen(self, to: *mut u8, even: D::Halves, odd: D::Halves) {
        let Self { dots, factor, addend } = self;
        let even = dots.mul_high_add(even, factor, addend);
        let odd = dots.mul_high_add(odd, factor, addend);
        // SAFETY: the caller vouches for the memory.
        unsafe { dots.store_step(to, even, odd) };
    }
}

/// Returns 16 bits of which the topmost `n` are set.
const fn top_bits(n: u32) -> i16 {
    (u16::MAX << (u16::BITS - n)).cast_signed()
}

/// Words of a block of 16 columns, and the mask of the topmost bits that are a field.
#[derive(Clone, Copy)]
struct Fields<D: Dots> {
    dots: D,
    word: D::Halves,
    field: D::Halves,
}

impl<D: Dots> Fields<D> {
    #[inline(always)]
    fn shifted(self, bits: i32) -> D::Halves {
        self.dots.shift_left(self.word, bits)
    }

    /// Returns the field that begins `bits` bits below the topmost one, as the topmost bits.
    #[inline(always)]
    fn get(self, bits: i32) -> D::Halves {
        self.dots.and(self.shifted(bits), self.field)
    }
}

/// Widens a block of 6-bit weights of 16 columns to bytes. The bytes of each step (4 k) are written
/// `stride` bytes after those of the step before it.
///
/// # Safety
/// A block of 6-bit weights can be read at `from`, and eight steps of 64 bytes, `stride` apart,
/// written at `to`.
#[inline(always)]
pub(super) unsafe fn widen_six<D: Dots>(dots: D, from: *const u8, to: *mut u8, stride: usize) {
    let (field, two) = (dots.splat(top_bits(6)), dots.splat(top_bits(2)));
    for part in 0..BLOCK / SIX_STEPS {
        // SAFETY: the block has the head and the words of each part, and the caller vouches for the
        // memory of its four steps.
        unsafe {
            let factor = dots.head(from.add(part * 2 * LANES));
            let head = Head { dots, factor, addend: dots.splat(CENTER) };
            let words = from.add(HEAD_BYTES + part * SIX_WORDS * STEP_BYTES);
            let a = Fields { dots, word: dots.halves(words), field };
            let b = Fields { word: dots.halves(words.add(STEP_BYTES)), ..a };
            let c = Fields { word: dots.halves(words.add(2 * STEP_BYTES)), ..a };
            let third = dots.select(two, c.shifted(12), a.shifted(10));
            let sixth = dots.select(two, c.shifted(14), b.shifted(10));
            let to = to.add(part * SIX_STEPS / STEP * stride);
            head.widen(to, a.get(0), a.get(6));
            head.widen(to.add(stride), third, b.get(0));
            head.widen(to.add(2 * stride), b.get(6), sixth);
            head.widen(to.add(3 * stride), c.get(0), c.get(6));
        }
    }
}

/// Widens a block of 5-bit weights of 16 columns to bytes, as [`widen_six`] does 6-bit weights.
///
/// # Safety
/// A block of 5-bit weights can be read at `from`, and eight steps of 64 bytes, `stride` apart,
/// written at `to`.
#[inline(always)]
pub(super) unsafe fn widen_five<D: Dots>(dots: D, from: *const u8, to: *mut u8, stride: usize) {
    let field = dots.splat(top_bits(5));
    // SAFETY: the block has a head of two parts and five words per column, and the caller vouches
    // for the memory of its eight steps.
    unsafe {
        let (factor, addend) = (dots.head(from), dots.head(from.add(2 * LANES)));
        let head = Head { dots, factor, addend };
        let words = from.add(HEAD_BYTES);
        let a = Fields { dots, word: dots.halves(words), field };
        let b = Fields { word: dots.halves(words.add(STEP_BYTES)), ..a };
        let c = Fields { word: dots.halves(words.add(2 * STEP_BYTES)), ..a };
        let d = Fields { word: dots.halves(words.add(3 * STEP_BYTES)), ..a };
        let e = Fields { word: dots.halves(words.add(4 * STEP_BYTES)), ..a };
        let mut last = a.shifted(11);
        last = dots.select(dots.splat(top_bits(4)), b.shifted(12), last);
        last = dots.select(dots.splat(top_bits(3)), c.shifted(13), last);
        last = dots.select(dots.splat(top_bits(2)), d.shifted(14), last);
        last = dots.select(dots.splat(top_bits(1)), e.shifted(15), last);
        head.widen(to, a.get(0), a.get(5));
        head.widen(to.add(stride), a.get(10), b.get(0));
        head.widen(to.add(2 * stride), b.get(5), b.get(10));
        head.widen(to.add(3 * stride), c.get(0), c.get(5));
        head.widen(to.add(4 * stride), c.get(10), d.get(0));
        head.widen(to.add(5 * stride), d.get(5), d.get(10));
        head.widen(to.add(6 * stride), e.get(0), e.get(5));
        head.widen(to.add(7 * stride), e.get(10), last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::numbers;

    /// Returns the byte to which a value is widened.
    fn widened(quantized: i8, bits: u32, factor: i16, addend: i16) -> u8 {
        u8::try_from((scaled(quantized, bits, factor) + addend) >> FRACTION_BITS).unwrap()
    }

    /// Returns the byte to which a weight rounds, for which 1 is a step between bytes.
    fn nearest(exact: f32) -> u8 {
        (exact.round_ties_even().clamp(-127.0, 127.0) + ZERO as f32) as u8
    }

    /// Returns `N` values from `least` to `most`.
    fn values<const N: usize>(seed: u32, least: f32, most: f32) -> [i8; N] {
        let numbers = numbers(N, seed);
        let span = numbers.iter().fold(1e-3f32, |top, x| top.max(x.abs()));
        std::array::from_fn(|i| {
            (least + (numbers[i] / span + 1.0) / 2.0 * (most - least)).round() as i8
        })
    }

    #[test]
    fn six_bit_weights_become_the_nearest_byte_at_any_slope() {
        for seed in 0..20_000u32 {
            let slope = 127.0 * (seed as f32 / 10_000.0 - 1.0).powi(3);
            let most = (127.0 / slope.abs()).min(31.0).floor();
            let values: [i8; SIX_STEPS] = values(seed, -most, most);
            let exact = values.map(|q| slope * f32::from(q));
            let wanted = exact.map(nearest);
            let mut quantized = values;
            let factor = fit_six(slope, &mut quantized, &wanted);
            for ((q, wanted), exact) in quantized.into_iter().zip(wanted).zip(exact) {
                let got = widened(q, 6, factor, CENTER);
                let middle = (exact.fract().abs() - 0.5).abs();
                assert!(got == wanted || middle < 1e-4, "{slope}: {got}, not {wanted}: {exact}");
            }
        }
    }

    #[test]
    fn five_bit_weights_become_the_nearest_byte_except_next_to_the_middle() {
        let mut others = 0;
        for seed in 0..20_000u32 {
            let slope = 254.0 * (seed as f32 / 10_000.0 - 1.0).powi(3);
            let span = (254.0 / slope.abs()).min(31.0).floor();
            let values: [i8; BLOCK] = values(seed, 0.0, span);
            let free = 127.0 - slope.abs() * span / 2.0;
            let minimum = free * numbers(1, seed)[0] - slope * span / 2.0;
            let exact = values.map(|q| slope * f32::from(q) + minimum);
            let wanted = exact.map(nearest);
            let mut quantized = values;
            let (factor, addend) = fit_five(slope, &mut quantized, &wanted);
            for ((q, wanted), exact) in quantized.into_iter().zip(wanted).zip(exact) {
                let got = widened(q, 5, factor, addend);
                let middle = (exact.fract().abs() - 0.5).abs();
                assert!(got == wanted || middle < 0.03, "{slope}: {got}, not {wanted}: {exact}");
                others += usize::from(got != wanted);
            }
        }
        assert!(others < 20_000 * BLOCK / 1000, "{others} weights became another byte");
    }
}
