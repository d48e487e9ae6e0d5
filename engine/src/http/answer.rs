//! Writes the answer to a completion or chat request: one JSON document, or a stream of server-sent
//! events (SSE) with one chunk per token.
//!
//! Completions and chat differ only in the JSON of a choice, which the trait `Shape` hides.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::task::yield_now;
use tokio_stream::Stream;

use super::error::{ApiError, ErrorKind, Result, shown};
use super::params::AnswerOptions;
use super::state::Ready;
use crate::logprobs::TokenLogprobs;
use crate::tokenize::{SplitText, Splitter};
use crate::worker::{Finish, Output, Ticket, TokenOutput};

/// JSON format of a generating route (completions or chat): how it writes the choices of an answer.
pub(super) trait Shape: Unpin + Send + 'static {
    /// Value of the `object` field in an answer that is not streamed.
    const OBJECT: &'static str;
    /// Value of the `object` field in each chunk of a streamed answer.
    const CHUNK_OBJECT: &'static str;
    /// True when `prompt_token_ids` is a field of the answer rather than of each choice.
    const PROMPT_IDS_ON_TOP: bool;

    /// Adds the route's own fields to the JSON of a choice, which is a whole choice or a streamed
    /// piece of one.
    fn add(&self, writing: &Writing, piece: &Piece<'_>, choice: &mut Value);

    /// Returns the log-probabilities of a choice or piece; `None` where the request wants none.
    fn logprobs<'a>(
        &'a self,
        writing: &'a Writing,
        piece: &'a Piece<'_>,
    ) -> Option<impl Serialize + 'a>;
}

/// State of one answer that all its choices and chunks share: its id, the request's prompts and
/// options, and the model.
#[derive(Debug)]
pub(super) struct Writing {
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) ready: Arc<Ready>,
    pub(super) options: AnswerOptions,
    /// Token ids of each prompt of the request. Choice `i` belongs to prompt `i / n`, where `n` is
    /// the number of choices per prompt.
    pub(super) prompts: Vec<Vec<u32>>,
    pub(super) n: usize,
    /// True if the first piece of each choice has the log-probabilities of its prompt.
    pub(super) has_prompt_logprobs: bool,
    /// Splitter between reasoning and answer; `None` for completions, and for models that do not
    /// mark their reasoning. Each choice works on a copy.
    pub(super) splitter: Option<Splitter>,
}

/// Outputs of one choice that are written together: all of them, or those of one chunk of a stream.
#[derive(Debug)]
pub(super) struct Piece<'a> {
    pub(super) index: usize,
    pub(super) parts: SplitText,
    pub(super) tokens: &'a [TokenOutput],
    /// Log-probabilities of the prompt's tokens, if the request wants them; only in a choice's
    /// first piece.
    pub(super) prompt: Option<&'a [TokenLogprobs]>,
    pub(super) finish: Option<&'a Finish>,
    /// True once the choice has called a tool.
    pub(super) has_calls: bool,
    /// True if this is the first piece of its choice that is written.
    pub(super) first: bool,
    /// Number of characters of the choice's text before the piece.
    pub(super) text_offset: usize,
}

impl Writing {
    /// Returns the name by which log-probabilities show a token: its text, or `token_id:7` where
    /// the request wants ids.
    pub(super) fn token_name(&self, token: u32) -> String {
        if self.options.tokens_as_ids {
            return format!("token_id:{token}");
        }
        self.token_text(token)
    }

    /// Returns the text by which log-probabilities show a token; bytes that are not UTF-8 become
    /// U+FFFD.
    pub(super) fn token_text(&self, token: u32) -> String {
        String::from_utf8_lossy(&self.ready.text.token_bytes(token)).into_owned()
    }

    pub(super) fn prompt_ids(&self, choice: usize) -> &[u32] {
        &self.prompts[choice / self.n]
    }

    pub(super) fn choices(&self) -> usize {
        self.prompts.len() * self.n
    }

