//! Decoder-only transformer: embedding, layers of blocks over a residual stream, final norm, LM
//! head.
//!
//! It knows no architecture: a [`DecoderSpec`] has the facts about the layers.

use std::mem;
use std::ops::Range;

use super::architectures::Architecture;
use super::block::{BlockContext, FeedForward, LayerCounts, Mixer, Scratch, Step};
use super::config::{Settings, architecture};
use super::pooling;
use super::rope::RopeChoice;
use super::shard::Heads;
use super::spec::{DecoderSpec, LayerSpec, MixerSpec, Names};
use super::tensors::{Part, Tensors};
use super::{LoadError, Model, ModelInfo};
use engine_core::sample::Sampling;
use engine_core::{
    AttentionShape, Device, DeviceError, Feature, KvShape, KvType, LogitRows, Rank, Rotation,
    ScheduledSequence, StateShape, StateSlots, StepBatch, StepLimits, StepOutput, StepRows,
    StepToken,
};
use engine_weights::Checkpoint;

/// Layer of a decoder on one rank: norm, mixer, norm, feed-forward; in some architectures also
/// norms of the outputs of mixer and feed-forward.
#[derive(Debug)]
struct Layer<D: Device> {
    mixer_norm: D::Vector,
    mixer: Mixer<D>,
    feed_forward_norm: D::Vector,
    feed_forward: FeedForward<D>,
    /// Weights of the norms of the mixer's output and of the feed-forward block's output, in
    /// architectures that have them.
    output_norms: Option<[D::Vector; 2]>,
}

/// Buffers for the activations of a step outside of blocks, resized to the step's rows. R is the
/// number of rows that pass the LM head.
#[derive(Debug)]
struct Stream<D: Device> {
    /// Residual stream of the step, `[T, hidden]`.
    hidden: D::Buffer,
    /// Residual stream after a norm, `[T, hidden]`, the input of a block.
    normed: D::Buffer,
    /// Output of the latest block, `[T, hidden]`, which is not added to the residual stream yet.
    delta: D::Buffer,
    /// Rows that pass the LM head, three buffers of `[R, hidden]`: residual stream, output of the
    /// last block, norm of their sum.
    last: [D::Buffer; 3],
    /// Logits of the R rows that pass the LM head, `[R, vocab]`, gathered from all ranks; unused
    /// with a single rank. A rank's own logits are in the scratch buffer of the blocks' projections
    /// instead, which is about as large and not needed any more.
    gathered: D::Buffer,
    /// True if the host reads rows after the final norm, in the last buffer of `last`, instead of
    /// logits.
    embeds: bool,
}

/// Decoder-only transformer on one device: a whole model, or one tensor-parallel rank's part of it.
#[derive(Debug)]
pub struct Decoder<D: Device> {
    device: D,
    info: ModelInfo,
    norm_epsilon: f32,
    /// Rotary embeddings of the model; each attention layer names one by its index.
    rotations: Vec<Rotation>,
    /// Factor of the token embeddings before the first layer, 1 for most architectures.
    embedding_scale: f32,
    /// Shape of this rank's KV cache, except that number and size of pages are 0.
    kv_shape: KvShape,
    /// Range of token ids whose rows of the embedding and of the LM head are on this rank.
    own_vocab: Range<usize>,
    /// Shape of this rank's recurrent state, except that the number of slots is 0; none in models
    /// without recurrent state.
    state_shape: Option<StateShape>,
    embedding: D::Matrix,
    layers: Vec<Layer<D>>,
    final_norm: D::Vector,
    /// Weights of the LM head; none where the embedding matrix serves as LM head, and in a model
    /// that embeds texts.
    head: Option<D::Matrix>,
    stream: Stream<D>,
    scratch: Scratch<D>,
    kv: Option<D::Kv>,
    state: Option<D::State>,
}

impl<D: Device> Decoder<D> {
    /// Returns a model feature that the model in `checkpoint` needs and the device lacks; none if
    /// there is no such feature.
    ///
    /// # Errors
    /// Fails if the architecture is not named or not supported, if the configuration is invalid or
    /// not supported, or if the tensor `rope_freqs.weight` of a GGUF file has a wrong shape or
    /// type.
    pub fn missing_feature(checkpoint: &Checkpoint) -> Result<Option<Feature>, LoadError> {
        let needed = describe(checkpoint)?.features();
        Ok(D::LACKS.iter().find(|feature| needed.contains(feature)).copied())
    }

