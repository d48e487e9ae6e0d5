//! 16 f32 lanes in plain Rust, for any processor; the compiler may vectorize them.

#![expect(unsafe_code, reason = "reads and writes through the pointers that the trait deals in")]

use half::{bf16, f16};

use super::{LANES, Lanes};

/// Portable vector of 16 lanes, available on every processor.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Portable;

/// Combines two vectors by `f`, lane by lane.
#[inline(always)]
fn zip(a: [f32; LANES], b: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> [f32; LANES] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

/// Reduces all lanes by `f`, halves with halves, in the order of the other instruction sets.
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
    type Codes = [u32; LANES];

    const ACCUMULATORS: usize = 6;
    const FEW_ROWS_GROUPS: usize = 1;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        [x; LANES]
    }

    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // Without a fused multiply-add instruction, `mul_add` is a slow library call.
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }

    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a * b)
    }

    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a / b)
    }

    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    fn exp2_whole(self, n: Self::V) -> Self::V {
        n.map(|n| f32::from_bits(((n as i32 + 127) << 23).cast_unsigned()))
    }

    #[inline(always)]
    fn keep_first(self, v: Self::V, n: usize, fill: f32) -> Self::V {
        std::array::from_fn(|i| if i < n { v[i] } else { fill })
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> Self::V {
        // SAFETY: the caller vouches for sixteen f32.
        unsafe { from.cast::<[f32; LANES]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, v: Self::V) {
        // SAFETY: the caller vouches for room for sixteen f32.
        unsafe { to.cast::<[f32; LANES]>().write_unaligned(v) }
    }

    #[inline(always)]
    unsafe fn store_low_bytes(self, to: *mut u8, v: Self::V) {
        // SAFETY: the caller vouches for sixteen bytes.
        unsafe { to.cast::<[u8; LANES]>().write(v.map(|x| x.to_bits() as u8)) }
    }

    #[inline(always)]
    unsafe fn load_f16(self, from: *const u16) -> Self::V {
        // SAFETY: the caller vouches for sixteen f16.
        let bits = unsafe { from.cast::<[u16; LANES]>().read_unaligned() };
        bits.map(|bits| f16::from_bits(bits).to_f32())
    }

    #[inline(always)]
    unsafe fn store_f16(self, to: *mut u16, v: Self::V) {
        let bits = v.map(|x| f16::from_f32(x).to_bits());
        // SAFETY: the caller vouches for room for sixteen f16.
        unsafe { to.cast::<[u16; LANES]>().write_unaligned(bits) }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u16) -> Self::V {
        // SAFETY: the caller vouches for sixteen bf16.
        let bits = unsafe { from.cast::<[u16; LANES]>().read_unaligned() };
        bits.map(|bits| bf16::from_bits(bits).to_f32())
    }

    #[inline(always)]
    unsafe fn load_i8(self, from: *const i8) -> Self::V {
        // SAFETY: the caller vouches for sixteen bytes.
        let bytes = unsafe { from.cast::<[i8; LANES]>().read_unaligned() };
        bytes.map(f32::from)
    }

    #[inline(always)]
    unsafe fn load_e4m3(self, from: *const u8) -> Self::V {
        // SAFETY: the caller vouches for sixteen bytes.
        let codes = unsafe { from.cast::<[u8; LANES]>().read_unaligned() };
        // The bits are an f16 with the same fraction and an exponent bias larger by 8, hence * 256.
        codes.map(|code| {
            let bits = (u16::from(code & 0x80) << 8) | (u16::from(code & 0x7f) << 7);
            256.0 * f16::from_bits(bits).to_f32()
        })
    }

    #[inline(always)]
    unsafe fn load_codes(self, from: *const u8) -> Self::Codes {
        // SAFETY: the caller vouches for 64 bytes.
        unsafe { from.cast::<[u32; LANES]>().read_unaligned() }.map(u32::from_le)
    }

    #[inline(always)]
    fn code(self, codes: Self::Codes, i: u32) -> Self::V {
        codes.map(|word| ((word >> (4 * i)) & 15) as f32)
    }

    #[inline(always)]
    fn pick(self, codes: Self::Codes, i: u32, table: &[f32; 16]) -> Self::V {
        codes.map(|word| table[(word >> (4 * i)) as usize & 15])
    }

    #[inline(always)]
    fn sum(self, v: Self::V) -> f32 {
        halve(v, |a, b| a + b)
    }

    #[inline(always)]
    fn largest(self, v: Self::V) -> f32 {
        halve(v, |a, b| if a > b { a } else { b })
    }
}
