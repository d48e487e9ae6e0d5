//! Servers with the tokenizers of published models and made-up weights. `cargo xtask ci --extra`
//! downloads the files.

use std::path::{Path, PathBuf};

use fixtures::cached;
use serde_json::json;
use tempfile::TempDir;

use crate::launched::Launched;

pub const QWEN3: &str = fixtures::QWEN3_TOKENIZER;
const QWEN3_CONFIG: &str = "5a7303fcb1a27ede63134a2cbd61d5282c247ca6d769ce4746d4ffa124aedd63";
pub const GPT_OSS: &str = "0614fe83cadab421296e664e1f48f4261fa8fef6e03e63bb75c20f38e37d07d3";

/// Folder with a small model's configuration and links to `files`.
fn folder(vocab_size: usize, eos: u32, files: &[PathBuf]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64,
        "vocab_size": vocab_size, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0, "tie_word_embeddings": true, "eos_token_id": eos,
    });
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    for file in files {
        std::os::unix::fs::symlink(file, folder.path().join(file.file_name().unwrap())).unwrap();
    }
    folder
}

fn serve(folder: &Path) -> Launched {
    let flags = ["--load-format", "random", "--max-batch-size", "4", "--model-name", "real"];
    Launched::serve(folder.to_str().unwrap(), &flags)
}

/// Server with the tokenizer of Qwen3, and its folder.
pub fn qwen3() -> Option<(Launched, TempDir)> {
    let folder = folder(151_936, 151_645, &[cached(QWEN3)?, cached(QWEN3_CONFIG)?]);
    Some((serve(folder.path()), folder))
}

/// Server with the tokenizer of gpt-oss, and its folder.
pub fn gpt_oss() -> Option<(Launched, TempDir)> {
    let folder = folder(201_088, 200_002, &[cached(GPT_OSS)?]);
    Some((serve(folder.path()), folder))
}
