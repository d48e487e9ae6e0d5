//! Weight matrix quantized to unsigned bytes, one scale per output column, packed for the int8
//! micro-kernel.
//!
//! A tile is [`TILE`] output columns. Within it k rises; for each step (8-bit weights) or each
//! block (4-bit weights) the groups of 16 columns lie side by side:
//! - 8 bits: steps of 4 k, `[16][4]` quantized values;
//! - 4 bits: blocks of 32 k, `[16]` factors and `[16]` addends that turn 4-bit values into bytes,
//!   then words of 8 quantized values in the order of [`nibble`].
//!
//! Columns past the last are zeros.

#![expect(unsafe_code, reason = "tiles packed in parallel")]

use super::{BLOCK, BLOCK_BYTES, SEGMENT, STEP, STEP_BYTES, TILE, TILE_GROUPS, ZERO};
use crate::lanes::LANES;
use crate::pack::{Aligned, part_of};
use crate::pool::Pool;
use crate::shared::Shared;
use engine_core::{HostMatrix, WeightType};
use engine_weights::blocks;
use engine_weights::format::dequantize;

/// Largest quantized weight before [`ZERO`] is added; the smallest is its negative.
const TOP: f32 = 127.0;
/// Fixed-point scale of factors and addends: the byte is the upper half of their 16-bit result.
const FRACTION: f32 = 256.0;

/// Number of bits of a stored quantized value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Width {
    Four,
    Eight,
}

impl Width {
    /// Returns the number of bits in which weights of type `stored` are packed.
    pub(super) fn of(stored: WeightType) -> Self {
        match stored {
            WeightType::Q4_0 | WeightType::Q4_1 | WeightType::Q4K => Self::Four,
            _ => Self::Eight,
        }
    }
}

/// Packed int8 weights of some consecutive output columns, all of one width.
#[derive(Debug)]
pub(in super::super) struct Weights {
    pub(super) width: Width,
    /// Index of the first output column that these weights compute.
    pub(in super::super) first: usize,
    pub(in super::super) n: usize,
    pub(super) k: usize,
    data: Aligned,
    /// Scales, `[N]` padded to whole tiles: the weight that quantized value 1 stands for.
    pub(super) scales: Vec<f32>,
}

