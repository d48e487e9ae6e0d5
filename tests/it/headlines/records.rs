//! Records as JSON text, and which of them a figure comes from: the truth gate, the newest campaign,
//! medians and ranges. Follows docs/decisions/0045 and 0046 and docs/reference/findings.md, and
//! shares no code with the programs that render pages.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use fixtures::files_under;
use serde_json::Value;

/// Definition of a metric: title on pages, place in a record, family in findings.md, and minimum
/// effect in percent.
#[derive(Debug, Clone)]
pub struct Metric {
    pointer: String,
    family: &'static str,
    pub min_effect_pct: f64,
}

/// Returns the metric that pages call `title`; `None` where the title is not one of a metric.
pub fn metric(title: &str) -> Option<Metric> {
    let of = |pointer: &str, family, min_effect_pct| {
        Some(Metric { pointer: pointer.to_owned(), family, min_effect_pct })
    };
    let rates = [
        ("Requests", "requests_per_s"),
        ("Input tokens", "input_tokens_per_s"),
        ("Output tokens", "output_tokens_per_s"),
        ("Total tokens", "total_tokens_per_s"),
    ];
    if let Some((_, name)) = rates.iter().find(|(known, _)| *known == title) {
        return of(&format!("/metrics/{name}"), "throughput", 2.0);
    }
    let (name, statistic) = match title {
        "Start-up" => return of("/server/startup_us", "", 10.0),
        "Peak memory" | "Peak host memory" => return of("/memory/rss_bytes_max", "", 1.0),
        "Peak GPU memory" => return of("/memory/gpu_bytes_max", "", 1.0),
        _ => title.split_once(' ')?,
    };
    let (field, family, min_effect_pct) = match name {
        "TTFT" => ("ttft_us", "ttft", 5.0),
        "TPOT" => ("tpot_us", "tpot", 3.0),
        "ITL" => ("itl_token_us", "itl", 3.0),
        "E2E" => ("e2e_us", "e2e", 3.0),
        _ => return None,
    };
    of(&format!("/metrics/{field}/{statistic}"), family, min_effect_pct)
}

/// One run record, with what other files say about it.
#[derive(Debug)]
pub struct Run {
    path: String,
    json: Value,
    pub id: String,
    pub engine: String,
    pub release: String,
    pub hardware: String,
    pub model: String,
    /// Readable part of the configuration's folder, without its hash; the id of a published result,
    /// because two of them are never repeats of one another.
    pub config: String,
    /// Scenario as `id@rev`.
    pub scenario: String,
    /// Number of users that the scenario puts on the server, as pages name it; `None` where
    /// requests are sent at a rate.
    pub users: Option<String>,
    /// Id of the campaign; empty for a run without one.
    pub campaign: String,
    pub is_published: bool,
    /// True for prompts that were sent as text.
    pub is_text: bool,
    /// True for a run of a lab's campaign.
    pub is_lab: bool,
    pub is_retracted: bool,
    /// True for a published result that repeats every figure of an earlier one of its report.
    pub is_copy: bool,
    /// True for a run that ended with figures, is not INVALID as a whole and stands.
    has_figures: bool,
    /// Error rules that the run fails.
    errors: Vec<String>,
    /// True for a run with a release-blocking metric that the rules of its day called INVALID.
    pub was_invalid: bool,
}

