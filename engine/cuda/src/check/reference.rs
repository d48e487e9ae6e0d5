//! Launches of the reference kernels, and tolerances.
//!
//! The tolerance of an element is the sum of
//! - half a unit of its type: 1/256 of its magnitude in bf16, 1/16 in e4m3 (and 2^-10, for small
//!   numbers), nothing in f32;
//! - 2^-16 of the sum over the magnitudes of its terms, because f32 sums are rounded in another
//!   order than the reference's; for the result of attention 1/128 of it, because softmax weights
//!   are rounded to bf16;
//! - for the gated delta net 1/128 of 1 + its magnitude row by row, and 1/64 in chunks, whose
//!   multiplications round to eleven bits.
//!
//! Operations that copy, sort, select or sample have no tolerance.

use std::sync::Arc;

use super::operation::rows;
use super::{Operation, ResultType, Target, Wanted, downloaded, read, sampled, uploaded};
use crate::buffer::{Buffer, DType};
use crate::device::Cuda;
use crate::driver::{Address, Arguments, Driver, Memory};
use crate::launch::Launch;
use crate::launch::attention::PageType;
use crate::launch::delta_net::{DeltaNetArguments, SequenceArguments, has_chunks};
use crate::launch::matmul::MatrixType;
use crate::layers::Kv;
use crate::weights::{Matrix, Vector};
use crate::{Result, failed};
use engine_core::sample::Sampler;
use engine_core::{AttentionLayer, DeltaNetLayer, Gate, Rotation, ScheduledSequence};

/// Largest relative error of rounding to bf16.
const BF16: f32 = 1.0 / 256.0;
/// Largest relative error of rounding to e4m3, and largest error of its smallest numbers.
const E4M3: (f32, f32) = (1.0 / 16.0, 1.0 / 1024.0);
/// Error of a sum in f32, as a share of the sum over the magnitudes of its terms.
const F32_SUM: f32 = 1.0 / 65_536.0;
/// Error of attention by its rounded softmax weights, as a share of the same sum.
const SOFTMAX: f32 = 1.0 / 128.0;
/// Largest number of multiplications of the reference of one result of attention.
const ATTENTION_MAX: usize = 5_000_000_000;
/// Largest number of lines (a row's query of one head) that are checked, in any case.
const LINES_MAX: usize = 4096;

/// Operation of `reference_rows`, by its number.
#[derive(Debug, Clone, Copy)]
enum RowsOperation {
    AddBias = 0,
    RmsNorm = 1,
    AddRmsNorm = 2,
    Add = 3,
    SiluMul = 4,
    ClampedSwiglu = 5,
    SigmoidMul = 6,
}

