//! CUDA device: each operation of [`Device`] as one or a few kernel launches on one GPU.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use half::bf16;

use super::buffer::{Buffer, DType};
use super::driver::{Address, Arguments, Driver, Member, Memory, Pinned};
use super::gemm::Gemm;
use super::group::Group;
use super::launch::attention::{
    AttentionArguments, AttentionPlan, PageType, entry as attention_entry,
};
use super::launch::delta_net::{DeltaNetArguments, entry as delta_net_entry, has_chunks};
use super::launch::{Launch, RopeArguments};
use super::layers::{Kv, Layers, State};
use super::outputs::StepOutputs;
use super::routes::{Router, Routes};
use super::staging::Staging;
use super::step::{Attending, Draft, Layout, Scratch, StepMetadata, StepUploads};
use super::stream::{GrowableBuffer, Stream};
use super::weights::{self, Matrix, Part, Vector};
use crate::{Result, failed};
use engine_core::{
    AttentionLayer, Collective, DeltaNetLayer, Device, Feature, Gate, HostMatrix, KvShape,
    RandomRows, Rank, Rotation, Stack, StateShape, StepBatch, StepLimits, StepOutput, StepRows,
    WeightType, check_state_slots,
};

/// Number of steps in flight while the next is planned, so that the GPU does not wait for the host.
pub const RUN_AHEAD: usize = 1;

/// One GPU as a [`Device`], with the memory and launch state of the one model that it serves.
#[derive(Debug)]
pub struct Cuda {
    /// This rank's access to its tensor-parallel group; `None` on a device that computes alone.
    /// Dropped first, to release kernels that wait for this device.
    group: Option<Group>,
    pub(super) stream: Stream,
    pub(super) staging: Staging,
    layers: Layers,
    /// Attention variants of the model (shape and window). The metadata of every step has an
    /// attention plan for each of them.
    attending: Vec<Attending>,
    /// Device buffer for partial attention results of query lines (a row's query of one head) whose
    /// key positions are split among blocks.
    lines: GrowableBuffer,
    gemm: Gemm,
    /// Result of a matrix multiplication with padded weights, before the padding is removed.
    padded: Buffer,
    pub(super) router: Router,
    pub(super) outputs: StepOutputs,
    uploads: StepUploads,
    /// Number of slots for recurrent state; `None` for a model without recurrent layers.
    slots: Option<usize>,
    /// Seed of the random operand that was made last.
    pub(super) random_seed: u32,
    /// Address of the logits of a replayed CUDA graph; `None` while launching kernel by kernel.
    replayed: Option<Address>,
}

impl Cuda {
    /// Creates the device of `driver`'s GPU for a model that is not shared with other ranks.
    pub fn new(driver: Arc<dyn Driver>) -> Self {
        Self {
            group: None,
            staging: Staging::new(Arc::clone(&driver)),
            stream: Stream::new(driver),
            layers: Layers::default(),
            attending: Vec::new(),
            lines: GrowableBuffer::default(),
            gemm: Gemm::default(),
            padded: Buffer::new(1),
            router: Router::default(),
            outputs: StepOutputs::default(),
            uploads: StepUploads::default(),
            slots: None,
            random_seed: 0,
            replayed: None,
        }
    }

    /// Sets the folder in which measured GEMM choices are stored; `None` stores none.
    pub fn keeping(self, folder: Option<PathBuf>) -> Self {
        Self { gemm: Gemm::keeping(folder), ..self }
    }

    /// Creates the devices of a tensor-parallel group, in the order of the ranks.
    ///
    /// # Errors
    /// Memory cannot be allocated, or a device reports an error.
    pub fn group(members: Vec<Member>) -> Result<Vec<Self>> {
        let drivers: Vec<_> = members.iter().map(|member| Arc::clone(&member.driver)).collect();
        let ranks = drivers.into_iter().zip(Group::of(members)?);
        Ok(ranks.map(|(driver, group)| Self { group: Some(group), ..Self::new(driver) }).collect())
    }

