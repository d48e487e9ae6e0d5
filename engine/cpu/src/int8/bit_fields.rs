//! Blocks of 5- and 6-bit weights for the int8 GEMM: the bit fields in which a block holds its
//! values, the factors and addends that turn them into bytes, and their widening.
//!
//! A block is 32 steps of k of 16 columns: its head, then as many words of 32 bits per column as a
//! value has bits. A word is two halves of 16 bits with the same bit fields; the upper half has the
//! values of two steps of k later ([`step_of`]). The 16 pairs of values of a column are numbered in
//! rising k. Values are signed, so that a field in the topmost bits is the value times a power of
//! two; all but few fields are moved there by one shift.
//!
//! - 5 bits: word `i` has the pairs `3 i` to `3 i + 2`, from the top, and in its lowest bit a bit of
//!   pair 15. The head is a factor and an addend.
//! - 6 bits: three words have the eight pairs of 16 steps: of three pairs the first and the second
//!   are from the top of a word, and its lowest bits are the lower four of the third, whose upper
//!   two are in the lowest four bits of the third word. The head is a factor for each 16 steps.
//!
//! The byte of a value q is `factor * q + addend`, computed in whole numbers with [`FRACTION_BITS`]
//! bits of fraction, which are cut. The factors are finer, so that bytes are those to which the
//! dequantized weights round.

#![expect(unsafe_code, reason = "loads from and stores to memory that callers vouch for")]

use super::{Width, ZERO};
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

/// Returns pair `pair` of quantized values of a column, one in each half of the word, in the lowest
/// `bits` bits.
fn pair_of(quantized: &[i8], pair: usize, bits: usize) -> u32 {
    let field = |k: usize| u32::from(quantized[k].cast_unsigned()) & ((1 << bits) - 1);
    field(step_of(pair)) | field(step_of(pair) + 2) << 16
}

/// Packs the 6-bit values of 16 steps of a column.
pub(super) fn pack_six(quantized: &[i8; SIX_STEPS]) -> [u32; SIX_WORDS] {
    let pair = |i| pair_of(quantized, i, 6);
    let low = |i| pair(i) & 0x000f_000f;
    let high = |i| pair(i) >> 4 & 0x0003_0003;
    [
        pair(0) << 10 | pair(1) << 4 | low(2),
        pair(3) << 10 | pair(4) << 4 | low(5),
        pair(6) << 10 | pair(7) << 4 | high(2) << 2 | high(5),
    ]
}

/// Packs the 5-bit values of a block of a column.
pub(super) fn pack_five(quantized: &[i8; BLOCK]) -> [u32; FIVE_WORDS] {
    let pair = |i| pair_of(quantized, i, 5);
    std::array::from_fn(|i| {
        pair(3 * i) << 11 | pair(3 * i + 1) << 6 | pair(3 * i + 2) << 1 | pair(15) >> i & 0x0001_0001
    })
}

/// Returns the bytes to which the weights of column `lane` of a packed block are widened.
pub(super) fn bytes(width: Width, block: &[u8], lane: usize) -> [u8; BLOCK] {
    let head = |i: usize| -> i16 {
        bytemuck::pod_read_unaligned(&block[2 * (i * LANES + lane)..][..2])
    };
    let word = |i: usize| -> u32 {
        bytemuck::pod_read_unaligned(&block[HEAD_BYTES + i * STEP_BYTES + lane * 4..][..4])
    };
    let mut bytes = [0; BLOCK];
    for pair in 0..BLOCK / 2 {
        let (field, factor, addend) = match width {
            Width::Six => {
                let (part, words) = (pair / 8, pair / 8 * SIX_WORDS);
                let two = |shift: u32| (word(words + 2) >> shift & 0x0003_0003) << 14;
                let field = match pair % 8 {
                    2 => (word(words) & 0x000f_000f) << 10 | two(2),
                    5 => (word(words + 1) & 0x000f_000f) << 10 | two(0),
                    i if i % 3 == 0 => word(words + i / 3) & 0xfc00_fc00,
                    i => (word(words + i / 3) << 6) & 0xfc00_fc00,
                };
                (field, head(part), CENTER)
            }
            _ => {
                let field = match pair {
                    15 => (0..FIVE_WORDS).fold(0, |f, i| f | (word(i) & 0x0001_0001) << (11 + i)),
                    i => (word(i / 3) << (5 * (i % 3))) & 0xf800_f800,
                };
                (field, head(0), head(1))
            }
        };
        for (half, quantized) in [field as i16, (field >> 16) as i16].into_iter().enumerate() {
            let product = ((i32::from(quantized) * i32::from(factor)) >> 16) as i16;
            bytes[step_of(pair) + 2 * half] = (product.wrapping_add(addend) >> FRACTION_BITS) as u8;
        }
    }
    bytes
}

