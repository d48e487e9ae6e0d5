//! A lab: which options of a server are worth it, for which load. The file that asks, and the plain
//! data of its rounds and its conclusion.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::campaign::Policy;
use crate::canonical::sha256_of;
use crate::metric;

/// `suite/labs/<id>.toml`. The id is the file's stem.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LabFile {
    /// What this file answers.
    pub question: String,
    /// Its revision.
    pub rev: u32,
    /// File stem under `suite/targets/`: the machine that it is for.
    pub target: String,
    /// A model of the target.
    pub model: String,
    /// Scenario ids. All count alike.
    pub profiles: Vec<String>,
    /// What is to become better.
    pub objective: Objective,
    /// Each with the flags that it has in every launch. The first one's are the baseline.
    pub engines: Vec<LabEngine>,
    /// What is tried.
    #[serde(default)]
    pub axes: Vec<Axis>,
    /// How that comes together.
    pub combine: Combine,
    /// What it may spend.
    pub budget: LabBudget,
}

/// What is to become better, and what must not be given up for it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Objective {
    /// Name of a metric.
    pub metric: String,
    /// What the median over repeats has to keep in every profile: at most the value where lower is
    /// better, at least it where higher is.
    #[serde(default)]
    pub bounds: BTreeMap<String, f64>,
}

/// A release of an engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LabEngine {
    /// A file of `suite/engines/`.
    pub id: String,
    /// A release of it.
    pub version: String,
    /// That it has in every launch.
    #[serde(default)]
    pub flags: Vec<String>,
}

/// Options of one engine of which a server can have one, or none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Axis {
    /// Lower-case letters, digits and hyphens.
    pub name: String,
    /// Id of one of the lab's engines.
    pub engine: String,
    /// Its settings beside the default one.
    pub options: Vec<LabOption>,
}

/// One setting of an axis.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LabOption {
    /// Lower-case letters, digits and hyphens.
    pub name: String,
    /// What it adds to the command line.
    pub flags: Vec<String>,
}

/// How the axes of an engine come together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Combine {
    /// Each option alone.
    OneAtATime,
    /// Every combination.
    Grid,
    /// Each option alone, then pairs of those that helped, and the best of each axis together.
    Staged,
}

/// What a lab may spend; what is spent first ends it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LabBudget {
    /// Launches.
    pub runs: Option<u32>,
    /// Of launches.
    pub hours: Option<f64>,
}

/// An engine with one option, or none, of each of its axes.
#[derive(
    Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub struct Candidate {
    /// Index into the file's engines.
    pub engine: usize,
    /// Names of options by names of axes.
    pub options: BTreeMap<String, String>,
}

/// Why a round is launched.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum LabStage {
    /// Which engine is the fastest by its defaults.
    Engines,
    /// Which options help it.
    Options,
    /// Which of them help together.
    Combinations,
    /// Whether the best is better on fresh launches.
    Confirm,
}

/// Launches that are asked for together. A block is one launch of each candidate under one profile;
/// a round has one block for each repeat and profile, repeat by repeat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Round {
    /// Why.
    pub stage: LabStage,
    /// The first is what the others are compared with.
    pub candidates: Vec<Candidate>,
    /// Launches of each candidate under each profile.
    pub repeats: u32,
    /// Number of its first block in the campaign.
    pub block: u32,
    /// Launches that were asked for before it.
    pub runs: u32,
}

/// What a lab may come to, as far as that is known before its first launch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabOutline {
    /// Launches where everything is decided at once and nothing helps.
    pub runs_least: u32,
    /// Launches with which every option is judged once and two are confirmed: a smaller budget
    /// concludes nothing.
    pub runs_enough: u32,
    /// Launches where nothing can be decided before the last repeat, and everything helps.
    pub runs_most: u32,
    /// Launches of the last round at most, which are kept back for it.
    pub runs_last: u32,
    /// Rounds where everything is decided at once and nothing helps.
    pub rounds_least: u32,
    /// Rounds where nothing can be decided before the last repeat, and everything helps.
    pub rounds_most: u32,
    /// What says how often candidates are launched, and when they are called better.
    pub policy: Policy,
}

impl LabFile {
    /// The engine of a candidate by its flags in the file alone.
    #[must_use]
    pub fn plain(engine: usize) -> Candidate {
        Candidate { engine, options: BTreeMap::new() }
    }

    /// Flags of a candidate: the engine's, then those of its options in the order of the axes. An
    /// option's flag takes the place of the engine's own of the same name.
    #[must_use]
    pub fn flags(&self, candidate: &Candidate) -> Vec<String> {
        let Some(engine) = self.engines.get(candidate.engine) else { return Vec::new() };
        let chosen = self.axes.iter().filter(|axis| axis.engine == engine.id).filter_map(|axis| {
            let name = candidate.options.get(&axis.name)?;
            axis.options.iter().find(|option| option.name == *name)
        });
        let added: Vec<&String> = chosen.flat_map(|option| &option.flags).collect();
        let replaced: Vec<&str> = added.iter().filter_map(|word| flag_name(word)).collect();
        let mut flags = without(&engine.flags, &replaced);
        flags.extend(added.into_iter().cloned());
        flags
    }
}

