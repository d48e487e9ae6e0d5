//! Configuration of a checkpoint, read from config.json or GGUF metadata: the sizes that every
//! decoder has, and the keys that architectures share. The file of each architecture reads its
//! other keys.

use std::fmt;
use std::path::Path;

use serde_json::Value;

use crate::LoadError;
use engine_core::AttentionShape;
use engine_weights::gguf::Metadata;
use engine_weights::{CheckpointError, ConfigSource};

/// Settings of a checkpoint, which are read by their key in config.json or in GGUF metadata.
#[derive(Debug, Clone, Copy)]
pub enum Settings<'a> {
    Json {
        path: &'a Path,
        json: &'a Value,
    },
    /// Settings in the metadata of a GGUF file, whose keys begin with the architecture's name and a
    /// dot.
    Gguf {
        metadata: &'a Metadata,
        architecture: &'a str,
    },
}

/// Sizes that every decoder-only transformer has, as a checkpoint states them.
#[derive(Debug, Clone, PartialEq)]
pub struct DecoderConfig {
    pub layers: usize,
    pub hidden: usize,
    /// Number of intermediate columns of a dense feed-forward block.
    pub intermediate: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub vocab_size: usize,
    pub norm_epsilon: f32,
    pub max_seq_len: usize,
}

/// Activation function of a feed-forward block, which combines gate and up projections.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Activation {
    Silu,
    /// GeGLU activation with the tanh approximation of GELU, see [`engine_core::Device::gelu_mul`].
    GeluTanh,
    /// Clamped SwiGLU activation, see [`engine_core::Device::clamped_swiglu`].
    ClampedSwiglu {
        alpha: f32,
        limit: f32,
    },
}

/// Largest size that is accepted from a checkpoint's configuration; products of two such sizes fit
/// in 64 bits.
const SIZE_MAX: usize = 1 << 24;

/// Returns the name of the architecture that a checkpoint's configuration states.
///
/// # Errors
/// Fails if the configuration does not name an architecture as a text.
pub fn architecture(config: &ConfigSource) -> Result<&str, LoadError> {
    match config {
        ConfigSource::Gguf(metadata) => Ok(metadata.text("general.architecture")?),
        ConfigSource::Json { path, json } => json
            .get("architectures")
            .and_then(|list| list.get(0))
            .and_then(Value::as_str)
            .ok_or_else(|| CheckpointError::config(path, "architectures", "it names none").into()),
    }
}

impl<'a> Settings<'a> {
    /// Returns the settings in the checkpoint's configuration `config`.
    ///
    /// # Errors
    /// Fails if the metadata of a GGUF file does not name an architecture as a text.
    pub fn of(config: &'a ConfigSource) -> Result<Self, LoadError> {
        Ok(match config {
            ConfigSource::Json { path, json } => Self::Json { path, json },
            ConfigSource::Gguf(metadata) => {
                let architecture = metadata.text("general.architecture")?;
                Self::Gguf { metadata, architecture }
            }
        })
    }

    /// Returns true if the settings are those of a GGUF file.
    pub fn is_gguf(self) -> bool {
        matches!(self, Self::Gguf { .. })
    }

