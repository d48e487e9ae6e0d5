//! Weight matrix as bf16, packed in the order in which the GEMM micro-kernel reads it.
//!
//! A tile is [`TILE`] output columns. Within it k rises a pair at a time; for each pair the groups
//! of 16 columns lie side by side, `[16][2]` each. Columns past the last, and the second half of an
//! odd K's last pair, are zeros.

#![expect(unsafe_code, reason = "tiles packed in parallel")]

use half::bf16;

use super::{PAIR, PAIR_BYTES, TILE, TILE_GROUPS};
use crate::lanes::LANES;
use crate::pack::{Aligned, part_of};
use crate::pool::Pool;
use crate::shared::Shared;
use engine_core::{HostMatrix, WeightType};
use engine_weights::format::dequantize;

/// Packed bf16 weights of some consecutive output columns of a matrix.
#[derive(Debug)]
pub(in super::super) struct Weights {
    /// Index of the first output column that these weights compute.
    pub(in super::super) first: usize,
    pub(in super::super) n: usize,
    k: usize,
    data: Aligned,
}

impl Weights {
    /// Packs the rows of `parts`, of any stored type. Values of other types are rounded to the
    /// nearest bf16.
    pub(in super::super) fn pack(parts: &[HostMatrix<'_>], first: usize, pool: &mut Pool) -> Self {
        let n = parts.iter().map(|part| part.n).sum();
        let mut weights = Self { first, n, k: parts[0].k, data: Aligned::zeroed(0) };
        let (tiles, tile_bytes) = (weights.tiles(), weights.tile_bytes());
        weights.data = Aligned::zeroed(tiles * tile_bytes);
        let (k, data) = (weights.k, Shared::new(weights.data.bytes_mut()));
        pool.items(tiles, &|_, tile| {
            // SAFETY: each tile has its own bytes, and each item is one tile.
            let data = unsafe { data.part(tile * tile_bytes, tile_bytes) };
            let mut rows = Rows::new(k);
            for group in 0..TILE_GROUPS {
                for lane in 0..LANES {
                    rows.take(lane, part_of(parts, tile * TILE + group * LANES + lane));
                }
                rows.put(&mut data[group * PAIR_BYTES..]);
            }
        });
        weights
    }

    /// Returns the number of tiles of output columns.
    pub(super) fn tiles(&self) -> usize {
        self.n.div_ceil(TILE)
    }

    /// Returns the number of pairs of K.
    pub(super) fn pairs(&self) -> usize {
        self.k.div_ceil(PAIR)
    }

    fn tile_bytes(&self) -> usize {
        self.pairs() * TILE_GROUPS * PAIR_BYTES
    }

    /// Returns the packed bytes of a tile.
    pub(super) fn tile(&self, tile: usize) -> &[u8] {
        &self.data.bytes()[tile * self.tile_bytes()..][..self.tile_bytes()]
    }

    /// Writes row `n` of the matrix as f32 to `out`, K elements.
    pub(in super::super) fn row(&self, n: usize, out: &mut [f32]) {
        let (tile, column) = ((n - self.first) / TILE, (n - self.first) % TILE);
        let at = column / LANES * PAIR_BYTES + column % LANES * PAIR * 2;
        let pairs = self.tile(tile).chunks_exact(TILE_GROUPS * PAIR_BYTES);
        for (pair, out) in pairs.zip(out[..self.k].chunks_mut(PAIR)) {
            for (x, bits) in out.iter_mut().zip(pair[at..].as_chunks::<2>().0) {
                *x = bf16::from_le_bytes(*bits).to_f32();
            }
        }
    }
}

/// Sixteen output columns that are being packed into a tile.
struct Rows {
    /// Dequantized row, `[K]`, for stored types other than bf16.
    values: Vec<f32>,
    /// Rows as bf16 bits, `[16][K]`, with K padded by zeros to whole pairs.
    rounded: Vec<u16>,
}

impl Rows {
    fn new(k: usize) -> Self {
        Self { values: vec![0.0; k], rounded: vec![0; LANES * k.next_multiple_of(PAIR)] }
    }

    /// Converts a stored row to column `lane`, or fills the column with zeros if there is no row.
    fn take(&mut self, lane: usize, stored: Option<(&HostMatrix<'_>, usize)>) {
        let stride = self.rounded.len() / LANES;
        let rounded = &mut self.rounded[lane * stride..][..self.values.len()];
        match stored {
            None => rounded.fill(0),
            // The bits are copied, so bf16 weights are exact.
            Some((part, n)) if part.weight_type == WeightType::Bf16 => {
                let bits = part.row(n).as_chunks::<2>().0;
                rounded.iter_mut().zip(bits).for_each(|(x, bits)| *x = u16::from_le_bytes(*bits));
            }
            Some((part, n)) => {
                dequantize(part.weight_type, part.row(n), &mut self.values);
                let values = self.values.iter();
                rounded.iter_mut().zip(values).for_each(|(x, w)| *x = bf16::from_f32(*w).to_bits());
            }
        }
    }

    /// Writes the columns into a tile; `to` begins at the part of their group.
    fn put(&self, to: &mut [u8]) {
        let stride = self.rounded.len() / LANES;
        for (i, to) in to.chunks_mut(TILE_GROUPS * PAIR_BYTES).enumerate() {
            for (lane, to) in to[..PAIR_BYTES].as_chunks_mut::<4>().0.iter_mut().enumerate() {
                let at = lane * stride + i * PAIR;
                let pair = [self.rounded[at], self.rounded[at + 1]].map(u16::to_le_bytes);
                to.copy_from_slice(pair.as_flattened());
            }
        }
    }
}
