//! CPU device of the engine: GEMM, paged attention and the other kernels, chosen for the processor
//! at run time and run on a thread pool.

#![warn(missing_docs)]

mod attention;
mod bf16;
mod buffer;
mod delta_net;
mod elementwise;
mod float;
mod gemm;
mod int8;
mod isa;
mod kv;
mod lanes;
mod layout;
pub mod limits;
mod matmul;
mod memory;
mod moe;
mod pool;
#[cfg(test)]
#[path = "../../core/tests/reference/mod.rs"]
mod reference;
mod rope;
mod sample;
mod shared;
mod state;
#[cfg(test)]
mod tests;
mod thread_split;
mod tile;

use std::fmt;
use std::ops::Range;

pub use buffer::Buffer;
pub use isa::Isa;
pub use kv::{Kv, StepMetadata};
pub use matmul::{Arithmetic, Matrix};
pub use memory::{
    free_bytes, give_back_freed, keep_large_blocks_apart, loadable_bytes, processor_name,
};
pub use moe::Routes;
pub use pool::Pool;
pub use state::State;

use attention::Attention;
use delta_net::DeltaNet;
use elementwise::{ClampedSwiglu, Gating, GeluTanh, Norm, Silu};
use engine_core::sample::Sampler;
use engine_core::{
    AttentionLayer, Collective, DeltaNetLayer, Device, DeviceError, Gate, HostMatrix, KvShape,
    Rank, Rotation, StateShape, StepBatch, StepOutput, StepRows,
};
use matmul::Input;
use moe::DispatchedRows;
use rope::Rope;

/// CPU device, on which a whole model or one tensor-parallel rank of it computes.
pub struct Cpu {
    isa: Isa,
    arithmetic: Arithmetic,
    /// True when any weight matrix was packed for the int8 GEMM. RMS norms and gated activations
    /// then also write their outputs quantized to int8.
    multiplies_int8: bool,
    /// True when any weight matrix was packed for the bf16 GEMM.
    multiplies_bf16: bool,
    pool: Pool,
    matmul: matmul::Scratch,
    attention: attention::Scratch,
    delta_net: delta_net::Scratch,
    /// Connection to the other ranks of a tensor-parallel group; `None` on a device that computes
    /// alone.
    collective: Option<Box<dyn Collective>>,
    /// A sampler for each thread.
    samplers: Vec<Sampler>,
    /// Token ids that the last step sampled; `None` where no token could be sampled.
    sampled: Vec<Option<u32>>,
    /// Number of rows whose logits the host reads, of a step that is submitted and not completed;
    /// `None` if no step is.
    finished: Option<usize>,
}

impl fmt::Debug for Cpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (isa, threads) = (self.isa.name(), self.pool.threads());
        f.debug_struct("Cpu").field("isa", &isa).field("threads", &threads).finish()
    }
}

impl Cpu {
    /// Creates a CPU device that computes a whole model on `threads` threads, of which the calling
    /// thread is one; 0 counts as 1. The other threads are pinned to processors where possible.
    pub fn new(isa: Isa, threads: usize) -> Self {
        Self::over(isa, Pool::new(threads.max(1)), None)
    }

    /// Creates a CPU device for one rank of a tensor-parallel group. It computes on `threads`
    /// threads including the calling thread; 0 counts as 1. The ranks share the processor, so no
    /// thread is pinned.
    pub fn in_group(isa: Isa, threads: usize, collective: Box<dyn Collective>) -> Self {
        Self::over(isa, Pool::unpinned(threads.max(1)), Some(collective))
    }

    /// Creates a CPU device on a thread pool; without a `collective` it computes alone.
    fn over(isa: Isa, pool: Pool, collective: Option<Box<dyn Collective>>) -> Self {
        let threads = pool.threads();
        Self {
            isa,
            arithmetic: Arithmetic::default(),
            multiplies_int8: false,
            multiplies_bf16: false,
            pool,
            matmul: matmul::Scratch::new(threads),
            attention: attention::Scratch::new(threads),
            delta_net: delta_net::Scratch::new(threads),
            collective,
            samplers: (0..threads).map(|_| Sampler::default()).collect(),
            sampled: Vec::new(),
            finished: None,
        }
    }