impl Candidate {
    /// Its variant's name, none for an engine by its own flags: `kv-f16-threads-1`. Names of many
    /// options are cut, and kept apart by a hash.
    #[must_use]
    pub fn variant(&self) -> Option<String> {
        let words = self.options.iter().map(|(axis, option)| format!("{axis}-{option}"));
        let name = words.collect::<Vec<_>>().join("-");
        if name.len() <= VARIANT_BYTES_MAX {
            return (!name.is_empty()).then_some(name);
        }
        let hash = sha256_of(&self.options).ok()?;
        // Names are of ASCII: the file's check saw to that.
        Some(format!("{}-{}", &name[..VARIANT_BYTES_MAX - HASH_BYTES - 1], &hash[..HASH_BYTES]))
    }
}

/// The most bytes of a variant's name, as `release-bench --variant` takes them.
const VARIANT_BYTES_MAX: usize = 40;
/// Of the hash that keeps cut names apart.
const HASH_BYTES: usize = 8;

/// `--threads` of `--threads`, `--threads=4`; none of a value.
#[must_use]
pub fn flag_name(word: &str) -> Option<&str> {
    word.starts_with('-').then(|| word.split('=').next().unwrap_or(word))
}

/// `flags` without those of these names and their values.
#[must_use]
pub fn without(flags: &[String], names: &[&str]) -> Vec<String> {
    let mut left = Vec::new();
    let mut skips = false;
    for word in flags {
        if let Some(name) = flag_name(word) {
            skips = names.contains(&name);
        }
        if !skips {
            left.push(word.clone());
        }
    }
    left
}

/// Reads a lab file.
///
/// # Errors
/// The text is not TOML of this shape, or asks what cannot be answered.
pub fn parse(text: &str) -> Result<LabFile, LabError> {
    let lab: LabFile = toml::from_str(text).map_err(Box::new)?;
    check(&lab)?;
    Ok(lab)
}

/// A lab file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// It is not TOML of this shape.
    #[error(transparent)]
    Toml(#[from] Box<toml::de::Error>),
    /// It asks what cannot be answered; why, in words.
    #[error("{0}")]
    Senseless(String),
}

fn check(lab: &LabFile) -> Result<(), LabError> {
    let senseless = |why: String| Err(LabError::Senseless(why));
    if lab.profiles.is_empty() || lab.engines.is_empty() {
        return senseless("a lab needs at least one of `profiles` and one of `engines`".into());
    }
    if let Some(twice) = repeated(lab.profiles.iter()) {
        return senseless(format!("profile `{twice}` stands twice"));
    }
    if let Some(twice) = repeated(lab.engines.iter().map(|engine| &engine.id)) {
        return senseless(format!(
            "engine `{twice}` stands twice: give the second an axis instead"
        ));
    }
    let names = std::iter::once(&lab.objective.metric).chain(lab.objective.bounds.keys());
    for name in names {
        if metric::by_name(name).is_none() {
            let known: Vec<&str> = metric::METRICS.iter().map(|metric| metric.name).collect();
            return senseless(format!("no metric `{name}`; known are {}", known.join(", ")));
        }
    }
    if let Some((name, value)) = lab.objective.bounds.iter().find(|(_, value)| !value.is_finite()) {
        return senseless(format!("the bound of `{name}` is {value}, which nothing keeps"));
    }
    match lab.budget {
        LabBudget { runs: None, hours: None } => {
            return senseless("`budget` names neither `runs` nor `hours`".into());
        }
        LabBudget { hours: Some(hours), .. } if !(hours.is_finite() && hours > 0.0) => {
            return senseless(format!("a budget of {hours} hours is none"));
        }
        LabBudget { .. } => {}
    }
    check_axes(lab)
}

/// Names are parts of the names of runs; an axis that two share would be neither's.
fn check_axes(lab: &LabFile) -> Result<(), LabError> {
    let senseless = |why: String| Err(LabError::Senseless(why));
    if let Some(twice) = repeated(lab.axes.iter().map(|axis| &axis.name)) {
        return senseless(format!("axis `{twice}` stands twice"));
    }
    for axis in &lab.axes {
        let name = &axis.name;
        if !lab.engines.iter().any(|engine| engine.id == axis.engine) {
            let engine = &axis.engine;
            return senseless(format!("axis `{name}` is of `{engine}`, no engine of this lab"));
        }
        if axis.options.is_empty() {
            return senseless(format!("axis `{name}` has no options"));
        }
        if let Some(twice) = repeated(axis.options.iter().map(|option| &option.name)) {
            return senseless(format!("option `{twice}` of axis `{name}` stands twice"));
        }
        for part in std::iter::once(name).chain(axis.options.iter().map(|option| &option.name)) {
            let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
            if part.is_empty() || part.len() > NAME_BYTES_MAX || !part.bytes().all(fits) {
                return senseless(format!(
                    "`{part}` of axis `{name}` is not a name of up to {NAME_BYTES_MAX} lower-case \
                     letters, digits and hyphens"
                ));
            }
        }
        if let Some(option) = axis.options.iter().find(|option| option.flags.is_empty()) {
            let option = &option.name;
            return senseless(format!(
                "option `{option}` of axis `{name}` has no flags: that is the baseline"
            ));
        }
    }
    check_flags(lab)
}

