//! Vector operations in plain Rust for any processor: 16 f32 lanes, bf16 and int8 dot products,
//! which the compiler may vectorize.

#![expect(unsafe_code, reason = "reads and writes through pointers that callers vouch for")]

use half::{bf16, f16};

use crate::lanes::{
    BLOCK, Dots, E2M1_DOUBLED, E4M3_REBIAS, E4M3_SMALL, HEAD_BYTES, LANES, Lanes, PAIR, PAIR_BYTES,
    Pairs, Part, STEP, STEP_BYTES, nibble,
};

/// Portable vectors of 16 f32 lanes, available on every processor.
#[derive(Debug, Clone, Copy)]
pub(super) struct Portable;

/// Combines two 16-lane vectors by `f`, lane by lane.
#[inline(always)]
fn zip(a: [f32; LANES], b: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> [f32; LANES] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

/// Reduces the 16 lanes of a vector to one number by `f`, halves with halves, in the same order as
/// AVX2 and AVX-512.
#[inline(always)]
fn halve(mut v: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> f32 {
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            v[i] = f(v[i], v[i + half]);
        }
    }
    v[0]
}

impl Lanes for Portable {
    type V = [f32; LANES];
    type Words = [u32; LANES];

    const ACCUMULATORS: usize = 6;
    const FEW_ROWS_GROUPS: usize = 1;

    #[inline(never)]
    fn call<P: Part<Self>>(self, part: P) -> P::Output {
        part.run(self)
    }

    operations! {
        plain fn splat(self, x: f32) -> Self::V { [x; LANES] }
        plain fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
            // Without a fused multiply-add instruction, `mul_add` is a slow library call.
            std::array::from_fn(|i| a[i] * b[i] + c[i])
        }
        plain fn add(self, a: Self::V, b: Self::V) -> Self::V { zip(a, b, |a, b| a + b) }
        plain fn sub(self, a: Self::V, b: Self::V) -> Self::V { zip(a, b, |a, b| a - b) }
        plain fn mul(self, a: Self::V, b: Self::V) -> Self::V { zip(a, b, |a, b| a * b) }
        plain fn div(self, a: Self::V, b: Self::V) -> Self::V { zip(a, b, |a, b| a / b) }
        plain fn max(self, a: Self::V, b: Self::V) -> Self::V {
            zip(a, b, |a, b| if a > b { a } else { b })
        }
        plain fn min(self, a: Self::V, b: Self::V) -> Self::V {
            zip(a, b, |a, b| if a < b { a } else { b })
        }
        plain fn exp2_whole(self, n: Self::V) -> Self::V {
            n.map(|n| f32::from_bits(((n as i32 + 127) << 23).cast_unsigned()))
        }
        plain fn keep_first(self, v: Self::V, n: usize, fill: f32) -> Self::V {
            std::array::from_fn(|i| if i < n { v[i] } else { fill })
        }
        unsafe fn load(self, from: *const f32) -> Self::V {
            from.cast::<[f32; LANES]>().read_unaligned()
        }
        unsafe fn store(self, to: *mut f32, v: Self::V) -> () {
            to.cast::<[f32; LANES]>().write_unaligned(v)
        }
        unsafe fn store_low_bytes(self, to: *mut u8, v: Self::V) -> () {
            to.cast::<[u8; LANES]>().write(v.map(|x| x.to_bits() as u8))
        }
        unsafe fn load_f16(self, from: *const u16) -> Self::V {
            let bits = from.cast::<[u16; LANES]>().read_unaligned();
            bits.map(|bits| f16::from_bits(bits).to_f32())
        }
        unsafe fn store_f16(self, to: *mut u16, v: Self::V) -> () {
            let bits = v.map(|x| f16::from_f32(x).to_bits());
            to.cast::<[u16; LANES]>().write_unaligned(bits)
        }
        unsafe fn load_bf16(self, from: *const u16) -> Self::V {
            let bits = from.cast::<[u16; LANES]>().read_unaligned();
            bits.map(|bits| f32::from_bits(u32::from(bits) << 16))
        }
        unsafe fn load_i8(self, from: *const i8) -> Self::V {
            let bytes = from.cast::<[i8; LANES]>().read_unaligned();
            bytes.map(f32::from)
        }
        unsafe fn load_e4m3(self, from: *const u8) -> Self::V {
            let bytes = from.cast::<[u8; LANES]>().read_unaligned();
            // The bits are an f16 with the same fraction and an exponent bias larger by 8, hence
            // * 256.
            bytes.map(|byte| {
                let bits = (u16::from(byte & 0x80) << 8) | (u16::from(byte & 0x7f) << 7);
                256.0 * f16::from_bits(bits).to_f32()
            })
        }
        unsafe fn load_words(self, from: *const u8) -> Self::Words {
            from.cast::<[u32; LANES]>().read_unaligned().map(u32::from_le)
        }
        plain fn nibble(self, words: Self::Words, i: u32) -> Self::V {
            words.map(|word| ((word >> (4 * i)) & 15) as f32)
        }
        plain fn doubled_e2m1(self, words: Self::Words, i: u32) -> Self::V {
            words.map(|word| E2M1_DOUBLED[(word >> (4 * i)) as usize & 15])
        }
        plain fn sum(self, v: Self::V) -> f32 { halve(v, |a, b| a + b) }
        plain fn largest(self, v: Self::V) -> f32 { halve(v, |a, b| if a > b { a } else { b }) }
    }
}