    /// Computes `out = x * w^T` into elements of `dtype`, without the padding columns of `w`.
    fn multiply(&mut self, x: &Buffer, w: &Matrix, out: &mut Buffer, dtype: DType) -> Result<()> {
        if w.padding == 0 {
            return self.gemm.matmul(&mut self.stream, x, w, out, dtype);
        }
        let (rows, cols) = (out.rows, out.cols);
        let to = out.output(&mut self.stream, dtype)?;
        self.padded.reshape(&mut self.stream, rows, w.n)?;
        self.gemm.matmul(&mut self.stream, x, w, &mut self.padded, dtype)?;
        if rows == 0 {
            return Ok(());
        }
        let entry = match dtype {
            DType::Bf16 => "leave_padding_bf16",
            DType::F32 => "leave_padding_f32",
        };
        let arguments = Arguments::of([to, self.padded.address()]).sizes([cols, w.n]);
        self.stream.launch(entry, Launch::scalars(rows, cols), &arguments)
    }

    /// Launches the element-wise kernel `entry`, which reads `x` and writes `out`. Its arguments
    /// are the addresses of the two and the size of `out`, then those that `more` appends.
    fn elementwise(
        &mut self,
        entry: &str,
        x: Address,
        out: &mut Buffer,
        more: impl FnOnce(Arguments) -> Arguments,
    ) -> Result<()> {
        let (rows, cols) = (out.rows, out.cols);
        let to = out.output(&mut self.stream, DType::Bf16)?;
        let arguments = more(Arguments::of([to, x]).sizes([rows, cols]));
        self.stream.launch(entry, Launch::elements(rows, cols), &arguments)
    }
}

impl Device for Cuda {
    type Buffer = Buffer;
    type Matrix = Matrix;
    type Vector = Vector;
    type Kv = Kv;
    type State = State;
    type StepMetadata = StepMetadata;
    type Routes = Routes;
    const LACKS: &'static [Feature] = &Feature::ALL;

    fn run_ahead(&self) -> usize {
        RUN_AHEAD
    }

    fn free_bytes(&self) -> Result<Option<u64>> {
        self.stream.driver.wait_all()?;
        Ok(Some(self.stream.driver.memory()?.free))
    }

    fn reserve_step(&mut self, limits: &StepLimits) -> Result<()> {
        let words = Layout::words_max(limits, &self.attending);
        self.uploads.reserve(&mut self.stream, 4 * words)
    }

    fn tune(&mut self) -> Result<()> {
        let rank = self.rank();
        self.gemm.tune(&mut self.stream, rank)
    }

    fn buffer(&mut self, cols: usize) -> Result<Buffer> {
        Ok(Buffer::new(cols))
    }

    fn resize(&mut self, x: &mut Buffer, rows: usize) -> Result<()> {
        self.reshape(x, rows, x.cols)
    }

    fn reshape(&mut self, x: &mut Buffer, rows: usize, cols: usize) -> Result<()> {
        x.reshape(&mut self.stream, rows, cols)
    }

    fn write(&mut self, x: &mut Buffer, values: &[f32]) -> Result<()> {
        let cols = x.cols;
        assert_eq!(values.len() % cols, 0, "whole rows");
        x.reshape(&mut self.stream, values.len() / cols, cols)?;
        let rows = values.len() / cols;
        self.staging.send(x.bf16(), rows, 2 * cols, |row, out| {
            let values = &values[row * cols..(row + 1) * cols];
            for (x, out) in values.iter().zip(out.chunks_exact_mut(2)) {
                out.copy_from_slice(&bf16::from_f32(*x).to_le_bytes());
            }
        })
    }

