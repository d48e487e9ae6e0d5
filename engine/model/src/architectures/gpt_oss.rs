//! gpt-oss: attention with sinks and, in every other layer, a sliding window; biases everywhere;
//! MXFP4 experts with a clamped activation. Source: OpenAI 2025, model card of gpt-oss-120b and
//! gpt-oss-20b.

use super::qwen3_moe::{GGUF_EXPERTS, GGUF_ROUTER};
use super::{Architecture, llama, qwen3_moe};
use crate::LoadError;
use crate::config::Settings;
use crate::rope::RopeScaling;
use crate::spec::{Activation, DecoderSpec, ExpertStorage, FeedForwardSpec, MoeSpec, Names};
use engine_core::Gate;
use engine_weights::Checkpoint;

/// Entry of gpt-oss in the table of architectures.
pub const ARCHITECTURE: Architecture = Architecture {
    hugging_face: "GptOssForCausalLM",
    gguf: Some("gpt-oss"),
    models: "gpt-oss-20b, gpt-oss-120b",
    describe,
};

/// Tensor names of embedding, norms and LM head in GGUF files of gpt-oss.
const GGUF: Names = Names { feed_forward_norm: "blk.{layer}.post_attention_norm", ..llama::GGUF };

/// Tensor names and storage of the experts in Hugging Face checkpoints of gpt-oss.
const HUGGING_FACE_EXPERTS: ExpertStorage = ExpertStorage::Interleaved {
    gate_up: "model.layers.{layer}.mlp.experts.gate_up_proj",
    down: "model.layers.{layer}.mlp.experts.down_proj",
};

/// Size of gpt-oss's sliding window in positions, the query's own included, where a checkpoint does
/// not state it.
const WINDOW: usize = 128;

/// Builds the `DecoderSpec` of a gpt-oss checkpoint: sizes, tensor names and features of its
/// decoder.
fn describe(checkpoint: &Checkpoint, settings: Settings<'_>) -> Result<DecoderSpec, LoadError> {
    let mut spec = llama::dense(checkpoint, settings)?;
    if settings.is_gguf() {
        spec.names = GGUF;
    }
    // GGUF files do not state it, but every published model was trained without truncation.
    if let (true, RopeScaling::Yarn { truncate, .. }) =
        (settings.is_gguf(), &mut spec.ropes[0].scaling)
    {
        *truncate = false;
    }
    let bias = settings.flag("attention_bias", true)?;
    let moe = moe(settings)?;
    let windows = windows(settings, spec.layers.len())?;
    for (layer, attention) in spec.attentions_mut() {
        (attention.qkv_bias, attention.output_bias) = (bias, bias);
        attention.sinks = true;
        attention.window = windows[layer];
    }
    for layer in &mut spec.layers {
        layer.feed_forward = FeedForwardSpec::Moe(moe.clone());
    }
    Ok(spec)
}

/// Builds the `MoeSpec` of gpt-oss's MoE blocks, which all layers have.
fn moe(settings: Settings<'_>) -> Result<MoeSpec, LoadError> {
    let experts = settings.size("num_local_experts", "expert_count")?;
    let alpha = settings.optional_number("swiglu_alpha", "")?.unwrap_or(1.702);
    let limit = settings.optional_number("swiglu_limit", "")?.unwrap_or(7.0);
    let is_gguf = settings.is_gguf();
    Ok(MoeSpec {
        router: if is_gguf { GGUF_ROUTER } else { "model.layers.{layer}.mlp.router" },
        router_bias: true,
        experts,
        top_k: qwen3_moe::top_k(settings, experts)?,
        intermediate: settings.size("intermediate_size", "expert_feed_forward_length")?,
        gate: Gate::TopSoftmax,
        activation: Activation::ClampedSwiglu { alpha: alpha as f32, limit: limit as f32 },
        storage: if is_gguf {
            ExpertStorage::Stacked { names: GGUF_EXPERTS, bias: true }
        } else {
            HUGGING_FACE_EXPERTS
        },
    })
}

/// Returns for each layer of gpt-oss the size of its sliding window in positions, none for full
/// attention. Layers with a window are those for which `layer_types` of config.json states one;
/// without that key, and in GGUF files, every other layer from the first on.
fn windows(settings: Settings<'_>, layers: usize) -> Result<Vec<Option<usize>>, LoadError> {
    let window = settings.given_size("sliding_window", "attention.sliding_window")?;
    settings.windows(window.unwrap_or(WINDOW), layers, |layer| layer.is_multiple_of(2))
}
