//! Benchmark cases: an operation of a [`Device`] at one size, with the bytes and floating-point
//! operations of one call, and a function that makes the call.
//!
//! `setup.rs` creates a case on a device. Criterion (`engine/benches/kernels.rs`), `redline bench`,
//! its `--kernels` on a GPU (`list.rs`) and the instruction counts (`engine/examples/counts`) all
//! measure such cases.

use std::cell::RefCell;
use std::fmt;
use std::ops::Range;
use std::rc::Rc;

use engine_core::{
    AttentionShape, Device, DeviceError, Gate, HostMatrix, KvShape, KvType, RowOrder,
    ScheduledSequence, StateSlots, StepBatch, WeightType,
};
use engine_cpu::Cpu;
use engine_cuda::Cuda;
use engine_cuda::check::{self, Check, Operation};
use engine_weights::random_tensor;

use crate::config::PAGE_TOKENS;

/// Name and dimensions of a model (hidden and intermediate size, heads, vocabulary), from which
/// benchmark cases are created.
#[derive(Debug, Clone, Copy)]
#[expect(missing_docs, reason = "the names are those of config.json")]
pub struct Shape {
    pub model: &'static str,
    pub hidden: usize,
    pub intermediate: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub vocab: usize,
}

/// Name and dimensions of SmolLM2-135M.
pub const SMOLLM2_135M: Shape = Shape {
    model: "smollm2-135m",
    hidden: 576,
    intermediate: 1536,
    heads: 9,
    kv_heads: 3,
    head_dim: 64,
    vocab: 49_152,
};

impl Shape {
    /// Returns the shape of attention in the model's layers.
    pub fn attention(&self) -> AttentionShape {
        attention_shape(self.heads, self.kv_heads, self.head_dim)
    }
}

pub(super) fn attention_shape(heads: usize, kv_heads: usize, head_dim: usize) -> AttentionShape {
    AttentionShape { heads, kv_heads, head_dim, scale: 1.0 / (head_dim as f32).sqrt() }
}

/// Dimensions of a mixture-of-experts layer: numbers of experts in all and per row, hidden and
/// intermediate size.
#[derive(Debug, Clone, Copy)]
#[expect(missing_docs, reason = "the names are those of config.json")]
pub struct MoeShape {
    pub experts: usize,
    pub top_k: usize,
    pub hidden: usize,
    pub intermediate: usize,
}

/// Benchmark case: one operation at one size, ready to be timed.
pub struct Case {
    /// Name of the measured operation.
    pub op: &'static str,
    /// Sizes of the case as one text, such as `T16_V32000_N4096`, each after its letter: T rows, K
    /// contraction, N columns, B sequences, H heads, D head size, V vocabulary and E experts. C is
    /// the context length, in experts' cases the number of experts per row.
    pub shape: String,
    /// Data type of the weights; in cases of attention and RoPE the model's name and the data type
    /// of the KV cache; in a case of sampling the name of its parameters; else the data type of the
    /// activations.
    pub dtype: String,
    /// Number of bytes that one call of the operation has to read and write at least.
    pub bytes: u64,
    /// Number of floating-point operations of one call; a multiplication and an addition count as
    /// two.
    pub flops: u64,
    /// Data type in which a matrix multiplication is computed; empty for other operations, those of
    /// experts included.
    pub compute_dtype: &'static str,
    /// Number of layers of weights or KV pages that successive calls of the case use in turn.
    pub layers: usize,
    /// Function that runs the operation once, on the next layer.
    pub run: Box<dyn FnMut() -> Result<(), DeviceError>>,
    /// Function that runs the operation on the first layer and compares its results with a
    /// reference; empty where the device has none.
    pub check: Box<dyn FnMut() -> Result<Vec<Check>, DeviceError>>,
}

/// What a case does with its operation.
#[derive(Debug)]
pub(super) enum Call<'a> {
    /// Runs it once.
    Run,
    /// Runs it and compares its results with a reference.
    Check(&'a mut Vec<Check>),
}