impl Run {
    fn new(path: String, json: Value) -> Self {
        let text = |pointer: &str| {
            json.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        let (id, is_published) = (text("/id"), text("/kind") == "imported");
        let folder = path.split('/').nth(5).unwrap_or_default();
        let slug = folder.rsplit_once('-').map_or(folder, |(slug, _)| slug);
        let is_believed = ["ok", "partial"].contains(&text("/status").as_str())
            && text("/validity/verdict") != "invalid";
        Self {
            config: if is_published { id.clone() } else { slug.to_owned() },
            engine: text("/engine/name"),
            release: text("/engine/release"),
            hardware: text("/hardware/id"),
            model: text("/model/id"),
            scenario: format!("{}@{}", text("/scenario/id"), json["scenario"]["rev"]),
            users: users(&json["scenario"]),
            campaign: text("/campaign/id"),
            is_text: text("/scenario/prompt_form") == "text",
            is_lab: false,
            is_retracted: false,
            is_copy: false,
            has_figures: is_believed && json["metrics"].is_object(),
            errors: Vec::new(),
            was_invalid: text("/validity/metrics/output_tokens_per_s") == "invalid",
            id,
            is_published,
            path,
            json,
        }
    }

    /// Text at a place of the record; empty where there is none.
    pub fn text(&self, pointer: &str) -> &str {
        self.json.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
    }

    /// Whole number at a place of the record.
    pub fn count(&self, pointer: &str) -> Option<u64> {
        self.json.pointer(pointer).and_then(Value::as_u64)
    }

    pub fn is_confirming(&self) -> bool {
        self.text("/campaign/stage") == "confirm"
    }

    pub fn block(&self) -> Option<u64> {
        self.count("/campaign/block")
    }

    /// Day on which the run was started; empty where the record does not say it.
    pub fn day(&self) -> &str {
        self.text("/time/started_at").get(..10).unwrap_or_default()
    }

    /// Hash of the requests that were sent.
    pub fn workload(&self) -> &str {
        self.text("/scenario/manifest_sha256")
    }

    pub fn has_variant(&self) -> bool {
        !self.text("/server/variant").is_empty()
    }

    /// Command line and variant by which the server was started.
    pub fn command(&self) -> String {
        format!("{} {}", self.json["server"]["argv"], self.json["server"]["variant"])
    }

    /// True where more than 5 % of the requests failed or were not answered.
    fn is_lost(&self) -> bool {
        let planned = self.count("/counts/requests_planned").unwrap_or_default();
        let answered = self.count("/counts/requests_ok").unwrap_or(planned);
        let failed = self.count("/counts/requests_failed");
        failed.unwrap_or(planned.saturating_sub(answered)) * 20 > planned
    }

    /// True for a run that answered every request and is not INVALID as a whole.
    pub fn is_whole(&self) -> bool {
        let failed = self.count("/counts/requests_failed").unwrap_or_default();
        self.has_figures && self.text("/status") == "ok" && failed == 0
    }
}

/// Returns the number of users of a scenario, as pages name it.
fn users(scenario: &Value) -> Option<String> {
    let users = |count: u64| format!("{count} user{}", if count == 1 { "" } else { "s" });
    match scenario["arrival"]["kind"].as_str() {
        Some("all-at-once") => {
            let requests = scenario["requests"].as_u64().expect("a burst has requests");
            Some(format!("offline batch of {requests} requests"))
        }
        Some("closed") => scenario["arrival"]["concurrency"].as_u64().map(users),
        Some(_) => None,
        None => {
            let level = scenario["id"].as_str().and_then(|id| id.rsplit_once("-c"));
            level.and_then(|(_, level)| level.parse().ok()).map(users)
        }
    }
}

/// Number, median, mean, smallest and largest value of a metric over runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figure {
    pub n: usize,
    pub median: f64,
    pub mean: f64,
    pub min: f64,
    pub max: f64,
}

impl Figure {
    /// Returns the figure over these values; `None` without any.
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let n = values.len();
        let (min, max) = (*values.first()?, *values.last()?);
        let median = f64::midpoint(values[(n - 1) / 2], values[n / 2]);
        let mean = values.iter().sum::<f64>() / n as f64;
        Some(Self { n, median, mean, min, max })
    }

    /// Range over the runs, and at least half of the minimum effect around the median.
    fn interval(&self, metric: &Metric) -> (f64, f64) {
        let least = self.median * metric.min_effect_pct / 200.0;
        (self.min.min(self.median - least), self.max.max(self.median + least))
    }

    /// True where the intervals of two figures overlap, so that neither is ahead.
    pub fn ties_with(&self, other: &Self, metric: &Metric) -> bool {
        let ((low, high), (their_low, their_high)) =
            (self.interval(metric), other.interval(metric));
        low <= their_high && their_low <= high
    }
}

