//! Writes the answer to a completion or chat request: one JSON document, or a stream of server-sent
//! events (SSE) with one chunk per token.
//!
//! The two routes differ only in the JSON of a choice, which the trait `Shape` hides.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Json;
use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::Value;
use tokio_stream::Stream;

use super::error::{ApiError, ErrorKind};
use super::params::Answer;
use super::state::Ready;
use super::tokens::token_text;
use crate::logprobs::TokenLogprobs;
use crate::tokenize::{SplitText, Splitter};
use crate::worker::{Finish, Output, Ticket, TokenOutput};

/// JSON format of a route: how it writes the choices of an answer.
pub(super) trait Shape: Send + 'static {
    /// Value of the `object` field in an answer that is not streamed.
    const OBJECT: &'static str;
    /// Value of the `object` field in a streamed chunk.
    const CHUNK_OBJECT: &'static str;

    /// JSON of one finished choice in an answer that is not streamed.
    fn whole(&self, context: &Writing, choice: &Choice) -> Value;

    /// JSON of one choice in a streamed chunk.
    fn chunk(&self, context: &Writing, piece: &Piece<'_>) -> Value;

    /// True when `prompt_token_ids` is a field of the answer rather than of each choice.
    fn prompt_ids_on_top(&self) -> bool;
}

/// State shared by everything that writes one answer: its id, its request and the model.
#[derive(Debug)]
pub(super) struct Writing {
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) ready: Arc<Ready>,
    pub(super) answer: Answer,
    /// Token ids of each prompt; choice `i` belongs to prompt `i / n`.
    pub(super) prompts: Vec<Vec<u32>>,
    pub(super) n: usize,
    /// Splitter between reasoning and answer, for models that mark their reasoning. Each choice
    /// works on a copy.
    pub(super) splitter: Option<Splitter>,
}

impl Writing {
    /// Name of a token in log-probabilities: its text, or `token_id:7` where the request wants ids.
    pub(super) fn token_name(&self, token: u32) -> String {
        if self.answer.tokens_as_ids {
            return format!("token_id:{token}");
        }
        token_text(&self.ready, token)
    }

    pub(super) fn prompt_ids(&self, choice: usize) -> &[u32] {
        &self.prompts[choice / self.n]
    }

    /// Token usage of the answer. `cached_tokens` has one entry per choice; only that of a prompt's
    /// first choice counts, because usage counts a prompt once, and the first choice is the oldest.
    /// The later ones would find the first one's pages in the prefix cache.
    fn usage(&self, completion_tokens: usize, cached_tokens: impl Iterator<Item = usize>) -> Usage {
        let prompt_tokens = self.prompts.iter().map(Vec::len).sum();
        let cached_tokens = cached_tokens.step_by(self.n).sum();
        let total_tokens = prompt_tokens + completion_tokens;
        let prompt_tokens_details = PromptDetails { cached_tokens };
        Usage { prompt_tokens, completion_tokens, total_tokens, prompt_tokens_details }
    }
}

/// One choice of an answer, accumulated from a sequence's outputs.
#[derive(Debug, Default)]
pub(super) struct Choice {
    pub(super) index: usize,
    pub(super) parts: SplitText,
    pub(super) tokens: Vec<TokenOutput>,
    /// Log-probabilities of the prompt's tokens, if the request wants them.
    pub(super) prompt: Option<Vec<TokenLogprobs>>,
    pub(super) finish: Option<Finish>,
}

/// One output of a sequence, to be written as a chunk of a stream.
#[derive(Debug)]
pub(super) struct Piece<'a> {
    pub(super) index: usize,
    pub(super) output: &'a Output,
    pub(super) parts: &'a SplitText,
    /// True if the piece becomes the first chunk of its choice.
    pub(super) first: bool,
    /// Number of characters of the choice's text before this piece.
    pub(super) text_offset: usize,
}

#[derive(Debug, Serialize)]
struct Usage {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
    prompt_tokens_details: PromptDetails,
}

#[derive(Debug, Serialize)]
struct PromptDetails {
    cached_tokens: usize,
}

