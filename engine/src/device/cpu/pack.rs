//! Weights repacked once at load into the order in which the kernels read them.
//!
//! A packed matrix is cut into groups of sixteen output columns, so that one vector holds one weight
//! of each column; `layout` says what a group looks like.

#![expect(unsafe_code, reason = "groups packed in parallel")]

use super::decode::{self, Sink};
use super::lanes::{LANES, Lanes};
use super::layout::Layout;
use super::pool::Pool;
use super::shared::Shared;
use crate::device::HostMatrix;

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

/// Columns of one layout.
#[derive(Debug)]
pub(super) struct Packed {
    layout: Layout,
    /// First output column of the matrix that is here.
    pub(super) first: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    data: Aligned,
}

/// A matrix `[N, K]`: runs of columns, each of one layout.
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
        let layout = |part: &HostMatrix<'_>| Layout::of(part.weight_type);
        for run in parts.chunk_by(|a, b| layout(a) == layout(b)) {
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
        let (layout, k) = (Layout::of(parts[0].weight_type), parts[0].k);
        let n = parts.iter().map(|part| part.n).sum();
        let mut packed = Self { layout, first, n, k, data: Aligned(Vec::new()) };
        let (groups, group_bytes) = (packed.groups(), packed.group_bytes());
        packed.data = Aligned::zeroed(groups * group_bytes);
        let shared = Shared::new(bytemuck::cast_slice_mut::<Line, u8>(&mut packed.data.0));
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

    pub(super) fn groups(&self) -> usize {
        self.n.div_ceil(LANES)
    }

    fn group_bytes(&self) -> usize {
        self.k / self.layout.unit() * self.layout.unit_bytes()
    }

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

    /// Gives the weights of `steps` k from `k0` of `NR` groups from `first` to `sink`, k rising.
    /// Both limits fall on units.
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

/// The part that output column `n` of `parts` is of, and its column there.
fn part_of<'a, 'b>(
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
