//! Data that a compute device receives: matrices to load, shapes of attention, KV cache, recurrent
//! state and MoE gates, and the operations over them (`ops`).
//!
//! A device knows no architecture, no file and no request. Shape letters: T tokens of a step, H
//! query heads, KV key heads, D head size, N output columns, K contraction.

use crate::WeightType;

/// A weight matrix `[N, K]` in host memory, in its stored quantization format, to be copied to a
/// device.
#[derive(Debug)]
pub struct HostMatrix<'a> {
    /// Quantization format of the matrix's bytes.
    pub weight_type: WeightType,
    /// N: rows of the matrix, each the weights of one output column.
    pub n: usize,
    /// K: elements of a row, a multiple of the quantization format's block size.
    pub k: usize,
    /// Stored rows of the matrix, row after row, each a sequence of whole quantization blocks.
    pub bytes: &'a [u8],
    /// Mapping from output columns to stored rows.
    pub order: RowOrder,
}

impl HostMatrix<'_> {
    /// Returns the stored bytes of the row that computes output column `n`.
    pub fn row(&self, n: usize) -> &[u8] {
        let row_bytes = self.weight_type.row_bytes(self.k);
        &self.bytes[self.order.stored_row(n) * row_bytes..][..row_bytes]
    }
}

/// Rows of a bf16 matrix with random weights, for models without a file. The device generates them
/// from the pseudo-random stream that `engine_weights::random_tensor` defines, so
/// no host memory is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RandomRows {
    /// Position in the pseudo-random stream at which the tensor begins.
    pub start: u64,
    /// Number of elements of one stored row, which is the whole tensor's row even if only some
    /// columns are loaded.
    pub stride: usize,
    /// Index of the first stored row to load; `order` counts from it.
    pub row: usize,
    /// Index of the first column to load.
    pub column: usize,
    /// N: rows to generate, each the weights of one output column.
    pub n: usize,
    /// Mapping from output columns to stored rows.
    pub order: RowOrder,
}

/// Mapping from the output columns of a matrix to the stored rows of its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowOrder {
    /// Output column `n` is stored row `n`.
    AsStored,
    /// Query or key rows of GGUF files of the Llama family: within each head the file interleaves
    /// the two halves that rotary embeddings pair up (0, D/2, 1, D/2 + 1, ...). The device expects
    /// the first half, then the second.
    RopePairs {
        /// D: rows of a head, an even number.
        head_dim: usize,
    },
    /// Queries or gates of a projection that stores them head by head: `head_dim` query rows of
    /// head 0, `head_dim` gate rows of head 0, query rows of head 1, and so on. Selects one of the
    /// two.
    HeadPairs {
        /// D: number of rows of a head in the stored matrix.
        head_dim: usize,
        /// True selects the second of the two groups of each head, the gates.
        second: bool,
    },
    /// Two matrices of `half` rows each whose rows alternate in the file (gate 0, up 0, gate 1,
    /// ...). The device expects the first matrix, then the second.
    Interleaved {
        /// Number of rows of each of the two interleaved matrices.
        half: usize,
    },
}

impl RowOrder {
    /// Returns the number of stored rows that a matrix of `n` output columns is selected from.
    pub fn stored_rows(self, n: usize) -> usize {
        if matches!(self, Self::HeadPairs { .. }) { 2 * n } else { n }
    }

    /// Returns the index of the stored row that computes output column `n`.
    pub fn stored_row(self, n: usize) -> usize {
        match self {
            Self::AsStored => n,
            Self::RopePairs { head_dim } => {
                let (head, i) = (n / head_dim, n % head_dim);
                let (half, pair) = (i / (head_dim / 2), i % (head_dim / 2));
                head * head_dim + 2 * pair + half
            }
            Self::HeadPairs { head_dim, second } => {
                (2 * (n / head_dim) + usize::from(second)) * head_dim + n % head_dim
            }
            Self::Interleaved { half } => 2 * (n % half) + n / half,
        }
    }
}

/// Head counts of an attention layer on one rank. A row of a `qkv` buffer holds `heads` query
/// heads, then `kv_heads` key heads, then `kv_heads` value heads, D elements each.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionShape {
    /// H: number of query heads, a multiple of `kv_heads`.
    pub heads: usize,
    /// KV: number of key heads, and of value heads.
    pub kv_heads: usize,
    /// D: number of elements of a query, key or value head.
    pub head_dim: usize,
    /// Factor of the attention scores before the softmax, `1 / sqrt(D)` for most architectures.
    pub scale: f32,
}

