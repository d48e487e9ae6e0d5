//! Quality rules over several runs: copied figures, defaults that moved between releases, repeats
//! that scatter or answer differently. Pure: facts about each run go in, broken rules come out; a whole record is
//! requested by its path only where configurations differ.

use std::collections::{BTreeMap, BTreeSet};

use schema::comparison::FlagChange;
use schema::run::{Level, RunRecord};
use serde::Serialize;
use statrs::statistics::Statistics;

use crate::diff::flags;
use crate::facts::{OutputsDigest, RunFacts, has_other_outputs};
use crate::order::ReleaseKey;
use crate::records::Stored;

/// Quality rule that judges several runs together, such as the repeats of a campaign.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GroupRule {
    /// Id of the rule, unique among all quality rules: `E..` or `W..`.
    pub id: &'static str,
    /// Claim of the rule that must hold for the runs, in a few words.
    pub title: &'static str,
    /// Reason why the rule matters, as a sentence for pages.
    pub why: &'static str,
    /// Severity of a broken rule: error or warning.
    pub level: Level,
    /// First revision of the list of rules that contains this rule.
    pub since: u32,
    /// Phrase that names the runs which the rule judges together, for the list of rules.
    pub scope: &'static str,
}

/// Rule E09: no run copies the figures of another.
pub const TWINS: GroupRule = GroupRule {
    id: "E09",
    title: "no two runs have exactly the same figures",
    why: "A block that was pasted under two headings looks like a repeat without any spread.",
    level: Level::Error,
    since: 1,
    scope: "all runs of a registry",
};

/// Rule W08: a release moved no default of the server's configuration.
pub const RECONFIGURED: GroupRule = GroupRule {
    id: "W08",
    title: "a server is configured as in the release before, except where its command differs",
    why: "A default that changed makes an engine look faster or slower than its code became.",
    level: Level::Warning,
    since: 6,
    scope: "runs of one model on one hardware, release by release",
};

/// Rule W09: repeats of a campaign agree.
pub const SCATTERED: GroupRule = GroupRule {
    id: "W09",
    title: "repeats in a campaign vary by at most 5 %",
    why: "Repeats that vary more show that something besides the release changed their figures.",
    level: Level::Warning,
    since: 1,
    scope: "repeats of a campaign in one cell",
};

/// Rule W20: repeats of a campaign answer alike.
pub const UNSTABLE: GroupRule = GroupRule {
    id: "W20",
    title: "repeats in a campaign give the same outputs for the fixed prompts",
    why: "The prompts are sent one at a time and answered greedily: outputs that differ show that \
          something besides the prompt chooses the tokens, and that equal work is not assured.",
    level: Level::Warning,
    since: 12,
    scope: "repeats of a campaign in one cell and configuration",
};

/// All quality rules over several runs.
pub const GROUP_RULES: &[GroupRule] = &[TWINS, RECONFIGURED, SCATTERED, UNSTABLE];

/// Smallest number of repeats whose coefficient of variation rule W09 judges.
const REPEATS_MIN: usize = 3;
/// Largest coefficient of variation of output throughput over repeats that rule W09 accepts.
const VARIATION_MAX: f64 = 0.05;
/// Largest number of changed flags that a finding lists; it says how many more there are.
const NAMED: usize = 4;

/// A quality rule that a run breaks, for display beside the run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Badge {
    /// Id of the quality rule that the run breaks.
    pub rule: String,
    /// Path of the run's record, below `results/`.
    pub path: String,
    /// Id of the run that breaks the rule.
    pub run: String,
    /// Severity of the broken rule as a word: `error` or `warning`.
    pub level: &'static str,
    /// Observation that breaks the quality rule, as a sentence; `None` where its finding has none.
    pub detail: Option<String>,
    /// True when the rule was added after the run had been judged.
    pub later: bool,
}

/// Run as the rules over several runs see it: path, id and facts.
#[derive(Debug)]
pub struct Known<'a> {
    /// Path of the run's record, below `results/`.
    pub path: &'a str,
    /// ULID or import id of the run.
    pub id: &'a str,
    /// Facts about the run by which it is compared with others.
    pub run: &'a RunFacts,
}

