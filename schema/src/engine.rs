//! An engine file: how an OpenAI-compatible server is started, asked and read.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `suite/engines/<id>.toml`. The id is the file's stem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EngineFile {
    /// As pages write its name.
    pub title: String,
    /// How it is started.
    pub launch: Launch,
    /// How it says that it can serve.
    pub ready: Ready,
    /// How it tells version and configuration.
    pub info: Info,
    /// How its prefix cache is emptied.
    pub cache: Cache,
    /// What it takes.
    pub request: Request,
    /// What the suite reads from the page of metrics, by the suite's name for it.
    pub metrics: BTreeMap<String, String>,
    /// Route of that page, in Prometheus' text format; else [`METRICS`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics_route: Option<String>,
    /// The Python package that it is, for an engine that is installed and not built.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub package: Option<Package>,
    /// What a reader of its numbers should know.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub quirks: Vec<Quirk>,
    /// Figures that a program of the engine measures by itself, without a server.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub figures: BTreeMap<String, FigureTool>,
    /// Where the engine comes from, if it is one that Redline fetches and builds to stand beside
    /// its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
}

/// Where an engine's counters are, unless its file says otherwise.
pub const METRICS: &str = "/metrics";

impl EngineFile {
    /// Route of the engine's counters.
    #[must_use]
    pub fn metrics_route(&self) -> &str {
        self.metrics_route.as_deref().unwrap_or(METRICS)
    }
}

/// The command line: `argv`, then the settings that are asked for. `{binary}`, `{model}`, `{tp}`,
/// `{port}` are filled in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Launch {
    /// Program and arguments, with `{binary}`, `{model}` and the like for what differs.
    pub argv: Vec<String>,
    /// Variables that it needs.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Flags that set the number of threads, with `{threads}` for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub threads: Vec<String>,
    /// Flags that ready it for as many requests as a scenario sends at once, where it is not ready
    /// for them by itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub load: Vec<String>,
    /// Flags that have it make up weights of the model's shape; none where it cannot.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub random_weights: Vec<String>,
    /// Flags that open what the suite asks for, such as its counters, where they are closed by
    /// default.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub observe: Vec<String>,
    /// What may be asked for beside the model.
    #[serde(default)]
    pub settings: Settings,
    /// The same in a container.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<Image>,
    /// How long a start may take before it is called a hang.
    pub timeout_s: u64,
}

/// How each thing is said that a launch may ask for; one that is not here cannot be asked for, or
/// is said in `argv`. They follow `argv` in this order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Tensor-parallel ranks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tp: Option<Setting>,
    /// The address that it listens on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<Setting>,
    /// The port that it listens on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<Setting>,
    /// Of the made-up weights and of whatever else it draws.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<Setting>,
    /// Tokens of the longest sequence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<Setting>,
    /// Share of the memory that it may take, as it counts that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Setting>,
}

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    /// With `{value}` in place of what is asked for.
    pub flags: Vec<String>,
    /// What holds without them: asking for that says nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default: Option<String>,
}

impl Setting {
    /// The flags that say `value`.
    #[must_use]
    pub fn words(&self, value: &str) -> Vec<String> {
        if self.default.as_deref() == Some(value) {
            return Vec::new();
        }
        self.flags.iter().map(|flag| flag.replace("{value}", value)).collect()
    }
}

/// A container image, and what is said inside it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Image {
    /// With `{release}` in place of the release's name, or `{version}`, which has no `v`.
    pub name: String,
    /// What follows the image's name; settings come after it.
    pub argv: Vec<String>,
    /// `NAME=VALUE`, in the order in which they are said.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Where the folder of models from the hub lies inside.
    pub hub: String,
}

/// A Python package.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Package {
    /// Its name, or those of its builds, the first of which is installed.
    pub names: Vec<String>,
}

/// What an engine does otherwise than others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Quirk {
    /// In one sentence.
    pub says: String,
    /// The first release that does so; else all before `until`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The first release that does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
    /// File of the package, or page of the documentation, that shows it.
    pub source: String,
}

impl Quirk {
    /// True of a release, with or without `v`; of all where it is no version of numbers.
    #[must_use]
    pub fn is_of(&self, release: &str) -> bool {
        let numbers = |version: &str| -> Option<Vec<u64>> {
            let version = version.trim_start_matches('v').split(['+', '-']).next()?;
            version.split('.').map(|part| part.parse().ok()).collect()
        };
        let Some(release) = numbers(release) else { return true };
        let bound = |version: &Option<String>| version.as_deref().and_then(numbers);
        bound(&self.from).is_none_or(|from| from <= release)
            && bound(&self.until).is_none_or(|until| release < until)
    }
}

/// How a starting server is asked whether it serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Ready {
    /// Route that answers 200 once the server can serve.
    pub route: String,
}

/// How version and effective configuration are learnt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Info {
    /// How the answer is read.
    pub dialect: InfoDialect,
    /// Where it tells its configuration; none where it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub route: Option<String>,
    /// Of dialect `fields`: where its version stands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<Told>,
    /// Of dialect `fields`: JSON pointers (RFC 6901) into the answer by the engine's own name of
    /// the flag; the first that leads anywhere counts. Nothing else of the answer is kept.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub flags: BTreeMap<String, Vec<String>>,
    /// Of dialect `fields`: which of those flags say what a record asks for.
    #[serde(default)]
    pub facts: InfoFacts,
}

/// Where something is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Told {
    /// Where it is asked for.
    pub route: String,
    /// JSON pointer.
    pub at: String,
}