    /// Loads the decoder in `checkpoint`: reads its configuration and weights, and packs this
    /// rank's part of them on the device.
    ///
    /// # Errors
    /// Fails if this release or the device does not support the model, if the configuration or a
    /// tensor is missing or invalid, if the ranks cannot share the model, if random weights would
    /// not fit in memory, or if the device fails or has too little memory.
    pub fn load(
        mut device: D,
        checkpoint: &Checkpoint,
        kv_type: KvType,
        rope: RopeChoice,
    ) -> Result<Self, LoadError> {
        if let Some(feature) = Self::missing_feature(checkpoint)? {
            return Err(LoadError::Unsupported(format!(
                "`{}` needs a {}, which this device does not have; hint: `--device cpu`",
                checkpoint.path.display(),
                feature.name()
            )));
        }
        let spec = &describe(checkpoint)?;
        let (config, names) = (&spec.config, &spec.names);
        let (hidden, vocab) = (config.hidden, config.vocab_size);
        let mut tensors = Tensors::new(&mut device, checkpoint, spec.norm_offset);
        let own_vocab = tensors.device.rank().share(vocab);
        let rows = |name| Part { own: vec![own_vocab.clone()], ..Part::plain(name, vocab) };
        let embedding = tensors.matrix(&[rows(names.embedding)], 0, hidden)?;
        let embedded = tensors.parameters;
        let table = tensors.largest.take();
        checkpoint.release();
        let mut counts = LayerCounts::default();
        let mut layers = Vec::with_capacity(spec.layers.len());
        for (layer, spec) in spec.layers.iter().enumerate() {
            let context = BlockContext { layer, hidden, norm_epsilon: config.norm_epsilon };
            // The file's pages of each layer are released once it is packed, so peak memory stays
            // near the size of the packed model.
            layers.push(Layer::load(&mut tensors, names, spec, context, &mut counts)?);
            checkpoint.release();
        }
        let in_layers = tensors.parameters - embedded;
        // The embedding counts only in models whose layers have no matrix of their own.
        let largest_matrix = tensors.largest.take().or(table).expect("the embedding is a matrix");
        let final_norm = tensors.norm(names.final_norm, 0, hidden)?;
        let has_head = !spec.tied && !spec.embeds;
        let head =
            if has_head { Some(tensors.matrix(&[rows(names.head)], 0, hidden)?) } else { None };
        let kv_shape = kv_shape(spec, tensors.device.rank(), counts.kv, kv_type);
        let state_shape = state_shape(spec, tensors.device.rank(), counts.state);
        let precision = rope.precision(&checkpoint.config);
        let info = ModelInfo {
            architecture: architecture(&checkpoint.config)?.to_owned(),
            vocab_size: vocab,
            max_seq_len: config.max_seq_len,
            parameters: tensors.parameters,
            active_layer_parameters: in_layers - spec.idle_expert_weights(),
            has_experts: spec.idle_expert_weights() > 0,
            compute_dtype: device.compute_dtype(),
            kv_type,
            kv_bytes_per_token: kv_shape.token_bytes(),
            state_bytes: state_shape.map_or(0, |shape| shape.slot_bytes()),
            largest_matrix,
            attention: attention_shape(spec),
            embedding_size: spec.embeds.then_some(hidden),
        };
        Ok(Self {
            stream: Stream::new(&mut device, hidden, vocab, spec.embeds)?,
            scratch: Scratch::new(&mut device)?,
            device,
            info,
            norm_epsilon: config.norm_epsilon,
            rotations: spec.ropes.iter().map(|rope| rope.rotation(precision)).collect(),
            embedding_scale: spec.embedding_scale,
            kv_shape,
            own_vocab,
            state_shape,
            embedding,
            layers,
            final_norm,
            head,
            kv: None,
            state: None,
        })
    }

    /// Calls all device operations of a step: `rows` rows pass the layers, `head_rows` rows the LM
    /// head.
    fn run(
        &mut self,
        metadata: &D::StepMetadata,
        rows: usize,
        head_rows: usize,
    ) -> Result<(), DeviceError> {
        self.stream.resize(&mut self.device, rows, head_rows)?;
        let (first, hidden) = (self.own_vocab.start, &mut self.stream.hidden);
        self.device.embed(&self.embedding, first, metadata, hidden)?;
        self.device.all_reduce_sum(hidden)?;
        if self.embedding_scale != 1.0 {
            self.device.scale(hidden, self.embedding_scale)?;
        }
        self.run_layers(metadata, rows)?;
        self.run_head(metadata, head_rows)
    }

