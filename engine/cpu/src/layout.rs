//! Memory layouts of packed weights for the f32 GEMM: packing of stored rows, and dequantization in
//! registers.
//!
//! A group of packed weights is 16 output columns. Within it k rises, a unit of k at a time:
//! - `F32`, `F16`, `Bf16`: units of one k, `[16]` values;
//! - `Q8_0`: units of 32 k, `[16]` f16 scales, then `[32][16]` signed bytes;
//! - `Q4_1`: units of 32 k, `[16]` f16 scales, `[16]` f16 minima, then `[4][16]` 32-bit words of
//!   eight 4-bit values each, k rising from the low bits;
//! - `Affine4`: as `Q4_1` with f32 scales and minima;
//! - `Affine8`: units of 16 k, `[16]` f32 scales, `[16]` f32 minima, then `[16][16]` signed bytes;
//! - `Mxfp4`: units of 32 k, `[16]` halves of scales as f32, since values are decoded doubled, then
//!   words of 4-bit values as in `Q4_1`;
//! - `F8E4M3`: units of 32 k, `[16]` f32 scales, then `[32][16]` E4M3 floats.
//!
//! Each type of stored weights has a layout that holds exactly the values that `dequantize`
//! returns.

#![expect(unsafe_code, reason = "vector loads from units of a checked group")]

use half::{bf16, f16};

use super::lanes::{E2M1_DOUBLED, LANES, Lanes, Part};
use engine_core::WeightType;
use engine_weights::blocks;

/// Memory layout of packed weights in a group of 16 output columns; the heading of this file
/// describes each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    F32,
    F16,
    Bf16,
    F8E4M3,
    Q4_1,
    Q8_0,
    Affine4,
    Affine8,
    Mxfp4,
}

impl Layout {
    /// All memory layouts of packed weights, in the order of their discriminants.
    const ALL: [Self; 9] = [
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::F8E4M3,
        Self::Q4_1,
        Self::Q8_0,
        Self::Affine4,
        Self::Affine8,
        Self::Mxfp4,
    ];

    /// Returns the memory layout in which weights stored as `stored` are packed for the f32 GEMM.
    pub(super) fn of(stored: WeightType) -> Self {
        match stored {
            WeightType::F32 => Self::F32,
            WeightType::F16 => Self::F16,
            WeightType::Bf16 => Self::Bf16,
            WeightType::F8E4M3 => Self::F8E4M3,
            WeightType::Q4_1 => Self::Q4_1,
            // Five-bit values have no vector load of their own and are widened to bytes.
            WeightType::Q5_0 | WeightType::Q8_0 => Self::Q8_0,
            // Their scales or minima are computed from the stored f16 and need f32 to be exact.
            WeightType::Q4_0 | WeightType::Q4K => Self::Affine4,
            WeightType::Q5_1 | WeightType::Q5K | WeightType::Q6K => Self::Affine8,
            WeightType::Mxfp4 => Self::Mxfp4,
        }
    }

