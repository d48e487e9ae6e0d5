//! Variants of a lab's page: what each gains, its figures under each profile beside those of its
//! reference, and the runs behind them.

use judge::diff::policy;
use judge::lab::{Compared, Effect, Found, Launches, Row, Sides, change, is_default};
use judge::pareto::Tradeoff;
use judge::validity;
use minijinja::{Value, context};
use schema::lab::{Candidate, LabFile, LabStage};
use schema::metric::Metric;
use schema::run::RunRecord;

use super::{Lab, words};
use crate::catalog::Run;
use crate::chart::{Forest, ForestMark, ForestRow};
use crate::format;
use crate::link::{self, Link, Target};
use crate::outside;
use crate::view::figure::{self, Column};
use crate::view::finding::Tone;

/// Result of a candidate of the lab in one stage, with its finding in words.
struct Entry {
    row: Row,
    found: (&'static str, Tone, String),
}

/// Configuration that the lab tried, with its results in the order of stages.
struct Variant {
    candidate: Candidate,
    entries: Vec<Entry>,
}

impl Variant {
    /// Returns the result of the latest stage that has one; `None` for the baseline.
    fn last(&self) -> Option<&Entry> {
        self.entries.last()
    }

    /// True where the variant has figures that can be compared: it was explored and did not fail.
    fn has_figures(&self) -> bool {
        self.last().is_none_or(|entry| has_figures(&entry.row))
    }

    /// True where the variant has figures that can be compared, and none breaks a bound.
    fn is_within_bounds(&self) -> bool {
        let breaks = |entry: &Entry| matches!(entry.row.found, Found::OutOfBounds { .. });
        self.has_figures() && !self.last().is_some_and(breaks)
    }
}

/// Largest number of variants on one page of a lab, which is continued on further pages.
const VARIANTS_MAX: usize = 20;

/// Returns the variants of `lab`, page by page, the baseline first.
pub fn pages(lab: &Lab) -> Vec<Value> {
    let all = variants(lab);
    let best: Vec<Vec<&Candidate>> =
        lab.profiles().map(|index| frontier(lab, &all, index)).collect();
    all.chunks(VARIANTS_MAX).map(|variants| page(lab, variants, &best)).collect()
}

/// Returns the variants that are on the Pareto frontier of speed for one user and throughput under a
/// profile, among those that were measured and broke no bound.
fn frontier<'v>(lab: &Lab, variants: &'v [Variant], index: usize) -> Vec<&'v Candidate> {
    let compared = |variant: &Variant| {
        let candidate = &variant.candidate;
        let runs = freshest(lab, candidate, index);
        let records: Vec<&RunRecord> = runs.iter().map(|run| run.record).collect();
        let is_eligible = variant.is_within_bounds() && Tradeoff::of(&records).is_some();
        let beside = sides(lab, candidate, index..index + 1).and_then(|mut sides| {
            let (_, reference) = judged(lab, candidate)?;
            let is_reference = |of: &Variant| of.candidate == reference.candidate;
            Some((sides.pop()?, variants.iter().position(is_reference)?))
        });
        Compared { is_eligible, beside }
    };
    let best = judge::lab::frontier(&variants.iter().map(compared).collect::<Vec<_>>());
    let best = variants.iter().zip(best).filter(|(_, is_best)| *is_best);
    best.map(|(variant, _)| &variant.candidate).collect()
}

/// Builds the tables of `variants`, which are some of the lab's; `best` are those on the Pareto
/// frontier of each profile.
fn page(lab: &Lab, variants: &[Variant], best: &[Vec<&Candidate>]) -> Value {
    let stages = variants.iter().flat_map(|variant| {
        variant.entries.iter().map(|entry| stage(lab, &variant.candidate, entry))
    });
    context! {
        rows => variants.iter().map(|variant| row(lab, variant)).collect::<Value>(),
        forest => forest(lab, variants),
        profiles => best.iter().enumerate().map(|(index, best)| {
            profile(lab, variants, (index, best.as_slice()))
        }).collect::<Value>(),
        // Results in each stage: a variant has one in each stage that ran it.
        stages => stages.collect::<Value>(),
    }
}

