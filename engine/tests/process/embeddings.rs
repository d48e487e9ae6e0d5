//! Tests of the binary with a checkpoint that embeds texts.

use serde_json::{Value, json};
use tempfile::NamedTempFile;

use crate::launched::{Launched, command, end_of};
use crate::tiny_gguf::tiny_llama;
use engine_weights::gguf::Value as Setting;

/// File of the tiny model that says it pools by the last token and ends each text with the end token.
fn embedding_model() -> NamedTempFile {
    let mut model = tiny_llama(1);
    model.value("llama.pooling_type", Setting::Unsigned(3));
    model.value("tokenizer.ggml.add_eos_token", Setting::Bool(true));
    let file = tempfile::Builder::new().suffix(".gguf").tempfile().unwrap();
    std::fs::write(file.path(), model.bytes()).unwrap();
    file
}

#[tokio::test]
async fn equal_texts_have_equal_vectors_whatever_else_is_asked() {
    let model = embedding_model();
    let server = Launched::serve(model.path().to_str().unwrap(), &["--threads", "1"]);
    let ask = async |body: Value| server.post("/v1/embeddings", &body).await;
    let alone = ask(json!({"input": "the rain"})).await;
    let vector = &alone["data"][0]["embedding"];
    let numbers: Vec<f64> =
        vector.as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect();
    let length: f64 = numbers.iter().map(|value| value * value).sum();
    assert_eq!(numbers.len(), 64);
    assert!((length - 1.0).abs() < 1e-5, "{length}");
    // With the end token, and again when the prefix cache has most of the text.
    let long = "the rain in the sun ".repeat(20);
    let together = ask(json!({"input": [long.as_str(), "the rain", long.as_str()]})).await;
    let vectors = together["data"].as_array().unwrap();
    assert_eq!(&vectors[1]["embedding"], vector);
    assert_eq!(vectors[0]["embedding"], vectors[2]["embedding"]);
    assert_ne!(vectors[0]["embedding"], vectors[1]["embedding"]);
    let tokens = server.post("/tokenize", &json!({"prompt": "the rain"})).await;
    assert_eq!(alone["usage"]["prompt_tokens"], tokens["count"]);
    assert_eq!(tokens["tokens"].as_array().unwrap().last(), Some(&json!(2)));
}

#[test]
fn commands_that_generate_say_what_the_model_is_for() {
    let model = embedding_model();
    let path = model.path().to_str().unwrap();
    let text = NamedTempFile::new().unwrap();
    std::fs::write(text.path(), "the rain ".repeat(1000)).unwrap();
    let perplexity = ["perplexity", path, text.path().to_str().unwrap()];
    for args in [&["bench", path][..], &perplexity] {
        let (code, end) = end_of(args);
        assert_eq!(code, Some(2), "{end}");
        assert!(end.contains("embeds texts and generates none"), "{end}");
    }
    let mut chat = command(&["chat", path, "--device", "cpu"]);
    let told = chat.stdin(std::process::Stdio::piped()).spawn().and_then(|mut child| {
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"hello\n")?;
        child.wait_with_output()
    });
    let told = String::from_utf8(told.unwrap().stderr).unwrap();
    assert!(told.contains("embeds texts and generates none"), "{told}");
}
