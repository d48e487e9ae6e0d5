//! Golden outputs, conformance and invariance of models.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::*;
use crate::tokenize::{ChatInput, Tokenizer};
use crate::weights::ModelSource;

const SMOLLM2: &str = "sha256/b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53/\
                       SmolLM2-135M-Instruct.Q4_1.gguf";
const PAGE_TOKENS: usize = 16;

/// The path under the folder that `variable` names, or a note that the test is skipped.
fn input(variable: &str, path: &str) -> Option<PathBuf> {
    let found = std::env::var_os(variable).map(|folder| Path::new(&folder).join(path));
    match found {
        Some(path) if path.exists() => Some(path),
        _ => {
            eprintln!("skipped: `{path}` is not under ${variable}");
            None
        }
    }
}

fn load_path(path: &Path, options: &LoadOptions) -> Loaded {
    let source = ModelSource::find(path.to_str().unwrap(), None).unwrap();
    load(&source, options).unwrap()
}

fn segment(rows: usize, position: usize, pages: Vec<u32>, logits: LogitRows) -> Segment {
    Segment { rows, position, pages, logits }
}

fn argmax(row: &[f32]) -> u32 {
    (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap() as u32
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

fn check_golden(kv: KvChoice) {
    let Some(path) = input("REDLINE_CACHE", SMOLLM2) else { return };
    let Some(golden) = input("REDLINE_FIXTURES", "golden/smollm2-llama-cpp.json") else { return };
    let golden: Value = serde_json::from_slice(&std::fs::read(golden).unwrap()).unwrap();
    let mut loaded = load_path(&path, &LoadOptions { kv, ..LoadOptions::default() });
    loaded.model.allocate_kv(32, PAGE_TOKENS).unwrap();
    let vocab = loaded.info().vocab_size;
    let (mut decided, mut agreed, mut near) = (0, 0, 0);
    for case in golden["cases"].as_array().unwrap() {
        let (prompt, greedy) = (ids(&case["prompt"]), ids(&case["greedy"]));
        let mut tokens = prompt.clone();
        tokens.extend(&greedy[..greedy.len() - 1]);
        let rows = tokens.len();
        let pages = (0..rows.div_ceil(PAGE_TOKENS) as u32).collect();
        let segments = vec![segment(rows, 0, pages, LogitRows::All)];
        let logits = loaded.model.step(&StepBatch { tokens, segments }).unwrap();
        for (i, want) in greedy.iter().enumerate() {
            let row = &logits[(prompt.len() - 1 + i) * vocab..][..vocab];
            let agrees = argmax(row) == *want;
            match case["margin"][i].as_f64() {
                Some(margin) if margin >= 0.35 => {
                    decided += 1;
                    agreed += usize::from(agrees);
                    assert!(agrees, "{case} position {i}: margin {margin}");
                }
                _ => near += usize::from(agrees),
            }
        }
    }
    eprintln!("{agreed} of {decided} decided positions agree, and {near} of the others");
    assert_eq!(decided, 1113);
}

#[test]
fn smollm2_agrees_with_llama_cpp_wherever_that_is_decided() {
    check_golden(KvChoice::F32);
}

#[test]
fn smollm2_agrees_with_llama_cpp_on_an_f16_cache() {
    check_golden(KvChoice::F16);
}

#[test]
fn smollm2_prompts_have_the_ids_of_llama_cpp() {
    let Some(path) = input("REDLINE_CACHE", SMOLLM2) else { return };
    let Some(golden) = input("REDLINE_FIXTURES", "golden/smollm2-llama-cpp.json") else { return };
    let golden: Value = serde_json::from_slice(&std::fs::read(golden).unwrap()).unwrap();
    let source = ModelSource::find(path.to_str().unwrap(), None).unwrap();
    let checkpoint = crate::weights::Checkpoint::open(&source.files, None).unwrap();
    let tokenizer = Tokenizer::load(checkpoint.config()).unwrap().unwrap();
    for case in golden["cases"].as_array().unwrap() {
        let text = match case.get("chat") {
            None => case["text"].as_str().unwrap().to_owned(),
            Some(chat) => {
                let messages = serde_json::json!([{"role": "user", "content": chat}]);
                let input = ChatInput {
                    messages: &messages,
                    tools: None,
                    add_generation_prompt: true,
                    variables: None,
                    now_unix_s: 0,
                };
                let rendered = tokenizer.chat_template().unwrap().render(&input).unwrap();
                assert_eq!(rendered, case["rendered"].as_str().unwrap());
                rendered
            }
        };
        let got = tokenizer.encode(&text, true).unwrap();
        assert_eq!(got, ids(&case["prompt"]), "{text:?}");
        assert_eq!(tokenizer.decode(&got, false).unwrap(), text);
    }
}
