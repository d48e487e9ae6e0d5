//! Qwen3.5, text part: gated DeltaNet in most layers; in the others attention with gated output and
//! partial rotation; norms whose weights are stored minus one. Images and videos are not supported.
//! Source: transformers, `modeling_qwen3_5.py`; for GGUF files, which order value heads differently
//! and store whole norm weights, llama.cpp's `conversion/qwen.py`.

use super::{Architecture, llama};
use crate::LoadError;
use crate::config::Settings;
use crate::spec::{
    AttentionNames, DecoderSpec, DeltaNetForm, DeltaNetNames, DeltaNetSpec, DenseNames,
    FeedForwardSpec, MixerSpec, Names,
};
use engine_core::DeltaNetShape;
use engine_weights::Checkpoint;
use engine_weights::gguf::Value;

/// Entry of dense Qwen3.5 in the table of architectures.
pub const ARCHITECTURE: Architecture = Architecture {
    hugging_face: "Qwen3_5ForConditionalGeneration",
    gguf: Some("qwen35"),
    models: "Qwen3.5 dense, as Qwen3.5-9B: the text part",
    describe,
};

/// Tensor names in Hugging Face checkpoints of Qwen3.5: of embedding, norms and LM head, of
/// attention, and of the feed-forward block.
const NAMES: (Names, AttentionNames, DenseNames) = llama::hugging_face!("model.language_model");

/// Tensor names of gated DeltaNet in Hugging Face checkpoints of Qwen3.5.
const DELTA_NET: DeltaNetNames = DeltaNetNames {
    query_key_value: "model.language_model.layers.{layer}.linear_attn.in_proj_qkv",
    gate: "model.language_model.layers.{layer}.linear_attn.in_proj_z",
    beta: "model.language_model.layers.{layer}.linear_attn.in_proj_b",
    decay: "model.language_model.layers.{layer}.linear_attn.in_proj_a",
    decay_rate: "model.language_model.layers.{layer}.linear_attn.A_log",
    decay_bias: "model.language_model.layers.{layer}.linear_attn.dt_bias",
    conv: "model.language_model.layers.{layer}.linear_attn.conv1d",
    norm: "model.language_model.layers.{layer}.linear_attn.norm",
    output: "model.language_model.layers.{layer}.linear_attn.out_proj",
};

/// Tensor names of embedding, norms and LM head in GGUF files of Qwen3.5.
const GGUF: Names = Names { feed_forward_norm: "blk.{layer}.post_attention_norm", ..llama::GGUF };

/// Tensor names of gated DeltaNet in GGUF files of Qwen3.5.
const GGUF_DELTA_NET: DeltaNetNames = DeltaNetNames {
    query_key_value: "blk.{layer}.attn_qkv",
    gate: "blk.{layer}.attn_gate",
    beta: "blk.{layer}.ssm_beta",
    decay: "blk.{layer}.ssm_alpha",
    decay_rate: "blk.{layer}.ssm_a",
    decay_bias: "blk.{layer}.ssm_dt.bias",
    conv: "blk.{layer}.ssm_conv1d",
    norm: "blk.{layer}.ssm_norm",
    output: "blk.{layer}.ssm_out",
};

/// Divisor of Qwen3.5's head size that yields the number of rotated dimensions, where a checkpoint
/// does not state it.
const ROTARY_SHARE: usize = 4;
/// Interval of layers with attention in Qwen3.5 where a checkpoint neither lists the kinds of its
/// layers nor states the interval: every fourth layer, the others are gated DeltaNet.
const ATTENTION_INTERVAL: usize = 4;

/// Builds the `DecoderSpec` of a Qwen3.5 checkpoint: sizes, tensor names and features of its
/// decoder.
fn describe(checkpoint: &Checkpoint, whole: Settings<'_>) -> Result<DecoderSpec, LoadError> {
    let settings = match whole {
        Settings::Json { path, json } => {
            // The settings of the text part are nested in those of the multimodal model.
            let text = json.get("text_config").filter(|text| text.is_object());
            Settings::Json { path, json: text.unwrap_or(json) }
        }
        Settings::Gguf { .. } => whole,
    };
    let mut spec = llama::dense(checkpoint, settings)?;
    let is_gguf = settings.is_gguf();
    spec.names = if is_gguf { GGUF } else { NAMES.0 };
    if is_gguf {
        leave_out_predictors(&mut spec, settings)?;
    } else {
        // llama.cpp's converter adds the 1 to the norm weights, so GGUF files need no offset.
        spec.norm_offset = 1.0;
        let tied = whole.flag("tie_word_embeddings", false)?;
        spec.tied = settings.flag("tie_word_embeddings", tied)?;
    }
    if !says_rotary_share(settings) {
        spec.ropes[0].dimensions = spec.config.head_dim / ROTARY_SHARE;
    }
    let (names, form) = if is_gguf {
        (GGUF_DELTA_NET, DeltaNetForm::Gguf)
    } else {
        (DELTA_NET, DeltaNetForm::HuggingFace)
    };
    let delta_net = DeltaNetSpec { names, shape: shape(settings)?, form };
    let attends = attends(settings, spec.layers.len())?;
    let bias = settings.flag("attention_bias", false)?;
    for (layer, attends) in spec.layers.iter_mut().zip(attends) {
        match &mut layer.mixer {
            MixerSpec::Attention(attention) if attends => {
                if !is_gguf {
                    attention.names = NAMES.1;
                }
                (attention.head_norms, attention.gated) = (true, true);
                (attention.qkv_bias, attention.output_bias) = (bias, bias);
            }
            mixer => *mixer = MixerSpec::DeltaNet(delta_net),
        }
        if let FeedForwardSpec::Dense(dense) = &mut layer.feed_forward
            && !is_gguf
        {
            dense.names = NAMES.2;
        }
    }
    Ok(spec)
}

