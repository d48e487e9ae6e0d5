//! The Llama architecture: grouped-query attention with rotary positions, SwiGLU feed-forward
//! layers, RMS norms before both.

use super::config::DecoderConfig;
use super::rope::{RopeConfig, RopePrecision};
use super::{LoadError, Model, ModelInfo, StepBatch, StepError};
use crate::device::{AttentionShape, Device, HostMatrix, KvShape, KvType, RowOrder};
use crate::weights::{Checkpoint, ConfigSource};

/// Names of the tensors in a checkpoint; `{}` stands for the layer.
struct Names {
    embedding: &'static str,
    attention_norm: &'static str,
    query: &'static str,
    key: &'static str,
    value: &'static str,
    output: &'static str,
    feed_forward_norm: &'static str,
    gate: &'static str,
    up: &'static str,
    down: &'static str,
    final_norm: &'static str,
    head: &'static str,
}

const HUGGING_FACE: Names = Names {
    embedding: "model.embed_tokens.weight",
    attention_norm: "model.layers.{}.input_layernorm.weight",
    query: "model.layers.{}.self_attn.q_proj.weight",
    key: "model.layers.{}.self_attn.k_proj.weight",
    value: "model.layers.{}.self_attn.v_proj.weight",
    output: "model.layers.{}.self_attn.o_proj.weight",
    feed_forward_norm: "model.layers.{}.post_attention_layernorm.weight",
    gate: "model.layers.{}.mlp.gate_proj.weight",
    up: "model.layers.{}.mlp.up_proj.weight",
    down: "model.layers.{}.mlp.down_proj.weight",
    final_norm: "model.norm.weight",
    head: "lm_head.weight",
};

const GGUF: Names = Names {
    embedding: "token_embd.weight",
    attention_norm: "blk.{}.attn_norm.weight",
    query: "blk.{}.attn_q.weight",
    key: "blk.{}.attn_k.weight",
    value: "blk.{}.attn_v.weight",
    output: "blk.{}.attn_output.weight",
    feed_forward_norm: "blk.{}.ffn_norm.weight",
    gate: "blk.{}.ffn_gate.weight",
    up: "blk.{}.ffn_up.weight",
    down: "blk.{}.ffn_down.weight",
    final_norm: "output_norm.weight",
    head: "output.weight",
};

#[derive(Debug)]
struct Layer<D: Device> {
    attention_norm: D::Vector,
    qkv: D::Matrix,
    output: D::Matrix,
    feed_forward_norm: D::Vector,
    gate_up: D::Matrix,
    down: D::Matrix,
}

/// Activations of a step, resized to its rows.
#[derive(Debug)]
struct Buffers<D: Device> {
    /// `[T, hidden]` the residual stream.
    hidden: D::Buffer,
    /// `[T, hidden]` its norm.
    normed: D::Buffer,
    /// `[T, hidden]` what a sublayer adds to the stream.
    delta: D::Buffer,
    /// `[T, (H + 2 KV heads) D]`
    qkv: D::Buffer,
    /// `[T, H D]`
    attended: D::Buffer,
    /// `[T, 2 intermediate]`
    gate_up: D::Buffer,
    /// `[T, intermediate]`
    gated: D::Buffer,
    /// `[R, hidden]` for the rows with logits: stream, what to add, norm of the sum.
    last: [D::Buffer; 3],
    /// `[R, vocab]`
    logits: D::Buffer,
}

/// A Llama model on one device.
#[derive(Debug)]
pub struct Llama<D: Device> {
    device: D,
    info: ModelInfo,
    config: DecoderConfig,
    shape: AttentionShape,
    kv_type: KvType,
    inverse_frequencies: Vec<f32>,
    embedding: D::Matrix,
    layers: Vec<Layer<D>>,
    final_norm: D::Vector,
    /// Absent where the embedding is the head.
    head: Option<D::Matrix>,
    buffers: Buffers<D>,
    kv: Option<D::Kv>,
}

