//! Scenario files (`suite/scenarios/<id>.toml`): which requests are sent and when. The first key is
//! the question that the scenario answers.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use crate::arrival::{Arrival, Growth};
pub use crate::run::CacheState;
use crate::untrusted::parser_message;
pub use crate::workload::{Pack, Workload};

/// Number of requests of the `sharegpt` scenario, the sample of ShareGPT conversations on which
/// engines publish results.
pub const SHAREGPT_REQUESTS: u64 = 10_000;

/// Scenario file `suite/scenarios/<id>.toml`; the id is the file's stem. `<id>@<rev>.toml` is an
/// older revision that stays in use.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Question that the scenario answers, in words.
    pub question: String,
    /// Revision of the scenario. Once a record cites `id@rev`, that revision is never edited.
    pub rev: u32,
    /// Workload: the requests and how they are drawn.
    pub workload: Workload,
    /// Settings of the warm-up before the clock starts: how many requests are sent, with which
    /// prompts and how long answers.
    pub warmup: Warmup,
    /// Arrival process: when the requests are sent.
    pub arrival: Arrival,
    /// Generation options of the scenario's requests: end of sequence, temperature, additional
    /// fields.
    pub output: Output,
    /// Tier: full, a quarter, or reduced for machines without a GPU.
    pub tier: Tier,
    /// Connections: kept open, or one for each request; kept open where left out.
    #[serde(default, skip_serializing_if = "is_default")]
    pub connections: Connections,
    /// Content of the server's prefix cache when the clock starts; an empty cache where left out.
    #[serde(default, skip_serializing_if = "is_default")]
    pub cache: CacheProtocol,
}

/// Returns the scenario's id in `named`: what precedes the `@` of `id@rev`, by which records cite a
/// revision and files of older revisions are named, else all of it.
pub fn id_of(named: &str) -> &str {
    named.split_once('@').map_or(named, |(id, _)| id)
}

/// Use of connections by a scenario's requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Connections {
    /// Warm: connections are opened before requests need them, and are reused by later requests.
    #[default]
    Warm,
    /// Cold: each request opens a connection of its own.
    Cold,
}

/// Content of the server's prefix cache when the clock starts.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CacheProtocol {
    /// State of the server's prefix cache. `cold`: emptied, and checked to be empty. `primed`:
    /// emptied, then filled with the beginning of each measured prompt. `unknown`: left as it is.
    pub state: CacheState,
    /// Share of each prompt that is sent ahead to prime the cache, above 0 and at most 1; given for
    /// `primed` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
}

impl Default for CacheProtocol {
    fn default() -> Self {
        Self { state: CacheState::Cold, share: None }
    }
}

impl CacheProtocol {
    fn check(&self) -> Result<(), InvalidFile> {
        let key = "cache.share";
        match (self.state, self.share) {
            (CacheState::Primed, Some(share)) if share > 0.0 && share <= 1.0 => Ok(()),
            (CacheState::Primed, share) => {
                let found = share.map_or_else(|| "nothing".to_owned(), |share| share.to_string());
                Err(out_of_range(key, "above 0 and at most 1 where the cache is primed", found))
            }
            (_, Some(share)) => {
                Err(out_of_range(key, "left out where the cache is not primed", share))
            }
            (_, None) => Ok(()),
        }
    }
}

/// Warm-up settings of a scenario: how many requests are sent before the clock starts, with which
/// prompts and how long answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Warmup {
    /// Number of warm-up requests that are sent before the clock starts.
    pub requests: u64,
    /// Source of the prompts of warm-up requests.
    pub from: WarmupSource,
    /// Maximum number of output tokens of a warm-up request; left out for no maximum, so that
    /// lengths are those that the sampler draws.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_tokens_max: Option<u64>,
}

/// Source of the prompts of warm-up requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WarmupSource {
    /// Disjoint: prompts whose first 16 tokens differ from those of every measured request, so that
    /// warm-up fills no useful cache.
    Disjoint,
}

/// Generation options of a scenario's requests.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Output {
    /// True when answers continue to the requested length, past an end-of-sequence token.
    pub ignore_eos: bool,
    /// True when each prompt is sent as one user message to the engine's chat route, as text, so that
    /// the server applies its chat template; the engine file's `request.route` where left out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub chat: bool,
    /// Sampling temperature; left out for the server's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// Additional fields of each request body, such as `top_p`; empty where left out.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub extra_body: BTreeMap<String, Value>,
}

