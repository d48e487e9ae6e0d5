//! Llama: grouped-query attention with rotary positions (RoPE), gated feed-forward layers, RMS
//! norms before both. Most later architectures use its tensor names.

use super::Architecture;
use crate::LoadError;
use crate::config::{DecoderConfig, Settings};
use crate::rope::RopeConfig;
use crate::spec::{
    AttentionNames, AttentionSpec, DecoderSpec, DenseNames, DenseSpec, FeedForwardSpec, LayerSpec,
    MixerSpec, Names,
};
use engine_core::RowOrder;
use engine_weights::Checkpoint;

/// Entry of Llama in the table of architectures.
pub const ARCHITECTURE: Architecture = Architecture {
    hugging_face: "LlamaForCausalLM",
    gguf: Some("llama"),
    models: "Llama 2, 3, 3.1, 3.2; SmolLM2",
    describe,
};

/// Expands to the names of Llama's tensors in Hugging Face checkpoints: a tuple of those of
/// embedding, norms and LM head, of attention, and of feed-forward blocks. All but the LM head's
/// begin with `$model`.
macro_rules! hugging_face {
    ($model:literal) => {
        (
            Names {
                embedding: concat!($model, ".embed_tokens"),
                final_norm: concat!($model, ".norm"),
                head: "lm_head",
                mixer_norm: concat!($model, ".layers.{layer}.input_layernorm"),
                feed_forward_norm: concat!($model, ".layers.{layer}.post_attention_layernorm"),
                output_norms: None,
            },
            AttentionNames {
                query: concat!($model, ".layers.{layer}.self_attn.q_proj"),
                key: concat!($model, ".layers.{layer}.self_attn.k_proj"),
                value: concat!($model, ".layers.{layer}.self_attn.v_proj"),
                output: concat!($model, ".layers.{layer}.self_attn.o_proj"),
                query_norm: concat!($model, ".layers.{layer}.self_attn.q_norm"),
                key_norm: concat!($model, ".layers.{layer}.self_attn.k_norm"),
                sinks: concat!($model, ".layers.{layer}.self_attn.sinks"),
            },
            DenseNames {
                gate: concat!($model, ".layers.{layer}.mlp.gate_proj"),
                up: concat!($model, ".layers.{layer}.mlp.up_proj"),
                down: concat!($model, ".layers.{layer}.mlp.down_proj"),
            },
        )
    };
}
pub(super) use hugging_face;

/// Tensor names in Hugging Face checkpoints of Llama: of embedding, norms and LM head, of
/// attention, and of the feed-forward block.
const ALL_HUGGING_FACE: (Names, AttentionNames, DenseNames) = hugging_face!("model");
pub const HUGGING_FACE: Names = ALL_HUGGING_FACE.0;
pub const HUGGING_FACE_ATTENTION: AttentionNames = ALL_HUGGING_FACE.1;
pub const HUGGING_FACE_DENSE: DenseNames = ALL_HUGGING_FACE.2;

/// Tensor names of embedding, norms and LM head in GGUF files of Llama.
pub const GGUF: Names = Names {
    embedding: "token_embd",
    final_norm: "output_norm",
    head: "output",
    mixer_norm: "blk.{layer}.attn_norm",
    feed_forward_norm: "blk.{layer}.ffn_norm",
    output_norms: None,
};

/// Tensor names of attention in GGUF files of Llama.
pub const GGUF_ATTENTION: AttentionNames = AttentionNames {
    query: "blk.{layer}.attn_q",
    key: "blk.{layer}.attn_k",
    value: "blk.{layer}.attn_v",
    output: "blk.{layer}.attn_output",
    query_norm: "blk.{layer}.attn_q_norm",
    key_norm: "blk.{layer}.attn_k_norm",
    sinks: "blk.{layer}.attn_sinks.weight",
};

/// Tensor names of the feed-forward block in GGUF files of Llama.
pub const GGUF_DENSE: DenseNames = DenseNames {
    gate: "blk.{layer}.ffn_gate",
    up: "blk.{layer}.ffn_up",
    down: "blk.{layer}.ffn_down",
};