/// Portable bf16 dot products, available on every processor.
#[derive(Debug, Clone, Copy)]
pub(super) struct PortablePairs;

impl Pairs for PortablePairs {
    type Lanes = Portable;
    type Weights = [[u16; PAIR]; LANES];
    type Row = [u16; PAIR];

    const ROWS: usize = 4;

    operations! {
        plain fn lanes(self) -> Portable { Portable }
        plain fn dot(self, sums: [f32; LANES], w: Self::Weights, row: Self::Row) -> [f32; LANES] {
            let value = |bits: u16| bf16::from_bits(bits).to_f32();
            // Products of two bf16 are exact in f32.
            let add = |sum, w: [u16; PAIR]| {
                sum + value(w[1]) * value(row[1]) + value(w[0]) * value(row[0])
            };
            std::array::from_fn(|i| add(sums[i], w[i]))
        }
        plain fn round(self, x: &[f32; LANES]) -> [u16; LANES] {
            x.map(|x| bf16::from_f32(x).to_bits())
        }
        unsafe fn weights(self, from: *const u8) -> Self::Weights {
            from.cast::<Self::Weights>().read_unaligned()
        }
        unsafe fn row(self, from: *const u16) -> Self::Row {
            from.cast::<Self::Row>().read_unaligned()
        }
        plain fn widen(self, values: &[u8; PAIR * LANES], to: &mut [u8; PAIR_BYTES]) -> () {
            for (value, to) in values.iter().zip(to.as_chunks_mut::<2>().0) {
                let (magnitude, sign) = (u16::from(value & 0x7f), u16::from(value & 0x80) << 8);
                let small = E4M3_SMALL.get(usize::from(magnitude)).copied();
                let bits = small.unwrap_or((magnitude << 4) + E4M3_REBIAS);
                *to = (bits | sign).to_le_bytes();
            }
        }
    }
}

/// Portable int8 dot products, available on every processor.
#[derive(Debug, Clone, Copy)]
pub(super) struct PortableDots;

impl Dots for PortableDots {
    type Lanes = Portable;
    type Weights = [u8; STEP_BYTES];
    type Row = [i8; STEP];
    type Sums = [i32; LANES];
    type Halves = [i16; 2 * LANES];

    const ROWS: usize = 4;