    /// Builds the `usage` object of the answer. `cached_tokens` has one entry per choice; only that
    /// of a prompt's first choice counts, because usage counts a prompt once, and the first choice
    /// is the oldest. The later ones would find the first one's pages in the prefix cache.
    pub(super) fn usage(
        &self,
        completion_tokens: usize,
        cached_tokens: impl Iterator<Item = usize>,
    ) -> Value {
        let prompt_tokens: usize = self.prompts.iter().map(Vec::len).sum();
        json!({
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "prompt_tokens_details": {"cached_tokens": cached_tokens.step_by(self.n).sum::<usize>()},
        })
    }

    /// Builds the JSON of a choice, or of a streamed piece of one. Its `stop_reason` is the stop
    /// string or stop token that the request named and that ended the output, else `null`.
    pub(super) fn choice<'a, S: Shape>(
        &'a self,
        shape: &'a S,
        piece: &'a Piece<'_>,
    ) -> Choice<impl Serialize + 'a> {
        let (finish_reason, stop_reason) = match piece.finish {
            None => (None, Value::Null),
            Some(Finish::EndToken | Finish::Complete) if piece.has_calls => {
                (Some("tool_calls"), Value::Null)
            }
            Some(Finish::EndToken | Finish::Complete) => (Some("stop"), Value::Null),
            Some(Finish::StopToken(token)) => (Some("stop"), (*token).into()),
            Some(Finish::StopString(stop)) => (Some("stop"), stop.as_str().into()),
            Some(Finish::Length) => (Some("length"), Value::Null),
            Some(Finish::Refused(_) | Finish::Failed(_)) => (Some("error"), Value::Null),
        };
        let mut choice = json!({
            "index": piece.index, "finish_reason": finish_reason, "stop_reason": stop_reason,
        });
        shape.add(self, piece, &mut choice);
        if self.options.return_token_ids {
            choice["token_ids"] = piece.tokens.iter().map(|output| output.token).collect();
            if piece.first && !S::PROMPT_IDS_ON_TOP {
                choice["prompt_token_ids"] = self.prompt_ids(piece.index).into();
            }
        }
        Choice { fields: choice, logprobs: shape.logprobs(self, piece) }
    }

    pub(super) fn head(&self, object: &'static str) -> Head<'_> {
        let (id, model) = (self.id.as_str(), self.ready.model_name.as_str());
        Head { id, object, created: self.created, model }
    }
}

/// JSON of a choice, or of a streamed piece of one.
#[derive(Debug, Serialize)]
pub(super) struct Choice<L> {
    #[serde(flatten)]
    fields: Value,
    logprobs: Option<L>,
}

/// First fields of an answer, or of a chunk of a streamed answer, in OpenAI's format.
#[derive(Debug, Serialize)]
pub(super) struct Head<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
}

/// Last fields of an answer, or of a chunk of a streamed answer, in OpenAI's format.
#[derive(Debug, Default, Serialize)]
pub(super) struct Tail<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) prompt_token_ids: Option<&'a [u32]>,
    /// Token usage of the answer; `None` leaves the field out. As in OpenAI's streams, it is `null`
    /// in chunks before the last when a request wants usage, unless it wants usage in every chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) usage: Option<Value>,
}

/// Chunk of a streamed answer.
#[derive(Debug, Serialize)]
struct Chunk<'a, C: Serialize> {
    #[serde(flatten)]
    head: Head<'a>,
    choices: C,
    #[serde(flatten)]
    tail: Tail<'a>,
}

pub(super) fn failed(reason: &str) -> ApiError {
    ApiError::new(ErrorKind::EngineFailed, reason)
}

