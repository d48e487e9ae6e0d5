//! Labs: experiments that find which options of a server pay off under which load. Defines the lab
//! file and the plain data of its rounds.

mod check;

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::canonical::sha256_of;
use crate::metric;
use crate::policy::Policy;
use crate::scenario::{InvalidFile, from_toml};

/// Lab file `suite/labs/<id>.toml`; the id is the file's stem.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LabFile {
    /// Question that the lab answers, in words.
    pub question: String,
    /// Revision of the lab file.
    pub rev: u32,
    /// Id of the target, the hardware class that the lab runs on: a file stem under
    /// `suite/targets/`.
    pub target: String,
    /// Id of the model that is served, one of the target's models.
    pub model: String,
    /// Ids of the scenarios that every candidate is measured with, here called profiles; all have
    /// equal weight.
    pub profiles: Vec<String>,
    /// Objective of the lab: the metric to improve, and bounds that other metrics must keep.
    pub objective: Objective,
    /// Engines with the flags that each has in its runs. The first engine with its flags is the
    /// baseline.
    pub engines: Vec<LabEngine>,
    /// Axes of the lab: groups of mutually exclusive options to try.
    #[serde(default)]
    pub axes: Vec<Axis>,
    /// Strategy for combining options of several axes.
    pub combine: Combine,
    /// Budget of the lab: its maximum number of runs, its maximum hours, or both.
    pub budget: LabBudget,
}

/// Objective of a lab: the metric to improve, and bounds on other metrics.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Objective {
    /// Name of the metric to improve: `requests_per_s`, `input_tokens_per_s`, `output_tokens_per_s`
    /// or `total_tokens_per_s`; `ttft_us`, `tpot_us`, `itl_token_us` or `e2e_us`, each with `_mean`,
    /// `_p50`, `_p95` or `_p99`, in microseconds; `startup_us`, `rss_bytes_max` or
    /// `requests_failed`. Latencies may also be named in milliseconds, such as `ttft_ms_p99`.
    pub metric: String,
    /// Bounds by metric name, each in the unit of that name, such as `ttft_us_p99 = 2000000` or
    /// `ttft_ms_p99 = 2000`. In every profile the median of the metric
    /// over a candidate's repeats must keep its bound: an upper bound where lower values of the
    /// metric are better, else a lower bound.
    #[serde(default)]
    pub bounds: BTreeMap<String, f64>,
    /// Bounds under single profiles, by the id of the profile: like `bounds`, and in place of the
    /// bound that `bounds` has for the same metric.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub by_profile: BTreeMap<String, BTreeMap<String, f64>>,
}

/// Engine release that takes part in a lab.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LabEngine {
    /// Id of the engine: a file stem under `suite/engines/`.
    pub id: String,
    /// Release of the engine that takes part in the lab.
    pub version: String,
    /// Flags that the engine has in every run of the lab, except where an option sets the same
    /// flag.
    #[serde(default)]
    pub flags: Vec<String>,
    /// Maximum number of runs in which the lab tries the engine's options, with the runs of the
    /// engine without options that they are compared with; the confirmation is not counted. The
    /// lab's budget holds as well. Left out or null for no limit of the engine's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runs: Option<u32>,
}

/// Axis of a lab: alternative options of one engine; a server has one of them or none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Axis {
    /// Name of the axis: 1 to 18 lower-case letters, digits and hyphens.
    pub name: String,
    /// Id of the engine that the options belong to.
    pub engine: String,
    /// Options of the axis to try, in addition to the engine's default.
    pub options: Vec<LabOption>,
    /// Name of the option that a factorial design tries beside the engine's default; needed there
    /// for an axis of several options.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub high: Option<String>,
}

/// Option of an axis: a name and the flags that set it. Environment variables and the
/// tensor-parallel size are no options: a server has those variables that the command `lab` was
/// started with, and the size that the target's file gives the model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LabOption {
    /// Name of the option: 1 to 18 lower-case letters, digits and hyphens.
    pub name: String,
    /// Flags that the option adds to the command line, in place of the engine's flags of the same
    /// names.
    pub flags: Vec<String>,
}

/// Strategy by which a lab combines options of several axes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Combine {
    /// One at a time: each option is tried alone.
    OneAtATime,
    /// Grid: every combination of options is tried.
    Grid,
    /// Staged: each option is tried alone, then the pairs of options that helped alone and, where
    /// these lie on three axes or more, the best option of each axis together.
    Staged,
    /// Factorial: one option of each axis is tried together with those of the other axes, in a
    /// two-level fractional factorial design of resolution IV. It shows pairs of options that help
    /// only together. The best option, the pairs that interact most, each with those that the
    /// design cannot tell apart from it, and the best combination are then confirmed.
    Factorial,
}