    operations! {
        plain fn lanes(self) -> Portable { Portable }
        plain fn start(self, start: i32) -> Self::Sums { [start; LANES] }
        plain fn dot(self, sums: Self::Sums, weights: Self::Weights, row: Self::Row) -> Self::Sums {
            let mut sums = sums;
            for (sum, column) in sums.iter_mut().zip(weights.as_chunks::<STEP>().0) {
                for (w, x) in column.iter().zip(row) {
                    *sum += i32::from(*w) * i32::from(x);
                }
            }
            sums
        }
        plain fn floats(self, sums: Self::Sums) -> <Portable as Lanes>::V {
            Portable.lift(&sums.map(|sum| sum as f32))
        }
        unsafe fn weights(self, from: *const u8) -> Self::Weights {
            from.cast::<Self::Weights>().read_unaligned()
        }
        unsafe fn row(self, from: *const i8) -> Self::Row {
            from.cast::<Self::Row>().read_unaligned()
        }
        unsafe fn widen(self, from: *const u8, to: *mut u8, stride: usize) -> () {
            let heads = from.cast::<[[u16; LANES]; 2]>().read_unaligned();
            let words = from.add(HEAD_BYTES).cast::<[[u32; LANES]; 4]>().read_unaligned();
            for k in 0..BLOCK {
                for lane in 0..LANES {
                    let quantized = (words[k / 8][lane] >> (4 * nibble(k % 8))) as u16 & 15;
                    let value = heads[0][lane].wrapping_mul(quantized);
                    let value = value.wrapping_add(heads[1][lane]);
                    *to.add(k / STEP * stride + lane * STEP + k % STEP) = (value >> 8) as u8;
                }
            }
        }
        unsafe fn look_up(
            self,
            table: &[u8; LANES],
            from: *const u8,
            to: *mut u8,
            stride: usize
        ) -> () {
            let words = from.add(HEAD_BYTES).cast::<[[u8; STEP_BYTES]; 4]>().read_unaligned();
            for k in 0..BLOCK {
                for lane in 0..LANES {
                    let byte = words[k / 8][lane * STEP + k % STEP];
                    let value = (byte >> (k / STEP % 2 * 4)) & 15;
                    *to.add(k / STEP * stride + lane * STEP + k % STEP) = table[usize::from(value)];
                }
            }
        }
        unsafe fn halves(self, from: *const u8) -> Self::Halves {
            from.cast::<Self::Halves>().read_unaligned().map(i16::from_le)
        }
        unsafe fn head(self, from: *const u8) -> Self::Halves {
            let head = from.cast::<[i16; LANES]>().read_unaligned();
            std::array::from_fn(|i| i16::from_le(head[i / 2]))
        }
        plain fn splat(self, x: i16) -> Self::Halves { [x; 2 * LANES] }
        plain fn shift_left(self, halves: Self::Halves, bits: i32) -> Self::Halves {
            halves.map(|x| x << bits)
        }
        plain fn and(self, a: Self::Halves, b: Self::Halves) -> Self::Halves {
            std::array::from_fn(|i| a[i] & b[i])
        }
        plain fn select(
            self,
            mask: Self::Halves,
            a: Self::Halves,
            b: Self::Halves
        ) -> Self::Halves {
            std::array::from_fn(|i| (mask[i] & a[i]) | (!mask[i] & b[i]))
        }
        plain fn mul_high_add(
            self,
            a: Self::Halves,
            b: Self::Halves,
            c: Self::Halves
        ) -> Self::Halves {
            std::array::from_fn(|i| {
                let product = i32::from(a[i]) * i32::from(b[i]);
                ((product >> 16) as i16).saturating_add(c[i])
            })
        }
        unsafe fn store_step(self, to: *mut u8, even: Self::Halves, odd: Self::Halves) -> () {
            let byte = |i: usize| (if i.is_multiple_of(2) { even } else { odd }[i / 2] >> 6) as u8;
            to.cast::<[u8; STEP_BYTES]>().write_unaligned(std::array::from_fn(byte));
        }
    }
}
