//! Wording of a comparison that its text and Markdown outputs share. Display only.

use schema::comparison::{Broad, CellDiff, Commits, Diff, FlagChange, Row, Summary};
use schema::metric::Unit;
use schema::verdict::{Cell, Stage, Verdict, VerdictKind};

/// Largest number of commits that a comparison lists; where there are more, it lists the newest.
pub const COMMITS_SHOWN: usize = 12;

/// Returns the title of a cell: `ENGINE on HARDWARE: MODEL, CONFIGURATION, SCENARIO`.
pub fn title(cell: &Cell) -> String {
    let Cell { engine, hardware, model, config, scenario } = cell;
    format!("{engine} on {hardware}: {model}, {config}, {scenario}")
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

/// Returns the conclusion that a reader may draw from a comparison, in one or two sentences.
pub fn conclusion(diff: &Diff) -> String {
    let any = |kind| diff.rows().any(|row| row.verdict.verdict == kind);
    let unwaived =
        |row: &Row| row.verdict.verdict == VerdictKind::Regressed && row.verdict.waiver.is_none();
    let gating = diff.rows().filter(|row| row.gates).count();
    let of_kind = |kind| diff.rows().filter(|row| row.gates && row.verdict.verdict == kind).count();
    let undecided = of_kind(VerdictKind::Inconclusive);
    let changed = of_kind(VerdictKind::ChangedConfig);
    let open = undecided + changed;
    let known = if diff.cells.is_empty() {
        "The two releases share no cell."
    } else if diff.rows().any(unwaived) {
        "Something got worse, and screen and confirmation agree on it."
    } else if any(VerdictKind::NewFailure) {
        "Something that ran before fails now."
    } else if any(VerdictKind::Regressed) {
        "What got worse is waived, for the reason and until the day that stand beside it."
    } else if open == gating {
        "No figure is judged better or worse: the differences below are estimates."
    } else {
        "Nothing that gates is known to be worse."
    };
    if open == 0 || undecided == gating {
        return known.to_owned();
    }
    let counts = [(undecided, "undecided"), (changed, "of a changed configuration")];
    let counts = counts.iter().filter(|(count, _)| *count > 0);
    let words = |(count, what): &(usize, &str)| {
        format!("{count} {} {what}", if *count == 1 { "is" } else { "are" })
    };
    let counts: Vec<String> = counts.map(words).collect();
    format!("{known} Of {gating} figures that gate, {}.", counts.join(" and "))
}

/// Counts the verdicts on release-blocking metrics and formats the counts, worst first, with the
/// number of waived ones: `2 regressed (1 waived), 3 unchanged`.
pub fn counts(diff: &Diff) -> String {
    let gating = || diff.rows().filter(|row| row.gates).map(|row| &row.verdict);
    let count = |kind: &VerdictKind| {
        let of_kind = || gating().filter(|verdict| verdict.verdict == *kind);
        let waived = of_kind().filter(|verdict| verdict.waiver.is_some()).count();
        let waived = if waived > 0 { format!(" ({waived} waived)") } else { String::new() };
        let count = of_kind().count();
        (count > 0).then(|| format!("{count} {}{waived}", kind.name()))
    };
    let counts: Vec<String> = WORST_FIRST.iter().filter_map(count).collect();
    if counts.is_empty() { "nothing was compared".to_owned() } else { counts.join(", ") }
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
        format!("Over all {cells} cells of {engine} on {hardware}: {title} {effect}{within}")
    };
    diff.broad.iter().map(line).collect()
}