/// The most bytes of the name of an axis or an option.
const NAME_BYTES_MAX: usize = 18;

/// A flag belongs to one axis: a server that gets it twice has one of the two values, or none.
fn check_flags(lab: &LabFile) -> Result<(), LabError> {
    let mut owners: BTreeMap<(&str, &str), &str> = BTreeMap::new();
    for axis in &lab.axes {
        let words = axis.options.iter().flat_map(|option| &option.flags);
        for flag in words.filter_map(|word| flag_name(word)) {
            let owner = owners.entry((&axis.engine, flag)).or_insert(&axis.name);
            if *owner != axis.name {
                return Err(LabError::Senseless(format!(
                    "axes `{owner}` and `{}` both set `{flag}`: options of one axis exclude each \
                     other, so make them one axis",
                    axis.name
                )));
            }
        }
    }
    Ok(())
}

fn repeated<'a>(names: impl Iterator<Item = &'a String>) -> Option<&'a String> {
    let mut seen = std::collections::BTreeSet::new();
    names.into_iter().find(|name| !seen.insert(*name))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOUND: &str = r#"
        question = "Which?"
        rev = 1
        target = "cpu"
        model = "m"
        profiles = ["lab-sharegpt-lite"]
        objective = { metric = "total_tokens_per_s", bounds = { ttft_us_p99 = 2e6 } }
        combine = "staged"
        budget = { runs = 200 }
        engines = [{ id = "redline", version = "v1", flags = ["--threads", "2", "--quiet"] }]

        [[axes]]
        name = "threads"
        engine = "redline"
        options = [{ name = "1", flags = ["--threads=1"] }, { name = "4", flags = ["--threads", "4"] }]

        [[axes]]
        name = "kv"
        engine = "redline"
        options = [{ name = "f16", flags = ["--kv-cache-dtype", "f16"] }]
    "#;

    fn with(options: &[(&str, &str)]) -> Candidate {
        let owned = |(axis, option): &(&str, &str)| ((*axis).to_owned(), (*option).to_owned());
        Candidate { engine: 0, options: options.iter().map(owned).collect() }
    }

    #[test]
    fn an_option_takes_the_place_of_the_engines_own_flag() {
        let lab = parse(SOUND).unwrap();
        assert_eq!(lab.flags(&LabFile::plain(0)), ["--threads", "2", "--quiet"]);
        let both = with(&[("threads", "1"), ("kv", "f16")]);
        assert_eq!(lab.flags(&both), ["--quiet", "--threads=1", "--kv-cache-dtype", "f16"]);
        assert_eq!(both.variant().as_deref(), Some("kv-f16-threads-1"));
        assert_eq!(LabFile::plain(0).variant(), None);
    }

    #[test]
    fn names_of_many_options_are_cut_and_stay_apart() {
        let many = |last| {
            let long = "a-name-of-18-bytes";
            with(&[(long, long), ("b", last)]).variant().unwrap()
        };
        assert_eq!(many("x").len(), VARIANT_BYTES_MAX);
        assert_ne!(many("x"), many("y"));
    }

    #[test]
    fn what_cannot_be_answered_is_refused_with_the_reason() {
        for (from, to, error) in [
            (r#""lab-sharegpt-lite""#, "", "a lab needs at least one of `profiles`"),
            ("total_tokens_per_s", "speed", "no metric `speed`; known are requests_per_s"),
            ("2e6", "nan", "the bound of `ttft_us_p99` is NaN, which nothing keeps"),
            ("runs = 200", "hours = 0.0", "a budget of 0 hours is none"),
            ("{ runs = 200 }", "{}", "`budget` names neither `runs` nor `hours`"),
            (r#"name = "4""#, r#"name = "1""#, "option `1` of axis `threads` stands twice"),
            (r#"name = "kv""#, r#"name = "threads""#, "axis `threads` stands twice"),
            (r#"name = "f16""#, r#"name = "F16!""#, "`F16!` of axis `kv` is not a name of up to"),
            ("--kv-cache-dtype", "--threads", "axes `threads` and `kv` both set `--threads`"),
            (r#"["--threads=1"]"#, "[]", "option `1` of axis `threads` has no flags"),
            (r#"id = "redline""#, r#"id = "vllm""#, "axis `threads` is of `redline`, no engine"),
        ] {
            let found = parse(&SOUND.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(found.contains(error), "{to}: {found}");
        }
    }
}
