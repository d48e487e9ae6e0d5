//! Reads a JSON request body field by field, so that each error names its field, and refuses
//! unsupported fields if they would change the output.

use std::collections::BTreeMap;

use axum::body::Bytes;
use serde_json::{Map, Value};

use super::error::{ApiError, ErrorKind, Result, shown};
use super::json::{self, Budget, Json};
use super::work::parsing;

/// Fields of a request's JSON object that have not been read yet. A `null` value counts as absent.
#[derive(Debug)]
pub(super) struct Fields {
    map: BTreeMap<String, Json>,
    /// Number of JSON values that texts in the fields may still contain.
    pub(super) budget: Budget,
}

/// Names of unsupported request fields that would change the output, grouped by the value with
/// which they have no effect: with it they are accepted, with another they are refused. Unknown
/// fields that are not listed are ignored.
const UNSUPPORTED: &[(Neutral, &str)] = &[
    (
        Neutral::False,
        "add_special_tokens continue_final_message early_stopping echo return_hidden_states \
         return_logprob return_routed_experts return_text_in_logprobs use_beam_search",
    ),
    (
        Neutral::Empty,
        "allowed_token_ids bad_words documents functions grammar guided_decoding logit_processors \
         logits_processors logprob_token_ids lora stop_regex suffix token_ids_logprob tools \
         vllm_xargs",
    ),
    (
        Neutral::Never,
        "audio audio_data chat_template custom_logit_processor ebnf enable_thinking \
         guided_grammar image_data input_embeds input_ids lora_path max_new_tokens min_new_tokens \
         n_predict prompt_embeds prompt_logprobs reasoning_effort repetition_detection \
         thinking thinking_token_budget top_n_sigma video_data web_search_options",
    ),
    (
        Neutral::True,
        "detokenize do_sample include_reasoning separate_reasoning spaces_between_special_tokens \
         stream_reasoning",
    ),
    (
        Neutral::Zero,
        "dry_multiplier dynatemp_range mirostat no_repeat_ngram_size top_a top_logprobs_num \
         xtc_probability",
    ),
    (Neutral::Text(&["none", "auto"]), "function_call tool_choice"),
    (Neutral::One, "length_penalty num_beams repeat_penalty tfs_z typical typical_p"),
    (Neutral::OnlyText, "modalities"),
    (Neutral::Text(&["medium"]), "verbosity"),
    (Neutral::MinusOne, "truncate_prompt_tokens"),
];

/// Values of an unsupported request field at which it has no effect on the output.
#[derive(Debug, Clone, Copy)]
enum Neutral {
    Never,
    True,
    False,
    Zero,
    One,
    /// The field has no effect if its value is -1, for a prompt as long as the model takes: the server
    /// refuses longer ones.
    MinusOne,
    /// The field has no effect if its value is an empty list, object or string.
    Empty,
    Text(&'static [&'static str]),
    /// The field has no effect if its value is a list without other entries than `"text"`.
    OnlyText,
}

impl Neutral {
    /// Returns true if an unsupported request field has no effect with this value.
    fn holds(self, value: &Value) -> bool {
        match self {
            Self::Never => false,
            Self::True => value == &Value::Bool(true),
            Self::False => value == &Value::Bool(false),
            // `false` turns such an option off, too.
            Self::Zero => value.as_f64() == Some(0.0) || value == &Value::Bool(false),
            Self::One => value.as_f64() == Some(1.0),
            Self::MinusOne => value.as_f64() == Some(-1.0),
            Self::Empty => match value {
                Value::Array(items) => items.is_empty(),
                Value::Object(items) => items.is_empty(),
                Value::String(text) => text.is_empty(),
                _ => false,
            },
            Self::Text(texts) => texts.iter().any(|text| value == text),
            Self::OnlyText => value.as_array().is_some_and(|all| all.iter().all(|v| v == "text")),
        }
    }
}

/// Limit on the length in bytes of all texts of a chat request. The chat template copies them several
/// times, and answers may repeat them; four million characters are a million tokens.
const CHAT_BYTES_MAX: usize = 4 << 20;