/// What findings.md says of a rule: the families of metrics that it affects, none for all metrics.
type Affected = Option<Vec<String>>;

/// All run records of a repository, its campaigns that compared in turns, and the rules that exclude
/// figures.
#[derive(Debug)]
pub struct Records {
    pub runs: Vec<Run>,
    /// Records of the campaigns that asked two servers in turns.
    pub turns: Vec<Value>,
    rules: BTreeMap<String, Affected>,
    /// Rule of each reason for which a load generator calls a metric INVALID.
    reasons: BTreeMap<String, String>,
}

impl Records {
    /// Reads the records of the repository at `root`.
    pub fn read(root: &Path) -> Self {
        let results = root.join("results");
        let (rules, reasons) = rules(&root.join("docs/reference/findings.md"));
        let campaigns: Vec<Value> =
            files_under(&results.join("campaigns")).iter().map(|path| json(path)).collect();
        let labs = labs(&campaigns);
        let is_in_turns = |campaign: &Value| {
            campaign["alternations"].as_array().is_some_and(|all| !all.is_empty())
        };
        let turns = campaigns.into_iter().filter(is_in_turns).collect();
        let retracted = retractions(&results.join("events"));
        let mut files: Vec<PathBuf> = ["runs", "imports"]
            .iter()
            .flat_map(|folder| files_under(&results.join(folder)))
            .collect();
        files.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
        files.sort();
        let mut seen = Vec::new();
        let mut records = Self { runs: Vec::new(), turns, rules, reasons };
        for file in files {
            let path = file.strip_prefix(&results).expect("below results").display().to_string();
            let mut run = Run::new(path, json(&file));
            run.is_lab = labs.contains(&run.campaign);
            run.is_retracted = retracted.iter().any(|(event, target)| {
                // Only ids of measured runs, ULIDs, tell the time.
                let is_later = run.id.len() == event.len() && run.id > *event;
                *target == run.id || (run.path.starts_with(target) && !is_later)
            });
            run.has_figures &= !run.is_retracted;
            run.errors = records.errors(&run);
            if run.is_published && !run.is_retracted {
                let key = (run.text("/source/sha256").to_owned(), run.json["metrics"].to_string());
                run.is_copy = seen.contains(&key);
                seen.push(key);
            }
            records.runs.push(run);
        }
        records
    }

    /// Returns the runs that `test` accepts.
    pub fn those(&self, test: impl Fn(&Run) -> bool) -> Vec<&Run> {
        self.runs.iter().filter(|run| test(run)).collect()
    }

    /// Returns the value of `metric` in `run` if it passes the truth gate.
    pub fn value(&self, metric: &Metric, run: &Run) -> Option<f64> {
        let value = run.json.pointer(&metric.pointer)?.as_f64()?;
        let is_excluded = run.errors.iter().any(|rule| self.affects(rule, metric));
        (run.has_figures && !run.is_lost() && !is_excluded).then_some(value)
    }

    /// Returns the ids of the error rules that the run fails, and of the rules behind reasons that
    /// make a metric INVALID.
    fn errors(&self, run: &Run) -> Vec<String> {
        let checks = run.json["checks"].as_array().into_iter().flatten();
        let failed = checks.filter(|check| check["ok"] == false && check["level"] == "error");
        let mut rules: Vec<String> =
            failed.filter_map(|check| check["rule"].as_str().map(str::to_owned)).collect();
        let reasons = run.json["validity"]["reasons"].as_array().into_iter().flatten();
        let ids = reasons.filter_map(|text| text.as_str()?.split(':').next());
        rules.extend(ids.filter_map(|id| self.reasons.get(id).cloned()));
        // E37 took the place of E16, and does not judge runs whose requests are sent at once.
        let is_burst = run.json["scenario"]["arrival"]["kind"] == "all-at-once";
        rules.retain(|rule| rule != "E16" || !is_burst);
        // E38 took the place of E31, and lets chunks outnumber tokens that were counted again.
        let is_counted_again = run.count("/counts/output_tokens_retokenized").is_some();
        rules.retain(|rule| rule != "E31" || !is_counted_again);
        rules
    }

