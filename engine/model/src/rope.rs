//! Frequencies of rotary embeddings (RoPE), with the scalings of Llama-style checkpoints: linear,
//! Llama 3, YaRN.

use std::fmt;

use half::bf16;
use serde_json::Value;

use super::config::Settings;
use crate::LoadError;
use engine_core::Rotation;
use engine_weights::gguf::Metadata;
use engine_weights::{Checkpoint, CheckpointError, ConfigSource};

/// Precision to which inverse rotary frequencies are rounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RopePrecision {
    /// Rotary frequencies in f32, as checkpoints are trained and served with.
    #[default]
    F32,
    /// Rotary frequencies rounded to bf16, as in transformers after `model.to(torch.bfloat16)` has
    /// converted a whole model, buffers included. Reference outputs made that way can be reproduced
    /// only that way.
    Bf16,
}

/// Rounding of rotary frequencies, which `--dtype` decides: `AsConverted` for `f32`, else `Exact`
/// (docs/decisions/0006-rope-frequencies.md).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RopeChoice {
    /// Rotary frequencies in f32 for every checkpoint, as checkpoints are trained and served with.
    #[default]
    Exact,
    /// Rotary frequencies rounded to bf16 where config.json states that the checkpoint is in bf16,
    /// as converting a whole model rounds them. Reference outputs are made this way.
    AsConverted,
}

impl RopeChoice {
    /// Returns the precision of the rotary frequencies for a checkpoint with the configuration
    /// `config`.
    pub(super) fn precision(self, config: &ConfigSource) -> RopePrecision {
        let (Self::AsConverted, ConfigSource::Json { json, .. }) = (self, config) else {
            return RopePrecision::F32;
        };
        let named = ["torch_dtype", "dtype"];
        let configs = [json, &json["text_config"]];
        let is_bf16 = configs.iter().any(|c| named.iter().any(|name| c[*name] == "bfloat16"));
        if is_bf16 { RopePrecision::Bf16 } else { RopePrecision::F32 }
    }
}

/// Configuration of a rotary embedding (RoPE): rotated dimensions, base and scaling of the
/// frequencies.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeConfig {
    /// Number of dimensions of a query or key head that are rotated.
    pub dimensions: usize,
    pub theta: f32,
    pub scaling: RopeScaling,
}

/// Scaling of rotary frequencies for contexts longer than those of the original training. `None`
/// means that there is no scaling.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    None,
    /// Linear scaling: all rotary frequencies are divided by `factor`.
    Linear {
        factor: f32,
    },
    /// Llama 3.1 scaling of rotary frequencies: those that rotate less than `low` times within
    /// `original_len` positions are divided by `factor`, those that rotate more than `high` times
    /// are kept, with a ramp between.
    Llama3 {
        factor: f32,
        low: f32,
        high: f32,
        original_len: f32,
    },
    /// YaRN scaling of rotary frequencies (Peng et al. 2023): pairs that rotate more than
    /// `beta_fast` times within `original_len` positions are kept, those that rotate less than
    /// `beta_slow` times are divided by `factor`, with a ramp between.
    Yarn {
        factor: f32,
        beta_fast: f32,
        beta_slow: f32,
        original_len: f32,
        /// True if YaRN's ramp begins and ends at whole pairs of dimensions.
        truncate: bool,
        /// Factor of cosines and sines with YaRN; `None` if config.json states none, and then it is
        /// `0.1 * ln(factor) + 1`.
        attention_factor: Option<f32>,
    },
    /// Divisors of the rotary frequencies, one per pair of dimensions, as GGUF files store them in
    /// `rope_freqs.weight`.
    Divisors(Vec<f32>),
}

impl RopeConfig {
    /// Returns the rotary embedding in the form that the device reads.
    pub fn rotation(&self, precision: RopePrecision) -> Rotation {
        Rotation {
            inverse_frequencies: self.inverse_frequencies(precision),
            factor: match self.scaling {
                RopeScaling::Yarn { factor, attention_factor, .. } => {
                    // The temperature that the YaRN paper recommends.
                    attention_factor.unwrap_or_else(|| 0.1 * factor.max(1.0).ln() + 1.0)
                }
                _ => 1.0,
            },
        }
    }

    /// Returns the scaled rotary frequencies: the angle per position of each pair of dimensions, in
    /// radians.
    pub fn inverse_frequencies(&self, precision: RopePrecision) -> Vec<f32> {
        let exact = self.exact_frequencies();
        match precision {
            RopePrecision::F32 => exact,
            RopePrecision::Bf16 => exact.iter().map(|f| bf16::from_f32(*f).to_f32()).collect(),
        }
    }

