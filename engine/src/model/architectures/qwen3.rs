//! Qwen3: Llama with norms of query and key heads.

use super::{Architecture, llama, qwen2};
use crate::model::config::Settings;
use crate::model::spec::{DecoderSpec, MixerSpec};
use crate::weights::{Checkpoint, LoadError};

pub const ARCHITECTURE: Architecture =
    Architecture { hugging_face: "Qwen3ForCausalLM", gguf: Some("qwen3"), describe };

/// # Errors
/// A setting is missing or does not fit.
fn describe(checkpoint: &Checkpoint) -> Result<DecoderSpec, LoadError> {
    let mut spec = llama::dense(checkpoint)?;
    let settings = Settings::of(checkpoint.config())?;
    let windows = qwen2::windows(settings, spec.layers.len())?;
    let bias = settings.flag("attention_bias", false)?;
    for (layer, window) in spec.layers.iter_mut().zip(windows) {
        let MixerSpec::Attention(attention) = &mut layer.mixer;
        attention.head_norms = true;
        (attention.qkv_bias, attention.output_bias) = (bias, bias);
        attention.window = window;
    }
    Ok(spec)
}