/// Drops from `spec` the layers that predict further tokens (multi-token prediction), which GGUF
/// files append to the decoder's layers and include in their number.
fn leave_out_predictors(spec: &mut DecoderSpec, settings: Settings<'_>) -> Result<(), LoadError> {
    let key = "nextn_predict_layers";
    let predictors = settings.optional_size("", key)?.unwrap_or(0);
    let layers = spec.layers.len().checked_sub(predictors).filter(|layers| *layers > 0);
    spec.config.layers = layers.ok_or_else(|| {
        settings.wrong("", key, format!("{predictors} is not below {}", spec.layers.len()))
    })?;
    spec.layers.truncate(spec.config.layers);
    Ok(())
}

/// Returns true if the checkpoint states how many dimensions of a head are rotated (RoPE).
fn says_rotary_share(settings: Settings<'_>) -> bool {
    if settings.is_gguf() {
        return settings.optional_size("", "rope.dimension_count").is_ok_and(|size| size.is_some());
    }
    let key = "partial_rotary_factor";
    let parameters = settings.json("rope_parameters").or_else(|| settings.json("rope_scaling"));
    settings.json(key).is_some() || parameters.is_some_and(|values| values.get(key).is_some())
}

/// Reads from `settings` the numbers and sizes of the heads of Qwen3.5's gated DeltaNet layers.
fn shape(settings: Settings<'_>) -> Result<DeltaNetShape, LoadError> {
    let value_heads = settings.size("linear_num_value_heads", "ssm.time_step_rank")?;
    let shape = DeltaNetShape {
        key_heads: settings.size("linear_num_key_heads", "ssm.group_count")?,
        value_heads,
        key_dim: settings.size("linear_key_head_dim", "ssm.state_size")?,
        value_dim: match settings {
            Settings::Json { .. } => settings.size("linear_value_head_dim", "")?,
            Settings::Gguf { .. } => settings.size("", "ssm.inner_size")? / value_heads,
        },
        taps: settings.size("linear_conv_kernel_dim", "ssm.conv_kernel")?,
    };
    let wrong = |key, reason| Err(settings.wrong(key, "ssm", reason));
    let DeltaNetShape { key_heads, value_heads, key_dim, value_dim, taps } = shape;
    if !value_heads.is_multiple_of(key_heads) {
        return wrong("linear_num_value_heads", format!("{value_heads} cannot share {key_heads}"));
    }
    if key_dim.max(value_dim) > 512 {
        return wrong("linear_key_head_dim", format!("{key_dim} or {value_dim} is over 512"));
    }
    if taps > 64 {
        return wrong("linear_conv_kernel_dim", format!("{taps} is over 64"));
    }
    Ok(shape)
}

/// Returns for each layer of Qwen3.5 whether it has attention instead of gated DeltaNet.
fn attends(settings: Settings<'_>, layers: usize) -> Result<Vec<bool>, LoadError> {
    let Some(types) = settings.layer_types(layers)? else {
        if let Some(recurrent) = recurrent_layers(settings, layers)? {
            return Ok(recurrent.into_iter().map(|recurrent| !recurrent).collect());
        }
        let key = "full_attention_interval";
        let every = settings.optional_size(key, key)?;
        // A zero would leave no layer with attention; 1 means attention in every layer.
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

/// Returns for each layer whether it is a gated DeltaNet layer, as a GGUF file lists it; none if
/// the file has no such list.
fn recurrent_layers(settings: Settings<'_>, layers: usize) -> Result<Option<Vec<bool>>, LoadError> {
    let key = "attention.recurrent_layers";
    let Settings::Gguf { metadata, architecture } = settings else { return Ok(None) };
    let Some(value) = metadata.get(&format!("{architecture}.{key}")) else { return Ok(None) };
    let Value::Array(flags) = value else {
        return Err(settings.wrong("", key, "it is not a list"));
    };
    let flag = |value: &Value| match value {
        Value::Bool(flag) => Some(*flag),
        _ => None,
    };
    match flags.iter().take(layers).map(flag).collect::<Option<Vec<bool>>>() {
        Some(flags) if flags.len() == layers => Ok(Some(flags)),
        _ => Err(settings.wrong("", key, format!("it is not a list of {layers} flags"))),
    }
}
