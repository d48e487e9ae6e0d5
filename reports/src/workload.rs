//! Finds out which workload produced a published result, from the command that a log echoes before
//! the result, or the profile that a page names. Facts that neither states stay unknown.

use schema::run::PrintedRow;
use schema::scenario::SHAREGPT_REQUESTS;

use super::printed::{COMMAND, arguments};
use super::redact::setting;

/// Workload of a published result, as far as its page states it; `None` where it does not.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StatedWorkload {
    /// Name of the dataset from which the requests were drawn, such as `sharegpt` or `random`;
    /// `None` if not stated.
    pub dataset: Option<String>,
    pub requests: Option<u64>,
    /// Number of tokens of each prompt and of each answer, where all requests have the same
    /// lengths; otherwise `None`.
    pub tokens: Option<(u64, u64)>,
    pub model: Option<String>,
    /// Arrival rate in requests per second, with even intervals, as a profile states it; `None`
    /// without such a profile.
    pub rate: Option<f64>,
    /// Arrival rate in requests per second that the tool was given, infinite where all requests are
    /// sent at once; the intervals are the tool's own.
    pub request_rate: Option<f64>,
    /// Largest number of requests in flight that the tool allows.
    pub concurrency: Option<u64>,
    /// Seed with which the requests were drawn.
    pub seed: Option<u64>,
    /// True where answers continue past an end-of-sequence token.
    pub ignore_eos: Option<bool>,
    /// Name of the workload's profile; `None` where the page has no profiles.
    pub profile: Option<String>,
    /// Settings of the profile or of the tool, in their order and as printed.
    pub settings: Vec<PrintedRow>,
}

/// Redline's scenarios whose requests all have the same lengths: id, number of tokens per prompt
/// and per answer, number of requests.
const FIXED: &[(&str, (u64, u64), u64)] = &[
    ("balanced", (1_024, 1_024), 2_000),
    ("thinking", (2_000, 6_000), 500),
    ("long-input", (6_000, 2_000), 500),
];

/// Returns the numbers of tokens of each prompt and of each answer that the id of a published result's
/// scenario states, as `StatedWorkload::scenario` makes it; `None` where lengths differ or the id
/// states none.
pub fn lengths_of(id: &str) -> Option<(u64, u64)> {
    if let Some((_, tokens, _)) = FIXED.iter().find(|(known, ..)| *known == id) {
        return Some(*tokens);
    }
    let mut numbers = id.strip_prefix("random-")?.split('-').map(str::parse);
    let mut next = || numbers.next()?.ok();
    let (input, output, _) = (next()?, next()?, next()?);
    Some((input, output))
}

impl StatedWorkload {
    /// Returns the id of Redline's scenario with the workload's dataset, lengths and number of
    /// requests. If there is none, returns an id made of these, such as `random-512-128-1000`, or
    /// `unknown` if they are not known or the dataset is another than `sharegpt` and `random`.
    pub fn scenario(&self) -> String {
        let Some(requests) = self.requests else { return "unknown".to_owned() };
        let dataset = self.dataset.as_deref().unwrap_or_default().to_lowercase();
        match (dataset.as_str(), self.tokens) {
            ("sharegpt", _) if requests == SHAREGPT_REQUESTS => "sharegpt".to_owned(),
            ("sharegpt", _) => format!("sharegpt-{requests}"),
            ("random", Some(tokens)) => {
                let standard = FIXED.iter().find(|(_, t, n)| (*t, *n) == (tokens, requests));
                standard.map_or_else(
                    || format!("random-{}-{}-{requests}", tokens.0, tokens.1),
                    |(id, ..)| (*id).to_owned(),
                )
            }
            _ => "unknown".to_owned(),
        }
    }
}

/// Builds the workload from the settings of a run, given by their names in a result file of
/// LMDeploy, SGLang or vLLM.
pub fn workload_of_settings(text: impl Fn(&str) -> Option<String>) -> StatedWorkload {
    let number = |name: &str| text(name).and_then(|value| value.parse().ok());
    let ratio: Option<f64> = text("random_range_ratio").and_then(|value| value.parse().ok());
    let lengths = number("random_input_len").zip(number("random_output_len"));
    let truth = |name: &str| match text(name)?.as_str() {
        "True" => Some(true),
        "False" => Some(false),
        _ => None,
    };
    // A ramp-up takes the place of the one rate.
    let ramped = text("ramp_up_strategy").is_some();
    StatedWorkload {
        dataset: text("dataset_name"),
        requests: number("num_prompts"),
        // Only with a range ratio of 1 do all requests have these lengths.
        tokens: lengths.filter(|_| ratio == Some(1.0)),
        model: text("model_id"),
        request_rate: text("request_rate").filter(|_| !ramped).and_then(|value| value.parse().ok()),
        concurrency: number("max_concurrency"),
        seed: number("seed"),
        ignore_eos: truth("ignore_eos").or_else(|| truth("disable_ignore_eos").map(|off| !off)),
        ..StatedWorkload::default()
    }
}