/// Request fields that `extra_body` may not set: the scenario has its own key for them, or the
/// client sets them.
const NOT_EXTRA: [&str; 14] = [
    "ignore_eos",
    "input",
    "input_ids",
    "max_completion_tokens",
    "max_output_tokens",
    "max_tokens",
    "messages",
    "model",
    "n",
    "prompt",
    "stream",
    "stream_options",
    "temperature",
    "text",
];

impl Output {
    fn check(&self) -> Result<(), InvalidFile> {
        match self.extra_body.keys().find(|key| NOT_EXTRA.contains(&key.as_str())) {
            Some(key) => Err(InvalidFile(format!(
                "`output.extra_body` has `{key}`, which the plan or the client decides\n\
                 hint: prompts and lengths are those of `workload`; `output` has `ignore_eos` and \
                 `temperature`"
            ))),
            None => self.check_temperature(),
        }
    }

    fn check_temperature(&self) -> Result<(), InvalidFile> {
        match self.temperature {
            // `contains` is false for NaN.
            Some(temperature) if !(0.0..=TEMPERATURE_MAX).contains(&temperature) => {
                let wanted = format!("from 0 to {TEMPERATURE_MAX}");
                Err(out_of_range("output.temperature", &wanted, temperature))
            }
            _ => Ok(()),
        }
    }
}

/// Largest temperature that a scenario may have; at it every token is equally likely.
const TEMPERATURE_MAX: f64 = 1e6;

/// Tier of a scenario: how many requests it sends. Quality rules apply by tier.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// Full: the number of requests of the published benchmark.
    #[default]
    Full,
    /// Quarter: a quarter of the requests, for a short test on a GPU.
    Quarter,
    /// Lite: fewer and shorter requests, for machines without a GPU.
    Lite,
}

/// True for the default of a type, which a file leaves out.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Error of a TOML file (scenario, engine, lab, event or another): what is wrong with it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct InvalidFile(pub String);

/// Parses a TOML file.
///
/// # Errors
/// The text is not TOML with the fields of `T`. The message quotes at most 200 characters of a line,
/// in which nothing acts on a terminal.
pub fn from_toml<T: DeserializeOwned>(text: &str) -> Result<T, InvalidFile> {
    toml::from_str(text).map_err(|error| InvalidFile(parser_message(&error)))
}

/// Returns the error that the value of `key` must be `wanted` and is `found`.
pub(crate) fn out_of_range(key: &str, wanted: &str, found: impl ToString) -> InvalidFile {
    InvalidFile(format!("`{key}` must be {wanted}, found {}", found.to_string()))
}

impl Scenario {
    /// Parses and checks a scenario file.
    ///
    /// # Errors
    /// The text is not TOML with the fields of a scenario, or anything that [`Scenario::check`]
    /// finds.
    pub fn parse(text: &str) -> Result<Self, InvalidFile> {
        let scenario: Self =
            from_toml(text).map_err(|error| InvalidFile(format!("not a scenario: {error}")))?;
        scenario.check()?;
        Ok(scenario)
    }

    /// Checks that each value of the scenario is allowed, and that the values agree with each
    /// other.
    ///
    /// # Errors
    /// A value is out of range, one that the workload's sampler needs is left out or one that it
    /// does not accept is given, `extra_body` has a field that it may not set, or two values
    /// contradict each other.
    pub fn check(&self) -> Result<(), InvalidFile> {
        self.workload.check()?;
        bounded("workload.requests", self.workload.requests, REQUESTS)?;
        // None is sent where the number is zero.
        bounded("warmup.requests", self.warmup.requests.max(1), REQUESTS)?;
        positive("rev", u64::from(self.rev))?;
        // An absent limit passes as 1: only zero is refused.
        positive("warmup.output_tokens_max", self.warmup.output_tokens_max.unwrap_or(1))?;
        self.arrival.check()?;
        self.check_size()?;
        self.output.check()?;
        self.cache.check()?;
        if self.output.chat && self.cache.state == CacheState::Primed {
            return Err(InvalidFile(
                "`cache.state` is `primed`, which needs prompts as token ids, and `output.chat` sends \
                 text\nhint: set `cache.state` to `cold` or `unknown`"
                    .to_owned(),
            ));
        }
        if self.output.chat && self.workload.chat_template {
            return Err(InvalidFile(
                "`workload.chat_template` and `output.chat` write the chat template twice, in the \
                 client and in the server\nhint: leave one of them out"
                    .to_owned(),
            ));
        }
        if matches!(self.arrival, Arrival::Trace { .. }) && !self.workload.pack.has_times() {
            return Err(InvalidFile(format!(
                "`arrival.kind` is `trace`, but `{}` has no times\n\
                 hint: use `trace@mooncake` or `jsonl`",
                self.workload.pack.id()
            )));
        }
        Ok(())
    }

