//! Request fields shared by completions and chat: sampling parameters, limits, stop conditions and
//! the form of the answer.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::error::{ApiError, ErrorKind, Result, shown};
use super::fields::{self, Fields, wrong_type};
use super::json::Json;
use super::state::Ready;
use super::structure::{Wanted, take_structure};
use super::tools;
use super::work::building;
use crate::guide::{Calls, Guide, Structure};
use crate::logprobs::{Candidate, TokenLogprobs};
use crate::worker::{Output, Request};
use engine_core::sample::Sampling;
use engine_schedule::Limits;

/// Limit on the number of choices of one request, which is its number of prompts times `n`; a
/// request for more is refused.
pub(super) const CHOICES_MAX: usize = 128;
/// Limit on the number of choices of a request that wants a structure: each follows the grammar by
/// itself, which takes a megabyte for large schemas.
const GUIDED_CHOICES_MAX: usize = 32;
/// Limit on the number of strings in the request field `stop`; a request with more is refused.
const STOPS_MAX: usize = 16;
/// Limit on the length in bytes of a string in the request field `stop`. Each choice has a copy.
const STOP_BYTES_MAX: usize = 4096;
/// Limit on the number of ids in the request field `stop_token_ids`. Each choice has a copy.
const STOP_TOKENS_MAX: usize = 1024;
/// Limit on the number of entries of the request field `logit_bias`. Each choice has a copy.
const BIASES_MAX: usize = 4096;

/// Parameters of a completion or chat request, without its prompt.
#[derive(Debug, Clone)]
pub(super) struct Params {
    pub(super) answer: AnswerOptions,
    /// Number of choices (outputs) per prompt of the request.
    pub(super) n: usize,
    max_tokens: Option<usize>,
    min_tokens: usize,
    ignore_eos: bool,
    stop: Vec<String>,
    include_stop: bool,
    stop_tokens: Vec<u32>,
    /// True to keep special tokens in the output's text, as `skip_special_tokens: false` in the
    /// request or a model's format of reasoning asks.
    pub(super) shows_special: bool,
    sampling: Sampling,
    /// Structure (JSON schema or regular expression) that the answer must have, if the request
    /// wants one.
    structure: Option<Wanted>,
    /// Seed of each prompt's first choice, if the request gives one; each further choice of the
    /// prompt has a seed larger by 1.
    seed: Option<u64>,
}

/// Options for the form of an answer: streaming, token usage, token ids.
#[derive(Debug, Clone, Copy)]
pub(super) struct AnswerOptions {
    pub(super) stream: bool,
    /// True to end a stream with a chunk that has the token usage.
    pub(super) include_usage: bool,
    /// True to include the token usage so far in every chunk of a stream.
    pub(super) continuous_usage: bool,
    pub(super) return_token_ids: bool,
    /// True to name tokens `token_id:7` in log-probabilities, because different tokens may have the
    /// same text.
    pub(super) tokens_as_ids: bool,
    /// Name of the request field that asks for a structure, if one does; an error in following the
    /// structure names it.
    pub(super) structure: Option<&'static str>,
}

/// Options of the sequences of one prompt that completions and chat set differently.
#[derive(Debug, Default)]
pub(super) struct SequenceOptions {
    pub(super) logprobs: Option<usize>,
    /// True if the answer repeats the prompt, with its log-probabilities if any are wanted.
    pub(super) echo: bool,
    /// Value of `max_tokens` where the request has none; `None` allows as many tokens as fit.
    pub(super) default_max_tokens: Option<usize>,
    pub(super) guide: Option<Guide>,
}

