//! `POST /v1/completions`.

use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use serde_json::{Value, json};

use super::answer::{self, Choice, Piece, Shape, Writing, reason};
use super::error::ApiError;
use super::fields::Fields;
use super::params::{Params, Prompt, check_choices, take_completion_logprobs, take_prompts};
use super::state::App;
use super::tokens::{encode, token_text};
use crate::worker::TokenOutput;

/// As OpenAI's documentation has it.
const DEFAULT_MAX_TOKENS: usize = 16;

pub(super) async fn completions(State(app): State<App>, body: Bytes) -> Result<Response, ApiError> {
    let ready = app.ready_for_work()?;
    let mut fields = Fields::parse(&body)?;
    super::check_model(&mut fields, &ready)?;
    let prompts = take_prompts(&mut fields, ready.vocab_size)?;
    let params = Params::take(&mut fields, &["max_tokens"], ready.vocab_size)?;
    let logprobs = take_completion_logprobs(&mut fields)?;
    let add_special_tokens = fields.bool_or("add_special_tokens", true)?;
    fields.finish()?;
    check_choices(prompts.len(), params.n)?;
    let mut prompt_ids = Vec::with_capacity(prompts.len());
    let mut requests = Vec::new();
    for prompt in prompts {
        let ids = match prompt {
            Prompt::Tokens(ids) => ids,
            Prompt::Text(text) => encode(&ready, text, add_special_tokens).await?,
        };
        let default = Some(DEFAULT_MAX_TOKENS);
        let fresh_seed = || app.unique();
        requests.extend(params.requests(&ids, logprobs, default, &ready.limits, fresh_seed)?);
        prompt_ids.push(ids);
    }
    let ticket = ready.handle.submit(requests)?;
    let writing = Writing {
        id: format!("cmpl-{:016x}", app.unique()),
        created: app.clock().unix_s(),
        ready,
        answer: params.answer,
        prompts: prompt_ids,
        n: params.n,
    };
    answer::respond(Completion, writing, ticket).await
}

/// Reads `body` as the route does, and says whether its fields can be served: for fuzzing, without
/// a server.
///
/// # Errors
/// It is not JSON, or one of its fields cannot be taken.
pub fn check_completion(body: &[u8], vocab_size: usize) -> Result<(), ApiError> {
    let mut fields = Fields::parse(body)?;
    fields.string("model")?;
    let prompts = take_prompts(&mut fields, vocab_size)?;
    let params = Params::take(&mut fields, &["max_tokens"], vocab_size)?;
    take_completion_logprobs(&mut fields)?;
    fields.bool_or("add_special_tokens", true)?;
    fields.finish()?;
    check_choices(prompts.len(), params.n)
}

#[derive(Debug)]
struct Completion;

impl Shape for Completion {
    const OBJECT: &'static str = "text_completion";
    const CHUNK_OBJECT: &'static str = "text_completion";

    fn whole(&self, writing: &Writing, choice: &Choice) -> Value {
        let (finish_reason, stop_reason) = reason(choice.finish.as_ref());
        let mut value = json!({
            "index": choice.index,
            "text": choice.text,
            "logprobs": logprobs(writing, choice.tokens.iter(), 0),
            "finish_reason": finish_reason,
            "stop_reason": stop_reason,
        });
        if writing.answer.return_token_ids {
            let ids: Vec<u32> = choice.tokens.iter().map(|output| output.token).collect();
            value["token_ids"] = ids.into();
            value["prompt_token_ids"] = writing.prompt_ids(choice.index).into();
        }
        value
    }

    fn chunk(&self, writing: &Writing, piece: &Piece<'_>) -> Value {
        let (finish_reason, stop_reason) = reason(piece.output.finish.as_ref());
        let mut value = json!({
            "index": piece.index,
            "text": piece.output.text,
            "logprobs": logprobs(writing, piece.output.token.iter(), piece.text_offset),
            "finish_reason": finish_reason,
            "stop_reason": stop_reason,
        });
        if writing.answer.return_token_ids {
            let ids: Vec<u32> = piece.output.token.iter().map(|output| output.token).collect();
            value["token_ids"] = ids.into();
            if piece.first {
                value["prompt_token_ids"] = writing.prompt_ids(piece.index).into();
            }
        }
        value
    }

    fn prompt_ids_on_top(&self) -> bool {
        false
    }
}

/// OpenAI's four lists, `null` where none were asked for.
fn logprobs<'a>(
    writing: &Writing,
    outputs: impl Iterator<Item = &'a TokenOutput>,
    mut text_offset: usize,
) -> Value {
    let (mut tokens, mut values, mut tops, mut offsets) = (vec![], vec![], vec![], vec![]);
    for logprobs in outputs.filter_map(|output| output.logprobs.as_ref()) {
        let text = token_text(&writing.ready, logprobs.chosen.token);
        offsets.push(text_offset);
        text_offset += text.chars().count();
        tokens.push(text);
        values.push(logprobs.chosen.logprob);
        // Two tokens may share a text; the likelier one keeps the place.
        let mut top = serde_json::Map::new();
        for candidate in std::iter::once(&logprobs.chosen).chain(&logprobs.top) {
            let text = token_text(&writing.ready, candidate.token);
            top.entry(text).or_insert_with(|| candidate.logprob.into());
        }
        tops.push(if logprobs.top.is_empty() { Value::Null } else { top.into() });
    }
    if tokens.is_empty() {
        return Value::Null;
    }
    json!({
        "tokens": tokens, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets,
    })
}