impl<D: Device> Llama<D> {
    /// Reads and packs the weights of `checkpoint`.
    ///
    /// # Errors
    /// The configuration or a tensor is missing or does not fit, or the device is full.
    pub fn load(
        mut device: D,
        checkpoint: &Checkpoint,
        kv_type: KvType,
        precision: RopePrecision,
    ) -> Result<Self, LoadError> {
        let mut config = DecoderConfig::read(checkpoint.config())?;
        let names = match checkpoint.config() {
            ConfigSource::Json { .. } => &HUGGING_FACE,
            ConfigSource::Gguf(_) => {
                config.tied = !checkpoint.lists(GGUF.head);
                &GGUF
            }
        };
        let rope = RopeConfig::read(checkpoint, config.head_dim)?;
        let mut loader = Loader { device: &mut device, checkpoint, config: &config, parameters: 0 };
        let (hidden, vocab) = (config.hidden, config.vocab_size);
        let embedding =
            loader.matrix(&[(names.embedding, vocab, RowOrder::AsStored)], 0, hidden)?;
        let layers: Vec<_> =
            (0..config.layers).map(|layer| loader.layer(names, layer)).collect::<Result<_, _>>()?;
        let final_norm = loader.vector(names.final_norm, 0)?;
        let head = if config.tied {
            None
        } else {
            Some(loader.matrix(&[(names.head, vocab, RowOrder::AsStored)], 0, hidden)?)
        };
        let parameters = loader.parameters;
        let shape = AttentionShape {
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            scale: 1.0 / (config.head_dim as f32).sqrt(),
        };
        let info = ModelInfo {
            architecture: config.architecture.clone(),
            vocab_size: vocab,
            max_seq_len: config.max_seq_len,
            parameters,
            compute_dtype: "f32",
            kv_dtype: kv_type.name(),
            kv_bytes_per_token: 2
                * config.layers
                * config.kv_heads
                * config.head_dim
                * kv_type.bytes(),
        };
        let buffers = Buffers::new(&mut device, &config, &shape).map_err(LoadError::Device)?;
        Ok(Self {
            device,
            info,
            shape,
            kv_type,
            inverse_frequencies: rope.inverse_frequencies(precision),
            embedding,
            layers,
            final_norm,
            head,
            buffers,
            kv: None,
            config,
        })
    }

    /// Runs the layers over the rows in `hidden`; leaves the stream in `hidden` and what is still to
    /// be added to it in `delta`.
    fn run_layers(&mut self, plan: &D::Plan) -> Result<(), StepError> {
        let Some(kv) = self.kv.as_mut() else {
            let message = "no KV cache was allocated".to_owned();
            return Err(StepError { operation: "step", message });
        };
        let (device, b, shape) = (&mut self.device, &mut self.buffers, &self.shape);
        let epsilon = self.config.norm_epsilon;
        for (index, layer) in self.layers.iter().enumerate() {
            let norm = &layer.attention_norm;
            if index == 0 {
                device.rms_norm(&b.hidden, norm, epsilon, &mut b.normed)?;
            } else {
                device.add_rms_norm(&mut b.hidden, &b.delta, norm, epsilon, &mut b.normed)?;
            }
            device.matmul(&b.normed, &layer.qkv, &mut b.qkv)?;
            device.rope_and_cache(&mut b.qkv, shape, index, plan, kv)?;
            device.attention(&b.qkv, shape, index, plan, kv, &mut b.attended)?;
            device.matmul(&b.attended, &layer.output, &mut b.delta)?;
            let norm = &layer.feed_forward_norm;
            device.add_rms_norm(&mut b.hidden, &b.delta, norm, epsilon, &mut b.normed)?;
            device.matmul(&b.normed, &layer.gate_up, &mut b.gate_up)?;
            device.silu_mul(&b.gate_up, &mut b.gated)?;
            device.matmul(&b.gated, &layer.down, &mut b.delta)?;
        }
        Ok(())
    }
}

impl<D: Device> Buffers<D> {
    fn new(
        device: &mut D,
        config: &DecoderConfig,
        shape: &AttentionShape,
    ) -> Result<Self, StepError> {
        let hidden = config.hidden;
        Ok(Self {
            hidden: device.buffer(hidden)?,
            normed: device.buffer(hidden)?,
            delta: device.buffer(hidden)?,
            qkv: device.buffer(shape.qkv_cols())?,
            attended: device.buffer(shape.heads * shape.head_dim)?,
            gate_up: device.buffer(2 * config.intermediate)?,
            gated: device.buffer(config.intermediate)?,
            last: [device.buffer(hidden)?, device.buffer(hidden)?, device.buffer(hidden)?],
            logits: device.buffer(config.vocab_size)?,
        })
    }

    /// Makes room for `rows` rows, `last_rows` of them with logits.
    fn resize(&mut self, device: &mut D, rows: usize, last_rows: usize) -> Result<(), StepError> {
        let all = [
            &mut self.hidden,
            &mut self.normed,
            &mut self.delta,
            &mut self.qkv,
            &mut self.attended,
            &mut self.gate_up,
            &mut self.gated,
        ];
        all.into_iter().try_for_each(|buffer| device.resize(buffer, rows))?;
        self.last.iter_mut().try_for_each(|buffer| device.resize(buffer, last_rows))?;
        device.resize(&mut self.logits, last_rows)
    }
}