    /// Returns the scaled rotary frequencies in f32, before they are rounded to another precision.
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
            RopeScaling::Yarn { factor, .. } => {
                let ramp = self.yarn_ramp();
                plain
                    .zip(ramp)
                    .map(|(f, divided)| f / factor * divided + f * (1.0 - divided))
                    .collect()
            }
            RopeScaling::Llama3 { factor, low, high, original_len } => plain
                .map(|f| {
                    // Number of rotations within the original context: frequencies with fewer than
                    // `low` are divided, those with more than `high` are kept.
                    let rotations = original_len * f / (2.0 * std::f32::consts::PI);
                    if rotations < *low {
                        f / factor
                    } else if rotations > *high {
                        f
                    } else {
                        let smooth = (rotations - low) / (high - low);
                        (1.0 - smooth) * f / factor + smooth * f
                    }
                })
                .collect(),
        }
    }

    /// Returns for each pair of dimensions how far YaRN scales its frequency, from 0 (kept) to 1
    /// (divided).
    fn yarn_ramp(&self) -> Vec<f32> {
        let RopeScaling::Yarn { beta_fast, beta_slow, original_len, truncate, .. } = self.scaling
        else {
            return Vec::new();
        };
        let (dimensions, theta) = (self.dimensions as f32, self.theta);
        // Returns the fractional index of the pair that rotates `rotations` times within the original
        // length.
        let pair = |rotations: f32| {
            let wavelength = original_len / (rotations * 2.0 * std::f32::consts::PI);
            dimensions * wavelength.ln() / (2.0 * theta.ln())
        };
        let (mut low, mut high) = (pair(beta_fast), pair(beta_slow));
        if truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        (low, high) = (low.max(0.0), high.min(dimensions - 1.0));
        // Avoids a division by zero in the way transformers does.
        let width = if low == high { 0.001 } else { high - low };
        (0..self.dimensions / 2).map(|i| ((i as f32 - low) / width).clamp(0.0, 1.0)).collect()
    }

    /// Reads the configuration of the rotary embedding of heads of size `head_dim` from `settings`,
    /// which may be a nested part of those of `checkpoint`.
    ///
    /// # Errors
    /// Fails if the scaling is not supported, if a setting is missing or invalid, or if the tensor
    /// `rope_freqs.weight` of a GGUF file has a wrong shape or type.
    pub fn read(
        checkpoint: &Checkpoint,
        settings: Settings<'_>,
        head_dim: usize,
    ) -> Result<Self, LoadError> {
        match settings {
            Settings::Json { .. } => {
                // Newer configurations keep all settings under `rope_parameters`.
                let parameters = settings.json("rope_parameters");
                let is_new = parameters.is_some_and(Value::is_object);
                let key = if is_new { "rope_parameters" } else { "rope_scaling" };
                Self::read_json(settings, key, ("rope_theta", THETA), head_dim)
            }
            Settings::Gguf { metadata, architecture } => {
                let key = "rope.dimension_count";
                let dimensions = settings.optional_size("", key)?.unwrap_or(head_dim);
                if dimensions > head_dim || !dimensions.is_multiple_of(2) {
                    let reason = format!("{dimensions} does not fit heads of {head_dim}");
                    return Err(settings.wrong("", key, reason));
                }
                let theta = settings.optional_number("", "rope.freq_base")?.unwrap_or(THETA);
                let scaling = if checkpoint.lists("rope_freqs.weight") {
                    // llama.cpp's converter expresses the Llama 3 scaling by these divisors.
                    let divisors = checkpoint.values("rope_freqs.weight", &[dimensions / 2])?;
                    RopeScaling::Divisors(divisors)
                } else {
                    gguf_scaling(metadata, architecture)?
                };
                let theta = settings.positive("", "rope.freq_base", theta)?;
                Self { dimensions, theta, scaling }.checked(settings, "", "rope.scaling")
            }
        }
    }

    /// Reads the rotary embedding that the object `key` of config.json configures; a dot in `key`
    /// leads to a nested object. The base of the frequencies and the share of rotated dimensions,
    /// if the object does not state them, are read from the settings around it (the base under
    /// `theta_key`), or have defaults: `theta`, and all dimensions.
    ///
    /// # Errors
    /// Fails if the scaling is not supported or a setting is missing or invalid.
    pub fn read_json(
        settings: Settings<'_>,
        key: &str,
        (theta_key, theta): (&str, f64),
        head_dim: usize,
    ) -> Result<Self, LoadError> {
        let (outer, inner) = key.split_once('.').map_or((key, None), |(a, b)| (a, Some(b)));
        let values = settings.json(outer).and_then(|values| match inner {
            Some(inner) => values.get(inner),
            None => Some(values),
        });
        let scaling = Scaling { settings, key, values };
        let number = |name: &str, outer: &str, default: f64| -> Result<f64, LoadError> {
            match scaling.optional(name)? {
                Some(value) => Ok(value),
                None => Ok(settings.optional_number(outer, "")?.unwrap_or(default)),
            }
        };
        let theta = number("rope_theta", theta_key, theta)?;
        let theta = settings.positive(theta_key, "", theta)?;
        let share = number("partial_rotary_factor", "partial_rotary_factor", 1.0)?;
        let dimensions = (head_dim as f64 * share) as usize;
        if dimensions == 0 || dimensions > head_dim || !dimensions.is_multiple_of(2) {
            let reason = format!("{share} of {head_dim} is not an even number of dimensions");
            return Err(settings.wrong("partial_rotary_factor", "", reason));
        }
        Self { dimensions, theta, scaling: scaling.read()? }.checked(settings, key, "")
    }

    /// Checks that the settings give finite frequencies; the error names the keys of the scaling.
    fn checked(
        self,
        settings: Settings<'_>,
        json_key: &str,
        gguf_key: &str,
    ) -> Result<Self, LoadError> {
        if self.exact_frequencies().iter().all(|frequency| frequency.is_finite()) {
            return Ok(self);
        }
        Err(settings.wrong(json_key, gguf_key, "the rotary frequencies would not be finite"))
    }
}

