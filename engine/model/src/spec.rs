//! Description of a decoder as plain data: an architecture's file fills it in, blocks are built
//! from it. Knows no device and reads no file.

pub use super::config::Activation;
use super::config::DecoderConfig;
use super::rope::RopeConfig;
use engine_core::{AttentionShape, DeltaNetShape, Feature, Gate, RowOrder};

/// Description of a decoder: embedding, layers, final norm, LM head.
#[derive(Debug, Clone)]
pub struct DecoderSpec {
    pub config: DecoderConfig,
    /// Rotary embeddings, of which each attention block uses one.
    pub ropes: Vec<RopeConfig>,
    pub names: Names,
    /// Factor of the embeddings before the first layer, 1 for most architectures.
    pub embedding_scale: f32,
    /// Offset added to the weights of all norms over the stream and over heads: 1 where files store
    /// the weights minus one.
    pub norm_offset: f32,
    /// True when the embedding table is also the LM head.
    pub tied: bool,
    pub layers: Vec<LayerSpec>,
}

impl DecoderSpec {
    /// Iterates over the attention blocks with their layer indices.
    pub fn attentions_mut(&mut self) -> impl Iterator<Item = (usize, &mut AttentionSpec)> {
        self.layers.iter_mut().enumerate().filter_map(|(index, layer)| match &mut layer.mixer {
            MixerSpec::Attention(attention) => Some((index, attention)),
            MixerSpec::DeltaNet(_) => None,
        })
    }

    /// Returns the features that the model needs and that not every device has.
    pub fn features(&self) -> Vec<Feature> {
        let is_gelu = |layer: &LayerSpec| match &layer.feed_forward {
            FeedForwardSpec::Dense(dense) => dense.activation == Activation::GeluTanh,
            FeedForwardSpec::Moe(moe) => moe.activation == Activation::GeluTanh,
        };
        let needed = [
            (Feature::Gelu, self.layers.iter().any(is_gelu)),
            (Feature::EmbeddingScale, self.embedding_scale != 1.0),
            (Feature::LayerRotations, self.ropes.len() > 1),
        ];
        needed.into_iter().filter_map(|(feature, is_needed)| is_needed.then_some(feature)).collect()
    }

    /// Returns the number of expert weights that one row does not use, over all layers.
    pub fn idle_expert_weights(&self) -> u64 {
        let idle = self.layers.iter().map(|layer| match &layer.feed_forward {
            FeedForwardSpec::Moe(moe) => {
                (moe.experts - moe.top_k) * 3 * self.config.hidden * moe.intermediate
            }
            FeedForwardSpec::Dense(_) => 0,
        });
        idle.map(|weights| weights as u64).sum()
    }
}

/// Names of the tensors that every decoder has, without `.weight`; `{layer}` stands for the layer
/// index.
#[derive(Debug, Clone, Copy)]
pub struct Names {
    pub embedding: &'static str,
    pub final_norm: &'static str,
    pub head: &'static str,
    pub mixer_norm: &'static str,
    pub feed_forward_norm: &'static str,
    /// Norms of the outputs of mixer and feed-forward, before these are added to the stream; none in
    /// most architectures.
    pub output_norms: Option<[&'static str; 2]>,
}

/// Description of a layer: norm, mixer, norm, feed-forward. Mixer and feed-forward add to the
/// stream.
#[derive(Debug, Clone)]
pub struct LayerSpec {
    pub mixer: MixerSpec,
    pub feed_forward: FeedForwardSpec,
}

/// Mixer of a layer: the block in which positions exchange information.
#[derive(Debug, Clone)]
pub enum MixerSpec {
    Attention(AttentionSpec),
    DeltaNet(DeltaNetSpec),
}

/// Feed-forward block of a layer, which computes each position separately.
#[derive(Debug, Clone)]
pub enum FeedForwardSpec {
    Dense(DenseSpec),
    Moe(MoeSpec),
}

/// Description of grouped-query attention.
#[derive(Debug, Clone)]
pub struct AttentionSpec {
    pub names: AttentionNames,
    pub shape: AttentionShape,
    /// True when queries, keys and values are rows of one stored matrix in this order, which all
    /// three names name.
    pub fused: bool,
    /// True when the projections of queries, keys and values have biases.
    pub qkv_bias: bool,
    pub output_bias: bool,
    /// True when query and key heads have RMS norms, named in `names`.
    pub head_norms: bool,
    /// True when each query head's rows are followed by as many rows of a gate for the attention
    /// output.
    pub gated: bool,
    pub sinks: bool,
    /// Size of the sliding window in positions, the query's own included.
    pub window: Option<usize>,
    /// Index of the block's rotary embedding in [`DecoderSpec::ropes`].
    pub rope: usize,
    /// Row order in which files store queries and keys, which are rotated.
    pub rotated: RowOrder,
}

/// Names of the tensors of an attention block, without `.weight` and `.bias`.
#[derive(Debug, Clone, Copy)]
pub struct AttentionNames {
    pub query: &'static str,
    pub key: &'static str,
    pub value: &'static str,
    pub output: &'static str,
    pub query_norm: &'static str,
    pub key_norm: &'static str,
    /// Full name of the attention sinks, because its ending differs between file formats.
    pub sinks: &'static str,
}

/// Description of a gated DeltaNet block.
#[derive(Debug, Clone, Copy)]
pub struct DeltaNetSpec {
    pub names: DeltaNetNames,
    pub shape: DeltaNetShape,
    pub form: DeltaNetForm,
}

/// Storage form of a gated DeltaNet block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeltaNetForm {
    /// Value heads that share a key head are adjacent, and the decay is stored as a logarithm.
    HuggingFace,
    /// Value head `i` uses key head `i % key_heads`, and the decay is stored as a negative rate.
    Gguf,
}