/// Returns the error of an output that ended without an answer; `None` for other outputs.
pub(super) fn error_of(output: &Output, options: AnswerOptions) -> Option<ApiError> {
    let reason = match output.finish.as_ref()? {
        Finish::Failed(reason) => return Some(failed(reason)),
        Finish::Refused(reason) => shown(reason),
        _ => return None,
    };
    let Some(field) = options.structure else {
        return Some(ApiError::new(ErrorKind::Unsatisfiable, reason));
    };
    let message = format!("`{field}` cannot be followed to its end: {reason}");
    Some(ApiError::new(ErrorKind::Unsatisfiable, message).at(field))
}

/// Returns the error of an answer whose outputs end too early: the server shuts down, or the engine
/// has failed.
pub(super) fn cut_off(ready: &Ready) -> ApiError {
    if ready.handle.is_cut_off() {
        let message = "the server shut down before the answer was complete";
        return ApiError::new(ErrorKind::Draining, message);
    }
    failed("the engine ended before the answer did; its log says why")
}

/// Returns the streamed answer to a completion or chat request.
pub(super) fn stream<S: Shape>(shape: S, writing: Writing, ticket: Ticket) -> Response {
    let progress = Progress { splitter: writing.splitter.clone(), ..Progress::default() };
    streamed(Events {
        progress: vec![progress; writing.choices()],
        prompts: vec![None; writing.prompts.len()],
        held: Vec::new(),
        released: VecDeque::new(),
        rests: false,
        ended: false,
        shape,
        writing,
        ticket,
    })
}

/// Returns the response whose body is a stream of server-sent events.
pub(super) fn streamed(
    events: impl Stream<Item = Result<Bytes, Infallible>> + Send + 'static,
) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream; charset=utf-8"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, Body::from_stream(events)).into_response()
}

/// Separates the next text of a choice into reasoning and answer; without a splitter all of it is
/// answer. With `ends`, text that was held back is released too, except an incomplete harmony
/// header.
pub(super) fn split(splitter: &mut Option<Splitter>, text: &str, ends: bool) -> SplitText {
    let Some(splitter) = splitter else {
        return SplitText { content: text.to_owned(), ..SplitText::default() };
    };
    let mut parts = splitter.push(text);
    if ends {
        let rest = splitter.finish();
        parts.reasoning += &rest.reasoning;
        parts.content += &rest.content;
        parts.calls.extend(rest.calls);
    }
    parts
}

/// Progress of one choice of a streamed answer: numbers of tokens and characters written so far,
/// and whether the choice has ended.
#[derive(Debug, Default, Clone)]
struct Progress {
    splitter: Option<Splitter>,
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
    progress: Vec<Progress>,
    /// Log-probabilities of each prompt's tokens, once its first choice has them.
    prompts: Vec<Option<Vec<TokenLogprobs>>>,
    /// Outputs of other choices that came before the log-probabilities of their prompt.
    held: Vec<(usize, Output)>,
    /// Outputs that were held and can be written.
    released: VecDeque<(usize, Output)>,
    /// True after a large write, until other tasks of the thread have had their turn.
    rests: bool,
    ended: bool,
}

impl<S: Shape> Events<S> {
    /// Writes an output of a choice, after the log-probabilities of its prompt are known if the
    /// answer has them: only the prompt's first choice computes them.
    fn take(&mut self, index: usize, mut output: Output, out: &mut Vec<u8>) {
        // Most outputs are of choices that have begun, or of answers without such log-probabilities.
        if !self.writing.has_prompt_logprobs || self.progress[index].started {
            self.write(index, &output, out);
            return;
        }
        let n = self.writing.n;
        let prompt = index / n;
        if let Some(found) = output.prompt.take() {
            self.prompts[prompt] = Some(found);
            let of_prompt = |(index, _): &mut (usize, Output)| *index / n == prompt;
            self.released.extend(self.held.extract_if(.., of_prompt));
        }
        if self.prompts[prompt].is_none() {
            self.held.push((index, output));
            return;
        }
        self.write(index, &output, out);
        if self.progress[prompt * n..][..n].iter().all(|progress| progress.started) {
            self.prompts[prompt] = None;
        }
    }