/// Top level of an answer, or of a chunk of a streamed answer, in OpenAI's format.
#[derive(Debug, Serialize)]
struct Document<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<&'a [u32]>,
    /// Token usage. The outer `None` omits the field; `Some(None)` writes `null`, as OpenAI does in
    /// chunks before the last when a request wants usage.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
}

impl<'a> Document<'a> {
    fn new(writing: &'a Writing, object: &'static str, choices: Vec<Value>) -> Self {
        let (id, model) = (writing.id.as_str(), writing.ready.model_name.as_str());
        let created = writing.created;
        Self { id, object, created, model, choices, prompt_token_ids: None, usage: None }
    }
}

/// OpenAI's `finish_reason`, and as `stop_reason` the stop string or stop token that the request
/// named and that ended the output.
pub(super) fn reason(finish: Option<&Finish>) -> (Option<&'static str>, Value) {
    match finish {
        None => (None, Value::Null),
        Some(Finish::EndToken | Finish::Complete) => (Some("stop"), Value::Null),
        Some(Finish::StopToken(token)) => (Some("stop"), (*token).into()),
        Some(Finish::StopString(stop)) => (Some("stop"), stop.as_str().into()),
        Some(Finish::Length) => (Some("length"), Value::Null),
        Some(Finish::Failed(_)) => (Some("error"), Value::Null),
    }
}

fn failed(reason: &str) -> ApiError {
    ApiError::new(ErrorKind::EngineFailed, reason)
}

fn engine_ended() -> ApiError {
    failed("the engine ended before the answer did; its log says why")
}

/// Answers a request, streamed or as one document.
pub(super) async fn respond<S: Shape + Unpin>(
    shape: S,
    writing: Writing,
    ticket: Ticket,
) -> Result<Response, ApiError> {
    if !writing.answer.stream {
        return whole(&shape, &writing, ticket).await;
    }
    let fresh = ChoiceState { split: Split(writing.splitter.clone()), ..ChoiceState::default() };
    let states = vec![fresh; writing.prompts.len() * writing.n];
    let events = Events { shape, writing, ticket, states, ended: false };
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream; charset=utf-8"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    Ok((headers, Body::from_stream(events)).into_response())
}

/// Waits for all choices and answers with one JSON document.
async fn whole<S: Shape>(
    shape: &S,
    writing: &Writing,
    mut ticket: Ticket,
) -> Result<Response, ApiError> {
    let count = writing.prompts.len() * writing.n;
    let mut choices: Vec<Choice> =
        (0..count).map(|index| Choice { index, ..Choice::default() }).collect();
    let mut splits = vec![Split(writing.splitter.clone()); count];
    let mut cached = vec![0; count];
    let mut open = count;
    while open > 0 {
        let (index, output) = ticket.next().await.ok_or_else(engine_ended)?;
        // One failed choice fails the answer: a JSON document cannot show a partial one.
        if let Some(Finish::Failed(reason)) = &output.finish {
            return Err(failed(reason));
        }
        open -= usize::from(output.finish.is_some());
        cached[index] = output.cached_tokens;
        let choice = &mut choices[index];
        let parts = splits[index].parts(&output);
        choice.parts.reasoning.push_str(&parts.reasoning);
        choice.parts.content.push_str(&parts.content);
        choice.tokens.extend(output.token);
        // Only the first output has the prompt's log-probabilities.
        choice.prompt = output.prompt.or(choice.prompt.take());
        choice.finish = output.finish;
    }
    let completion_tokens = choices.iter().map(|choice| choice.tokens.len()).sum();
    let written = choices.iter().map(|choice| shape.whole(writing, choice)).collect();
    let mut document = Document::new(writing, S::OBJECT, written);
    document.usage = Some(Some(writing.usage(completion_tokens, cached.into_iter())));
    if writing.answer.return_token_ids && shape.prompt_ids_on_top() {
        document.prompt_token_ids = Some(writing.prompt_ids(0));
    }
    Ok(Json(document).into_response())
}

/// Splits the text of one choice into reasoning and answer.
#[derive(Debug, Default, Clone)]
struct Split(Option<Splitter>);

