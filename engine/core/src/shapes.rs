//! What a model computes on: a small vocabulary of fused operations over device memory.
//!
//! A device knows no architecture, no file and no request. Shape letters: T tokens of a step,
//! H heads, D head size, N output columns, K contraction. Here is what a device is told, as plain
//! data; [`Device`](crate::Device) is what it does.

use crate::WeightType;

/// A stored matrix `[N, K]` on its way to the device.
#[derive(Debug)]
pub struct HostMatrix<'a> {
    /// What the bytes mean.
    pub weight_type: WeightType,
    /// Output columns.
    pub n: usize,
    /// Elements of a row, whole blocks.
    pub k: usize,
    /// `n` rows of whole blocks.
    pub bytes: &'a [u8],
    /// Which stored row is which output column.
    pub order: RowOrder,
}

impl HostMatrix<'_> {
    /// The stored row of output column `n`.
    pub fn row(&self, n: usize) -> &[u8] {
        let row_bytes = self.weight_type.row_bytes(self.k);
        &self.bytes[self.order.stored_row(n) * row_bytes..][..row_bytes]
    }
}

/// Rows of a stored matrix in bf16 whose numbers nobody stored: they come from a stream, as
/// `engine_weights::random_tensor` makes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RandomRows {
    /// Where the stream of the tensor begins.
    pub start: u64,
    /// Numbers of a stored row.
    pub stride: usize,
    /// The stored row that `order` counts from.
    pub row: usize,
    /// The column that comes first.
    pub column: usize,
    /// Output columns.
    pub n: usize,
    /// Which stored row is which output column.
    pub order: RowOrder,
}

/// Which stored row becomes which output column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowOrder {
    /// The stored row of the same number.
    AsStored,
    /// Rows of each head alternate between the halves that rotary embeddings pair up, as GGUF files
    /// of the Llama family store queries and keys. The device wants half after half.
    RopePairs {
        /// Rows of a head, an even number.
        head_dim: usize,
    },
    /// Of twice as many stored rows, every other `head_dim` of them: queries and gates that are
    /// stored head by head.
    HeadPairs {
        /// Rows of a head.
        head_dim: usize,
        /// Whether the second of each two.
        second: bool,
    },
    /// Two matrices of `half` rows each take turns; the device wants one after the other.
    Interleaved {
        /// Rows of one of the two.
        half: usize,
    },
}

impl RowOrder {
    /// Stored rows of a matrix of `n` output columns.
    pub fn stored_rows(self, n: usize) -> usize {
        if matches!(self, Self::HeadPairs { .. }) { 2 * n } else { n }
    }

    /// The stored row of output column `n`.
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

/// Heads of an attention layer. `qkv` buffers hold H query heads, then the key heads, then the
/// value heads, D elements each.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionShape {
    /// H query heads, a multiple of `kv_heads`.
    pub heads: usize,
    /// KV key heads, and as many value heads.
    pub kv_heads: usize,
    /// D elements of a head.
    pub head_dim: usize,
    /// Factor of the scores, `1 / sqrt(D)` for most.
    pub scale: f32,
}

impl AttentionShape {
    /// Columns of a `qkv` buffer.
    pub fn qkv_cols(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }

    /// Query heads that share a key head.
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }
}

/// An attention layer as its two operations see it; `V` holds vectors on the device.
#[derive(Debug)]
pub struct AttentionLayer<V> {
    /// The rank's own heads.
    pub shape: AttentionShape,
    /// Which of the layers that keep keys and values.
    pub kv_layer: usize,
    /// Positions that a query sees, its own included; all before it where there is no window.
    pub window: Option<usize>,
    /// Of architectures that norm queries and keys.
    pub head_norms: Option<HeadNorms<V>>,
    /// `[H]` scores that take part in the softmax and have no value: a head may look at nothing.
    /// Source: Xiao et al. 2023; OpenAI 2025 (gpt-oss).
    pub sinks: Option<V>,
    /// `[2, KV]` what keys, and then values, of each head are divided by before they are kept in e4m3;
    /// 1 where there are none. Pages of other types keep them as they are.
    pub scales: Option<V>,
}

impl<V> AttentionLayer<V> {
    /// Attention over everything before a query, without norms and sinks.
    pub fn new(shape: AttentionShape, kv_layer: usize) -> Self {
        Self { shape, kv_layer, window: None, head_norms: None, sinks: None, scales: None }
    }

    /// Positions that a query at `position` does not see, from the first.
    pub fn hidden(&self, position: usize) -> usize {
        self.window.map_or(0, |window| (position + 1).saturating_sub(window))
    }
}

