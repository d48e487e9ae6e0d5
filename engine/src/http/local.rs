//! Chat within this process, without HTTP: `redline chat` asks the engine by it. A request has the
//! fields of `/v1/chat/completions`, and is read and begun by the same code.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::answer::{cut_off, error_of, split};
use super::chat::{Begun, ChatRequest};
use super::error::Result;
use super::fields::Fields;
use super::state::{App, Ready};
use crate::tokenize::SplitText;
use crate::worker::Finish;

/// Loaded model that this process itself asks.
#[derive(Debug)]
pub struct LocalChat {
    app: App,
    ready: Arc<Ready>,
}

/// Answer to a chat request, with its speed.
#[derive(Debug, Clone, Default)]
pub struct LocalAnswer {
    /// Text of the answer, without reasoning.
    pub text: String,
    /// Reason why the answer ended; `None` if it was stopped from outside.
    pub finish: Option<Finish>,
    /// Number of the prompt's tokens.
    pub prompt_tokens: usize,
    /// Number of the prompt's tokens that were found in the prefix cache.
    pub cached_tokens: usize,
    /// Number of output tokens, those of the reasoning included.
    pub output_tokens: usize,
    /// Microseconds from the request to the first output token; 0 without one.
    pub first_us: u64,
    /// Microseconds from the first output token to the last.
    pub decode_us: u64,
}

impl LocalChat {
    /// Returns the chat with the model of `app`.
    ///
    /// # Errors
    /// The model is not loaded or embeds texts, or the engine has failed.
    pub fn new(app: App) -> Result<Self> {
        let ready = app.ready_to_generate()?;
        Ok(Self { app, ready })
    }

    /// Name of the model.
    pub fn model_name(&self) -> &str {
        &self.ready.model_name
    }

    /// Answers the chat request with the fields `body`, and calls `show` for each piece of text.
    /// The answer ends early once the future `stop` completes. Must be called within the runtime of
    /// the server.
    ///
    /// # Errors
    /// A field is missing, has an invalid value or is not supported; prompt and answer are longer
    /// than a sequence may be; or the engine has failed.
    pub async fn answer(
        &self,
        body: Map<String, Value>,
        stop: impl Future<Output = ()>,
        mut show: impl FnMut(&SplitText),
    ) -> Result<LocalAnswer> {
        let start_us = self.app.clock.elapsed_us();
        let ready = &self.ready;
        let request =
            ChatRequest::take(Fields::of(body), ready.text.reasoning(), ready.vocab_size)?;
        let Begun { prompt, mut splitter, mut ticket, options } =
            request.begin(&self.app, ready).await?;
        let mut answer = LocalAnswer { prompt_tokens: prompt.len(), ..LocalAnswer::default() };
        let mut first_us = None;
        let mut stop = std::pin::pin!(stop);
        while answer.finish.is_none() {
            let next = tokio::select! {
                next = ticket.next() => next,
                // The engine aborts the sequence of a dropped ticket.
                () = &mut stop => break,
            };
            let (_, output) = next.ok_or_else(|| cut_off(ready))?;
            if let Some(error) = error_of(&output, options) {
                return Err(error);
            }
            if output.token.is_some() {
                let now_us = self.app.clock.elapsed_us();
                let first_us = *first_us.get_or_insert(now_us);
                answer.output_tokens += 1;
                answer.first_us = first_us - start_us;
                answer.decode_us = now_us - first_us;
            }
            answer.cached_tokens = output.cached_tokens;
            let parts = split(&mut splitter, &output.text, output.finish.is_some());
            answer.text += &parts.content;
            show(&parts);
            answer.finish = output.finish;
        }
        Ok(answer)
    }
}
