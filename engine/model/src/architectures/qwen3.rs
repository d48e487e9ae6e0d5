//! Qwen3 (dense): Llama with RMS norms on query and key heads.

use super::{Architecture, llama, qwen2};
use crate::LoadError;
use crate::config::Settings;
use crate::spec::DecoderSpec;
use engine_weights::Checkpoint;

/// Entry of dense Qwen3 in the table of architectures.
pub const ARCHITECTURE: Architecture = Architecture {
    hugging_face: "Qwen3ForCausalLM",
    gguf: Some("qwen3"),
    models: "Qwen3 dense, as Qwen3-8B and Qwen3-32B",
    describe,
};

/// Builds the `DecoderSpec` of a dense Qwen3 checkpoint: sizes, tensor names and features of its
/// decoder.
fn describe(checkpoint: &Checkpoint, settings: Settings<'_>) -> Result<DecoderSpec, LoadError> {
    let mut spec = llama::dense(checkpoint, settings)?;
    let windows = qwen2::windows(settings, spec.layers.len())?;
    llama::set_attention_biases(&mut spec, checkpoint, settings)?;
    for (layer, attention) in spec.attentions_mut() {
        attention.head_norms = true;
        attention.window = windows[layer];
    }
    Ok(spec)
}