/// Length in bytes up to which a body is parsed on the event loop, within a millisecond. A longer one
/// goes to a blocking thread.
const INLINE_BYTES_MAX: usize = 64 * 1024;

impl Fields {
    /// Parses a request body as [`Fields::parse`] does, and drops it. Other clients need not wait for
    /// a long one.
    pub(super) async fn read(body: Bytes) -> Result<Self> {
        Self::read_with_ids(body, "prompt").await
    }

    /// Parses a request body as [`Fields::read`] does, of a route whose field `name` has the token
    /// ids.
    pub(super) async fn read_with_ids(body: Bytes, name: &'static str) -> Result<Self> {
        if body.len() <= INLINE_BYTES_MAX {
            return Self::parse_with_ids(&body, name);
        }
        parsing(move || Self::parse_with_ids(&body, name)).await?
    }

    /// Parses a request body, which must be a JSON object without too many JSON values.
    pub(super) fn parse(body: &[u8]) -> Result<Self> {
        Self::parse_with_ids(body, "prompt")
    }

    fn parse_with_ids(body: &[u8], name: &'static str) -> Result<Self> {
        let (map, budget) = json::read_object(body, &[name, "tokens"])?;
        Ok(Self { map, budget })
    }

    pub(super) fn of(map: Map<String, Value>) -> Self {
        let map = map.into_iter().map(|(name, value)| (name, Json::Value(value))).collect();
        Self { map, budget: Budget::default() }
    }

    /// Removes a field of the request and returns its value; `None` if it is absent or `null`. A
    /// list in a field for token ids is returned without its items.
    pub(super) fn take(&mut self, name: &str) -> Option<Value> {
        Some(match self.take_json(name)? {
            Json::Value(value) => value,
            Json::Ids(_) | Json::List(_) => Value::Array(Vec::new()),
        })
    }

    /// Removes a field of the request that may have lists of token ids, and returns its value;
    /// `None` if it is absent or `null`.
    pub(super) fn take_json(&mut self, name: &str) -> Option<Json> {
        self.map.remove(name).filter(|json| !matches!(json, Json::Value(Value::Null)))
    }

    /// Refuses the fields of a chat request if their texts are too long together, before they are
    /// copied. The error names the field with the longest.
    pub(super) fn check_texts(&self) -> Result<()> {
        let lengths = self.map.iter().map(|(name, json)| match json {
            Json::Value(value) => (text_bytes(value), name),
            Json::Ids(_) | Json::List(_) => (0, name),
        });
        let lengths: Vec<_> = lengths.collect();
        let bytes: usize = lengths.iter().map(|(bytes, _)| bytes).sum();
        let Some((most, name)) = lengths.into_iter().max().filter(|_| bytes > CHAT_BYTES_MAX)
        else {
            return Ok(());
        };
        let message = format!(
            "the request has texts of {bytes} bytes, more than the limit of {CHAT_BYTES_MAX}; {most} of \
             them are in `{}`",
            shown(name)
        );
        Err(ApiError::new(ErrorKind::ContextLengthExceeded, message).at(name))
    }

    pub(super) fn bool(&mut self, name: &str) -> Result<bool> {
        self.bool_or(name, false)
    }

    pub(super) fn bool_or(&mut self, name: &str, default: bool) -> Result<bool> {
        match self.take(name) {
            None => Ok(default),
            Some(Value::Bool(value)) => Ok(value),
            Some(other) => Err(wrong_type(name, "true or false", &other)),
        }
    }