/// Returns the sentences that stand before a cell's table: number of pairs, remarks, and server
/// flags whose values differ, because a command sets them or because a default moved.
pub fn facts(cell: &CellDiff) -> Vec<String> {
    let most = |stage| {
        let rows = cell.rows.iter().filter(|row| (row.verdict.stage == Stage::Confirm) == stage);
        rows.map(|row| row.verdict.pairs).max().unwrap_or(0) as usize
    };
    let mut facts = Vec::new();
    if let Some(campaign) = &cell.judged {
        let confirm = match most(true) {
            0 => String::new(),
            pairs => format!(", then {} that confirm", plural(pairs, "pair")),
        };
        let pairs = plural(most(false), "pair");
        facts.push(format!("{pairs}{confirm}, interleaved in campaign {campaign}"));
    }
    facts.extend(cell.remarks.iter().cloned());
    let flag = |change: &FlagChange, how: &str| {
        let FlagChange { flag, baseline, candidate } = change;
        format!("--{flag}: {} became {}{how}", baseline.join(" or "), candidate.join(" or "))
    };
    facts.extend(cell.changed.iter().map(|change| flag(change, "")));
    facts.extend(cell.moved.iter().map(|change| flag(change, " by default, and may be the cause")));
    facts
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
        lines.push("No cell was measured with both releases.".to_owned());
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
pub fn heads(diff: &Diff) -> [String; 8] {
    let (baseline, candidate) = (diff.baseline.as_str(), diff.candidate.as_str());
    ["metric", baseline, candidate, "effect", "95 % interval", "delta", "sees", "verdict"]
        .map(str::to_owned)
}

/// Returns the texts of one row of a comparison table, in the order of [`heads`].
pub fn cells(row: &Row) -> [String; 8] {
    let verdict = &row.verdict;
    [
        row.title.clone(),
        spread(row.baseline.as_ref(), row.unit),
        spread(row.candidate.as_ref(), row.unit),
        verdict.effect_pct.map_or("-".to_owned(), percent),
        verdict.interval_pct.map_or("-".to_owned(), interval),
        verdict.cliffs_delta.map_or("-".to_owned(), |delta| format!("{delta:+.2}")),
        verdict.mde_pct.map_or("-".to_owned(), |mde| format!("{mde:.1} %")),
        word(row),
    ]
}

/// Returns the rows of a cell, those of release-blocking metrics first.
pub fn rows(cell: &CellDiff) -> Vec<&Row> {
    let (gating, informing): (Vec<&Row>, Vec<&Row>) = cell.rows.iter().partition(|row| row.gates);
    [gating, informing].concat()
}

/// Returns the verdict as a word, with its qualification: waived, suspected or not reproduced. The
/// word is `informs` for an inconclusive metric that is not release-blocking.
pub fn word(row: &Row) -> String {
    let Verdict { verdict, stage, suspected, waiver, .. } = &row.verdict;
    let name = verdict.name();
    if is_untested(row) {
        return "informs".to_owned();
    }
    let confirmed = matches!(verdict, VerdictKind::Regressed | VerdictKind::Improved);
    match (waiver, suspected, stage) {
        (Some(waiver), ..) => format!("{name}, waived: {waiver}"),
        (None, true, Stage::Confirm) if !confirmed => format!("{name}: not reproduced"),
        (None, true, Stage::Screen) => format!("{name}: suspected, not confirmed"),
        _ => name.to_owned(),
    }
}

/// Formats a percentage with its sign: `-5.2 %`.
pub fn percent(value: f64) -> String {
    format!("{value:+.1} %")
}

/// Formats an interval in percent: `-5.9 to -4.6 %`.
pub fn interval((low, high): (f64, f64)) -> String {
    format!("{low:+.1} to {high:+.1} %")
}

/// Formats a mean with its coefficient of variation, if known, and number of runs: `1316.8/s (CV
/// 0.4 %, n 5)`; `-` without a summary.
pub fn spread(summary: Option<&Summary>, unit: Unit) -> String {
    let Some(summary) = summary else { return "-".to_owned() };
    let value = value(summary.mean, unit);
    match summary.cv {
        Some(cv) => format!("{value} (CV {:.1} %, n {})", cv * 100.0, summary.n),
        None => format!("{value} (n {})", summary.n),
    }
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