impl AttentionShape {
    /// Returns the number of columns of a `qkv` buffer.
    pub fn qkv_cols(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }

    /// Returns the number of query heads that share a key head (grouped-query attention).
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }
}

/// Parameters of one attention layer for `rope_and_cache` and `attention`; `V` is the device's
/// vector type.
#[derive(Debug)]
pub struct AttentionLayer<V> {
    /// Head counts of this rank's part of the layer.
    pub shape: AttentionShape,
    /// Index of the layer in the KV cache. It counts only layers with attention, since layers with
    /// recurrent state keep no keys and values.
    pub kv_layer: usize,
    /// Index of the layer's rotary embedding among those of the model.
    pub rotation: usize,
    /// Size of the sliding window in positions, the query's own included; none for full causal
    /// attention.
    pub window: Option<usize>,
    /// RMS norms of query and key heads, for architectures that have them (Qwen3).
    pub head_norms: Option<HeadNorms<V>>,
    /// Attention sinks, `[H]`: one learned score per query head that takes part in the softmax and
    /// has no value, so that a head can attend to nothing. Source: Xiao et al. 2023; OpenAI 2025
    /// (gpt-oss).
    pub sinks: Option<V>,
    /// Divisors of keys, then of values, `[2, KV]`: each head is divided by its own before it is
    /// stored as e4m3. None means 1. Pages of other types store keys and values undivided.
    pub scales: Option<V>,
}

impl<V> AttentionLayer<V> {
    /// Builds a layer of full causal attention with the model's first rotary embedding, without
    /// head norms, sinks and key/value scales.
    pub fn new(shape: AttentionShape, kv_layer: usize) -> Self {
        let (head_norms, sinks, scales) = (None, None, None);
        Self { shape, kv_layer, rotation: 0, window: None, head_norms, sinks, scales }
    }

    /// Returns how many positions at the start of the sequence a sliding window masks for the query
    /// at `position`.
    pub fn masked(&self, position: usize) -> usize {
        self.window.map_or(0, |window| (position + 1).saturating_sub(window))
    }
}

/// RMS norms over each query head and each key head, applied before the rotary embedding.
#[derive(Debug)]
pub struct HeadNorms<V> {
    /// Weights of the RMS norm over query heads, `[D]`.
    pub query: V,
    /// Weights of the RMS norm over key heads, `[D]`.
    pub key: V,
    /// Epsilon of both norms, added to the mean square.
    pub epsilon: f32,
}

/// Rotary position embedding (RoPE): frequencies by which queries and keys are rotated.
#[derive(Debug, Clone, PartialEq)]
pub struct Rotation {
    /// Angle per position of each rotated pair, in radians, `[rotated dimensions / 2]`.
    pub inverse_frequencies: Vec<f32>,
    /// Factor of every cosine and sine: 1 except for YaRN, which scales attention by it.
    pub factor: f32,
}

/// Feature of a model that only some architectures need, and that a device may lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feature {
    /// [`Device::gelu_mul`](crate::Device::gelu_mul).
    Gelu,
    /// [`Device::scale`](crate::Device::scale).
    EmbeddingScale,
    /// More than one rotary embedding, as [`AttentionLayer::rotation`] selects.
    LayerRotations,
}

impl Feature {
    /// All features.
    pub const ALL: [Self; 3] = [Self::Gelu, Self::EmbeddingScale, Self::LayerRotations];

    /// Returns the feature's name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gelu => "GELU activation",
            Self::EmbeddingScale => "scale of embeddings",
            Self::LayerRotations => "rotary embedding for each kind of layer",
        }
    }
}

/// MoE gating function: how router logits become top-k experts and their weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// Softmax over all experts, then the top k (Qwen3-MoE).
    SoftmaxTop {
        /// True when the weights of the top k are divided by their sum.
        normalized: bool,
    },
    /// Top k logits first, then softmax over those k (gpt-oss).
    TopSoftmax,
}

/// Data type of keys and values in the KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvType {
    /// IEEE 754 single precision, 4 bytes.
    F32,
    /// IEEE 754 half precision, 2 bytes.
    F16,
    /// bfloat16, 2 bytes: the upper half of an f32.
    Bf16,
    /// FP8 e4m3, 1 byte: sign, four bits of exponent, three of mantissa.
    Fp8,
}