impl Known<'_> {
    fn badge(&self, rule: GroupRule, detail: String) -> Badge {
        Badge {
            rule: rule.id.to_owned(),
            path: self.path.to_owned(),
            run: self.id.to_owned(),
            level: rule.level.name(),
            detail: Some(detail),
            later: false,
        }
    }

    /// Returns the name of the folder of the run's configuration, with its hash; `None` for an
    /// imported record, whose path has no such folder.
    fn config_folder(&self) -> Option<&str> {
        let mut parts = self.path.split('/');
        (parts.next() == Some("runs")).then(|| parts.nth(4)).flatten()
    }
}

/// Returns the rules over several runs that `runs` break, in no particular order. `read` returns a
/// whole run record by its path; `None` where it cannot be read.
pub fn badges(runs: &[Known<'_>], read: &dyn Fn(&str) -> Option<RunRecord>) -> Vec<Badge> {
    let mut badges = twins(runs);
    badges.extend(reconfigured(runs, read));
    badges.extend(scattered(runs));
    badges.extend(unstable(runs));
    badges
}

fn twins(runs: &[Known<'_>]) -> Vec<Badge> {
    let mut first: BTreeMap<&str, &str> = BTreeMap::new();
    let mut found = Vec::new();
    for known in runs {
        let Some(figures) = known.run.figures_sha256.as_deref() else { continue };
        if let Some(other) = first.get(figures) {
            found.push(known.badge(TWINS, format!("every figure is that of `{other}`")));
        } else {
            first.insert(figures, known.path);
        }
    }
    found
}

/// Finds published results that repeat every figure of an earlier result of the same report file.
/// Returns the id of the earlier result by the id of the copy. `runs` are not retracted: a report
/// that was read twice is no copy of itself.
pub fn copies<'a>(runs: impl Iterator<Item = &'a Stored<RunRecord>>) -> BTreeMap<&'a str, &'a str> {
    let mut first: BTreeMap<(&str, String), &str> = BTreeMap::new();
    let mut copies = BTreeMap::new();
    for record in runs.map(|stored| &stored.record) {
        let (Some(source), Some(metrics)) = (&record.source, &record.metrics) else { continue };
        // Compared as text, because a copy repeats every printed digit.
        let Ok(figures) = serde_json::to_string(metrics) else { continue };
        let earlier = *first.entry((&source.sha256, figures)).or_insert(&record.id);
        if earlier != record.id {
            copies.insert(record.id.as_str(), earlier);
        }
    }
    copies
}

/// First run of each configuration that a release was measured with, by configuration folder.
type Configured<'a> = BTreeMap<&'a str, &'a Known<'a>>;

/// Finds breaches of rule W08 in each engine, hardware, model and configuration slug: where a
/// release moved a default of the configuration, one of its runs gets a badge. Records are read
/// only where the release and the one before it have no configuration hash in common.
fn reconfigured(runs: &[Known<'_>], read: &dyn Fn(&str) -> Option<RunRecord>) -> Vec<Badge> {
    let mut cells: BTreeMap<[&str; 4], BTreeMap<ReleaseKey, Configured<'_>>> = BTreeMap::new();
    for known in runs {
        let run = known.run;
        let Some(folder) = known.config_folder() else { continue };
        let cell = [&run.engine, &run.hardware, &run.model, &run.config].map(String::as_str);
        let releases = cells.entry(cell).or_default();
        releases.entry(ReleaseKey::of(&run.release)).or_default().entry(folder).or_insert(known);
    }
    let mut found = Vec::new();
    for releases in cells.into_values() {
        let releases: Vec<_> = releases.into_iter().collect();
        for pair in releases.windows(2) {
            let [(before, old), (_, new)] = pair else { continue };
            // One configuration in common shows that the release itself moved nothing.
            if old.keys().any(|folder| new.contains_key(folder)) {
                continue;
            }
            let all = |side: &Configured<'_>| -> Vec<RunRecord> {
                side.values().filter_map(|known| read(known.path)).collect()
            };
            let (was, is) = (all(old), all(new));
            let [was, is] = [&was, &is].map(|runs| runs.iter().collect::<Vec<_>>());
            let moved = flags::differing(&was, &is).moved;
            if let Some(known) = new.values().next().filter(|_| !moved.is_empty()) {
                found.push(known.badge(RECONFIGURED, named(&moved, before.name())));
            }
        }
    }
    found
}

fn named(changes: &[FlagChange], before: &str) -> String {
    let one = |change: &FlagChange| {
        let [was, is] = [&change.baseline, &change.candidate].map(|values| values.join(" or "));
        format!("`{}` is {is}, was {was}", change.flag)
    };
    let flags: Vec<String> = changes.iter().take(NAMED).map(one).collect();
    let more = changes.len().saturating_sub(NAMED);
    let tail = if more > 0 { format!("; and {more} more flags") } else { String::new() };
    format!("{} in {before}{tail}", flags.join("; "))
}

/// Finds breaches of rule W09: one badge, at the first repeat, for each campaign, release and cell
/// whose repeats (at least three) scatter.
fn scattered(runs: &[Known<'_>]) -> Vec<Badge> {
    let mut groups: BTreeMap<[&str; 7], Vec<(&Known<'_>, f64)>> = BTreeMap::new();
    for known in runs {
        let run = known.run;
        let (Some(campaign), Some(rate)) = (run.campaign.as_deref(), run.output_tokens_per_s)
        else {
            continue;
        };
        let cell = [&run.engine, &run.release, &run.hardware, &run.model, &run.config];
        let [engine, release, hardware, model, config] = cell.map(String::as_str);
        let key = [campaign, engine, release, hardware, model, config, run.scenario.as_str()];
        groups.entry(key).or_default().push((known, rate));
    }
    let badge = |repeats: Vec<(&Known<'_>, f64)>| {
        let rates = || repeats.iter().map(|(_, rate)| *rate);
        let variation = rates().std_dev() / rates().mean();
        (repeats.len() >= REPEATS_MIN && variation > VARIATION_MAX).then(|| {
            let (percent, count) = (variation * 100.0, repeats.len());
            let detail = format!("output throughput varies by {percent:.1} % over {count} repeats");
            repeats[0].0.badge(SCATTERED, detail)
        })
    };
    groups.into_values().filter_map(badge).collect()
}

/// Finds breaches of rule W20: one badge, at the first repeat, for each campaign, release, cell and
/// configuration whose repeats gave different outputs for the fixed prompts. Scenarios are not
/// joined: one may ask for another form of answers, such as JSON.
fn unstable(runs: &[Known<'_>]) -> Vec<Badge> {
    let mut groups: BTreeMap<[&str; 7], Vec<(&Known<'_>, &OutputsDigest)>> = BTreeMap::new();
    for known in runs {
        let run = known.run;
        let (Some(campaign), Some(config), Some(outputs)) =
            (run.campaign.as_deref(), known.config_folder(), &run.outputs)
        else {
            continue;
        };
        let cell = [&run.engine, &run.release, &run.hardware, &run.model, &run.scenario];
        let [engine, release, hardware, model, scenario] = cell.map(String::as_str);
        let key = [campaign, engine, release, hardware, model, scenario, config];
        groups.entry(key).or_default().push((known, outputs));
    }
    let badge = |repeats: Vec<(&Known<'_>, &OutputsDigest)>| {
        let distinct: BTreeSet<OutputsDigest> =
            repeats.iter().map(|(_, outputs)| (*outputs).clone()).collect();
        has_other_outputs(&distinct).then(|| {
            let (first, outputs) = repeats[0];
            let prompts = outputs.prompts.map_or_else(String::new, |prompts| format!("{prompts} "));
            let detail = format!(
                "{} repeats gave {} different outputs for the {prompts}fixed prompts",
                repeats.len(),
                distinct.len(),
            );
            first.badge(UNSTABLE, detail)
        })
    };
    groups.into_values().filter_map(badge).collect()
}