/// RMS norms over each query head and each key head, before they are turned.
#[derive(Debug)]
pub struct HeadNorms<V> {
    /// `[D]`
    pub query: V,
    /// `[D]`
    pub key: V,
    /// Added to the mean square.
    pub epsilon: f32,
}

/// How positions turn queries and keys.
#[derive(Debug, Clone, PartialEq)]
pub struct Rotation {
    /// `[rotated dimensions / 2]` angles per position.
    pub inverse_frequencies: Vec<f32>,
    /// Factor of every cosine and sine: 1 but for YaRN.
    pub factor: f32,
}

/// How router logits become expert weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// Softmax over all experts, then the largest; divided by their sum where `normalized`.
    SoftmaxTop {
        /// Whether the chosen weights add up to 1.
        normalized: bool,
    },
    /// The largest logits, then softmax over those.
    TopSoftmax,
}

/// Type in which keys and values are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvType {
    /// Four bytes, IEEE 754.
    F32,
    /// Two bytes, IEEE 754.
    F16,
    /// The upper two bytes of an f32.
    Bf16,
    /// e4m3: sign, four bits of exponent, three of mantissa.
    Fp8,
}

impl KvType {
    /// Name in messages and records.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Fp8 => "fp8",
        }
    }

    /// Bytes of an element.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Fp8 => 1,
        }
    }
}

/// Shape of a KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvShape {
    /// Layers that keep keys and values.
    pub layers: usize,
    /// Key heads of a layer, and as many value heads.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Pages, each with the keys and values of all layers.
    pub pages: usize,
    /// Tokens of a page.
    pub page_tokens: usize,
    /// Type of an element.
    pub kv_type: KvType,
}

/// Heads of a gated DeltaNet layer. Rows of its projections hold the queries and keys of all key
/// heads and the values of all value heads, which are convolved; then a gate for each value, and
/// for each value head the inputs of its beta and of its decay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeltaNetShape {
    /// Heads of queries, and as many of keys.
    pub key_heads: usize,
    /// Each key head serves as many of them in a row.
    pub value_heads: usize,
    /// Elements of a head's query, and of its key.
    pub key_dim: usize,
    /// Elements of a head's value.
    pub value_dim: usize,
    /// Tokens that the convolution sees, its own included.
    pub taps: usize,
}

impl DeltaNetShape {
    /// Value heads that share a key head.
    pub fn group(&self) -> usize {
        self.value_heads / self.key_heads
    }

    /// Columns that are convolved: queries, keys and values.
    pub fn conv_cols(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
    }

    /// Columns of all projections.
    pub fn cols(&self) -> usize {
        self.conv_cols() + self.value_heads * (self.value_dim + 2)
    }

    /// Elements of one sequence's recurrent state in one layer.
    pub fn state_elements(&self) -> usize {
        (self.taps - 1) * self.conv_cols() + self.value_heads * self.key_dim * self.value_dim
    }
}

/// One gated DeltaNet layer, without its projections.
#[derive(Debug)]
pub struct DeltaNetLayer<V> {
    /// The rank's own heads.
    pub shape: DeltaNetShape,
    /// Which of the layers with recurrent state it is.
    pub index: usize,
    /// `[taps, conv_cols]`, the oldest token first.
    pub conv: V,
    /// `[value heads]` factor of the decay's logarithm, below zero.
    pub rate: V,
    /// `[value heads]` added to the input of the decay.
    pub bias: V,
    /// `[value_dim]` of the gated norm.
    pub norm: V,
    /// Added to the mean square.
    pub epsilon: f32,
}

/// Shape of the places for recurrent state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateShape {
    /// Layers that have recurrent state.
    pub layers: usize,
    /// Sequences and snapshots that it holds at once.
    pub places: usize,
    /// Shape of each of the layers.
    pub net: DeltaNetShape,
}

impl StateShape {
    /// Bytes of one place over all layers.
    pub fn place_bytes(&self) -> usize {
        self.layers * self.net.state_elements() * size_of::<f32>()
    }
}

impl KvShape {
    /// Bytes of keys and values of one token over all layers.
    pub fn token_bytes(&self) -> usize {
        2 * self.layers * self.kv_heads * self.head_dim * self.kv_type.bytes()
    }
}

/// Matrices `[N, K]` of experts and their biases `[N]`, as many or none.
pub type Stack<M, V> = (Vec<M>, Vec<V>);

/// Rows of a step's operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepRows {
    /// Those of every operation before the head.
    pub all: usize,
    /// Those that pass the head.
    pub head: usize,
}
