//! GPU kernel table: times of single operations, compared with the hardware limits. Knows no model:
//! weights, activations and KV pages are random.

pub mod cases;

use std::path::PathBuf;
use std::sync::Arc;

use super::Cuda;
use super::buffer::{Buffer, DType};
use super::driver::{Driver, Pinned};
use super::gemm::fill;
use super::launch::matmul::MatrixType;
use super::limits::Limits;
use super::stopwatch::{Stopwatch, Timing};
use super::weights::{Matrix, Vector, stack};
use cases::Case;
use engine_core::{
    AttentionLayer, AttentionShape, DeltaNetLayer, DeltaNetShape, Device, DeviceError, Gate,
    KvShape, KvType, LogitRows, Rotation, ScheduledSequence, StateShape, StateSlots, StepBatch,
};

/// Number of timed runs of a case; their median counts.
const SAMPLES: usize = 11;
/// Smallest number of calls in a run, so that a run is long compared with the resolution of an
/// event.
const CALLS_MIN: usize = 4;
/// Largest number of layers of a case.
const LAYERS_MAX: usize = 64;
/// Tokens of a KV page, as in the server's default.
const PAGE_TOKENS: usize = 16;
/// Distance between two successive pages of a sequence: a prime, so that pages are scattered.
const PAGE_STRIDE: usize = 7919;

/// Total bytes of the layers of a case, far larger than any cache, so that weights and KV pages
/// come from memory as in a step.
pub const LAYERS_BYTES: usize = 256 << 20;

/// Measured time and work of one case.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// Case that was measured.
    pub case: Case,
    /// Statistics of the times of one call.
    pub timing: Timing,
    /// Smallest number of bytes that one call reads and writes.
    pub bytes: u64,
    /// Floating-point operations of one call.
    pub flops: u64,
    /// Share of the hardware limit that is nearer: memory bandwidth or bf16 throughput, 0 to 1.
    pub limit_share: f64,
}

/// Measures the cases of the table on one GPU.
#[derive(Debug)]
pub struct Table<'a> {
    /// Driver of the GPU to measure.
    pub driver: &'a Arc<dyn Driver>,
    /// Folder in which measured GEMM choices are stored.
    pub kept: Option<PathBuf>,
    /// Hardware limits, for [`Measured::limit_share`].
    pub limits: Limits,
    /// Total bytes of the layers of a case; [`LAYERS_BYTES`] except in tests.
    pub layers_bytes: usize,
}

impl Table<'_> {
    /// Measures the time of one case on a fresh device.
    ///
    /// # Errors
    /// The device reports an error, or does not have enough memory.
    pub fn measure(&self, case: Case) -> Result<Measured, DeviceError> {
        let run = Run {
            cuda: Cuda::new(Arc::clone(self.driver)).keeping(self.kept.clone()),
            watch: Stopwatch::new(self.driver)?,
            layers_bytes: self.layers_bytes,
        };
        let (timing, used) = run.time(&case)?;
        let work = case.work(used);
        let seconds = timing.median_ns / 1e9;
        let read = work.bytes as f64 / seconds / self.limits.read_bytes_per_s;
        let computed = work.flops as f64 / seconds / self.limits.bf16_flops_per_s;
        let (bytes, flops) = (work.bytes, work.flops);
        Ok(Measured { case, timing, bytes, flops, limit_share: read.max(computed) })
    }
}

/// Measurement of one case, with a device of its own.
struct Run {
    cuda: Cuda,
    watch: Stopwatch,
    layers_bytes: usize,
}

impl Run {
    /// Times one call of the case, and counts the experts that had rows.
    fn time(mut self, case: &Case) -> Result<(Timing, usize), DeviceError> {
        let timing = match *case {
            Case::Product { matrix_type, rows, n, k } => self.product(matrix_type, rows, n, k),
            Case::Experts { matrix_type, rows, chosen, experts, n, k } => {
                return self.experts(matrix_type, [rows, chosen, experts], n, k);
            }
            Case::Attention { shape, window, kv_type, sequences, rows, context } => {
                let layer = AttentionLayer { window, ..AttentionLayer::new(shape, 0) };
                self.attention(&layer, kv_type, sequences, rows, context)
            }
            Case::DeltaNet { shape, sequences, rows } => self.delta_net(shape, sequences, rows),
            Case::AddRmsNorm { rows, cols } => self.add_rms_norm(rows, cols),
            Case::SiluMul { rows, cols } => self.silu_mul(rows, cols),
        };
        Ok((timing?, 0))
    }

    /// Number of layers to allocate if one takes `bytes` bytes.
    fn layers(&self, bytes: usize) -> usize {
        self.layers_bytes.div_ceil(bytes.max(1)).clamp(1, LAYERS_MAX)
    }

