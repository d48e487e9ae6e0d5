//! Answers to completion and chat requests: as one JSON document, once all choices are complete,
//! unless the request wants a stream.

use std::convert::Infallible;

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tokio::task::yield_now;
use tokio_stream::StreamExt;

use super::answer::{Piece, Shape, Tail, Writing, cut_off, error_of, split, stream};
use super::error::Result;
use crate::logprobs::TokenLogprobs;
use crate::worker::{Finish, Output, Ticket, TokenOutput};

/// One choice of the answer, accumulated from a sequence's outputs.
#[derive(Debug, Default, Clone)]
struct Complete {
    text: String,
    tokens: Vec<TokenOutput>,
    /// Log-probabilities of the prompt's tokens, in the first choice of each prompt.
    prompt: Option<Vec<TokenLogprobs>>,
    finish: Option<Finish>,
    cached_tokens: usize,
}

impl Complete {
    fn add(&mut self, output: Output) {
        self.text += &output.text;
        self.tokens.extend(output.token);
        // Only the first output has the prompt's log-probabilities.
        self.prompt = output.prompt.or(self.prompt.take());
        self.finish = output.finish;
        self.cached_tokens = output.cached_tokens;
    }
}

/// Writes the answer to a completion or chat request, streamed or as one JSON document.
///
/// # Errors
/// A choice of an answer that is not streamed fails, or the engine ends before it does.
pub(super) async fn respond<S: Shape>(
    shape: S,
    writing: Writing,
    ticket: Ticket,
) -> Result<Response> {
    if writing.options.stream {
        return Ok(stream(shape, writing, ticket));
    }
    whole(shape, writing, ticket).await
}

/// Waits until all choices of an answer are complete, and writes them as one JSON document.
async fn whole<S: Shape>(shape: S, writing: Writing, mut ticket: Ticket) -> Result<Response> {
    let mut choices = vec![Complete::default(); writing.choices()];
    while choices.iter().any(|choice| choice.finish.is_none()) {
        let (index, output) = ticket.next().await.ok_or_else(|| cut_off(&writing.ready))?;
        // One failed choice fails the answer: a JSON document cannot show a partial one.
        if let Some(error) = error_of(&output, writing.options) {
            return Err(error);
        }
        choices[index].add(output);
    }
    // All tokens of an answer have log-probabilities, or none.
    let is_long = choices.iter().any(|choice| {
        let first = choice.tokens.first();
        choice.prompt.is_some() || first.is_some_and(|token| token.logprobs.is_some())
    });
    let answer = Answer { shape, writing, choices };
    let parts = 0..answer.parts();
    let body = if is_long {
        // JSON takes many times the memory of the log-probabilities, so a choice is written when
        // the client has read the one before, and others have had their turn.
        Body::from_stream(tokio_stream::iter(parts).then(move |part| {
            let written = Bytes::from(answer.part(part));
            async {
                yield_now().await;
                Ok::<_, Infallible>(written)
            }
        }))
    } else {
        Body::from(parts.flat_map(|part| answer.part(part)).collect::<Vec<u8>>())
    };
    Ok(([(header::CONTENT_TYPE, "application/json")], body).into_response())
}

/// Complete answer, whose JSON is written in parts: the fields before the choices, each choice, and
/// the fields after them.
#[derive(Debug)]
struct Answer<S> {
    shape: S,
    writing: Writing,
    choices: Vec<Complete>,
}

impl<S: Shape> Answer<S> {
    fn parts(&self) -> usize {
        self.choices.len() + 2
    }

    fn part(&self, part: usize) -> Vec<u8> {
        let Some(index) = part.checked_sub(1) else {
            // Without the brace that ends the object.
            let mut head = json(&self.writing.head(S::OBJECT));
            head.pop();
            return [&head, b",\"choices\":[".as_slice()].concat();
        };
        if index == self.choices.len() {
            // Without the brace that begins the object.
            return [b"],", &json(&self.tail())[1..]].concat();
        }
        let separator: &[u8] = if index == 0 { b"" } else { b"," };
        [separator, &self.choice(index)].concat()
    }

    fn choice(&self, index: usize) -> Vec<u8> {
        let Complete { text, tokens, finish, .. } = &self.choices[index];
        let mut splitter = self.writing.splitter.clone();
        let parts = split(&mut splitter, text, true).whole();
        let has_calls = splitter.is_some_and(|splitter| splitter.has_calls());
        let first_of_prompt = index - index % self.writing.n;
        let (prompt, finish) = (self.choices[first_of_prompt].prompt.as_deref(), finish.as_ref());
        let (first, text_offset) = (true, 0);
        let piece = Piece { index, parts, tokens, prompt, finish, has_calls, first, text_offset };
        json(&self.writing.choice(&self.shape, &piece))
    }

    fn tail(&self) -> Tail<'_> {
        let completion_tokens = self.choices.iter().map(|choice| choice.tokens.len()).sum();
        let cached_tokens = self.choices.iter().map(|choice| choice.cached_tokens);
        let has_prompt_ids = self.writing.options.return_token_ids && S::PROMPT_IDS_ON_TOP;
        Tail {
            prompt_token_ids: has_prompt_ids.then(|| self.writing.prompt_ids(0)),
            usage: Some(self.writing.usage(completion_tokens, cached_tokens)),
        }
    }
}

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("an answer of plain values is JSON")
}