impl Call<'_> {
    pub(super) fn operation<D: BenchDevice>(
        self,
        device: &mut D,
        mut operation: Operation<'_, D>,
    ) -> Result<(), DeviceError> {
        match self {
            Self::Run => operation.run(device),
            Self::Check(checks) => {
                *checks = device.check(operation)?;
                Ok(())
            }
        }
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { op, shape, dtype, bytes, flops, .. } = self;
        write!(f, "{op}/{shape}_{dtype}: {flops} flops, {bytes} bytes")
    }
}

impl Case {
    /// Creates a benchmark case of the operation that `call` runs or checks on the layer of an index.
    /// The array has the bytes and the floating-point operations of one call.
    pub(super) fn new(
        op: &'static str,
        (shape, dtype): (String, impl Into<String>),
        [bytes, flops]: [usize; 2],
        layers: usize,
        call: impl FnMut(Call<'_>, usize) -> Result<(), DeviceError> + 'static,
    ) -> Self {
        let (call, mut next) = (Rc::new(RefCell::new(call)), 0);
        let checked = Rc::clone(&call);
        let run = Box::new(move || {
            let layer = next;
            next = if layer + 1 < layers { layer + 1 } else { 0 };
            call.borrow_mut()(Call::Run, layer)
        });
        let check = Box::new(move || {
            let mut checks = Vec::new();
            checked.borrow_mut()(Call::Check(&mut checks), 0)?;
            Ok(checks)
        });
        let (bytes, flops, dtype) = (bytes as u64, flops as u64, dtype.into());
        Self { op, shape, dtype, bytes, flops, compute_dtype: "", layers, run, check }
    }
}

/// Device that benchmark cases run on, with the sizes from which the bytes of a case are computed.
pub trait BenchDevice: Device + 'static {
    /// Name of the data type of activations on the device.
    const DTYPE: &'static str;
    /// Size in bytes of one element of an activation.
    const ELEMENT_BYTES: usize;
    /// Distance, in page numbers, between two successive KV pages of a sequence.
    const PAGE_STRIDE: usize;
    /// True if the device checks operations against reference kernels.
    const IS_CHECKED: bool;

    /// Runs an operation, and compares its results with those of reference kernels.
    ///
    /// # Errors
    /// The device reports an error.
    fn check(&mut self, operation: Operation<'_, Self>) -> Result<Vec<Check>, DeviceError>
    where
        Self: Sized;

    /// Creates an activation buffer `[rows, cols]` of pseudo-random numbers from -1 to 1.
    ///
    /// # Errors
    /// The device reports an error, or does not have enough memory.
    fn random_rows(&mut self, rows: usize, cols: usize) -> Result<Self::Buffer, DeviceError> {
        let mut x = self.buffer(cols)?;
        self.write(&mut x, &numbers(rows * cols))?;
        Ok(x)
    }

    /// Creates `count` matrices `[n, k]` of pseudo-random weights.
    ///
    /// # Errors
    /// The device reports an error, or does not have enough memory.
    fn random_matrices(
        &mut self,
        count: usize,
        weight_type: WeightType,
        n: usize,
        k: usize,
    ) -> Result<Vec<Self::Matrix>, DeviceError> {
        let bytes = random_tensor(1, "bench", weight_type, &[n, k]).bytes;
        let order = RowOrder::AsStored;
        let host = [HostMatrix { weight_type, n, k, bytes: &bytes, order }];
        (0..count).map(|_| self.matrix(&host)).collect()
    }

    /// Returns the size in bytes of weights `[n, k]` with their scales on the device.
    fn weight_bytes(weight_type: WeightType, n: usize, k: usize) -> usize {
        n * weight_type.row_bytes(k)
    }
}

impl BenchDevice for Cpu {
    const DTYPE: &'static str = "f32";
    const ELEMENT_BYTES: usize = 4;
    const PAGE_STRIDE: usize = 1;
    const IS_CHECKED: bool = false;