    fn write(&mut self, index: usize, output: &Output, out: &mut Vec<u8>) {
        if let Some(error) = error_of(output, self.writing.options) {
            self.fail(&error, out);
            return;
        }
        let progress = &mut self.progress[index];
        let first = !std::mem::replace(&mut progress.started, true);
        let text_offset = progress.text_chars;
        progress.tokens += usize::from(output.token.is_some());
        // Offsets count characters, not bytes.
        progress.text_chars += output.text.chars().count();
        progress.cached_tokens = output.cached_tokens;
        progress.finished = output.finish.is_some();
        let parts = split(&mut progress.splitter, &output.text, progress.finished);
        let has_calls = progress.splitter.as_ref().is_some_and(Splitter::has_calls);
        let prompt = self.prompts[index / self.writing.n].as_deref().filter(|_| first);
        let (tokens, finish) = (output.token.as_slice(), output.finish.as_ref());
        let piece = Piece { index, parts, tokens, prompt, finish, has_calls, first, text_offset };
        let options = self.writing.options;
        // Once per answer: in the first chunk of the first choice.
        let has_prompt_ids =
            options.return_token_ids && first && S::PROMPT_IDS_ON_TOP && index == 0;
        let tail = Tail {
            prompt_token_ids: has_prompt_ids.then(|| self.writing.prompt_ids(0)),
            usage: match (options.continuous_usage, options.include_usage) {
                (true, _) => Some(self.usage()),
                (false, wanted) => wanted.then_some(Value::Null),
            },
        };
        let choices = [self.writing.choice(&self.shape, &piece)];
        event(&Chunk { head: self.writing.head(S::CHUNK_OBJECT), choices, tail }, out);
        if self.progress.iter().all(|progress| progress.finished) {
            self.close(out);
        }
    }

    fn usage(&self) -> Value {
        let tokens = self.progress.iter().map(|progress| progress.tokens).sum();
        self.writing.usage(tokens, self.progress.iter().map(|progress| progress.cached_tokens))
    }

    fn close(&mut self, out: &mut Vec<u8>) {
        if self.writing.options.include_usage {
            let tail = Tail { usage: Some(self.usage()), ..Tail::default() };
            let choices: [Value; 0] = [];
            event(&Chunk { head: self.writing.head(S::CHUNK_OBJECT), choices, tail }, out);
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

/// Appends `document` to `out` as one server-sent event.
fn event(document: &impl Serialize, out: &mut Vec<u8>) {
    out.extend_from_slice(b"data: ");
    serde_json::to_writer(&mut *out, document).expect("a document of plain values is JSON");
    out.extend_from_slice(b"\n\n");
}

/// Number of bytes of a stream's events from which they are sent before more are written.
const WRITE_BYTES: usize = 64 << 10;

impl<S: Shape> Stream for Events<S> {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        // A client that reads as fast as this writes would keep the thread from all others.
        if std::mem::take(&mut self.rests) {
            // It wakes this task after the runtime has looked for what others sent.
            return pin!(yield_now()).poll(context).map(|()| None);
        }
        let mut out = Vec::new();
        // All outputs that are ready go out in one write, unless it is large.
        while !self.ended && out.len() < WRITE_BYTES {
            let next = match self.released.pop_front() {
                Some(released) => Poll::Ready(Some(released)),
                None => self.ticket.poll_next(context),
            };
            match next {
                Poll::Pending => break,
                Poll::Ready(None) => {
                    let error = cut_off(&self.writing.ready);
                    self.fail(&error, &mut out);
                }
                Poll::Ready(Some((index, output))) => self.take(index, output, &mut out),
            }
        }
        self.rests = out.len() >= WRITE_BYTES;
        match (out.is_empty(), self.ended) {
            (false, _) => Poll::Ready(Some(Ok(out.into()))),
            (true, true) => Poll::Ready(None),
            (true, false) => Poll::Pending,
        }
    }
}
