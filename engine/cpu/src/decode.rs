//! Packed weights on their way into the kernels: units of every layout decoded in registers.
//!
//! Everything here is `#[inline(always)]`, as it has to be compiled for the caller's instructions.

#![expect(unsafe_code, reason = "vector loads through pointers that callers vouch for")]

use super::lanes::{LANES, Lanes};
use super::layout::{E2M1, Layout};

/// Takes the weights of `NR` groups, one k after another.
pub(super) trait Sink<L: Lanes, const NR: usize> {
    /// `k` counts from where decoding began. To be `#[inline(always)]`.
    fn step(&mut self, lanes: L, k: usize, weights: &[L::V; NR]);
}

/// Gives `units` units of each of `groups` to `sink`, k rising.
///
/// # Safety
/// Each group holds so many units of `layout`.
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

/// What stands before the codes of a unit: scales and minima, or twice the scales.
type Head<V> = [V; 2];

/// A layout whose codes are whole bytes.
trait Bytes<L: Lanes> {
    const LAYOUT: Layout;
    /// Bytes of one k of sixteen columns.
    const STRIDE: usize = LANES;

    /// # Safety
    /// A unit can be read at `unit`.
    unsafe fn head(lanes: L, unit: *const u8) -> Head<L::V>;

    /// # Safety
    /// The codes of one k can be read at `codes`.
    unsafe fn weights(lanes: L, codes: *const u8, head: Head<L::V>) -> L::V;
}

/// A layout whose codes have four bits.
trait Words<L: Lanes> {
    const LAYOUT: Layout;

    /// # Safety
    /// A unit can be read at `unit`.
    unsafe fn head(lanes: L, unit: *const u8) -> Head<L::V>;

    /// The weights of code `i` of each word.
    fn weights(lanes: L, codes: L::Codes, i: u32, head: Head<L::V>) -> L::V;
}

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

/// Declares a layout of plain floats: nothing before them, and how sixteen are loaded.
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
        // SAFETY: the caller vouches for sixteen codes.
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
        // SAFETY: the caller vouches for sixteen codes.
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
        // SAFETY: the caller vouches for sixteen codes.
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
