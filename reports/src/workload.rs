//! Finds out which workload produced a published result, from the command that a log echoes before
//! the result, or the profile that a page names. Facts that neither states stay unknown.

use schema::scenario::SHAREGPT_REQUESTS;

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
}

/// Redline's scenarios whose requests all have the same lengths: id, number of tokens per prompt
/// and per answer, number of requests.
const FIXED: &[(&str, (u64, u64), u64)] = &[
    ("balanced", (1_024, 1_024), 2_000),
    ("thinking", (2_000, 6_000), 500),
    ("long-input", (6_000, 2_000), 500),
];

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
    StatedWorkload {
        dataset: text("dataset_name"),
        requests: number("num_prompts"),
        // Only with a range ratio of 1 do all requests have these lengths.
        tokens: lengths.filter(|_| ratio == Some(1.0)),
        model: text("model_id"),
        rate: None,
    }
}

/// Finds the workload of a result in the text before it. `between` is the part of that text after
/// the previous result: a command applies only to the one result that follows it.
pub fn workload_before(before: &str, between: &str) -> StatedWorkload {
    from_command(between).or_else(|| from_profile(before)).unwrap_or_default()
}

/// Reads the workload from the last line in `text` with flags of vLLM's or SGLang's benchmark
/// script, as logs echo it; `None` without such a line.
fn from_command(text: &str) -> Option<StatedWorkload> {
    let at = text.rfind("--dataset-name ")?;
    let line = text[at..].lines().next()?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let flag = |name: &str| words.windows(2).find(|pair| pair[0] == name).map(|pair| pair[1]);
    // Flags are the settings of result files, spelled with dashes.
    Some(workload_of_settings(|name| match name {
        "model_id" => quoted_argument(&text[at..], "model"),
        _ => flag(&format!("--{}", name.replace('_', "-"))).map(str::to_owned),
    }))
}

/// Returns the value of the argument `name` in the line that benchmark scripts print at their
/// start: `Namespace(..., model='...', ...)`.
fn quoted_argument(text: &str, name: &str) -> Option<String> {
    let arguments = &text[text.find("Namespace(")?..];
    let start = format!(" {name}='");
    let value = &arguments[arguments.find(&start)? + start.len()..];
    value.split_once('\'').map(|(value, _)| value.to_owned())
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
            Some((named(name)?, profile(pair[1].split("```").next()?)))
        })
        .max_by_key(|(at, _)| *at)?;
    Some(last.1)
}

/// Reads the workload from a profile's `key: value` pairs, which may share a line because line ends
/// may be lost.
fn profile(yaml: &str) -> StatedWorkload {
    let words: Vec<&str> = yaml.split_whitespace().collect();
    let value = |key: &str| {
        words.windows(2).find(|pair| pair[0].strip_suffix(':') == Some(key)).map(|pair| pair[1])
    };
    let number = |key: &str| value(key).and_then(|value| value.parse().ok());
    StatedWorkload {
        dataset: value("dataset_name").map(str::to_owned),
        requests: number("total_requests"),
        tokens: number("dataset_input_tokens").zip(number("dataset_output_tokens")),
        model: None,
        rate: value("request_rate").and_then(|rate| rate.parse().ok()),
    }
}
