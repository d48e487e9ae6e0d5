//! Log-probabilities in OpenAI's formats. They are written straight from the engine's numbers: as
//! trees of JSON values, those of a long prompt would take a hundred times the memory.

use serde::Serialize;
use serde::ser::{SerializeMap, SerializeStruct, Serializer};

use super::answer::{Piece, Writing};
use crate::logprobs::{Candidate, TokenLogprobs};
use crate::worker::TokenOutput;

/// Token id with its log-probabilities; these are `None` for the first token of a prompt, which
/// nothing predicts.
type Entry<'a> = (u32, Option<&'a TokenLogprobs>);

/// `logprobs` object of a completion choice, with four parallel lists.
#[derive(Debug)]
pub(super) struct Completion<'a> {
    writing: &'a Writing,
    /// First token of the prompt, if the choice repeats the prompt.
    first: Option<u32>,
    prompt: &'a [TokenLogprobs],
    tokens: &'a [TokenOutput],
    /// Number of characters of the choice's text before the piece.
    text_offset: usize,
}

impl<'a> Completion<'a> {
    /// Returns the log-probabilities of a piece of a choice: in the first piece those of the
    /// repeated prompt, then the output's; `None` where the request wants none.
    pub(super) fn of(
        writing: &'a Writing,
        piece: &'a Piece<'_>,
        text_offset: usize,
    ) -> Option<Self> {
        let first = piece.prompt.map(|_| writing.prompt_ids(piece.index)[0]);
        let (prompt, tokens) = (piece.prompt.unwrap_or_default(), piece.tokens);
        let found = Self { writing, first, prompt, tokens, text_offset };
        let are_wanted = found.entries().next().is_some();
        are_wanted.then_some(found)
    }

    fn entries(&self) -> impl Iterator<Item = Entry<'a>> {
        let outputs = self.tokens.iter().filter_map(|output| output.logprobs.as_ref());
        let known = |logprobs: &'a TokenLogprobs| (logprobs.chosen.token, Some(logprobs));
        let first = self.first.map(|token| (token, None));
        first.into_iter().chain(self.prompt.iter().chain(outputs).map(known))
    }

    fn name(&self, (token, _): Entry<'_>) -> String {
        self.writing.token_name(token)
    }

    /// Returns the number of characters of the choice's text before each entry.
    fn offsets(&self) -> impl Iterator<Item = usize> {
        self.entries().scan(self.text_offset, |offset, (token, _)| {
            let before = *offset;
            *offset += self.writing.token_text(token).chars().count();
            Some(before)
        })
    }
}

impl Serialize for Completion<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let value = |(_, logprobs): Entry<'_>| logprobs.map(|l| f64::from(l.chosen.logprob));
        let writing = self.writing;
        let top = |(_, logprobs)| Option::and_then(logprobs, |found| Top::of(writing, found));
        let mut object = serializer.serialize_struct("logprobs", 4)?;
        object.serialize_field("tokens", &List(|| self.entries().map(|entry| self.name(entry))))?;
        object.serialize_field("token_logprobs", &List(|| self.entries().map(value)))?;
        object.serialize_field("top_logprobs", &List(|| self.entries().map(top)))?;
        object.serialize_field("text_offset", &List(|| self.offsets()))?;
        object.end()
    }
}

/// JSON list of the items of an iterator. The function returns a fresh iterator for each writing.
struct List<F>(F);

impl<F: Fn() -> I, I: Iterator<Item: Serialize>> Serialize for List<F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0())
    }
}

/// JSON object of the log-probabilities of the likeliest tokens and of the sampled one, by token
/// name.
struct Top<'a> {
    writing: &'a Writing,
    logprobs: &'a TokenLogprobs,
}

impl<'a> Top<'a> {
    /// Returns `None` if the request wants no likeliest tokens.
    fn of(writing: &'a Writing, logprobs: &'a TokenLogprobs) -> Option<Self> {
        (!logprobs.top.is_empty()).then_some(Self { writing, logprobs })
    }
}

impl Serialize for Top<'_> {
    /// If two tokens have the same name, the likelier one is kept.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut candidates: Vec<_> =
            self.logprobs.top.iter().chain([&self.logprobs.chosen]).collect();
        candidates.sort_by(|a, b| b.logprob.total_cmp(&a.logprob));
        let mut names: Vec<String> = Vec::with_capacity(candidates.len());
        let mut object = serializer.serialize_map(None)?;
        for candidate in candidates {
            let name = self.writing.token_name(candidate.token);
            if !names.contains(&name) {
                object.serialize_entry(&name, &f64::from(candidate.logprob))?;
                names.push(name);
            }
        }
        object.end()
    }
}

/// `logprobs` object of a chat choice, with one list.
#[derive(Debug)]
pub(super) struct Chat<'a> {
    writing: &'a Writing,
    tokens: &'a [TokenOutput],
}

impl<'a> Chat<'a> {
    /// Returns the log-probabilities of a piece of a choice; `None` where the request wants none.
    pub(super) fn of(writing: &'a Writing, piece: &'a Piece<'_>) -> Option<Self> {
        let tokens = piece.tokens;
        let are_wanted = tokens.iter().any(|output| output.logprobs.is_some());
        are_wanted.then_some(Self { writing, tokens })
    }
}

impl Serialize for Chat<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let token = |logprobs: &TokenLogprobs| {
            let mut token = ChatToken::of(self.writing, &logprobs.chosen);
            let top = logprobs.top.iter().map(|found| ChatToken::of(self.writing, found));
            token.top_logprobs = Some(top.collect());
            token
        };
        let outputs = || self.tokens.iter().filter_map(|output| output.logprobs.as_ref());
        let mut object = serializer.serialize_struct("logprobs", 1)?;
        object.serialize_field("content", &List(|| outputs().map(token)))?;
        object.end()
    }
}

/// Token of a chat choice with its log-probability.
#[derive(Debug, Serialize)]
struct ChatToken {
    token: String,
    logprob: f64,
    bytes: Vec<u8>,
    /// Likeliest tokens at the position of a token of the answer; `None` for these themselves.
    #[serde(skip_serializing_if = "Option::is_none")]
    top_logprobs: Option<Vec<ChatToken>>,
}

impl ChatToken {
    fn of(writing: &Writing, Candidate { token, logprob }: &Candidate) -> Self {
        Self {
            token: writing.token_name(*token),
            logprob: f64::from(*logprob),
            bytes: writing.ready.text.token_bytes(*token),
            top_logprobs: None,
        }
    }
}