/// Returns the baseline and every candidate with its results; without a conclusion, the candidates
/// that were run so far, each as undecided.
fn variants(lab: &Lab) -> Vec<Variant> {
    let mut found = vec![Variant { candidate: LabFile::plain(0), entries: Vec::new() }];
    for entry in entries(lab) {
        let candidate = entry.row.candidate.clone();
        match found.iter_mut().find(|variant| variant.candidate == candidate) {
            Some(variant) => variant.entries.push(entry),
            None => found.push(Variant { candidate, entries: vec![entry] }),
        }
    }
    found
}

fn entries(lab: &Lab) -> Vec<Entry> {
    let Some(found) = lab.concluded() else { return open(lab) };
    let rows = found.rows.iter().map(|row| Entry { row: row.clone(), found: words::found(row) });
    let confirmed = found.confirmed.iter().map(|confirmed| {
        let row = &confirmed.row;
        let p = format!("{}, adjusted", words::p(confirmed.p_adjusted));
        let found = match (&row.found, confirmed.is_gain) {
            (_, true) => ("confirmed", Tone::Firm, p),
            (Found::Failed(_) | Found::OutOfBounds { .. } | Found::NotExplored { .. }, _) => {
                words::found(row)
            }
            (_, false) => ("not confirmed", Tone::Soft, p),
        };
        Entry { row: row.clone(), found }
    });
    rows.chain(confirmed).collect()
}

fn open(lab: &Lab) -> Vec<Entry> {
    let launches = &lab.replay.launches;
    let is_reference =
        |index: usize| index == 0 || launches[index - 1].stage != launches[index].stage;
    let of = launches.iter().enumerate().filter(|(index, _)| !is_reference(*index));
    of.map(|(_, launches)| {
        let row = Row {
            stage: launches.stage,
            candidate: launches.candidate.clone(),
            effect: None,
            profiles: Vec::new(),
            found: Found::Undecided,
        };
        Entry { row, found: ("open", Tone::Soft, "the lab is not whole".to_owned()) }
    })
    .collect()
}

/// Returns the name of a variant: its options, or its engine where it has none.
pub fn name(lab: &Lab, candidate: &Candidate) -> String {
    if *candidate == LabFile::plain(0) {
        return format!("baseline, {}", lab.title(candidate));
    }
    // Options are tried on one engine, which the conclusion and the method name.
    let engines: Vec<usize> = lab
        .replay
        .launches
        .iter()
        .map(|of| of.candidate.engine)
        .filter(|engine| *engine != 0)
        .collect();
    if candidate.options.is_empty() || engines.contains(&candidate.engine) {
        return lab.title(candidate);
    }
    let options = candidate.options.iter().map(|(axis, option)| format!("{axis} {option}"));
    outside::name(&options.collect::<Vec<_>>().join(", "))
}

/// Returns the position of a variant on the page of its lab.
fn anchor(lab: &Lab, candidate: &Candidate) -> String {
    link::anchor(&format!("variant-{}", lab.title(candidate)))
}

/// True when a candidate has figures that can be compared: it was explored and did not fail.
fn has_figures(row: &Row) -> bool {
    !matches!(row.found, Found::Failed(_) | Found::NotExplored { .. })
}

/// Returns gain and interval of a result over all profiles as texts; `-` where it has no figures.
fn shown(row: &Row) -> (String, String) {
    let effect = row.effect.as_ref().filter(|_| has_figures(row));
    (words::gain(effect), words::interval(effect))
}

/// Builds the row of a variant: its flags, its gain over all profiles, what was found, its runs.
fn row(lab: &Lab, variant: &Variant) -> Value {
    let Variant { candidate, .. } = variant;
    let last = variant.last();
    let (gain, interval) = last.map_or_else(none, |entry| shown(&entry.row));
    let (found, tone, reason) = match last {
        None => ("baseline", Tone::Soft, String::new()),
        Some(entry) if is_measured_default(lab, entry) => {
            let reason = "the baseline has it without being told: this change is noise";
            ("is the default", Tone::Soft, reason.to_owned())
        }
        Some(entry) => entry.found.clone(),
    };
    let flags = lab.own_flags(candidate);
    // Change over all profiles of the latency that a gain in throughput may cost.
    let tpot = last.filter(|entry| has_figures(&entry.row)).and_then(|entry| {
        changed(lab, figure::metric("tpot_us_p50"), &entry.row.candidate, lab.profiles())
    });
    context! {
        variant => name(lab, candidate),
        anchor => anchor(lab, candidate),
        flags => outside::command(&flags),
        gain,
        interval,
        tpot => format::or_dash(tpot, |found| format::change(found.pct)),
        found,
        tone,
        reason,
        // Runs under each profile.
        runs => lab.profiles().map(|index| links(lab, candidate, index)).collect::<Value>(),
        // Folder with the records of the runs; none for a variant that was not run.
        records => records(lab, candidate),
    }
}

