//! Hyper-parameters, read from config.json or from GGUF metadata.

use std::path::Path;

use serde_json::Value;

use crate::weights::gguf::Metadata;
use crate::weights::{ConfigSource, LoadError};

/// Shape of a decoder-only transformer with gated feed-forward layers.
#[derive(Debug, Clone, PartialEq)]
pub struct DecoderConfig {
    /// Architecture as the checkpoint names it.
    pub architecture: String,
    pub layers: usize,
    pub hidden: usize,
    /// Width of the feed-forward layer.
    pub intermediate: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub vocab_size: usize,
    pub norm_epsilon: f32,
    pub max_seq_len: usize,
    /// Whether the head is the embedding table.
    pub tied: bool,
}

/// Sizes beyond this are damage, not models: products of two stay within 64 bits.
const SIZE_MAX: usize = 1 << 24;

/// The architecture that a checkpoint claims.
///
/// # Errors
/// It claims none.
pub fn architecture(config: &ConfigSource) -> Result<&str, LoadError> {
    match config {
        ConfigSource::Gguf(metadata) => metadata.text("general.architecture"),
        ConfigSource::Json { path, json } => json
            .get("architectures")
            .and_then(|list| list.get(0))
            .and_then(Value::as_str)
            .ok_or_else(|| LoadError::config(path, "architectures", "it names none")),
    }
}

impl DecoderConfig {
    /// Reads `config.json`, or metadata whose keys begin with the architecture's name.
    ///
    /// # Errors
    /// A size is missing, zero or absurd, or the heads do not fit one another.
    pub fn read(config: &ConfigSource) -> Result<Self, LoadError> {
        let read = match config {
            ConfigSource::Json { path, json } => Self::from_json(path, json)?,
            ConfigSource::Gguf(metadata) => Self::from_gguf(metadata)?,
        };
        read.check(config.path())?;
        Ok(read)
    }

    fn from_json(path: &Path, json: &Value) -> Result<Self, LoadError> {
        let optional = |key: &str| match json.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => {
                let size = value.as_u64().and_then(|n| usize::try_from(n).ok());
                size.map(Some).ok_or_else(|| {
                    LoadError::config(path, key, format!("{value} is not a whole number"))
                })
            }
        };
        let size = |key: &str| {
            optional(key)?.ok_or_else(|| LoadError::config(path, key, "the key is missing"))
        };
        let (hidden, heads) = (size("hidden_size")?, size("num_attention_heads")?);
        let epsilon = json.get("rms_norm_eps").and_then(Value::as_f64).unwrap_or(1e-6);
        Ok(Self {
            architecture: architecture(&ConfigSource::Json {
                path: path.to_owned(),
                json: json.clone(),
            })?
            .to_owned(),
            layers: size("num_hidden_layers")?,
            hidden,
            intermediate: size("intermediate_size")?,
            heads,
            kv_heads: optional("num_key_value_heads")?.unwrap_or(heads),
            head_dim: optional("head_dim")?.unwrap_or(hidden.checked_div(heads).unwrap_or(0)),
            vocab_size: size("vocab_size")?,
            norm_epsilon: epsilon as f32,
            max_seq_len: optional("max_position_embeddings")?.unwrap_or(2048),
            tied: json.get("tie_word_embeddings").and_then(Value::as_bool).unwrap_or(false),
        })
    }

    fn from_gguf(metadata: &Metadata) -> Result<Self, LoadError> {
        let arch = metadata.text("general.architecture")?;
        let key = |name: &str| format!("{arch}.{name}");
        let size = |name: &str| metadata.integer(&key(name));
        let optional = |name: &str| metadata.optional_integer(&key(name));
        let (hidden, heads) = (size("embedding_length")?, size("attention.head_count")?);
        let head_dim = match optional("attention.key_length")? {
            Some(length) => length,
            None => hidden.checked_div(heads).unwrap_or(0),
        };
        let vocab_size = match optional("vocab_size")? {
            Some(size) => size,
            None => metadata.texts("tokenizer.ggml.tokens")?.len(),
        };
        Ok(Self {
            architecture: arch.to_owned(),
            layers: size("block_count")?,
            hidden,
            intermediate: size("feed_forward_length")?,
            heads,
            kv_heads: optional("attention.head_count_kv")?.unwrap_or(heads),
            head_dim,
            vocab_size,
            norm_epsilon: metadata.float(&key("attention.layer_norm_rms_epsilon"))? as f32,
            max_seq_len: size("context_length")?,
            tied: false,
        })
    }

    fn check(&self, path: &Path) -> Result<(), LoadError> {
        let sizes = [
            ("layers", self.layers),
            ("hidden size", self.hidden),
            ("feed-forward size", self.intermediate),
            ("heads", self.heads),
            ("KV heads", self.kv_heads),
            ("head size", self.head_dim),
            ("vocabulary", self.vocab_size),
            ("context length", self.max_seq_len),
        ];
        for (name, size) in sizes {
            if !(1..=SIZE_MAX).contains(&size) {
                return Err(LoadError::config(path, name, format!("{size} is out of range")));
            }
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            let reason = format!("{} heads cannot share {}", self.heads, self.kv_heads);
            return Err(LoadError::config(path, "KV heads", reason));
        }
        if !self.head_dim.is_multiple_of(16) || self.head_dim > 512 {
            let reason = format!("{} is not a multiple of 16 up to 512", self.head_dim);
            return Err(LoadError::config(path, "head size", reason));
        }
        Ok(())
    }
}
