//! Phi-3: Llama with fused projections (queries, keys and values; gates and ups) and a sliding
//! window in every layer. Source: transformers, `modeling_phi3.py`. LongRoPE is not supported.

use super::{Architecture, llama};
use crate::LoadError;
use crate::config::Settings;
use crate::rope::RopeScaling;
use crate::spec::{AttentionNames, DecoderSpec, DenseNames, FeedForwardSpec};
use engine_weights::Checkpoint;

/// Entry of Phi-3 in the table of architectures.
pub const ARCHITECTURE: Architecture = Architecture {
    hugging_face: "Phi3ForCausalLM",
    gguf: None,
    models: "Phi-3 and Phi-4 without LongRoPE, as Phi-3-mini-4k and Phi-4",
    describe,
};

/// Tensor names of attention in Hugging Face checkpoints of Phi-3.
const ATTENTION: AttentionNames = AttentionNames {
    query: "model.layers.{layer}.self_attn.qkv_proj",
    key: "model.layers.{layer}.self_attn.qkv_proj",
    value: "model.layers.{layer}.self_attn.qkv_proj",
    ..llama::HUGGING_FACE_ATTENTION
};

/// Tensor names of the feed-forward block in Hugging Face checkpoints of Phi-3.
const DENSE: DenseNames = DenseNames {
    gate: "model.layers.{layer}.mlp.gate_up_proj",
    up: "model.layers.{layer}.mlp.gate_up_proj",
    ..llama::HUGGING_FACE_DENSE
};

/// Builds the `DecoderSpec` of a Phi-3 checkpoint: sizes, tensor names and features of its decoder.
fn describe(checkpoint: &Checkpoint, settings: Settings<'_>) -> Result<DecoderSpec, LoadError> {
    let mut spec = llama::dense(checkpoint, settings)?;
    // Early checkpoints call LongRoPE `yarn`, so no scaling is taken at its word.
    if spec.ropes[0].scaling != RopeScaling::None {
        let key = ["rope_parameters", "rope_scaling"]
            .into_iter()
            .find(|key| settings.json(key).is_some());
        let reason = "scaled rotary embeddings are not supported for Phi-3";
        return Err(settings.wrong(key.unwrap_or("rope_scaling"), "", reason));
    }
    let window = settings.given_size("sliding_window", "")?;
    for (_, attention) in spec.attentions_mut() {
        (attention.names, attention.fused) = (ATTENTION, true);
        attention.window = window;
    }
    for layer in &mut spec.layers {
        if let FeedForwardSpec::Dense(dense) = &mut layer.feed_forward {
            (dense.names, dense.fused) = (DENSE, true);
        }
    }
    Ok(spec)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::tests::invariance::refusal;

    #[test]
    fn scaled_rotary_embeddings_are_refused_by_the_name_of_their_setting() {
        for (key, kind) in [("rope_scaling", "type"), ("rope_parameters", "rope_type")] {
            for name in ["longrope", "su", "yarn"] {
                let scaling =
                    json!({ kind: name, "factor": 4.0, "original_max_position_embeddings": 64 });
                let message = refusal("Phi3ForCausalLM", &json!({ key: scaling }));
                assert!(message.contains(key) && message.contains("not supported"), "{message}");
            }
        }
    }
}