    /// Computes the logits of the `rows` rows that pass the LM head from the layers' output, and
    /// samples from them. In a model that embeds texts, the output of the final norm stands for the
    /// logits.
    fn run_head(&mut self, metadata: &D::StepMetadata, rows: usize) -> Result<(), DeviceError> {
        let (device, stream) = (&mut self.device, &mut self.stream);
        // A step of prefill chunks that do not end has no logits.
        if rows > 0 {
            let [hidden, delta, normed] = &mut stream.last;
            device.gather(&stream.hidden, metadata, hidden)?;
            device.gather(&stream.delta, metadata, delta)?;
            // The last block's output is added here for the gathered rows only, not for all rows.
            device.add_rms_norm(hidden, delta, &self.final_norm, self.norm_epsilon, normed)?;
        }
        if stream.embeds {
            return Ok(());
        }
        // Blocks are done with this buffer, and it is about as large as the logits.
        let own_logits = &mut self.scratch.projected;
        device.reshape(own_logits, rows, self.own_vocab.len())?;
        if rows > 0 {
            let head = self.head.as_ref().unwrap_or(&self.embedding);
            device.scores(&stream.last[2], head, own_logits)?;
        }
        // Without any row the ranks must still meet here.
        if device.rank() != Rank::ONLY {
            device.resize(&mut stream.gathered, rows)?;
            device.all_gather(own_logits, &mut stream.gathered)?;
        }
        let logits = stream.output(device, &mut self.scratch);
        device.sample(logits, metadata)
    }

    /// Calls the device operations of all layers over the rows in `hidden`. Leaves the residual
    /// stream in `hidden`, and in `delta` the last block's output, which is still to be added.
    fn run_layers(&mut self, metadata: &D::StepMetadata, rows: usize) -> Result<(), DeviceError> {
        let Some(kv) = self.kv.as_mut() else {
            return Err(no_kv());
        };
        let Stream { hidden, normed, delta, .. } = &mut self.stream;
        let (device, scratch) = (&mut self.device, &mut self.scratch);
        let state = self.state.as_mut();
        let mut step = Step { device, metadata, kv, state, scratch, rows };
        let epsilon = self.norm_epsilon;
        for (index, layer) in self.layers.iter().enumerate() {
            // The first layer has no earlier block output to add.
            if index == 0 {
                step.device.rms_norm(hidden, &layer.mixer_norm, epsilon, normed)?;
            } else {
                step.device.add_rms_norm(hidden, delta, &layer.mixer_norm, epsilon, normed)?;
            }
            layer.mixer.run(&mut step, normed, delta)?;
            step.device.all_reduce_sum(delta)?;
            if let Some([norm, _]) = &layer.output_norms {
                step.device.rms_norm(delta, norm, epsilon, normed)?;
                mem::swap(delta, normed);
            }
            step.device.add_rms_norm(hidden, delta, &layer.feed_forward_norm, epsilon, normed)?;
            layer.feed_forward.run(&mut step, normed, delta)?;
            step.device.all_reduce_sum(delta)?;
            // With the swap above the buffers are at their places again, which a captured CUDA
            // graph relies on.
            if let Some([_, norm]) = &layer.output_norms {
                step.device.rms_norm(delta, norm, epsilon, normed)?;
                mem::swap(delta, normed);
            }
        }
        Ok(())
    }
}

impl<D: Device> Layer<D> {
    fn load(
        tensors: &mut Tensors<'_, D>,
        names: &Names,
        spec: &LayerSpec,
        context: BlockContext,
        counts: &mut LayerCounts,
    ) -> Result<Self, LoadError> {
        let BlockContext { layer, hidden, .. } = context;
        let output_norms = match names.output_norms {
            Some([mixer, feed_forward]) => Some([
                tensors.norm(mixer, layer, hidden)?,
                tensors.norm(feed_forward, layer, hidden)?,
            ]),
            None => None,
        };
        Ok(Self {
            output_norms,
            mixer_norm: tensors.norm(names.mixer_norm, layer, hidden)?,
            mixer: Mixer::load(tensors, &spec.mixer, context, counts)?,
            feed_forward_norm: tensors.norm(names.feed_forward_norm, layer, hidden)?,
            feed_forward: FeedForward::load(tensors, &spec.feed_forward, context)?,
        })
    }
}

