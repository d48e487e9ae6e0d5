//! Weight matrices packed at load into the order in which the GEMM kernels read them.
//!
//! A matrix packed for f32 is divided into groups of 16 output columns, so that one vector holds
//! one weight of each column; `layout` describes a group.

#![expect(unsafe_code, reason = "groups packed in parallel")]

use std::ops::Range;

use super::decode::{self, Sink};
use super::isa::Isa;
use super::lanes::{LANES, Lanes};
use super::layout::Layout;
use super::pool::Pool;
use super::shared::Shared;
use super::{bf16, int8};
use engine_core::{HostMatrix, WeightType};

/// Byte buffer aligned to a cache line.
#[derive(Debug)]
pub(super) struct Aligned(Vec<Line>);

/// Unit of allocation that aligns a buffer to a cache line.
#[derive(Debug, Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

impl Aligned {
    pub(super) fn zeroed(bytes: usize) -> Self {
        Self(vec![Line([0; 64]); bytes.div_ceil(64)])
    }

    pub(super) fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.0)
    }
}

/// Packed weights of some consecutive output columns, all of one layout, for the f32 GEMM.
#[derive(Debug)]
pub(super) struct Packed {
    layout: Layout,
    /// Index of the first output column that these weights compute.
    pub(super) first: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    data: Aligned,
}

/// Arithmetic of the matrix multiplications, as the user chooses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Arithmetic {
    /// All matrices in f32: the reference for the other choices.
    F32,
    /// Integer-quantized weights in int8; bf16 and f32 weights in bf16 if the processor has bf16
    /// instructions; all others in f32.
    #[default]
    AsStored,
    /// All matrices are multiplied in bf16.
    Bf16,
    /// All matrices are multiplied in int8.
    Int8,
}

/// GEMM for which a part of a matrix is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Float,
    Bf16,
    Int8,
}

impl Arithmetic {
    /// Returns the GEMM for which weights of type `stored` are packed on `isa`.
    fn form(self, stored: WeightType, isa: Isa) -> Form {
        match self {
            Self::F32 => Form::Float,
            Self::Bf16 => Form::Bf16,
            Self::Int8 => Form::Int8,
            Self::AsStored if stored.is_integer_blocks() => Form::Int8,
            Self::AsStored => match stored {
                WeightType::Bf16 | WeightType::F32 if isa.has_bf16() => Form::Bf16,
                _ => Form::Float,
            },
        }
    }
}

/// Consecutive output columns of a matrix that are packed for one GEMM.
#[derive(Debug)]
pub(super) enum Run {
    Float(Packed),
    Bf16(bf16::Weights),
    Int8(int8::Weights),
}

impl Run {
    /// Returns the range of output columns that the run computes.
    fn columns(&self) -> Range<usize> {
        let (first, n) = match self {
            Self::Float(packed) => (packed.first, packed.n),
            Self::Bf16(weights) => (weights.first, weights.n),
            Self::Int8(weights) => (weights.first, weights.n),
        };
        first..first + n
    }
}

/// Weight matrix `[N, K]`: runs of output columns, each packed for one GEMM.
#[derive(Debug)]
pub struct Matrix {
    pub(super) runs: Vec<Run>,
    pub(super) n: usize,
    pub(super) k: usize,
}