impl Weights {
    /// Packs the rows of `parts`, which must have one width, on the threads of `pool`.
    pub(in super::super) fn pack(parts: &[HostMatrix<'_>], first: usize, pool: &mut Pool) -> Self {
        let (width, k) = (Width::of(parts[0].weight_type), parts[0].k);
        let n: usize = parts.iter().map(|part| part.n).sum();
        let mut weights = Self { width, first, n, k, data: Aligned::zeroed(0), scales: Vec::new() };
        let (tiles, tile_bytes) = (weights.tiles(), weights.tile_bytes());
        weights.data = Aligned::zeroed(tiles * tile_bytes);
        weights.scales = vec![0.0; tiles * TILE];
        let data = Shared::new(weights.data.bytes_mut());
        let scales = Shared::new(&mut weights.scales);
        pool.items(tiles, &|_, tile| {
            // SAFETY: each tile has its own bytes and scales, and each item is one tile.
            let (data, scales) = unsafe {
                (data.part(tile * tile_bytes, tile_bytes), scales.part(tile * TILE, TILE))
            };
            let mut row = Row { values: vec![0.0; k], width };
            for (column, scale) in scales.iter_mut().enumerate() {
                match part_of(parts, tile * TILE + column) {
                    Some((part, n)) => {
                        *scale = row.put(part.weight_type, part.row(n), column, data)
                    }
                    None => row.put_zeros(0, column, data),
                }
            }
        });
        weights
    }

    /// Returns true if `a` and `b` have one width and can be packed together.
    pub(in super::super) fn are_alike(a: &HostMatrix<'_>, b: &HostMatrix<'_>) -> bool {
        Width::of(a.weight_type) == Width::of(b.weight_type)
    }

    /// Returns the number of tiles of output columns.
    pub(super) fn tiles(&self) -> usize {
        self.n.div_ceil(TILE)
    }

    /// Returns K rounded up to whole segments.
    pub(super) fn padded_k(&self) -> usize {
        self.k.next_multiple_of(SEGMENT)
    }

    /// Returns the number of bytes of `k` steps of a tile, where `k` is a multiple of the block
    /// size.
    pub(super) fn bytes_of(&self, k: usize) -> usize {
        match self.width {
            Width::Eight => k * TILE,
            Width::Four => k / BLOCK * TILE_GROUPS * BLOCK_BYTES,
        }
    }

    fn tile_bytes(&self) -> usize {
        self.bytes_of(self.padded_k())
    }

    /// Returns the packed bytes of a tile.
    pub(super) fn tile(&self, tile: usize) -> &[u8] {
        &self.data.bytes()[tile * self.tile_bytes()..][..self.tile_bytes()]
    }

    /// Writes row `n` of the matrix, dequantized, to `out`, K elements.
    pub(in super::super) fn row(&self, n: usize, out: &mut [f32]) {
        let (tile, column) = ((n - self.first) / TILE, (n - self.first) % TILE);
        let (data, scale) = (self.tile(tile), self.scales[n - self.first]);
        for (k, x) in out[..self.k].iter_mut().enumerate() {
            let code = match self.width {
                Width::Eight => data[byte_at(k, column)],
                Width::Four => widened(data, k, column),
            };
            *x = scale * (i32::from(code) - ZERO) as f32;
        }
    }
}

/// Returns the index of the byte of step `k` in a tile of 8-bit weights.
fn byte_at(k: usize, column: usize) -> usize {
    let (group, lane) = (column / LANES, column % LANES);
    (k / STEP * TILE_GROUPS + group) * STEP_BYTES + lane * STEP + k % STEP
}

/// Returns the index in a tile of 4-bit weights at which the block of step `k` and the column's
/// group begins.
fn block_at(k: usize, column: usize) -> usize {
    (k / BLOCK * TILE_GROUPS + column / LANES) * BLOCK_BYTES
}

/// Returns the index of step `k`, below 8, among the 4-bit values of its word. The order lets one
/// mask of the shifted word leave the values of steps 0 and 2, or 1 and 3, in the 16-bit halves of
/// each lane.
pub(super) fn nibble(k: usize) -> usize {
    k / 4 * 2 + k % 2 + k % 4 / 2 * 4
}

/// Packs eight 4-bit values into a word, in the order of [`nibble`].
fn word_of(codes: [i8; 8]) -> u32 {
    let codes = u64::from_le_bytes(codes.map(i8::cast_unsigned));
    // Steps 0 and 1 share the lowest byte of the first 16 bits, 2 and 3 that of the next, ...
    let pairs = (codes | codes >> 4) & 0x00ff_00ff_00ff_00ff;
    // ... and the pairs from step 4 on fill the bytes in between.
    (pairs | pairs >> 24) as u32
}

/// Returns the byte index within its block of the 4-bit value of step `k`, and the shift of that
/// value within the byte.
fn nibble_at(k: usize, column: usize) -> (usize, usize) {
    let nibble = nibble(k % 8);
    (4 * LANES + (k % BLOCK / 8 * LANES + column % LANES) * 4 + nibble / 2, nibble % 2 * 4)
}

/// Returns the byte to which the 4-bit weight at step `k` of a column is widened.
fn widened(data: &[u8], k: usize, column: usize) -> u8 {
    let (block, lane) = (&data[block_at(k, column)..][..BLOCK_BYTES], column % LANES);
    let half = |at: usize| u16::from_le_bytes([block[at], block[at + 1]]);
    let (at, shift) = nibble_at(k, column);
    let code = u16::from((block[at] >> shift) & 15);
    let value = half(2 * lane).wrapping_mul(code).wrapping_add(half(2 * (LANES + lane)));
    (value >> 8) as u8
}

/// Stored row that is being quantized into one output column of a tile.
struct Row {
    /// Dequantized values of the stored row, `[K]`.
    values: Vec<f32>,
    width: Width,
}

impl Row {
    /// Quantizes a stored row into `column` of the tile and returns its scale.
    fn put(&mut self, stored: WeightType, bytes: &[u8], column: usize, data: &mut [u8]) -> f32 {
        match self.width {
            Width::Eight => self.put_bytes(stored, bytes, column, data),
            Width::Four => self.put_nibbles(stored, bytes, column, data),
        }
    }