    /// Times calls of `work`, which gets the index of the layer to use, so that successive calls
    /// read different memory.
    fn over(
        &mut self,
        layers: usize,
        mut work: impl FnMut(&mut Cuda, usize) -> Result<(), DeviceError>,
    ) -> Result<Timing, DeviceError> {
        let Self { cuda, watch, .. } = self;
        let calls = layers.max(CALLS_MIN);
        let mut all = || (0..calls).try_for_each(|call| work(cuda, call % layers));
        watch.time(calls, SAMPLES, &mut all)
    }

    /// Allocates a buffer of random numbers.
    fn random(&mut self, rows: usize, cols: usize, dtype: DType) -> Result<Buffer, DeviceError> {
        let mut x = Buffer::new(cols);
        x.reshape(&mut self.cuda.stream, rows, cols)?;
        let at = x.output(&mut self.cuda.stream, dtype)?;
        // Two random bf16 make one f32, whose magnitude is that of the upper bf16.
        fill(&self.cuda.stream, at, rows * cols * dtype.bytes())?;
        Ok(x)
    }

    fn matrix(
        &mut self,
        matrix_type: MatrixType,
        n: usize,
        k: usize,
    ) -> Result<Matrix, DeviceError> {
        Matrix::random(&mut self.cuda.staging, &self.cuda.stream, matrix_type, n, k)
    }

    /// Allocates a constant vector of `len` elements.
    fn vector(&mut self, len: usize) -> Result<Vector, DeviceError> {
        self.cuda.vector(&vec![0.5; len])
    }

    /// Measures the time of a matrix multiplication.
    fn product(
        &mut self,
        matrix_type: MatrixType,
        rows: usize,
        n: usize,
        k: usize,
    ) -> Result<Timing, DeviceError> {
        let first = self.matrix(matrix_type, n, k)?;
        let layers = self.layers(first.bytes().0);
        let more = (1..layers).map(|_| self.matrix(matrix_type, n, k));
        let more: Vec<Matrix> = more.collect::<Result<_, _>>()?;
        let all: Vec<Matrix> = std::iter::once(first).chain(more).collect();
        let x = self.random(rows, k, DType::Bf16)?;
        let mut out = self.random(rows, n, DType::Bf16)?;
        // Registers the shape with all its weights, with which tuning then measures.
        all.iter().try_for_each(|w| self.cuda.matmul(&x, w, &mut out))?;
        self.cuda.tune()?;
        self.over(layers, |cuda, layer| cuda.matmul(&x, &all[layer], &mut out))
    }

    /// Times the grouped matrix multiplication of a mixture of experts, and counts the experts that
    /// had rows.
    fn experts(
        &mut self,
        matrix_type: MatrixType,
        [rows, chosen, experts]: [usize; 3],
        n: usize,
        k: usize,
    ) -> Result<(Timing, usize), DeviceError> {
        // A matrix is allocated only to learn its size, and released at once.
        let one_bytes = self.matrix(matrix_type, n, k)?.bytes().0;
        let layers = self.layers(experts * one_bytes);
        let mut all = Vec::new();
        for _ in 0..layers {
            let own = (0..experts).map(|_| self.matrix(matrix_type, n, k));
            let own = own.collect::<Result<Vec<_>, _>>()?;
            all.push(stack(self.cuda.stream.driver(), own)?);
        }
        let logits = self.random(rows, experts, DType::F32)?;
        let routes = self.cuda.route(&logits, chosen, Gate::TopSoftmax, 0..experts)?;
        let x = self.random(routes.pairs, k, DType::Bf16)?;
        let mut out = self.random(routes.pairs, n, DType::Bf16)?;
        let timing = self.over(layers, |cuda, layer| {
            cuda.expert_matmul(&x, &all[layer], &[], &routes, &mut out)
        })?;
        let driver = self.cuda.stream.driver();
        let mut offsets = Pinned::new(driver, 4 * (experts + 1))?;
        offsets.download(0, routes.offsets, 4 * (experts + 1))?;
        driver.wait_all()?;
        let offsets: &[u32] = bytemuck::cast_slice(offsets.bytes());
        Ok((timing, offsets.windows(2).filter(|two| two[0] < two[1]).count()))
    }

    /// Step of `sequences` sequences with `rows` rows each, the last of `context` positions, on
    /// scattered pages.
    fn batch(sequences: usize, rows: usize, context: usize) -> StepBatch {
        let each = context.div_ceil(PAGE_TOKENS);
        let all = sequences * each;
        let spread = |page: usize| (page * PAGE_STRIDE % all) as u32;
        // If the stride divided the number of pages, sequences would share pages. No case has such
        // a number.
        let sequence = |sequence: usize| ScheduledSequence {
            row: 0,
            rows,
            position: context - rows,
            pages: (sequence * each..(sequence + 1) * each).map(spread).collect(),
            logits: LogitRows::None,
            state: Some(StateSlots { slot: sequence as u32, load: None, save: None }),
        };
        StepBatch::known(&vec![0; sequences * rows], (0..sequences).map(sequence).collect())
    }