    /// Returns the device with `arithmetic` set for the weight matrices that it loads from now on.
    pub fn with(self, arithmetic: Arithmetic) -> Self {
        Self { arithmetic, ..self }
    }

    /// Returns the instruction set of the CPU device's kernels.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Returns the number of computing threads with which the CPU device was created, the calling
    /// one included.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// Multiplies the dispatched rows of each expert by its weight matrix, without its bias.
    fn multiply_experts(
        &mut self,
        x: &Buffer,
        rows: DispatchedRows<'_>,
        experts: &[Matrix],
        out: &mut Buffer,
    ) {
        let x = Input { values: x.values(), quantized: x.quantized() };
        let (isa, pool, scratch) = (self.isa, &mut self.pool, &mut self.matmul);
        matmul::expert_matmul(isa, pool, scratch, x, rows, experts, out.values_mut());
    }
}

impl Device for Cpu {
    type Buffer = Buffer;
    type Matrix = Matrix;
    type Vector = Vec<f32>;
    type Kv = Kv;
    type State = State;
    type StepMetadata = StepMetadata;
    type Routes = Routes;

    fn buffer(&mut self, cols: usize) -> Result<Buffer, DeviceError> {
        Ok(Buffer::new(cols))
    }

    fn resize(&mut self, x: &mut Buffer, rows: usize) -> Result<(), DeviceError> {
        self.reshape(x, rows, x.cols())
    }

    fn reshape(&mut self, x: &mut Buffer, rows: usize, cols: usize) -> Result<(), DeviceError> {
        x.reshape(rows, cols);
        Ok(())
    }

    fn write(&mut self, x: &mut Buffer, values: &[f32]) -> Result<(), DeviceError> {
        assert_eq!(values.len() % x.cols(), 0, "whole rows");
        self.resize(x, values.len() / x.cols())?;
        x.values_mut().copy_from_slice(values);
        Ok(())
    }