impl<D: Device> Stream<D> {
    fn new(device: &mut D, hidden: usize, vocab: usize, embeds: bool) -> Result<Self, DeviceError> {
        Ok(Self {
            hidden: device.buffer(hidden)?,
            normed: device.buffer(hidden)?,
            delta: device.buffer(hidden)?,
            last: [device.buffer(hidden)?, device.buffer(hidden)?, device.buffer(hidden)?],
            gathered: device.buffer(vocab)?,
            embeds,
        })
    }

    /// Resizes the buffers of the layers to `rows` rows, and those of the rows that pass the LM
    /// head to `head_rows` rows.
    fn resize(&mut self, device: &mut D, rows: usize, head_rows: usize) -> Result<(), DeviceError> {
        let all = [&mut self.hidden, &mut self.normed, &mut self.delta];
        all.into_iter().try_for_each(|buffer| device.resize(buffer, rows))?;
        self.last.iter_mut().try_for_each(|buffer| device.resize(buffer, head_rows))
    }

    /// Returns the buffer with the rows of a step that the host reads: logits, those of all ranks
    /// where there are several, or embeddings.
    fn output<'a>(&'a mut self, device: &D, scratch: &'a mut Scratch<D>) -> &'a mut D::Buffer {
        match (self.embeds, device.rank() == Rank::ONLY) {
            // Each rank has the whole row.
            (true, _) => &mut self.last[2],
            (false, true) => &mut scratch.projected,
            (false, false) => &mut self.gathered,
        }
    }
}

/// Returns the numbers and size of heads of the model's attention, which are the same in every
/// layer that has attention.
fn attention_shape(spec: &DecoderSpec) -> AttentionShape {
    let mut heads = spec.layers.iter().filter_map(|layer| match &layer.mixer {
        MixerSpec::Attention(attention) => Some(attention.shape),
        MixerSpec::DeltaNet(_) => None,
    });
    heads.next().unwrap_or_else(|| spec.config.attention_shape())
}

/// Returns the shape of this rank's KV cache, with 0 for number and size of pages.
fn kv_shape(spec: &DecoderSpec, rank: Rank, layers: usize, kv_type: KvType) -> KvShape {
    let shape = attention_shape(spec);
    let own = Heads::of_attention(rank, &shape);
    let (kv_heads, head_dim) = (own.map_or(0, |(own, _)| own.kv.len()), shape.head_dim);
    KvShape { layers, kv_heads, head_dim, pages: 0, page_tokens: 0, kv_type }
}

/// Returns the shape of this rank's recurrent state, which is the same in every layer that has one,
/// with 0 state slots. None for models without recurrent state.
fn state_shape(spec: &DecoderSpec, rank: Rank, layers: usize) -> Option<StateShape> {
    let whole = spec.layers.iter().find_map(|layer| match &layer.mixer {
        MixerSpec::Attention(_) => None,
        MixerSpec::DeltaNet(delta_net) => Some(&delta_net.shape),
    })?;
    let (_, net) = Heads::of_delta_net(rank, whole)?;
    Some(StateShape { layers, slots: 0, net })
}

/// Number of token positions in a KV page during warm-up, and the smallest for which the device
/// reserves the metadata of steps.
const WARM_UP_PAGE: usize = 16;

/// Returns the batch of a warm-up step: `tokens` tokens (at least `sequences`) of sequences that
/// all sample. Each sequence has one token, except that the first ones take the remaining tokens,
/// up to the longest sequence that the model supports.
fn warm_up_batch(tokens: usize, sequences: usize, max_seq_len: usize) -> StepBatch {
    let params = Sampling::greedy().sample_params(0);
    let tokens = tokens.max(sequences);
    let mut batch = StepBatch::known(&vec![0; tokens], Vec::new());
    let (mut left, mut page) = (tokens, 0);
    while left > 0 {
        // The sequences after this one need at least one token each.
        let others = sequences.saturating_sub(batch.sequences.len() + 1);
        let rows = (left - others).clamp(1, max_seq_len);
        let end = page + rows.div_ceil(WARM_UP_PAGE) as u32;
        let slot = batch.sequences.len() as u32;
        batch.push(ScheduledSequence {
            rows,
            pages: (page..end).collect(),
            logits: LogitRows::Sample(params),
            state: Some(StateSlots { slot, load: None, save: None }),
            ..ScheduledSequence::default()
        });
        (left, page) = (left - rows, end);
    }
    batch
}