    pub(super) fn string(&mut self, name: &str) -> Result<Option<String>> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(value)) => Ok(Some(value)),
            Some(other) => Err(wrong_type(name, "a string", &other)),
        }
    }

    /// Reads a request field whose value is a whole number of at least `min`; `None` if it is
    /// absent.
    pub(super) fn count(&mut self, name: &str, min: usize) -> Result<Option<usize>> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let count = value.as_u64().and_then(|count| usize::try_from(count).ok());
        match count.filter(|count| *count >= min) {
            Some(count) => Ok(Some(count)),
            None => Err(wrong_type(name, &format!("a whole number of at least {min}"), &value)),
        }
    }

    /// Reads a request field whose value is a number of 32 bits that satisfies `fits`; `None` if it
    /// is absent. `wanted` describes the range in the error.
    pub(super) fn number(
        &mut self,
        name: &str,
        wanted: &str,
        fits: impl Fn(f32) -> bool,
    ) -> Result<Option<f32>> {
        let Some(value) = self.take(name) else { return Ok(None) };
        match value.as_f64().map(|number| number as f32).filter(|n| n.is_finite() && fits(*n)) {
            Some(number) => Ok(Some(number)),
            None => Err(wrong_type(name, wanted, &value)),
        }
    }

    /// Reads a request field whose value is a list of at most `max` token ids, each below
    /// `vocab_size`; `None` if it is absent.
    pub(super) fn tokens(
        &mut self,
        name: &str,
        vocab_size: usize,
        max: usize,
    ) -> Result<Option<Vec<u32>>> {
        let Some(json) = self.take_json(name) else { return Ok(None) };
        let ids = tokens(name, json, vocab_size)?;
        if ids.len() <= max {
            return Ok(Some(ids));
        }
        let message = format!("`{name}` has {} token ids, more than the limit of {max}", ids.len());
        Err(ApiError::field(name, message))
    }

    /// Refuses unsupported fields that would change the output, among the request fields that
    /// nothing has read.
    pub(super) fn finish(mut self) -> Result<()> {
        for (neutral, name) in unsupported() {
            let Some(value) = self.take(name) else { continue };
            if !neutral.holds(&value) {
                let message = format!("`{name}` is not supported{}", hint(name));
                return Err(ApiError::new(ErrorKind::UnsupportedField, message).at(name));
            }
        }
        Ok(())
    }
}

fn unsupported() -> impl Iterator<Item = (Neutral, &'static str)> {
    UNSUPPORTED
        .iter()
        .flat_map(|(neutral, names)| names.split(' ').map(move |name| (*neutral, name)))
}

fn hint(name: &str) -> &'static str {
    match name {
        "n_predict" | "max_new_tokens" => "; hint: `max_tokens` is the same",
        "min_new_tokens" => "; hint: `min_tokens` is the same",
        "enable_thinking" => "; hint: give it in `chat_template_kwargs`",
        "repeat_penalty" => "; hint: `repetition_penalty` is the same",
        _ => "",
    }
}

/// Converts the JSON list in the field `name` to token ids, each below `vocab_size`.
pub(super) fn tokens(name: &str, json: Json, vocab_size: usize) -> Result<Vec<u32>> {
    let wanted = "a list of token ids";
    let beyond = |id: u64| {
        let message = format!("`{name}` has the token id {id}, but ids are below {vocab_size}");
        ApiError::field(name, message)
    };
    let checked = |id: u64| {
        let token = u32::try_from(id).ok().filter(|id| (*id as usize) < vocab_size);
        token.ok_or_else(|| beyond(id))
    };
    let value = |value: &Value| match value.as_u64() {
        Some(id) => checked(id),
        None => Err(wrong_type(name, wanted, value)),
    };
    match json {
        Json::Ids(ids) => match ids.iter().find(|id| **id as usize >= vocab_size) {
            Some(id) => Err(beyond(u64::from(*id))),
            None => Ok(ids),
        },
        Json::List(items) => items
            .iter()
            .map(|item| match item {
                Json::Value(item) => value(item),
                _ => Err(wrong_type(name, wanted, &Value::Array(Vec::new()))),
            })
            .collect(),
        Json::Value(Value::Array(items)) => items.iter().map(value).collect(),
        Json::Value(other) => Err(wrong_type(name, wanted, &other)),
    }
}

/// Builds the error for a field with a wrong value: it says which value was expected and, if it is
/// short, which value was found.
pub(super) fn wrong_type(name: &str, wanted: &str, found: &Value) -> ApiError {
    let found = match found {
        Value::Array(items) if items.is_empty() => "an empty list".to_owned(),
        Value::Array(_) if wanted.contains("list") => "a list of something else".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        Value::String(text) if text.len() > 40 => "a string".to_owned(),
        short => format!("`{short}`"),
    };
    ApiError::field(name, format!("`{name}` must be {wanted}, but is {found}"))
}