    /// Returns the value of `key` in config.json; none if it is missing or null, or the settings
    /// are those of a GGUF file.
    pub fn json(self, key: &str) -> Option<&'a Value> {
        match self {
            Self::Json { json, .. } => json.get(key).filter(|value| !value.is_null()),
            Self::Gguf { .. } => None,
        }
    }

    /// Converts the value of `key` in config.json by `read`; none where [`Settings::json`] is none.
    /// If `read` returns none, the result is an error with the value, the word "is" and then
    /// `unfit`, such as `not a number`.
    fn json_as<T>(
        self,
        key: &str,
        unfit: &str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, LoadError> {
        let wrong = |value: &Value| self.wrong(key, "", format!("{value} is {unfit}"));
        self.json(key).map(|value| read(value).ok_or_else(|| wrong(value))).transpose()
    }

    /// Builds the error that a setting is missing or wrong; it names the key `json_key` for
    /// config.json, and `gguf_key` after the architecture's name for GGUF metadata.
    pub fn wrong(self, json_key: &str, gguf_key: &str, reason: impl fmt::Display) -> LoadError {
        let error = match self {
            Self::Json { path, .. } => CheckpointError::config(path, json_key, reason),
            Self::Gguf { metadata, architecture } => {
                let key = format!("{architecture}.{gguf_key}");
                CheckpointError::config(&metadata.path, key, reason)
            }
        };
        error.into()
    }

    /// Returns the setting `json_key` of config.json, or `gguf_key` of GGUF metadata, as a whole
    /// number; none if the key is missing or null.
    ///
    /// # Errors
    /// Fails if the value is not a whole number, 0 or above.
    pub fn optional_size(self, json_key: &str, gguf_key: &str) -> Result<Option<usize>, LoadError> {
        match self {
            Self::Json { .. } => self.json_as(json_key, "not a whole number", |value| {
                value.as_u64().and_then(|n| usize::try_from(n).ok())
            }),
            Self::Gguf { metadata, architecture } => {
                Ok(metadata.optional_integer(&format!("{architecture}.{gguf_key}"))?)
            }
        }
    }

    /// Returns the setting `json_key` of config.json, or `gguf_key` of GGUF metadata, as a size.
    ///
    /// # Errors
    /// Fails if the key is missing or is not a size from 1 to 2^24.
    pub fn size(self, json_key: &str, gguf_key: &str) -> Result<usize, LoadError> {
        let missing = || self.wrong(json_key, gguf_key, "the key is missing");
        self.given_size(json_key, gguf_key)?.ok_or_else(missing)
    }

    /// Returns the setting `json_key` of config.json, or `gguf_key` of GGUF metadata, as a size;
    /// none if the key is missing or null.
    ///
    /// # Errors
    /// Fails if the key exists and is not a size from 1 to 2^24.
    pub fn given_size(self, json_key: &str, gguf_key: &str) -> Result<Option<usize>, LoadError> {
        let size = self.optional_size(json_key, gguf_key)?;
        match size.filter(|size| !(1..=SIZE_MAX).contains(size)) {
            Some(size) => Err(self.wrong(json_key, gguf_key, format!("{size} is out of range"))),
            None => Ok(size),
        }
    }

    /// Returns the setting `json_key` of config.json, or `gguf_key` of GGUF metadata, as a number;
    /// none if the key is missing or null.
    ///
    /// # Errors
    /// Fails if the value is not a number or, in GGUF metadata, not a float.
    pub fn optional_number(self, json_key: &str, gguf_key: &str) -> Result<Option<f64>, LoadError> {
        match self {
            Self::Json { .. } => self.json_as(json_key, "not a number", Value::as_f64),
            Self::Gguf { metadata, architecture } => {
                Ok(metadata.optional_float(&format!("{architecture}.{gguf_key}"))?)
            }
        }
    }

    /// Returns the number `value` of the setting `json_key` of config.json, or `gguf_key` of GGUF
    /// metadata, in 32 bits.
    ///
    /// # Errors
    /// Fails if the number is not above 0 and finite in 32 bits.
    pub fn positive(self, json_key: &str, gguf_key: &str, value: f64) -> Result<f32, LoadError> {
        let number = value as f32;
        if number > 0.0 && number.is_finite() {
            return Ok(number);
        }
        Err(self.wrong(json_key, gguf_key, format!("{value} is not a number above 0 in 32 bits")))
    }

    /// Returns the value of `key` in config.json as true or false; `default` if the key is missing
    /// or null, and for GGUF files.
    ///
    /// # Errors
    /// Fails if the key exists and is neither true nor false.
    pub fn flag(self, key: &str, default: bool) -> Result<bool, LoadError> {
        let flag = self.json_as(key, "neither true nor false", Value::as_bool)?;
        Ok(flag.unwrap_or(default))
    }

    /// Returns the value of `layer_types` in config.json, one type per layer; none if it is missing
    /// or null, and for GGUF files.
    ///
    /// # Errors
    /// Fails if the value is not a list of `layers` texts.
    pub fn layer_types(self, layers: usize) -> Result<Option<Vec<&'a str>>, LoadError> {
        let Some(value) = self.json("layer_types") else { return Ok(None) };
        let types = value.as_array().map(|list| list.iter().filter_map(Value::as_str).collect());
        match types {
            Some(types) if Vec::len(&types) == layers => Ok(Some(types)),
            _ => Err(self.wrong("layer_types", "", format!("it does not name {layers} layers"))),
        }
    }

    /// Returns the size of each layer's sliding window: `window` where `layer_types` of config.json
    /// states that the layer has one or, without that key, where `slides` returns true for the
    /// layer's index; none for full attention.
    ///
    /// # Errors
    /// Fails as [`Settings::layer_types`] does.
    pub fn windows(
        self,
        window: usize,
        layers: usize,
        slides: impl Fn(usize) -> bool,
    ) -> Result<Vec<Option<usize>>, LoadError> {
        let types = self.layer_types(layers)?;
        let slides = |layer| match &types {
            Some(types) => types[layer] == "sliding_attention",
            None => slides(layer),
        };
        Ok((0..layers).map(|layer| slides(layer).then_some(window)).collect())
    }

    /// Returns the activation function that `hidden_activation` or else `hidden_act` of config.json
    /// names; SiLU if they name none, and for GGUF files.
    ///
    /// # Errors
    /// Fails if config.json names an activation function other than `silu` and `gelu_pytorch_tanh`.
    pub fn activation(self) -> Result<Activation, LoadError> {
        let keys = ["hidden_activation", "hidden_act"];
        let named = keys.iter().find_map(|key| Some((*key, self.json(key)?.as_str()?)));
        match named {
            None | Some((_, "silu")) => Ok(Activation::Silu),
            Some((_, "gelu_pytorch_tanh")) => Ok(Activation::GeluTanh),
            Some((key, other)) => {
                let reason = format!("`{other}` is not supported; hint: silu, gelu_pytorch_tanh");
                Err(self.wrong(key, "", reason))
            }
        }
    }
}