/// True where a candidate was measured, and its options are the defaults.
fn is_measured_default(lab: &Lab, entry: &Entry) -> bool {
    let row = &entry.row;
    has_figures(row)
        && !matches!(row.found, Found::OutOfBounds { .. })
        && sides(lab, &row.candidate, lab.profiles()).is_some_and(|all| is_default(&all))
}

fn none() -> (String, String) {
    ("-".to_owned(), "-".to_owned())
}

/// Builds the row of a variant's result in one stage.
fn stage(lab: &Lab, candidate: &Candidate, entry: &Entry) -> Value {
    let row = &entry.row;
    let (found, tone, reason) = entry.found.clone();
    let (gain, interval) = shown(row);
    let pairs = row.effect.filter(|_| has_figures(row)).map(|effect| effect.pairs);
    context! {
        stage => words::stage(row.stage),
        variant => name(lab, candidate),
        found,
        tone,
        reason,
        gain,
        interval,
        pairs => format::or_dash(pairs, |pairs| pairs.to_string()),
    }
}

/// Returns the latest stage that ran a candidate.
fn latest(lab: &Lab, candidate: &Candidate) -> Option<LabStage> {
    super::STAGES.into_iter().find(|stage| lab.launches(*stage, candidate).is_some())
}

/// Returns links to the runs of a candidate under a profile, in all stages.
fn links(lab: &Lab, candidate: &Candidate, index: usize) -> Vec<Link> {
    let stages = super::STAGES.into_iter().rev();
    let runs = stages.flat_map(|stage| lab.runs_of(lab.launches(stage, candidate), index));
    let mut links: Vec<Link> = Vec::new();
    for run in runs {
        let link = Link::run(run);
        if links.iter().all(|known| known.target != link.target) {
            links.push(Link { text: (links.len() + 1).to_string(), ..link });
        }
    }
    links
}

/// Returns the folder of the registry that has the records of a candidate's runs.
fn records(lab: &Lab, candidate: &Candidate) -> Option<Target> {
    let stage = latest(lab, candidate)?;
    let launches = lab.launches(stage, candidate);
    let run = lab.profiles().flat_map(|index| lab.runs_of(launches, index)).next()?;
    // The record lies in a folder of its scenario.
    let path = run.path.rsplitn(3, '/').nth(2)?;
    Some(Target::Record { path: path.to_owned() })
}

/// Builds the table of a profile: the variants with their figures beside those of their reference.
/// `best` are those on the profile's Pareto frontier.
fn profile(lab: &Lab, variants: &[Variant], (index, best): (usize, &[&Candidate])) -> Value {
    let columns: Vec<Column> = lab.metrics().into_iter().map(|of| lab.column(of)).collect();
    let with_figures = variants.iter().filter(|variant| variant.has_figures());
    let of = |variant: &Variant| {
        let runs = freshest(lab, &variant.candidate, index);
        (!runs.is_empty()).then(|| {
            context! {
                variant => name(lab, &variant.candidate),
                figures => columns.iter().map(|column| {
                    cell(lab, column, &variant.candidate, index)
                }).collect::<Value>(),
                best => best.contains(&&variant.candidate),
                n => runs.len(),
                validity => valid(&runs),
            }
        })
    };
    context! {
        profile => lab.profile(index),
        heads => columns.iter().map(Column::head).collect::<Value>(),
        rows => with_figures.filter_map(of).collect::<Value>(),
    }
}

/// Builds a figure of a variant under a profile, with the change from its reference.
fn cell(lab: &Lab, column: &Column, candidate: &Candidate, index: usize) -> Value {
    let figure = lab.figure(column.metric, &freshest(lab, candidate, index), column.scale);
    let found = changed(lab, column.metric, candidate, index..index + 1);
    context! {
        figure,
        change => found.as_ref().map_or_else(String::new, |found| format::change(found.pct)),
        interval => found.as_ref().map_or_else(String::new, |found| {
            format!("{}, {} pairs", format::interval(found.interval_pct), found.pairs)
        }),
        worse => found.is_some_and(|found| found.is_better == Some(false)),
    }
}