/// Returns the length in bytes of all texts in a JSON value, names included.
fn text_bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(text_bytes).sum(),
        Value::Object(map) => map.iter().map(|(name, value)| name.len() + text_bytes(value)).sum(),
        _ => 0,
    }
}

/// Returns the text of a content that is a text, or a list of parts of the types `kinds`, which have
/// `text`.
pub(super) fn text_of(name: &str, content: &Value, kinds: &[&str]) -> Result<String> {
    let parts = match content {
        Value::String(text) => return Ok(text.clone()),
        Value::Array(parts) => parts,
        other => return Err(wrong_type(name, "a text or a list of text parts", other)),
    };
    let texts = parts.iter().map(|part| {
        let is_text = part["type"].as_str().is_some_and(|kind| kinds.contains(&kind));
        let text = part["text"].as_str().filter(|_| is_text);
        text.ok_or_else(|| unsupported_part(name, &part["type"]))
    });
    texts.collect()
}

/// Builds the error of a part of the field `name` whose type is not supported.
pub(super) fn unsupported_part(name: &str, kind: &Value) -> ApiError {
    let kind = shown(kind.as_str().unwrap_or("?"));
    let message = format!("`{name}` has a part of type `{kind}`, which is not supported");
    ApiError::new(ErrorKind::UnsupportedField, message).at(name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    fn refused(body: &str) -> Option<String> {
        Fields::parse(body.as_bytes()).unwrap().finish().err().and_then(|error| error.param)
    }

    #[test]
    fn a_list_of_the_wrong_kind_is_told_from_the_wanted_one() {
        for (found, told) in [
            (
                serde_json::json!([1]),
                "`x` must be a list of texts, but is a list of something else",
            ),
            (serde_json::json!([]), "`x` must be a list of texts, but is an empty list"),
            (serde_json::json!(1), "`x` must be a list of texts, but is `1`"),
        ] {
            assert_eq!(wrong_type("x", "a list of texts", &found).message, told);
        }
    }

    #[test]
    fn unsupported_fields_are_refused_unless_they_would_do_nothing() {
        for (body, expected) in [
            (r#"{"guided_grammar": null, "user": "x", "metadata": {}, "whatever": 1}"#, None),
            (r#"{"guided_grammar": "root ::= x"}"#, Some("guided_grammar")),
            (r#"{"separate_reasoning": true, "top_logprobs_num": 0}"#, None),
            (r#"{"tools": [], "tool_choice": "none"}"#, None),
            (r#"{"tools": [{}]}"#, Some("tools")),
            (r#"{"length_penalty": 1, "use_beam_search": false, "suffix": ""}"#, None),
            (r#"{"length_penalty": 0.5}"#, Some("length_penalty")),
            (r#"{"echo": true}"#, Some("echo")),
            (r#"{"mirostat": 0, "modalities": ["text"]}"#, None),
        ] {
            assert_eq!(refused(body).as_deref(), expected, "{body}");
        }
    }

    #[tokio::test]
    async fn a_long_body_is_not_parsed_where_others_wait() {
        let mut context = Context::from_waker(Waker::noop());
        let body = |ids: usize| Bytes::from(format!("{{\"prompt\": [{}1]}}", "1, ".repeat(ids)));
        let mut short = pin!(Fields::read(body(1000)));
        assert!(short.as_mut().poll(&mut context).is_ready());
        let mut long = pin!(Fields::read(body(1_000_000)));
        assert!(long.as_mut().poll(&mut context).is_pending());
        let ids = long.await.unwrap().tokens("prompt", 2, usize::MAX).unwrap().unwrap();
        assert_eq!(ids.len(), 1_000_001);
    }

    #[test]
    fn the_table_is_sorted_and_has_no_field_twice() {
        for (_, names) in UNSUPPORTED {
            assert!(names.split(' ').is_sorted(), "{names}");
        }
        let names: Vec<&str> = unsupported().map(|(_, name)| name).collect();
        let one_each: BTreeSet<&str> = names.iter().copied().collect();
        assert_eq!(one_each.len(), names.len());
    }
}
