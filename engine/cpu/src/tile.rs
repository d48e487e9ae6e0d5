//! Micro-kernel tile of the GEMM in f32 and of attention: a few rows times a few groups of 16
//! columns. Attention over bf16 pages multiplies two steps of k at once.
//!
//! Each output element is one chain of multiply-adds in rising k, whatever the size of the tile and
//! wherever k is cut in pieces. A row's result therefore has the same bits whichever rows share its
//! step, which makes a sequence's output independent of its batch.

#![expect(unsafe_code, reason = "strided reads that would cost a bounds check per product")]

use super::lanes::{LANES, Lanes, PAIR, Pairs};
use super::memory::fetch;

/// Largest number of rows of a micro-kernel tile. Six rows by four groups of columns fill the
/// registers of AVX-512.
pub(super) const TILE_ROWS: usize = 6;
/// Largest number of 16-column groups in a micro-kernel tile.
pub(super) const TILE_GROUPS: usize = 4;

/// Element type in memory that converts to and from f32 vectors: f32 or f16.
pub(super) trait Element: Copy + Send + Sync + bytemuck::Pod {
    /// Loads 16 elements (f32 or f16) and converts them to f32.
    ///
    /// # Safety
    /// Sixteen elements can be read at `from`.
    unsafe fn load<L: Lanes>(lanes: L, from: *const Self) -> L::V;
    /// Converts 16 f32 to the element type (f32 or f16) and stores them.
    ///
    /// # Safety
    /// Sixteen elements can be written at `to`.
    unsafe fn store<L: Lanes>(lanes: L, to: *mut Self, v: L::V);
}

/// Implements [`Element`] for a type by the vector functions that load and store it.
macro_rules! element {
    ($type:ty, $load:ident, $store:ident) => {
        impl Element for $type {
            #[inline(always)]
            unsafe fn load<L: Lanes>(lanes: L, from: *const Self) -> L::V {
                // SAFETY: the caller vouches for sixteen elements.
                unsafe { lanes.$load(from) }
            }

            #[inline(always)]
            unsafe fn store<L: Lanes>(lanes: L, to: *mut Self, v: L::V) {
                // SAFETY: the caller vouches for sixteen elements.
                unsafe { lanes.$store(to, v) }
            }
        }
    };
}

element!(f32, load, store);
// f16 elements are stored as their bits.
element!(u16, load_f16, store_f16);

/// Arithmetic of a micro-kernel tile whose right operand has elements of type `E`.
pub(super) trait TileArithmetic<E>: Copy {
    /// Number of steps of k that an element of either operand has.
    const STEPS: usize;
    type Lanes: Lanes;
    /// Element type of the left operand.
    type Left: Copy;
    /// Elements of the right operand for 16 columns, as the multiplication needs them.
    type Columns: Copy;
    /// Element of the left operand, broadcast to all 16 columns.
    type Row: Copy;

    fn lanes(self) -> Self::Lanes;
    /// Returns a pointer to `values` as elements of the left operand: as they are, or rounded to
    /// bf16 in `rounded`.
    fn left(self, values: &[f32], rounded: &mut Vec<Bf16Pair>) -> *const Self::Left;
    /// Returns `sums` plus the products of one element of the left operand and 16 of the right one.
    fn add(
        self,
        sums: <Self::Lanes as Lanes>::V,
        row: Self::Row,
        columns: Self::Columns,
    ) -> <Self::Lanes as Lanes>::V;

    /// Loads 16 elements of the right operand.
    ///
    /// # Safety
    /// Sixteen elements can be read at `from`.
    unsafe fn columns(self, from: *const E) -> Self::Columns;
    /// Loads an element of the left operand and broadcasts it.
    ///
    /// # Safety
    /// One element can be read at `from`.
    unsafe fn row(self, from: *const Self::Left) -> Self::Row;
}

/// Arithmetic in f32: elements of the right operand are converted to f32 when they are loaded.
#[derive(Clone, Copy)]
pub(super) struct InF32<L>(pub L);

impl<L: Lanes, E: Element> TileArithmetic<E> for InF32<L> {
    const STEPS: usize = 1;
    type Lanes = L;
    type Left = f32;
    type Columns = L::V;
    type Row = L::V;

    #[inline(always)]
    fn lanes(self) -> L {
        self.0
    }

    #[inline(always)]
    fn left(self, values: &[f32], _: &mut Vec<Bf16Pair>) -> *const f32 {
        values.as_ptr()
    }

    #[inline(always)]
    fn add(self, sums: L::V, row: L::V, columns: L::V) -> L::V {
        self.0.fma(row, columns, sums)
    }

    #[inline(always)]
    unsafe fn columns(self, from: *const E) -> L::V {
        // SAFETY: the caller vouches for sixteen elements.
        unsafe { E::load(self.0, from) }
    }

    #[inline(always)]
    unsafe fn row(self, from: *const f32) -> L::V {
        // SAFETY: the caller vouches for the element.
        self.0.splat(unsafe { *from })
    }
}

