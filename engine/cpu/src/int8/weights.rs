//! Weights quantized to 8 bits or fewer, one scale per output column, packed for the int8
//! micro-kernel.
//!
//! A tile of packed weights is [`TILE`] output columns. Within it k rises; for each step (8-bit
//! weights) or each block (fewer bits) the groups of 16 columns lie side by side:
//! - 8 bits: steps of 4 k, `[16][4]` quantized values;
//! - 4 bits: blocks of 32 k, `[16]` factors and `[16]` addends that turn 4-bit values into bytes,
//!   then words of 8 quantized values in the order of [`nibble`];
//! - 5 and 6 bits: blocks of 32 k, which `bit_fields.rs` describes;
//! - MXFP4: blocks of 32 k, `[16]` halves of scales as f32, since values are doubled, then words of
//!   8 stored values in the order of [`Dots::look_up`].
//!
//! The scales of the tile's columns follow, as f32: the weight that quantized value 1 stands for,
//! or 1 for MXFP4. Columns past the last of the matrix are zeros.
//!
//! [`Dots::look_up`]: crate::lanes::Dots::look_up

use super::activations::{Activations, HEAD_ROWS};
use super::bit_fields::{self, CENTER, SIX_STEPS};
use super::{BlockScaled, Int8, QUANT_GROUP, TILE, TILE_GROUPS, Widened, ZERO};
use crate::gemm::{Gather, Input, Item, MicroKernel};
use crate::isa::Isa;
use crate::lanes::{BLOCK, E2M1_DOUBLED, HEAD_BYTES, LANES, STEP, STEP_BYTES, block_bytes, nibble};
use crate::pool::Pool;
use engine_core::WeightType;
use engine_weights::blocks;
use engine_weights::format::dequantize;

/// Largest quantized weight of the int8 GEMM before [`ZERO`] is added; the smallest is its
/// negative.
const TOP: f32 = 127.0;
/// Fixed-point scale of the factors and addends that widen 4-bit weights: the widened byte is the
/// upper half of their 16-bit result.
const FRACTION: f32 = 256.0;

/// Number of bytes of the scales of the columns of a packed tile of the int8 GEMM.
const SCALE_BYTES: usize = TILE * size_of::<f32>();

/// Number of bits of a packed weight of the int8 GEMM. MXFP4 weights have four bits, which are no
/// whole number but a float.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Width {
    Four,
    Mxfp4,
    Five,
    Six,
    Eight,
}

impl Width {
    /// Returns the number of bits in which the int8 GEMM packs weights of type `stored`.
    pub(crate) fn of(stored: WeightType) -> Self {
        match stored {
            WeightType::Q4_0 | WeightType::Q4_1 | WeightType::Q4K => Self::Four,
            WeightType::Q5_0 | WeightType::Q5_1 | WeightType::Q5K => Self::Five,
            WeightType::Q6K => Self::Six,
            WeightType::Mxfp4 => Self::Mxfp4,
            _ => Self::Eight,
        }
    }

    /// Returns the number of bytes of `k` steps of a packed tile, where `k` is a multiple of the
    /// block size of weights of fewer than 8 bits.
    #[inline(always)]
    pub(super) fn bytes_of(self, k: usize) -> usize {
        match self {
            Self::Eight => k * TILE,
            width => k / BLOCK * TILE_GROUPS * block_bytes(width.bits()),
        }
    }

    /// Returns the number of bits of a packed weight.
    #[inline(always)]
    fn bits(self) -> usize {
        match self {
            Self::Four | Self::Mxfp4 => 4,
            Self::Five => 5,
            Self::Six => 6,
            Self::Eight => 8,
        }
    }

    /// Returns the index of the first byte, in a packed tile of weights of fewer than 8 bits, of
    /// the block that has step `k` of column `column` and of the other columns in its group of 16.
    fn block_at(self, k: usize, column: usize) -> usize {
        self.bytes_of(k / BLOCK * BLOCK) + column / LANES * self.bytes_of(BLOCK) / TILE_GROUPS
    }
}

/// Returns the scales, one per output column, of a packed tile.
#[inline(always)]
pub(super) fn scales(tile: &[u8]) -> &[f32] {
    bytemuck::cast_slice(&tile[tile.len() - SCALE_BYTES..])
}

impl MicroKernel for Int8 {
    type Activations = Activations;
    type Element = i8;
    type Format = Width;
    type Scratch = Widened;

    const COLUMNS: usize = TILE;
    /// Number of rows that the int8 GEMM never splits: those whose activation scales are stored
    /// side by side.
    const UNIT_ROWS: usize = HEAD_ROWS;
    const UNIT_K: usize = QUANT_GROUP;

    fn convert(x: &mut Activations, isa: Isa, pool: &mut Pool, values: &[f32], k: usize) {
        x.quantize(isa, pool, values, k);
    }

