//! The readers of events, one a dialect: what each says of the answer, in the words of `delta`.
//! Knows nothing of times, and nothing of how events are cut out of bytes.

mod generate;
mod messages;
mod responses;

use schema::engine::Dialect;

use super::delta::{Event, NotAChunk, parse};

/// What came before an event, for dialects that repeat it.
#[derive(Clone, Copy, Debug)]
pub(super) struct SoFar<'a> {
    /// All words of the answer.
    pub text: &'a str,
    /// The server's count of its tokens.
    pub tokens: u64,
}

/// Reads the events of one answer.
#[derive(Debug, Default)]
pub(super) enum Reader {
    /// Completions and chat, whose chunks are told apart by their fields.
    #[default]
    OpenAi,
    Generate,
    Responses,
    Messages(messages::Opening),
}

impl Reader {
    /// The reader of a stream that begins.
    pub fn of(dialect: Dialect) -> Self {
        match dialect {
            Dialect::Completions | Dialect::Chat => Self::OpenAi,
            Dialect::Generate => Self::Generate,
            Dialect::Responses => Self::Responses,
            Dialect::Messages => Self::Messages(messages::Opening::default()),
        }
    }

    /// Reads the data of the next event.
    ///
    /// # Errors
    /// The data is not JSON of the dialect.
    pub fn read<'a>(&mut self, data: &'a [u8], so_far: SoFar<'_>) -> Result<Event<'a>, NotAChunk> {
        match self {
            Self::OpenAi => return parse(data),
            // Servers of the other dialects end with it too, whether theirs knows it or not.
            _ if data.trim_ascii() == b"[DONE]" => return Ok(Event::Done),
            Self::Generate => generate::read(data, so_far),
            Self::Responses => responses::read(data),
            Self::Messages(opening) => messages::read(data, opening),
        }
        .map_err(NotAChunk::from)
    }
}