/// Base of the rotary frequencies where a checkpoint does not state it.
const THETA: f64 = 10_000.0;

/// Object of config.json that configures the scaling of rotary frequencies, with methods that read
/// its settings.
#[derive(Clone, Copy)]
struct Scaling<'a> {
    settings: Settings<'a>,
    key: &'a str,
    values: Option<&'a Value>,
}

impl Scaling<'_> {
    fn wrong(self, name: &str, reason: impl fmt::Display) -> LoadError {
        self.settings.wrong(&format!("{}.{name}", self.key), "", reason)
    }

    fn optional(self, name: &str) -> Result<Option<f64>, LoadError> {
        match self.values.and_then(|values| values.get(name)).filter(|value| !value.is_null()) {
            None => Ok(None),
            Some(value) => {
                value.as_f64().map(Some).ok_or_else(|| self.wrong(name, "it is not a number"))
            }
        }
    }

    fn number(self, name: &str) -> Result<f32, LoadError> {
        let value = self.optional(name)?.ok_or_else(|| self.wrong(name, "it is not a number"))?;
        Ok(value as f32)
    }

    fn read(self) -> Result<RopeScaling, LoadError> {
        let get = |name: &str| self.values.and_then(|values| values.get(name));
        let kind = get("rope_type").or_else(|| get("type"));
        Ok(match kind.and_then(Value::as_str) {
            None | Some("default") => RopeScaling::None,
            Some("linear") => RopeScaling::Linear { factor: self.number("factor")? },
            Some("llama3") => RopeScaling::Llama3 {
                factor: self.number("factor")?,
                low: self.number("low_freq_factor")?,
                high: self.number("high_freq_factor")?,
                original_len: self.number("original_max_position_embeddings")?,
            },
            Some("yarn") => self.yarn()?,
            Some(other) => {
                let known = "default, linear, llama3, yarn";
                let reason = format!("`{other}` is not supported; hint: {known}");
                return Err(self.wrong("rope_type", reason));
            }
        })
    }

    /// Reads the parameters of YaRN from the scaling object of config.json.
    fn yarn(self) -> Result<RopeScaling, LoadError> {
        // Keys of DeepSeek's variant of YaRN, which would change the attention factor.
        for name in ["mscale", "mscale_all_dim"] {
            if self.optional(name)?.is_some_and(|value| value != 0.0) {
                return Err(self.wrong(name, "it is not supported"));
            }
        }
        let truncate = match self.values.and_then(|values| values.get("truncate")) {
            None | Some(Value::Null) => true,
            Some(Value::Bool(truncate)) => *truncate,
            Some(other) => {
                let reason = format!("{other} is neither true nor false");
                return Err(self.wrong("truncate", reason));
            }
        };
        Ok(RopeScaling::Yarn {
            factor: self.number("factor")?,
            beta_fast: self.optional("beta_fast")?.unwrap_or(32.0) as f32,
            beta_slow: self.optional("beta_slow")?.unwrap_or(1.0) as f32,
            original_len: self.number("original_max_position_embeddings")?,
            truncate,
            attention_factor: self.optional("attention_factor")?.map(|factor| factor as f32),
        })
    }
}

/// Reads the scaling of the rotary frequencies from GGUF metadata.
fn gguf_scaling(metadata: &Metadata, architecture: &str) -> Result<RopeScaling, LoadError> {
    let own = |name: &str| format!("{architecture}.rope.scaling.{name}");
    let key = own("type");
    if metadata.get(&key).is_none() {
        return Ok(RopeScaling::None);
    }
    match metadata.text(&key)? {
        "none" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear { factor: metadata.float(&own("factor"))? as f32 }),
        "yarn" => Ok(RopeScaling::Yarn {
            factor: metadata.float(&own("factor"))? as f32,
            beta_fast: metadata.optional_float(&own("yarn_beta_fast"))?.unwrap_or(32.0) as f32,
            beta_slow: metadata.optional_float(&own("yarn_beta_slow"))?.unwrap_or(1.0) as f32,
            original_len: metadata.integer(&own("original_context_length"))? as f32,
            truncate: true,
            attention_factor: None,
        }),
        other => {
            let reason = format!("`{other}` is not supported; hint: none, linear, yarn");
            Err(CheckpointError::config(&metadata.path, key, reason).into())
        }
    }
}
