//! Sections of a lab's page, one per stage and axis: a table, its charts, and the runs behind each
//! cell.

use judge::lab::{Effect, Found, Row};
use schema::lab::{Candidate, LabStage};
use serde::Serialize;

use super::{Lab, words};
use crate::chart::{Chart, Forest, ForestMark, ForestRow};
use crate::link::Target;
use crate::outside;
use crate::view::badge::Tone;
use crate::view::release::Related;

/// Section: candidates that were compared with one reference in one stage.
#[derive(Debug, Clone, Serialize)]
pub struct Section {
    pub title: String,
    pub anchor: String,
    /// Title of the reference that the candidates are compared with.
    pub reference: String,
    pub profiles: Vec<String>,
    pub rows: Vec<SectionRow>,
    pub charts: Vec<Chart>,
    /// Links to the runs of the reference: outer index is the profile.
    pub reference_runs: Vec<Vec<Related>>,
    /// True when the section continues the one before.
    pub is_continued: bool,
}

/// Row of a section: a candidate in a stage.
#[derive(Debug, Clone, Serialize)]
pub struct SectionRow {
    pub candidate: String,
    pub flags: String,
    pub gain: String,
    pub interval: String,
    pub pairs: String,
    /// Gain and interval under each profile.
    pub profiles: Vec<(String, String)>,
    pub found: String,
    pub tone: Tone,
    pub reason: String,
    pub runs: Vec<Vec<Related>>,
}

