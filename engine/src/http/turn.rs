//! Answers of routes whose format is a list of blocks: reasoning, text and tool calls, in the order in
//! which the model wrote them. A streamed answer is the same list, told by events.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Json;
use axum::body::Bytes;
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use tokio_stream::Stream;

use super::answer::{cut_off, error_of, split, streamed};
use super::chat::Begun;
use super::error::{ApiError, Result};
use super::params::AnswerOptions;
use super::state::Ready;
use crate::tokenize::{SplitText, Splitter};
use crate::worker::{Finish, Output, Ticket};

/// Kind of a block of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    Reasoning,
    Text,
    /// A call of the tool `name`.
    Call {
        name: String,
    },
}

/// Block of an answer.
#[derive(Debug, Clone)]
pub(super) struct Block {
    pub(super) kind: Kind,
    /// Text of the block so far; for a call its arguments, which are a JSON object.
    pub(super) text: String,
}

/// Numbers of tokens of an answer.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Usage {
    pub(super) prompt: usize,
    /// Tokens of the prompt that were found in the prefix cache; 0 before the first output.
    pub(super) cached: usize,
    pub(super) output: usize,
    /// Output tokens that brought reasoning.
    pub(super) reasoning: usize,
}

/// Format of a route. Each method returns events, JSON objects with a `type`, that tell what has
/// happened.
pub(super) trait Format: Unpin + Send + 'static {
    /// The answer begins.
    fn begin(&mut self, usage: Usage) -> Vec<Value>;
    /// Block number `index` begins.
    fn open(&mut self, index: usize, block: &Block) -> Vec<Value>;
    /// Block number `index` has got `text`.
    fn add(&mut self, index: usize, block: &Block, text: &str) -> Value;
    /// Block number `index` is complete.
    fn close(&mut self, index: usize, block: &Block) -> Vec<Value>;
    /// The answer is complete.
    fn end(&mut self, blocks: &[Block], finish: &Finish, usage: Usage) -> Vec<Value>;
    /// The answer cannot be continued.
    fn fail(&mut self, error: &ApiError) -> Value;
    /// Returns the whole answer as one document.
    fn whole(&mut self, blocks: &[Block], finish: &Finish, usage: Usage) -> Value;
}

/// An answer that is being written.
struct Turn<F> {
    format: F,
    ready: Arc<Ready>,
    ticket: Ticket,
    splitter: Option<Splitter>,
    options: AnswerOptions,
    blocks: Vec<Block>,
    /// True while the last block is open.
    is_open: bool,
    usage: Usage,
    finish: Option<Finish>,
    has_begun: bool,
    has_ended: bool,
}

impl<F: Format> Turn<F> {
    /// Adds an output of the engine; returns the events that it causes.
    fn take(&mut self, output: &Output) -> Result<Vec<Value>> {
        if let Some(error) = error_of(output, self.options) {
            return Err(error);
        }
        self.usage.output += usize::from(output.token.is_some());
        self.usage.cached = output.cached_tokens;
        let parts = split(&mut self.splitter, &output.text, output.finish.is_some());
        self.usage.reasoning += usize::from(!parts.reasoning.is_empty());
        let mut events = self.add(parts);
        if let Some(finish) = &output.finish {
            self.close(&mut events);
            events.extend(self.format.end(&self.blocks, finish, self.usage));
            self.finish = Some(finish.clone());
        }
        Ok(events)
    }

    fn add(&mut self, parts: SplitText) -> Vec<Value> {
        let mut events = Vec::new();
        self.append(Kind::Reasoning, &parts.reasoning, &mut events);
        self.append(Kind::Text, &parts.content, &mut events);
        for part in parts.calls {
            if let Some(name) = part.name {
                self.open(Kind::Call { name }, &mut events);
            }
            let last = self.blocks.last().map(|block| block.kind.clone());
            if let Some(kind @ Kind::Call { .. }) = last {
                self.append(kind, &part.arguments, &mut events);
            }
        }
        events
    }

    /// Appends text to the open block, or to a new one if that is of another kind.
    fn append(&mut self, kind: Kind, text: &str, events: &mut Vec<Value>) {
        if text.is_empty() {
            return;
        }
        let is_open = self.is_open && self.blocks.last().is_some_and(|block| block.kind == kind);
        if !is_open {
            self.open(kind, events);
        }
        let index = self.blocks.len() - 1;
        let block = &mut self.blocks[index];
        block.text.push_str(text);
        events.push(self.format.add(index, block, text));
    }

    fn open(&mut self, kind: Kind, events: &mut Vec<Value>) {
        self.close(events);
        self.blocks.push(Block { kind, text: String::new() });
        self.is_open = true;
        let index = self.blocks.len() - 1;
        events.extend(self.format.open(index, &self.blocks[index]));
    }

    fn close(&mut self, events: &mut Vec<Value>) {
        if std::mem::take(&mut self.is_open) {
            let index = self.blocks.len() - 1;
            events.extend(self.format.close(index, &self.blocks[index]));
        }
    }
}

/// Writes the answer to a request, streamed or as one document.
pub(super) async fn respond<F: Format>(
    format: F,
    ready: Arc<Ready>,
    begun: Begun,
    streams: bool,
) -> Result<Response> {
    let Begun { prompt, splitter, ticket, options } = begun;
    let usage = Usage { prompt: prompt.len(), ..Usage::default() };
    let mut turn = Turn {
        format,
        ready,
        ticket,
        splitter,
        options,
        blocks: Vec::new(),
        is_open: false,
        usage,
        finish: None,
        has_begun: false,
        has_ended: false,
    };
    if streams {
        return Ok(streamed(turn));
    }
    loop {
        let (_, output) = turn.ticket.next().await.ok_or_else(|| cut_off(&turn.ready))?;
        turn.take(&output)?;
        if let Some(finish) = &turn.finish {
            let document = turn.format.whole(&turn.blocks, finish, turn.usage);
            return Ok(Json(document).into_response());
        }
    }
}

/// Appends an event to a stream of server-sent events, under the name of its `type`.
fn write(event: &Value, out: &mut Vec<u8>) {
    let name = event["type"].as_str().unwrap_or_default();
    out.extend_from_slice(format!("event: {name}\ndata: {event}\n\n").as_bytes());
}

impl<F: Format> Stream for Turn<F> {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut out = Vec::new();
        if !std::mem::replace(&mut self.has_begun, true) {
            let usage = self.usage;
            self.format.begin(usage).iter().for_each(|event| write(event, &mut out));
        }
        // Everything that is ready goes out in one write.
        while !self.has_ended {
            let taken = match self.ticket.poll_next(context) {
                Poll::Pending => break,
                Poll::Ready(None) => Err(cut_off(&self.ready)),
                Poll::Ready(Some((_, output))) => self.take(&output),
            };
            let events = taken.unwrap_or_else(|error| {
                self.has_ended = true;
                vec![self.format.fail(&error)]
            });
            events.iter().for_each(|event| write(event, &mut out));
            self.has_ended |= self.finish.is_some();
        }
        match (out.is_empty(), self.has_ended) {
            (false, _) => Poll::Ready(Some(Ok(out.into()))),
            (true, true) => Poll::Ready(None),
            (true, false) => Poll::Pending,
        }
    }
}