impl Operation<'_, Cuda> {
    /// Computes what the operation has to write to each of `targets`. `inputs` are their addresses,
    /// or those of copies from before the run where the operation reads them first.
    pub(super) fn wanted(
        &self,
        cuda: &Cuda,
        targets: &[Target],
        inputs: &[Address],
    ) -> Result<Vec<Wanted>> {
        let driver = &cuda.stream.driver;
        let by_rows = |target: usize, operation, cols, from: [Address; 3], factors| {
            let rows = targets[target].elements / cols;
            rows_wanted(driver, operation, [rows, cols], from, factors)
        };
        let none = Address::NULL;
        Ok(match self {
            Self::AddBias { x, bias } => {
                let from = [inputs[0], none, bias.part.address()];
                vec![by_rows(0, RowsOperation::AddBias, x.cols, from, [0.0; 2])?]
            }
            Self::AddRmsNorm { x, delta, weight, epsilon, .. } => {
                let from = [inputs[0], delta.bf16(), weight.part.address()];
                vec![
                    by_rows(0, RowsOperation::Add, x.cols, from, [0.0; 2])?,
                    by_rows(1, RowsOperation::AddRmsNorm, x.cols, from, [*epsilon, 0.0])?,
                ]
            }
            Self::RmsNorm { x, weight, epsilon, .. } => {
                let from = [x.bf16(), none, weight.part.address()];
                vec![by_rows(0, RowsOperation::RmsNorm, x.cols, from, [*epsilon, 0.0])?]
            }
            Self::SiluMul { gate_up, out } => {
                let from = [gate_up.bf16(), none, none];
                vec![by_rows(0, RowsOperation::SiluMul, out.cols, from, [0.0; 2])?]
            }
            Self::ClampedSwiglu { gate_up, alpha, limit, out } => {
                let (from, factors) = ([gate_up.bf16(), none, none], [*alpha, *limit]);
                vec![by_rows(0, RowsOperation::ClampedSwiglu, out.cols, from, factors)?]
            }
            Self::SigmoidMul { x, gate } => {
                let from = [inputs[0], gate.bf16(), none];
                vec![by_rows(0, RowsOperation::SigmoidMul, x.cols, from, [0.0; 2])?]
            }
            Self::Matmul { x, w, out } | Self::Scores { x, w, out } => {
                let sizes = [out.rows, out.cols];
                vec![matmul(driver, x, w, [none; 2], (1, sizes, out.dtype))?]
            }
            Self::ExpertMatmul { x, experts, biases, routes, out } => {
                let biases = biases.first().map_or(none, |bias| bias.part.address());
                let sizes = (experts.len(), [out.rows, out.cols], out.dtype);
                vec![matmul(driver, x, &experts[0], [biases, routes.offsets], sizes)?]
            }
            Self::Embed { table, ids, .. } => {
                let ids = uploaded(driver, ids)?;
                let from = [table.weights.address(), ids.address()];
                vec![copy(driver, from, targets[0].elements, table.k, 1)?]
            }
            Self::Dispatch { x, routes, .. } => {
                let from = [x.bf16(), routes.sources];
                vec![copy(driver, from, targets[0].elements, x.cols, routes.chosen)?]
            }
            Self::Combine { x, routes, out } => {
                let at = sampled(out.rows, out.cols);
                let sums = Sums::new(driver, &at)?;
                let from = [x.bf16(), routes.slots, routes.weights];
                let arguments = from.into_iter().fold(sums.arguments(), Arguments::address);
                let arguments = arguments.sizes([at.len(), routes.chosen, out.cols]);
                driver.launch("reference_combine", Launch::reference(at.len()), &arguments)?;
                vec![sums.wanted(at, |want, size| want * BF16 + size * F32_SUM)?]
            }
            Self::Attention { qkv, layer, sequences, kv, .. } => {
                vec![attention(driver, qkv, layer, sequences, kv)?]
            }
            Self::RopeAndCache { layer, rotation, sequences, kv, .. } => {
                rope(driver, inputs[0], layer, rotation, sequences, kv)?
            }
            Self::DeltaNet { projected, layer, step, sequences, state, .. } => {
                let is_chunked = step.bucket.is_none() && has_chunks(&layer.shape);
                let share = if is_chunked { 1.0 / 64.0 } else { 1.0 / 128.0 };
                let stride = state.slot_stride();
                let first = state.layer(layer.index).0 - state.memory.address().0;
                let states = inputs[1].plus(first as usize);
                delta_net(driver, projected, layer, sequences, (states, stride), share)?
            }
            Self::Route { logits, top_k, gate, experts } => {
                let values = downloaded(driver, logits.f32(), logits.rows * logits.cols)?;
                route(&values, *experts, *top_k, *gate)
            }
            Self::Sample { logits, params, .. } => {
                let values: Vec<f32> =
                    downloaded(driver, logits.f32(), params.len() * logits.cols)?;
                let mut sampler = Sampler::default();
                let rows = values.chunks_exact(logits.cols).zip(*params);
                let tokens = rows.map(|(row, params)| {
                    let token = sampler.sample_logits(row, params);
                    token.map(|token| token as f32).map_err(|_| failed("check", "infinite logits"))
                });
                vec![Wanted::exactly(tokens.collect::<Result<_>>()?)]
            }
        })
    }
}

/// Device memory of a reference kernel: indices, and for each the result and the sum over the
/// magnitudes of its terms.
struct Sums {
    driver: Arc<dyn Driver>,
    at: Memory,
    want: Memory,
    size: Memory,
    count: usize,
}