impl DeltaNetSpec {
    /// Returns the stored index of value head `head`, where `head` counts value heads grouped by
    /// key head.
    pub fn stored_head(&self, head: usize) -> usize {
        let group = self.shape.group();
        match self.form {
            DeltaNetForm::HuggingFace => head,
            DeltaNetForm::Gguf => head % group * self.shape.key_heads + head / group,
        }
    }
}

/// Names of the tensors of a gated DeltaNet block, without `.weight`.
#[derive(Debug, Clone, Copy)]
pub struct DeltaNetNames {
    pub query_key_value: &'static str,
    pub gate: &'static str,
    pub beta: &'static str,
    pub decay: &'static str,
    /// Full name of the decay: its rate or the logarithm of that.
    pub decay_rate: &'static str,
    /// Full name of the bias added to the decay's input.
    pub decay_bias: &'static str,
    pub conv: &'static str,
    pub norm: &'static str,
    pub output: &'static str,
}

/// Description of a dense gated feed-forward block: gate and up projections, then down.
#[derive(Debug, Clone)]
pub struct DenseSpec {
    pub names: DenseNames,
    pub intermediate: usize,
    pub bias: bool,
    pub activation: Activation,
    /// True when gates and up projections are rows of one stored matrix in this order, which both
    /// names name.
    pub fused: bool,
}

/// Names of the tensors of a gated feed-forward block, without `.weight` and `.bias`.
#[derive(Debug, Clone, Copy)]
pub struct DenseNames {
    pub gate: &'static str,
    pub up: &'static str,
    pub down: &'static str,
}

/// Description of a MoE block: a router and its experts.
#[derive(Debug, Clone)]
pub struct MoeSpec {
    /// Name of the router, without `.weight` and `.bias`.
    pub router: &'static str,
    pub router_bias: bool,
    pub experts: usize,
    /// Top k: number of experts per row.
    pub top_k: usize,
    /// Width of one expert's feed-forward layer.
    pub intermediate: usize,
    pub gate: Gate,
    pub activation: Activation,
    pub storage: ExpertStorage,
}

/// Storage of a layer's experts in files; names are without `.weight` and `.bias`.
#[derive(Debug, Clone, Copy)]
pub enum ExpertStorage {
    /// One tensor `[N, K]` per expert, whose index replaces `{expert}`.
    Each(DenseNames),
    /// Tensors `[E, N, K]` of all experts, and biases `[E, N]` if `bias`.
    Stacked { names: DenseNames, bias: bool },
    /// Gate and up in one tensor of all experts, in alternation: `{gate_up}_blocks` in MXFP4 with
    /// alternating rows and their `{gate_up}_scales`, or `{gate_up}` `[E, K, N]` with alternating
    /// columns. Biases are in `{gate_up}_bias`. `{down}` has the same form.
    Interleaved { gate_up: &'static str, down: &'static str },
}
