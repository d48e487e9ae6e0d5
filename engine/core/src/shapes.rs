//! Data types of the [`Device`](crate::Device) trait: matrices to load, shapes and parameters of
//! attention and gated DeltaNet layers, of the KV cache and state slots, and MoE gates.
//!
//! They name no architecture, no file and no request. Shape letters: T tokens of a step, H query
//! heads, KV key heads, D head size, N output columns, K contraction.

use crate::WeightType;

/// A weight matrix `[N, K]` in host memory, in its stored quantization format, to be copied to a
/// device.
#[derive(Debug)]
pub struct HostMatrix<'a> {
    /// Element type or quantization format of the stored weight matrix.
    pub weight_type: WeightType,
    /// N: number of rows of the weight matrix, each the weights of one output column.
    pub n: usize,
    /// K: number of elements of a row of the weight matrix, a multiple of the quantization format's
    /// block size.
    pub k: usize,
    /// Bytes of the stored weight matrix, row after row, each a sequence of whole quantization
    /// blocks.
    pub bytes: &'a [u8],
    /// Mapping from the matrix's output columns to its stored rows.
    pub order: RowOrder,
}

impl HostMatrix<'_> {
    /// Returns the bytes of the stored row that computes output column `n` of the weight matrix.
    pub fn row(&self, n: usize) -> &[u8] {
        let row_bytes = self.weight_type.row_bytes(self.k);
        &self.bytes[self.order.stored_row(n) * row_bytes..][..row_bytes]
    }
}

/// Rows of a weight matrix with random weights, for models that are run without weight files. A
/// device that can generate them does so from the pseudo-random stream that
/// `engine_weights::random_tensor` defines for the matrix's type, without host memory; for others
/// the host generates the whole matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RandomRows {
    /// Start of the random tensor's own pseudo-random stream: the counter before its first number.
    pub start: u64,
    /// Number of elements of one row of the whole random tensor, even if only some of its columns
    /// are loaded.
    pub stride: usize,
    /// Index of the random tensor's first row to load; stored row 0 in `order` is this row.
    pub row: usize,
    /// Index of the random tensor's first column to load.
    pub column: usize,
    /// N: number of rows to generate, each the weights of one output column.
    pub n: usize,
    /// Mapping from the matrix's output columns to its stored rows.
    pub order: RowOrder,
}

/// Mapping from the output columns of a matrix to the stored rows of its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowOrder {
    /// Rows of a weight matrix as they are stored: output column `n` on the device is row `n` of the
    /// file.
    AsStored,
    /// Query or key rows of GGUF files of the Llama family: within each head the file interleaves
    /// the two halves that rotary embeddings pair up (0, D/2, 1, D/2 + 1, ...). The device expects
    /// the first half, then the second.
    RopePairs {
        /// D: number of stored rows of a query or key head, an even number.
        head_dim: usize,
    },
    /// Queries or gates of a projection that stores both head by head: `head_dim` query rows of
    /// head 0, `head_dim` gate rows of head 0, query rows of head 1, and so on. The matrix is
    /// either all queries or all gates.
    HeadPairs {
        /// D: number of query rows, and of gate rows, that the stored matrix has for each head.
        head_dim: usize,
        /// True selects the gate rows of each head, which are stored after its query rows; false
        /// selects the query rows.
        second: bool,
    },
    /// Two matrices of `half` rows each whose rows alternate in the file (gate 0, up 0, gate 1, up
    /// 1, ...). The device expects all rows of the first matrix, then those of the second.
    Interleaved {
        /// Number of rows of each of the two matrices whose stored rows alternate.
        half: usize,
    },
}

impl RowOrder {
    /// Returns the number of stored rows from which the `n` rows of a weight matrix are selected.
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

/// Numbers of heads, head size and score scale of an attention layer, or of one rank's part of it.
/// A row of a `qkv` buffer holds `heads` query heads, then `kv_heads` key heads, then `kv_heads`
/// value heads, D elements each.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionShape {
    /// H: number of query heads of an attention layer, a multiple of `kv_heads`.
    pub heads: usize,
    /// KV: number of key heads of an attention layer, and of its value heads.
    pub kv_heads: usize,
    /// D: number of elements of a query, key or value head of an attention layer.
    pub head_dim: usize,
    /// Factor that multiplies the attention scores before the softmax, `1 / sqrt(D)` for most
    /// architectures.
    pub scale: f32,
}

impl AttentionShape {
    /// Returns the number of columns of a `qkv` buffer: all query, key and value heads of the layer
    /// side by side.
    pub fn qkv_cols(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }

    /// Returns the number of query heads of the attention layer that share a key head
    /// (grouped-query attention).
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }
}

