//! Qwen3.5, the text part: gated DeltaNet in most layers, in the others attention whose output is
//! gated and of whose heads a part is turned; norms whose weights are stored as their distance
//! from one. Images and videos are not read. Source: transformers, `modeling_qwen3_5.py`.

use super::{Architecture, llama};
use crate::device::DeltaNetShape;
use crate::model::config::Settings;
use crate::model::spec::{
    AttentionNames, DecoderSpec, DeltaNetNames, DeltaNetSpec, DenseNames, FeedForwardSpec,
    MixerSpec, Names,
};
use crate::weights::{Checkpoint, ConfigSource, LoadError};

pub const ARCHITECTURE: Architecture = Architecture {
    hugging_face: "Qwen3_5ForConditionalGeneration",
    gguf: None,
    models: "Qwen3.5 dense, as Qwen3.5-9B: the text part",
    describe,
};

const NAMES: Names = Names {
    embedding: "model.language_model.embed_tokens",
    final_norm: "model.language_model.norm",
    head: "lm_head",
    mixer_norm: "model.language_model.layers.{layer}.input_layernorm",
    feed_forward_norm: "model.language_model.layers.{layer}.post_attention_layernorm",
};

const ATTENTION: AttentionNames = AttentionNames {
    query: "model.language_model.layers.{layer}.self_attn.q_proj",
    key: "model.language_model.layers.{layer}.self_attn.k_proj",
    value: "model.language_model.layers.{layer}.self_attn.v_proj",
    output: "model.language_model.layers.{layer}.self_attn.o_proj",
    query_norm: "model.language_model.layers.{layer}.self_attn.q_norm",
    key_norm: "model.language_model.layers.{layer}.self_attn.k_norm",
    sinks: "",
};

const DENSE: DenseNames = DenseNames {
    gate: "model.language_model.layers.{layer}.mlp.gate_proj",
    up: "model.language_model.layers.{layer}.mlp.up_proj",
    down: "model.language_model.layers.{layer}.mlp.down_proj",
};

const DELTA_NET: DeltaNetNames = DeltaNetNames {
    query_key_value: "model.language_model.layers.{layer}.linear_attn.in_proj_qkv",
    gate: "model.language_model.layers.{layer}.linear_attn.in_proj_z",
    beta: "model.language_model.layers.{layer}.linear_attn.in_proj_b",
    decay: "model.language_model.layers.{layer}.linear_attn.in_proj_a",
    decay_log: "model.language_model.layers.{layer}.linear_attn.A_log",
    decay_bias: "model.language_model.layers.{layer}.linear_attn.dt_bias",
    conv: "model.language_model.layers.{layer}.linear_attn.conv1d",
    norm: "model.language_model.layers.{layer}.linear_attn.norm",
    output: "model.language_model.layers.{layer}.linear_attn.out_proj",
};

/// Part of a head that is turned, where a checkpoint does not say.
const ROTARY_SHARE: usize = 4;
/// Of so many layers in a row one attends, where `layer_types` does not say.
const ATTENTION_INTERVAL: usize = 4;

fn describe(checkpoint: &Checkpoint) -> Result<DecoderSpec, LoadError> {
    let whole = Settings::of(checkpoint.config())?;
    let settings = match checkpoint.config() {
        ConfigSource::Json { path, json } => {
            let text = json.get("text_config").filter(|text| text.is_object());
            Settings::Json { path, json: text.unwrap_or(json) }
        }
        ConfigSource::Gguf(_) => whole,
    };
    let mut spec = llama::dense_as(checkpoint, settings)?;
    spec.names = NAMES;
    spec.norm_offset = 1.0;
    if !says_rotary_share(settings) {
        spec.rope.dimensions = spec.config.head_dim / ROTARY_SHARE;
    }
    spec.tied = settings.flag("tie_word_embeddings", whole.flag("tie_word_embeddings", false)?)?;
    let delta_net = DeltaNetSpec { names: DELTA_NET, shape: shape(settings)? };
    let attends = attends(settings, spec.layers.len())?;
    let bias = settings.flag("attention_bias", false)?;
    for (layer, attends) in spec.layers.iter_mut().zip(attends) {
        match &mut layer.mixer {
            MixerSpec::Attention(attention) if attends => {
                attention.names = ATTENTION;
                (attention.head_norms, attention.gated) = (true, true);
                (attention.qkv_bias, attention.output_bias) = (bias, bias);
            }
            mixer => *mixer = MixerSpec::DeltaNet(delta_net),
        }
        if let FeedForwardSpec::Dense(dense) = &mut layer.feed_forward {
            dense.names = DENSE;
        }
    }
    Ok(spec)
}

fn says_rotary_share(settings: Settings<'_>) -> bool {
    let key = "partial_rotary_factor";
    let parameters = settings.json("rope_parameters").or_else(|| settings.json("rope_scaling"));
    settings.json(key).is_some() || parameters.is_some_and(|values| values.get(key).is_some())
}

/// Sizes of the DeltaNet layers.
fn shape(settings: Settings<'_>) -> Result<DeltaNetShape, LoadError> {
    let size = |key| settings.size(key, "");
    let shape = DeltaNetShape {
        key_heads: size("linear_num_key_heads")?,
        value_heads: size("linear_num_value_heads")?,
        key_dim: size("linear_key_head_dim")?,
        value_dim: size("linear_value_head_dim")?,
        taps: size("linear_conv_kernel_dim")?,
    };
    let wrong = |key, reason| Err(settings.wrong(key, "", reason));
    let DeltaNetShape { key_heads, value_heads, key_dim, value_dim, taps } = shape;
    if !value_heads.is_multiple_of(key_heads) {
        return wrong("linear_num_value_heads", format!("{value_heads} cannot share {key_heads}"));
    }
    if key_dim.max(value_dim) > 512 {
        return wrong("linear_key_head_dim", format!("{key_dim} and {value_dim} go up to 512"));
    }
    if taps > 64 {
        return wrong("linear_conv_kernel_dim", format!("{taps} goes up to 64"));
    }
    Ok(shape)
}

/// Which layers attend.
fn attends(settings: Settings<'_>, layers: usize) -> Result<Vec<bool>, LoadError> {
    let Some(types) = settings.layer_types(layers)? else {
        let every = settings.optional_size("full_attention_interval", "")?;
        let every = every.unwrap_or(ATTENTION_INTERVAL).max(1);
        return Ok((1..=layers).map(|layer| layer.is_multiple_of(every)).collect());
    };
    let attends = |kind: &str| match kind {
        "full_attention" => Ok(true),
        "linear_attention" => Ok(false),
        other => {
            let reason =
                format!("`{other}` is not supported; hint: full_attention, linear_attention");
            Err(settings.wrong("layer_types", "", reason))
        }
    };
    types.into_iter().map(attends).collect()
}