/// Returns the error of a step that is submitted before a KV cache was allocated.
fn no_kv() -> DeviceError {
    DeviceError { operation: "step", message: "no KV cache was allocated".to_owned() }
}

impl<D: Device> Model for Decoder<D> {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn profile_run(&mut self, tokens: usize, sequences: usize) -> Result<Option<u64>, DeviceError> {
        if self.device.free_bytes()?.is_none() {
            return Ok(None);
        }
        let batch = warm_up_batch(tokens, sequences, self.info.max_seq_len);
        self.device.reserve_step(&StepLimits {
            tokens: batch.tokens.len(),
            sequences: sequences.max(batch.sequences.len()),
            sequence_pages: self.info.max_seq_len.div_ceil(WARM_UP_PAGE),
        })?;
        let pages = batch.sequences.iter().flat_map(|sequence| &*sequence.pages);
        self.allocate_kv(1 + *pages.max().unwrap_or(&0) as usize, WARM_UP_PAGE)?;
        self.allocate_states(batch.sequences.len())?;
        self.submit(&batch)?;
        self.complete()?;
        // The warm-up cache is freed first, so that tuning finds most memory free.
        (self.kv, self.state) = (None, None);
        self.device.tune()?;
        self.device.free_bytes()
    }

    fn allocate_kv(&mut self, pages: usize, page_tokens: usize) -> Result<(), DeviceError> {
        // The old cache is freed before the new one is allocated, so that both never coexist.
        self.kv = None;
        self.kv = Some(self.device.kv(KvShape { pages, page_tokens, ..self.kv_shape })?);
        Ok(())
    }

    fn allocate_states(&mut self, slots: usize) -> Result<(), DeviceError> {
        if let Some(shape) = self.state_shape {
            self.state = None;
            self.state = Some(self.device.state(StateShape { slots, ..shape })?);
        }
        Ok(())
    }

    fn run_ahead(&self) -> usize {
        self.device.run_ahead()
    }

    fn submit(&mut self, batch: &StepBatch) -> Result<(), DeviceError> {
        let Some(kv) = self.kv.as_ref() else { return Err(no_kv()) };
        // An id beyond the vocabulary would make the device read outside of the embedding.
        let is_unknown = |token: &&StepToken| matches!(token, StepToken::Known(id) if *id as usize >= self.info.vocab_size);
        if let Some(StepToken::Known(id)) = batch.tokens.iter().find(is_unknown) {
            let message = format!("token {id} is not in the vocabulary");
            return Err(DeviceError { operation: "step", message });
        }
        let metadata = self.device.prepare_step(batch, kv, &self.rotations)?;
        // A replayed CUDA graph contains all operations of `run`.
        if !self.device.replay(&metadata)? {
            let StepRows { all, head } = self.device.rows(&metadata);
            self.run(&metadata, all, head)?;
        }
        let logits = self.stream.output(&self.device, &mut self.scratch);
        self.device.submit(logits, metadata)
    }

    fn complete(&mut self) -> Result<StepOutput<'_>, DeviceError> {
        let logits = self.stream.output(&self.device, &mut self.scratch);
        self.device.complete(logits)
    }
}

/// Builds the `DecoderSpec` of `checkpoint`, the facts from which its decoder is built, by the
/// function of its architecture.
///
/// # Errors
/// Fails if the architecture is not named or not supported, if the configuration is invalid or not
/// supported, or if the tensor `rope_freqs.weight` of a GGUF file has a wrong shape or type.
fn describe(checkpoint: &Checkpoint) -> Result<DecoderSpec, LoadError> {
    let name = architecture(&checkpoint.config)?;
    let Some(architecture) = Architecture::find(name) else {
        return Err(LoadError::Unsupported(format!(
            "architecture `{name}` of `{}` is not supported; supported: {}",
            checkpoint.path.display(),
            Architecture::names()
        )));
    };
    let settings = Settings::of(&checkpoint.config)?;
    let mut spec = (architecture.describe)(checkpoint, settings)?;
    spec.embeds = pooling::embeds(settings)?;
    Ok(spec)
}
