//! Facts about a decoder as plain data, from which its blocks are built: an architecture's file
//! fills them in. It must know no device and read no file.

pub use super::config::Activation;
use super::config::DecoderConfig;
use super::rope::RopeConfig;
use engine_core::{AttentionShape, DeltaNetShape, Feature, Gate, RowOrder};

/// Facts about a whole decoder, from which it is built: embedding, layers, final norm, LM head.
#[derive(Debug, Clone)]
pub struct DecoderSpec {
    pub config: DecoderConfig,
    /// Rotary embeddings of the decoder; each attention block uses one of them.
    pub ropes: Vec<RopeConfig>,
    pub names: Names,
    /// Factor of the token embeddings before the first layer, 1 for most architectures.
    pub embedding_scale: f32,
    /// Offset that is added to the stored weights of all norms over the residual stream and over
    /// query and key heads: 1 where files store the weights minus one, else 0.
    pub norm_offset: f32,
    /// True if the embedding matrix is also the LM head.
    pub tied: bool,
    pub layers: Vec<LayerSpec>,
    /// True if the decoder embeds texts (pooling) instead of generating: the embedding of a
    /// sequence is its last row after the final norm, and there is no LM head.
    pub embeds: bool,
}

impl DecoderSpec {
    /// Iterates over the decoder's attention blocks with their layer indices.
    pub fn attentions_mut(&mut self) -> impl Iterator<Item = (usize, &mut AttentionSpec)> {
        self.layers.iter_mut().enumerate().filter_map(|(index, layer)| match &mut layer.mixer {
            MixerSpec::Attention(attention) => Some((index, attention)),
            MixerSpec::DeltaNet(_) => None,
        })
    }

    /// Returns those features that the decoder needs and that not every device has.
    pub fn features(&self) -> Vec<Feature> {
        let is_gelu = |layer: &LayerSpec| match &layer.feed_forward {
            FeedForwardSpec::Dense(dense) => dense.activation == Activation::GeluTanh,
            FeedForwardSpec::Moe(moe) => moe.activation == Activation::GeluTanh,
        };
        let needed = [
            (Feature::Gelu, self.layers.iter().any(is_gelu)),
            (Feature::EmbeddingScale, self.embedding_scale != 1.0),
            (Feature::LayerRotations, self.ropes.len() > 1),
            (Feature::Pooling, self.embeds),
        ];
        needed.into_iter().filter_map(|(feature, is_needed)| is_needed.then_some(feature)).collect()
    }