/// Builds the `DecoderSpec` of a Llama checkpoint: sizes, tensor names and features of its decoder.
fn describe(checkpoint: &Checkpoint, settings: Settings<'_>) -> Result<DecoderSpec, LoadError> {
    let mut spec = dense(checkpoint, settings)?;
    if settings.optional_size("num_local_experts", "expert_count")?.is_some_and(|n| n > 0) {
        let reason = "mixtures of Llama experts are not supported";
        return Err(settings.wrong("num_local_experts", "expert_count", reason));
    }
    set_attention_biases(&mut spec, checkpoint, settings)?;
    let mlp_bias = settings.flag("mlp_bias", false)?;
    if settings.is_gguf() {
        // llama.cpp rotates adjacent elements where others rotate halves, for this family alone.
        let rotated = RowOrder::RopePairs { head_dim: spec.config.head_dim };
        spec.attentions_mut().for_each(|(_, attention)| attention.rotated = rotated);
    }
    for layer in &mut spec.layers {
        if let FeedForwardSpec::Dense(dense) = &mut layer.feed_forward {
            dense.bias = mlp_bias;
        }
    }
    Ok(spec)
}

/// Sets for every attention block of `spec` whether its query, key and value projections and its
/// output projection have biases. With a config.json, `attention_bias` decides for all of them
/// (false if it is missing); with a GGUF file, the bias tensor of layer 0's query projection
/// decides for the first three, and that of its output projection for the last.
///
/// # Errors
/// Fails if `attention_bias` is neither true nor false.
pub fn set_attention_biases(
    spec: &mut DecoderSpec,
    checkpoint: &Checkpoint,
    settings: Settings<'_>,
) -> Result<(), LoadError> {
    let flag = settings.flag("attention_bias", false)?;
    let has = |name: &str| {
        if settings.is_gguf() {
            // GGUF metadata has no flag for biases; the tensors of the first layer tell.
            checkpoint.lists(&format!("{}.bias", name.replace("{layer}", "0")))
        } else {
            flag
        }
    };
    for (_, attention) in spec.attentions_mut() {
        attention.qkv_bias = has(attention.names.query);
        attention.output_bias = has(attention.names.output);
    }
    Ok(())
}

/// Builds the `DecoderSpec` of a dense decoder with Llama's tensor names: all layers alike, no
/// biases, no sliding windows. `settings` may be a nested part of the checkpoint's configuration.
///
/// # Errors
/// Fails if a setting is missing, invalid or not supported, or if the tensor `rope_freqs.weight` of
/// a GGUF file has a wrong shape or type.
pub fn dense(checkpoint: &Checkpoint, settings: Settings<'_>) -> Result<DecoderSpec, LoadError> {
    let config = DecoderConfig::read(settings)?;
    let is_gguf = settings.is_gguf();
    let (names, attention, dense) = if is_gguf {
        (GGUF, GGUF_ATTENTION, GGUF_DENSE)
    } else {
        (HUGGING_FACE, HUGGING_FACE_ATTENTION, HUGGING_FACE_DENSE)
    };
    let attention = AttentionSpec {
        names: attention,
        shape: config.attention_shape(),
        fused: false,
        qkv_bias: false,
        output_bias: false,
        head_norms: false,
        gated: false,
        sinks: false,
        window: None,
        rope: 0,
        rotated: RowOrder::AsStored,
    };
    let dense = DenseSpec {
        names: dense,
        intermediate: config.intermediate,
        bias: false,
        activation: settings.activation()?,
        fused: false,
    };
    let layer = LayerSpec {
        mixer: MixerSpec::Attention(attention),
        feed_forward: FeedForwardSpec::Dense(dense),
    };
    Ok(DecoderSpec {
        ropes: vec![RopeConfig::read(checkpoint, settings, config.head_dim)?],
        names,
        embedding_scale: 1.0,
        norm_offset: 0.0,
        tied: if is_gguf {
            !checkpoint.lists(&format!("{}.weight", names.head))
        } else {
            settings.flag("tie_word_embeddings", false)?
        },
        layers: vec![layer; config.layers],
        config,
        embeds: false,
    })
}
