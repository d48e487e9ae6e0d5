//! Facts about a checkpoint folder from the files beside its weights: quantization method and chat
//! template.

use std::fs;
use std::path::Path;

use schema::canonical::sha256_hex;
use serde_json::Value;

/// Facts from a checkpoint's configuration files; `None` where the files do not state one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckpointFacts {
    /// Quantization method in `config.json`, such as `fp8` or `mxfp4`.
    pub quantization: Option<String>,
    /// SHA-256 of the text of the chat's template.
    pub chat_template_sha256: Option<String>,
}

/// Reads the facts from the checkpoint folder `dir`.
pub fn read(dir: &Path) -> CheckpointFacts {
    let json = |name: &str| -> Option<Value> {
        serde_json::from_slice(&fs::read(dir.join(name)).ok()?).ok()
    };
    let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
    let config = json("config.json");
    let method =
        config.as_ref().and_then(|config| config.pointer("/quantization_config/quant_method"));
    // Newer checkpoints keep the template of chats in its own file, which takes precedence.
    let template = fs::read_to_string(dir.join("chat_template.jinja")).ok();
    let template = template.or_else(|| text(json("tokenizer_config.json")?.get("chat_template")));
    CheckpointFacts {
        quantization: text(method),
        chat_template_sha256: template.map(|template| sha256_hex(template.as_bytes())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_tells_its_scheme_and_its_template() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        assert_eq!(
            read(folder.path()),
            CheckpointFacts::default(),
            "an empty folder tells nothing"
        );
        write("config.json", r#"{"quantization_config": {"quant_method": "mxfp4"}}"#);
        write("tokenizer_config.json", r#"{"chat_template": "old"}"#);
        let told = read(folder.path());
        assert_eq!(told.quantization.as_deref(), Some("mxfp4"));
        assert_eq!(told.chat_template_sha256, Some(sha256_hex(b"old")));
        write("chat_template.jinja", "new");
        assert_eq!(read(folder.path()).chat_template_sha256, Some(sha256_hex(b"new")));
        write("config.json", r#"{"torch_dtype": "bfloat16"}"#);
        assert_eq!(read(folder.path()).quantization, None, "weights of no scheme");
    }
}
