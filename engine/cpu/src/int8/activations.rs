//! Activations quantized to int8 for the int8 GEMM, with one scale per quantization group of a row.

#![expect(unsafe_code, reason = "threads write disjoint rows")]

use super::{BLOCKS, Int8, QUANT_GROUP, ZERO};
use crate::gemm::{Gather, Input};
use crate::isa::{Isa, Kernel};
use crate::lanes::{BLOCK, LANES, Lanes};
use crate::memory::grow;
use crate::pool::Pool;
use crate::shared::Shared;

/// Largest quantized activation; the smallest is its negative.
const TOP: f32 = 127.0;

/// Number of activation rows whose scales are stored side by side, so that one load reads those of
/// a whole tile.
pub(super) const HEAD_ROWS: usize = 8;
/// Index, among the initial values of a quantization group's accumulators, of those for the whole
/// group; those for its blocks precede it.
pub(super) const WHOLE: usize = BLOCKS;
/// Initial values of accumulators for a quantization group of 8 rows: for each of its blocks, and
/// for the whole group.
pub(super) type Starts = [[i32; HEAD_ROWS]; BLOCKS + 1];

/// Rows of activations quantized to int8, each padded with zeros to whole quantization groups.
#[derive(Debug, Default)]
pub(crate) struct Activations {
    pub(super) rows: usize,
    pub(super) quant_groups: usize,
    /// Activations quantized to int8, `[rows][quant_groups][QUANT_GROUP]`.
    pub(super) quantized: Vec<i8>,
    /// Scales of the quantized activations, `[rows / 8, rounded up][quant_groups][8]`: a scale is
    /// the activation that quantized value 1 stands for.
    pub(super) scales: Vec<[f32; HEAD_ROWS]>,
    /// Initial values of the accumulators of the dot products of each quantization group, `[rows /
    /// 8, rounded up][quant_groups]`: minus the sum of the quantized values times the offset that
    /// makes weights unsigned.
    pub(super) starts: Vec<Starts>,
}

impl Activations {
    /// Returns the number of quantized activations from one row to the next.
    pub(super) fn stride(&self) -> usize {
        self.quant_groups * QUANT_GROUP
    }

    /// Quantizes the activations `x`, rows of `k` values, to int8 on the threads of `pool`.
    pub(crate) fn quantize(&mut self, isa: Isa, pool: &mut Pool, x: &[f32], k: usize) {
        let quantizer = self.quantizer(isa, x.len() / k, k);
        pool.rows(quantizer.rows, k, &|first, rows| {
            // SAFETY: items are disjoint rows.
            unsafe { quantizer.quantize(first, &x[first * k..(first + rows) * k]) };
        });
    }

    /// Gathers rows of `input` in units of [`HEAD_ROWS`] rows, on the threads of `pool`: copies
    /// them if they are quantized already, and else quantizes them.
    pub(super) fn gather(
        &mut self,
        isa: Isa,
        pool: &mut Pool,
        input: Input<'_, Int8>,
        gather: &Gather<'_>,
    ) {
        let Input { values, k, converted } = input;
        let quantizer = self.quantizer(isa, gather.units.len() * HEAD_ROWS, k);
        // A quantized row has a quarter of the bytes of a row in f32.
        let cost = if converted.is_some() { k.div_ceil(4) } else { k };
        gather.each(pool, cost, &|index, unit| {
            for (row, source) in (index * HEAD_ROWS..).zip(gather.sources(unit)) {
                // SAFETY: units are disjoint rows.
                unsafe {
                    match converted {
                        Some(from) => quantizer.copy(row, from, source),
                        None => quantizer.quantize(row, &values[source * k..][..k]),
                    }
                }
            }
        });
    }

    /// Allocates memory for `rows` quantized rows of `k` activations and returns the quantizer,
    /// which the caller must use to fill all of them.
    pub(crate) fn quantizer(&mut self, isa: Isa, rows: usize, k: usize) -> Quantizer<'_> {
        (self.rows, self.quant_groups) = (rows, k.div_ceil(QUANT_GROUP));
        let (values, heads) = (rows * self.stride(), rows.div_ceil(HEAD_ROWS) * self.quant_groups);
        grow(&mut self.quantized, values);
        grow(&mut self.scales, heads);
        grow(&mut self.starts, heads);
        Quantizer {
            isa,
            rows,
            k,
            quant_groups: self.quant_groups,
            quantized: Shared::new(&mut self.quantized),
            scales: Shared::new(self.scales.as_flattened_mut()),
            starts: Shared::new(self.starts.as_flattened_mut().as_flattened_mut()),
        }
    }
}

/// Quantizer of activations to int8, through which threads write disjoint rows.
pub(crate) struct Quantizer<'a> {
    isa: Isa,
    rows: usize,
    k: usize,
    quant_groups: usize,
    quantized: Shared<'a, i8>,
    scales: Shared<'a, f32>,
    starts: Shared<'a, i32>,
}