    /// Measures the time of attention over KV pages.
    fn attention(
        &mut self,
        layer: &AttentionLayer<Vector>,
        kv_type: KvType,
        sequences: usize,
        rows: usize,
        context: usize,
    ) -> Result<Timing, DeviceError> {
        let AttentionShape { heads, kv_heads, head_dim, .. } = layer.shape;
        let pages = sequences * context.div_ceil(PAGE_TOKENS);
        let one =
            KvShape { layers: 1, kv_heads, head_dim, pages, page_tokens: PAGE_TOKENS, kv_type };
        let layers = self.layers(pages * PAGE_TOKENS * one.token_bytes());
        let kv = self.cuda.kv(KvShape { layers, ..one })?;
        fill(&self.cuda.stream, kv.memory.address(), kv.memory.bytes())?;
        let of = |kv_layer| {
            let window = layer.window;
            AttentionLayer { window, ..AttentionLayer::new(layer.shape, kv_layer) }
        };
        let all: Vec<AttentionLayer<Vector>> = (0..layers).map(of).collect();
        all.iter().try_for_each(|layer| self.cuda.prepare_attention(layer))?;
        let straight = Rotation { inverse_frequencies: Vec::new(), factor: 1.0 };
        let plan =
            self.cuda.prepare_step(&Self::batch(sequences, rows, context), &kv, &straight)?;
        let rows = self.cuda.rows(&plan).all;
        let qkv = self.random(rows, layer.shape.qkv_cols(), DType::Bf16)?;
        let mut out = self.random(rows, heads * head_dim, DType::Bf16)?;
        self.over(layers, |cuda, layer| cuda.attention(&qkv, &all[layer], &plan, &kv, &mut out))
    }

    /// Measures the time of the gated delta net.
    fn delta_net(
        &mut self,
        shape: DeltaNetShape,
        sequences: usize,
        rows: usize,
    ) -> Result<Timing, DeviceError> {
        let slots = StateShape { layers: 1, slots: sequences, net: shape };
        let layers = self.layers(sequences * slots.slot_bytes());
        let mut state = self.cuda.state(StateShape { layers, ..slots })?;
        self.cuda.stream.driver().zero(state.memory.address(), state.memory.bytes())?;
        let all = (0..layers).map(|index| {
            Ok(DeltaNetLayer {
                shape,
                index,
                conv: self.vector(shape.taps * shape.conv_cols())?,
                rate: self.cuda.vector(&vec![-0.1; shape.value_heads])?,
                bias: self.vector(shape.value_heads)?,
                norm: self.vector(shape.value_dim)?,
                epsilon: 1e-6,
            })
        });
        let all = all.collect::<Result<Vec<DeltaNetLayer<Vector>>, DeviceError>>()?;
        all.iter().try_for_each(|layer| self.cuda.prepare_delta_net(layer))?;
        // A KV cache without layers: the step's plan needs one for positions only.
        let kv = self.cuda.kv(KvShape {
            layers: 0,
            kv_heads: 1,
            head_dim: 128,
            pages: sequences * (rows + 1).div_ceil(PAGE_TOKENS),
            page_tokens: PAGE_TOKENS,
            kv_type: KvType::Bf16,
        })?;
        let straight = Rotation { inverse_frequencies: Vec::new(), factor: 1.0 };
        // Position 1 on, so that the recurrent state is read.
        let plan =
            self.cuda.prepare_step(&Self::batch(sequences, rows, rows + 1), &kv, &straight)?;
        let rows = self.cuda.rows(&plan).all;
        let projected = self.random(rows, shape.cols(), DType::Bf16)?;
        let mut out = self.random(rows, shape.value_heads * shape.value_dim, DType::Bf16)?;
        self.over(layers, |cuda, layer| {
            cuda.delta_net(&projected, &all[layer], &plan, &mut state, &mut out)
        })
    }

    /// Measures the time of residual addition and RMS norm.
    fn add_rms_norm(&mut self, rows: usize, cols: usize) -> Result<Timing, DeviceError> {
        let weight = self.vector(cols)?;
        let layers = self.layers(6 * rows * cols);
        let set = |_| -> Result<[Buffer; 3], DeviceError> {
            let mut one = || self.random(rows, cols, DType::Bf16);
            Ok([one()?, one()?, one()?])
        };
        let mut all = (0..layers).map(set).collect::<Result<Vec<_>, _>>()?;
        self.over(layers, |cuda, layer| {
            let [x, delta, out] = &mut all[layer];
            cuda.add_rms_norm(x, delta, &weight, 1e-6, out)
        })
    }