/// Two steps of k in bf16, as their bits.
pub(super) type Bf16Pair = [u16; PAIR];

/// Arithmetic in bf16 with sums in f32, two steps of k at once.
#[derive(Clone, Copy)]
pub(super) struct InBf16<P>(pub P);

impl<P: Pairs> TileArithmetic<Bf16Pair> for InBf16<P> {
    const STEPS: usize = PAIR;
    type Lanes = P::Lanes;
    type Left = Bf16Pair;
    type Columns = P::Weights;
    type Row = P::Row;

    #[inline(always)]
    fn lanes(self) -> P::Lanes {
        self.0.lanes()
    }

    #[inline(always)]
    fn left(self, values: &[f32], rounded: &mut Vec<Bf16Pair>) -> *const Bf16Pair {
        if rounded.len() < values.len().next_multiple_of(LANES) / PAIR {
            rounded.resize(values.len().next_multiple_of(LANES) / PAIR, [0; PAIR]);
        }
        round(self.0, values, rounded);
        rounded.as_ptr()
    }

    #[inline(always)]
    fn add(
        self,
        sums: <P::Lanes as Lanes>::V,
        row: P::Row,
        columns: P::Weights,
    ) -> <P::Lanes as Lanes>::V {
        self.0.dot(sums, columns, row)
    }

    #[inline(always)]
    unsafe fn columns(self, from: *const Bf16Pair) -> P::Weights {
        // SAFETY: the caller vouches for sixteen pairs, which are 64 bytes.
        unsafe { self.0.weights(from.cast()) }
    }

    #[inline(always)]
    unsafe fn row(self, from: *const Bf16Pair) -> P::Row {
        // SAFETY: the caller vouches for the pair.
        unsafe { self.0.row(from.cast()) }
    }
}

/// Rounds `values` to bf16 and writes them to the beginning of `to`, as pairs, the last 16 filled
/// up with zeros.
#[inline(always)]
pub(super) fn round<P: Pairs>(pairs: P, values: &[f32], to: &mut [Bf16Pair]) {
    let (whole, tail) = values.as_chunks::<LANES>();
    let (to, _) = to.as_chunks_mut::<{ LANES / PAIR }>();
    for (values, to) in whole.iter().zip(&mut *to) {
        *to = bytemuck::cast(pairs.round(values));
    }
    if !tail.is_empty() {
        let mut last = [0.0; LANES];
        last[..tail.len()].copy_from_slice(tail);
        to[whole.len()] = bytemuck::cast(pairs.round(&last));
    }
}

/// Left operand of a micro-kernel tile: element `(row, k)` is at `start + row * row_stride + k *
/// k_stride`.
#[derive(Clone, Copy)]
pub(super) struct Left<T> {
    pub start: *const T,
    pub row_stride: usize,
    pub k_stride: usize,
}

/// Groups of 16 columns of the right operand, each by a pointer to its first element.
pub(super) trait Groups: Copy {
    type Element;

    fn count(self) -> usize;
    /// Returns the pointers of the `NR` groups from group `first` on.
    ///
    /// # Safety
    /// There are so many groups.
    unsafe fn from<const NR: usize>(self, first: usize) -> [*const Self::Element; NR];
}

impl<E> Groups for &[*const E] {
    type Element = E;

    #[inline(always)]
    fn count(self) -> usize {
        self.len()
    }

    #[inline(always)]
    unsafe fn from<const NR: usize>(self, first: usize) -> [*const E; NR] {
        // SAFETY: the caller vouches for the groups.
        unsafe { *self.as_ptr().add(first).cast() }
    }
}

/// Groups of 16 columns that lie side by side in memory.
#[derive(Debug)]
pub(super) struct SideBySide<E> {
    pub start: *const E,
    pub count: usize,
}

impl<E> Clone for SideBySide<E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<E> Copy for SideBySide<E> {}

impl<E> Groups for SideBySide<E> {
    type Element = E;

    #[inline(always)]
    fn count(self) -> usize {
        self.count
    }

    #[inline(always)]
    unsafe fn from<const NR: usize>(self, first: usize) -> [*const E; NR] {
        let mut groups = [self.start; NR];
        for (i, group) in groups.iter_mut().enumerate() {
            *group = group.wrapping_add((first + i) * LANES);
        }
        groups
    }
}

/// Piece of the right operand of a micro-kernel tile, `k` elements long: the 16 columns of a group
/// at element `i` are `i * k_stride` elements after its first.
#[derive(Clone, Copy)]
pub(super) struct Right<G> {
    pub groups: G,
    /// Column groups to prefetch during the multiplication, laid out like `groups`, because they
    /// are multiplied later.
    pub ahead: Option<G>,
    pub k_stride: usize,
    pub k: usize,
}

/// Output of a micro-kernel tile: the 16 columns of group `g` of row `row` are at `start + row
/// * row_stride + g * 16`.
#[derive(Clone, Copy)]
pub(super) struct Out {
    pub start: *mut f32,
    pub row_stride: usize,
    /// True to replace the output's content by the products, false to add to it.
    pub fresh: bool,
}

