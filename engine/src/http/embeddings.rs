//! Route `POST /v1/embeddings`: reads the request, tokenizes its inputs, writes normalized vectors.

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Serialize;

use super::answer::{cut_off, failed};
use super::error::{ApiError, ErrorKind, Result, shown};
use super::fields::Fields;
use super::params::{Prompt, take_prompts};
use super::state::App;
use crate::worker::{Finish, Request, Ticket};
use engine_schedule::Limits;

/// Name of the field with the texts to embed.
const INPUT: &str = "input";

/// Limit on the number of inputs of one request, from OpenAI's API reference; a request with more is
/// refused.
const INPUTS_MAX: usize = 2048;

/// Body of the answer.
#[derive(Debug, Serialize)]
struct Answer {
    object: &'static str,
    data: Vec<Embedding>,
    model: String,
    usage: Usage,
}

/// Embedding of one input.
#[derive(Debug, Serialize)]
struct Embedding {
    object: &'static str,
    /// Index of the input in the request.
    index: usize,
    embedding: Vector,
}

/// Elements of an embedding, in the encoding that the request wants.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Vector {
    Floats(Vec<f32>),
    /// The elements' bytes, little-endian, in Base64.
    Base64(String),
}

#[derive(Debug, Serialize)]
struct Usage {
    prompt_tokens: usize,
    total_tokens: usize,
}

pub(super) async fn embeddings(State(app): State<App>, body: Bytes) -> Result<Response> {
    let ready = app.ready_for_work()?;
    let Some(size) = ready.embedding_size else {
        let message = format!(
            "the model `{}` generates text and does not embed; hint: serve a model that is made for \
             it, such as Qwen3-Embedding",
            ready.model_name
        );
        return Err(ApiError::field("model", message));
    };
    let mut fields = Fields::read_with_ids(body, INPUT).await?;
    super::check_model(&mut fields, &ready)?;
    let EmbeddingRequest { inputs, dimensions, is_base64, add_special_tokens } =
        EmbeddingRequest::take(fields, ready.vocab_size, size)?;
    let mut requests = Vec::with_capacity(inputs.len());
    let mut prompt_tokens = 0;
    for input in inputs {
        // Many short inputs take long together, and other clients wait meanwhile.
        tokio::task::yield_now().await;
        let ids = match input {
            Prompt::Tokens(ids) => ids,
            Prompt::Text(text) => {
                ready.encode(text, add_special_tokens).await.map_err(|error| error.at(INPUT))?
            }
        };
        prompt_tokens += ids.len();
        requests.push(request(ids, &ready.limits)?);
    }
    let ticket = ready.handle.submit(requests)?;
    let mut data = collect(ticket).await?.ok_or_else(|| cut_off(&ready))?;
    data.iter_mut().for_each(|row| normalize(row, dimensions));
    let vector = |row: Vec<f32>| if is_base64 { base64(&row) } else { Vector::Floats(row) };
    let embedding = |(index, row)| Embedding { object: "embedding", index, embedding: vector(row) };
    let answer = Answer {
        object: "list",
        data: data.into_iter().enumerate().map(embedding).collect(),
        model: ready.model_name.clone(),
        usage: Usage { prompt_tokens, total_tokens: prompt_tokens },
    };
    Ok(Json(answer).into_response())
}

/// Parsed body of an embedding request, without `model`.
#[derive(Debug)]
struct EmbeddingRequest {
    inputs: Vec<Prompt>,
    /// Number of elements to return.
    dimensions: usize,
    is_base64: bool,
    add_special_tokens: bool,
}

impl EmbeddingRequest {
    /// Reads the fields of a request to a model whose embeddings have `size` elements.
    fn take(mut fields: Fields, vocab_size: usize, size: usize) -> Result<Self> {
        let inputs = take_prompts(&mut fields, INPUT, vocab_size)?;
        if !(1..=INPUTS_MAX).contains(&inputs.len()) {
            let message = format!("`{INPUT}` has {} inputs, not 1 to {INPUTS_MAX}", inputs.len());
            return Err(ApiError::field(INPUT, message));
        }
        let dimensions = fields.count("dimensions", 1)?.unwrap_or(size);
        if dimensions > size {
            let message = format!("`dimensions` is {dimensions}, but an embedding has {size}");
            return Err(ApiError::field("dimensions", message));
        }
        let is_base64 = match fields.string("encoding_format")?.as_deref() {
            None | Some("float") => false,
            Some("base64") => true,
            Some(other) => {
                let message =
                    format!("`encoding_format` is `{}`, not float or base64", shown(other));
                return Err(ApiError::field("encoding_format", message));
            }
        };
        let add_special_tokens = fields.bool_or("add_special_tokens", true)?;
        fields.finish()?;
        Ok(Self { inputs, dimensions, is_base64, add_special_tokens })
    }
}

/// Builds the engine's request for one input; refuses one that is empty or exceeds `limits`.
fn request(prompt: Vec<u32>, limits: &Limits) -> Result<Request> {
    if prompt.is_empty() {
        return Err(ApiError::field(INPUT, "an input has no tokens"));
    }
    let admitted = limits.admits(prompt.len(), 0);
    admitted.map_err(|refusal| ApiError::from(refusal).at(INPUT))?;
    Ok(Request { embeds: true, ..Request::greedy(prompt, 0) })
}

/// Waits for the embeddings of all inputs, and returns them in the order of the inputs; `None` if the
/// engine ends before.
async fn collect(mut ticket: Ticket) -> Result<Option<Vec<Vec<f32>>>> {
    let mut rows = Vec::new();
    while let Some((index, output)) = ticket.next().await {
        match (output.finish, output.embedding) {
            (Some(Finish::Refused(reason)), _) => {
                return Err(ApiError::new(ErrorKind::Unsatisfiable, shown(&reason)));
            }
            (_, Some(row)) if row.iter().all(|value| value.is_finite()) => rows.push((index, row)),
            _ => return Err(failed("the model computed an embedding that is not finite")),
        }
    }
    rows.sort_unstable_by_key(|(index, _)| *index);
    let is_whole = rows.len() == ticket.sequences();
    Ok(is_whole.then(|| rows.into_iter().map(|(_, row)| row).collect()))
}

/// Cuts an embedding to its first `dimensions` elements, and gives it the length 1; a row of zeros
/// stays as it is.
fn normalize(row: &mut Vec<f32>, dimensions: usize) {
    row.truncate(dimensions);
    let square: f64 = row.iter().map(|value| f64::from(*value).powi(2)).sum();
    if square > 0.0 {
        let scale = square.sqrt().recip();
        row.iter_mut().for_each(|value| *value = (f64::from(*value) * scale) as f32);
    }
}

fn base64(row: &[f32]) -> Vector {
    let bytes: Vec<u8> = row.iter().flat_map(|value| value.to_le_bytes()).collect();
    Vector::Base64(BASE64_STANDARD.encode(bytes))
}
