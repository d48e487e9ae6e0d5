//! Readers of answer streams, one for each API format, that turn events into `delta` types. They
//! know nothing of times and of how events are split from bytes.

mod generate;
mod messages;
mod responses;

use schema::engine::ApiFormat;

use super::delta::{Event, parse};

/// Answer before an event, for API formats that repeat it in each event.
#[derive(Clone, Copy, Debug)]
pub(super) struct SoFar<'a> {
    /// Text of the answer so far, with reasoning and tool calls.
    pub text: &'a str,
    /// Number of output tokens so far, by the server's count.
    pub tokens: u64,
}

/// Reader of the events of one answer, in one API format.
#[derive(Debug, Default)]
pub(super) enum Reader {
    /// Reader of completions and chat, whose chunks differ in their fields.
    #[default]
    OpenAi,
    Generate,
    Responses,
    Messages(messages::Opening),
}

impl Reader {
    /// Returns a reader for a new stream in `dialect`.
    pub fn of(dialect: ApiFormat) -> Self {
        match dialect {
            ApiFormat::Completions | ApiFormat::Chat => Self::OpenAi,
            ApiFormat::Generate => Self::Generate,
            ApiFormat::Responses => Self::Responses,
            ApiFormat::Messages => Self::Messages(messages::Opening::default()),
        }
    }

    /// Parses the data of the next event.
    ///
    /// # Errors
    /// The data are not JSON of the API format.
    pub fn read<'a>(
        &mut self,
        data: &'a [u8],
        so_far: SoFar<'_>,
    ) -> Result<Event<'a>, serde_json::Error> {
        match self {
            Self::OpenAi => parse(data),
            // Servers also end other formats with `[DONE]`, even where the format does not define
            // it.
            _ if data.trim_ascii() == b"[DONE]" => Ok(Event::Done),
            Self::Generate => generate::read(data, so_far),
            Self::Responses => responses::read(data),
            Self::Messages(opening) => messages::read(data, opening),
        }
    }
}
