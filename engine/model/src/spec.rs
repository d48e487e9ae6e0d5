//! What a decoder is made of, as plain data: an architecture's file says it, blocks are built from
//! it. Knows no device and reads no file.

use super::config::DecoderConfig;
use super::rope::RopeConfig;
use engine_core::{AttentionShape, DeltaNetShape, Gate, RowOrder};

/// A decoder: embedding, layers, final norm, head.
#[derive(Debug, Clone)]
pub struct DecoderSpec {
    pub config: DecoderConfig,
    pub rope: RopeConfig,
    pub names: Names,
    /// Added to the weights of all norms over the stream and over heads: 1 where files keep their
    /// distance from one.
    pub norm_offset: f32,
    /// Whether the head is the embedding table.
    pub tied: bool,
    pub layers: Vec<LayerSpec>,
}

impl DecoderSpec {
    /// The attention blocks, each with the number of its layer.
    pub fn attentions_mut(&mut self) -> impl Iterator<Item = (usize, &mut AttentionSpec)> {
        self.layers.iter_mut().enumerate().filter_map(|(index, layer)| match &mut layer.mixer {
            MixerSpec::Attention(attention) => Some((index, attention)),
            MixerSpec::DeltaNet(_) => None,
        })
    }

    /// Weights of the experts that a row does not go to, over all layers.
    pub fn idle_expert_weights(&self) -> u64 {
        let idle = self.layers.iter().map(|layer| match &layer.feed_forward {
            FeedForwardSpec::Moe(moe) => {
                (moe.experts - moe.chosen) * 3 * self.config.hidden * moe.intermediate
            }
            FeedForwardSpec::Dense(_) => 0,
        });
        idle.map(|weights| weights as u64).sum()
    }
}

/// Tensors that every decoder has, without `.weight`; `{layer}` stands for the layer's number.
#[derive(Debug, Clone, Copy)]
pub struct Names {
    pub embedding: &'static str,
    pub final_norm: &'static str,
    pub head: &'static str,
    pub mixer_norm: &'static str,
    pub feed_forward_norm: &'static str,
}

/// Norm, mixer, norm, feed-forward; both add to the stream.
#[derive(Debug, Clone)]
pub struct LayerSpec {
    pub mixer: MixerSpec,
    pub feed_forward: FeedForwardSpec,
}

/// What lets positions see one another.
#[derive(Debug, Clone)]
pub enum MixerSpec {
    Attention(AttentionSpec),
    DeltaNet(DeltaNetSpec),
}

/// What each position computes for itself.
#[derive(Debug, Clone)]
pub enum FeedForwardSpec {
    Dense(DenseSpec),
    Moe(MoeSpec),
}

/// Grouped-query attention.
#[derive(Debug, Clone)]
pub struct AttentionSpec {
    pub names: AttentionNames,
    pub shape: AttentionShape,
    /// Whether queries, keys and values have biases.
    pub qkv_bias: bool,
    pub output_bias: bool,
    /// Whether `names` has norms of the heads.
    pub head_norms: bool,
    /// Whether the rows of each query head are followed by as many of a gate for its output.
    pub gated: bool,
    pub sinks: bool,
    /// Positions that a query sees, its own included.
    pub window: Option<usize>,
    /// How the files order the rows that are turned.
    pub rotated: RowOrder,
}

/// Tensors of an attention block, without `.weight` and `.bias`.
#[derive(Debug, Clone, Copy)]
pub struct AttentionNames {
    pub query: &'static str,
    pub key: &'static str,
    pub value: &'static str,
    pub output: &'static str,
    pub query_norm: &'static str,
    pub key_norm: &'static str,
    /// The whole name: files differ in its ending.
    pub sinks: &'static str,
}

/// Gated DeltaNet.
#[derive(Debug, Clone, Copy)]
pub struct DeltaNetSpec {
    pub names: DeltaNetNames,
    pub shape: DeltaNetShape,
    pub form: DeltaNetForm,
}

/// How files keep a gated DeltaNet block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeltaNetForm {
    /// Value heads that share a key head are neighbors; the decay is a logarithm.
    HuggingFace,
    /// Value heads take turns over the key heads; the decay is a rate, below zero.
    Gguf,
}

impl DeltaNetSpec {
    /// Where files have value head `head`, counted by the key heads that they share.
    pub fn stored_head(&self, head: usize) -> usize {
        let group = self.shape.group();
        match self.form {
            DeltaNetForm::HuggingFace => head,
            DeltaNetForm::Gguf => head % group * self.shape.key_heads + head / group,
        }
    }
}

/// Tensors of a gated DeltaNet block, without `.weight`.
#[derive(Debug, Clone, Copy)]
pub struct DeltaNetNames {
    pub query_key_value: &'static str,
    pub gate: &'static str,
    pub beta: &'static str,
    pub decay: &'static str,
    /// The whole name: the decay's rate or its logarithm.
    pub decay_rate: &'static str,
    /// The whole name.
    pub decay_bias: &'static str,
    pub conv: &'static str,
    pub norm: &'static str,
    pub output: &'static str,
}

/// Two gated projections up and one down.
#[derive(Debug, Clone)]
pub struct DenseSpec {
    pub names: DenseNames,
    pub intermediate: usize,
    pub bias: bool,
}

/// Tensors of a gated feed-forward block, without `.weight` and `.bias`.
#[derive(Debug, Clone, Copy)]
pub struct DenseNames {
    pub gate: &'static str,
    pub up: &'static str,
    pub down: &'static str,
}

/// A router and the experts that it chooses from.
#[derive(Debug, Clone)]
pub struct MoeSpec {
    /// The router, without `.weight` and `.bias`.
    pub router: &'static str,
    pub router_bias: bool,
    pub experts: usize,
    /// Experts per row.
    pub chosen: usize,
    /// Width of one expert.
    pub intermediate: usize,
    pub gate: Gate,
    pub activation: Activation,
    pub storage: ExpertStorage,
}

/// How gate and up become one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Activation {
    Silu,
    /// As [`engine_core::Device::clamped_swiglu`].
    ClampedSwiglu {
        alpha: f32,
        limit: f32,
    },
}

/// How files hold the experts of a layer; names without `.weight` and `.bias`.
#[derive(Debug, Clone, Copy)]
pub enum ExpertStorage {
    /// Tensors `[N, K]` for each expert, whose number stands for `{expert}`.
    Each(DenseNames),
    /// Tensors `[E, N, K]`, and biases `[E, N]` where `bias`.
    Stacked { names: DenseNames, bias: bool },
    /// Hugging Face's gpt-oss: `{gate_up}_blocks` of MXFP4 whose rows are gate and up by turns, or
    /// `{gate_up}` `[E, K, N]` whose columns are; `{gate_up}_bias`, and the same of `{down}`.
    GptOss { gate_up: &'static str, down: &'static str },
}