    fn gather(
        x: &mut Activations,
        isa: Isa,
        pool: &mut Pool,
        input: Input<'_, Self>,
        gather: &Gather<'_>,
    ) {
        x.gather(isa, pool, input, gather);
    }

    fn tile_bytes(width: Width, k: usize) -> usize {
        width.bytes_of(k.next_multiple_of(QUANT_GROUP)) + SCALE_BYTES
    }

    fn pack<'a>(
        width: Width,
        k: usize,
        column: &dyn Fn(usize) -> Option<(WeightType, &'a [u8])>,
        tile: &mut [u8],
    ) {
        let (data, scales) = tile.split_at_mut(tile.len() - SCALE_BYTES);
        let scales: &mut [f32] = bytemuck::cast_slice_mut(scales);
        let mut row = Row { values: vec![0.0; k], width };
        for (index, scale) in scales.iter_mut().enumerate() {
            match column(index) {
                Some((stored, bytes)) => *scale = row.put(stored, bytes, index, data),
                None => row.put_zeros(0, index, data),
            }
        }
    }

    fn chunk_rows(width: Width) -> usize {
        if width == Width::Eight { Self::UNIT_ROWS } else { Self::BLOCK_ROWS }
    }

    fn unpack(width: Width, tile: &[u8], column: usize, out: &mut [f32]) {
        let scale = scales(tile)[column];
        let weight = |byte: u8| scale * (i32::from(byte) - ZERO) as f32;
        match width {
            Width::Eight => {
                out.iter_mut().enumerate().for_each(|(k, x)| *x = weight(tile[byte_at(k, column)]));
            }
            Width::Four => {
                out.iter_mut().enumerate().for_each(|(k, x)| *x = weight(widened(tile, k, column)));
            }
            Width::Mxfp4 => {
                out.iter_mut().enumerate().for_each(|(k, x)| *x = mxfp4(tile, k, column));
            }
            Width::Five | Width::Six => {
                for (i, out) in out.chunks_mut(BLOCK).enumerate() {
                    let block = &tile[width.block_at(i * BLOCK, column)..];
                    let bytes = bit_fields::bytes(width.bits(), block, column % LANES);
                    out.iter_mut().zip(bytes).for_each(|(x, byte)| *x = weight(byte));
                }
            }
        }
    }

    #[inline(always)]
    fn scales(tile: &[u8]) -> Option<&[f32]> {
        Some(scales(tile))
    }

    fn run(isa: Isa, item: Item<'_, '_, Self>) {
        match item.w.format {
            Width::Mxfp4 => isa.run_dots(BlockScaled(item)),
            _ => isa.run_dots(item),
        }
    }
}

/// Returns the index in a packed tile of the byte of step `k` of output column `column`, for 8-bit
/// weights.
fn byte_at(k: usize, column: usize) -> usize {
    let (group, lane) = (column / LANES, column % LANES);
    (k / STEP * TILE_GROUPS + group) * STEP_BYTES + lane * STEP + k % STEP
}

/// Packs the 4-bit weights of eight steps of k into a word, in the order of [`nibble`].
fn word_of(quantized: [i8; 8]) -> u32 {
    let quantized = u64::from_le_bytes(quantized.map(i8::cast_unsigned));
    // Steps 0 and 1 share the lowest byte of the first 16 bits, 2 and 3 that of the next, ...
    let pairs = (quantized | quantized >> 4) & 0x00ff_00ff_00ff_00ff;
    // ... and the pairs from step 4 on fill the bytes in between.
    (pairs | pairs >> 24) as u32
}

/// Returns where a block of packed 4-bit weights holds step `k` of a column: the index of the byte
/// in the block, and the shift of the 4-bit value in the byte.
fn nibble_at(k: usize, column: usize) -> (usize, usize) {
    let nibble = nibble(k % 8);
    (HEAD_BYTES + (k % BLOCK / 8 * LANES + column % LANES) * 4 + nibble / 2, nibble % 2 * 4)
}

/// Returns the byte to which the packed 4-bit weight at step `k` of a column is widened.
fn widened(data: &[u8], k: usize, column: usize) -> u8 {
    let (block, lane) =
        (&data[Width::Four.block_at(k, column)..][..block_bytes(4)], column % LANES);
    let half = |at: usize| u16::from_le_bytes([block[at], block[at + 1]]);
    let (at, shift) = nibble_at(k, column);
    let quantized = u16::from((block[at] >> shift) & 15);
    let value = half(2 * lane).wrapping_mul(quantized).wrapping_add(half(2 * (LANES + lane)));
    (value >> 8) as u8
}

