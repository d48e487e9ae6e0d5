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

    /// Bytes of packed weights.
    pub(super) fn bytes(&self) -> usize {
        self.runs.iter().map(|run| run.groups() * run.group_bytes()).sum()
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

    /// Writes the weights of `steps` k from `k0` of one group to `out`, `[steps][16]`. Both limits
    /// fall on blocks.
    #[inline(always)]
    pub(super) fn dequantize<L: Lanes>(
        &self,
        lanes: L,
        group: usize,
        k0: usize,
        steps: usize,
        out: &mut [f32],
    ) {
        assert!(k0 + steps <= self.k && out.len() >= steps * LANES, "the piece is within");
        let bytes = self.group(group);
        match self.stored {
            WeightType::F32 | WeightType::F16 | WeightType::Bf16 => {
                widen(lanes, self.stored, bytes, k0, steps, out);
            }
            WeightType::Q8_0 | WeightType::Q4_1 => {
                assert!(k0 % BLOCK == 0 && steps % BLOCK == 0, "the piece is whole blocks");
                let size = block_bytes(self.stored);
                let blocks = bytes[k0 / BLOCK * size..][..steps / BLOCK * size].chunks_exact(size);
                for (block, out) in blocks.zip(out.chunks_exact_mut(BLOCK * LANES)) {
                    if self.stored == WeightType::Q4_1 {
                        q4_1(lanes, block, out);
                    } else {
                        q8_0(lanes, block, out);
                    }
                }
            }
        }
    }
}

/// Bytes of sixteen packed blocks.
fn block_bytes(stored: WeightType) -> usize {
    match stored {
        WeightType::Q4_1 => 2 * 32 + 256,
        WeightType::Q8_0 => 32 + 512,
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

#[inline(always)]
fn widen<L: Lanes>(
    lanes: L,
    stored: WeightType,
    bytes: &[u8],
    k0: usize,
    steps: usize,
    out: &mut [f32],
) {
    let size = stored.block_bytes();
    let bytes = &bytes[k0 * LANES * size..(k0 + steps) * LANES * size];
    for (v, out) in bytes.chunks_exact(LANES * size).zip(out.chunks_exact_mut(LANES)) {
        // SAFETY: `v` holds sixteen elements and `out` sixteen f32; loads need no alignment.
        unsafe {
            let v = match stored {
                WeightType::F32 => lanes.load(v.as_ptr().cast()),
                WeightType::F16 => lanes.load_f16(v.as_ptr().cast()),
                _ => lanes.load_bf16(v.as_ptr().cast()),
            };
            lanes.store(out.as_mut_ptr(), v);
        }
    }
}

#[inline(always)]
fn q4_1<L: Lanes>(lanes: L, block: &[u8], out: &mut [f32]) {
    assert!(block.len() >= 320 && out.len() >= BLOCK * LANES, "a whole block");
    // SAFETY: both are as long as just asserted; loads and stores need no alignment.
    unsafe {
        let scale = lanes.load_f16(block.as_ptr().cast());
        let minimum = lanes.load_f16(block.as_ptr().add(32).cast());
        for word in 0..4 {
            let codes = lanes.load_codes(block.as_ptr().add(64 + word * 64));
            for i in 0..8 {
                let v = lanes.fma(lanes.code(codes, i), scale, minimum);
                lanes.store(out.as_mut_ptr().add((word * 8 + i as usize) * LANES), v);
            }
        }
    }
}

#[inline(always)]
fn q8_0<L: Lanes>(lanes: L, block: &[u8], out: &mut [f32]) {
    assert!(block.len() >= 544 && out.len() >= BLOCK * LANES, "a whole block");
    // SAFETY: both are as long as just asserted; loads and stores need no alignment.
    unsafe {
        let scale = lanes.load_f16(block.as_ptr().cast());
        for i in 0..BLOCK {
            let codes = lanes.load_i8(block.as_ptr().add(32 + i * LANES).cast());
            lanes.store(out.as_mut_ptr().add(i * LANES), lanes.mul(codes, scale));
        }
    }
}
