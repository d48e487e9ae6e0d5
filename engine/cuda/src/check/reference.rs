//! What an operation has to write, by launches of the reference kernels.

use std::sync::Arc;

use super::delta_net::delta_net;
use super::sequences::{attention, rope};
use super::sums::{BF16, F32_SUM, Sums};
use super::{Operation, Target, Wanted, downloaded, sampled, uploaded};
use crate::buffer::{Buffer, DType};
use crate::device::Cuda;
use crate::driver::{Address, Arguments, Driver, Memory};
use crate::launch::Launch;
use crate::launch::delta_net::has_chunks;
use crate::launch::matmul::MatrixType;
use crate::weights::Matrix;
use crate::{Result, failed};
use engine_core::Gate;
use engine_core::sample::Sampler;

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
        let none = Address::NULL;
        Ok(match self {
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
            _ => return self.wanted_rows(driver, targets, inputs),
        })
    }

    /// Computes the same for the operations on rows without a matrix.
    fn wanted_rows(
        &self,
        driver: &Arc<dyn Driver>,
        targets: &[Target],
        inputs: &[Address],
    ) -> Result<Vec<Wanted>> {
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
            _ => unreachable!("an operation with a reference of its own"),
        })
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
