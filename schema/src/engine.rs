//! Engine files (`suite/engines/<id>.toml`): how an inference server is started, requested and
//! read.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use crate::distribution::{Distribution, Source};
pub use crate::image::{Image, OlderImage};
use crate::missing::missing;
use crate::model::WeightsFormat;
use crate::scenario::{InvalidFile, Scenario, from_toml, out_of_range};
use crate::target::DeviceKind;

/// Engine file `suite/engines/<id>.toml`; the id is the file's stem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EngineFile {
    /// Name of the engine as pages write it.
    pub title: String,
    /// Command line and environment that start the server.
    pub launch: Launch,
    /// Route that tells when the server is ready.
    pub ready: Ready,
    /// Routes and fields from which the server's version and configuration are read.
    pub info: Info,
    /// Route that empties the prefix cache, and the log line with the KV cache size.
    pub cache: Cache,
    /// Route and format of requests, and the optional fields that the server accepts.
    pub request: Request,
    /// Names of the server's Prometheus metrics by the suite's names for them, such as
    /// `requests_running`; empty where the server has none.
    pub metrics: BTreeMap<String, String>,
    /// Route of the server's metrics in Prometheus text format; `/metrics` where left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics_route: Option<String>,
    /// Python package of the engine; left out for an engine that is not installed as one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub package: Option<Package>,
    /// Quirks: differences from other engines that a reader of the engine's figures should know.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub quirks: Vec<Quirk>,
    /// Programs of the engine that measure a value without a server, by the value's name, such as
    /// `prefill`; empty where there are none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub figures: BTreeMap<String, FigureTool>,
    /// Source distributions, for an engine that Redline downloads and builds to measure beside its
    /// own; left out for other engines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
}

/// Route of the server's metrics unless the engine file names another.
pub const METRICS: &str = "/metrics";

impl EngineFile {
    /// Returns the route of the server's metrics: the engine file's, else [`METRICS`].
    pub fn metrics_route(&self) -> &str {
        self.metrics_route.as_deref().unwrap_or(METRICS)
    }

    /// Returns the route, format and optional fields of the requests of `scenario`: those of the
    /// engine file, or, where the scenario asks for chat, those of the chat route, which takes no
    /// token ids and returns no log-probabilities of a prompt.
    ///
    /// # Errors
    /// The scenario asks for chat and the engine file names no chat route.
    pub fn for_scenario(&self, scenario: &Scenario) -> Result<Request, InvalidFile> {
        if !scenario.output.chat {
            return Ok(self.request.clone());
        }
        let Some(route) = &self.request.chat_route else {
            return Err(InvalidFile(format!(
                "`request.chat_route` is missing, and the scenario has `output.chat`\n\
                 hint: name {}'s route of chat completions there, such as `/v1/chat/completions`",
                self.title
            )));
        };
        Ok(Request {
            route: route.clone(),
            dialect: Some(ApiFormat::Chat),
            token_ids: false,
            prompt_logprobs: false,
            ..self.request.clone()
        })
    }
}

/// Command line, environment and container image of the server. `argv`, in which the placeholders
/// `{binary}`, `{model}`, `{folder}` and `{file}` (of the model), `{tp}` and `{port}` are replaced, is
/// followed by the flags of the requested settings, of `random_weights`, of `observe` and of the
/// measured variant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Launch {
    /// Program and arguments, with placeholders such as `{binary}` and `{model}`.
    pub argv: Vec<String>,
    /// Environment variables that the server needs, by name.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Flags that set the number of threads, with the placeholder `{threads}`; empty where there
    /// are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub threads: Vec<String>,
    /// Flags that are added to the server's command line where many concurrent requests are
    /// measured; empty for an engine that needs none for that.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub load: Vec<String>,
    /// Flags that make the server use random weights of the model's shape; empty where the server
    /// cannot do that.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub random_weights: Vec<String>,
    /// Flags that enable what the suite reads, such as metrics, where it is disabled by default.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub observe: Vec<String>,
    /// Kinds of devices that the server computes on; left out for one that knows both.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<DeviceKind>,
    /// Formats of weights that the server reads; left out for one that reads both.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub weights: Vec<WeightsFormat>,
    /// Flags for the settings that a campaign can request, such as tensor parallelism or the port.
    #[serde(default)]
    pub settings: Settings,
    /// Container image that starts the same server; left out where there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<Image>,
    /// Time limit within which a started server must become ready, in seconds; a run whose server
    /// takes longer fails.
    pub timeout_s: u64,
}

