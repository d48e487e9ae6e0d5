//! Qwen3-MoE: Qwen3 with a mixture of experts in some or all feed-forward layers.

use super::{Architecture, llama};
use crate::LoadError;
use crate::config::Settings;
use crate::spec::{Activation, DecoderSpec, DenseNames, ExpertStorage, FeedForwardSpec, MoeSpec};
use engine_core::Gate;
use engine_weights::Checkpoint;

/// Entry of Qwen3-MoE in the table of architectures.
pub const ARCHITECTURE: Architecture = Architecture {
    hugging_face: "Qwen3MoeForCausalLM",
    gguf: Some("qwen3moe"),
    models: "Qwen3-MoE, as Qwen3-30B-A3B and Qwen3-235B-A22B",
    describe,
};

/// Tensor names of one expert in Hugging Face checkpoints of Qwen3-MoE.
const HUGGING_FACE_EXPERTS: DenseNames = DenseNames {
    gate: "model.layers.{layer}.mlp.experts.{expert}.gate_proj",
    up: "model.layers.{layer}.mlp.experts.{expert}.up_proj",
    down: "model.layers.{layer}.mlp.experts.{expert}.down_proj",
};

/// Tensor name of the MoE router in GGUF files, without `.weight`.
pub const GGUF_ROUTER: &str = "blk.{layer}.ffn_gate_inp";

/// Tensor names, without `.weight`, of MoE experts in GGUF files, which stack the matrices of all
/// experts of a layer in one tensor.
pub const GGUF_EXPERTS: DenseNames = DenseNames {
    gate: "blk.{layer}.ffn_gate_exps",
    up: "blk.{layer}.ffn_up_exps",
    down: "blk.{layer}.ffn_down_exps",
};

/// Builds the `DecoderSpec` of a Qwen3-MoE checkpoint: sizes, tensor names and features of its
/// decoder.
fn describe(checkpoint: &Checkpoint, settings: Settings<'_>) -> Result<DecoderSpec, LoadError> {
    let mut spec = llama::dense(checkpoint, settings)?;
    let moe = moe(settings)?;
    let window = window(settings)?;
    llama::set_attention_biases(&mut spec, checkpoint, settings)?;
    // GGUF files lack both keys: published models have experts in every layer.
    let every = settings.optional_size("decoder_sparse_step", "")?.unwrap_or(1);
    let dense_layers = dense_layers(settings)?;
    for (_, attention) in spec.attentions_mut() {
        attention.head_norms = true;
        attention.window = window;
    }
    for (index, layer) in spec.layers.iter_mut().enumerate() {
        if every > 0 && (index + 1).is_multiple_of(every) && !dense_layers.contains(&index) {
            layer.feed_forward = FeedForwardSpec::Moe(moe.clone());
        }
    }
    Ok(spec)
}

/// Builds the `MoeSpec` of Qwen3-MoE's MoE blocks.
fn moe(settings: Settings<'_>) -> Result<MoeSpec, LoadError> {
    // Published checkpoints have `num_experts`, newer configurations `num_local_experts`.
    let key =
        if settings.json("num_experts").is_some() { "num_experts" } else { "num_local_experts" };
    let experts = settings.size(key, "expert_count")?;
    let is_gguf = settings.is_gguf();
    Ok(MoeSpec {
        router: if is_gguf { GGUF_ROUTER } else { "model.layers.{layer}.mlp.gate" },
        router_bias: false,
        experts,
        top_k: top_k(settings, experts)?,
        intermediate: settings.size("moe_intermediate_size", "expert_feed_forward_length")?,
        // GGUF files do not state it; llama.cpp normalizes for this architecture.
        gate: Gate::SoftmaxTop { normalized: is_gguf || settings.flag("norm_topk_prob", false)? },
        activation: Activation::Silu,
        storage: if is_gguf {
            ExpertStorage::Stacked { names: GGUF_EXPERTS, bias: false }
        } else {
            ExpertStorage::Each(HUGGING_FACE_EXPERTS)
        },
    })
}

/// Returns the top k of a MoE model: the number of experts, of `experts` per layer, that each row
/// is sent to.
///
/// # Errors
/// Fails if the setting is missing, not from 1 to 2^24, or larger than `experts`.
pub fn top_k(settings: Settings<'_>, experts: usize) -> Result<usize, LoadError> {
    let (json_key, gguf_key) = ("num_experts_per_tok", "expert_used_count");
    let top_k = settings.size(json_key, gguf_key)?;
    if top_k > experts {
        let reason = format!("{top_k} of {experts} experts cannot be chosen");
        return Err(settings.wrong(json_key, gguf_key, reason));
    }
    Ok(top_k)
}

/// Returns the size of the sliding window in positions that all layers of Qwen3-MoE have, none
/// unless config.json enables one.
fn window(settings: Settings<'_>) -> Result<Option<usize>, LoadError> {
    let is_used = settings.flag("use_sliding_window", false)?;
    if is_used { settings.given_size("sliding_window", "") } else { Ok(None) }
}

/// Returns the indices of the layers of Qwen3-MoE that have a dense feed-forward block because
/// `mlp_only_layers` lists them.
fn dense_layers(settings: Settings<'_>) -> Result<Vec<usize>, LoadError> {
    let Some(value) = settings.json("mlp_only_layers") else { return Ok(Vec::new()) };
    let wrong = || settings.wrong("mlp_only_layers", "", "it is not a list of layers");
    let list = value.as_array().ok_or_else(wrong)?;
    list.iter().map(|layer| Ok(layer.as_u64().ok_or_else(wrong)? as usize)).collect()
}