impl DecoderConfig {
    /// Reads the sizes that all decoders have from a checkpoint's settings.
    ///
    /// # Errors
    /// Fails if a size is missing, not a whole number or out of range, if the key heads do not
    /// divide the query heads evenly, if the head size is not an even number from 2 to 512, or if
    /// the epsilon of norms is not a number, 0 or above.
    pub fn read(settings: Settings<'_>) -> Result<Self, LoadError> {
        let hidden = settings.size("hidden_size", "embedding_length")?;
        let heads = settings.size("num_attention_heads", "attention.head_count")?;
        let kv_heads = settings.optional_size("num_key_value_heads", "attention.head_count_kv")?;
        let head_dim = settings.optional_size("head_dim", "attention.key_length")?;
        let keys = ("rms_norm_eps", "attention.layer_norm_rms_epsilon");
        // transformers' default where the key is missing, as is 2048 below.
        let epsilon = settings.optional_number(keys.0, keys.1)?.unwrap_or(1e-6);
        // An epsilon of 0 is possible: only rows of zeros need one.
        if epsilon != 0.0 {
            settings.positive(keys.0, keys.1, epsilon)?;
        }
        let read = Self {
            layers: settings.size("num_hidden_layers", "block_count")?,
            hidden,
            intermediate: settings.size("intermediate_size", "feed_forward_length")?,
            heads,
            kv_heads: kv_heads.unwrap_or(heads),
            // Older Llama configurations omit the head size.
            head_dim: head_dim.unwrap_or(hidden / heads),
            vocab_size: vocab_size(settings)?,
            norm_epsilon: epsilon as f32,
            max_seq_len: settings
                .given_size("max_position_embeddings", "context_length")?
                .unwrap_or(2048),
        };
        read.check(settings)?;
        Ok(read)
    }

    /// Checks that query heads can share the key heads evenly, and that the head size is supported.
    fn check(&self, settings: Settings<'_>) -> Result<(), LoadError> {
        let Self { heads, kv_heads, head_dim, .. } = *self;
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            let reason = format!("{heads} heads cannot share {kv_heads}");
            return Err(settings.wrong("num_key_value_heads", "attention.head_count_kv", reason));
        }
        if head_dim == 0 || !head_dim.is_multiple_of(2) || head_dim > 512 {
            let reason = format!("{head_dim} is not an even size up to 512");
            return Err(settings.wrong("head_dim", "attention.key_length", reason));
        }
        Ok(())
    }

    /// Returns the numbers of heads, the head size and the score scale of the model's attention,
    /// whose scores are divided by the square root of the head size.
    pub fn attention_shape(&self) -> AttentionShape {
        AttentionShape {
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            scale: 1.0 / (self.head_dim as f32).sqrt(),
        }
    }
}

/// Reads the number of token ids of the vocabulary; for GGUF files that do not state it, returns
/// the length of the tokenizer's token list.
fn vocab_size(settings: Settings<'_>) -> Result<usize, LoadError> {
    match settings {
        Settings::Gguf { metadata, .. }
            if settings.optional_size("vocab_size", "vocab_size")?.is_none() =>
        {
            Ok(metadata.texts("tokenizer.ggml.tokens")?.len().max(1))
        }
        _ => settings.size("vocab_size", "vocab_size"),
    }
}