/// Multiplies `rows` rows of `left` by all column groups of `pieces`, and adds the products to
/// `out` or replaces its content. The pieces follow one another along k and have equally many
/// groups.
///
/// # Safety
/// Every element that the three operands describe can be read, and those of `out` written, and no
/// other thread uses the latter during the call.
#[inline(always)]
pub(super) unsafe fn multiply<P: TileArithmetic<G::Element>, G: Groups>(
    arithmetic: P,
    rows: usize,
    left: Left<P::Left>,
    pieces: &[Right<G>],
    out: Out,
) {
    let groups = pieces[0].groups.count();
    let mut done = 0;
    while done < groups {
        let per_row = P::Lanes::ACCUMULATORS / rows.min(TILE_ROWS);
        let fit = (groups - done).min(per_row).min(TILE_GROUPS);
        // SAFETY: `done + fit` stays within the groups; the caller vouches for the rest.
        unsafe {
            let out = Out { start: out.start.add(done * LANES), ..out };
            let first = done;
            done += if fit >= 4 {
                all_rows::<P, G, 4>(arithmetic, rows, left, pieces, first, out)
            } else if fit >= 2 {
                all_rows::<P, G, 2>(arithmetic, rows, left, pieces, first, out)
            } else {
                all_rows::<P, G, 1>(arithmetic, rows, left, pieces, first, out)
            };
        }
    }
}

/// Multiplies `rows` rows by the `NR` column groups from group `first` on, and returns `NR`.
///
/// # Safety
/// As for [`multiply`]; every piece has these groups.
#[inline(always)]
unsafe fn all_rows<P: TileArithmetic<G::Element>, G: Groups, const NR: usize>(
    arithmetic: P,
    rows: usize,
    left: Left<P::Left>,
    pieces: &[Right<G>],
    first: usize,
    out: Out,
) -> usize {
    // SAFETY: the caller vouches for all of it; rows are cut into blocks of at most `TILE_ROWS`.
    unsafe {
        let mut row = 0;
        while row < rows {
            let left = Left { start: left.start.add(row * left.row_stride), ..left };
            let out = Out { start: out.start.add(row * out.row_stride), ..out };
            match rows - row {
                1 => tile::<P, G, 1, NR>(arithmetic, left, pieces, first, out),
                2 => tile::<P, G, 2, NR>(arithmetic, left, pieces, first, out),
                3 => tile::<P, G, 3, NR>(arithmetic, left, pieces, first, out),
                4 => tile::<P, G, 4, NR>(arithmetic, left, pieces, first, out),
                5 => tile::<P, G, 5, NR>(arithmetic, left, pieces, first, out),
                _ => tile::<P, G, TILE_ROWS, NR>(arithmetic, left, pieces, first, out),
            }
            row += TILE_ROWS;
        }
    }
    NR
}

/// Multiplies `MR` rows by the `NR` column groups from group `first` on, with all accumulators in
/// registers.
///
/// # Safety
/// As for [`multiply`]; every piece has these groups.
#[inline(always)]
unsafe fn tile<P: TileArithmetic<G::Element>, G: Groups, const MR: usize, const NR: usize>(
    arithmetic: P,
    mut left: Left<P::Left>,
    pieces: &[Right<G>],
    first: usize,
    out: Out,
) {
    let lanes = arithmetic.lanes();
    let mut sums = [[lanes.splat(0.0); NR]; MR];
    // SAFETY: the caller vouches for every address within the three operands.
    unsafe {
        if !out.fresh {
            for (r, sums) in sums.iter_mut().enumerate() {
                for (g, sum) in sums.iter_mut().enumerate() {
                    *sum = lanes.load(out.start.add(r * out.row_stride + g * LANES));
                }
            }
        }
        for piece in pieces {
            let groups = piece.groups.from::<NR>(first);
            let ahead = piece.ahead.map(|ahead| ahead.from::<NR>(first));
            for step in 0..piece.k {
                if let Some(ahead) = &ahead {
                    for group in ahead {
                        fetch(group.wrapping_add(step * piece.k_stride).cast());
                    }
                }
                let w: [_; NR] = std::array::from_fn(|group| {
                    arithmetic.columns(groups[group].add(step * piece.k_stride))
                });
                for (r, sums) in sums.iter_mut().enumerate() {
                    let at = r * left.row_stride + step * left.k_stride;
                    let x = arithmetic.row(left.start.add(at));
                    for (sum, w) in sums.iter_mut().zip(&w) {
                        *sum = arithmetic.add(*sum, x, *w);
                    }
                }
            }
            left.start = left.start.add(piece.k * left.k_stride);
        }
        for (r, sums) in sums.iter().enumerate() {
            for (g, sum) in sums.iter().enumerate() {
                lanes.store(out.start.add(r * out.row_stride + g * LANES), *sum);
            }
        }
    }
}