    /// Checks that all prompts together fit the client's memory, and that the run ends in time.
    fn check_size(&self) -> Result<(), InvalidFile> {
        let requests = self.workload.requests + self.warmup.requests;
        let tokens = self.workload.prompt_tokens_drawn().saturating_mul(requests);
        if tokens > PROMPT_TOKENS_MAX {
            return Err(InvalidFile(format!(
                "`workload.requests` of `workload.input_tokens` have {tokens} tokens of prompts, and \
                 the client holds {PROMPT_TOKENS_MAX} at most\nhint: send fewer requests, or shorter \
                 ones"
            )));
        }
        let days = self.arrival.span_us(self.workload.requests) / DAY_US;
        if days > DAYS_MAX {
            return Err(InvalidFile(format!(
                "`workload.requests` are sent over {days} days by `arrival`, and a run has {DAYS_MAX} \
                 at most"
            )));
        }
        Ok(())
    }

    /// Returns the scenario as the text of a scenario file (TOML).
    ///
    /// # Errors
    /// A value has no TOML form, such as a `null` in an additional field of the body.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        toml::to_string(self)
    }
}

/// Largest value of a number in a scenario, and the reason for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    most: u64,
    why: &'static str,
}

/// Bound of numbers of requests.
pub(crate) const REQUESTS: Bound =
    Bound { most: 1_000_000, why: "all are drawn and held before the first is sent" };
/// Bound of numbers of tokens.
pub(crate) const TOKENS: Bound = Bound { most: 10_000_000, why: "no model has a longer context" };
/// Bound of times in microseconds: a day.
pub(crate) const TIME_US: Bound = Bound { most: DAY_US, why: "a day" };

/// Largest number of tokens of all prompts of a scenario: 3 GB of token ids and of requests that are
/// ready to be sent.
const PROMPT_TOKENS_MAX: u64 = 1 << 28;
/// Microseconds in a day.
const DAY_US: u64 = 24 * 3600 * 1_000_000;
/// Longest time over which the requests of a scenario are sent, in days.
const DAYS_MAX: u64 = 30;

/// Checks that `value` under `key` is from 1 to `bound`.
pub(crate) fn bounded(key: &str, value: u64, bound: Bound) -> Result<(), InvalidFile> {
    let Bound { most, why } = bound;
    if (1..=most).contains(&value) {
        return Ok(());
    }
    Err(out_of_range(key, &format!("from 1 to {most} ({why})"), value))
}

pub(crate) fn positive(key: &str, value: u64) -> Result<(), InvalidFile> {
    if value == 0 { Err(out_of_range(key, "at least 1", value)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_quotes_little_of_a_file_and_nothing_acts_on_a_terminal() {
        let long = "x".repeat(10 << 20);
        for text in [
            format!("key \u{1b}[31m {long}"),
            format!("question = \"{long}\""),
            format!("{long} = 1"),
            format!("rev = 1\nworkload = {{ pack = \"{long}\" }}"),
            format!("rev = \"{long}\""),
        ] {
            let said = from_toml::<Scenario>(&text).unwrap_err().to_string();
            assert!(said.len() < 2000, "{} bytes of {}", said.len(), &text[..20]);
            assert!(!said.contains(&"x".repeat(201)) && !said.contains('\u{1b}'), "{said}");
        }
        let said = from_toml::<Scenario>("rev = 1\nno = 2").unwrap_err().to_string();
        assert!(said.contains("2 | no = 2\n") && said.contains("`cache`"), "{said}");
    }
}