/// Returns the packed MXFP4 weight at step `k` of a column.
fn mxfp4(data: &[u8], k: usize, column: usize) -> f32 {
    let (block, lane) = (&data[Width::Mxfp4.block_at(k, column)..], column % LANES);
    let scale: f32 = bytemuck::pod_read_unaligned(&block[4 * lane..][..4]);
    let byte = block[HEAD_BYTES + (k % BLOCK / 8 * LANES + lane) * STEP + k % STEP];
    scale * E2M1_DOUBLED[usize::from(byte >> (k / STEP % 2 * 4)) & 15]
}

/// Stored row of weights that is being quantized into one output column of a packed tile.
struct Row {
    /// Dequantized weights of the stored row, `[K]`.
    values: Vec<f32>,
    width: Width,
}

impl Row {
    /// Packs a stored row of weights into `column` of the tile and returns its scale: as int8, or
    /// for a tile of fewer bits the stored values.
    fn put(&mut self, stored: WeightType, bytes: &[u8], column: usize, data: &mut [u8]) -> f32 {
        match self.width {
            Width::Eight => self.put_bytes(stored, bytes, column, data),
            Width::Four => self.put_nibbles(stored, bytes, column, data),
            Width::Mxfp4 => {
                put_mxfp4(bytes, column, data);
                1.0
            }
            Width::Five | Width::Six => self.put_fields(stored, bytes, column, data),
        }
    }

    /// Dequantizes a stored row of weights and returns their largest magnitude.
    fn dequantize(&mut self, stored: WeightType, bytes: &[u8]) -> f32 {
        dequantize(stored, bytes, &mut self.values);
        self.values.iter().fold(0.0f32, |top, w| top.max(w.abs()))
    }