/// A result of the lab, with its name in its section and its finding in words.
struct Entry {
    name: String,
    row: Row,
    found: (String, Tone, String),
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

/// Returns every result of the lab; without a conclusion, every candidate that was run.
fn entries(lab: &Lab) -> Vec<Entry> {
    let Some(found) = lab.concluded() else { return open(lab) };
    let rows = found.rows.iter().map(|row| Entry {
        name: name(lab, row),
        row: row.clone(),
        found: {
            let (found, tone, reason) = words::found(row);
            (found.to_owned(), tone, reason)
        },
    });
    let confirmed = found.confirmed.iter().map(|confirmed| {
        let row = &confirmed.row;
        let p = format!("{}, adjusted", words::p(confirmed.p_adjusted));
        let found = match (&row.found, confirmed.is_gain) {
            (_, true) => ("confirmed".to_owned(), Tone::Firm, p),
            (Found::Failed(_) | Found::OutOfBounds { .. } | Found::NotExplored { .. }, _) => {
                let (found, tone, reason) = words::found(row);
                (found.to_owned(), tone, reason)
            }
            (_, false) => ("not confirmed".to_owned(), Tone::Soft, p),
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
        let found = ("open".to_owned(), Tone::Soft, "the lab is not whole".to_owned());
        Entry { name: name(lab, &row), row, found }
    })
    .collect()
}

/// Name of a result, in a section whose stage or axis is known.
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

/// Largest number of chart lines on a page; each line is a candidate over all profiles or under
/// one.
const LINES_MAX: usize = 50;

/// Returns a section, or several where one page has no room for it.
fn pieces(lab: &Lab, title: &str, anchor: &str, entries: &[&Entry]) -> Vec<Section> {
    let most = (LINES_MAX / (lab.file().profiles.len() + 1)).max(1);
    let piece = |(index, entries): (usize, &[&Entry])| {
        let stage = entries[0].row.stage;
        let launches = lab.replay.launches.iter().find(|launches| launches.stage == stage);
        let reference = launches.map(|launches| &launches.candidate);
        Section {
            title: title.to_owned(),
            anchor: format!("{anchor}-{}", index + 1),
            reference: reference.map_or_else(String::new, |candidate| lab.title(candidate)),
            profiles: (0..lab.file().profiles.len()).map(|index| lab.profile(index).text).collect(),
            rows: entries.iter().map(|entry| row(lab, entry)).collect(),
            charts: charts(lab, entries),
            reference_runs: reference
                .map_or_else(Vec::new, |candidate| links(lab, stage, candidate)),
            is_continued: index > 0,
        }
    };
    entries.chunks(most).enumerate().map(piece).collect()
}

/// Groups sections into pages of at most `LINES_MAX` chart lines.
pub fn paged(sections: Vec<Section>, profiles: usize) -> Vec<Vec<Section>> {
    let mut pages: Vec<Vec<Section>> = vec![Vec::new()];
    let mut lines = 0;
    for section in sections {
        let more = section.rows.len() * (profiles + 1);
        if lines > 0 && lines + more > LINES_MAX {
            pages.push(Vec::new());
            lines = 0;
        }
        lines += more;
        pages.last_mut().expect("there is always a page").push(section);
    }
    pages
}

/// True when a result's figures can be compared with others.
fn has_figures(row: &Row) -> bool {
    !matches!(row.found, Found::Failed(_) | Found::NotExplored { .. })
}

fn row(lab: &Lab, entry: &Entry) -> SectionRow {
    let row = &entry.row;
    let shown = |effect: Option<&Effect>| {
        let effect = effect.filter(|_| has_figures(row));
        (words::gain(effect), words::interval(effect))
    };
    let (gain, interval) = shown(row.effect.as_ref());
    let pairs = row.effect.filter(|_| has_figures(row)).map(|effect| effect.pairs.to_string());
    let under = |index| shown(row.profiles.get(index).and_then(Option::as_ref));
    SectionRow {
        candidate: entry.name.clone(),
        flags: outside::command(&lab.file().flags(&row.candidate)),
        gain,
        interval,
        pairs: pairs.unwrap_or_else(|| "-".to_owned()),
        profiles: (0..lab.file().profiles.len()).map(under).collect(),
        found: entry.found.0.clone(),
        tone: entry.found.1,
        reason: entry.found.2.clone(),
        runs: links(lab, row.stage, &row.candidate),
    }
}

/// Links to the runs of a candidate in a stage: outer index is the profile.
fn links(lab: &Lab, stage: LabStage, candidate: &Candidate) -> Vec<Vec<Related>> {
    let launches = lab.launches(stage, candidate);
    let of = |profile| {
        let runs = lab.runs_of(launches, profile).into_iter().enumerate();
        let link = |(index, run): (usize, &crate::catalog::Run)| Related {
            text: (index + 1).to_string(),
            target: Target::Run { id: run.record.id.clone(), record: run.path.to_owned() },
        };
        runs.map(link).collect()
    };
    (0..lab.file().profiles.len()).map(of).collect()
}

/// Charts of the gain of each candidate, over all profiles and under each.
fn charts(lab: &Lab, entries: &[&Entry]) -> Vec<Chart> {
    let overall = entries.iter().filter_map(|entry| {
        let effect = entry.row.effect.as_ref().filter(|_| has_figures(&entry.row))?;
        let is_claimed = matches!(entry.found.0.as_str(), "gain" | "confirmed");
        let mark = if is_claimed { ForestMark::Solid } else { ForestMark::Hollow };
        Some(line(lab, &entry.name, &entry.found.0, effect, mark))
    });
    let each = entries.iter().filter(|entry| has_figures(&entry.row)).flat_map(|entry| {
        let under = entry.row.profiles.iter().enumerate();
        under.filter_map(|(index, effect)| {
            let label = format!("{}, {}", entry.name, lab.profile(index).text);
            Some(line(lab, &label, "", effect.as_ref()?, ForestMark::Hollow))
        })
    });
    let (overall, each): (Vec<_>, Vec<_>) = (overall.collect(), each.collect());
    let floor = "Right is better. Inside the shaded floor nothing is called a gain.";
    [
        (
            "Gain over all profiles",
            format!("With its interval. {floor} Filled: called a gain."),
            overall,
        ),
        (
            "Gain under each profile",
            format!("With its interval, to inform: no profile decides. {floor}"),
            each,
        ),
    ]
    .into_iter()
    .filter_map(|(title, caption, lines)| chart(title, &caption, lines))
    .collect()
}

/// Line of a chart, and the row of its table.
type Line = (ForestRow, Vec<String>);

fn line(lab: &Lab, label: &str, found: &str, effect: &Effect, mark: ForestMark) -> Line {
    let (gain, interval) = (words::gain(Some(effect)), words::interval(Some(effect)));
    let row = ForestRow {
        label: label.to_owned(),
        text: format!("{gain} {found}").trim_end().to_owned(),
        effect_pct: effect.gain_pct,
        interval_pct: Some(effect.interval_pct),
        floor_pct: words::floor_pct(lab),
        mark,
    };
    let table = vec![label.to_owned(), gain, interval, effect.pairs.to_string()];
    (row, table)
}

/// Draws a chart; `None` where there is nothing to draw.
fn chart(title: &str, caption: &str, lines: Vec<Line>) -> Option<Chart> {
    let (rows, table): (Vec<ForestRow>, Vec<Vec<String>>) = lines.into_iter().unzip();
    if rows.is_empty() {
        return None;
    }
    let forest = Forest { title: title.to_owned(), description: caption.to_owned(), rows };
    Some(Chart {
        title: title.to_owned(),
        caption: caption.to_owned(),
        svg: forest.draw(),
        heads: ["Candidate", "Gain", "95 % interval", "Pairs"].map(str::to_owned).to_vec(),
        rows: table,
    })
}