impl Params {
    /// Builds the guide that keeps the answer within the structure that the request wants, on a
    /// blocking thread: the grammar of a large schema takes many milliseconds. It is given up when
    /// the returned future is dropped. `None` if the request wants no structure. `chat` is the
    /// rendered prompt of a chat; `None` for a completion. `prompts` is the number of prompts of the
    /// request.
    pub(super) async fn guide(
        &mut self,
        ready: &Ready,
        chat: Option<String>,
        prompts: usize,
    ) -> Result<Option<Guide>> {
        let Some((field, structure)) = self.structure.take() else { return Ok(None) };
        if prompts * self.n > GUIDED_CHOICES_MAX {
            let message = format!(
                "a request with `{field}` has at most {GUIDED_CHOICES_MAX} choices, prompts times `n`"
            );
            return Err(ApiError::field("n", message));
        }
        let text = Arc::clone(&ready.text);
        let build =
            building(field, move |is_wanted| text.guide(&structure, chat.as_deref(), is_wanted));
        let built = build.await?;
        built.map(Some).map_err(|error| {
            let reason = error.to_string();
            ApiError::field(field, format!("`{field}` cannot be used: {}", shown(&reason)))
        })
    }

    /// Wants an answer with tool calls. Where it may be text instead, that follows the JSON schema that
    /// the request wants, if any; calls then stand alone, and the result is true.
    ///
    /// # Errors
    /// The answer may be text, and the request wants another structure than JSON, or the model's
    /// calls cannot be told from JSON.
    pub(super) fn call(&mut self, mut calls: Calls) -> Result<bool> {
        if let Some((field, structure)) = self.structure.take().filter(|_| !calls.is_required) {
            let is_plain_json = calls.format.triggers.iter().any(|t| t.text.starts_with('{'));
            let why = match structure {
                Structure::Json(_) if is_plain_json => ": the calls of this model are JSON as well",
                Structure::Json(schema) => {
                    calls.answer = Some(schema);
                    ""
                }
                _ => "",
            };
            if calls.answer.is_none() {
                let message = format!("`{field}` cannot be combined with `{}`{why}", tools::FIELD);
                return Err(ApiError::new(ErrorKind::UnsupportedField, message).at(field));
            }
        }
        let are_alone = calls.answer.is_some() || calls.is_required;
        self.shows_special |= calls.shows_special;
        self.structure = Some((tools::FIELD, Structure::Calls(calls)));
        self.answer.structure = Some(tools::FIELD);
        Ok(are_alone)
    }

    /// Reads the request fields that completions and chat share. `max_tokens_names` lists the
    /// route's names for `max_tokens`, in order of precedence; the value must be at least
    /// `max_tokens_min`.
    pub(super) fn take(
        fields: &mut Fields,
        max_tokens_names: &[&str],
        max_tokens_min: usize,
        vocab_size: usize,
    ) -> Result<Self> {
        let n = fields.count("n", 1)?.unwrap_or(1);
        refuse_best_of(fields, n)?;
        let mut max_tokens = None;
        // All names are read and checked, even if an earlier one decides.
        for name in max_tokens_names {
            let value = fields.count(name, max_tokens_min)?;
            max_tokens = max_tokens.or(value);
        }
        let min_tokens = fields.count("min_tokens", 0)?.unwrap_or(0);
        if max_tokens.is_some_and(|max| min_tokens > max) {
            let message = format!("`min_tokens` is {min_tokens}, more than `max_tokens`");
            return Err(ApiError::field("min_tokens", message));
        }
        let stop_tokens = fields.tokens("stop_token_ids", vocab_size, STOP_TOKENS_MAX)?;
        let structure = take_structure(fields)?;
        let field = structure.as_ref().map(|(field, _)| *field);
        Ok(Self {
            answer: AnswerOptions { structure: field, ..take_answer(fields)? },
            n,
            max_tokens,
            min_tokens,
            ignore_eos: fields.bool("ignore_eos")?,
            stop: take_stop(fields)?,
            include_stop: fields.bool("include_stop_str_in_output")?,
            stop_tokens: stop_tokens.unwrap_or_default(),
            shows_special: !fields.bool_or("skip_special_tokens", true)?,
            structure,
            sampling: take_sampling(fields, vocab_size)?,
            seed: take_seed(fields)?,
        })
    }