    fn check(&mut self, _operation: Operation<'_, Self>) -> Result<Vec<Check>, DeviceError> {
        Ok(Vec::new())
    }
}

impl BenchDevice for Cuda {
    const DTYPE: &'static str = "bf16";
    const ELEMENT_BYTES: usize = 2;
    /// Distance, in page numbers, between two successive KV pages of a sequence on a GPU: a prime
    /// that divides no number of pages in `list.rs`, so that pages are scattered and distinct.
    const PAGE_STRIDE: usize = 7919;
    const IS_CHECKED: bool = true;

    fn check(&mut self, operation: Operation<'_, Self>) -> Result<Vec<Check>, DeviceError> {
        check::check(self, operation)
    }

    fn random_rows(&mut self, rows: usize, cols: usize) -> Result<Self::Buffer, DeviceError> {
        self.random_buffer(rows, cols)
    }

    fn random_matrices(
        &mut self,
        count: usize,
        weight_type: WeightType,
        n: usize,
        k: usize,
    ) -> Result<Vec<Self::Matrix>, DeviceError> {
        (0..count).map(|_| self.random_weights(weight_type, n, k)).collect()
    }

    fn weight_bytes(weight_type: WeightType, n: usize, k: usize) -> usize {
        match weight_type {
            // One f32 scale per 128 x 128 weights.
            WeightType::F8E4M3 => n * k + 4 * n.div_ceil(128) * k.div_ceil(128),
            other => n * other.row_bytes(k),
        }
    }
}

/// Operation that reads and writes rows of activations, without a weight matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the operations of `Device`")]
pub enum RowOp {
    AddBias,
    AddRmsNorm,
    ClampedSwiglu,
    RmsNorm,
    SigmoidMul,
    SiluMul,
}

impl RowOp {
    /// All of these operations.
    pub const ALL: [Self; 6] = [
        Self::AddBias,
        Self::AddRmsNorm,
        Self::ClampedSwiglu,
        Self::RmsNorm,
        Self::SigmoidMul,
        Self::SiluMul,
    ];
}

/// Operation of a mixture-of-experts layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MoeOp {
    /// Choice of each row's top-k experts by the router's logits, with weights of this kind.
    Route(Gate),
    /// Copy of each row of activations to each of its top-k experts (dispatch).
    Dispatch,
    /// Grouped GEMM of the gate and up projections, with weights of this format.
    ExpertMatmul(WeightType),
    /// The same, where all rows have the first expert among their top k, and none has one of the
    /// second half.
    SkewedExpertMatmul(WeightType),
    /// Sum of the results of each row's top-k experts, weighted by the router (combine).
    Combine,
}

/// Matrix multiplication of activations `[t, k]` by the transpose of weights `[n, k]`.
#[derive(Debug, Clone, Copy)]
#[expect(missing_docs, reason = "letters of shapes")]
pub struct Matmul {
    pub t: usize,
    pub k: usize,
    pub n: usize,
    pub weight_type: WeightType,
}

/// Size of a step, or of a group of equal sequences in a step that mixes prompts and decoding:
/// number of sequences, number of new rows of each sequence, and number of positions (`context`)
/// that each has already.
#[derive(Debug, Clone, Copy)]
#[expect(missing_docs, reason = "the comment names them")]
pub struct Step {
    pub sequences: usize,
    pub rows: usize,
    pub context: usize,
}

/// KV pages of a group of sequences in a step: the index of their first page among `all` pages of the
/// step, and the distance in page numbers between pages of successive indices.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pages {
    first: usize,
    all: usize,
    stride: usize,
}

impl Step {
    fn pages_each(&self) -> usize {
        (self.context + self.rows).div_ceil(PAGE_TOKENS)
    }

