//! Wording of a comparison that its text and Markdown outputs share. Display only.

use schema::comparison::{Broad, CellDiff, Commits, Diff, Row, Summary};
use schema::metric::{Better, Unit};
use schema::verdict::{Cell, Stage, Verdict, VerdictKind};

use super::estimate::log_of;
use crate::alternation::STARTS_MIN;

/// Largest number of commits that a comparison lists; where there are more, it lists the newest.
pub const COMMITS_SHOWN: usize = 12;

/// Returns the title of a cell: `ENGINE on HARDWARE: MODEL, CONFIGURATION, SCENARIO`.
pub fn title(cell: &Cell) -> String {
    let Cell { engine, hardware, model, config, scenario } = cell;
    format!("{engine} on {hardware}: {model}, {config}, {scenario}")
}

/// Returns the title of the part of a comparison that the row `first` begins: that of its cell, or of
/// the scenarios that it judges together.
pub fn title_of_part(first: &Row) -> String {
    let scenario = first.verdict.scenario();
    title(&Cell { scenario, ..first.verdict.cell.clone() })
}

/// Returns the rows that judge scenarios together, those about the same scenarios in one part.
pub fn together<'a>(rows: &[&'a Row]) -> Vec<Vec<&'a Row>> {
    let is_same = |a: &&Row, b: &&Row| {
        let [a, b] = [a, b].map(|row| (&row.verdict.cell, &row.verdict.together));
        a == b
    };
    rows.chunk_by(is_same).map(|rows| rows.to_vec()).collect()
}

/// Kinds of verdicts in the order in which comparisons list them, worst first.
pub const WORST_FIRST: [VerdictKind; 7] = [
    VerdictKind::Regressed,
    VerdictKind::NewFailure,
    VerdictKind::ChangedConfig,
    VerdictKind::Inconclusive,
    VerdictKind::Unchanged,
    VerdictKind::Improved,
    VerdictKind::FixedFailure,
];

/// Returns the rows whose verdict claims a change (regression, improvement, new or fixed failure),
/// worst first and release-blocking metrics before others.
pub fn claims(diff: &Diff) -> Vec<&Row> {
    let rank = |row: &&Row| WORST_FIRST.iter().position(|kind| *kind == row.verdict.verdict);
    let claims = |row: &&Row| {
        let kind = row.verdict.verdict;
        !matches!(
            kind,
            VerdictKind::Unchanged | VerdictKind::Inconclusive | VerdictKind::ChangedConfig
        )
    };
    let mut rows: Vec<&Row> = diff.rows().filter(claims).collect();
    rows.sort_by_key(|row| (rank(row), !row.gates));
    rows
}

/// True for a release-blocking row that regressed or has a new failure, whether it is waived or
/// not.
pub fn is_worse(row: &Row) -> bool {
    row.gates && matches!(row.verdict.verdict, VerdictKind::Regressed | VerdictKind::NewFailure)
}

/// True for a metric that is not release-blocking and was not tested, for which "inconclusive"
/// means nothing.
pub fn is_untested(row: &Row) -> bool {
    !row.gates && row.verdict.verdict == VerdictKind::Inconclusive
}

/// Returns the words for a metric that was judged in turns in too few starts of its scenario to be
/// decided, `too few starts: 2 of 4`; `None` for others.
pub fn too_few_starts(row: &Row) -> Option<String> {
    let starts = row.verdict.alternation?.starts;
    let is_open = row.gates && row.verdict.verdict == VerdictKind::Inconclusive;
    let is_few = is_open && !row.verdict.is_together() && (starts as usize) < STARTS_MIN;
    is_few.then(|| format!("too few starts: {starts} of {STARTS_MIN}"))
}

/// True for a release-blocking metric that was judged in turns and is undecided between unchanged and
/// better: its 95 % interval excludes a regression of the minimum effect. It does not keep a release
/// from being shipped, as little as an unchanged metric does, whose test has the same error on that
/// side.
pub fn is_not_worse(row: &Row) -> bool {
    let Verdict { verdict, alternation, interval_pct, floor_pct, .. } = &row.verdict;
    let worst = interval_pct.map(|(low, high)| match row.better {
        Better::Lower => log_of(high),
        Better::Higher => -log_of(low),
    });
    let is_open = row.gates && alternation.is_some() && *verdict == VerdictKind::Inconclusive;
    is_open && too_few_starts(row).is_none() && worst.is_some_and(|log| log < log_of(*floor_pct))
}

