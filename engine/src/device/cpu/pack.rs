//! Weights repacked once at load into the order in which the kernels read them.
//!
//! A packed matrix is cut into groups of sixteen output columns. Within a group, k rises, and the
//! sixteen columns of one k lie side by side, so that one vector holds one weight of each column:
//! - f32, f16, bf16: `[K][16]` values;
//! - q8_0: per block of 32 k, `[16]` f16 scales, then `[32][16]` signed bytes;
//! - q4_1: per block of 32 k, `[16]` f16 scales, `[16]` f16 minima, then `[4][16]` 32-bit words of
//!   eight codes each, k rising from the low bits.

#![expect(unsafe_code, reason = "vector loads and stores, and groups packed in parallel")]

use half::{bf16, f16};

use super::lanes::{LANES, Lanes};
use super::pool::Pool;
use super::shared::Shared;
use crate::device::HostMatrix;
use crate::weights::WeightType;

/// Elements of a quantized block along k.
const BLOCK: usize = 32;
/// Bytes of one block of sixteen columns: scales, minima, codes.
const Q4_1_BYTES: usize = 32 + 32 + 256;
const Q8_0_BYTES: usize = 32 + 512;

/// Bytes that start on a cache line.
#[derive(Debug)]
struct Aligned(Vec<Line>);

#[derive(Debug, Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

