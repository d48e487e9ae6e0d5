//! Dequantization in registers: packed weights of every layout decoded on their way into the f32
//! GEMM.
//!
//! Everything here is `#[inline(always)]`, because it must be compiled for the caller's instruction
//! set.

#![expect(unsafe_code, reason = "vector loads through pointers that callers vouch for")]

use super::lanes::{LANES, Lanes};
use super::layout::{E2M1, Layout};

/// Consumer of decoded weights: receives those of `NR` groups of 16 columns, one step of k after
/// another.
pub(super) trait Sink<L: Lanes, const NR: usize> {
    /// Receives the weights of step `k`, counted from where decoding began. Implementations must be
    /// `#[inline(always)]`.
    fn step(&mut self, lanes: L, k: usize, weights: &[L::V; NR]);
}

/// Decodes `units` units of each of `groups` and passes the weights to `sink` in rising k.
///
/// # Safety
/// Each group must hold `units` units of `layout`.
#[inline(always)]
pub(super) unsafe fn decode<L: Lanes, S: Sink<L, NR>, const NR: usize>(
    lanes: L,
    layout: Layout,
    groups: [*const u8; NR],
    units: usize,
    sink: &mut S,
) {
    // SAFETY: the caller vouches for the units.
    unsafe {
        match layout {
            Layout::F32 => bytes::<L, F32, S, NR>(lanes, groups, units, sink),
            Layout::F16 => bytes::<L, F16, S, NR>(lanes, groups, units, sink),
            Layout::Bf16 => bytes::<L, Bf16, S, NR>(lanes, groups, units, sink),
            Layout::F8E4M3 => bytes::<L, F8E4M3, S, NR>(lanes, groups, units, sink),
            Layout::Q8_0 => bytes::<L, Q8_0, S, NR>(lanes, groups, units, sink),
            Layout::Affine8 => bytes::<L, Affine8, S, NR>(lanes, groups, units, sink),
            Layout::Q4_1 => words::<L, Q4_1, S, NR>(lanes, groups, units, sink),
            Layout::Affine4 => words::<L, Affine4, S, NR>(lanes, groups, units, sink),
            Layout::Mxfp4 => words::<L, Mxfp4, S, NR>(lanes, groups, units, sink),
        }
    }
}

/// Header of a unit for 16 columns: scales and minima, or the scales twice where there are no
/// minima.
type Head<V> = [V; 2];

/// Layout whose quantized values are whole bytes (or whole floats).
trait Bytes<L: Lanes> {
    const LAYOUT: Layout;
    /// Number of bytes of one step of k of 16 columns.
    const STRIDE: usize = LANES;

    /// Loads the header of a unit.
    ///
    /// # Safety
    /// A unit can be read at `unit`.
    unsafe fn head(lanes: L, unit: *const u8) -> Head<L::V>;

    /// Decodes the weights of one step of k.
    ///
    /// # Safety
    /// The quantized values of one step of k can be read at `codes`.
    unsafe fn weights(lanes: L, codes: *const u8, head: Head<L::V>) -> L::V;
}

/// Layout whose quantized values have 4 bits, 8 of them in a 32-bit word.
trait Words<L: Lanes> {
    const LAYOUT: Layout;

    /// Loads the header of a unit.
    ///
    /// # Safety
    /// A unit can be read at `unit`.
    unsafe fn head(lanes: L, unit: *const u8) -> Head<L::V>;

    /// Returns the weights of value `i` of each word, `i` below 8.
    fn weights(lanes: L, codes: L::Codes, i: u32, head: Head<L::V>) -> L::V;
}

/// Decodes units of a layout with whole bytes, as [`decode`] does.
///
/// # Safety
/// As [`decode`].
#[inline(always)]
unsafe fn bytes<L: Lanes, B: Bytes<L>, S: Sink<L, NR>, const NR: usize>(
    lanes: L,
    groups: [*const u8; NR],
    units: usize,
    sink: &mut S,
) {
    let (unit, unit_bytes) = (B::LAYOUT.unit(), B::LAYOUT.unit_bytes());
    let mut weights = [lanes.splat(0.0); NR];
    let mut heads = [[lanes.splat(0.0); 2]; NR];
    for u in 0..units {
        // SAFETY: the caller vouches for the unit; loads need no alignment.
        unsafe {
            for g in 0..NR {
                heads[g] = B::head(lanes, groups[g].add(u * unit_bytes));
            }
            for i in 0..unit {
                let at = u * unit_bytes + B::LAYOUT.head_bytes() + i * B::STRIDE;
                for g in 0..NR {
                    weights[g] = B::weights(lanes, groups[g].add(at), heads[g]);
                }
                sink.step(lanes, u * unit + i, &weights);
            }
        }
    }
}

/// Decodes units of a layout with 4-bit values, as [`decode`] does.
///
/// # Safety
/// As [`decode`].
#[inline(always)]
unsafe fn words<L: Lanes, W: Words<L>, S: Sink<L, NR>, const NR: usize>(
    lanes: L,
    groups: [*const u8; NR],
    units: usize,
    sink: &mut S,
) {
    let (unit, unit_bytes) = (W::LAYOUT.unit(), W::LAYOUT.unit_bytes());
    let mut weights = [lanes.splat(0.0); NR];
    let mut heads = [[lanes.splat(0.0); 2]; NR];
    for u in 0..units {
        // SAFETY: the caller vouches for the unit; loads need no alignment.
        unsafe {
            for g in 0..NR {
                heads[g] = W::head(lanes, groups[g].add(u * unit_bytes));
            }
            for word in 0..unit / 8 {
                let at = u * unit_bytes + W::LAYOUT.head_bytes() + word * 64;
                let mut codes = [lanes.load_codes(groups[0].add(at)); NR];
                for g in 1..NR {
                    codes[g] = lanes.load_codes(groups[g].add(at));
                }
                for i in 0..8 {
                    for g in 0..NR {
                        weights[g] = W::weights(lanes, codes[g], i, heads[g]);
                    }
                    sink.step(lanes, u * unit + word * 8 + i as usize, &weights);
                }
            }
        }
    }
}