impl Sums {
    fn new(driver: &Arc<dyn Driver>, at: &[u32]) -> Result<Self> {
        let count = at.len();
        let [want, size] = [Memory::new(driver, 4 * count)?, Memory::new(driver, 4 * count)?];
        Ok(Self { driver: Arc::clone(driver), at: uploaded(driver, at)?, want, size, count })
    }

    /// Returns the first arguments of the kernel.
    fn arguments(&self) -> Arguments {
        Arguments::of([self.want.address(), self.size.address(), self.at.address()])
    }

    fn wanted(self, at: Vec<u32>, tolerance: impl Fn(f32, f32) -> f32) -> Result<Wanted> {
        let want: Vec<f32> = downloaded(&self.driver, self.want.address(), self.count)?;
        let size: Vec<f32> = downloaded(&self.driver, self.size.address(), self.count)?;
        let each = want.iter().zip(&size);
        let tolerance = each.map(|(want, size)| tolerance(want.abs(), *size)).collect();
        Ok(Wanted { at, want, tolerance })
    }
}

fn rows_wanted(
    driver: &Arc<dyn Driver>,
    operation: RowsOperation,
    [rows, cols]: [usize; 2],
    from: [Address; 3],
    factors: [f32; 2],
) -> Result<Wanted> {
    let at = sampled(rows, cols);
    let sums = Sums::new(driver, &at)?;
    let sizes = [at.len() as u32, operation as u32, cols as u32];
    let [first, second] = factors.map(f32::to_bits);
    let arguments = from.into_iter().fold(sums.arguments(), Arguments::address);
    let arguments = arguments.value([sizes[0], sizes[1], sizes[2], first, second]);
    driver.launch("reference_rows", Launch::reference_warps(at.len()), &arguments)?;
    sums.wanted(at, |want, size| want * BF16 + size * F32_SUM)
}

/// Reference of rows `x` times the weights of one matrix, or of stacked experts whose first is `w`;
/// `from` are the addresses of biases and offsets.
fn matmul(
    driver: &Arc<dyn Driver>,
    x: &Buffer,
    w: &Matrix,
    from: [Address; 2],
    (experts, [rows, cols], dtype): (usize, [usize; 2], DType),
) -> Result<Wanted> {
    let at = sampled(rows, cols);
    let entry = match w.matrix_type {
        MatrixType::Bf16 => "reference_matmul_bf16",
        MatrixType::E4m3 => "reference_matmul_e4m3",
        MatrixType::Mxfp4 => "reference_matmul_mxfp4",
    };
    let sums = Sums::new(driver, &at)?;
    let from = [x.bf16(), w.weights.address(), w.scales.address(), from[0], from[1]];
    let arguments = from.into_iter().fold(sums.arguments(), Arguments::address);
    // Padding columns are removed from the result: the indices count only those that are left.
    let sizes = [at.len(), experts, cols, w.k].map(|size| size as u32);
    driver.launch(entry, Launch::reference_warps(at.len()), &arguments.value(sizes))?;
    let rounding = if dtype == DType::Bf16 { BF16 } else { 0.0 };
    sums.wanted(at, |want, size| want * rounding + size * F32_SUM)
}

/// Reference of copying rows: row `i` of `elements / cols` is row `rows[i] / divisor` of `x`.
fn copy(
    driver: &Arc<dyn Driver>,
    [x, rows]: [Address; 2],
    elements: usize,
    cols: usize,
    divisor: usize,
) -> Result<Wanted> {
    let at = sampled(elements / cols, cols);
    let (indices, want) = (uploaded(driver, &at)?, Memory::new(driver, 4 * at.len())?);
    let arguments = Arguments::of([want.address(), indices.address(), x, rows]);
    let arguments = arguments.sizes([at.len(), cols, divisor]);
    driver.launch("reference_copy", Launch::reference(at.len()), &arguments)?;
    let want = downloaded(driver, want.address(), at.len())?;
    let tolerance = vec![0.0; at.len()];
    Ok(Wanted { at, want, tolerance })
}

/// Returns the address of an optional vector; null without one.
fn optional(vector: Option<&Vector>) -> Address {
    vector.map_or(Address::NULL, |vector| vector.part.address())
}