/// Flags for each setting that a campaign can request. A setting that is left out cannot be
/// requested or is part of `argv`. The flags follow `argv` in the order of these fields.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Setting for the number of tensor-parallel ranks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tp: Option<Setting>,
    /// Setting for the address that the server listens on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<Setting>,
    /// Setting for the port that the server listens on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<Setting>,
    /// Setting for the seed of random weights and of sampling.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<Setting>,
    /// Setting for the longest sequence, in tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<Setting>,
    /// Setting for the share of memory that the server may use, from 0 to 1. The engine defines
    /// whether that is free or all memory, of the GPU or of the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Setting>,
}

/// Setting of an engine: the flags that set it, and its default.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    /// Flags of the setting, with `{value}` as placeholder for the requested value.
    pub flags: Vec<String>,
    /// Default value of the setting: a server that should have this value gets no flags for it.
    /// Left out where every value needs the flags.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default: Option<String>,
}

impl Setting {
    /// Returns the flags that give the setting the value `value`; empty where `value` is the
    /// setting's default.
    pub fn words(&self, value: &str) -> Vec<String> {
        if self.default.as_deref() == Some(value) {
            return Vec::new();
        }
        self.flags.iter().map(|flag| flag.replace("{value}", value)).collect()
    }
}

/// Python package of an engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Package {
    /// Names of the package or of its builds. The first one is installed into virtual environments;
    /// in images and on the machine, the first one that is installed is used.
    pub names: Vec<String>,
    /// Build that is installed into virtual environments on machines without a GPU; left out where
    /// the first of `names` is for both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuPackage>,
}

/// Build of a Python package for processors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CpuPackage {
    /// Name of the build, which is one of the package's `names`.
    pub name: String,
    /// URL of a package index that has what the build needs beside the default index; left out where
    /// the default index has all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<String>,
    /// Formats of weights that the build reads; left out where they are those of `launch.weights`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub weights: Vec<WeightsFormat>,
}

/// Quirk of an engine: behavior in which it differs from others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Quirk {
    /// Sentence that says how the engine differs from others.
    pub says: String,
    /// First release with the quirk; where left out, every release before `until` has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// First release without the quirk any more; where left out, later releases still have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
    /// Evidence for the quirk: a file of the package or a page of the documentation.
    pub source: String,
}

impl Quirk {
    /// True when `release` (with or without `v`) has the quirk; also true when `release` is not a
    /// version made of numbers.
    pub fn is_of(&self, release: &str) -> bool {
        let numbers = |version: &str| -> Option<Vec<u64>> {
            // The part after `+` or `-` names a build or a preview, and is no number.
            let version = version.trim_start_matches('v').split(['+', '-']).next()?;
            // Compared as lists of numbers, so that 0.10 is later than 0.9.
            version.split('.').map(|part| part.parse().ok()).collect()
        };
        let Some(release) = numbers(release) else { return true };
        let bound = |version: &Option<String>| version.as_deref().and_then(numbers);
        bound(&self.from).is_none_or(|from| from <= release)
            && bound(&self.until).is_none_or(|until| release < until)
    }
}

/// Readiness check of a starting server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Ready {
    /// Route whose response has the status 200 once the server can serve requests.
    pub route: String,
}