impl Quantizer<'_> {
    /// Copies row `source` of the quantized activations `from`, with its scales, to row `row`.
    ///
    /// # Safety
    /// No other thread writes row `row` at the same time.
    unsafe fn copy(&self, row: usize, from: &Activations, source: usize) {
        assert_eq!(from.quant_groups, self.quant_groups, "rows of as many activations");
        let stride = from.stride();
        // SAFETY: the caller vouches for the row, and no other row has its scales.
        unsafe {
            let quantized = &from.quantized[source * stride..][..stride];
            self.quantized.part(row * stride, stride).copy_from_slice(quantized);
            let scales = from.scales.as_flattened();
            let starts = from.starts.as_flattened().as_flattened();
            for quant_group in 0..self.quant_groups {
                let at = |row| scale_at(self.quant_groups, row, quant_group);
                self.scales.part(at(row), 1)[0] = scales[at(source)];
                for i in 0..=WHOLE {
                    let at = |row| start_at(self.quant_groups, row, quant_group, i);
                    self.starts.part(at(row), 1)[0] = starts[at(source)];
                }
            }
        }
    }

    /// Quantizes the activations `x`, whole rows, and stores them from row `first` on.
    ///
    /// # Safety
    /// No other thread quantizes any of these rows at the same time.
    pub(crate) unsafe fn quantize(&self, first: usize, x: &[f32]) {
        self.isa.run(Rows { quantizer: self, first, x });
    }
}

/// Returns the index of the scale of a quantization group of row `row`, where a row has
/// `quant_groups`.
#[inline(always)]
fn scale_at(quant_groups: usize, row: usize, quant_group: usize) -> usize {
    (row / HEAD_ROWS * quant_groups + quant_group) * HEAD_ROWS + row % HEAD_ROWS
}

/// Returns the index of initial value `i` of the accumulators, as in [`Starts`], of a quantization
/// group of row `row`, where a row has `quant_groups`.
#[inline(always)]
fn start_at(quant_groups: usize, row: usize, quant_group: usize, i: usize) -> usize {
    let head = row / HEAD_ROWS * quant_groups + quant_group;
    (head * (BLOCKS + 1) + i) * HEAD_ROWS + row % HEAD_ROWS
}

/// Kernel that quantizes rows of activations from row `first` on, which no other thread quantizes.
struct Rows<'a> {
    quantizer: &'a Quantizer<'a>,
    first: usize,
    x: &'a [f32],
}

impl Kernel for Rows<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let quant_groups = self.quantizer.quant_groups;
        for (i, x) in self.x.chunks_exact(self.quantizer.k).enumerate() {
            let row = self.first + i;
            // SAFETY: no other thread uses the row.
            let quantized = unsafe {
                self.quantizer
                    .quantized
                    .part(row * quant_groups * QUANT_GROUP, quant_groups * QUANT_GROUP)
            };
            let quantized = quantized.as_chunks_mut::<QUANT_GROUP>().0;
            for (quant_group, (x, quantized)) in x.chunks(QUANT_GROUP).zip(quantized).enumerate() {
                let padded: [f32; QUANT_GROUP];
                let x = match x.as_array() {
                    Some(x) => x,
                    None => {
                        padded = std::array::from_fn(|i| x.get(i).copied().unwrap_or(0.0));
                        &padded
                    }
                };
                let (scale, [first, sum]) = quantize_group(lanes, x, quantized);
                // SAFETY: no other thread uses the scales of the row.
                unsafe {
                    self.quantizer.scales.part(scale_at(quant_groups, row, quant_group), 1)[0] =
                        scale;
                    for (i, sum) in [first, sum - first, sum].into_iter().enumerate() {
                        let at = start_at(quant_groups, row, quant_group, i);
                        self.quantizer.starts.part(at, 1)[0] = -ZERO * sum;
                    }
                }
            }
        }
    }
}

/// Quantizes one quantization group of activations to int8; returns its scale and the sums of the
/// quantized values of its first block and of all.
#[inline(always)]
fn quantize_group<L: Lanes>(
    lanes: L,
    x: &[f32; QUANT_GROUP],
    quantized: &mut [i8; QUANT_GROUP],
) -> (f32, [i32; 2]) {
    let (x, quantized) = (x.as_chunks::<LANES>().0, quantized.as_chunks_mut::<LANES>().0);
    let zero = lanes.splat(0.0);
    let mut top = zero;
    for x in x {
        let x = lanes.lift(x);
        top = lanes.max(top, lanes.max(x, lanes.sub(zero, x)));
    }
    let top = lanes.largest(top);
    // A smaller maximum has no finite reciprocal, and would vanish in any sum.
    let inverse = lanes.splat(if top < 1e-30 { 0.0 } else { TOP / top });
    // Adding 1.5 * 2^23 leaves the nearest whole number in the low bits: rounding by one addition.
    let magic = lanes.splat(12_582_912.0);
    let (mut first, mut sum) = (zero, zero);
    for (i, (x, quantized)) in x.iter().zip(quantized).enumerate() {
        if i == BLOCK / LANES {
            first = sum;
        }
        let rounded = lanes.fma(lanes.lift(x), inverse, magic);
        // SAFETY: there is room for 16 quantized values.
        unsafe { lanes.store_low_bytes(quantized.as_mut_ptr().cast(), rounded) };
        sum = lanes.add(sum, lanes.sub(rounded, magic));
    }
    // All terms are small whole numbers, so their f32 sums are exact.
    (top / TOP, [lanes.sum(first) as i32, lanes.sum(sum) as i32])
}