    fn compute_dtype(&self) -> &'static str {
        match (self.multiplies_int8, self.multiplies_bf16) {
            (true, _) => "int8",
            (false, true) => "bf16",
            (false, false) => "f32",
        }
    }

    fn matrix(&mut self, parts: &[HostMatrix<'_>]) -> Result<Matrix, DeviceError> {
        let matrix = Matrix::pack(parts, self.arithmetic, self.isa, &mut self.pool);
        self.multiplies_int8 |= matrix.is_int8();
        self.multiplies_bf16 |= matrix.is_bf16();
        Ok(matrix)
    }

    fn router_matrix(&mut self, parts: &[HostMatrix<'_>]) -> Result<Matrix, DeviceError> {
        // A router is too small for its speed to matter.
        Ok(Matrix::pack(parts, Arithmetic::F32, self.isa, &mut self.pool))
    }

    fn vector(&mut self, values: &[f32]) -> Result<Vec<f32>, DeviceError> {
        Ok(values.to_vec())
    }

    fn kv(&mut self, shape: KvShape) -> Result<Kv, DeviceError> {
        Kv::new(shape)
    }

    fn state(&mut self, shape: StateShape) -> Result<State, DeviceError> {
        State::new(shape)
    }

    fn prepare_step(
        &mut self,
        batch: &StepBatch,
        kv: &Kv,
        rotations: &[Rotation],
    ) -> Result<StepMetadata, DeviceError> {
        StepMetadata::new(batch, &self.sampled, &kv.shape, rotations)
    }

    fn rows(&self, step: &StepMetadata) -> StepRows {
        StepRows { all: step.ids.len(), head: step.head.rows.len() }
    }

    fn rank(&self) -> Rank {
        self.collective.as_ref().map_or(Rank::ONLY, |collective| collective.rank())
    }

    fn all_reduce_sum(&mut self, x: &mut Buffer) -> Result<(), DeviceError> {
        match &mut self.collective {
            Some(collective) => collective.all_reduce_sum(x.values_mut()),
            None => Ok(()),
        }
    }

    fn all_gather(&mut self, x: &Buffer, out: &mut Buffer) -> Result<(), DeviceError> {
        let rows = x.rows();
        match &mut self.collective {
            Some(collective) => collective.all_gather(x.values(), rows, out.values_mut()),
            None => {
                out.values_mut().copy_from_slice(x.values());
                Ok(())
            }
        }
    }

    fn embed(
        &mut self,
        table: &Matrix,
        first: usize,
        step: &StepMetadata,
        out: &mut Buffer,
    ) -> Result<(), DeviceError> {
        for (id, out) in step.ids.iter().zip(out.values_mut().chunks_exact_mut(table.k)) {
            match (*id as usize).checked_sub(first).filter(|row| *row < table.n) {
                // The table may be quantized, so its rows are dequantized one by one.
                Some(row) => table.row(row, out),
                None => out.fill(0.0),
            }
        }
        Ok(())
    }

    fn scale(&mut self, x: &mut Buffer, factor: f32) -> Result<(), DeviceError> {
        x.values_mut().iter_mut().for_each(|value| *value *= factor);
        Ok(())
    }

    fn gather(
        &mut self,
        x: &Buffer,
        step: &StepMetadata,
        out: &mut Buffer,
    ) -> Result<(), DeviceError> {
        for (row, out) in step.head.rows.iter().zip(out.values_mut().chunks_exact_mut(x.cols())) {
            out.copy_from_slice(x.row(*row));
        }
        Ok(())
    }

    fn sample(&mut self, logits: &mut Buffer, step: &StepMetadata) -> Result<(), DeviceError> {
        let (head, vocab) = (&step.head, logits.cols());
        let logits = &logits.values()[head.read() * vocab..][..head.sampling.len() * vocab];
        self.sampled.clear();
        self.sampled.resize(head.sampling.len(), None);
        let (isa, samplers) = (self.isa, &mut self.samplers);
        sample::rows(isa, &mut self.pool, samplers, logits, &head.sampling, &mut self.sampled);
        Ok(())
    }

    fn submit(&mut self, _logits: &mut Buffer, step: StepMetadata) -> Result<(), DeviceError> {
        assert!(self.finished.is_none(), "this device does not run ahead");
        self.finished = Some(step.head.read());
        Ok(())
    }

    fn complete<'a>(&'a mut self, logits: &'a mut Buffer) -> Result<StepOutput<'a>, DeviceError> {
        let read = self.finished.take().expect("a step is in flight");
        // A step runs to its end inside of the calls above, so its results are there already.
        Ok(StepOutput { logits: &logits.values()[..read * logits.cols()], tokens: &self.sampled })
    }

    fn rms_norm(
        &mut self,
        x: &Buffer,
        weight: &Vec<f32>,
        epsilon: f32,
        out: &mut Buffer,
    ) -> Result<(), DeviceError> {
        let norm = Norm { weight, epsilon };
        let out = out.output(self.isa, self.multiplies_int8);
        // The norm's output is the input of the next matmul, so it is quantized here, in the cache.
        elementwise::rms_norm(self.isa, &mut self.pool, x.values(), norm, &out);
        Ok(())
    }

    fn add_rms_norm(
        &mut self,
        x: &mut Buffer,
        delta: &Buffer,
        weight: &Vec<f32>,
        epsilon: f32,
        out: &mut Buffer,
    ) -> Result<(), DeviceError> {
        let norm = Norm { weight, epsilon };
        let out = out.output(self.isa, self.multiplies_int8);
        let (x, delta) = (x.values_mut(), delta.values());
        elementwise::add_rms_norm(self.isa, &mut self.pool, x, delta, norm, &out);
        Ok(())
    }

    fn matmul(&mut self, x: &Buffer, w: &Matrix, out: &mut Buffer) -> Result<(), DeviceError> {
        let (scratch, x) =
            (&mut self.matmul, Input { values: x.values(), quantized: x.quantized() });
        matmul::matmul(self.isa, &mut self.pool, scratch, x, w, out.values_mut());
        Ok(())
    }

    fn add_bias(&mut self, x: &mut Buffer, bias: &Vec<f32>) -> Result<(), DeviceError> {
        elementwise::add_bias(&mut self.pool, x.values_mut(), bias);
        Ok(())
    }

    fn rope_and_cache(
        &mut self,
        qkv: &mut Buffer,
        layer: &AttentionLayer<Vec<f32>>,
        step: &StepMetadata,
        kv: &mut Kv,
    ) -> Result<(), DeviceError> {
        Rope { isa: self.isa, layer, step }.run(&mut self.pool, qkv.values_mut(), kv);
        Ok(())
    }

    fn attention(
        &mut self,
        qkv: &Buffer,
        layer: &AttentionLayer<Vec<f32>>,
        step: &StepMetadata,
        kv: &Kv,
        out: &mut Buffer,
    ) -> Result<(), DeviceError> {
        let call = Attention { isa: self.isa, qkv: qkv.values(), layer, step, kv };
        call.run(&mut self.pool, &mut self.attention, out.values_mut());
        Ok(())
    }

    fn delta_net(
        &mut self,
        projected: &Buffer,
        layer: &DeltaNetLayer<Vec<f32>>,
        step: &StepMetadata,
        state: &mut State,
        out: &mut Buffer,
    ) -> Result<(), DeviceError> {
        state.check(step)?;
        let call = DeltaNet { isa: self.isa, projected: projected.values(), layer, step };
        call.run(&mut self.pool, &self.delta_net, state, out.values_mut());
        Ok(())
    }

    fn sigmoid_mul(&mut self, x: &mut Buffer, gate: &Buffer) -> Result<(), DeviceError> {
        let cols = x.cols();
        elementwise::sigmoid_mul(self.isa, &mut self.pool, x.values_mut(), gate.values(), cols);
        Ok(())
    }

    fn silu_mul(&mut self, gate_up: &Buffer, out: &mut Buffer) -> Result<(), DeviceError> {
        let out = out.output(self.isa, self.multiplies_int8);
        Gating(Silu).run(self.isa, &mut self.pool, gate_up.values(), &out);
        Ok(())
    }

    fn gelu_mul(&mut self, gate_up: &Buffer, out: &mut Buffer) -> Result<(), DeviceError> {
        let out = out.output(self.isa, self.multiplies_int8);
        Gating(GeluTanh).run(self.isa, &mut self.pool, gate_up.values(), &out);
        Ok(())
    }

    fn clamped_swiglu(
        &mut self,
        gate_up: &Buffer,
        alpha: f32,
        limit: f32,
        out: &mut Buffer,
    ) -> Result<(), DeviceError> {
        let (rule, out) =
            (ClampedSwiglu { alpha, limit }, out.output(self.isa, self.multiplies_int8));
        Gating(rule).run(self.isa, &mut self.pool, gate_up.values(), &out);
        Ok(())
    }

    fn route(
        &mut self,
        logits: &Buffer,
        top_k: usize,
        gate: Gate,
        own: Range<usize>,
    ) -> Result<Routes, DeviceError> {
        let (logits, experts) = (logits.values(), logits.cols());
        Ok(Routes::choose(&mut self.pool, logits, experts, top_k, gate, own))
    }

    fn routed_rows(&self, routes: &Routes) -> usize {
        routes.rows()
    }

    fn dispatch(
        &mut self,
        x: &Buffer,
        routes: &Routes,
        out: &mut Buffer,
    ) -> Result<(), DeviceError> {
        routes.dispatch(&mut self.pool, x.values(), x.cols(), out.values_mut());
        Ok(())
    }

    fn dispatch_matmul(
        &mut self,
        x: &Buffer,
        experts: &[Matrix],
        biases: &[Vec<f32>],
        routes: &Routes,
        _sent: &mut Buffer,
        out: &mut Buffer,
    ) -> Result<(), DeviceError> {
        self.multiply_experts(x, routes.of_step(), experts, out);
        routes.add_biases(&mut self.pool, out.values_mut(), biases);
        Ok(())
    }

    fn expert_matmul(
        &mut self,
        x: &Buffer,
        experts: &[Matrix],
        biases: &[Vec<f32>],
        routes: &Routes,
        out: &mut Buffer,
    ) -> Result<(), DeviceError> {
        self.multiply_experts(x, routes.dispatched(), experts, out);
        routes.add_biases(&mut self.pool, out.values_mut(), biases);
        Ok(())
    }

    fn combine(
        &mut self,
        x: &Buffer,
        routes: &Routes,
        out: &mut Buffer,
    ) -> Result<(), DeviceError> {
        let (x, cols) = (x.values(), x.cols());
        routes.combine(self.isa, &mut self.pool, x, cols, out.values_mut());
        Ok(())
    }

    fn read<'a>(&mut self, x: &'a mut Buffer) -> Result<&'a [f32], DeviceError> {
        Ok(x.values())
    }
}