    /// Builds the engine's requests for one prompt, one per choice; refuses an empty prompt, and a
    /// prompt and output that exceed `limits`.
    pub(super) fn requests(
        &self,
        prompt: &[u32],
        options: SequenceOptions,
        limits: &Limits,
        fresh_seed: impl Fn() -> u64,
    ) -> Result<Vec<Request>> {
        if prompt.is_empty() {
            return Err(ApiError::field("prompt", "the prompt has no tokens"));
        }
        let room = limits.max_output(prompt.len());
        let max_tokens = match self.max_tokens {
            Some(max_tokens) => max_tokens,
            // At least one token, so that a prompt that leaves no room is refused below.
            None => {
                let logprobs_max = options.logprobs.map_or(usize::MAX, tokens_max);
                let default = options.default_max_tokens.unwrap_or(logprobs_max / self.n);
                default.min(room).max(1)
            }
        };
        let refused = |refusal| ApiError::from(refusal).at("max_tokens");
        // The first check has the smallest output, so that an error of the prompt alone names the
        // prompt.
        let least = max_tokens.min(1);
        limits
            .admits(prompt.len(), least)
            .map_err(|refusal| ApiError::from(refusal).at("prompt"))?;
        limits.admits(prompt.len(), max_tokens).map_err(refused)?;
        let seed = self.seed.unwrap_or_else(fresh_seed);
        let request = |choice: usize| Request {
            prompt: prompt.to_vec(),
            sampling: Sampling { seed: seed.wrapping_add(choice as u64), ..self.sampling.clone() },
            max_tokens,
            min_tokens: self.min_tokens,
            ignore_eos: self.ignore_eos,
            stop: self.stop.clone(),
            include_stop: self.include_stop,
            stop_tokens: self.stop_tokens.clone(),
            logprobs: options.logprobs,
            // Those of the prompt are the same for all its choices.
            prompt_logprobs: choice == 0 && options.echo && options.logprobs.is_some(),
            shows_special: self.shows_special,
            embeds: false,
            guide: options.guide.clone().map(Box::new),
        };
        Ok((0..self.n).map(request).collect())
    }
}

/// Refuses a request with more choices than [`CHOICES_MAX`].
pub(super) fn check_choices(prompts: usize, n: usize) -> Result<()> {
    if prompts.saturating_mul(n) <= CHOICES_MAX {
        return Ok(());
    }
    let message = format!("a request has at most {CHOICES_MAX} choices, prompts times `n`");
    Err(ApiError::field("n", message))
}

/// Limit on the memory in bytes that the log-probabilities of one answer may take until its client
/// has read them.
const LOGPROBS_BYTES_MAX: usize = 48 << 20;

/// Memory in bytes that an allocation takes beyond what it holds.
const ALLOCATION_BYTES: usize = 16;

/// Returns the memory in bytes that the likeliest tokens at a position take.
const fn top_bytes(top: usize) -> usize {
    ALLOCATION_BYTES + top * size_of::<Candidate>()
}

/// Returns the largest number of output tokens, of all choices together, of a request that wants
/// `top` likeliest tokens at each position.
const fn tokens_max(top: usize) -> usize {
    LOGPROBS_BYTES_MAX / (size_of::<Output>() + top_bytes(top))
}

/// Refuses the sequences of a request whose log-probabilities may take too much memory.
pub(super) fn check_logprobs(requests: &[Request]) -> Result<()> {
    let bytes = |request: &Request| {
        let Some(top) = request.logprobs else { return 0 };
        let prompt_tokens = if request.prompt_logprobs { request.prompt.len() } else { 0 };
        request.max_tokens * (size_of::<Output>() + top_bytes(top))
            + prompt_tokens * (size_of::<TokenLogprobs>() + top_bytes(top))
    };
    let bytes: usize = requests.iter().map(bytes).sum();
    if bytes <= LOGPROBS_BYTES_MAX {
        return Ok(());
    }
    let message = format!(
        "the log-probabilities of this request may take {} MiB, and at most {} are kept; hint: ask for \
         fewer choices, tokens or likeliest tokens",
        bytes.div_ceil(1 << 20),
        LOGPROBS_BYTES_MAX >> 20
    );
    Err(ApiError::field("logprobs", message))
}