impl<D: Device> Model for Llama<D> {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn allocate_kv(&mut self, pages: usize, page_tokens: usize) -> Result<(), StepError> {
        let AttentionShape { kv_heads, head_dim, .. } = self.shape;
        let (layers, kv_type) = (self.config.layers, self.kv_type);
        let shape = KvShape { layers, kv_heads, head_dim, pages, page_tokens, kv_type };
        self.kv = Some(self.device.kv(shape)?);
        Ok(())
    }

    fn step(&mut self, batch: &StepBatch) -> Result<&[f32], StepError> {
        let wrong = |message| StepError { operation: "step", message };
        let Some(kv) = self.kv.as_ref() else {
            return Err(wrong("no KV cache was allocated".to_owned()));
        };
        if let Some(id) = batch.tokens.iter().find(|id| **id as usize >= self.info.vocab_size) {
            return Err(wrong(format!("token {id} is not in the vocabulary")));
        }
        let plan = self.device.plan(batch, kv, &self.inverse_frequencies)?;
        let rows = batch.logit_rows();
        self.buffers.resize(&mut self.device, batch.tokens.len(), rows.len())?;
        self.device.embed(&self.embedding, &batch.tokens, &mut self.buffers.hidden)?;
        self.run_layers(&plan)?;
        let (device, b) = (&mut self.device, &mut self.buffers);
        if !rows.is_empty() {
            let [stream, delta, normed] = &mut b.last;
            device.gather(&b.hidden, &rows, stream)?;
            device.gather(&b.delta, &rows, delta)?;
            let epsilon = self.config.norm_epsilon;
            device.add_rms_norm(stream, delta, &self.final_norm, epsilon, normed)?;
            let head = self.head.as_ref().unwrap_or(&self.embedding);
            device.matmul(normed, head, &mut b.logits)?;
        }
        device.read(&mut b.logits)
    }
}

/// Reads tensors by name onto the device and counts them.
struct Loader<'a, D: Device> {
    device: &'a mut D,
    checkpoint: &'a Checkpoint,
    config: &'a DecoderConfig,
    parameters: u64,
}

impl<D: Device> Loader<'_, D> {
    fn layer(&mut self, names: &Names, layer: usize) -> Result<Layer<D>, LoadError> {
        let DecoderConfig { hidden, intermediate, heads, kv_heads, head_dim, .. } = *self.config;
        let rotated = match self.checkpoint.config() {
            ConfigSource::Json { .. } => RowOrder::AsStored,
            ConfigSource::Gguf(_) => RowOrder::RopePairs { head_dim },
        };
        let as_stored = RowOrder::AsStored;
        let qkv = [
            (names.query, heads * head_dim, rotated),
            (names.key, kv_heads * head_dim, rotated),
            (names.value, kv_heads * head_dim, as_stored),
        ];
        let gate_up = [(names.gate, intermediate, as_stored), (names.up, intermediate, as_stored)];
        let output = [(names.output, hidden, as_stored)];
        let down = [(names.down, hidden, as_stored)];
        Ok(Layer {
            attention_norm: self.vector(names.attention_norm, layer)?,
            qkv: self.matrix(&qkv, layer, hidden)?,
            output: self.matrix(&output, layer, heads * head_dim)?,
            feed_forward_norm: self.vector(names.feed_forward_norm, layer)?,
            gate_up: self.matrix(&gate_up, layer, hidden)?,
            down: self.matrix(&down, layer, intermediate)?,
        })
    }

    fn vector(&mut self, name: &str, layer: usize) -> Result<D::Vector, LoadError> {
        let name = name.replace("{}", &layer.to_string());
        let values = self.checkpoint.vector(&name, self.config.hidden)?;
        self.parameters += values.len() as u64;
        self.device.vector(&values).map_err(LoadError::Device)
    }

    /// The matrices `(name, N, order)` of one layer, K inputs each, as one.
    fn matrix(
        &mut self,
        parts: &[(&str, usize, RowOrder)],
        layer: usize,
        k: usize,
    ) -> Result<D::Matrix, LoadError> {
        let mut tensors = Vec::with_capacity(parts.len());
        for (name, n, _) in parts {
            let name = name.replace("{}", &layer.to_string());
            tensors.push(self.checkpoint.tensor(&name, &[*n, k])?);
            self.parameters += (n * k) as u64;
        }
        let hosts: Vec<_> = tensors
            .iter()
            .zip(parts)
            .map(|(tensor, (_, n, order))| HostMatrix {
                weight_type: tensor.weight_type,
                n: *n,
                k,
                bytes: &tensor.bytes,
                order: *order,
            })
            .collect();
        self.device.matrix(&hosts).map_err(LoadError::Device)
    }
}