/// Declares a layout of unquantized floats: no header, and the function that loads 16 of them.
macro_rules! floats {
    ($name:ident, $load:ident, $bytes:expr) => {
        struct $name;

        impl<L: Lanes> Bytes<L> for $name {
            const LAYOUT: Layout = Layout::$name;
            const STRIDE: usize = $bytes * LANES;

            #[inline(always)]
            unsafe fn head(lanes: L, _: *const u8) -> Head<L::V> {
                [lanes.splat(0.0); 2]
            }

            #[inline(always)]
            unsafe fn weights(lanes: L, codes: *const u8, _: Head<L::V>) -> L::V {
                // SAFETY: the caller vouches for sixteen values.
                unsafe { lanes.$load(codes.cast()) }
            }
        }
    };
}

floats!(F32, load, 4);
floats!(F16, load_f16, 2);
floats!(Bf16, load_bf16, 2);

struct Q8_0;

impl<L: Lanes> Bytes<L> for Q8_0 {
    const LAYOUT: Layout = Layout::Q8_0;

    #[inline(always)]
    unsafe fn head(lanes: L, unit: *const u8) -> Head<L::V> {
        // SAFETY: a unit begins with sixteen f16.
        unsafe { [lanes.load_f16(unit.cast()); 2] }
    }

    #[inline(always)]
    unsafe fn weights(lanes: L, codes: *const u8, [scale, _]: Head<L::V>) -> L::V {
        // SAFETY: the caller vouches for 16 quantized values.
        lanes.mul(unsafe { lanes.load_i8(codes.cast()) }, scale)
    }
}

struct F8E4M3;

impl<L: Lanes> Bytes<L> for F8E4M3 {
    const LAYOUT: Layout = Layout::F8E4M3;

    #[inline(always)]
    unsafe fn head(lanes: L, unit: *const u8) -> Head<L::V> {
        // SAFETY: a unit begins with sixteen f32.
        unsafe { [lanes.load(unit.cast()); 2] }
    }

    #[inline(always)]
    unsafe fn weights(lanes: L, codes: *const u8, [scale, _]: Head<L::V>) -> L::V {
        // SAFETY: the caller vouches for 16 quantized values.
        lanes.mul(unsafe { lanes.load_e4m3(codes) }, scale)
    }
}

struct Affine8;

impl<L: Lanes> Bytes<L> for Affine8 {
    const LAYOUT: Layout = Layout::Affine8;

    #[inline(always)]
    unsafe fn head(lanes: L, unit: *const u8) -> Head<L::V> {
        // SAFETY: a unit begins with sixteen f32 and sixteen more.
        unsafe { [lanes.load(unit.cast()), lanes.load(unit.add(4 * LANES).cast())] }
    }

    #[inline(always)]
    unsafe fn weights(lanes: L, codes: *const u8, [scale, minimum]: Head<L::V>) -> L::V {
        // SAFETY: the caller vouches for 16 quantized values.
        lanes.fma(unsafe { lanes.load_i8(codes.cast()) }, scale, minimum)
    }
}

struct Q4_1;

impl<L: Lanes> Words<L> for Q4_1 {
    const LAYOUT: Layout = Layout::Q4_1;

    #[inline(always)]
    unsafe fn head(lanes: L, unit: *const u8) -> Head<L::V> {
        // SAFETY: a unit begins with sixteen f16 and sixteen more.
        unsafe { [lanes.load_f16(unit.cast()), lanes.load_f16(unit.add(2 * LANES).cast())] }
    }

    #[inline(always)]
    fn weights(lanes: L, codes: L::Codes, i: u32, [scale, minimum]: Head<L::V>) -> L::V {
        lanes.fma(lanes.code(codes, i), scale, minimum)
    }
}

struct Affine4;

impl<L: Lanes> Words<L> for Affine4 {
    const LAYOUT: Layout = Layout::Affine4;

    #[inline(always)]
    unsafe fn head(lanes: L, unit: *const u8) -> Head<L::V> {
        // SAFETY: a unit begins with sixteen f32 and sixteen more.
        unsafe { [lanes.load(unit.cast()), lanes.load(unit.add(4 * LANES).cast())] }
    }

    #[inline(always)]
    fn weights(lanes: L, codes: L::Codes, i: u32, [scale, minimum]: Head<L::V>) -> L::V {
        lanes.fma(lanes.code(codes, i), scale, minimum)
    }
}

struct Mxfp4;

impl<L: Lanes> Words<L> for Mxfp4 {
    const LAYOUT: Layout = Layout::Mxfp4;

    #[inline(always)]
    unsafe fn head(lanes: L, unit: *const u8) -> Head<L::V> {
        // SAFETY: a unit begins with sixteen f32.
        unsafe { [lanes.load(unit.cast()); 2] }
    }

    #[inline(always)]
    fn weights(lanes: L, codes: L::Codes, i: u32, [scale, _]: Head<L::V>) -> L::V {
        lanes.mul(lanes.pick(codes, i, &E2M1), scale)
    }
}
