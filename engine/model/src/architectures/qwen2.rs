//! Qwen2 and Qwen2.5: Llama with biases on queries, keys and values.

use super::{Architecture, llama};
use crate::LoadError;
use crate::config::Settings;
use crate::spec::DecoderSpec;
use engine_weights::Checkpoint;

/// Entry of Qwen2 and Qwen2.5 in the table of architectures.
pub const ARCHITECTURE: Architecture = Architecture {
    hugging_face: "Qwen2ForCausalLM",
    gguf: Some("qwen2"),
    models: "Qwen2, Qwen2.5",
    describe,
};

/// Builds the `DecoderSpec` of a Qwen2 or Qwen2.5 checkpoint: sizes, tensor names and features of
/// its decoder.
fn describe(checkpoint: &Checkpoint, settings: Settings<'_>) -> Result<DecoderSpec, LoadError> {
    let mut spec = llama::dense(checkpoint, settings)?;
    let windows = windows(settings, spec.layers.len())?;
    for (layer, attention) in spec.attentions_mut() {
        attention.qkv_bias = true;
        attention.window = windows[layer];
    }
    Ok(spec)
}

/// Returns for each layer of Qwen2 or Qwen3 the size of its sliding window in positions, none for
/// full attention. If config.json enables windows, the layers for which `layer_types` states one
/// have it or, without that key, those from index `max_window_layers` (by default 28) on. If it
/// does not enable them, and for GGUF files, all layers have full attention.
///
/// # Errors
/// Fails if `sliding_window`, `use_sliding_window`, `max_window_layers` or `layer_types` has an
/// invalid value.
pub fn windows(settings: Settings<'_>, layers: usize) -> Result<Vec<Option<usize>>, LoadError> {
    let size = settings.optional_size("sliding_window", "")?;
    if settings.is_gguf() || size.is_none() || !settings.flag("use_sliding_window", false)? {
        return Ok(vec![None; layers]);
    }
    let window = settings.size("sliding_window", "")?;
    // transformers' default where the key is missing.
    let first = settings.optional_size("max_window_layers", "")?.unwrap_or(28);
    settings.windows(window, layers, |layer| layer >= first)
}