/// Refuses the request field `best_of` unless it has no effect: this server does not rank outputs.
fn refuse_best_of(fields: &mut Fields, n: usize) -> Result<()> {
    match fields.count("best_of", 1)? {
        Some(best_of) if best_of != n && best_of != 1 => {
            let message = "`best_of` is supported only if it is 1 or equal to `n`";
            Err(ApiError::new(ErrorKind::UnsupportedField, message).at("best_of"))
        }
        _ => Ok(()),
    }
}

fn take_answer(fields: &mut Fields) -> Result<AnswerOptions> {
    let stream = fields.bool("stream")?;
    let (mut include_usage, mut continuous_usage) = (false, false);
    match fields.take("stream_options") {
        None => {}
        Some(Value::Object(options)) => {
            let mut options = Fields::of(options);
            include_usage = options.bool("include_usage")?;
            continuous_usage = options.bool("continuous_usage_stats")?;
        }
        Some(other) => return Err(wrong_type("stream_options", "an object", &other)),
    }
    let return_token_ids = fields.bool("return_token_ids")?;
    let tokens_as_ids = fields.bool("return_tokens_as_token_ids")?;
    Ok(AnswerOptions {
        stream,
        include_usage,
        continuous_usage,
        return_token_ids,
        tokens_as_ids,
        structure: None,
    })
}

fn take_sampling(fields: &mut Fields, vocab_size: usize) -> Result<Sampling> {
    let penalty = |n: f32| (-2.0..=2.0).contains(&n);
    // Beyond it a penalized logit may be infinite.
    let repetition = |n: f32| (1e-6..=1e6).contains(&n);
    let mut number = |name, default: f32, wanted, fits: &dyn Fn(f32) -> bool| {
        Ok::<f32, ApiError>(fields.number(name, wanted, fits)?.unwrap_or(default))
    };
    let sampling = Sampling {
        temperature: number("temperature", 1.0, "from 0 to 1e6", &|n| (0.0..=1e6).contains(&n))?,
        top_p: number("top_p", 1.0, "above 0 and at most 1", &|n| n > 0.0 && n <= 1.0)?,
        min_p: number("min_p", 0.0, "from 0 to 1", &|n| (0.0..=1.0).contains(&n))?,
        repetition_penalty: number("repetition_penalty", 1.0, "from 1e-6 to 1e6", &repetition)?,
        presence_penalty: number("presence_penalty", 0.0, "from -2 to 2", &penalty)?,
        frequency_penalty: number("frequency_penalty", 0.0, "from -2 to 2", &penalty)?,
        // `top_k` and `logit_bias` follow below, `seed` with each choice.
        ..Sampling::greedy()
    };
    let top_k = take_top_k(fields)?;
    let logit_bias = take_logit_bias(fields, vocab_size)?;
    Ok(Sampling { top_k, logit_bias, ..sampling })
}

/// Reads the request field `top_k`; -1 and 0 both mean no limit, `None`.
fn take_top_k(fields: &mut Fields) -> Result<Option<usize>> {
    let Some(value) = fields.take("top_k") else { return Ok(None) };
    match value.as_i64() {
        Some(-1 | 0) => Ok(None),
        Some(top_k) if top_k > 0 => Ok(usize::try_from(top_k).ok()),
        _ => Err(wrong_type("top_k", "a whole number above 0, or -1 for no limit", &value)),
    }
}

/// Reads the request field `seed`: any 64-bit integer, signed or unsigned.
fn take_seed(fields: &mut Fields) -> Result<Option<u64>> {
    let Some(value) = fields.take("seed") else { return Ok(None) };
    match value.as_u64().or_else(|| value.as_i64().map(i64::cast_unsigned)) {
        Some(seed) => Ok(Some(seed)),
        None => Err(wrong_type("seed", "a whole number", &value)),
    }
}