impl Matrix {
    /// Packs `parts`, stacked along N, for multiplication in `arithmetic` on `isa`.
    pub(super) fn pack(
        parts: &[HostMatrix<'_>],
        arithmetic: Arithmetic,
        isa: Isa,
        pool: &mut Pool,
    ) -> Self {
        let k = parts[0].k;
        assert!(parts.iter().all(|part| part.k == k), "the parts share their inputs");
        let form = |part: &HostMatrix<'_>| arithmetic.form(part.weight_type, isa);
        let are_alike = |a: &HostMatrix<'_>, b: &HostMatrix<'_>| {
            form(a) == form(b)
                && match form(a) {
                    Form::Float => Layout::of(a.weight_type) == Layout::of(b.weight_type),
                    Form::Bf16 => true,
                    Form::Int8 => int8::Weights::are_alike(a, b),
                }
        };
        let mut runs = Vec::new();
        let mut n = 0;
        // Adjacent parts of one kind share tiles, so queries, keys and values are mostly one GEMM.
        for run in parts.chunk_by(are_alike) {
            let packed = match form(&run[0]) {
                Form::Float => Run::Float(Packed::pack(run, n, pool)),
                Form::Bf16 => Run::Bf16(bf16::Weights::pack(run, n, pool)),
                Form::Int8 => Run::Int8(int8::Weights::pack(run, n, pool)),
            };
            n = packed.columns().end;
            runs.push(packed);
        }
        Self { runs, n, k }
    }

    /// Writes row `n` of the matrix, dequantized, to `out`, K elements.
    pub(super) fn row(&self, n: usize, out: &mut [f32]) {
        let run = self.runs.iter().find(|run| run.columns().contains(&n));
        match run.expect("the row is within the matrix") {
            Run::Float(packed) => packed.row(n, out),
            Run::Bf16(weights) => weights.row(n, out),
            Run::Int8(weights) => weights.row(n, out),
        }
    }

    /// Returns true if any columns are multiplied in f32.
    pub(super) fn is_float(&self) -> bool {
        self.runs.iter().any(|run| matches!(run, Run::Float(_)))
    }

    /// Returns true if any columns are multiplied in bf16.
    pub(super) fn is_bf16(&self) -> bool {
        self.runs.iter().any(|run| matches!(run, Run::Bf16(_)))
    }

    /// Returns true if any columns are multiplied in int8.
    pub(super) fn is_int8(&self) -> bool {
        self.runs.iter().any(|run| matches!(run, Run::Int8(_)))
    }
}

impl Packed {
    fn pack(parts: &[HostMatrix<'_>], first: usize, pool: &mut Pool) -> Self {
        let (layout, k) = (Layout::of(parts[0].weight_type), parts[0].k);
        let n = parts.iter().map(|part| part.n).sum();
        let mut packed = Self { layout, first, n, k, data: Aligned(Vec::new()) };
        let (groups, group_bytes) = (packed.groups(), packed.group_bytes());
        packed.data = Aligned::zeroed(groups * group_bytes);
        let shared = Shared::new(packed.data.bytes_mut());
        pool.items(groups, &|_, group| {
            // SAFETY: each group has its own bytes, and each item is one group.
            let out = unsafe { shared.part(group * group_bytes, group_bytes) };
            for lane in 0..LANES {
                if let Some((part, row)) = part_of(parts, group * LANES + lane) {
                    layout.pack(part.weight_type, part.row(row), lane, out);
                }
            }
        });
        packed
    }

    /// Returns the number of groups of 16 output columns.
    pub(super) fn groups(&self) -> usize {
        self.n.div_ceil(LANES)
    }

    fn group_bytes(&self) -> usize {
        self.k / self.layout.unit() * self.layout.unit_bytes()
    }

    /// Returns the packed bytes of a group.
    fn group(&self, group: usize) -> &[u8] {
        &self.data.bytes()[group * self.group_bytes()..][..self.group_bytes()]
    }

    fn row(&self, n: usize, out: &mut [f32]) {
        let (group, lane) = ((n - self.first) / LANES, (n - self.first) % LANES);
        let units = self.group(group).chunks_exact(self.layout.unit_bytes());
        for (unit, out) in units.zip(out[..self.k].chunks_exact_mut(self.layout.unit())) {
            for (i, x) in out.iter_mut().enumerate() {
                *x = self.layout.value(unit, i, lane);
            }
        }
    }

    /// Decodes the weights of `steps` k from `k0` on, for `NR` groups from `first` on, and passes
    /// them to `sink` in rising k. Both `k0` and `steps` must be multiples of the layout's unit.
    #[inline(always)]
    pub(super) fn decode<L: Lanes, S: Sink<L, NR>, const NR: usize>(
        &self,
        lanes: L,
        first: usize,
        k0: usize,
        steps: usize,
        sink: &mut S,
    ) {
        let (unit, unit_bytes) = (self.layout.unit(), self.layout.unit_bytes());
        assert!(k0 + steps <= self.k && first + NR <= self.groups(), "the piece is within");
        assert!(k0.is_multiple_of(unit) && steps.is_multiple_of(unit), "the piece is whole units");
        let mut groups = [std::ptr::null(); NR];
        for (g, group) in groups.iter_mut().enumerate() {
            *group = self.group(first + g)[k0 / unit * unit_bytes..].as_ptr();
        }
        // SAFETY: each group holds `steps` k from `k0`, as its slice begins there and ends with K.
        unsafe { decode::decode(lanes, self.layout, groups, steps / unit, sink) }
    }
}

/// Returns the part to which output column `n` of the stacked `parts` belongs, and the column's
/// index in it; none past the last.
pub(super) fn part_of<'a, 'b>(
    parts: &'a [HostMatrix<'b>],
    mut n: usize,
) -> Option<(&'a HostMatrix<'b>, usize)> {
    for part in parts {
        if n < part.n {
            return Some((part, n));
        }
        n -= part.n;
    }
    None
}