/// Number of times that a slope is halved to be below `limit` in magnitude, and quantized values
/// are doubled instead. It is zero also for blocks of zeros, whose slope may be anything.
fn doublings(slope: f32, limit: f32) -> i32 {
    (0..5).find(|n| slope.abs() < limit * (1 << n) as f32).unwrap_or(0)
}

/// Returns the range of addends with which `factor` widens quantized values of `bits` bits to
/// `wanted` plus [`ZERO`]; where there is none, its end is below its start.
fn addends(quantized: &[i8], bits: i32, wanted: &[i32], factor: i32) -> (i32, i32) {
    let mut range = (i32::MIN, i32::MAX);
    for (quantized, wanted) in quantized.iter().zip(wanted) {
        let product = ((i32::from(*quantized) << (16 - bits)) * factor) >> 16;
        let first = ((wanted + ZERO) << FRACTION_BITS) - product;
        range = (range.0.max(first), range.1.min(first + (1 << FRACTION_BITS) - 1));
    }
    range
}

/// Returns the whole numbers next to `slope * scale`, the nearest first, that are 16-bit numbers.
fn factors<const N: usize>(slope: f32, scale: f32) -> [i32; N] {
    let nearest = super::weights::nearest(slope * scale);
    std::array::from_fn(|i| {
        let i = i as i32;
        let off = if i % 2 == 0 { -i / 2 } else { (i + 1) / 2 };
        (nearest.saturating_add(off)).clamp(i16::MIN.into(), i16::MAX.into())
    })
}

/// Returns the factor of 16 steps of 6-bit weights, and doubles the values where that takes a
/// factor of 16 bits. `slope` is the whole number that value 1 stands for, unrounded, and `wanted`
/// are the whole numbers to which the weights round.
///
/// The numbers to which a line through zero rounds are the same for all slopes between two adjacent
/// ones at which it meets a half, and for values up to 32 those differ by 1/1984 or more. One of
/// the two factors around the slope is therefore always exact, except for weights that are halfway
/// between two whole numbers: those may become either.
pub(super) fn fit_six(
    slope: f32,
    quantized: &mut [i8; SIX_STEPS],
    wanted: &[i32; SIX_STEPS],
) -> i16 {
    let n = doublings(slope, 7.99);
    quantized.iter_mut().for_each(|q| *q <<= n);
    let factors: [i32; 3] = factors(slope / (1 << n) as f32, 4096.0);
    let is_exact = |factor: &i32| {
        let (first, last) = addends(quantized, 6, wanted, *factor);
        (first..=last).contains(&CENTER.into())
    };
    factors.into_iter().find(is_exact).unwrap_or(factors[0]) as i16
}

/// Returns the factor and the addend of a block of 5-bit weights, and makes its values signed; see
/// [`fit_six`]. Few blocks have no factor and addend that are exact for all weights; in those, a
/// weight within a hundredth of a step of the middle between two whole numbers becomes the wrong
/// one.
pub(super) fn fit_five(
    slope: f32,
    quantized: &mut [i8; BLOCK],
    wanted: &[i32; BLOCK],
) -> (i16, i16) {
    let n = doublings(slope, 15.9);
    let least = quantized.iter().copied().min().unwrap_or(0);
    quantized.iter_mut().for_each(|q| *q = ((*q - least) << n) - 16);
    let mut best = (i32::MIN, 0, 0);
    for factor in factors::<5>(slope / (1 << n) as f32, 2048.0) {
        let (first, last) = addends(quantized, 5, wanted, factor);
        if last - first > best.0 {
            best = (last - first, factor, first.midpoint(last));
        }
        if last >= first {
            break;
        }
    }
    (best.1 as i16, best.2 as i16)
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