/// Returns the interval that a change of an undecided metric has to pass, where the 95 % interval
/// beside it excludes zero and so seems to contradict the verdict; `None` for others.
pub fn deciding_interval(row: &Row) -> Option<(f64, f64)> {
    let (low, high) = row.verdict.interval_pct?;
    let is_open = row.gates && row.verdict.verdict == VerdictKind::Inconclusive;
    let interval = row.verdict.deciding_interval_pct?;
    (is_open && (low > 0.0 || high < 0.0)).then_some(interval)
}

/// Returns the end of a waiver in words: `until 2027-03-31`, or `without an end`.
pub fn until(expires: Option<&str>) -> String {
    let day = |at: &str| at.chars().take(10).collect::<String>();
    expires.map_or_else(|| "without an end".to_owned(), |at| format!("until {}", day(at)))
}

/// Returns sentences about the shift of each release-blocking metric over all cells of an engine on
/// a machine, one for each metric.
pub fn broad(diff: &Diff) -> Vec<String> {
    let line = |shift: &Broad| {
        let Broad { engine, hardware, title, cells, effect_pct, .. } = shift;
        let within = shift
            .interval_pct
            .map_or_else(String::new, |bounds| format!(" (95 % interval {})", interval(bounds)));
        let effect = percent(*effect_pct);
        format!(
            "Overall change in {cells} scenarios of {engine} on {hardware}: {title} {effect}{within}"
        )
    };
    diff.broad.iter().map(line).collect()
}

/// Returns the sentence about the pairs behind a cell's figures; `None` where the releases never ran
/// side by side.
pub fn pairs(cell: &CellDiff) -> Option<String> {
    let most = |stage| {
        let of_runs = |row: &&Row| row.verdict.alternation.is_none();
        let rows = cell.rows.iter().filter(of_runs);
        let rows = rows.filter(|row| (row.verdict.stage == Stage::Confirm) == stage);
        rows.map(|row| row.verdict.pairs).max().unwrap_or(0) as usize
    };
    let campaign = cell.judged.as_ref()?;
    // A gate has no runs.
    if cell.rows.iter().all(|row| row.verdict.alternation.is_some() || row.verdict.pairs == 0) {
        return None;
    }
    let confirm = match most(true) {
        0 => String::new(),
        pairs => format!(", then {} that confirm", plural(pairs, "pair")),
    };
    let pairs = plural(most(false), "pair");
    Some(format!("{pairs}{confirm}, interleaved in campaign {campaign}"))
}

/// Formats a count with its noun: `1 pair`, `5 pairs`, `2 launches`.
pub fn plural(count: usize, word: &str) -> String {
    let ending = if word.ends_with("ch") { "es" } else { "s" };
    if count == 1 { format!("1 {word}") } else { format!("{count} {word}{ending}") }
}

/// Returns sentences about what could not be compared: cells that only one release has, and
/// retracted runs.
pub fn missing(diff: &Diff) -> Vec<String> {
    let mut lines = Vec::new();
    if diff.cells.is_empty() {
        lines.push("No scenario was measured with both releases.".to_owned());
    }
    let sides = [(&diff.baseline, &diff.baseline_only), (&diff.candidate, &diff.candidate_only)];
    for (release, cells) in sides {
        lines.extend(cells.iter().map(|cell| format!("Only {release}: {}", title(cell))));
    }
    if diff.retracted > 0 {
        lines.push(format!("{} left out as retracted.", plural(diff.retracted, "run")));
    }
    lines
}

/// Formats the commits between the releases: a sentence with their number, then id and subject of
/// the newest [`COMMITS_SHOWN`] at most.
pub fn commits(commits: &Commits) -> (String, Vec<(String, String)>) {
    let short = |id: &str| id.chars().take(10).collect::<String>();
    let range = format!("{}..{}", short(&commits.baseline), short(&commits.candidate));
    let count = plural(commits.changes.len(), "commit");
    let listed = match commits.changes.len() {
        0..=COMMITS_SHOWN => String::new(),
        _ => format!(", the newest {COMMITS_SHOWN}"),
    };
    let lines = commits.changes.iter().take(COMMITS_SHOWN);
    let lines = lines.map(|commit| (short(&commit.id), commit.subject.clone())).collect();
    (format!("{count} to the engine in {range}{listed}:"), lines)
}