fn attention(
    driver: &Arc<dyn Driver>,
    qkv: &Buffer,
    layer: &AttentionLayer<Vector>,
    sequences: &[ScheduledSequence],
    kv: &Kv,
) -> Result<Wanted> {
    let (heads, d) = (layer.shape.heads, layer.shape.head_dim);
    let page_tokens = kv.shape.page_tokens;
    // Position and first entry of the page table, by row.
    let (mut places, mut tables) = (Vec::new(), Vec::<u32>::new());
    for sequence in sequences {
        let table = tables.len() as u32;
        places.extend((sequence.position..sequence.end()).map(|at| (at as u32, table)));
        tables.extend(sequence.used_pages(page_tokens));
    }
    let longest = sequences.iter().map(ScheduledSequence::end).max().unwrap_or(0);
    let seen = layer.window.unwrap_or(longest).min(longest);
    let most = (ATTENTION_MAX / (3 * seen * d).max(1)).clamp(heads, LINES_MAX);
    let all = places.len() * heads;
    // Lines at both ends, and others at a distance that is no multiple of the number of heads.
    let step = (all / most.max(1)).max(1) | 1;
    let ends = (0..heads.min(all)).chain(all - heads.min(all)..all);
    let mut chosen: Vec<usize> = ends.chain((0..all).step_by(step)).collect();
    chosen.sort_unstable();
    chosen.dedup();
    let lines: Vec<[u32; 4]> = chosen
        .iter()
        .map(|line| {
            let (position, table) = places[line / heads];
            [(line / heads) as u32, (line % heads) as u32, position, table]
        })
        .collect();
    let at: Vec<u32> =
        chosen.iter().flat_map(|line| (line * d..(line + 1) * d).map(|i| i as u32)).collect();
    let (count, tables) = (lines.len(), uploaded(driver, &tables)?);
    let lines = uploaded(driver, &lines)?;
    let sums = Sums::new(driver, &at)?;
    let from = [
        sums.want.address(),
        sums.size.address(),
        lines.address(),
        tables.address(),
        qkv.bf16(),
        kv.layer(layer.kv_layer),
        optional(layer.sinks.as_ref()),
        optional(layer.scales.as_ref()),
    ];
    let window = layer.window.unwrap_or(0);
    let sizes = [count, heads, layer.shape.kv_heads, d, page_tokens].map(|size| size as u32);
    let [count_word, heads, kv_heads, d, page_tokens] = sizes;
    let shape = [count_word, heads, kv_heads, d, page_tokens, kv.page_stride(), window as u32];
    let shape = [shape.as_slice(), &[layer.shape.scale.to_bits()]].concat();
    let shape: [u32; 8] = shape.try_into().expect("seven sizes and a scale");
    let entry = match kv.page_type() {
        PageType::Bf16 => "reference_attention_bf16",
        PageType::E4m3 => "reference_attention_e4m3",
    };
    driver.launch(entry, Launch::reference_warps(count), &Arguments::of(from).value(shape))?;
    sums.wanted(at, |want, size| want * BF16 + size * SOFTMAX)
}