impl KvType {
    /// Returns the type's name in flags, messages and records.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Fp8 => "fp8",
        }
    }

    /// Returns the number of bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Fp8 => 1,
        }
    }
}

/// Shape of a paged KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvShape {
    /// Number of layers with keys and values.
    pub layers: usize,
    /// Number of key heads of a layer, and of value heads.
    pub kv_heads: usize,
    /// D: number of elements of a key or value head.
    pub head_dim: usize,
    /// Number of KV pages ("blocks" in vLLM's words). Each holds the keys and values of
    /// `page_tokens` positions in all layers.
    pub pages: usize,
    /// Number of token positions in a KV page.
    pub page_tokens: usize,
    /// Data type of the cached keys and values.
    pub kv_type: KvType,
}

/// Head counts of a gated DeltaNet layer (linear attention with recurrent state). A row of its
/// projection holds the queries and keys of all key heads and the values of all value heads, which
/// pass the causal convolution; then one gate per value element; then, for each value head, the
/// inputs of its beta and of its decay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeltaNetShape {
    /// Number of query heads, and of key heads.
    pub key_heads: usize,
    /// Number of value heads, a multiple of `key_heads`: each key head serves `group` consecutive
    /// value heads.
    pub value_heads: usize,
    /// Number of elements of a query head and of a key head.
    pub key_dim: usize,
    /// Number of elements of a value head.
    pub value_dim: usize,
    /// Width of the causal convolution in tokens, the current one included.
    pub taps: usize,
}

impl DeltaNetShape {
    /// Returns the number of value heads that share a key head.
    pub fn group(&self) -> usize {
        self.value_heads / self.key_heads
    }

    /// Returns the number of columns that pass the convolution: queries, keys and values.
    pub fn conv_cols(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
    }

    /// Returns the number of columns of the layer's input projection.
    pub fn cols(&self) -> usize {
        self.conv_cols() + self.value_heads * (self.value_dim + 2)
    }

    /// Returns the f32 elements of one sequence's recurrent state in one layer: the last `taps - 1`
    /// inputs of the convolution, then a matrix `[key_dim, value_dim]` per value head.
    pub fn state_elements(&self) -> usize {
        (self.taps - 1) * self.conv_cols() + self.value_heads * self.key_dim * self.value_dim
    }
}

/// Parameters of one gated DeltaNet layer, without its projections; `V` is the device's vector
/// type.
#[derive(Debug)]
pub struct DeltaNetLayer<V> {
    /// Head counts of this rank's part of the layer.
    pub shape: DeltaNetShape,
    /// Index of the layer among the layers with recurrent state.
    pub index: usize,
    /// Weights of the causal convolution, `[taps, conv_cols]`, the oldest token first.
    pub conv: V,
    /// Decay rate of each value head, `[value heads]`: a negative factor of the decay's logarithm.
    pub rate: V,
    /// Bias added to the decay's input, `[value heads]`.
    pub bias: V,
    /// Weights of the gated RMS norm of the output, `[value_dim]`.
    pub norm: V,
    /// Epsilon of the gated norm, added to the mean square.
    pub epsilon: f32,
}

/// Shape of the device memory for recurrent state: a number of state slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateShape {
    /// Number of layers with recurrent state.
    pub layers: usize,
    /// Number of state slots. A slot holds the state of one running sequence or one prefix-cache
    /// snapshot, over all layers.
    pub slots: usize,
    /// Head counts of each layer with recurrent state.
    pub net: DeltaNetShape,
}

impl StateShape {
    /// Returns the number of bytes of one state slot over all layers.
    pub fn slot_bytes(&self) -> usize {
        self.layers * self.net.state_elements() * size_of::<f32>()
    }
}

impl KvShape {
    /// Returns the number of bytes of one token's keys and values over all layers.
    pub fn token_bytes(&self) -> usize {
        2 * self.layers * self.kv_heads * self.head_dim * self.kv_type.bytes()
    }
}

/// Expert matrices `[N, K]` of a MoE layer and their biases `[N]`: one bias per expert, or none.
pub type Stack<M, V> = (Vec<M>, Vec<V>);

/// Row counts of the operations of one step, padding rows of the device included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepRows {
    /// Number of rows of every operation before the LM head.
    pub all: usize,
    /// Number of rows of the LM head: those that a token is sampled from or whose logits are read.
    pub head: usize,
}