/// Returns the change of a metric from the candidate's reference to the candidate, over `profiles`;
/// `None` for the baseline itself.
pub fn changed(
    lab: &Lab,
    metric: &Metric,
    candidate: &Candidate,
    profiles: std::ops::Range<usize>,
) -> Option<judge::lab::Change> {
    change(metric, &sides(lab, candidate, profiles)?, &policy::standard().file)
}

/// Returns the latest stage in which a candidate ran beside a reference, and that reference; `None`
/// for the baseline itself.
fn judged<'a>(lab: &Lab<'a>, candidate: &Candidate) -> Option<(LabStage, &'a Launches)> {
    let beside = |stage: LabStage| {
        lab.launches(stage, candidate)?;
        let reference = lab.replay.launches.iter().find(|launches| launches.stage == stage)?;
        (reference.candidate != *candidate).then_some((stage, reference))
    };
    super::STAGES.into_iter().find_map(beside)
}

/// Returns the runs of a candidate beside those of its reference, profile by profile, in the latest
/// stage that has both; `None` for the baseline itself.
fn sides<'a>(
    lab: &Lab<'a>,
    candidate: &Candidate,
    profiles: std::ops::Range<usize>,
) -> Option<Vec<Sides<'a>>> {
    let (stage, reference) = judged(lab, candidate)?;
    let of_profile = |index: usize| -> Sides<'a> {
        let of =
            |launches| lab.runs_of(launches, index).into_iter().map(|run| run.record).collect();
        (of(lab.launches(stage, candidate)), of(Some(reference)))
    };
    Some(profiles.map(of_profile).collect())
}

/// Returns the runs of `candidate` under a profile, from the latest stage that has some; empty
/// where none has.
pub fn freshest<'a>(lab: &Lab<'a>, candidate: &Candidate, profile: usize) -> Vec<&'a Run<'a>> {
    let of = |stage: &LabStage| lab.runs_of(lab.launches(*stage, candidate), profile);
    super::STAGES.iter().map(of).find(|runs| !runs.is_empty()).unwrap_or_default()
}

/// Formats the validity of runs: `VALID` where all are, else the number of each kind.
pub fn valid(runs: &[&Run]) -> String {
    let names: Vec<&str> = runs.iter().map(|run| validity::headline(run.record).name()).collect();
    let kinds = crate::catalog::distinct(names.iter().copied());
    if let [only] = kinds.as_slice() {
        return (*only).to_owned();
    }
    let count =
        |kind: &&str| format!("{} {kind}", names.iter().filter(|name| *name == kind).count());
    kinds.iter().map(count).collect::<Vec<_>>().join(", ")
}

/// Draws the gain of each variant over all profiles; `None` where none has one.
fn forest(lab: &Lab, variants: &[Variant]) -> Option<Forest> {
    let line = |variant: &Variant| {
        let entry = variant.last()?;
        let effect: Effect = entry.row.effect.filter(|_| has_figures(&entry.row))?;
        let (gain, interval) = (words::gain(Some(&effect)), words::interval(Some(&effect)));
        let is_gain = matches!(entry.found.0, "gain" | "confirmed");
        Some(ForestRow {
            group: String::new(),
            label: name(lab, &variant.candidate),
            text: format!("{gain} {}", entry.found.0),
            tip: format!("{gain}, from {interval}; n = {} pairs", effect.pairs),
            better_pct: effect.gain_pct,
            interval_pct: Some(effect.interval_pct),
            min_effect_pct: words::min_effect_pct(lab),
            mark: if is_gain { ForestMark::Solid } else { ForestMark::Hollow },
            page: None,
            anchor: anchor(lab, &variant.candidate),
        })
    };
    let title = words::objective(lab);
    let caption = "Gain over all profiles against the baseline, with its interval; inside the shaded \
                   minimum effect nothing is called a gain. Filled: called a gain.";
    Forest::of(&format!("Gain in {title}"), caption, variants.iter().filter_map(line).collect())
}