    /// Returns the number of weights in the matrices of MoE experts that one row does not use, over
    /// all layers of the decoder; biases are not counted.
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

/// Names of the tensors of a decoder's embedding, norms and LM head, without `.weight`; `{layer}`
/// stands for the layer index.
#[derive(Debug, Clone, Copy)]
pub struct Names {
    pub embedding: &'static str,
    pub final_norm: &'static str,
    pub head: &'static str,
    pub mixer_norm: &'static str,
    pub feed_forward_norm: &'static str,
    /// Names of the norms of the mixer's output and of the feed-forward block's output, before
    /// these are added to the residual stream; none in most architectures.
    pub output_norms: Option<[&'static str; 2]>,
}

/// Facts about a decoder layer, from which it is built: norm, mixer, norm, feed-forward block.
/// Mixer and feed-forward block add to the residual stream.
#[derive(Debug, Clone)]
pub struct LayerSpec {
    pub mixer: MixerSpec,
    pub feed_forward: FeedForwardSpec,
}

/// Facts about a layer's mixer, from which it is built: the block in which positions exchange
/// information.
#[derive(Debug, Clone)]
pub enum MixerSpec {
    Attention(AttentionSpec),
    DeltaNet(DeltaNetSpec),
}

/// Facts about a layer's feed-forward block, from which it is built: the block that computes each
/// position separately.
#[derive(Debug, Clone)]
pub enum FeedForwardSpec {
    Dense(DenseSpec),
    Moe(MoeSpec),
}

/// Facts about a layer's attention block (grouped-query attention), from which it is built.
#[derive(Debug, Clone)]
pub struct AttentionSpec {
    pub names: AttentionNames,
    pub shape: AttentionShape,
    /// True if queries, keys and values are rows of one stored matrix, in this order; the three
    /// names are then equal.
    pub fused: bool,
    /// True if the projections to queries, keys and values have biases.
    pub qkv_bias: bool,
    pub output_bias: bool,
    /// True if query and key heads have RMS norms, whose weights `names` names.
    pub head_norms: bool,
    /// True if the stored query projection has, after the rows of each query head, as many rows for
    /// the gate of that head's attention output.
    pub gated: bool,
    pub sinks: bool,
    /// Size of the block's sliding window in positions, the query's own included; none for full
    /// causal attention.
    pub window: Option<usize>,
    /// Index of the attention block's rotary embedding in [`DecoderSpec::ropes`].
    pub rope: usize,
    /// Order in which files store the rows of the query and key projections; a query projection
    /// with gates (`gated`) is stored head by head instead.
    pub rotated: RowOrder,
}

/// Names of the tensors of an attention block, without `.weight` and `.bias` except for the sinks,
/// whose name is full; `{layer}` stands for the layer index.
#[derive(Debug, Clone, Copy)]
pub struct AttentionNames {
    pub query: &'static str,
    pub key: &'static str,
    pub value: &'static str,
    pub output: &'static str,
    pub query_norm: &'static str,
    pub key_norm: &'static str,
    /// Full tensor name of the attention sinks, because its ending differs between file formats.
    pub sinks: &'static str,
}

/// Facts about a layer's gated DeltaNet block, from which it is built.
#[derive(Debug, Clone, Copy)]
pub struct DeltaNetSpec {
    pub names: DeltaNetNames,
    pub shape: DeltaNetShape,
    pub form: DeltaNetForm,
}

/// Form in which files store a gated DeltaNet block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeltaNetForm {
    /// DeltaNet block of a Hugging Face checkpoint: value heads that share a key head are adjacent,
    /// and the decay rate is stored as a logarithm.
    HuggingFace,
    /// DeltaNet block of a GGUF file: value head `i` uses key head `i % key_heads`, and the decay
    /// rate is stored as a negative number.
    Gguf,
}

impl DeltaNetSpec {
    /// Returns the index at which files store DeltaNet value head `head`, where `head` counts value
    /// heads grouped by key head.
    pub fn stored_head(&self, head: usize) -> usize {
        let group = self.shape.group();
        match self.form {
            DeltaNetForm::HuggingFace => head,
            DeltaNetForm::Gguf => head % group * self.shape.key_heads + head / group,
        }
    }
}

/// Names of the tensors of a gated DeltaNet block, without `.weight` except for decay rate and
/// decay bias, whose names are full; `{layer}` stands for the layer index.
#[derive(Debug, Clone, Copy)]
pub struct DeltaNetNames {
    pub query_key_value: &'static str,
    pub gate: &'static str,
    pub beta: &'static str,
    pub decay: &'static str,
    /// Full tensor name of the decay rate of each value head, or of its logarithm.
    pub decay_rate: &'static str,
    /// Full tensor name of the bias that is added to the decay's input.
    pub decay_bias: &'static str,
    pub conv: &'static str,
    pub norm: &'static str,
    pub output: &'static str,
}

/// Facts about a layer's dense gated feed-forward block, from which it is built: gate and up
/// projections, then the down projection.
#[derive(Debug, Clone)]
pub struct DenseSpec {
    pub names: DenseNames,
    pub intermediate: usize,
    pub bias: bool,
    pub activation: Activation,
    /// True if gates and ups are rows of one stored matrix, in this order; the two names are then
    /// equal.
    pub fused: bool,
}

/// Names of the tensors of a gated feed-forward block, or of MoE experts, without `.weight` and
/// `.bias`; `{layer}` stands for the layer index.
#[derive(Debug, Clone, Copy)]
pub struct DenseNames {
    pub gate: &'static str,
    pub up: &'static str,
    pub down: &'static str,
}

/// Facts about a layer's MoE block, from which it is built: a router and its experts.
#[derive(Debug, Clone)]
pub struct MoeSpec {
    /// Tensor name of the MoE router, without `.weight` and `.bias`.
    pub router: &'static str,
    pub router_bias: bool,
    pub experts: usize,
    /// Top k: number of experts that each row is sent to.
    pub top_k: usize,
    /// Number of intermediate columns of one expert.
    pub intermediate: usize,
    pub gate: Gate,
    pub activation: Activation,
    pub storage: ExpertStorage,
}

/// Form in which files store a layer's MoE experts; names are without `.weight` and `.bias`.
#[derive(Debug, Clone, Copy)]
pub enum ExpertStorage {
    /// Experts in tensors of their own: one tensor `[N, K]` per expert and projection, whose name
    /// has the expert's index in place of `{expert}`.
    Each(DenseNames),
    /// Experts in stacks: one tensor `[E, N, K]` of all E experts per projection, and one of their
    /// biases `[E, N]` if `bias` is true.
    Stacked { names: DenseNames, bias: bool },
    /// Experts in stacks in which gates and ups alternate: `{gate_up}_blocks` in MXFP4 with
    /// alternating rows and `{gate_up}_scales`, or `{gate_up}` `[E, K, N]` of E experts with
    /// alternating columns. Biases are in `{gate_up}_bias`. `{down}` has the same form without
    /// alternation.
    Interleaved { gate_up: &'static str, down: &'static str },
}