    /// Measures the time of the SiLU-gated multiplication.
    fn silu_mul(&mut self, rows: usize, cols: usize) -> Result<Timing, DeviceError> {
        let layers = self.layers(6 * rows * cols);
        let set = |_| -> Result<[Buffer; 2], DeviceError> {
            let gate_up = self.random(rows, 2 * cols, DType::Bf16)?;
            Ok([gate_up, self.random(rows, cols, DType::Bf16)?])
        };
        let mut all = (0..layers).map(set).collect::<Result<Vec<_>, _>>()?;
        self.over(layers, |cuda, layer| {
            let [gate_up, out] = &mut all[layer];
            cuda.silu_mul(gate_up, out)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulated::{Emulated, Script};
    use crate::limits::Sizes;

    const MEMORY: u64 = 1 << 30;
    const KERNEL_NS: f64 = 2000.0;

    fn driver() -> Option<Arc<dyn Driver>> {
        let script = Script { ns: |_| KERNEL_NS, ..Script::default() };
        Some(Emulated::with(MEMORY, script)? as _)
    }

    #[test]
    fn limits_are_work_over_the_time_of_the_device() {
        let Some(driver) = driver() else { return };
        let sizes = Sizes { read_bytes: 1 << 16, matmul: 64 };
        let Limits { read_bytes_per_s, bf16_flops_per_s } =
            Limits::measure(&driver, None, sizes).unwrap();
        let is_near = |got: f64, want: f64| (got / want - 1.0).abs() < 1e-9;
        assert!(is_near(read_bytes_per_s, f64::from(1 << 16) / (KERNEL_NS / 1e9)));
        assert!(is_near(bf16_flops_per_s, 2.0 * 64f64.powi(3) / (KERNEL_NS / 1e9)));
    }

    /// Each kind of case at a size that a processor can emulate, with its number of launches per
    /// call.
    fn small() -> Vec<(Case, f64)> {
        let shape = AttentionShape { heads: 4, kv_heads: 2, head_dim: 64, scale: 0.125 };
        let attention = |kv_type, window, sequences, rows, context| Case::Attention {
            shape,
            window,
            kv_type,
            sequences,
            rows,
            context,
        };
        let experts = |matrix_type, rows| Case::Experts {
            matrix_type,
            rows,
            chosen: 2,
            experts: 4,
            n: 64,
            k: 128,
        };
        let net =
            DeltaNetShape { key_heads: 1, value_heads: 2, key_dim: 32, value_dim: 32, taps: 4 };
        vec![
            (Case::Product { matrix_type: MatrixType::Bf16, rows: 20, n: 64, k: 128 }, 1.0),
            (Case::Product { matrix_type: MatrixType::E4m3, rows: 3, n: 64, k: 128 }, 1.0),
            (experts(MatrixType::Bf16, 1), 1.0),
            (experts(MatrixType::E4m3, 3), 1.0),
            (experts(MatrixType::Mxfp4, 40), 1.0),
            (attention(KvType::Bf16, None, 2, 1, 40), 2.0),
            (attention(KvType::Fp8, Some(16), 1, 20, 40), 2.0),
            (Case::DeltaNet { shape: net, sequences: 2, rows: 1 }, 2.0),
            (Case::DeltaNet { shape: net, sequences: 1, rows: 5 }, 2.0),
            (Case::AddRmsNorm { rows: 3, cols: 64 }, 1.0),
            (Case::SiluMul { rows: 3, cols: 64 }, 1.0),
        ]
    }

    #[test]
    fn every_kind_of_case_is_timed_with_its_share_of_the_nearer_limit() {
        let Some(driver) = driver() else { return };
        let limits = Limits { read_bytes_per_s: 1e9, bf16_flops_per_s: 1e12 };
        let table = Table { driver: &driver, kept: None, limits, layers_bytes: 100_000 };
        let free = driver.memory().unwrap().free;
        for (case, launches) in small() {
            let Measured { timing, bytes, flops, limit_share, .. } = table.measure(case).unwrap();
            let what = format!("{case:?}: {timing:?}");
            assert!((timing.median_ns - launches * KERNEL_NS).abs() < 1e-6, "{what}");
            assert_eq!((timing.mad_ns < 1e-6, timing.samples), (true, SAMPLES), "{what}");
            let shares = [bytes as f64 / 1e9, flops as f64 / 1e12];
            let share = shares[0].max(shares[1]) / (timing.median_ns / 1e9);
            assert!(limit_share > 0.0 && (limit_share / share - 1.0).abs() < 1e-9, "{what}");
            assert_eq!(driver.memory().unwrap().free, free, "{what}: memory is given back");
        }
    }
}