/// Reference of the rotated queries in `qkv` (at `before` when they were not rotated yet), whose
/// keys and values are left as they are, and of the keys and values in the pages.
fn rope(
    driver: &Arc<dyn Driver>,
    before: Address,
    layer: &AttentionLayer<Vector>,
    rotation: &Rotation,
    sequences: &[ScheduledSequence],
    kv: &Kv,
) -> Result<Vec<Wanted>> {
    let (heads, kv_heads, d) = (layer.shape.heads, layer.shape.kv_heads, layer.shape.head_dim);
    let (cols, rows) = ((heads + 2 * kv_heads) * d, rows(sequences));
    let page_tokens = kv.shape.page_tokens;
    let mut slots = Vec::with_capacity(rows);
    for sequence in sequences {
        let slot = |at: usize| (sequence.pages[at / page_tokens], at % page_tokens);
        slots.extend((sequence.position..sequence.end()).map(|at| (at as u32, slot(at))));
    }
    let positions: Vec<u32> = slots.iter().map(|(position, _)| *position).collect();
    let at = sampled(rows, cols);
    let (count, indices) = (at.len(), uploaded(driver, &at)?);
    let (want, positions) = (Memory::new(driver, 4 * count)?, uploaded(driver, &positions)?);
    let frequencies = uploaded(driver, &rotation.inverse_frequencies)?;
    let norms = match &layer.head_norms {
        Some(norms) => {
            let both = Memory::new(driver, 8 * d)?;
            driver.copy(both.address(), norms.query.part.address(), 4 * d)?;
            driver.copy(both.address().plus(4 * d), norms.key.part.address(), 4 * d)?;
            Some(both)
        }
        None => None,
    };
    let is_e4m3 = kv.page_type() == PageType::E4m3;
    let scales = if is_e4m3 { optional(layer.scales.as_ref()) } else { Address::NULL };
    let epsilon = layer.head_norms.as_ref().map_or(0.0, |norms| norms.epsilon);
    let sizes = [count, heads, kv_heads, d, rotation.inverse_frequencies.len()];
    let [count_word, heads_word, kv_word, d_word, pairs] = sizes.map(|size| size as u32);
    let shape = [count_word, heads_word, kv_word, d_word, pairs];
    let floats = [epsilon.to_bits(), rotation.factor.to_bits()];
    let arguments = Arguments::of([
        want.address(),
        indices.address(),
        before,
        positions.address(),
        frequencies.address(),
        norms.as_ref().map_or(Address::NULL, Memory::address),
        scales,
    ]);
    let [a, b, c, e, f] = shape;
    let arguments = arguments.value([a, b, c, e, f, floats[0], floats[1]]);
    driver.launch("reference_rope", Launch::reference(count), &arguments)?;
    let want: Vec<f32> = downloaded(driver, want.address(), count)?;
    let (mut queries, mut pages) = (Wanted::default(), Wanted::default());
    // Terms of a rotation are at most a few units large.
    let bf16 = |want: f32| want.abs() * BF16 + 4.0 * F32_SUM;
    let element = |index: usize| {
        let (row, head, i) = (index / cols, index / d % (heads + 2 * kv_heads), index % d);
        let (stored, (page, token)) = (head - heads, slots[row].1);
        let block =
            page as usize * kv.page_stride() as usize + 2 * (stored % kv_heads) + stored / kv_heads;
        let per_piece = if is_e4m3 { 16 } else { 8 };
        // Rows of at most eight pieces are adjacent, and permuted by the number of the row.
        let (pieces, piece) = (d / per_piece, i / per_piece);
        let width = pieces.min(8);
        let place = (piece / width * page_tokens + token) * width
            + (piece % width ^ (token * width / 8 & (width - 1)));
        block * page_tokens * d + place * per_piece + i % per_piece
    };
    for (index, want) in at.into_iter().zip(want) {
        if (index as usize / d) % (heads + 2 * kv_heads) < heads {
            queries.at.push(index);
            queries.want.push(want);
            queries.tolerance.push(bf16(want));
        } else {
            pages.at.push(element(index as usize) as u32);
            pages.want.push(want);
            let tolerance = if is_e4m3 { want.abs() * E4M3.0 + E4M3.1 } else { bf16(want) };
            pages.tolerance.push(tolerance);
        }
    }
    Ok(vec![queries, pages])
}

