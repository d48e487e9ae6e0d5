//! Route `POST /v1/completions`: reads the request, tokenizes its prompts, writes choices.

use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use serde::Serialize;
use serde_json::Value;

use super::answer::{Piece, Shape, Writing};
use super::error::Result;
use super::fields::Fields;
use super::logprobs;
use super::params::{
    Params, Prompt, SequenceOptions, check_choices, check_logprobs, take_completion_logprobs,
    take_prompts,
};
use super::state::App;
use super::whole;

/// Default of the field `max_tokens` of a completion request, from OpenAI's API reference.
const DEFAULT_MAX_TOKENS: usize = 16;

pub(super) async fn completions(State(app): State<App>, body: Bytes) -> Result<Response> {
    let ready = app.ready_to_generate()?;
    let mut fields = Fields::read(body).await?;
    super::check_model(&mut fields, &ready)?;
    let CompletionRequest { prompts, echo, mut params, logprobs, add_special_tokens } =
        CompletionRequest::take(fields, ready.vocab_size)?;
    // Built once and copied for each choice, since building a grammar takes long.
    let guide = params.guide(&ready, None, prompts.len()).await?;
    let (mut prompt_ids, mut echoes) = (Vec::with_capacity(prompts.len()), Vec::new());
    let mut requests = Vec::new();
    for prompt in prompts {
        // Many short prompts take long together, and other clients wait meanwhile.
        tokio::task::yield_now().await;
        let (ids, text) = match prompt {
            Prompt::Tokens(ids) => (ids, None),
            Prompt::Text(text) => {
                let repeated = echo.then(|| text.clone());
                (ready.encode(text, add_special_tokens).await?, repeated)
            }
        };
        let (default_max_tokens, guide) = (Some(DEFAULT_MAX_TOKENS), guide.clone());
        let options = SequenceOptions { logprobs, echo, default_max_tokens, guide };
        requests.extend(params.requests(&ids, options, &ready.limits, || app.unique())?);
        // After the length of the prompt has been checked.
        if echo {
            echoes.push(text.unwrap_or_else(|| ready.text.decode(&ids)));
        }
        prompt_ids.push(ids);
    }
    check_logprobs(&requests)?;
    let ticket = ready.handle.submit(requests)?;
    let writing = Writing {
        id: format!("cmpl-{:016x}", app.unique()),
        created: app.clock.unix_s(),
        ready,
        options: params.answer,
        prompts: prompt_ids,
        n: params.n,
        has_prompt_logprobs: echo && logprobs.is_some(),
        splitter: None,
    };
    whole::respond(Completion { echoes }, writing, ticket).await
}

/// Parses a completion request as the route does, without a server. Used by fuzzing.
///
/// # Errors
/// The body is not a JSON object, or a field is missing or not supported or has an invalid value.
pub fn check_completion(body: &[u8], vocab_size: usize) -> Result<()> {
    let mut fields = Fields::parse(body)?;
    fields.string("model")?;
    CompletionRequest::take(fields, vocab_size).map(|_| ())
}

/// Parsed body of a completion request, without `model`.
#[derive(Debug)]
struct CompletionRequest {
    prompts: Vec<Prompt>,
    /// True if the answer repeats the prompt before the output.
    echo: bool,
    params: Params,
    logprobs: Option<usize>,
    add_special_tokens: bool,
}

impl CompletionRequest {
    fn take(mut fields: Fields, vocab_size: usize) -> Result<Self> {
        let prompts = take_prompts(&mut fields, "prompt", vocab_size)?;
        let echo = fields.bool("echo")?;
        // With `echo`, `max_tokens: 0` is allowed: the client may want only the prompt's
        // log-probabilities.
        let max_tokens_min = usize::from(!echo);
        let params = Params::take(&mut fields, &["max_tokens"], max_tokens_min, vocab_size)?;
        let logprobs = take_completion_logprobs(&mut fields)?;
        let add_special_tokens = fields.bool_or("add_special_tokens", true)?;
        fields.finish()?;
        check_choices(prompts.len(), params.n)?;
        Ok(Self { prompts, echo, params, logprobs, add_special_tokens })
    }
}

/// Format in which `/v1/completions` writes its choices as JSON.
#[derive(Debug)]
struct Completion {
    /// Texts of the request's prompts, in their order, if the answer repeats them; otherwise empty.
    echoes: Vec<String>,
}

impl Completion {
    fn echo(&self, writing: &Writing, piece: &Piece<'_>) -> &str {
        self.echoes.get(piece.index / writing.n).map_or("", String::as_str)
    }
}

impl Shape for Completion {
    const OBJECT: &'static str = "text_completion";
    const CHUNK_OBJECT: &'static str = "text_completion";
    const PROMPT_IDS_ON_TOP: bool = false;

    fn add(&self, writing: &Writing, piece: &Piece<'_>, choice: &mut Value) {
        let shown = if piece.first { self.echo(writing, piece) } else { "" };
        choice["text"] = [shown, &piece.parts.content].concat().into();
    }

    fn logprobs<'a>(
        &'a self,
        writing: &'a Writing,
        piece: &'a Piece<'_>,
    ) -> Option<impl Serialize + 'a> {
        // The repeated prompt is part of the first piece, so later offsets begin after it.
        let echo_chars = || self.echo(writing, piece).chars().count();
        let offset = if piece.first { 0 } else { echo_chars() + piece.text_offset };
        logprobs::Completion::of(writing, piece, offset)
    }
}