/// Returns the column heads of a cell's table in a comparison of two releases.
pub fn heads(diff: &Diff) -> [String; 6] {
    let (baseline, candidate) = (diff.baseline.as_str(), diff.candidate.as_str());
    ["metric", baseline, candidate, "change", "95 % interval", "verdict"].map(str::to_owned)
}

/// Returns the texts of one row of a comparison table, in the order of [`heads`]: the means of both
/// releases, effect, interval and verdict.
pub fn cells(row: &Row) -> [String; 6] {
    let verdict = &row.verdict;
    let mean =
        |side: Option<&Summary>| side.map_or("-".to_owned(), |side| value(side.mean, row.unit));
    [
        row.title.clone(),
        mean(row.baseline.as_ref()),
        mean(row.candidate.as_ref()),
        verdict.effect_pct.map_or("-".to_owned(), percent),
        verdict.interval_pct.map_or("-".to_owned(), interval),
        word(row),
    ]
}

/// Returns the rows of a cell, those of release-blocking metrics first.
pub fn rows(cell: &CellDiff) -> Vec<&Row> {
    let (gating, informing): (Vec<&Row>, Vec<&Row>) = cell.rows.iter().partition(|row| row.gates);
    [gating, informing].concat()
}

/// Returns the verdict as a word, with its qualification: waived, suspected or not reproduced. The
/// word is `not judged` for an inconclusive metric that is not release-blocking, `too few starts: 2
/// of 4` for one that was not tested in turns, and `not worse` for one that is undecided between
/// unchanged and better.
pub fn word(row: &Row) -> String {
    let Verdict { verdict, stage, suspected, waiver, .. } = &row.verdict;
    let name = verdict.name();
    if is_untested(row) {
        return "not judged".to_owned();
    }
    if let Some(few) = too_few_starts(row) {
        return few;
    }
    if is_not_worse(row) {
        return "not worse".to_owned();
    }
    let open = *verdict == VerdictKind::Inconclusive;
    match (waiver, suspected, stage) {
        (Some(_), ..) => format!("{name} (waived)"),
        (None, true, Stage::Confirm) if open => "not reproduced".to_owned(),
        (None, true, Stage::Screen) if open => "suspected, not confirmed".to_owned(),
        _ => name.to_owned(),
    }
}

/// Formats a range of effects in percent as `up 121 to 165 %`, `down 56 to 62 %` or `up 3.2 %`.
pub fn change((low, high): (f64, f64)) -> String {
    let way = if high > 0.0 { "up" } else { "down" };
    format!("{way} {}", sizes(if high > 0.0 { (low, high) } else { (-high, -low) }))
}

/// Formats a range of sizes in percent: `6.3 to 25 %`, or one where both look the same.
pub fn sizes((least, most): (f64, f64)) -> String {
    let (least, most) = (size_of(least), size_of(most));
    if least == most { most } else { format!("{} to {most}", least.trim_end_matches(" %")) }
}

/// Formats a size in percent with one decimal below 10 and none above: `3.2 %`, `165 %`.
pub fn size_of(pct: f64) -> String {
    if pct.abs() < 9.95 { format!("{pct:.1} %") } else { format!("{pct:.0} %") }
}

/// Formats a percentage with its sign, and with one decimal below 100: `-5.2 %`, `+121 %`.
pub fn percent(value: f64) -> String {
    format!("{} %", signed(value))
}

/// Formats an interval in percent: `-5.9 to -4.6 %`.
pub fn interval((low, high): (f64, f64)) -> String {
    format!("{} to {} %", signed(low), signed(high))
}

fn signed(value: f64) -> String {
    if value.abs() < 99.95 { format!("{value:+.1}") } else { format!("{value:+.0}") }
}

/// Formats a value with the unit that people read: rates per second, times scaled to s, ms or us,
/// bytes in MiB, counts without unit.
pub fn value(value: f64, unit: Unit) -> String {
    match unit {
        Unit::PerSecond => format!("{value:.1}/s"),
        Unit::Microseconds if value.abs() >= 1e6 => format!("{:.2} s", value / 1e6),
        Unit::Microseconds if value.abs() >= 1e3 => format!("{:.2} ms", value / 1e3),
        Unit::Microseconds => format!("{value:.0} us"),
        Unit::Bytes => format!("{:.1} MiB", value / f64::from(1 << 20)),
        Unit::Count => format!("{value:.1}"),
    }
}
