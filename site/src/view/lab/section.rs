//! Sections of a lab's page, one per stage and axis: a table, its charts, and the runs behind each
//! cell.

use judge::lab::{Effect, Found, Row};
use minijinja::{Value, context};
use schema::lab::{Candidate, LabStage};

use super::{Lab, words};
use crate::chart::{Chart, ForestMark, ForestRow, forest};
use crate::link::Link;
use crate::outside;
use crate::view::finding::Tone;

/// Section of a lab's page (the candidates that were compared with one reference in one stage), and
/// the number of chart lines that it takes.
type Section = (Value, usize);

/// Result of a candidate of the lab, with its name in its section and its finding in words.
struct Entry {
    name: String,
    row: Row,
    found: (&'static str, Tone, String),
}

/// Returns the sections of `lab` in the order of stages, with options grouped by axis.
pub fn all(lab: &Lab) -> Vec<Section> {
    let entries = entries(lab);
    let mut sections = Vec::new();
    let mut push = |title: &str, anchor: &str, of: Vec<&Entry>| {
        if !of.is_empty() {
            sections.extend(pieces(lab, title, anchor, &of));
        }
    };
    let of_stage = |stage| entries.iter().filter(move |entry: &&Entry| entry.row.stage == stage);
    push("Which engine", "engines", of_stage(LabStage::Engines).collect());
    let is_alone = |entry: &&Entry| entry.row.candidate.options.len() == 1;
    for (index, axis) in lab.file().axes.iter().enumerate() {
        let of = |entry: &&Entry| entry.row.candidate.options.contains_key(&axis.name);
        let own = of_stage(LabStage::Options).filter(is_alone).filter(of);
        let title = outside::name(&format!("Option {}", axis.name));
        push(&title, &format!("axis-{index}"), own.collect());
    }
    let grid = of_stage(LabStage::Options).filter(|entry| !is_alone(entry));
    push("Options together", "grid", grid.collect());
    push("Combinations", "combinations", of_stage(LabStage::Combinations).collect());
    push("On fresh launches", "confirm", of_stage(LabStage::Confirm).collect());
    sections
}

/// Returns every candidate's result in each stage of the lab; without a conclusion, the candidates
/// that were run so far, each as undecided.
fn entries(lab: &Lab) -> Vec<Entry> {
    let Some(found) = lab.concluded() else { return open(lab) };
    let rows = found.rows.iter().map(|row| Entry {
        name: name(lab, row),
        row: row.clone(),
        found: words::found(row),
    });
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
        Entry { name: name(lab, row), row: row.clone(), found }
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
        let found = ("open", Tone::Soft, "the lab is not whole".to_owned());
        Entry { name: name(lab, &row), row, found }
    })
    .collect()
}

/// Returns the name of a result in its section, whose title already names the stage or the axis.
fn name(lab: &Lab, row: &Row) -> String {
    let options: Vec<String> = match (row.stage, row.candidate.options.len()) {
        (LabStage::Options, 1) => row.candidate.options.values().cloned().collect(),
        (LabStage::Options | LabStage::Combinations, _) => {
            row.candidate.options.iter().map(|(axis, option)| format!("{axis} {option}")).collect()
        }
        (LabStage::Engines | LabStage::Confirm, _) => return lab.title(&row.candidate),
    };
    outside::name(&options.join(", "))
}

/// Largest number of chart lines on one page of a lab, which is continued on further pages. Each
/// line is a candidate over all profiles or under one.
const LINES_MAX: usize = 50;

/// Builds a section of a lab's page, or several where one page has no room for it.
fn pieces(lab: &Lab, title: &str, anchor: &str, entries: &[&Entry]) -> Vec<Section> {
    let lines = lab.profiles().len() + 1;
    let piece = |(index, entries): (usize, &[&Entry])| {
        let stage = entries[0].row.stage;
        let launches = lab.replay.launches.iter().find(|launches| launches.stage == stage);
        let reference = launches.map(|launches| &launches.candidate);
        let links = |candidate| links(lab, stage, candidate);
        let section = context! {
            title,
            anchor => format!("{anchor}-{}", index + 1),
            // Title of the reference that the candidates are compared with.
            reference => reference.map_or_else(String::new, |candidate| lab.title(candidate)),
            profiles => lab.profiles().map(|index| lab.profile(index).text).collect::<Value>(),
            rows => entries.iter().map(|entry| row(lab, entry)).collect::<Value>(),
            charts => charts(lab, entries),
            reference_runs => reference.map_or_else(Vec::new, links),
            is_continued => index > 0,
        };
        (section, entries.len() * lines)
    };
    entries.chunks((LINES_MAX / lines).max(1)).enumerate().map(piece).collect()
}