fn delta_net(
    driver: &Arc<dyn Driver>,
    projected: &Buffer,
    layer: &DeltaNetLayer<Vector>,
    sequences: &[ScheduledSequence],
    (states, stride): (Address, u32),
    share: f32,
) -> Result<Vec<Wanted>> {
    let net = &layer.shape;
    let shape = DeltaNetArguments::new(layer, stride);
    let spans: Vec<SequenceArguments> = sequences
        .iter()
        .map(|sequence| SequenceArguments {
            row: sequence.row as u32,
            rows: sequence.rows as u32,
            position: sequence.position as u32,
            slot: sequence.state.expect("sequences have state slots").slot,
            load: SequenceArguments::NOWHERE,
            save: SequenceArguments::NOWHERE,
        })
        .collect();
    let (rows, count) = (rows(sequences), spans.len());
    let (channels, cols) = (net.conv_cols(), net.value_heads * net.value_dim);
    let head_elements = net.key_dim * net.value_dim;
    let matrices = net.value_heads * head_elements;
    let convolved = Memory::new(driver, 4 * rows * channels)?;
    let results = Memory::new(driver, 4 * rows * cols)?;
    let after = Memory::new(driver, 4 * count * matrices)?;
    let uploaded_spans = uploaded(driver, &spans)?;
    let from = [convolved.address(), states, projected.bf16(), uploaded_spans.address()];
    let arguments = Arguments::of(from).address(layer.conv.part.address());
    let arguments = arguments.sizes([count]).value(shape);
    driver.launch("reference_convolve", Launch::reference(channels), &arguments)?;
    let arguments = Arguments::of([
        results.address(),
        after.address(),
        convolved.address(),
        states,
        projected.bf16(),
        uploaded_spans.address(),
        layer.rate.part.address(),
        layer.bias.part.address(),
    ]);
    let arguments = arguments.sizes([count]).value(shape);
    driver.launch("reference_delta", Launch::reference(count * cols), &arguments)?;
    let at = sampled(rows, cols);
    let (indices, want) = (uploaded(driver, &at)?, Memory::new(driver, 4 * at.len())?);
    let from = [want.address(), indices.address(), results.address(), projected.bf16()];
    let arguments = Arguments::of(from).address(layer.norm.part.address());
    let arguments = arguments.sizes([at.len()]).value(shape);
    driver.launch("reference_delta_gate", Launch::reference(at.len()), &arguments)?;
    let tolerance = |want: &Vec<f32>| want.iter().map(|x| (1.0 + x.abs()) * share).collect();
    let want: Vec<f32> = downloaded(driver, want.address(), at.len())?;
    let out = Wanted { tolerance: tolerance(&want), at, want };
    // Elements of the matrices, among those of all layers and slots.
    let from = sampled(count * net.value_heads, head_elements);
    let want = read(driver, after.address(), &from, ResultType::F32)?;
    let first = layer.index * net.state_elements() + (net.taps - 1) * channels;
    let place = |index: &u32| {
        let (sequence, element) = (*index as usize / matrices, *index as usize % matrices);
        (spans[sequence].slot as usize * stride as usize + first + element) as u32
    };
    let at = from.iter().map(place).collect();
    Ok(vec![out, Wanted { tolerance: tolerance(&want), at, want }])
}

/// Returns what routing has to write: expert and weight of each pair, offsets of the experts, pairs
/// in sorted order, and place of each pair.
fn route(logits: &[f32], experts: usize, top_k: usize, gate: Gate) -> Vec<Wanted> {
    let (mut ids, mut weights) = (Vec::new(), Vec::new());
    for row in logits.chunks_exact(experts) {
        let mut order: Vec<usize> = (0..experts).collect();
        // The sort is stable, so that the lower index comes first among equals.
        order.sort_by(|a, b| row[*b].total_cmp(&row[*a]));
        let exp = |expert: usize| f64::from(row[expert] - row[order[0]]).exp();
        let is_partial = gate == Gate::SoftmaxTop { normalized: false };
        let counted = if is_partial { experts } else { top_k };
        let total: f64 = order[..counted].iter().map(|expert| exp(*expert)).sum();
        weights.extend(order[..top_k].iter().map(|expert| (exp(*expert) / total) as f32));
        ids.extend_from_slice(&order[..top_k]);
    }
    let mut sources: Vec<usize> = (0..ids.len()).collect();
    sources.sort_by_key(|pair| ids[*pair]);
    let mut slots = vec![0; ids.len()];
    sources.iter().enumerate().for_each(|(slot, pair)| slots[*pair] = slot);
    let offsets = (0..=experts).map(|expert| ids.iter().filter(|id| **id < expert).count());
    let exactly = |values: &[usize]| Wanted::exactly(values.iter().map(|x| *x as f32).collect());
    // `ex2.approx` and the division are exact to a few units.
    let tolerance = weights.iter().map(|weight| weight * 5e-5 + f32::MIN_POSITIVE).collect();
    let at = (0..weights.len() as u32).collect();
    vec![
        exactly(&ids),
        Wanted { at, want: weights, tolerance },
        exactly(&offsets.collect::<Vec<_>>()),
        exactly(&sources),
        exactly(&slots),
    ]
}
