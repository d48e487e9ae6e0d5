//! Pooling: tells checkpoints that are made to embed texts, such as Qwen3-Embedding, from those that
//! generate. GGUF files say it by llama.cpp's key `pooling_type`, folders by the files of Sentence
//! Transformers.

use std::path::Path;

use serde_json::Value;

use super::LoadError;
use super::config::Settings;
use engine_weights::{CheckpointError, is_file_name, read_json};

/// Names of llama.cpp's pooling types, by their number in GGUF metadata (`llama_pooling_type`).
const GGUF_TYPES: [&str; 5] = ["none", "mean", "cls", "last", "rank"];
/// Pooling by the last token, as GGUF metadata and Sentence Transformers name it.
const LAST: [&str; 2] = ["last", "lasttoken"];

/// Returns true if the checkpoint with these settings embeds texts: the embedding of a sequence is
/// the row of its last token.
///
/// # Errors
/// Fails if the checkpoint pools in another way, attends to later tokens, or has layers of its own
/// after the pooling; or if one of its files cannot be read.
pub fn embeds(settings: Settings<'_>) -> Result<bool, LoadError> {
    let (pooling, is_causal) = match settings {
        Settings::Gguf { metadata, architecture } => {
            let number = settings.optional_size("", "pooling_type")?.unwrap_or(0);
            let name = GGUF_TYPES.get(number).copied().unwrap_or("of an unknown type");
            let is_causal = metadata.flag(&format!("{architecture}.attention.causal"));
            (Some(name.to_owned()).filter(|_| number > 0), is_causal.unwrap_or(true))
        }
        Settings::Json { path, .. } => {
            let folder = path.parent().unwrap_or(Path::new("."));
            (of_folder(folder)?, settings.flag("is_causal", true)?)
        }
    };
    let Some(pooling) = pooling else { return Ok(false) };
    if !LAST.contains(&pooling.as_str()) {
        let reason = format!("pooling `{pooling}` is not supported; supported: last");
        return Err(settings.wrong("pooling", "pooling_type", reason));
    }
    if !is_causal {
        let reason = "attention to later tokens is not supported";
        return Err(settings.wrong("is_causal", "attention.causal", reason));
    }
    Ok(true)
}

/// Returns the pooling of a folder for Sentence Transformers, as its file names it; `None` for a
/// folder without `modules.json`.
fn of_folder(folder: &Path) -> Result<Option<String>, LoadError> {
    let path = folder.join("modules.json");
    if !path.is_file() {
        return Ok(None);
    }
    let modules = read_json(&path)?;
    let wrong = |reason: String| CheckpointError::config(&path, "type", reason);
    let mut pooling = None;
    for module in modules.as_array().into_iter().flatten() {
        let kind = module["type"].as_str().unwrap_or_default();
        match kind.rsplit('.').next().unwrap_or_default() {
            // Embeddings are always normalized.
            "Transformer" | "Normalize" => {}
            "Pooling" => pooling = Some(of_module(folder, module["path"].as_str())?),
            other => return Err(wrong(format!("module `{other}` is not supported")).into()),
        }
    }
    let missing = || wrong("there is no module `Pooling`".to_owned());
    Ok(Some(pooling.ok_or_else(missing)?))
}

/// Returns the pooling that the configuration of the module `Pooling` in `folder` states.
fn of_module(folder: &Path, path: Option<&str>) -> Result<String, CheckpointError> {
    let Some(name) = path.filter(|name| is_file_name(name)) else {
        let reason = "it is not the name of a folder";
        return Err(CheckpointError::config(&folder.join("modules.json"), "path", reason));
    };
    let path = folder.join(name).join("config.json");
    let config = read_json(&path)?;
    if let Some(mode) = config["pooling_mode"].as_str() {
        return Ok(mode.to_owned());
    }
    // Older files have a flag for each way of pooling.
    let flags = config.as_object().into_iter().flatten();
    let set = flags.filter(|(_, value)| **value == Value::Bool(true));
    let modes: Vec<&str> = set.filter_map(|(key, _)| key.strip_prefix("pooling_mode_")).collect();
    Ok(modes.join(" and "))
}