    /// Quantizes a stored row of weights to 8 bits in `column` of the packed tile, by its largest
    /// magnitude, and returns its scale.
    fn put_bytes(
        &mut self,
        stored: WeightType,
        bytes: &[u8],
        column: usize,
        data: &mut [u8],
    ) -> f32 {
        let top = self.dequantize(stored, bytes);
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

    /// Copies a stored row of 4-bit weights to `column` of the packed tile, with factors and
    /// addends that map the scales of its blocks to the column's single scale, and returns that
    /// scale.
    fn put_nibbles(&self, stored: WeightType, bytes: &[u8], column: usize, data: &mut [u8]) -> f32 {
        let mut top = 0.0f32;
        each_part::<BLOCK>(stored, bytes, |_, scale, minimum, _| {
            // The product is exact in f32: it has at most 21 significant bits.
            top = top.max(minimum.abs()).max((15.0 * scale + minimum).abs());
        });
        let inverse = inverse(top);
        self.put_zeros(self.values.len(), column, data);
        each_part::<BLOCK>(stored, bytes, |k, scale, minimum, quantized| {
            let block = &mut data[self.width.block_at(k, column)..][..block_bytes(4)];
            let factor = nearest(scale * inverse * FRACTION);
            // The addend has half a step more, so that the high byte is the nearest quantized
            // value.
            let addend = (minimum * inverse + ZERO as f32 + 0.5) * FRACTION;
            put_heads(block, column, factor, nearest(addend));
            let (quantized, _) = quantized.as_chunks::<8>();
            for (word, quantized) in quantized.iter().enumerate() {
                put_word(block, word, column, word_of(*quantized));
            }
        });
        top / TOP
    }

    /// Packs the stored values of a row of 5- or 6-bit weights into `column` of the tile, with
    /// factors and addends that turn them into the bytes to which [`Row::put_bytes`] rounds the
    /// weights, and returns the column's scale.
    fn put_fields(
        &mut self,
        stored: WeightType,
        bytes: &[u8],
        column: usize,
        data: &mut [u8],
    ) -> f32 {
        let top = self.dequantize(stored, bytes);
        let inverse = inverse(top);
        self.put_zeros(self.values.len(), column, data);
        let (values, width) = (&self.values, self.width);
        if width == Width::Six {
            each_part::<SIX_STEPS>(stored, bytes, |k, scale, _, quantized| {
                let block = &mut data[width.block_at(k, column)..];
                let (mut quantized, part) = (*quantized, k % BLOCK / SIX_STEPS);
                let wanted = bytes_of(&values[k..], inverse);
                let factor = bit_fields::fit_six(scale * inverse, &mut quantized, &wanted);
                put_head(block, part, column, factor.into());
                let words = bit_fields::pack_six(&quantized);
                for (i, word) in words.into_iter().enumerate() {
                    put_word(block, part * words.len() + i, column, word);
                }
            });
        } else {
            each_part::<BLOCK>(stored, bytes, |k, scale, _, quantized| {
                let block = &mut data[width.block_at(k, column)..];
                let mut quantized = *quantized;
                let wanted = bytes_of(&values[k..], inverse);
                let (factor, addend) =
                    bit_fields::fit_five(scale * inverse, &mut quantized, &wanted);
                put_heads(block, column, factor.into(), addend.into());
                for (i, word) in bit_fields::pack_five(&quantized).into_iter().enumerate() {
                    put_word(block, i, column, word);
                }
            });
        }
        top / TOP
    }

    /// Fills a column of the packed tile with quantized zeros from step `first` of k on, which must
    /// begin a block if weights have fewer than 8 bits.
    fn put_zeros(&self, first: usize, column: usize, data: &mut [u8]) {
        let padded = self.values.len().next_multiple_of(QUANT_GROUP);
        match self.width {
            Width::Eight => {
                for k in first..padded {
                    data[byte_at(k, column)] = ZERO as u8;
                }
            }
            // Blocks of a new tile have scales of zero.
            Width::Mxfp4 => {}
            width => {
                let second = match width {
                    Width::Four => ZERO * FRACTION as i32,
                    Width::Five => CENTER.into(),
                    // It is another factor.
                    _ => 0,
                };
                for k in (first..padded).step_by(BLOCK) {
                    put_heads(&mut data[width.block_at(k, column)..], column, 0, second);
                }
            }
        }
    }
}

/// Copies a stored row of MXFP4 weights to `column` of the packed tile.
fn put_mxfp4(bytes: &[u8], column: usize, data: &mut [u8]) {
    for (i, stored) in bytes.chunks_exact(WeightType::Mxfp4.block_bytes()).enumerate() {
        let block = &mut data[Width::Mxfp4.block_at(i * BLOCK, column)..];
        let scale = 0.5 * blocks::e8m0(stored[0]);
        block[4 * (column % LANES)..][..4].copy_from_slice(&scale.to_le_bytes());
        // Byte `k` of a stored block has the weights of the steps k and k + 16.
        let value = |k: usize| u32::from(stored[1 + k % 16] >> (k / 16 * 4)) & 15;
        for word in 0..BLOCK / 8 {
            let at = |step: usize| value(8 * word + step) << (step % STEP * 8 + step / STEP * 4);
            put_word(block, word, column, (0..8).fold(0, |bits, step| bits | at(step)));
        }
    }
}

/// Returns the factor by which weights are multiplied to quantize them, where `top` is their
/// largest magnitude; zero if `top` is below 1e-30.
fn inverse(top: f32) -> f32 {
    if top < 1e-30 { 0.0 } else { TOP / top }
}

/// Returns the bytes to which the first `N` of the weights `values` round.
fn bytes_of<const N: usize>(values: &[f32], inverse: f32) -> [u8; N] {
    let values: &[f32; N] = values.first_chunk().expect("parts are within the row");
    values.map(|w| (nearest(w * inverse) + ZERO) as u8)
}

/// Rounds to the nearest whole number, ties to even, for magnitudes below 2^22. It replaces
/// `f32::round_ties_even`, which is a library call without SSE4.1 and would be made for each
/// weight.
fn nearest(x: f32) -> i32 {
    const MAGIC: f32 = 12_582_912.0;
    (x + MAGIC).to_bits().wrapping_sub(MAGIC.to_bits()).cast_signed()
}

/// Stores the two numbers of a column in the head of a block, both modulo 2^16: of 4-bit weights
/// the factor and the addend. Nothing is lost by that, since `factor * q + addend` is below 2^16
/// for each 4-bit value q.
fn put_heads(block: &mut [u8], column: usize, first: i32, second: i32) {
    put_head(block, 0, column, first);
    put_head(block, 1, column, second);
}

/// Stores number `index` of a column in the head of a block, modulo 2^16.
fn put_head(block: &mut [u8], index: usize, column: usize, value: i32) {
    let at = 2 * (index * LANES + column % LANES);
    block[at..at + 2].copy_from_slice(&(value as u16).to_le_bytes());
}

/// Stores word `index` of a column of a block.
fn put_word(block: &mut [u8], index: usize, column: usize, word: u32) {
    let at = HEAD_BYTES + 4 * (index * LANES + column % LANES);
    block[at..at + 4].copy_from_slice(&word.to_le_bytes());
}

/// Calls `each` with the first step of k, the scale, the minimum and the quantized values of every
/// `N` weights of a stored row, which share a scale.
fn each_part<const N: usize>(
    stored: WeightType,
    bytes: &[u8],
    mut each: impl FnMut(usize, f32, f32, &[i8; N]),
) {
    let mut k = 0;
    for block in bytes.chunks_exact(stored.block_bytes()) {
        blocks::parts(stored, block, |scale, minimum, quantized| {
            for quantized in quantized.as_chunks().0 {
                each(k, scale, minimum, quantized);
                k += N;
            }
        });
    }
}