/// Groups sections of a lab's page into pages of at most `LINES_MAX` chart lines.
pub fn paged(sections: Vec<Section>) -> Vec<Vec<Value>> {
    let mut pages: Vec<Vec<Value>> = vec![Vec::new()];
    let mut lines = 0;
    for (section, more) in sections {
        if lines > 0 && lines + more > LINES_MAX {
            pages.push(Vec::new());
            lines = 0;
        }
        lines += more;
        pages.last_mut().expect("there is always a page").push(section);
    }
    pages
}

/// True when a candidate has figures that can be compared: it was explored and did not fail.
fn has_figures(row: &Row) -> bool {
    !matches!(row.found, Found::Failed(_) | Found::NotExplored { .. })
}

/// Builds the row of a lab section's table: one candidate in one stage.
fn row(lab: &Lab, entry: &Entry) -> Value {
    let row = &entry.row;
    let shown = |effect: Option<&Effect>| {
        let effect = effect.filter(|_| has_figures(row));
        (words::gain(effect), words::interval(effect))
    };
    let (gain, interval) = shown(row.effect.as_ref());
    let pairs = row.effect.filter(|_| has_figures(row)).map(|effect| effect.pairs.to_string());
    let under = |index| shown(row.profiles.get(index).and_then(Option::as_ref));
    let (found, tone, reason) = entry.found.clone();
    context! {
        candidate => &entry.name,
        flags => outside::command(&lab.file().flags(&row.candidate)),
        gain,
        interval,
        pairs => pairs.unwrap_or_else(|| "-".to_owned()),
        // Gain and interval under each profile.
        profiles => lab.profiles().map(under).collect::<Value>(),
        found,
        tone,
        reason,
        runs => links(lab, row.stage, &row.candidate),
    }
}

/// Returns links to the runs of a candidate in a stage: outer index is the profile, inner index the
/// run.
fn links(lab: &Lab, stage: LabStage, candidate: &Candidate) -> Vec<Vec<Link>> {
    let launches = lab.launches(stage, candidate);
    let of = |profile| {
        let runs = lab.runs_of(launches, profile).into_iter().enumerate();
        runs.map(|(index, run)| Link { text: (index + 1).to_string(), ..Link::run(run) }).collect()
    };
    lab.profiles().map(of).collect()
}

/// Draws charts of the gain of each candidate: over all profiles, and under each profile.
fn charts(lab: &Lab, entries: &[&Entry]) -> Vec<Chart> {
    let overall = entries.iter().filter_map(|entry| {
        let effect = entry.row.effect.as_ref().filter(|_| has_figures(&entry.row))?;
        let found = entry.found.0;
        let is_gain = matches!(found, "gain" | "confirmed");
        let mark = if is_gain { ForestMark::Solid } else { ForestMark::Hollow };
        Some(line(lab, &entry.name, found, effect, mark))
    });
    let each = entries.iter().filter(|entry| has_figures(&entry.row)).flat_map(|entry| {
        let under = entry.row.profiles.iter().enumerate();
        under.filter_map(|(index, effect)| {
            let label = format!("{}, {}", entry.name, lab.profile(index).text);
            Some(line(lab, &label, "", effect.as_ref()?, ForestMark::Hollow))
        })
    });
    let (overall, each): (Vec<_>, Vec<_>) = (overall.collect(), each.collect());
    let reading = "Right is better. Inside the shaded floor nothing is called a gain.";
    let captions = [
        format!("With its interval. {reading} Filled: called a gain."),
        format!("With its interval, to inform: no profile decides. {reading}"),
    ];
    let overall = chart("Gain over all profiles", &captions[0], overall);
    let each = chart("Gain under each profile", &captions[1], each);
    overall.into_iter().chain(each).collect()
}

/// Line of a gain chart, and the row of the chart's data table.
type Line = (ForestRow, Vec<String>);

fn line(lab: &Lab, label: &str, found: &str, effect: &Effect, mark: ForestMark) -> Line {
    let (gain, interval) = (words::gain(Some(effect)), words::interval(Some(effect)));
    let row = ForestRow {
        label: label.to_owned(),
        text: format!("{gain} {found}").trim_end().to_owned(),
        effect_pct: effect.gain_pct,
        interval_pct: Some(effect.interval_pct),
        min_effect_pct: words::min_effect_pct(lab),
        mark,
    };
    let table = vec![label.to_owned(), gain, interval, effect.pairs.to_string()];
    (row, table)
}

/// Draws a chart of gains; `None` where `lines` is empty.
fn chart(title: &str, caption: &str, lines: Vec<Line>) -> Option<Chart> {
    let (rows, table): (Vec<ForestRow>, Vec<Vec<String>>) = lines.into_iter().unzip();
    if rows.is_empty() {
        return None;
    }
    let heads = ["Candidate", "Gain", "95 % interval", "Pairs"];
    Some(Chart::new(title, caption, forest(&rows), heads, table))
}