/// Routes and fields at which a server reports its version and effective configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Info {
    /// Format in which the server reports its version and configuration.
    pub dialect: InfoFormat,
    /// Route that reports the configuration; left out where the server has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub route: Option<String>,
    /// Route and JSON pointer at which the server reports its version; left out where the
    /// configuration's response has it, or the server does not report it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<ReportedAt>,
    /// Location of each flag's value, for the format `fields`: the engine's own flag name to JSON
    /// pointers (RFC 6901) into the response of `route`. The first pointer at a text, number or
    /// boolean is used; the rest of the response is not kept.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub flags: BTreeMap<String, Vec<String>>,
    /// Names of the flags that provide facts of a run record, such as the data type of the KV
    /// cache, for the format `fields`.
    #[serde(default)]
    pub facts: InfoFacts,
}

/// Location of a value that a server reports: a route, and a pointer into the route's response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReportedAt {
    /// HTTP route whose JSON response has the value.
    pub route: String,
    /// JSON pointer (RFC 6901) to the value in the route's response.
    pub at: String,
}

/// Names of the engine's flags whose values, as the server reports them, become facts of a record.
/// A name is left out where the server reports no such flag.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InfoFacts {
    /// Name of the flag whose value is the number of tensor-parallel ranks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tp: Option<String>,
    /// Name of the flag whose value is the maximum number of sequences in one step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_batch_size: Option<String>,
    /// Name of the flag whose value is the data type of the KV cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_dtype: Option<String>,
    /// Name of the flag that is true when the prefix cache is on; with `!` in front, the name of a
    /// flag that is true when it is off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix_cache: Option<String>,
    /// Name of the flag whose value is the page size of the prefix cache, in tokens (vLLM: block
    /// size).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_tokens: Option<String>,
    /// Name of the flag whose value is the data type of the computation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dtype: Option<String>,
    /// Name of the flag whose value is the device that computes, such as `cuda`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
}

/// Format in which a server reports its version and configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum InfoFormat {
    /// Redline: JSON format of the response of Redline's `/server_info`.
    Redline,
    /// llama.cpp: JSON format of the response of `llama-server`'s `/props`.
    #[serde(rename = "llama.cpp")]
    LlamaCpp,
    /// Fields: any JSON response, read at the engine file's `flags` pointers. A string in the
    /// response of the form `name=value, name=value` is read as an object.
    Fields,
}

/// Caches of an engine: how the prefix cache is emptied, and how the KV cache size is read from the
/// server's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cache {
    /// Route that empties the prefix cache on `POST`; where left out, only a fresh server has an
    /// empty cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reset_route: Option<String>,
    /// Text in the server's log before the size of the KV cache in MiB. It is given for an engine
    /// that allocates the whole cache at the start and does not report used pages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_log: Option<String>,
}

/// Program of an engine that measures a value and prints it, as JSON (one document or one per line)
/// or as text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FigureTool {
    /// Command line with the placeholders `{binary}`, `{binaries}` (its folder), `{model}`,
    /// `{threads}`, and `{text}` for a perplexity.
    pub argv: Vec<String>,
    /// JSON pointer (RFC 6901) to a number, or to a list of numbers from repeats, in each JSON
    /// document that the program prints; the result is the median of all these numbers together.
    /// Exactly one of `pointer` and `after` is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pointer: Option<String>,
    /// Text directly before the number in the program's output, for output that is not JSON; its
    /// last occurrence is used. Exactly one of `pointer` and `after` is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