/// Largest number of axes of one engine that a factorial design takes: it has 64 configurations.
pub const FACTORS_MAX: usize = 32;

/// Largest number of combinations of one engine's options that a lab tries as a grid. More would
/// take days, and the list of them more memory with every axis.
pub const GRID_MAX: usize = 256;

/// Budget of a lab. The lab starts no round of runs that it expects to exceed the limit on runs or
/// the limit on time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LabBudget {
    /// Maximum number of runs that the lab may start; left out or null for no limit on runs.
    pub runs: Option<u32>,
    /// Maximum total time of the lab's runs, in hours; left out or null for no limit on time.
    pub hours: Option<f64>,
}

/// Candidate of a lab: an engine with one option, or none, from each of its axes.
#[derive(
    Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub struct Candidate {
    /// Index of the engine in the lab file, from 0.
    pub engine: usize,
    /// Chosen options: name of the axis to name of the option.
    pub options: BTreeMap<String, String>,
}

/// Stage of a lab, by which its rounds of runs follow each other.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum LabStage {
    /// Engines: each engine with its own flags is compared with the first one, to find the best by
    /// the lab's objective.
    Engines,
    /// Options: options of the best engine are compared with the same engine without options, to
    /// find those that help.
    Options,
    /// Combinations: options that helped alone are tried together.
    Combinations,
    /// Factorial: the configurations of a factorial design of the best engine's options run, one of
    /// which has no option.
    Factorial,
    /// Confirmation: the best candidates are compared with the baseline on fresh runs.
    Confirm,
}

/// Round of a lab: runs that are requested together. A block is one run of each candidate under one
/// profile; a round has one block for each repeat and profile, ordered by repeat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Round {
    /// Stage of the lab that the round belongs to.
    pub stage: LabStage,
    /// Candidates of the round; the first is the one that the others are compared with.
    pub candidates: Vec<Candidate>,
    /// Number of runs of each candidate under each profile.
    pub repeats: u32,
    /// Number within the campaign of the first block of the round, counted from 0 over all rounds.
    pub block: u32,
    /// Number of runs that the lab requested before this round.
    pub runs: u32,
}

/// Smallest and largest numbers of runs and rounds that a lab may take, as they are known before
/// the first run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabOutline {
    /// Smallest number of runs that the lab may take: every decision falls early, and no option
    /// helps.
    pub runs_least: u32,
    /// Number of runs with which the lab can reach a conclusion: they judge every option once and
    /// confirm the best candidates. With a smaller budget it reaches none.
    pub runs_enough: u32,
    /// Largest number of runs that the lab may take: no decision falls before the last repeat, and
    /// every option helps.
    pub runs_most: u32,
    /// Maximum number of runs of the confirmation round, which the budget reserves.
    pub runs_last: u32,
    /// Smallest number of rounds that the lab may take: every decision falls early, and no option
    /// helps.
    pub rounds_least: u32,
    /// Largest number of rounds that the lab may take: no decision falls before the last repeat,
    /// and every option helps.
    pub rounds_most: u32,
    /// Id, revision and hash of the comparison policy that says how often candidates run, and when
    /// one is better than another.
    pub policy: Policy,
}

impl Objective {
    /// Gives metrics that are named in milliseconds the names that records have, and their bounds
    /// the unit of these.
    ///
    /// # Errors
    /// A metric has two bounds, one under each of its names.
    fn rename(&mut self) -> Result<(), InvalidFile> {
        let stored = |name: &str| {
            metric::by_given_name(name)
                .map_or((name.to_owned(), 1.0), |(metric, unit)| (metric.name.to_owned(), unit))
        };
        self.metric = stored(&self.metric).0;
        for bounds in std::iter::once(&mut self.bounds).chain(self.by_profile.values_mut()) {
            for (given, limit) in std::mem::take(bounds) {
                let (name, unit) = stored(&given);
                if bounds.insert(name.clone(), limit * unit).is_some() {
                    return Err(InvalidFile(format!(
                        "`{name}` has two bounds, one of them as `{given}`"
                    )));
                }
            }
        }
        Ok(())
    }

    /// Returns the bounds that a candidate must keep under a profile, by metric name.
    pub fn bounds_of(&self, profile: &str) -> BTreeMap<&str, f64> {
        let own = self.by_profile.get(profile).into_iter().flatten();
        self.bounds.iter().chain(own).map(|(metric, limit)| (metric.as_str(), *limit)).collect()
    }

    /// Returns the names of the metrics that have a bound under some profile.
    pub fn bounded(&self) -> BTreeSet<&str> {
        let own = self.by_profile.values().flat_map(BTreeMap::keys);
        self.bounds.keys().chain(own).map(String::as_str).collect()
    }
}