/// Parameters of one attention layer, without its projections, for the device operations
/// `rope_and_cache` and `attention`; `V` is the device's vector type.
#[derive(Debug)]
pub struct AttentionLayer<V> {
    /// Numbers of heads, head size and score scale of this rank's part of the attention layer.
    pub shape: AttentionShape,
    /// Index of the attention layer in the KV cache. It counts only attention layers, since layers
    /// with recurrent state keep no keys and values.
    pub kv_layer: usize,
    /// Index of the attention layer's rotary embedding in the model's list of rotary embeddings.
    pub rotation: usize,
    /// Size of the attention layer's sliding window in positions, the query's own included; none
    /// for full causal attention.
    pub window: Option<usize>,
    /// RMS norms of query and key heads before the rotary embedding, for architectures that have
    /// them, such as Qwen3.
    pub head_norms: Option<HeadNorms<V>>,
    /// Attention sinks of the layer, `[H]`: one learned score per query head that takes part in the
    /// softmax and has no value, so that a head can attend to nothing; none in most architectures.
    /// Source: Xiao et al. 2023; OpenAI 2025 (gpt-oss).
    pub sinks: Option<V>,
    /// Scales of keys and values in an FP8 (e4m3) KV cache, `[2, KV]`: those of the key heads, then
    /// those of the value heads. Each head is divided by its scale before it is stored. None means
    /// scales of 1. KV caches of other types store keys and values undivided.
    pub scales: Option<V>,
}

impl<V> AttentionLayer<V> {
    /// Returns the parameters of a layer with full causal attention and the model's first rotary
    /// embedding, without head norms, attention sinks and key/value scales.
    pub fn new(shape: AttentionShape, kv_layer: usize) -> Self {
        let (head_norms, sinks, scales) = (None, None, None);
        Self { shape, kv_layer, rotation: 0, window: None, head_norms, sinks, scales }
    }

    /// Returns the number of positions at the start of the sequence that the sliding window masks
    /// for the query at `position`; 0 without a window.
    pub fn masked(&self, position: usize) -> usize {
        self.window.map_or(0, |window| (position + 1).saturating_sub(window))
    }
}

/// RMS norms over each query head and each key head of an attention layer, applied before the
/// rotary embedding.
#[derive(Debug)]
pub struct HeadNorms<V> {
    /// Weights of the RMS norm over query heads, `[D]`.
    pub query: V,
    /// Weights of the RMS norm over key heads, `[D]`.
    pub key: V,
    /// Epsilon of the RMS norms of query and key heads, added to the mean square.
    pub epsilon: f32,
}

/// Rotary position embedding (RoPE) of one or more layers: the frequencies by which queries and
/// keys are rotated.
#[derive(Debug, Clone, PartialEq)]
pub struct Rotation {
    /// Angle in radians per position of each rotated pair of dimensions, `[rotated dimensions /
    /// 2]`.
    pub inverse_frequencies: Vec<f32>,
    /// Factor of every cosine and sine of the rotary embedding: 1 except for YaRN, which scales
    /// attention by it.
    pub factor: f32,
}

/// Feature of a model that only some architectures need, and that a device may lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feature {
    /// GeGLU activation, the operation [`Device::gelu_mul`](crate::Device::gelu_mul).
    Gelu,
    /// Multiplication of token embeddings by a factor, the operation
    /// [`Device::scale`](crate::Device::scale).
    EmbeddingScale,
    /// More than one rotary embedding in a model, of which [`AttentionLayer::rotation`] selects one
    /// for each layer.
    LayerRotations,
    /// Embedding of a sequence, which the host reads in place of logits (pooling).
    Pooling,
}

impl Feature {
    /// All model features that a device may lack.
    pub const ALL: [Self; 4] =
        [Self::Gelu, Self::EmbeddingScale, Self::LayerRotations, Self::Pooling];

    /// Returns the name of the model feature in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gelu => "GELU activation",
            Self::EmbeddingScale => "scale of embeddings",
            Self::LayerRotations => "rotary embedding for each kind of layer",
            Self::Pooling => "pooling of embeddings",
        }
    }
}

/// MoE gating function: how router logits become top-k experts and their weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// MoE gate that computes the softmax over all experts and then selects the top k, as in
    /// Qwen3-MoE.
    SoftmaxTop {
        /// True if the weights of the top-k experts are divided by their sum.
        normalized: bool,
    },
    /// MoE gate that selects the k experts with the largest logits and then computes the softmax
    /// over those k, as in gpt-oss.
    TopSoftmax,
}

/// Data type of keys and values in the KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvType {
    /// Keys and values in f32, IEEE 754 single precision: 4 bytes per element.
    F32,
    /// Keys and values in f16, IEEE 754 half precision: 2 bytes per element.
    F16,
    /// Keys and values in bfloat16, the upper half of an f32: 2 bytes per element.
    Bf16,
    /// Keys and values in FP8 e4m3 (sign, four bits of exponent, three of mantissa): 1 byte per
    /// element.
    Fp8,
}

impl KvType {
    /// Returns the name of the KV cache's data type in flags, messages and records, such as `fp8`.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Fp8 => "fp8",
        }
    }

    /// Returns the number of bytes of one cached key or value element.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Fp8 => 1,
        }
    }
}