/// Flags by what they mean. One behind `!` says the opposite.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InfoFacts {
    /// Tensor-parallel ranks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tp: Option<String>,
    /// Sequences in one step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_batch_size: Option<String>,
    /// Type of keys and values.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_dtype: Option<String>,
    /// Whether it has one; behind `!` where the flag says that it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix_cache: Option<String>,
    /// Tokens of a page of the prefix cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_tokens: Option<String>,
    /// Type that is computed in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dtype: Option<String>,
    /// What computes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
}

/// In whose words a server tells its version and configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum InfoDialect {
    /// `/server_info` as Redline's contract has it.
    Redline,
    /// `/props` of `llama-server`.
    #[serde(rename = "llama.cpp")]
    LlamaCpp,
    /// What the file's `flags` point at. A text of `name=value, name=value` in the answer is read
    /// as the object that it spells.
    Fields,
}

/// How the prefix cache is emptied and its hits are read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cache {
    /// `POST` route that empties the prefix cache; none means a fresh launch is the only way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reset_route: Option<String>,
    /// What stands in the server's log before the size of its KV cache in MiB, for an engine that
    /// writes all of it at the start and does not count the pages that it has touched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_log: Option<String>,
}

/// A program that prints a figure: as JSON, one document or one a line, or in plain words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FigureTool {
    /// `{binary}`, `{binaries}` (the folder that it lies in), `{model}`, `{threads}`, and for a
    /// perplexity `{text}`, are filled in.
    pub argv: Vec<String>,
    /// JSON pointer (RFC 6901) to a number, or to a list of repeats, in each document. The median
    /// of all counts. Exactly one of `pointer` and `after` is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pointer: Option<String>,
    /// What stands before the number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

/// A source distribution that is built with CMake.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// `name==version`; its file is fetched, and no code of it runs before the build.
    pub sdist: String,
    /// Name of that file.
    pub file: String,
    /// Of that file.
    pub sha256: String,
    /// Of the source, for whoever reads this file: no program acts on it.
    pub licence: String,
    /// Folder inside it that CMake configures.
    pub folder: String,
    /// CMake's settings.
    pub cmake: Vec<String>,
    /// Programs to build, the server first.
    pub programs: Vec<String>,
}

impl Source {
    /// Version of the distribution.
    #[must_use]
    pub fn version(&self) -> &str {
        self.sdist.split_once("==").map_or("unknown", |(_, version)| version)
    }
}

/// What a request may carry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Where requests go.
    pub route: String,
    /// What is spoken on that route, where its name does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dialect: Option<Dialect>,
    /// Prompts go as token ids, else as text.
    pub token_ids: bool,
    /// It takes a field of that name.
    pub ignore_eos: bool,
    /// Output ids can be asked for with `return_token_ids`.
    pub return_token_ids: bool,
    /// A running count can be asked for with `stream_options.continuous_usage_stats`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub usage_per_chunk: bool,
}

impl Request {
    /// What is spoken on the route.
    #[must_use]
    pub fn dialect(&self) -> Dialect {
        self.dialect.unwrap_or_else(|| Dialect::of_route(&self.route))
    }

    /// Prompts go as ids: they are wanted so, and the dialect has a place for them.
    #[must_use]
    pub fn sends_ids(&self) -> bool {
        self.token_ids && self.dialect().takes_ids()
    }

    /// The ids of outputs come with an answer: on the native route they do unasked.
    #[must_use]
    pub fn gets_ids(&self) -> bool {
        self.return_token_ids || self.dialect() == Dialect::Generate
    }
}

/// How requests and streams of answers are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Dialect {
    /// OpenAI's `/v1/completions`.
    #[default]
    Completions,
    /// OpenAI's `/v1/chat/completions`.
    Chat,
    /// SGLang's own `/generate`: all of the text so far with each event, and a running count.
    Generate,
    /// OpenAI's `/v1/responses`.
    Responses,
    /// Anthropic's `/v1/messages`.
    Messages,
}

impl Dialect {
    /// The dialect of a route by its last part; any other is taken for completions.
    #[must_use]
    pub fn of_route(route: &str) -> Self {
        let named = [
            ("/chat/completions", Self::Chat),
            ("/generate", Self::Generate),
            ("/responses", Self::Responses),
            ("/messages", Self::Messages),
        ];
        let found = named.iter().find(|(end, _)| route.ends_with(end));
        found.map_or(Self::Completions, |(_, dialect)| *dialect)
    }

    /// A prompt may be token ids.
    #[must_use]
    pub fn takes_ids(self) -> bool {
        matches!(self, Self::Completions | Self::Generate)
    }
}

/// Reads an engine file.
///
/// # Errors
/// The text is not TOML of this shape.
pub fn parse(text: &str) -> Result<EngineFile, Box<toml::de::Error>> {
    toml::from_str(text).map_err(Box::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_says_what_is_spoken_there_unless_the_file_does() {
        let request = |route: &str, dialect| Request {
            route: route.into(),
            dialect,
            token_ids: true,
            ignore_eos: true,
            return_token_ids: false,
            usage_per_chunk: false,
        };
        let cases = [
            ("/v1/completions", Dialect::Completions, true),
            ("/v1/chat/completions", Dialect::Chat, false),
            ("/generate", Dialect::Generate, true),
            ("/v1/responses", Dialect::Responses, false),
            ("/v1/messages", Dialect::Messages, false),
            ("/proxy", Dialect::Completions, true),
        ];
        for (route, dialect, sends_ids) in cases {
            let found = request(route, None);
            assert_eq!((found.dialect(), found.sends_ids()), (dialect, sends_ids), "{route}");
            assert_eq!(request(route, Some(Dialect::Messages)).dialect(), Dialect::Messages);
        }
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