impl Aligned {
    fn zeroed(bytes: usize) -> Self {
        Self(vec![Line([0; 64]); bytes.div_ceil(64)])
    }

    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

/// Columns of one stored type.
#[derive(Debug)]
pub(super) struct Packed {
    stored: WeightType,
    /// First output column of the matrix that is here.
    pub(super) first: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    data: Aligned,
}

/// A matrix `[N, K]`: runs of columns, each of one stored type.
#[derive(Debug)]
pub struct Matrix {
    pub(super) runs: Vec<Packed>,
    pub(super) n: usize,
    pub(super) k: usize,
}

impl Matrix {
    /// Packs `parts`, whose outputs stand side by side.
    pub(super) fn pack(parts: &[HostMatrix<'_>], pool: &mut Pool) -> Self {
        let k = parts[0].k;
        assert!(parts.iter().all(|part| part.k == k), "the parts share their inputs");
        let mut runs = Vec::new();
        let mut n = 0;
        for run in parts.chunk_by(|a, b| a.weight_type == b.weight_type) {
            let packed = Packed::pack(run, n, pool);
            n += packed.n;
            runs.push(packed);
        }
        Self { runs, n, k }
    }

    /// Writes row `n` of the matrix, dequantized, to `out` of K elements.
    pub(super) fn row(&self, n: usize, out: &mut [f32]) {
        let run = self.runs.iter().find(|run| (run.first..run.first + run.n).contains(&n));
        run.expect("the row is within the matrix").row(n, out);
    }
}

impl Packed {
    fn pack(parts: &[HostMatrix<'_>], first: usize, pool: &mut Pool) -> Self {
        let (stored, k) = (parts[0].weight_type, parts[0].k);
        let n = parts.iter().map(|part| part.n).sum();
        let mut packed = Self { stored, first, n, k, data: Aligned(Vec::new()) };
        let (groups, group_bytes) = (packed.groups(), packed.group_bytes());
        packed.data = Aligned::zeroed(groups * group_bytes);
        let row_bytes = stored.row_bytes(k);
        let row = |n: usize| {
            let (mut n, mut parts) = (n, parts.iter());
            let part = parts.find(|part| {
                let found = n < part.n;
                n -= if found { 0 } else { part.n };
                found
            })?;
            let start = part.order.stored_row(n) * row_bytes;
            Some(&part.bytes[start..start + row_bytes])
        };
        let shared = Shared::new(bytemuck::cast_slice_mut::<Line, u8>(&mut packed.data.0));
        pool.items(groups, &|_, group| {
            // SAFETY: each group has its own bytes, and each item is one group.
            let out = unsafe { shared.part(group * group_bytes, group_bytes) };
            for lane in 0..LANES {
                if let Some(row) = row(group * LANES + lane) {
                    pack_column(stored, row, lane, out);
                }
            }
        });
        packed
    }

    pub(super) fn groups(&self) -> usize {
        self.n.div_ceil(LANES)
    }

    fn group_bytes(&self) -> usize {
        match self.stored {
            WeightType::F32 => self.k * LANES * 4,
            WeightType::F16 | WeightType::Bf16 => self.k * LANES * 2,
            WeightType::Q8_0 | WeightType::Q4_1 => self.k / BLOCK * block_bytes(self.stored),
        }
    }

    fn group(&self, group: usize) -> &[u8] {
        &self.data.bytes()[group * self.group_bytes()..][..self.group_bytes()]
    }

    fn row(&self, n: usize, out: &mut [f32]) {
        let (group, lane) = ((n - self.first) / LANES, (n - self.first) % LANES);
        let bytes = self.group(group);
        let half = |at: usize| f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32();
        for (k, x) in out[..self.k].iter_mut().enumerate() {
            let at = k * LANES + lane;
            let block = k / BLOCK * block_bytes(self.stored);
            let i = k % BLOCK;
            *x = match self.stored {
                WeightType::F32 => bytemuck::pod_read_unaligned(&bytes[4 * at..4 * at + 4]),
                WeightType::F16 => half(2 * at),
                WeightType::Bf16 => {
                    bf16::from_le_bytes([bytes[2 * at], bytes[2 * at + 1]]).to_f32()
                }
                WeightType::Q8_0 => {
                    let code = bytes[block + 32 + i * LANES + lane].cast_signed();
                    half(block + 2 * lane) * f32::from(code)
                }
                WeightType::Q4_1 => {
                    let byte = bytes[block + 64 + i / 8 * 64 + lane * 4 + i % 8 / 2];
                    let code = (byte >> (4 * (i % 2))) & 15;
                    half(block + 2 * lane).mul_add(f32::from(code), half(block + 32 + 2 * lane))
                }
            };
        }
    }

    /// Gives the weights of `steps` k from `k0` of `NR` groups from `first` to `sink`, k rising.
    /// Both limits fall on blocks.
    #[inline(always)]
    pub(super) fn decode<L: Lanes, S: Sink<L, NR>, const NR: usize>(
        &self,
        lanes: L,
        first: usize,
        k0: usize,
        steps: usize,
        sink: &mut S,
    ) {
        assert!(k0 + steps <= self.k && first + NR <= self.groups(), "the piece is within");
        let (unit, unit_bytes) = match self.stored {
            WeightType::F32 => (1, 4 * LANES),
            WeightType::F16 | WeightType::Bf16 => (1, 2 * LANES),
            WeightType::Q8_0 | WeightType::Q4_1 => (BLOCK, block_bytes(self.stored)),
        };
        assert!(k0.is_multiple_of(unit) && steps.is_multiple_of(unit), "the piece is whole blocks");
        let mut groups = [std::ptr::null(); NR];
        for (g, group) in groups.iter_mut().enumerate() {
            *group = self.group(first + g)[k0 / unit * unit_bytes..].as_ptr();
        }
        // SAFETY: each group holds `steps` k from `k0`, as its slice begins there and ends with K.
        unsafe {
            match self.stored {
                WeightType::F32 | WeightType::F16 | WeightType::Bf16 => {
                    widen(lanes, self.stored, groups, steps, sink);
                }
                WeightType::Q8_0 => q8_0(lanes, groups, steps / BLOCK, sink),
                WeightType::Q4_1 => q4_1(lanes, groups, steps / BLOCK, sink),
            }
        }
    }
}

/// Takes the weights of `NR` groups, one k after another.
pub(super) trait Sink<L: Lanes, const NR: usize> {
    /// `k` counts from where decoding began. To be `#[inline(always)]`.
    fn step(&mut self, lanes: L, k: usize, weights: &[L::V; NR]);
}

/// Bytes of sixteen packed blocks.
fn block_bytes(stored: WeightType) -> usize {
    match stored {
        WeightType::Q4_1 => Q4_1_BYTES,
        WeightType::Q8_0 => Q8_0_BYTES,
        WeightType::F32 | WeightType::F16 | WeightType::Bf16 => 0,
    }
}

/// Puts one stored row into its lane of a group.
fn pack_column(stored: WeightType, row: &[u8], lane: usize, out: &mut [u8]) {
    match stored {
        WeightType::F32 | WeightType::F16 | WeightType::Bf16 => {
            let size = stored.block_bytes();
            for (k, value) in row.chunks_exact(size).enumerate() {
                let at = (k * LANES + lane) * size;
                out[at..at + size].copy_from_slice(value);
            }
        }
        WeightType::Q8_0 => {
            let blocks = row.chunks_exact(34).zip(out.chunks_exact_mut(block_bytes(stored)));
            for (block, out) in blocks {
                out[2 * lane..2 * lane + 2].copy_from_slice(&block[..2]);
                for (i, code) in block[2..].iter().enumerate() {
                    out[32 + i * LANES + lane] = *code;
                }
            }
        }
        WeightType::Q4_1 => {
            let blocks = row.chunks_exact(20).zip(out.chunks_exact_mut(block_bytes(stored)));
            for (block, out) in blocks {
                out[2 * lane..2 * lane + 2].copy_from_slice(&block[..2]);
                out[32 + 2 * lane..32 + 2 * lane + 2].copy_from_slice(&block[2..4]);
                let code = |i: usize| if i < 16 { block[4 + i] & 15 } else { block[i - 12] >> 4 };
                for i in (0..BLOCK).step_by(2) {
                    out[64 + i / 8 * 64 + lane * 4 + i % 8 / 2] = code(i) | (code(i + 1) << 4);
                }
            }
        }
    }
}

/// # Safety
/// Each group holds `steps` vectors.
#[inline(always)]
unsafe fn widen<L: Lanes, S: Sink<L, NR>, const NR: usize>(
    lanes: L,
    stored: WeightType,
    groups: [*const u8; NR],
    steps: usize,
    sink: &mut S,
) {
    for k in 0..steps {
        let mut weights = [lanes.splat(0.0); NR];
        for g in 0..NR {
            // SAFETY: the caller vouches for `steps` vectors; loads need no alignment.
            weights[g] = unsafe {
                match stored {
                    WeightType::F32 => lanes.load(groups[g].add(k * 4 * LANES).cast()),
                    WeightType::F16 => lanes.load_f16(groups[g].add(k * 2 * LANES).cast()),
                    _ => lanes.load_bf16(groups[g].add(k * 2 * LANES).cast()),
                }
            };
        }
        sink.step(lanes, k, &weights);
    }
}

/// # Safety
/// Each group holds `blocks` blocks.
#[inline(always)]
unsafe fn q4_1<L: Lanes, S: Sink<L, NR>, const NR: usize>(
    lanes: L,
    groups: [*const u8; NR],
    blocks: usize,
    sink: &mut S,
) {
    let mut weights = [lanes.splat(0.0); NR];
    let (mut scales, mut minima) = (weights, weights);
    for block in 0..blocks {
        // SAFETY: the caller vouches for `blocks` blocks; loads need no alignment.
        unsafe {
            for g in 0..NR {
                let start = groups[g].add(block * Q4_1_BYTES);
                scales[g] = lanes.load_f16(start.cast());
                minima[g] = lanes.load_f16(start.add(32).cast());
            }
            for word in 0..4 {
                let at = block * Q4_1_BYTES + 64 + word * 64;
                let mut codes = [lanes.load_codes(groups[0].add(at)); NR];
                for g in 1..NR {
                    codes[g] = lanes.load_codes(groups[g].add(at));
                }
                for i in 0..8 {
                    for g in 0..NR {
                        weights[g] = lanes.fma(lanes.code(codes[g], i), scales[g], minima[g]);
                    }
                    sink.step(lanes, block * BLOCK + word * 8 + i as usize, &weights);
                }
            }
        }
    }
}

/// # Safety
/// Each group holds `blocks` blocks.
#[inline(always)]
unsafe fn q8_0<L: Lanes, S: Sink<L, NR>, const NR: usize>(
    lanes: L,
    groups: [*const u8; NR],
    blocks: usize,
    sink: &mut S,
) {
    let mut weights = [lanes.splat(0.0); NR];
    let mut scales = weights;
    for block in 0..blocks {
        // SAFETY: the caller vouches for `blocks` blocks; loads need no alignment.
        unsafe {
            for g in 0..NR {
                scales[g] = lanes.load_f16(groups[g].add(block * Q8_0_BYTES).cast());
            }
            for i in 0..BLOCK {
                let at = block * Q8_0_BYTES + 32 + i * LANES;
                for g in 0..NR {
                    weights[g] = lanes.mul(lanes.load_i8(groups[g].add(at).cast()), scales[g]);
                }
                sink.step(lanes, block * BLOCK + i, &weights);
            }
        }
    }
}