    /// Quantizes a stored row to 8 bits in `column` of the tile, by its largest magnitude.
    fn put_bytes(
        &mut self,
        stored: WeightType,
        bytes: &[u8],
        column: usize,
        data: &mut [u8],
    ) -> f32 {
        dequantize(stored, bytes, &mut self.values);
        let top = self.values.iter().fold(0.0f32, |top, w| top.max(w.abs()));
        let inverse = inverse(top);
        self.put_zeros(self.values.len(), column, data);
        for (step, values) in self.values.chunks(STEP).enumerate() {
            let at = byte_at(step * STEP, column);
            for (byte, w) in data[at..at + STEP].iter_mut().zip(values) {
                *byte = (nearest(w * inverse) + ZERO) as u8;
            }
        }
        top / TOP
    }

    /// Copies a stored row of 4-bit weights to `column` of the tile, with factors and addends that
    /// map its blocks' scales to the column's single scale.
    fn put_nibbles(&self, stored: WeightType, bytes: &[u8], column: usize, data: &mut [u8]) -> f32 {
        let mut top = 0.0f32;
        each_block(stored, bytes, |_, scale, minimum, _| {
            // The product is exact in f32: it has at most 21 significant bits.
            top = top.max(minimum.abs()).max((15.0 * scale + minimum).abs());
        });
        let inverse = inverse(top);
        self.put_zeros(self.values.len(), column, data);
        each_block(stored, bytes, |k, scale, minimum, codes| {
            let block = &mut data[block_at(k, column)..][..BLOCK_BYTES];
            let factor = nearest(scale * inverse * FRACTION);
            // The addend has half a step more, so that the high byte is the nearest quantized
            // value.
            let addend = (minimum * inverse + ZERO as f32 + 0.5) * FRACTION;
            put_heads(block, column, factor, nearest(addend));
            let (codes, _) = codes.as_chunks::<8>();
            for (word, codes) in codes.iter().enumerate() {
                let at = 4 * (LANES + word * LANES + column % LANES);
                block[at..at + 4].copy_from_slice(&word_of(*codes).to_le_bytes());
            }
        });
        top / TOP
    }

    /// Fills the column with quantized zeros from step `first` on, which must begin a block if
    /// weights have 4 bits.
    fn put_zeros(&self, first: usize, column: usize, data: &mut [u8]) {
        let padded = self.values.len().next_multiple_of(SEGMENT);
        match self.width {
            Width::Eight => {
                for k in first..padded {
                    data[byte_at(k, column)] = ZERO as u8;
                }
            }
            Width::Four => {
                for k in (first..padded).step_by(BLOCK) {
                    let block = &mut data[block_at(k, column)..][..BLOCK_BYTES];
                    put_heads(block, column, 0, ZERO * FRACTION as i32);
                }
            }
        }
    }
}

/// Returns the factor from values to quantized values for the largest magnitude `top`; zero where
/// all values are zero.
fn inverse(top: f32) -> f32 {
    if top < 1e-30 { 0.0 } else { TOP / top }
}

/// Rounds to the nearest whole number, ties to even, for magnitudes below 2^22. This replaces
/// `f32::round_ties_even`, which is a library call without SSE4.1 and would be made for each
/// weight.
fn nearest(x: f32) -> i32 {
    const MAGIC: f32 = 12_582_912.0;
    (x + MAGIC).to_bits().wrapping_sub(MAGIC.to_bits()).cast_signed()
}

/// Stores a column's factor and addend modulo 2^16. Only their combined result matters, and it is
/// below 2^16.
fn put_heads(block: &mut [u8], column: usize, factor: i32, addend: i32) {
    for (value, start) in [(factor, 0), (addend, LANES)] {
        let at = 2 * (start + column % LANES);
        block[at..at + 2].copy_from_slice(&(value as u16).to_le_bytes());
    }
}

/// Calls `each` with the first step, scale, minimum and quantized values of every 32 elements of
/// the row.
fn each_block(stored: WeightType, bytes: &[u8], mut each: impl FnMut(usize, f32, f32, &[i8])) {
    let mut k = 0;
    for block in bytes.chunks_exact(stored.block_bytes()) {
        blocks::parts(stored, block, |scale, minimum, codes| {
            for codes in codes.chunks_exact(BLOCK) {
                each(k, scale, minimum, codes);
                k += BLOCK;
            }
        });
    }
}