/// Shape and data type of a paged KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvShape {
    /// Number of the model's layers with keys and values in the KV cache: its attention layers.
    pub layers: usize,
    /// Number of key heads, and also of value heads, that the KV cache holds for each layer; with
    /// tensor parallelism, those of one rank.
    pub kv_heads: usize,
    /// D: number of elements of a key or value head in the KV cache.
    pub head_dim: usize,
    /// Number of KV pages ("blocks" in vLLM's words) in the cache. Each holds the keys and values
    /// of `page_tokens` positions in all layers.
    pub pages: usize,
    /// Number of token positions in a KV page.
    pub page_tokens: usize,
    /// Data type of the keys and values in the KV cache.
    pub kv_type: KvType,
}

/// Numbers and sizes of the heads of a gated DeltaNet layer (linear attention with recurrent
/// state), or of one rank's part of it. A row of its projection holds the queries and keys of all
/// key heads and the values of all value heads, which pass the causal convolution; then one gate
/// per value element; then, for each value head, the number whose sigmoid is beta; then, for each
/// value head, the number from which the decay is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeltaNetShape {
    /// Number of query heads of a gated DeltaNet layer, and of its key heads.
    pub key_heads: usize,
    /// Number of value heads of a gated DeltaNet layer, a multiple of `key_heads`: each key head
    /// serves `value_heads / key_heads` consecutive value heads.
    pub value_heads: usize,
    /// Number of elements of a query head and of a key head of a gated DeltaNet layer.
    pub key_dim: usize,
    /// Number of elements of a value head of a gated DeltaNet layer.
    pub value_dim: usize,
    /// Width in tokens of the causal convolution of a gated DeltaNet layer, the current token
    /// included.
    pub taps: usize,
}

impl DeltaNetShape {
    /// Returns the number of value heads of a gated DeltaNet layer that share a key head.
    pub fn group(&self) -> usize {
        self.value_heads / self.key_heads
    }

    /// Returns the number of columns of a gated DeltaNet layer's projection that pass the causal
    /// convolution: queries, keys and values.
    pub fn conv_cols(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
    }

    /// Returns the number of columns of a gated DeltaNet layer's input projection.
    pub fn cols(&self) -> usize {
        self.conv_cols() + self.value_heads * (self.value_dim + 2)
    }

    /// Returns the number of f32 elements of one sequence's recurrent state in one layer: the last
    /// `taps - 1` inputs of the convolution, then a matrix `[key_dim, value_dim]` per value head.
    pub fn state_elements(&self) -> usize {
        (self.taps - 1) * self.conv_cols() + self.value_heads * self.key_dim * self.value_dim
    }
}

/// Parameters of one gated DeltaNet layer, without its input and output projections; `V` is the
/// device's vector type.
#[derive(Debug)]
pub struct DeltaNetLayer<V> {
    /// Numbers and sizes of the heads of this rank's part of the gated DeltaNet layer.
    pub shape: DeltaNetShape,
    /// Index of the gated DeltaNet layer among the model's layers with recurrent state.
    pub index: usize,
    /// Weights of the layer's causal convolution, `[taps, conv_cols]`, those of the oldest token
    /// first.
    pub conv: V,
    /// Decay rate of each value head, `[value heads]`, a negative number: the logarithm of the
    /// decay is `rate * softplus(x + bias)`, where x is the head's projected number for the decay.
    pub rate: V,
    /// Bias of each value head, `[value heads]`, that is added to the projected number from which
    /// the head's decay is computed.
    pub bias: V,
    /// Weights of the gated RMS norm over each value head of the layer's output, `[value_dim]`.
    pub norm: V,
    /// Epsilon of the gated RMS norm, added to the mean square.
    pub epsilon: f32,
}

/// Shape of the device memory for recurrent state: number of state slots, of layers, and the heads
/// of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateShape {
    /// Number of the model's layers with recurrent state.
    pub layers: usize,
    /// Number of state slots in device memory. A slot holds the recurrent state of one running
    /// sequence or one prefix-cache snapshot, over all layers.
    pub slots: usize,
    /// Numbers and sizes of the heads of each layer with recurrent state.
    pub net: DeltaNetShape,
}

impl StateShape {
    /// Returns the number of bytes of one state slot, the recurrent state of one sequence over all
    /// layers.
    pub fn slot_bytes(&self) -> usize {
        self.layers * self.net.state_elements() * size_of::<f32>()
    }
}

impl KvShape {
    /// Returns the number of bytes that the KV cache needs for one token: its keys and values over
    /// all layers.
    pub fn token_bytes(&self) -> usize {
        2 * self.layers * self.kv_heads * self.head_dim * self.kv_type.bytes()
    }
}

/// Weight matrices `[N, K]` of the experts of a MoE layer that one rank holds, and the experts'
/// biases `[N]`: one bias per expert, or an empty list.
pub type Stack<M, V> = (Vec<M>, Vec<V>);

/// Numbers of rows of the operations of one step, padding rows of the device included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepRows {
    /// Number of rows of each operation of a step before the LM head: one per input token, and
    /// padding rows if the device adds them.
    pub all: usize,
    /// Number of rows of a step that pass the LM head: those that a token is sampled from or whose
    /// logits the host reads, and padding rows if the device adds them.
    pub head: usize,
}