impl LabFile {
    /// Returns the candidate that runs the engine at index `engine` of the lab file without
    /// options, so with the flags that the lab file gives this engine.
    pub fn plain(engine: usize) -> Candidate {
        Candidate { engine, options: BTreeMap::new() }
    }

    /// Returns the number of combinations of the options of the engine at index `engine`, without the
    /// one that has none. A number that is too large becomes the largest.
    pub fn combinations(&self, engine: usize) -> usize {
        let Some(engine) = self.engines.get(engine) else { return 0 };
        let axes = self.axes.iter().filter(|axis| axis.engine == engine.id);
        axes.fold(1_usize, |all, axis| all.saturating_mul(axis.options.len() + 1)) - 1
    }

    /// Returns the flags of a candidate: the engine's, then those of its options in the order of
    /// axes. An option's flag replaces the engine's flag of the same name. Empty for an engine that
    /// the lab file does not have.
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

impl Axis {
    /// Returns the option with which the axis enters a factorial design: the one that `high` names,
    /// else the first. `None` where the axis has no such option.
    pub fn high_option(&self) -> Option<&LabOption> {
        let is_high =
            |option: &&LabOption| self.high.as_ref().is_none_or(|name| option.name == *name);
        self.options.iter().find(is_high)
    }
}

impl Candidate {
    /// Returns the variant name of the candidate, such as `kv-f16-threads-1`, or `None` for a
    /// candidate without options. A name of more than 40 bytes is cut and ends in a hash that keeps
    /// it unique.
    pub fn variant(&self) -> Option<String> {
        let words = self.options.iter().map(|(axis, option)| format!("{axis}-{option}"));
        let name = words.collect::<Vec<_>>().join("-");
        if name.len() <= VARIANT_BYTES_MAX {
            return (!name.is_empty()).then_some(name);
        }
        let hash = sha256_of(&self.options).ok()?;
        // Axis and option names are ASCII, as the file check ensures, so any byte is a valid cut.
        Some(format!("{}-{}", &name[..VARIANT_BYTES_MAX - HASH_BYTES - 1], &hash[..HASH_BYTES]))
    }
}

/// Longest variant name in bytes, as `release-bench --variant` accepts; a longer one is cut.
const VARIANT_BYTES_MAX: usize = 40;
/// Length of the hash that keeps cut variant names unique, in hex digits.
const HASH_BYTES: usize = 8;

/// Returns the flag name of a command-line word (`--threads` for `--threads=4`), or `None` for a
/// word that does not begin with `-`, which is a value.
pub fn flag_name(word: &str) -> Option<&str> {
    word.starts_with('-').then(|| word.split('=').next().unwrap_or(word))
}

/// Returns the command-line words `flags` without the flags that `names` lists and without the
/// values that follow these flags.
pub fn without(flags: &[String], names: &[&str]) -> Vec<String> {
    let mut left = Vec::new();
    let mut skips = false;
    for word in flags {
        if let Some(name) = flag_name(word) {
            skips = names.contains(&name);
        }
        // A value belongs to the flag before it, so it is dropped with that flag.
        if !skips {
            left.push(word.clone());
        }
    }
    left
}

/// Parses and checks a lab file.
///
/// # Errors
/// The text is not TOML with the fields of a lab file, or one of its values is missing, repeated,
/// unknown, out of range or in contradiction to another.
pub fn parse(text: &str) -> Result<LabFile, InvalidFile> {
    let mut lab: LabFile = from_toml(text)?;
    lab.objective.rename()?;
    check::check(&lab)?;
    Ok(lab)
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
    fn a_profile_has_the_bounds_of_all_and_its_own_in_their_place() {
        let own = "bounds = { ttft_us_p99 = 2e6 }, by_profile = { lab-sharegpt-lite = \
                   { tpot_us_p50 = 5e4, ttft_us_p99 = 1e6 } }";
        let lab = parse(&SOUND.replace("bounds = { ttft_us_p99 = 2e6 }", own)).unwrap();
        let of = |profile: &str| Vec::from_iter(lab.objective.bounds_of(profile));
        assert_eq!(of("lab-sharegpt-lite"), [("tpot_us_p50", 5e4), ("ttft_us_p99", 1e6)]);
        assert_eq!(of("another"), [("ttft_us_p99", 2e6)]);
        assert_eq!(Vec::from_iter(lab.objective.bounded()), ["tpot_us_p50", "ttft_us_p99"]);
    }

    #[test]
    fn metrics_may_be_named_in_milliseconds() {
        let bounds = |bounds: &str| {
            parse(
                &SOUND
                    .replace("bounds = { ttft_us_p99 = 2e6 }", &format!("bounds = {{ {bounds} }}")),
            )
        };
        let lab = bounds("ttft_ms_p99 = 2000, requests_failed = 0").unwrap();
        let of = |profile: &str| Vec::from_iter(lab.objective.bounds_of(profile));
        assert_eq!(of("lab-sharegpt-lite"), [("requests_failed", 0.0), ("ttft_us_p99", 2e6)]);
        let error = bounds("ttft_ms_p99 = 2000, ttft_us_p99 = 1e6").unwrap_err().to_string();
        assert!(error.contains("`ttft_us_p99` has two bounds"), "{error}");
    }

    #[test]
    fn the_reference_names_every_metric() {
        let schema = schemars::schema_for!(Objective);
        let text = schema.as_value()["properties"]["metric"]["description"].to_string();
        for metric in metric::METRICS {
            let (name, summary) = match metric.name.rsplit_once('_') {
                Some((name, part @ ("mean" | "p50" | "p95" | "p99"))) => (name, part),
                _ => (metric.name, ""),
            };
            assert!(
                text.contains(&format!("`{name}`")) && text.contains(summary),
                "{}",
                metric.name
            );
        }
    }

    #[test]
    fn a_grid_is_refused_with_its_size() {
        let axis = |index: usize| {
            format!(
                "[[axes]]\nname = \"a{index}\"\nengine = \"redline\"\n\
                 options = [{{ name = \"on\", flags = [\"--a{index}\"] }}]\n"
            )
        };
        let grid = |axes: usize| {
            let axes: String = (0..axes).map(axis).collect();
            parse(&(SOUND.replace("\"staged\"", "\"grid\"") + &axes))
        };
        // The axes of the file have three and two values.
        assert_eq!(grid(5).unwrap().combinations(0), 3 * 2 * 32 - 1);
        let error = grid(6).unwrap_err().to_string();
        assert!(error.contains("the grid of `redline` has 383 combinations, and a lab tries 256"));
        assert!(grid(80).unwrap_err().to_string().contains("combinations"));
    }

    #[test]
    fn an_axis_enters_a_factorial_design_with_the_option_that_it_names() {
        let factorial = SOUND.replace("\"staged\"", "\"factorial\"");
        let named = factorial.replace("name = \"threads\"", "name = \"threads\"\nhigh = \"4\"");
        let lab = parse(&named).unwrap();
        let high = |axis: &Axis| axis.high_option().map(|option| option.name.clone());
        let options: Vec<_> = lab.axes.iter().filter_map(high).collect();
        assert_eq!(options, ["4", "f16"]);
    }

    #[test]
    fn an_engine_may_have_a_limit_of_its_own() {
        let limited = SOUND.replace("version = \"v1\"", "version = \"v1\", runs = 90");
        let (without, with) = (parse(SOUND).unwrap(), parse(&limited).unwrap());
        assert_eq!((without.engines[0].runs, with.engines[0].runs), (None, Some(90)));
        // A file without the limit has the form that it had before there was one.
        let text = serde_json::to_string(&without.engines[0]).unwrap();
        assert!(!text.contains("runs"), "{text}");
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
            ("2e6", "nan", "the bound of `ttft_us_p99` is NaN, not a finite number"),
            (
                "ttft_us_p99 = 2e6 }",
                "}, by_profile = { x = {} }",
                "has bounds for `x`, no profile of",
            ),
            ("runs = 200", "hours = 0.0", "a budget of 0 hours is not above zero"),
            ("{ runs = 200 }", "{}", "`budget` names neither `runs` nor `hours`"),
            (
                r#"version = "v1""#,
                r#"version = "v1", runs = 0"#,
                "`runs` of engine `redline` is 0, and its options need some",
            ),
            (
                r#"engines = ["#,
                r#"engines = [{ id = "vllm", version = "v2", runs = 9 }, "#,
                "engine `vllm` has `runs` for its options, and no axis",
            ),
            (r#"name = "4""#, r#"name = "1""#, "option `1` of axis `threads` is defined twice"),
            (r#"name = "kv""#, r#"name = "threads""#, "axis `threads` is defined twice"),
            (r#"name = "f16""#, r#"name = "F16!""#, "`F16!` of axis `kv` is not a name of up to"),
            ("--kv-cache-dtype", "--threads", "axes `threads` and `kv` both set `--threads`"),
            (r#"["--threads=1"]"#, "[]", "option `1` of axis `threads` has no flags"),
            (r#"id = "redline""#, r#"id = "vllm""#, "axis `threads` is for `redline`, no engine"),
            (
                r#""staged""#,
                r#""factorial""#,
                "axis `threads` has several options, and a factorial",
            ),
            (
                "name = \"kv\"",
                "name = \"kv\"\nhigh = \"f8\"",
                "axis `kv` has no option `f8`: `high`",
            ),
        ] {
            let found = parse(&SOUND.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(found.contains(error), "{to}: {found}");
        }
    }
}