/// Requests that the server accepts: route, format and optional fields.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// HTTP route of the server to which generation requests are sent.
    pub route: String,
    /// HTTP route of OpenAI's chat completions, to which a scenario with `output.chat` sends its
    /// requests; left out where the server has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chat_route: Option<String>,
    /// API format of the route; where left out, the one that the route's name implies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dialect: Option<ApiFormat>,
    /// True when prompts are sent as token ids; otherwise they are sent as text.
    pub token_ids: bool,
    /// True when the server accepts the field `ignore_eos`.
    pub ignore_eos: bool,
    /// True when the server returns output token ids for the field `return_token_ids`.
    pub return_token_ids: bool,
    /// True when the server reports a running token count for
    /// `stream_options.continuous_usage_stats`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub usage_per_chunk: bool,
    /// True when `/v1/completions` returns the log-probabilities of a prompt's tokens for `echo` and
    /// `logprobs`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub prompt_logprobs: bool,
}

impl Request {
    /// Returns the API format of requests: the engine file's, else the one that the route's name
    /// implies.
    pub fn dialect(&self) -> ApiFormat {
        self.dialect.unwrap_or_else(|| ApiFormat::of_route(&self.route))
    }

    /// Returns the route of the server's list of models, which is beside the routes of completions.
    pub fn models_route(&self) -> String {
        let ends = ["/chat/completions", "/completions"];
        let beside = ends.iter().find_map(|end| self.route.strip_suffix(end));
        format!("{}/models", beside.unwrap_or("/v1"))
    }

    /// True when prompts are sent as token ids: the engine file says so and the API format supports
    /// it.
    pub fn sends_ids(&self) -> bool {
        self.token_ids && self.dialect().takes_ids()
    }

    /// True when responses contain output token ids, on request or, on SGLang's `/generate`,
    /// always.
    pub fn gets_ids(&self) -> bool {
        self.return_token_ids || self.dialect() == ApiFormat::Generate
    }
}

/// API format: how requests and streamed responses are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ApiFormat {
    /// API format of OpenAI's `/v1/completions`.
    #[default]
    Completions,
    /// API format of OpenAI's `/v1/chat/completions`.
    Chat,
    /// API format of SGLang's `/generate`: each event has all text so far and a running token
    /// count.
    Generate,
    /// API format of OpenAI's `/v1/responses`.
    Responses,
    /// API format of Anthropic's `/v1/messages`.
    Messages,
    /// API format of OpenAI's `/v1/embeddings`: an answer is one JSON document without output
    /// tokens.
    Embeddings,
}

impl ApiFormat {
    /// Returns the API format that the end of `route` implies; that of OpenAI's `/v1/completions`
    /// for any other route.
    pub fn of_route(route: &str) -> Self {
        let named = [
            ("/chat/completions", Self::Chat),
            ("/generate", Self::Generate),
            ("/responses", Self::Responses),
            ("/messages", Self::Messages),
            ("/embeddings", Self::Embeddings),
        ];
        let found = named.iter().find(|(end, _)| route.ends_with(end));
        found.map_or(Self::Completions, |(_, dialect)| *dialect)
    }

    /// True when the API format accepts prompts as token ids.
    pub fn takes_ids(self) -> bool {
        matches!(self, Self::Completions | Self::Generate | Self::Embeddings)
    }

    /// True when answers consist of output tokens; false for embeddings.
    pub fn generates(self) -> bool {
        self != Self::Embeddings
    }
}