fn take_logit_bias(fields: &mut Fields, vocab_size: usize) -> Result<BTreeMap<u32, f32>> {
    let name = "logit_bias";
    let Some(value) = fields.take(name) else { return Ok(BTreeMap::new()) };
    let Value::Object(entries) = &value else {
        return Err(wrong_type(name, "an object of token id to bias", &value));
    };
    if entries.len() > BIASES_MAX {
        let message = format!("`{name}` has {} entries, more than {BIASES_MAX}", entries.len());
        return Err(ApiError::field(name, message));
    }
    let mut biases = BTreeMap::new();
    for (key, bias) in entries {
        let token = key.parse().ok().filter(|id: &u32| (*id as usize) < vocab_size);
        let number = bias.as_f64().map(|b| b as f32).filter(|b| (-100.0..=100.0).contains(b));
        let (Some(token), Some(number)) = (token, number) else {
            let entry = format!("`{key}`: {bias}");
            let message = format!(
                "`logit_bias` has {}; ids are below {vocab_size}, biases from -100 to 100",
                shown(&entry)
            );
            return Err(ApiError::field(name, message));
        };
        biases.insert(token, number);
    }
    Ok(biases)
}

fn take_stop(fields: &mut Fields) -> Result<Vec<String>> {
    let Some(value) = fields.take("stop") else { return Ok(Vec::new()) };
    let wanted = format!(
        "a string of 1 to {STOP_BYTES_MAX} bytes, or a list of at most {STOPS_MAX} of them"
    );
    let items = match &value {
        Value::Array(items) => items.as_slice(),
        single => std::slice::from_ref(single),
    };
    let fits = |text: &&str| (1..=STOP_BYTES_MAX).contains(&text.len());
    let strings = items.iter().map(|item| item.as_str().filter(fits));
    let strings: Option<Vec<_>> = strings.map(|text| text.map(str::to_owned)).collect();
    strings
        .filter(|strings| strings.len() <= STOPS_MAX)
        .ok_or_else(|| wrong_type("stop", &wanted, &value))
}

/// Reads the field `logprobs` of a completion request: the number of likeliest tokens to report
/// with each token; `None` for no log-probabilities.
pub(super) fn take_completion_logprobs(fields: &mut Fields) -> Result<Option<usize>> {
    match fields.take("logprobs") {
        None | Some(Value::Bool(false)) => Ok(None),
        Some(value) => top_count("logprobs", &value).map(Some),
    }
}

/// Reads the fields `logprobs` and `top_logprobs` of a chat request: the number of likeliest tokens
/// to report with each token; `None` for no log-probabilities.
pub(super) fn take_chat_logprobs(fields: &mut Fields) -> Result<Option<usize>> {
    let wanted = fields.bool("logprobs")?;
    let top = fields.take("top_logprobs");
    let top = top.map(|value| top_count("top_logprobs", &value)).transpose()?.unwrap_or(0);
    if top > 0 && !wanted {
        return Err(ApiError::field("top_logprobs", "`top_logprobs` needs `logprobs`: true"));
    }
    Ok(wanted.then_some(top))
}

fn top_count(name: &str, value: &Value) -> Result<usize> {
    // The limit is OpenAI's.
    let count = value.as_u64().filter(|count| *count <= 20).and_then(|n| usize::try_from(n).ok());
    count.ok_or_else(|| wrong_type(name, "a whole number from 0 to 20", value))
}

/// One prompt of a completion request, as text or as token ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
}

/// Reads the field `name` with the prompts of a request: a text, a list of token ids, or a list of
/// either.
pub(super) fn take_prompts(
    fields: &mut Fields,
    name: &str,
    vocab_size: usize,
) -> Result<Vec<Prompt>> {
    let Some(json) = fields.take_json(name) else {
        return Err(ApiError::missing(name));
    };
    let wanted = "a string, a list of token ids, or a list of either";
    let one = |item: Json| match item {
        Json::Value(Value::String(text)) => Ok(Prompt::Text(text)),
        Json::Value(other) => Err(wrong_type(name, wanted, &other)),
        list => fields::tokens(name, list, vocab_size).map(Prompt::Tokens),
    };
    let is_number = |item: &Json| matches!(item, Json::Value(Value::Number(_)));
    match json {
        // A list of numbers is one prompt of token ids, not a list of prompts.
        Json::List(items) if !items.iter().all(is_number) => items.into_iter().map(one).collect(),
        single => Ok(vec![one(single)?]),
    }
}