    /// Returns the shape of a KV cache of one layer that has room for each sequence's context and
    /// new rows.
    pub(super) fn kv_shape(&self, shape: AttentionShape, kv_type: KvType) -> KvShape {
        kv_shape(std::slice::from_ref(self), shape, kv_type)
    }

    /// Returns the KV pages of the sequences, if no others are in the step. Pages of successive
    /// indices are `stride` numbers apart.
    pub(super) fn pages(&self, stride: usize) -> Pages {
        Pages { first: 0, all: self.sequences * self.pages_each(), stride }
    }

    /// Builds a batch with `rows` rows, the first at `position`, of each sequence whose index is in
    /// the range `of`.
    pub(super) fn batch(
        &self,
        pages: Pages,
        of: Range<usize>,
        position: usize,
        rows: usize,
    ) -> StepBatch {
        let each = self.pages_each();
        let Pages { first, all, stride } = pages;
        let tokens = vec![0; of.len() * rows];
        let sequence = |i: usize| {
            let own = first + i * each..first + (i + 1) * each;
            ScheduledSequence {
                rows,
                position,
                pages: own.map(|page| (page * stride % all) as u32).collect(),
                state: Some(StateSlots { slot: i as u32, load: None, save: None }),
                ..ScheduledSequence::default()
            }
        };
        StepBatch::known(&tokens, of.map(sequence).collect())
    }
}

/// Returns the shape of a KV cache of one layer that has room for the sequences of all groups of a
/// step.
pub(super) fn kv_shape(groups: &[Step], shape: AttentionShape, kv_type: KvType) -> KvShape {
    let AttentionShape { kv_heads, head_dim, .. } = shape;
    let pages = groups.iter().map(|group| group.sequences * group.pages_each()).sum();
    KvShape { layers: 1, kv_heads, head_dim, pages, page_tokens: PAGE_TOKENS, kv_type }
}

/// Returns the groups of a step, such as prompts and decoding sequences, each with its KV pages.
pub(super) fn with_pages(groups: &[Step], stride: usize) -> Vec<(Step, Pages)> {
    let counts = groups.iter().map(|group| group.sequences * group.pages_each());
    let all = counts.clone().sum();
    let first = counts.scan(0, |end, count| {
        *end += count;
        Some(*end - count)
    });
    let pages = first.map(|first| Pages { first, all, stride });
    groups.iter().copied().zip(pages).collect()
}

/// Builds the batch of the new rows of all sequences of a step's groups. The first row of each
/// group's sequences is at its `position`; each sequence has a state slot of its own.
pub(super) fn batch_of(groups: &[(Step, Pages)], position: impl Fn(&Step) -> usize) -> StepBatch {
    let mut all = StepBatch::default();
    for (group, pages) in groups {
        let own = group.batch(*pages, 0..group.sequences, position(group), group.rows);
        all.tokens.extend(own.tokens);
        own.sequences.into_iter().for_each(|sequence| all.push(sequence));
    }
    for (slot, sequence) in all.sequences.iter_mut().enumerate() {
        sequence.state = Some(StateSlots { slot: slot as u32, load: None, save: None });
    }
    all
}

/// Returns the number of new rows of all sequences of a step's groups.
pub(super) fn rows_of(groups: &[Step]) -> usize {
    groups.iter().map(|group| group.sequences * group.rows).sum()
}

/// Returns the name of a step in the shape of a case, such as `B1_T300_C0_B20_T20_C100`: for each
/// group its sequences, its new rows and the context of each sequence.
pub(super) fn step_name(groups: &[Step]) -> String {
    let name = |Step { sequences, rows, context }: &Step| {
        format!("B{sequences}_T{}_C{context}", sequences * rows)
    };
    groups.iter().map(name).collect::<Vec<_>>().join("_")
}

/// Returns `count` pseudo-random numbers from -1 to 1, the same on every run.
pub(super) fn numbers(count: usize) -> Vec<f32> {
    let mut state = 12_345u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1u32 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}
