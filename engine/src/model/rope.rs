//! Rotary frequencies, with the scalings that checkpoints of the Llama family ask for.

use half::bf16;

use crate::weights::{Checkpoint, ConfigSource, LoadError};

/// Precision of the inverse frequencies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RopePrecision {
    /// What checkpoints are trained and served with.
    #[default]
    F32,
    /// Rounded to bf16, as transformers computes once a whole model, buffers included, was converted
    /// by `model.to(torch.bfloat16)`. Reference outputs made that way can only be met that way.
    Bf16,
}

/// How positions become angles.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeConfig {
    /// Dimensions of a head that turn.
    pub dimensions: usize,
    pub theta: f32,
    pub scaling: RopeScaling,
}

#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    None,
    /// Positions divided by a factor.
    Linear {
        factor: f32,
    },
    /// Llama 3.1: low frequencies divided by `factor`, high ones kept, a ramp between.
    Llama3 {
        factor: f32,
        low: f32,
        high: f32,
        original_len: f32,
    },
    /// One divisor per pair, as GGUF files state it in `rope_freqs.weight`.
    Divisors(Vec<f32>),
}

impl RopeConfig {
    /// Angles per position, one for each pair of dimensions.
    pub fn inverse_frequencies(&self, precision: RopePrecision) -> Vec<f32> {
        let exact = self.exact_frequencies();
        match precision {
            RopePrecision::F32 => exact,
            RopePrecision::Bf16 => exact.iter().map(|f| bf16::from_f32(*f).to_f32()).collect(),
        }
    }

    fn exact_frequencies(&self) -> Vec<f32> {
        let pairs = self.dimensions / 2;
        let plain = (0..pairs).map(|i| {
            let exponent = (2 * i) as f32 / self.dimensions as f32;
            1.0 / self.theta.powf(exponent)
        });
        match &self.scaling {
            RopeScaling::None => plain.collect(),
            RopeScaling::Linear { factor } => plain.map(|f| f / factor).collect(),
            RopeScaling::Divisors(divisors) => plain.zip(divisors).map(|(f, d)| f / d).collect(),
            RopeScaling::Llama3 { factor, low, high, original_len } => plain
                .map(|f| {
                    let turns = original_len * f / (2.0 * std::f32::consts::PI);
                    if turns < *low {
                        f / factor
                    } else if turns > *high {
                        f
                    } else {
                        let smooth = (turns - low) / (high - low);
                        (1.0 - smooth) * f / factor + smooth * f
                    }
                })
                .collect(),
        }
    }

    /// Reads the rotation of a head of `head_dim` from `checkpoint`.
    ///
    /// # Errors
    /// The configuration names a scaling that is not known.
    pub fn read(checkpoint: &Checkpoint, head_dim: usize) -> Result<Self, LoadError> {
        match checkpoint.config() {
            ConfigSource::Json { .. } => Self::from_json(checkpoint.config(), head_dim),
            ConfigSource::Gguf(metadata) => {
                let arch = metadata.text("general.architecture")?;
                let key = format!("{arch}.rope.dimension_count");
                let dimensions = metadata.optional_integer(&key)?.unwrap_or(head_dim);
                if dimensions > head_dim || !dimensions.is_multiple_of(2) {
                    let reason = format!("{dimensions} does not fit heads of {head_dim}");
                    return Err(LoadError::config(metadata.path(), key, reason));
                }
                let theta = metadata.optional_float(&format!("{arch}.rope.freq_base"))?;
                let scaling = if checkpoint.lists("rope_freqs.weight") {
                    let divisors = checkpoint.vector("rope_freqs.weight", dimensions / 2)?;
                    RopeScaling::Divisors(divisors)
                } else {
                    gguf_scaling(metadata, arch)?
                };
                let theta = theta.unwrap_or(10_000.0) as f32;
                Ok(Self { dimensions, theta, scaling })
            }
        }
    }

    fn from_json(config: &ConfigSource, head_dim: usize) -> Result<Self, LoadError> {
        let ConfigSource::Json { path, json } = config else {
            return Err(LoadError::config(
                config.path(),
                "rope_theta",
                "this is not a config.json",
            ));
        };
        // Newer configurations keep everything under `rope_parameters`.
        let parameters = json.get("rope_parameters").filter(|value| value.is_object());
        let scaling = parameters.or_else(|| json.get("rope_scaling")).filter(|v| !v.is_null());
        let theta = parameters
            .and_then(|parameters| parameters.get("rope_theta"))
            .or_else(|| json.get("rope_theta"))
            .and_then(serde_json::Value::as_f64)
            .unwrap_or(10_000.0) as f32;
        let number = |key: &str| {
            let value = scaling.and_then(|scaling| scaling.get(key));
            value.and_then(serde_json::Value::as_f64).map(|x| x as f32).ok_or_else(|| {
                LoadError::config(path, format!("rope_scaling.{key}"), "it is not a number")
            })
        };
        let kind = scaling.and_then(|s| s.get("rope_type").or_else(|| s.get("type")));
        let scaling = match kind.and_then(serde_json::Value::as_str) {
            None | Some("default") => RopeScaling::None,
            Some("linear") => RopeScaling::Linear { factor: number("factor")? },
            Some("llama3") => RopeScaling::Llama3 {
                factor: number("factor")?,
                low: number("low_freq_factor")?,
                high: number("high_freq_factor")?,
                original_len: number("original_max_position_embeddings")?,
            },
            Some(other) => {
                let reason = format!("`{other}` is not supported; hint: default, linear, llama3");
                return Err(LoadError::config(path, "rope_scaling.rope_type", reason));
            }
        };
        Ok(Self { dimensions: head_dim, theta, scaling })
    }
}

fn gguf_scaling(
    metadata: &crate::weights::gguf::Metadata,
    arch: &str,
) -> Result<RopeScaling, LoadError> {
    let key = format!("{arch}.rope.scaling.type");
    if metadata.get(&key).is_none() {
        return Ok(RopeScaling::None);
    }
    match metadata.text(&key)? {
        "none" => Ok(RopeScaling::None),
        "linear" => {
            let factor = metadata.float(&format!("{arch}.rope.scaling.factor"))? as f32;
            Ok(RopeScaling::Linear { factor })
        }
        other => {
            let reason = format!("`{other}` is not supported; hint: none, linear");
            Err(LoadError::config(metadata.path(), key, reason))
        }
    }
}