    fn affects(&self, rule: &str, metric: &Metric) -> bool {
        match self.rules.get(rule) {
            Some(Some(families)) => families.iter().any(|family| family == metric.family),
            Some(None) => true,
            None => false,
        }
    }

    /// Returns the figure of `metric` over `runs`.
    pub fn figure(&self, metric: &Metric, runs: &[&Run]) -> Option<Figure> {
        Figure::of(runs.iter().filter_map(|run| self.value(metric, run)).collect())
    }
}

/// Selects, among the runs of one cell, those of the newest campaign that has figures: the whole
/// runs, or if there is none, those that lost requests.
pub fn newest<'a>(runs: &[&'a Run]) -> Vec<&'a Run> {
    let with_figures = || runs.iter().copied().filter(|run| run.has_figures);
    let Some(campaign) = with_figures().map(|run| &run.campaign).max() else { return Vec::new() };
    let own: Vec<&Run> = with_figures().filter(|run| run.campaign == *campaign).collect();
    let whole: Vec<&Run> = own.iter().copied().filter(|run| run.is_whole()).collect();
    if whole.is_empty() { own } else { whole }
}

/// Groups runs by `key`, in the order of the keys.
pub fn grouped<'a, K: Ord>(
    runs: impl IntoIterator<Item = &'a Run>,
    key: impl Fn(&Run) -> K,
) -> Vec<Vec<&'a Run>> {
    let mut groups: BTreeMap<K, Vec<&Run>> = BTreeMap::new();
    for run in runs {
        groups.entry(key(run)).or_default().push(run);
    }
    groups.into_values().collect()
}

fn json(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).expect("readable");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Reads the rules that exclude figures, and the reasons of load generators that do.
fn rules(findings: &Path) -> (BTreeMap<String, Affected>, BTreeMap<String, String>) {
    let text = std::fs::read_to_string(findings).expect("the reference of findings");
    let (mut rules, mut reasons) = (BTreeMap::new(), BTreeMap::new());
    for section in text.split("\n## ").skip(1) {
        let id = section.split(':').next().expect("an id").to_owned();
        for line in section.lines() {
            if let Some(reason) = line.strip_prefix("- Reported as `") {
                let (reason, rest) = reason.split_once('`').expect("a reason in ticks");
                if rest.starts_with(", INVALID") {
                    reasons.insert(reason.to_owned(), id.clone());
                }
            }
            let marked = line.strip_prefix("- Excludes: ").or(line.strip_prefix("- Marks: "));
            let Some((families, _)) = marked.and_then(|rest| rest.split_once('.')) else {
                continue;
            };
            let named = families.split(", ").map(str::to_owned).collect();
            let affected = (families != "all metrics").then_some(named);
            rules.insert(id.clone(), affected);
        }
    }
    assert!(rules.len() > 20, "the reference of findings has another form: {rules:?}");
    (rules, reasons)
}

/// Returns the ids of the campaigns of labs.
fn labs(campaigns: &[Value]) -> Vec<String> {
    let labs = campaigns.iter().filter(|campaign| campaign["lab"].is_object());
    labs.filter_map(|campaign| campaign["id"].as_str().map(str::to_owned)).collect()
}

/// Returns the id of each event that retracts records, with each target.
fn retractions(events: &Path) -> Vec<(String, String)> {
    let read = |path: PathBuf| -> toml::Table {
        std::fs::read_to_string(path).expect("readable").parse().expect("an event is TOML")
    };
    let mut found = Vec::new();
    for event in files_under(events).into_iter().map(read) {
        if event["kind"].as_str() == Some("retract") {
            let id = event["id"].as_str().expect("an id");
            let targets = event["targets"].as_array().expect("targets");
            found.extend(
                targets.iter().filter_map(|t| Some((id.to_owned(), t.as_str()?.to_owned()))),
            );
        }
    }
    // An event that was itself retracted has no effect.
    let undone: Vec<String> = found.iter().map(|(_, target)| target.clone()).collect();
    found.retain(|(event, _)| !undone.contains(event));
    found
}