impl Split {
    fn parts(&mut self, output: &Output) -> SplitText {
        let Some(splitter) = &mut self.0 else {
            return SplitText { content: output.text.clone(), ..SplitText::default() };
        };
        let mut parts = splitter.push(&output.text);
        if output.finish.is_some() {
            let rest = splitter.finish();
            parts.reasoning.push_str(&rest.reasoning);
            parts.content.push_str(&rest.content);
        }
        parts
    }
}

/// State of one choice of a stream: what has been written of it so far.
#[derive(Debug, Default, Clone)]
struct ChoiceState {
    split: Split,
    started: bool,
    tokens: usize,
    text_chars: usize,
    cached_tokens: usize,
    finished: bool,
}

/// Body of a streamed answer: one SSE event per token, one with the usage if wanted, then `[DONE]`.
///
/// A stream written by hand, because it is the only hot path of the front end. Events that have
/// accumulated by the time that hyper polls are sent in one buffer.
#[derive(Debug)]
struct Events<S> {
    shape: S,
    writing: Writing,
    ticket: Ticket,
    states: Vec<ChoiceState>,
    ended: bool,
}

impl<S: Shape> Events<S> {
    fn write(&mut self, index: usize, output: &Output, out: &mut Vec<u8>) {
        if let Some(Finish::Failed(reason)) = &output.finish {
            self.fail(&failed(reason), out);
            return;
        }
        let state = &mut self.states[index];
        let first = !std::mem::replace(&mut state.started, true);
        let text_offset = state.text_chars;
        state.tokens += usize::from(output.token.is_some());
        // Offsets count characters, not bytes.
        state.text_chars += output.text.chars().count();
        state.cached_tokens = output.cached_tokens;
        state.finished = output.finish.is_some();
        let parts = state.split.parts(output);
        let piece = Piece { index, output, parts: &parts, first, text_offset };
        let choice = self.shape.chunk(&self.writing, &piece);
        let mut document = Document::new(&self.writing, S::CHUNK_OBJECT, vec![choice]);
        let answer = self.writing.answer;
        // Once per answer: in the first chunk of the first choice.
        if answer.return_token_ids && first && self.shape.prompt_ids_on_top() && index == 0 {
            document.prompt_token_ids = Some(self.writing.prompt_ids(0));
        }
        if answer.include_usage || answer.continuous_usage {
            document.usage = Some(answer.continuous_usage.then(|| self.usage()));
        }
        event(&document, out);
        if self.states.iter().all(|state| state.finished) {
            self.close(out);
        }
    }

    fn usage(&self) -> Usage {
        let tokens = self.states.iter().map(|state| state.tokens).sum();
        self.writing.usage(tokens, self.states.iter().map(|state| state.cached_tokens))
    }

    fn close(&mut self, out: &mut Vec<u8>) {
        if self.writing.answer.include_usage {
            let mut document = Document::new(&self.writing, S::CHUNK_OBJECT, Vec::new());
            document.usage = Some(Some(self.usage()));
            event(&document, out);
        }
        out.extend_from_slice(b"data: [DONE]\n\n");
        self.ended = true;
    }

    /// Ends the stream with an error event and without `[DONE]`, so that no client takes the answer
    /// for complete.
    fn fail(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        event(&error.body(), out);
        self.ended = true;
    }
}

/// Appends one server-sent event.
fn event(document: &impl Serialize, out: &mut Vec<u8>) {
    out.extend_from_slice(b"data: ");
    serde_json::to_writer(&mut *out, document).expect("a document of plain values is JSON");
    out.extend_from_slice(b"\n\n");
}

impl<S: Shape + Unpin> Stream for Events<S> {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut out = Vec::new();
        // Everything that is ready goes out in one write.
        while !self.ended {
            match self.ticket.poll_next(context) {
                Poll::Pending => break,
                Poll::Ready(None) => self.fail(&engine_ended(), &mut out),
                Poll::Ready(Some((index, output))) => self.write(index, &output, &mut out),
            }
        }
        match (out.is_empty(), self.ended) {
            (false, _) => Poll::Ready(Some(Ok(out.into()))),
            (true, true) => Poll::Ready(None),
            (true, false) => Poll::Pending,
        }
    }
}