    /// Returns the number of steps of k in a unit of packed weights, which share scales if the
    /// layout has any.
    pub(super) const fn unit(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 1,
            Self::Affine8 => 16,
            Self::F8E4M3 | Self::Q4_1 | Self::Q8_0 | Self::Affine4 | Self::Mxfp4 => 32,
        }
    }

    /// Returns the number of bytes of scales and minima at the beginning of a unit of packed
    /// weights.
    const fn head_bytes(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 0,
            Self::Q8_0 => 2 * LANES,
            Self::Q4_1 | Self::F8E4M3 | Self::Mxfp4 => 4 * LANES,
            Self::Affine4 | Self::Affine8 => 8 * LANES,
        }
    }

    /// Returns the number of bits of a packed weight, without scales.
    const fn bits(self) -> usize {
        match self {
            Self::F32 => 32,
            Self::F16 | Self::Bf16 => 16,
            Self::F8E4M3 | Self::Q8_0 | Self::Affine8 => 8,
            Self::Q4_1 | Self::Affine4 | Self::Mxfp4 => 4,
        }
    }

    /// Returns the number of bytes of a unit of packed weights of 16 columns, scales and minima
    /// included.
    pub(super) const fn unit_bytes(self) -> usize {
        self.head_bytes() + self.unit() * LANES * self.bits() / 8
    }

    /// Writes a stored row of weights of type `stored` to column `lane` of a packed `group`.
    pub(super) fn pack(self, stored: WeightType, row: &[u8], lane: usize, group: &mut [u8]) {
        let mut units = group.chunks_exact_mut(self.unit_bytes());
        let blocks = row.chunks_exact(stored.block_bytes());
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => {
                for (unit, value) in units.zip(blocks) {
                    unit[lane * value.len()..(lane + 1) * value.len()].copy_from_slice(value);
                }
            }
            Self::F8E4M3 => {
                for (unit, block) in units.zip(blocks) {
                    unit[4 * lane..4 * lane + 4].copy_from_slice(&block[..4]);
                    bytes(&block[4..], lane, &mut unit[self.head_bytes()..]);
                }
            }
            Self::Mxfp4 => {
                for (unit, block) in units.zip(blocks) {
                    let scale = 0.5 * blocks::e8m0(block[0]);
                    unit[4 * lane..4 * lane + 4].copy_from_slice(&scale.to_le_bytes());
                    let quant = |i: usize| (block[1 + i % 16] >> (i / 16 * 4)) & 15;
                    nibbles(quant, lane, &mut unit[self.head_bytes()..]);
                }
            }
            Self::Q4_1 | Self::Q8_0 | Self::Affine4 | Self::Affine8 => {
                for block in blocks {
                    blocks::parts(stored, block, |scale, minimum, quants| {
                        for quants in quants.chunks_exact(self.unit()) {
                            let unit = units.next().expect("a group has units for its whole rows");
                            self.put(scale, minimum, quants, lane, unit);
                        }
                    });
                }
            }
        }
    }

    /// Writes one unit of column `lane` of a packed group: scale, minimum if the layout has minima,
    /// and quantized values.
    fn put(self, scale: f32, minimum: f32, quants: &[i8], lane: usize, unit: &mut [u8]) {
        let (head, body) = unit.split_at_mut(self.head_bytes());
        let is_half = matches!(self, Self::Q4_1 | Self::Q8_0);
        let size = if is_half { 2 } else { 4 };
        let values = [scale, minimum];
        for (value, out) in values.iter().zip(head.chunks_exact_mut(size * LANES)) {
            let out = &mut out[size * lane..size * (lane + 1)];
            if is_half {
                // The values were converted from f16, so nothing is lost.
                out.copy_from_slice(&f16::from_f32(*value).to_le_bytes());
            } else {
                out.copy_from_slice(&value.to_le_bytes());
            }
        }
        match self {
            Self::Q4_1 | Self::Affine4 => nibbles(|i| quants[i].cast_unsigned(), lane, body),
            _ => bytes(bytemuck::cast_slice(quants), lane, body),
        }
    }

    /// Returns the weight at step `i` of column `lane` of a packed unit, dequantized.
    pub(super) fn value(self, unit: &[u8], i: usize, lane: usize) -> f32 {
        let half = |at: usize| f16::from_le_bytes([unit[at], unit[at + 1]]).to_f32();
        let float = |at: usize| -> f32 { bytemuck::pod_read_unaligned(&unit[at..at + 4]) };
        let body = &unit[self.head_bytes()..];
        let byte = || body[i * LANES + lane];
        let signed = || f32::from(byte().cast_signed());
        let nibble = || (body[i / 8 * 64 + lane * 4 + i % 8 / 2] >> (4 * (i % 2))) & 15;
        match self {
            Self::F32 => float(4 * lane),
            Self::F16 => half(2 * lane),
            Self::Bf16 => bf16::from_le_bytes([unit[2 * lane], unit[2 * lane + 1]]).to_f32(),
            Self::F8E4M3 => blocks::e4m3(byte()) * float(4 * lane),
            Self::Mxfp4 => E2M1_DOUBLED[usize::from(nibble())] * float(4 * lane),
            Self::Q8_0 => half(2 * lane) * signed(),
            Self::Q4_1 => half(2 * lane).mul_add(f32::from(nibble()), half(32 + 2 * lane)),
            Self::Affine4 => float(4 * lane).mul_add(f32::from(nibble()), float(64 + 4 * lane)),
            Self::Affine8 => float(4 * lane).mul_add(signed(), float(64 + 4 * lane)),
        }
    }
}