/// Finds the workload of a result in the text before it. `between` is the part of that text after
/// the previous result: a command applies only to the one result that follows it.
pub fn workload_before(before: &str, between: &str) -> StatedWorkload {
    from_command(between).or_else(|| from_profile(before)).unwrap_or_default()
}

/// Reads the workload from the last line in `text` with flags of vLLM's or SGLang's benchmark
/// script, as logs echo it, and from the arguments that the script prints after it; `None` without
/// either.
fn from_command(text: &str) -> Option<StatedWorkload> {
    let at = text.rfind(COMMAND);
    let line = at.and_then(|at| text[at..].lines().next()).unwrap_or_default();
    let arguments = arguments(&text[at.unwrap_or_default()..]);
    let words: Vec<&str> = line.split_whitespace().collect();
    let flags = words.windows(2).filter(|pair| pair[0].starts_with("--"));
    let flags: Vec<(&str, &str)> = flags.map(|pair| (pair[0], pair[1])).collect();
    let argument = |name: &str| {
        let (_, value) = arguments.iter().find(|(known, _)| *known == name)?;
        Some(value.trim_matches(['\'', '"'])).filter(|value| *value != "None")
    };
    let value = |name: &str| {
        let name = if name == "model_id" { "model" } else { name };
        // Flags are the settings of result files, spelled with dashes.
        let flag = format!("--{}", name.replace('_', "-"));
        let flag = flags.iter().find(|(known, _)| *known == flag).map(|(_, value)| *value);
        flag.or_else(|| argument(name)).map(str::to_owned)
    };
    let echoed = if arguments.is_empty() { &flags } else { &arguments };
    let settings: Vec<PrintedRow> =
        echoed.iter().map(|(name, value)| setting(name, value)).collect();
    (!settings.is_empty()).then(|| StatedWorkload { settings, ..workload_of_settings(value) })
}

/// Reads the workload from the profile that was named last before a result: ``Profile: `NAME` `` or
/// a heading `NAME Profile`, whose settings are a fenced block of YAML under a heading `NAME`.
/// `None` without such a profile.
fn from_profile(text: &str) -> Option<StatedWorkload> {
    let named = |name: &str| {
        let label = text.rfind(&format!("Profile: `{name}`"));
        label.max(text.rfind(&format!("# {name} Profile")))
    };
    let fences = text.split("```yaml").collect::<Vec<_>>();
    let last = fences
        .windows(2)
        .filter_map(|pair| {
            let name = pair[0].trim_end().rsplit_once("# ")?.1;
            Some((named(name)?, profile(name, pair[1].split("```").next()?)))
        })
        .max_by_key(|(at, _)| *at)?;
    Some(last.1)
}

/// Reads the workload from the `key: value` pairs of the profile `name`, which may share a line
/// because line ends may be lost.
fn profile(name: &str, yaml: &str) -> StatedWorkload {
    let words: Vec<&str> = yaml.split_whitespace().collect();
    let pairs = words.windows(2).filter_map(|pair| Some((pair[0].strip_suffix(':')?, pair[1])));
    let pairs: Vec<(&str, &str)> = pairs.collect();
    let value = |key: &str| pairs.iter().find(|(known, _)| *known == key).map(|(_, value)| *value);
    let number = |key: &str| value(key).and_then(|value| value.parse().ok());
    StatedWorkload {
        dataset: value("dataset_name").map(str::to_owned),
        requests: number("total_requests"),
        tokens: number("dataset_input_tokens").zip(number("dataset_output_tokens")),
        rate: value("request_rate").and_then(|rate| rate.parse().ok()),
        seed: number("dataset_seed"),
        profile: Some(name.to_owned()),
        settings: pairs.iter().map(|(name, value)| setting(name, value)).collect(),
        ..StatedWorkload::default()
    }
}
