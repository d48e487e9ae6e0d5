//! Reader of answers with embeddings: JSON documents of OpenAI's `/v1/embeddings`. It checks that there
//! is an embedding and keeps none.
//!
//! Source: OpenAI's API reference, "Create embeddings".

use serde::Deserialize;
use serde::de::Error as _;
use serde_json::Value;

use super::delta::{Event, PromptDetails, Usage, words_of};

#[derive(Deserialize)]
struct Document {
    #[serde(default)]
    data: Vec<Item>,
    usage: Option<DocumentUsage>,
    error: Option<Value>,
}

/// Embedding of one input.
#[derive(Deserialize)]
struct Item {
    embedding: Vector,
}

/// Elements of an embedding; or their bytes in Base64, where the request asks for that.
#[derive(Deserialize)]
#[serde(untagged)]
enum Vector {
    Elements(Vec<f64>),
    Base64(String),
}

impl Vector {
    fn is_empty(&self) -> bool {
        match self {
            Self::Elements(elements) => elements.is_empty(),
            Self::Base64(text) => text.is_empty(),
        }
    }
}

#[derive(Deserialize)]
struct DocumentUsage {
    prompt_tokens: Option<u64>,
    prompt_tokens_details: Option<PromptDetails>,
}

/// Parses the document of an answer with embeddings.
///
/// # Errors
/// The document is not JSON of the API format, has no embedding, or has one without elements or with
/// an element that is not a number.
pub(super) fn read_embeddings(document: &[u8]) -> Result<Event<'_>, serde_json::Error> {
    let Document { data, usage, error } = serde_json::from_slice(document)?;
    if let Some(error) = &error {
        return Ok(Event::Error(words_of(error)));
    }
    if data.is_empty() || data.iter().any(|item| item.embedding.is_empty()) {
        return Err(serde_json::Error::custom("an embedding is missing or empty"));
    }
    let usage = usage.and_then(|usage| {
        Some(Usage {
            prompt_tokens: usage.prompt_tokens?,
            completion_tokens: 0,
            cached_tokens: usage.prompt_tokens_details.and_then(|details| details.cached_tokens),
        })
    });
    Ok(Event::Embedding(usage))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_embedding_is_numbers_or_text_and_its_usage_is_read() {
        let usage = Usage { prompt_tokens: 5, completion_tokens: 0, cached_tokens: Some(4) };
        let cases = [
            (r#"{"data":[{"index":0,"embedding":[0.6,-8e-1,0]}]}"#, None),
            (r#"{"data":[{"embedding":"AACAPw=="}],"usage":{"total_tokens":5}}"#, None),
            (
                r#"{"data":[{"embedding":[1]}],"error":null,"usage":{"prompt_tokens":5,
                    "total_tokens":5,"prompt_tokens_details":{"cached_tokens":4}}}"#,
                Some(usage),
            ),
        ];
        for (document, expected) in cases {
            let event = read_embeddings(document.as_bytes()).unwrap();
            assert!(matches!(event, Event::Embedding(found) if found == expected), "{document}");
        }
    }

    #[test]
    fn a_document_without_an_embedding_is_no_answer() {
        for document in [
            "",
            "[]",
            "{}",
            r#"{"data":[]}"#,
            r#"{"data":[{"index":0}]}"#,
            r#"{"data":[{"embedding":[]}]}"#,
            r#"{"data":[{"embedding":""}]}"#,
            r#"{"data":[{"embedding":null}]}"#,
            r#"{"data":[{"embedding":[0.6,null]}]}"#,
            r#"{"data":[{"embedding":[0.6]},{"embedding":[]}]}"#,
            r#"{"data":[{"embedding":[0.6"#,
        ] {
            assert!(read_embeddings(document.as_bytes()).is_err(), "{document}");
        }
        let event = read_embeddings(br#"{"error":{"message":"no pages"}}"#).unwrap();
        assert!(matches!(event, Event::Error(ref text) if text == "no pages"));
    }
}