/// Writes quantized weights of one byte each to column `lane` of a packed unit; the 16 columns are
/// interleaved.
fn bytes(quants: &[u8], lane: usize, out: &mut [u8]) {
    for (quant, out) in quants.iter().zip(out.chunks_exact_mut(LANES)) {
        out[lane] = *quant;
    }
}

/// Writes 32 quantized weights of 4 bits each to column `lane` of a packed unit, eight in each
/// word.
fn nibbles(quant: impl Fn(usize) -> u8, lane: usize, out: &mut [u8]) {
    for i in (0..32).step_by(2) {
        out[i / 8 * 64 + lane * 4 + i % 8 / 2] = quant(i) | (quant(i + 1) << 4);
    }
}

/// Consumer of dequantized weights: receives those of `NR` groups of 16 columns, one step of k
/// after another.
pub(super) trait Consumer<L: Lanes, const NR: usize> {
    /// Receives the dequantized weights of step `k`, counted from the step where decoding began.
    /// Implementations must be `#[inline(always)]`.
    fn step(&mut self, lanes: L, k: usize, weights: &[L::V; NR]);
}

/// Dequantizes the first `steps` steps of k, whole units, of each of `groups`, passes the weights
/// to `consumer` in rising k, and returns the consumer.
#[inline(always)]
pub(super) fn decode<L: Lanes, C: Consumer<L, NR>, const NR: usize>(
    lanes: L,
    layout: Layout,
    groups: [&[u8]; NR],
    steps: usize,
    consumer: C,
) -> C {
    let (unit, bytes) = (layout.unit(), steps / layout.unit() * layout.unit_bytes());
    assert!(steps.is_multiple_of(unit) && groups.iter().all(|group| bytes <= group.len()));
    let (groups, units) = (groups.map(<[u8]>::as_ptr), steps / unit);
    // Selects the loop that is compiled for the layout, so that each match on it folds away.
    macro_rules! decode_by {
        ($($name:ident)*) => {
            match layout {$(
                Layout::$name => {
                    const LAYOUT: usize = Layout::$name as usize;
                    lanes.call(Units::<C, NR, LAYOUT> { groups, units, consumer })
                }
            )*}
        };
    }
    decode_by!(F32 F16 Bf16 F8E4M3 Q4_1 Q8_0 Affine4 Affine8 Mxfp4)
}

/// Header of a unit of packed weights for 16 columns, as two vectors: scales and minima; in layouts
/// without minima the scales twice; in layouts without scales zeros.
type Head<V> = [V; 2];

/// Loop that dequantizes the units of packed groups, with a layout that is known at compile time.
struct Units<C, const NR: usize, const LAYOUT: usize> {
    /// Pointers to the beginnings of packed groups that hold at least `units` units; [`decode`]
    /// checks that they do.
    groups: [*const u8; NR],
    units: usize,
    consumer: C,
}