/// Parses an engine file.
///
/// # Errors
/// The text is not TOML with the fields of an engine file, of which all missing ones are named at
/// once, or the chat route is not one by its name.
pub fn parse(text: &str) -> Result<EngineFile, InvalidFile> {
    let file: EngineFile = from_toml(text).map_err(|error| {
        let missing = missing::<EngineFile>(text);
        if missing.is_empty() {
            return error;
        }
        let names: Vec<String> = missing.iter().map(|name| format!("`{name}`")).collect();
        InvalidFile(format!("these fields are missing: {}", names.join(", ")))
    })?;
    // A record states the route alone, and its API format is known by the name.
    match &file.request.chat_route {
        Some(route) if ApiFormat::of_route(route) != ApiFormat::Chat => Err(out_of_range(
            "request.chat_route",
            "a route that ends with `/chat/completions`",
            route,
        )),
        _ => Ok(file),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{CacheProtocol, CacheState};

    #[test]
    fn a_route_says_what_is_spoken_there_unless_the_file_does() {
        let request = |route: &str, dialect| Request {
            route: route.into(),
            chat_route: None,
            dialect,
            token_ids: true,
            ignore_eos: true,
            return_token_ids: false,
            usage_per_chunk: false,
            prompt_logprobs: false,
        };
        let cases = [
            ("/v1/completions", ApiFormat::Completions, true),
            ("/v1/chat/completions", ApiFormat::Chat, false),
            ("/generate", ApiFormat::Generate, true),
            ("/v1/responses", ApiFormat::Responses, false),
            ("/v1/messages", ApiFormat::Messages, false),
            ("/v1/embeddings", ApiFormat::Embeddings, true),
            ("/proxy", ApiFormat::Completions, true),
        ];
        for (route, dialect, sends_ids) in cases {
            let found = request(route, None);
            assert_eq!((found.dialect(), found.sends_ids()), (dialect, sends_ids), "{route}");
            assert_eq!(request(route, Some(ApiFormat::Messages)).dialect(), ApiFormat::Messages);
            assert_eq!(found.models_route(), "/v1/models", "{route}");
        }
        assert_eq!(request("/v3/completions", None).models_route(), "/v3/models");
    }

    #[test]
    fn a_scenario_with_chat_is_sent_to_the_chat_route_as_text() {
        let text = include_str!("../../suite/engines/redline.toml");
        let file = parse(text).unwrap();
        let mut scenario =
            Scenario::parse(include_str!("../../suite/scenarios/chat-lite-c4.toml")).unwrap();
        let chat = file.for_scenario(&scenario).unwrap();
        assert_eq!(
            (chat.route.as_str(), chat.dialect()),
            ("/v1/chat/completions", ApiFormat::Chat)
        );
        assert!(!chat.sends_ids() && !chat.prompt_logprobs && chat.return_token_ids);
        let none = parse(&text.replace("chat_route", "# ")).unwrap();
        let said = none.for_scenario(&scenario).unwrap_err().to_string();
        assert!(said.starts_with("`request.chat_route` is missing"), "{said}");
        let said = parse(&text.replace("/v1/chat/completions", "/v1/chat")).unwrap_err();
        assert!(said.to_string().contains("`request.chat_route` must be a route that ends with"));
        scenario.output.chat = false;
        assert_eq!(file.for_scenario(&scenario).unwrap(), file.request);
        scenario.output.chat = true;
        scenario.cache = CacheProtocol { state: CacheState::Primed, share: Some(0.5) };
        assert!(scenario.check().unwrap_err().to_string().contains("`output.chat` sends text"));
    }

    #[test]
    fn a_quirk_holds_from_its_first_release_until_another() {
        let quirk = |from: Option<&str>, until: Option<&str>| Quirk {
            says: String::new(),
            from: from.map(str::to_owned),
            until: until.map(str::to_owned),
            source: String::new(),
        };
        let old = quirk(None, Some("0.10.0"));
        assert!(old.is_of("v0.9.2") && old.is_of("0.9.2.post1"));
        assert!(!old.is_of("v0.10.0") && !old.is_of("0.17.1+cpu"));
        let new = quirk(Some("0.10.0"), None);
        assert!(new.is_of("0.10.0") && new.is_of("0.10.0.1") && !new.is_of("0.9.9"));
        assert!(new.is_of("unknown") && quirk(None, None).is_of("0.1.0"));
    }

    #[test]
    fn a_setting_is_said_unless_it_holds_anyway() {
        let setting = Setting { flags: vec!["--tp={value}".into()], default: Some("1".into()) };
        assert_eq!(setting.words("1"), [""; 0]);
        assert_eq!(setting.words("2"), ["--tp=2"]);
    }
}
