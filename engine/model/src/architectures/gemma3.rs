//! Gemma 3 text models: GELU, norms before and after each block whose weights are stored minus one,
//! norms of query and key heads, scaled embeddings, and sliding windows with a rotary embedding of
//! their own in five of six layers. Source: transformers, `modeling_gemma3.py`; Gemma Team 2025.

use half::bf16;

use super::{Architecture, llama};
use crate::LoadError;
use crate::config::Settings;
use crate::rope::RopeConfig;
use crate::spec::{Activation, DecoderSpec, FeedForwardSpec, Names};
use engine_weights::Checkpoint;

/// Entry of Gemma 3 in the table of architectures.
pub const ARCHITECTURE: Architecture = Architecture {
    hugging_face: "Gemma3ForCausalLM",
    gguf: None,
    models: "Gemma 3 without images, as Gemma-3-270M and Gemma-3-1B",
    describe,
};

/// Tensor names of embedding, norms and LM head in Hugging Face checkpoints of Gemma 3.
const NAMES: Names = Names {
    feed_forward_norm: "model.layers.{layer}.pre_feedforward_layernorm",
    output_norms: Some([
        "model.layers.{layer}.post_attention_layernorm",
        "model.layers.{layer}.post_feedforward_layernorm",
    ]),
    ..llama::HUGGING_FACE
};

/// Where config.json of Gemma 3 has the rotary embedding of layers with full attention
/// (`FULL_ROPE`) and with sliding windows (`SLIDING_ROPE`): path of the object that configures it;
/// then, for the base of its frequencies, the key in older files and the default.
const FULL_ROPE: (&str, (&str, f64)) = ("rope_parameters.full_attention", ("rope_theta", 1e6));
const SLIDING_ROPE: (&str, (&str, f64)) =
    ("rope_parameters.sliding_attention", ("rope_local_base_freq", 1e4));

/// Interval of layers with full attention in Gemma 3 where a checkpoint does not state it: every
/// sixth layer, the others have a sliding window.
const PATTERN: usize = 6;

/// Builds the `DecoderSpec` of a Gemma 3 checkpoint: sizes, tensor names and features of its
/// decoder.
fn describe(checkpoint: &Checkpoint, settings: Settings<'_>) -> Result<DecoderSpec, LoadError> {
    let mut spec = llama::dense(checkpoint, settings)?;
    refuse_variants(settings)?;
    let (hidden, head_dim) = (spec.config.hidden, spec.config.head_dim);
    spec.names = NAMES;
    spec.norm_offset = 1.0;
    spec.tied = settings.flag("tie_word_embeddings", true)?;
    // transformers multiplies by the scale in the type of the weights, which are published in bf16.
    spec.embedding_scale = bf16::from_f64((hidden as f64).sqrt()).to_f32();
    let (full, full_theta) = match settings.json("rope_parameters") {
        Some(_) => FULL_ROPE,
        None => ("rope_scaling", FULL_ROPE.1),
    };
    let (sliding, sliding_theta) = SLIDING_ROPE;
    spec.ropes = vec![
        RopeConfig::read_json(settings, full, full_theta, head_dim)?,
        RopeConfig::read_json(settings, sliding, sliding_theta, head_dim)?,
    ];
    llama::set_attention_biases(&mut spec, checkpoint, settings)?;
    let every = settings.optional_size("sliding_window_pattern", "")?.unwrap_or(PATTERN).max(1);
    let window = settings.size("sliding_window", "")?;
    let slides = |layer: usize| !(layer + 1).is_multiple_of(every);
    let windows = settings.windows(window, spec.layers.len(), slides)?;
    let scalar = settings.optional_number("query_pre_attn_scalar", "")?.unwrap_or(256.0);
    for (layer, attention) in spec.attentions_mut() {
        attention.head_norms = true;
        attention.shape.scale = 1.0 / (scalar as f32).sqrt();
        attention.window = windows[layer];
        attention.rope = usize::from(windows[layer].is_some());
    }
    let names_activation = settings.json("hidden_activation").is_some();
    for layer in &mut spec.layers {
        if let FeedForwardSpec::Dense(dense) = &mut layer.feed_forward
            && !names_activation
        {
            dense.activation = Activation::GeluTanh;
        }
    }
    Ok(spec)
}

/// Returns an error for settings of the Gemma 3 architecture that are not supported because no
/// published text model has them.
fn refuse_variants(settings: Settings<'_>) -> Result<(), LoadError> {
    for key in ["attn_logit_softcapping", "final_logit_softcapping"] {
        if settings.json(key).is_some() {
            return Err(settings.wrong(key, "", "capped logits are not supported"));
        }
    }
    let key = "use_bidirectional_attention";
    if settings.flag(key, false)? {
        return Err(settings.wrong(key, "", "attention to later tokens is not supported"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::tests::invariance::refusal;

    #[test]
    fn variants_are_refused_by_the_name_of_their_setting() {
        let window = json!({ "sliding_window": 16 });
        let cases = [
            ("attn_logit_softcapping", json!(50.0)),
            ("final_logit_softcapping", json!(30.0)),
            ("use_bidirectional_attention", json!(true)),
            ("sliding_window", json!(0)),
            ("hidden_activation", json!("gelu")),
        ];
        for (key, value) in cases {
            let mut changes = window.clone();
            changes[key] = value;
            let message = refusal("Gemma3ForCausalLM", &changes);
            assert!(message.contains(&format!("no usable `{key}`")), "{message}");
        }
        let message = refusal("Gemma3ForConditionalGeneration", &window);
        assert!(message.contains("`Gemma3ForConditionalGeneration`"), "{message}");
    }
}