impl<L: Lanes, C: Consumer<L, NR>, const NR: usize, const LAYOUT: usize> Part<L>
    for Units<C, NR, LAYOUT>
{
    type Output = C;

    #[inline(always)]
    fn run(self, lanes: L) -> C {
        let Self { groups, units, mut consumer } = self;
        let layout = const { Layout::ALL[LAYOUT] };
        let (unit, bits) = const { (Layout::ALL[LAYOUT].unit(), Layout::ALL[LAYOUT].bits()) };
        let mut weights = [lanes.splat(0.0); NR];
        let mut heads = [[lanes.splat(0.0); 2]; NR];
        for u in 0..units {
            let start = u * layout.unit_bytes();
            // SAFETY: the groups hold the unit; loads need no alignment.
            unsafe {
                for g in 0..NR {
                    heads[g] = head(lanes, layout, groups[g].add(start));
                }
                let start = start + layout.head_bytes();
                if bits >= 8 {
                    for i in 0..unit {
                        for g in 0..NR {
                            let from = groups[g].add(start + i * LANES * bits / 8);
                            weights[g] = value(lanes, layout, from, heads[g]);
                        }
                        consumer.step(lanes, u * unit + i, &weights);
                    }
                    continue;
                }
                for word in 0..unit / 8 {
                    let at = start + word * 4 * LANES;
                    let mut words = [lanes.load_words(groups[0].add(at)); NR];
                    for g in 1..NR {
                        words[g] = lanes.load_words(groups[g].add(at));
                    }
                    let k = u * unit + word * 8;
                    macro_rules! steps {
                        ($($i:literal)*) => {$(
                            let weights = nibbles_at(lanes, layout, $i, &words, &heads);
                            consumer.step(lanes, k + $i, &weights);
                        )*};
                    }
                    // Unrolled here, since the compiler does not always do so: with a constant
                    // index, one lookup serves four values.
                    steps!(0 1 2 3 4 5 6 7);
                }
            }
        }
        consumer
    }
}

/// Dequantizes 4-bit value `i` (Q4 or MXFP4) of each word, for each of the groups.
#[inline(always)]
fn nibbles_at<L: Lanes, const NR: usize>(
    lanes: L,
    layout: Layout,
    i: u32,
    words: &[L::Words; NR],
    heads: &[Head<L::V>; NR],
) -> [L::V; NR] {
    let mut weights = [lanes.splat(0.0); NR];
    for g in 0..NR {
        let [scale, minimum] = heads[g];
        weights[g] = match layout {
            Layout::Mxfp4 => lanes.mul(lanes.doubled_e2m1(words[g], i), scale),
            _ => lanes.fma(lanes.nibble(words[g], i), scale, minimum),
        };
    }
    weights
}

/// Loads the header of a unit of packed weights, which has scales and minima as [`Head`] defines.
///
/// # Safety
/// A unit of `layout` can be read at `unit`.
#[inline(always)]
unsafe fn head<L: Lanes>(lanes: L, layout: Layout, unit: *const u8) -> Head<L::V> {
    // SAFETY: the caller vouches for the unit, which begins with so many values.
    unsafe {
        match layout {
            Layout::F32 | Layout::F16 | Layout::Bf16 => [lanes.splat(0.0); 2],
            Layout::Q8_0 => [lanes.load_f16(unit.cast()); 2],
            Layout::F8E4M3 | Layout::Mxfp4 => [lanes.load(unit.cast()); 2],
            Layout::Q4_1 => {
                [lanes.load_f16(unit.cast()), lanes.load_f16(unit.add(2 * LANES).cast())]
            }
            Layout::Affine4 | Layout::Affine8 => {
                [lanes.load(unit.cast()), lanes.load(unit.add(4 * LANES).cast())]
            }
        }
    }
}

/// Dequantizes one step of k of 16 columns, for layouts whose weights are whole bytes.
///
/// # Safety
/// Sixteen values of `layout` can be read at `from`.
#[inline(always)]
unsafe fn value<L: Lanes>(lanes: L, layout: Layout, from: *const u8, head: Head<L::V>) -> L::V {
    let [scale, minimum] = head;
    // SAFETY: the caller vouches for the values.
    unsafe {
        match layout {
            Layout::F32 => lanes.load(from.cast()),
            Layout::F16 => lanes.load_f16(from.cast()),
            Layout::Bf16 => lanes.load_bf16(from.cast()),
            Layout::F8E4M3 => lanes.mul(lanes.load_e4m3(from), scale),
            Layout::Affine8 => lanes.fma(lanes.load_i8(from.cast()), scale, minimum),
            _ => lanes.mul(lanes.load_i8(from.cast()), scale),
        }
    }
}
