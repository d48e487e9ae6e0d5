//! Weights as unsigned codes, a scale for each output column, in the order of the kernels.
//!
//! A tile is [`TILE`] output columns. Within it k rises; for each step, or each block where codes
//! have four bits, the groups of sixteen columns lie side by side:
//! - bytes: steps of 4 k, `[16][4]` codes;
//! - four bits: blocks of 32 k, `[16]` factors and `[16]` addends that make codes of bytes of them,
//!   then words of eight codes ([`nibble`] says which lies where).
//!
//! Columns beyond the last are zeros.

#![expect(unsafe_code, reason = "tiles packed in parallel")]

use super::{BLOCK, BLOCK_BYTES, SEGMENT, STEP, STEP_BYTES, TILE, TILE_GROUPS, ZERO};
use crate::lanes::LANES;
use crate::pack::{Aligned, part_of};
use crate::pool::Pool;
use crate::shared::Shared;
use engine_core::{HostMatrix, WeightType};
use engine_weights::blocks;
use engine_weights::format::dequantize;

/// Largest code of a weight, before [`ZERO`] is added; the smallest is its negative.
const TOP: f32 = 127.0;
/// What a byte's code is multiplied by in factors and addends.
const FRACTION: f32 = 256.0;

/// How many bits a stored code has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Width {
    Four,
    Eight,
}

impl Width {
    pub(super) fn of(stored: WeightType) -> Self {
        match stored {
            WeightType::Q4_0 | WeightType::Q4_1 | WeightType::Q4K => Self::Four,
            _ => Self::Eight,
        }
    }
}

/// Output columns of one width.
#[derive(Debug)]
pub(in super::super) struct Weights {
    pub(super) width: Width,
    /// First output column of the matrix that is here.
    pub(in super::super) first: usize,
    pub(in super::super) n: usize,
    pub(super) k: usize,
    data: Aligned,
    /// `[N]` value of code 1, filled up to whole tiles.
    pub(super) scales: Vec<f32>,
}

impl Weights {
    /// Packs `parts`, which are of one width.
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

    /// Whether `a` and `b` can be packed together.
    pub(in super::super) fn are_alike(a: &HostMatrix<'_>, b: &HostMatrix<'_>) -> bool {
        Width::of(a.weight_type) == Width::of(b.weight_type)
    }

    pub(super) fn tiles(&self) -> usize {
        self.n.div_ceil(TILE)
    }

    /// K rounded up to whole segments.
    pub(super) fn padded_k(&self) -> usize {
        self.k.next_multiple_of(SEGMENT)
    }

    /// Bytes of `k` steps of a tile, whole blocks.
    pub(super) fn bytes_of(&self, k: usize) -> usize {
        match self.width {
            Width::Eight => k * TILE,
            Width::Four => k / BLOCK * TILE_GROUPS * BLOCK_BYTES,
        }
    }

    fn tile_bytes(&self) -> usize {
        self.bytes_of(self.padded_k())
    }

    pub(super) fn tile(&self, tile: usize) -> &[u8] {
        &self.data.bytes()[tile * self.tile_bytes()..][..self.tile_bytes()]
    }

    /// Writes row `n` of the matrix to `out` of K elements.
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

/// Where the byte of step `k` lies in a tile.
fn byte_at(k: usize, column: usize) -> usize {
    let (group, lane) = (column / LANES, column % LANES);
    (k / STEP * TILE_GROUPS + group) * STEP_BYTES + lane * STEP + k % STEP
}

/// Where the block of step `k` of a column's group begins in a tile.
fn block_at(k: usize, column: usize) -> usize {
    (k / BLOCK * TILE_GROUPS + column / LANES) * BLOCK_BYTES
}

/// Where step `k`, below 8, lies in its word: masking the shifted word leaves the codes of steps 0 and
/// 2, or of 1 and 3, in the halves of each lane.
pub(super) fn nibble(k: usize) -> usize {
    k / 4 * 2 + k % 2 + k % 4 / 2 * 4
}

/// Eight codes as a word, in the order of [`nibble`].
fn word_of(codes: [i8; 8]) -> u32 {
    let codes = u64::from_le_bytes(codes.map(i8::cast_unsigned));
    // Steps 0 and 1 share the lowest byte of the first 16 bits, 2 and 3 that of the next, ...
    let pairs = (codes | codes >> 4) & 0x00ff_00ff_00ff_00ff;
    // ... and the pairs from step 4 on go between them.
    (pairs | pairs >> 24) as u32
}

/// Where in its block the byte with the code of step `k` lies, and how far the code is shifted.
fn nibble_at(k: usize, column: usize) -> (usize, usize) {
    let nibble = nibble(k % 8);
    (4 * LANES + (k % BLOCK / 8 * LANES + column % LANES) * 4 + nibble / 2, nibble % 2 * 4)
}

fn widened(data: &[u8], k: usize, column: usize) -> u8 {
    let (block, lane) = (&data[block_at(k, column)..][..BLOCK_BYTES], column % LANES);
    let half = |at: usize| u16::from_le_bytes([block[at], block[at + 1]]);
    let (at, shift) = nibble_at(k, column);
    let code = u16::from((block[at] >> shift) & 15);
    let value = half(2 * lane).wrapping_mul(code).wrapping_add(half(2 * (LANES + lane)));
    (value >> 8) as u8
}

/// One output column on its way into a tile.
struct Row {
    /// `[K]`
    values: Vec<f32>,
    width: Width,
}

impl Row {
    /// Puts a stored row into `column` and returns its scale.
    fn put(&mut self, stored: WeightType, bytes: &[u8], column: usize, data: &mut [u8]) -> f32 {
        match self.width {
            Width::Eight => self.put_bytes(stored, bytes, column, data),
            Width::Four => self.put_nibbles(stored, bytes, column, data),
        }
    }

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

    fn put_nibbles(&self, stored: WeightType, bytes: &[u8], column: usize, data: &mut [u8]) -> f32 {
        let mut top = 0.0f32;
        each_block(stored, bytes, |_, scale, minimum, _| {
            // The product is exact: it has 21 bits at most.
            top = top.max(minimum.abs()).max((15.0 * scale + minimum).abs());
        });
        let inverse = inverse(top);
        self.put_zeros(self.values.len(), column, data);
        each_block(stored, bytes, |k, scale, minimum, codes| {
            let block = &mut data[block_at(k, column)..][..BLOCK_BYTES];
            let factor = nearest(scale * inverse * FRACTION);
            // Half a code more, so that the high byte is the nearest code.
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

    /// Zeros from step `first` on, which begins a block where codes have four bits.
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

/// What turns a value into a code; zero where all values are.
fn inverse(top: f32) -> f32 {
    if top < 1e-30 { 0.0 } else { TOP / top }
}

/// The nearest whole number, of two the even one, of a size below 2^22. `f32::round_ties_even` is a
/// call where the code is compiled for any processor, and there is one for each weight.
fn nearest(x: f32) -> i32 {
    const MAGIC: f32 = 12_582_912.0;
    (x + MAGIC).to_bits().wrapping_sub(MAGIC.to_bits()).cast_signed()
}

/// Factors and addends are taken modulo 2^16: what counts is their sum, which is below that.
fn put_heads(block: &mut [u8], column: usize, factor: i32, addend: i32) {
    for (value, start) in [(factor, 0), (addend, LANES)] {
        let at = 2 * (start + column % LANES);
        block[at..at + 2].copy_from_slice(&(value as u16).to_le_bytes());
    }
}

/// Calls `each` with first step, scale, minimum and codes of the row's parts of 32.
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
