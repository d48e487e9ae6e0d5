//! Tests of models that embed texts: their rows times the LM head are the reference logits, and
//! checkpoints that pool in another way are refused.

use std::num::NonZeroUsize;

use super::conformance::{exact, references};
use super::tiny_gguf::tiny_llama;
use super::*;
use engine_weights::Checkpoint;
use engine_weights::gguf::Value as Setting;
use safetensors::SafeTensors;
use safetensors::tensor::serialize_to_file;
use tempfile::TempDir;

/// Files of Sentence Transformers for a model that pools by `pooling`, with their paths.
fn module_files(pooling: &str) -> [(&'static str, String); 2] {
    let modules = serde_json::json!([
        {"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
    ]);
    [("modules.json", modules.to_string()), ("1_Pooling/config.json", pooling.to_owned())]
}

/// Copy of a checkpoint's folder as an embedding model has it: with Sentence Transformers' files,
/// without LM head, and with tensors named without `model.`.
fn embedding_folder(from: &Path, pooling: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(from.join("config.json"), folder.path().join("config.json")).unwrap();
    let bytes = std::fs::read(from.join("model.safetensors")).unwrap();
    let stored = SafeTensors::deserialize(&bytes).unwrap();
    let named = stored.tensors().into_iter().filter_map(|(name, tensor)| {
        name.strip_prefix("model.").map(|name| (name.to_owned(), tensor))
    });
    serialize_to_file(named, None, &folder.path().join("model.safetensors")).unwrap();
    std::fs::create_dir(folder.path().join("1_Pooling")).unwrap();
    for (path, text) in module_files(pooling) {
        std::fs::write(folder.path().join(path), text).unwrap();
    }
    folder
}

/// Loads the model in `folder`; the error as text.
fn tried(folder: &Path, options: &LoadOptions) -> Result<Loaded, String> {
    let source = ModelSource::find(folder.to_str().unwrap(), None).unwrap();
    load(&source, options).map_err(|error| error.to_string())
}

#[test]
fn an_embedding_times_the_lm_head_is_the_reference_row_of_logits() {
    let all = references();
    let reference = all.iter().find(|one| one.name == "qwen3-dense").unwrap();
    let flags = r#"{"pooling_mode_cls_token": false, "pooling_mode_lasttoken": true}"#;
    let folder = embedding_folder(&reference.folder, flags);
    let source = ModelSource::find(reference.folder.to_str().unwrap(), None).unwrap();
    let checkpoint = Checkpoint::open(&source.files, None).unwrap();
    for ranks in [1, 2] {
        let options = LoadOptions { tp: NonZeroUsize::new(ranks), ..exact() };
        let mut model = tried(folder.path(), &options).unwrap().model;
        let (hidden, vocab) = (model.info().embedding_size.unwrap(), model.info().vocab_size);
        let head = checkpoint.values("lm_head.weight", &[vocab, hidden]).unwrap();
        let pages = reference.cases.iter().map(|case| case.prompt.len().div_ceil(PAGE_TOKENS));
        model.allocate_kv(pages.max().unwrap(), PAGE_TOKENS).unwrap();
        for case in &reference.cases {
            let rows = case.prompt.len();
            let pages = (0..rows.div_ceil(PAGE_TOKENS) as u32).collect();
            let batch =
                StepBatch::known(&case.prompt, vec![scheduled(rows, 0, pages, LogitRows::Last)]);
            let embedding = model.step(&batch).unwrap().to_vec();
            assert_eq!(embedding.len(), hidden);
            let expected = &case.logits[(rows - 1) * vocab..rows * vocab];
            for (weights, expected) in head.chunks_exact(hidden).zip(expected) {
                let logit: f32 = weights.iter().zip(&embedding).map(|(a, b)| a * b).sum();
                assert!((logit - expected).abs() < 1e-3, "{logit} is not {expected}");
            }
        }
    }
}

#[test]
fn folders_that_pool_in_another_way_are_refused() {
    let all = references();
    let reference = all.iter().find(|one| one.name == "qwen3-dense").unwrap();
    let error = |pooling: &str| {
        let folder = embedding_folder(&reference.folder, pooling);
        tried(folder.path(), &exact()).map(|_| ()).unwrap_err()
    };
    let mean = error(r#"{"pooling_mode_mean_tokens": true}"#);
    assert!(mean.contains("pooling `mean_tokens` is not supported; supported: last"), "{mean}");
    let two = error(r#"{"pooling_mode_lasttoken": true, "pooling_mode_mean_tokens": true}"#);
    assert!(two.contains("pooling `lasttoken and mean_tokens` is not supported"), "{two}");
    let newer = error(r#"{"pooling_mode": "cls"}"#);
    assert!(newer.contains("pooling `cls` is not supported"), "{newer}");
    // Layers after the pooling, and a path that leads out of the folder.
    for (modules, expected) in [
        (
            r#"[{"type": "models.Pooling", "path": "1_Pooling"}, {"type": "models.Dense"}]"#,
            "`Dense`",
        ),
        (r#"[{"type": "models.Pooling", "path": "../1_Pooling"}]"#, "not the name of a folder"),
        (r#"[{"type": "models.Transformer"}]"#, "there is no module `Pooling`"),
        ("{", "it is not JSON"),
    ] {
        let folder = embedding_folder(&reference.folder, r#"{"pooling_mode": "lasttoken"}"#);
        assert!(tried(folder.path(), &exact()).is_ok());
        std::fs::write(folder.path().join("modules.json"), modules).unwrap();
        let error = tried(folder.path(), &exact()).map(|_| ()).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn gguf_files_say_by_a_number_how_they_pool() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    let loaded = |settings: &[(&str, Setting)]| {
        let mut file = tiny_llama(1);
        for (key, value) in settings {
            file.value(format!("llama.{key}"), value.clone());
        }
        std::fs::write(&path, file.bytes()).unwrap();
        tried(&path, &LoadOptions::default())
    };
    let pooling = |number| ("pooling_type", Setting::Unsigned(number));
    for (number, size) in [(0, None), (3, Some(64))] {
        let loaded = loaded(&[pooling(number)]).unwrap();
        assert_eq!(loaded.info().embedding_size, size, "{number}");
    }
    for (number, name) in [(1, "mean"), (2, "cls"), (4, "rank"), (9, "of an unknown type")] {
        let error = loaded(&[pooling(number)]).map(|_| ()).unwrap_err();
        assert!(error.contains(&format!("pooling `{name}` is not supported")), "{error}");
    }
    let both_ways = [pooling(3), ("attention.causal", Setting::Bool(false))];
    let error = loaded(&both_ways).map(|_| ()).unwrap_err();
    assert!(error.contains("attention to later tokens is not supported"), "{error}");
}