    fn compute_dtype(&self) -> &'static str {
        "bf16"
    }

    fn matrix(&mut self, parts: &[HostMatrix<'_>]) -> Result<Matrix> {
        weights::matrix(&mut self.staging, &self.stream.driver, parts)
    }

    fn random_matrix(
        &mut self,
        weight_type: WeightType,
        parts: &[RandomRows],
        k: usize,
    ) -> Result<Option<Matrix>> {
        weights::random_matrix(&self.stream, weight_type, parts, k)
    }

    fn vector(&mut self, values: &[f32]) -> Result<Vector> {
        let part = Part::new(&self.stream.driver, 4 * values.len())?;
        self.staging.send_f32(part.address(), values)?;
        Ok(Vector { part, len: values.len() })
    }

    fn stack(
        &mut self,
        experts: Vec<Matrix>,
        biases: Vec<Vector>,
    ) -> Result<Stack<Matrix, Vector>> {
        let driver = &self.stream.driver;
        Ok((weights::stack(driver, experts)?, weights::stack_vectors(driver, &biases)?))
    }

    fn prepare_attention(&mut self, layer: &AttentionLayer<Vector>) -> Result<()> {
        let (shape, window) = (layer.shape, layer.window);
        if attention_entry(PageType::Bf16, shape.head_dim).is_none() {
            let message = format!("there is no kernel for heads of {}", shape.head_dim);
            return Err(failed("attention", message));
        }
        if !self.attending.iter().any(|known| known.is_like(&shape, window)) {
            let processors = self.stream.driver.facts().processors;
            let launch = Launch::attention(processors, PageType::Bf16, shape.head_dim);
            let blocks = launch.grid[0] as usize;
            let lines = AttentionPlan::part_lines_max(&shape, blocks);
            self.stream.grow(&mut self.lines, 4 * lines * (shape.head_dim + 2))?;
            self.attending.push(Attending { shape, window, blocks });
        }
        self.layers.add_attention(&self.stream, &mut self.staging, layer)
    }

    fn prepare_delta_net(&mut self, layer: &DeltaNetLayer<Vector>) -> Result<()> {
        self.layers.add_delta_net(&self.stream, layer)
    }

    fn kv(&mut self, shape: KvShape) -> Result<Kv> {
        let bytes = Kv::bytes(&shape)?;
        // Captured CUDA graphs name the address of the KV cache, so they are released first.
        self.stream.forget()?;
        let memory = Memory::new(&self.stream.driver, bytes)?;
        let kv = Kv { shape, memory };
        if shape.layers > 0 && attention_entry(kv.page_type(), shape.head_dim).is_none() {
            let (pages, heads) = (shape.kv_type.name(), shape.head_dim);
            let message = format!("there is no kernel for pages of {pages} and heads of {heads}");
            return Err(failed("kv", message));
        }
        Ok(kv)
    }

    fn state(&mut self, shape: StateShape) -> Result<State> {
        self.stream.forget()?;
        let memory = Memory::new(&self.stream.driver, State::bytes(&shape))?;
        self.slots = Some(shape.slots);
        Ok(State { shape, memory })
    }

    fn prepare_step(
        &mut self,
        batch: &StepBatch,
        kv: &Kv,
        rotations: &[Rotation],
    ) -> Result<StepMetadata> {
        let wrong = |message| failed("prepare_step", message);
        batch.check(&kv.shape, self.outputs.sampled).map_err(wrong)?;
        if let Some(slots) = self.slots {
            check_state_slots(&batch.sequences, slots).map_err(wrong)?;
        }
        let scratch = Scratch {
            page: Kv::scratch_page(&kv.shape),
            slot: self.slots.map(|slots| slots as u32),
            page_tokens: kv.shape.page_tokens,
        };
        let draft = Draft::new(batch, &self.attending, scratch);
        self.outputs.reserve(&mut self.stream, draft.layout.rows.head)?;
        let metadata = self.uploads.send(&mut self.stream, &draft, self.outputs.first_sampled)?;
        let (reads, samples) = draft.head();
        let Draft { bucket, layout, .. } = draft;
        // The cos/sin kernel reads positions from the step's metadata, so the metadata comes first.
        let (pairs, cos_sin) = (rotations[0].inverse_frequencies.len(), Address::NULL);
        let step = StepMetadata { layout, bucket, metadata, cos_sin, pairs, reads, samples };
        let uploads = &mut self.uploads;
        let cos_sin = uploads.cos_sin(&mut self.stream, &mut self.staging, &rotations[0], &step)?;
        Ok(StepMetadata { cos_sin, ..step })
    }

    fn rows(&self, step: &StepMetadata) -> StepRows {
        step.layout.rows
    }

    fn replay(&mut self, step: &StepMetadata) -> Result<bool> {
        self.replayed = None;
        if let Some(rows) = step.bucket {
            let known = self.stream.known(rows);
            // A rank without a usable CUDA graph makes all ranks launch kernels one by one.
            let known = match &mut self.group {
                Some(group) => group.least(f32::from(known))? as u8,
                None => known,
            };
            self.replayed = self.stream.replay(rows, known)?;
        }
        Ok(self.replayed.is_some())
    }

    fn rank(&self) -> Rank {
        self.group.as_ref().map_or(Rank::ONLY, Collective::rank)
    }

    fn all_reduce_sum(&mut self, x: &mut Buffer) -> Result<()> {
        match &mut self.group {
            Some(group) => group.all_reduce_sum(&mut x.operand()),
            None => Ok(()),
        }
    }

    fn all_gather(&mut self, x: &Buffer, out: &mut Buffer) -> Result<()> {
        out.output(&mut self.stream, x.dtype)?;
        let mut all = out.operand();
        let bytes = all.count * all.dtype.bytes();
        match &mut self.group {
            Some(group) => {
                group.make_room(&mut self.stream, bytes.max(1))?;
                group.all_gather(&x.operand(), x.rows, &mut all)
            }
            None => self.stream.driver.copy(all.at, x.address(), bytes),
        }
    }

    fn embed(
        &mut self,
        table: &Matrix,
        first: usize,
        step: &StepMetadata,
        out: &mut Buffer,
    ) -> Result<()> {
        let to = out.output(&mut self.stream, DType::Bf16)?;
        let ids = [step.at(step.layout.ids), self.outputs.ids()];
        let arguments = Arguments::of([to, table.weights.address(), ids[0], ids[1]]).sizes([
            first,
            table.n - table.padding,
            table.k,
        ]);
        self.stream.launch("embed", Launch::row_copies(out.rows, table.k), &arguments)
    }

    fn gather(&mut self, x: &Buffer, step: &StepMetadata, out: &mut Buffer) -> Result<()> {
        let to = out.output(&mut self.stream, DType::Bf16)?;
        let rows = step.at(step.layout.head_rows);
        let arguments = Arguments::of([to, x.bf16(), rows]).sizes([x.cols]);
        self.stream.launch("gather", Launch::row_copies(out.rows, x.cols), &arguments)
    }

    fn sample(&mut self, logits: &mut Buffer, step: &StepMetadata) -> Result<()> {
        // A CUDA graph always samples, so that it can be replayed for every step.
        if step.samples == 0 && step.bucket.is_none() {
            return Ok(());
        }
        self.outputs.sample(&mut self.stream, logits, step)
    }

    fn submit(&mut self, logits: &mut Buffer, step: StepMetadata) -> Result<()> {
        let at = match self.replayed.take() {
            Some(at) => at,
            None => {
                self.stream.finish(logits.address())?;
                logits.address()
            }
        };
        self.outputs.copy_to_host(&self.stream, at, logits.cols, &step)
    }

    fn complete<'a>(&'a mut self, _logits: &'a mut Buffer) -> Result<StepOutput<'a>> {
        let output = self.outputs.complete(&self.stream)?;
        self.group.as_ref().map_or(Ok(()), Group::check)?;
        Ok(output)
    }

    fn rms_norm(
        &mut self,
        x: &Buffer,
        weight: &Vector,
        epsilon: f32,
        out: &mut Buffer,
    ) -> Result<()> {
        let to = out.output(&mut self.stream, DType::Bf16)?;
        let arguments = Arguments::of([to, x.bf16(), weight.part.address()]);
        let arguments = arguments.sizes([x.cols]).value(epsilon);
        self.stream.launch("rms_norm", Launch::norms(x.rows, x.cols), &arguments)
    }

    fn add_rms_norm(
        &mut self,
        x: &mut Buffer,
        delta: &Buffer,
        weight: &Vector,
        epsilon: f32,
        out: &mut Buffer,
    ) -> Result<()> {
        let to = out.output(&mut self.stream, DType::Bf16)?;
        let arguments = Arguments::of([to, x.bf16(), delta.bf16(), weight.part.address()]);
        let arguments = arguments.sizes([x.cols]).value(epsilon);
        self.stream.launch("add_rms_norm", Launch::norms(x.rows, x.cols), &arguments)
    }

    fn matmul(&mut self, x: &Buffer, w: &Matrix, out: &mut Buffer) -> Result<()> {
        self.multiply(x, w, out, DType::Bf16)
    }

    fn scores(&mut self, x: &Buffer, w: &Matrix, out: &mut Buffer) -> Result<()> {
        self.multiply(x, w, out, DType::F32)
    }

    fn add_bias(&mut self, x: &mut Buffer, bias: &Vector) -> Result<()> {
        let (entry, rows, cols) = match x.dtype {
            DType::Bf16 => ("add_bias", x.rows, x.cols),
            DType::F32 => ("add_bias_f32", x.rows, x.cols),
        };
        let arguments = Arguments::of([x.address(), bias.part.address()]).sizes([rows, cols]);
        self.stream.launch(entry, Launch::elements(rows, cols), &arguments)
    }

    fn rope_and_cache(
        &mut self,
        qkv: &mut Buffer,
        layer: &AttentionLayer<Vector>,
        step: &StepMetadata,
        kv: &mut Kv,
    ) -> Result<()> {
        let shape = &layer.shape;
        let (entry, scales) = match kv.page_type() {
            PageType::Bf16 => ("rope_and_cache_bf16", Address::NULL),
            PageType::E4m3 => ("rope_and_cache_e4m3", self.layers.scales(layer.kv_layer)),
        };
        let (pages, slots) = (kv.layer(layer.kv_layer), step.at(step.layout.slots));
        let norms = self.layers.norms(layer.kv_layer);
        let arguments = Arguments::of([qkv.bf16(), pages, step.cos_sin, slots, norms, scales]);
        let arguments = arguments.value(RopeArguments {
            heads: shape.heads as u32,
            kv_heads: shape.kv_heads as u32,
            head_dim: shape.head_dim as u32,
            pairs: step.pairs as u32,
            page_tokens: kv.shape.page_tokens as u32,
            page_stride: kv.page_stride(),
            epsilon: layer.head_norms.as_ref().map_or(0.0, |norms| norms.epsilon),
        });
        let heads = shape.heads + 2 * shape.kv_heads;
        self.stream.launch(entry, Launch::rope_and_cache(qkv.rows, heads), &arguments)
    }

    fn attention(
        &mut self,
        qkv: &Buffer,
        layer: &AttentionLayer<Vector>,
        step: &StepMetadata,
        kv: &Kv,
        out: &mut Buffer,
    ) -> Result<()> {
        let (shape, page_type) = (&layer.shape, kv.page_type());
        let (heads, kv_heads) = (shape.heads as u32, shape.kv_heads as u32);
        let known = self.attending.iter().position(|one| one.is_like(shape, layer.window));
        let known = known.expect("the layer was prepared");
        let processors = self.stream.driver.facts().processors;
        let entry = attention_entry(page_type, shape.head_dim).expect("pages have a kernel");
        let to = out.output(&mut self.stream, DType::Bf16)?;
        let items = step.at(step.layout.plans[known]);
        let (lines, constants) = (self.lines.address(), self.layers.heads(layer.kv_layer));
        let pages = kv.layer(layer.kv_layer);
        let arguments = Arguments::of([to, lines, qkv.bf16(), pages, items, constants]);
        let arguments = arguments.value(AttentionArguments {
            heads,
            kv_heads,
            page_bits: kv.shape.page_tokens.ilog2(),
            page_stride: kv.page_stride(),
            window: layer.window.unwrap_or(0) as u32,
            scale: shape.scale,
        });
        // Each block has a list of items in the plan, which is for pages of bf16; blocks of other
        // pages need no more shared memory.
        let grid = [self.attending[known].blocks as u32, 1, 1];
        let launch = Launch { grid, ..Launch::attention(processors, page_type, shape.head_dim) };
        self.stream.launch(entry, launch, &arguments)?;
        // One structure of three sizes.
        let sizes = [heads, kv_heads, shape.head_dim as u32];
        let arguments = Arguments::of([to, lines, items, constants]).value(sizes);
        self.stream.launch("attention_merge", Launch::attention_merge(processors), &arguments)
    }

    fn delta_net(
        &mut self,
        projected: &Buffer,
        layer: &DeltaNetLayer<Vector>,
        step: &StepMetadata,
        state: &mut State,
        out: &mut Buffer,
    ) -> Result<()> {
        let to = out.output(&mut self.stream, DType::Bf16)?;
        let (states, sequences) = (state.layer(layer.index), step.at(step.layout.states));
        let count = step.layout.recurrent;
        let constants = self.layers.delta_net(layer.index);
        let shape = DeltaNetArguments::new(layer, state.slot_stride());
        let arguments = Arguments::of([to, states, projected.bf16(), sequences, constants]);
        let arguments = arguments.value(shape);
        // A decoding step has one row per sequence: chunks of 32 rows would be nearly empty.
        if step.bucket.is_none() && has_chunks(&layer.shape) {
            let launch = Launch::delta_net_chunks(&layer.shape, count);
            self.stream.launch("delta_net_chunks", launch, &arguments)?;
        } else {
            let launch = Launch::delta_net(&layer.shape, count);
            self.stream.launch(delta_net_entry(&layer.shape), launch, &arguments)?;
        }
        let arguments = Arguments::of([states, projected.bf16(), sequences]).value(shape);
        let launch = Launch::delta_net_history(&layer.shape, count);
        self.stream.launch("delta_net_history", launch, &arguments)
    }

    fn sigmoid_mul(&mut self, x: &mut Buffer, gate: &Buffer) -> Result<()> {
        self.elementwise("sigmoid_mul", gate.bf16(), x, |arguments| arguments)
    }

    fn silu_mul(&mut self, gate_up: &Buffer, out: &mut Buffer) -> Result<()> {
        self.elementwise("silu_mul", gate_up.bf16(), out, |arguments| arguments)
    }

    fn clamped_swiglu(
        &mut self,
        gate_up: &Buffer,
        alpha: f32,
        limit: f32,
        out: &mut Buffer,
    ) -> Result<()> {
        let more = |arguments: Arguments| arguments.value(alpha).value(limit);
        self.elementwise("clamped_swiglu", gate_up.bf16(), out, more)
    }

    fn route(
        &mut self,
        logits: &Buffer,
        chosen: usize,
        gate: Gate,
        own: Range<usize>,
    ) -> Result<Routes> {
        self.router.route(&mut self.stream, logits, chosen, gate, own)
    }

    fn routed_rows(&self, routes: &Routes) -> usize {
        routes.pairs
    }

    fn dispatch(&mut self, x: &Buffer, routes: &Routes, out: &mut Buffer) -> Result<()> {
        routes.dispatch(&mut self.stream, x, out)
    }

    fn expert_matmul(
        &mut self,
        x: &Buffer,
        experts: &[Matrix],
        biases: &[Vector],
        routes: &Routes,
        out: &mut Buffer,
    ) -> Result<()> {
        let weights = (experts, biases);
        self.gemm.expert_matmul(&mut self.stream, x, weights, routes.offsets, out)
    }

    fn combine(&mut self, x: &Buffer, routes: &Routes, out: &mut Buffer) -> Result<()> {
        routes.combine(&mut self.stream, x, out)
    }

    fn read<'a>(&mut self, x: &'a mut Buffer) -> Result<&'a [f32]> {
        let bytes = x.rows * x.cols * x.dtype.bytes();
        let mut host = Pinned::new(&self.stream.driver, bytes)?;
        host.download(0, x.address(), bytes)?;
        self.stream.driver.wait_all()?;
        x.host.clear();
        match x.dtype {
            DType::F32 => x.host.extend_from_slice(bytemuck::cast_slice(host.bytes())),
            DType::Bf16 => {
                let two = host.bytes().chunks_exact(2);
                x.host.extend(two.map(|two| bf16::from_le_bytes([two[0], two[1]]).to_f32()));
            }
        }
        Ok(&x.host)
    }
}
