//! Views of a release. On one hardware: environment, summary table, and each model. On all
//! hardware: its figures, changes since the release before, failures, and the cost of its
//! campaigns.

use std::collections::{BTreeMap, BTreeSet};

use judge::diff::words::{claims, plural};
use judge::diff::{CellDiff, Diff, Row};
use judge::{facts, order, output_form};
use minijinja::{Value, context};
use schema::campaign::CampaignRecord;
use schema::run::{Kind, RunRecord, Status};
use schema::scenario::id_of;
use schema::verdict::{ALL_SCENARIOS, VerdictKind};

use super::figure::{self, Column, failed, launches};
use super::finding::{self, Finding};
use super::{caveat, command, diff, fact, health, model, subjects, table, words};
use crate::catalog::{self, Catalog, Cell, CellKey, ReleaseKey, Run, distinct};
use crate::chart::{Heat, HeatCell, HeatRow, shade};
use crate::judged::{Judged, Pair};
use crate::link::{self, Link, Target};
use crate::{format, outside};

/// Names of the metrics that are columns of a release's summary table and of a scenario's page, most
/// asked for first: a phone shows the first columns without scrolling.
pub const SUMMARY: [&str; 6] = [
    "output_tokens_per_s",
    "ttft_us_p50",
    "tpot_us_p50",
    "e2e_us_p50",
    "requests_per_s",
    "total_tokens_per_s",
];

/// Builds the view of a release on a hardware from `runs`, which all belong to `key`. `leading` is
/// the comparison with the release before, if there is one, and `published` stands in its place where
/// both were only published elsewhere; `related` are links to other pages about the release.
pub fn view(
    key: &ReleaseKey,
    runs: &[&Run],
    (leading, published): (Option<&(Pair, Diff)>, Option<&Pair>),
    related: Vec<Link>,
) -> Value {
    let cells = catalog::cells(runs);
    let ReleaseKey { engine, release, hardware } = key;
    context! {
        engine => outside::name(engine),
        release => outside::name(release),
        hardware => outside::name(hardware),
        // Readable name of the hardware; empty where it is not known.
        device => fact::device(runs),
        extent => extent(runs, &cells),
        // Sentences that a reader must see before any figure.
        notices => notices(runs),
        since => leading.map(|(pair, found)| verdict(pair, found)),
        published => published.map(Pair::link),
        effects => leading.map(|(pair, found)| diff::effects(pair, found)).unwrap_or_default(),
        // Sentences about figures that are doubtful.
        caveats => caveat::caveats(&cells),
        environment => fact::environment(runs),
        table => summary(&cells, key),
        // Cost of tool calls and of structured output, where the plain scenario was measured too.
        forms => forms(&cells),
        // Sentences about scenarios of this kind that have no such cost.
        formless => formless(&cells),
        // True where the page has room for its models; otherwise each has a page of its own.
        inline => is_inline(&cells),
        models => model::all(&cells),
        release_page => Target::Release { engine: engine.clone(), release: release.clone() },
        related,
    }
}

/// Largest number of cells with which a release's page shows its models itself; with more it would
/// be too long for a phone, so each model has a page of its own.
const CELLS_INLINE: usize = 8;
/// Largest number of runs with which a release's page shows its models itself; with more it would
/// be too long for a phone, so each model has a page of its own.
const RUNS_INLINE: usize = 200;

/// True where the page of a release shows the charts and lists of `cells` itself, because neither
/// the cells nor their runs are too many.
pub fn is_inline(cells: &[Cell]) -> bool {
    cells.len() <= CELLS_INLINE
        && cells.iter().map(|cell| cell.runs.len()).sum::<usize>() <= RUNS_INLINE
}

/// Builds the summary table of a release: one row per cell, by model, configuration and scenario.
fn summary(cells: &[Cell], key: &ReleaseKey) -> Value {
    let columns = Column::all(&SUMMARY, cells);
    let mut findings: Vec<Vec<Finding>> = cells.iter().map(finding::of_cell).collect();
    let common = finding::take_common(&mut findings);
    let mut findings = findings.into_iter();
    let mut rows = Vec::new();
    for group in cells.chunk_by(|a, b| a.key.model == b.key.model) {
        let configs: Vec<String> =
            group.iter().map(|cell| outside::line(&cell.key.config)).collect();
        for (index, cell) in group.iter().enumerate() {
            let CellKey { model, config, scenario, .. } = &cell.key;
            rows.push(context! {
                model => outside::name(model),
                anchor => link::anchor(&format!("{model}-{config}")),
                model_page => model::target(key, model, config),
                config => &configs[index],
                // A model's name spans all of its rows, so only the first row has a span.
                span => if index == 0 { group.len() } else { 0 },
                first => index == 0 || configs[index] != configs[index - 1],
                // True where the model was served in more than one configuration.
                variant => configs.iter().any(|other| *other != configs[0]),
                scenario => outside::name(scenario),
                n => launches(cell),
                figures => columns.iter().map(|column| column.figure(cell)).collect::<Value>(),
                failed => failed(cell),
                badges => findings.next(),
            });
        }
    }
    context! { heads => columns.iter().map(Column::head).collect::<Value>(), common, rows }
}

/// Returns the pairs of `cells` of which one asks for tool calls or structured output and the other is
/// its plain scenario, with the same model and configuration.
fn with_plain<'c, 'a>(cells: &'c [Cell<'a>]) -> Vec<[&'c Cell<'a>; 2]> {
    let plain_of = move |form: &'c Cell<'a>| {
        let id = output_form::plain_of(id_of(&form.key.scenario));
        let is_plain = move |plain: &&'c Cell<'a>| {
            let (own, other) = (&form.key, &plain.key);
            (&own.model, &own.config) == (&other.model, &other.config)
                && id == Some(id_of(&other.scenario))
        };
        cells.iter().filter(is_plain).map(move |plain| [form, plain])
    };
    cells.iter().flat_map(plain_of).collect()
}

/// Returns the usable runs of a scenario and of its plain one in the newest campaign that has both,
/// and their ratios; `None` where no campaign has VALID runs of both.
fn form_ratios<'a>(pair: [&Cell<'a>; 2]) -> Option<([Vec<&'a RunRecord>; 2], [f64; 2])> {
    let [form, plain] = pair.map(|cell| {
        let usable = cell.runs.iter().filter(|run| run.is_usable());
        usable.map(|run| run.record).collect::<Vec<_>>()
    });
    let runs = output_form::of_one_campaign(&form, &plain)?;
    let ratios = output_form::ratios(&runs[0], &runs[1])?;
    Some((runs, ratios))
}

/// Builds the lines about the cost of tool calls and of structured output in `cells`.
fn forms(cells: &[Cell]) -> Vec<Value> {
    let line = |[form, plain]: [&Cell; 2]| {
        let ([own, other], ratios) = form_ratios([form, plain])?;
        let campaign = own.first().and_then(|run| run.campaign.as_ref());
        Some(context! {
            model => outside::name(&form.key.model),
            scenario => outside::name(&form.key.scenario),
            plain => outside::name(&plain.key.scenario),
            ratios => ratios.map(|ratio| format!("{}x", format::rounded(ratio, None))),
            n => format!("{} and {}", own.len(), other.len()),
            campaign => campaign.map(|slot| outside::name(&slot.id)).unwrap_or_default(),
        })
    };
    with_plain(cells).into_iter().filter_map(line).collect()
}

/// Returns a sentence for each scenario with tool calls or structured output in `cells` whose cost
/// cannot be stated although its plain scenario was measured.
fn formless(cells: &[Cell]) -> Vec<String> {
    let pairs = with_plain(cells).into_iter().filter(|pair| form_ratios(*pair).is_none());
    let sentence = |[form, plain]: [&Cell; 2]| {
        let [own, other] = [form, plain].map(|cell| outside::name(&cell.key.scenario));
        format!("{own} has no ratio: no campaign has VALID runs of it and of {other}.")
    };
    pairs.map(sentence).collect()
}

/// Formats the numbers of runs, models and scenarios, and the days on which the runs were started.
pub fn extent(runs: &[&Run], cells: &[Cell]) -> String {
    let models: BTreeSet<&str> = cells.iter().map(|cell| cell.key.model.as_str()).collect();
    let scenarios: BTreeSet<&str> = cells.iter().map(|cell| cell.key.scenario.as_str()).collect();
    let text = format!(
        "{} of {} in {}",
        plural(runs.len(), "run"),
        plural(models.len(), "model"),
        plural(scenarios.len(), "scenario")
    );
    dates(runs).into_iter().fold(text, |text, dates| format!("{text}, {dates}"))
}

/// Returns the day of an RFC 3339 time, such as `2026-01-31`.
pub fn day(at: &str) -> String {
    outside::short_hash(at, 10)
}

/// Formats the first and the last day (UTC) on which `runs` were started; `None` where no start is
/// known.
pub fn dates(runs: &[&Run]) -> Option<String> {
    let starts = runs.iter().filter_map(|run| run.record.time.as_ref()?.started_at.as_deref());
    let mut days: Vec<String> = starts.map(day).collect();
    days.sort();
    let (first, last) = (days.first()?, days.last()?);
    Some(if first == last { first.clone() } else { format!("{first} to {last}") })
}

/// Returns the sentences that a reader must see before any figure of `runs`.
pub fn notices(runs: &[&Run]) -> Vec<String> {
    let mut notices = Vec::new();
    let any = |test: fn(&RunRecord) -> bool| runs.iter().any(|run| test(run.record));
    if any(|record| record.kind == Kind::Imported) {
        notices.push(
            "These figures were read from a published report. The hardware is as claimed there, \
             and nobody here saw them run."
                .to_owned(),
        );
    }
    if any(|record| record.kind == Kind::Simulated) {
        notices.push("Simulated: no server ran. These records test the suite itself.".to_owned());
    }
    if any(|record| record.engine.dirty == Some(true) || record.engine.release.ends_with("-dev")) {
        notices.push(
            "A working tree was measured, not a release: nobody else can build this binary."
                .to_owned(),
        );
    }
    let failed = runs.iter().filter(|run| run.record.status == Status::Failed).count();
    if failed > 0 {
        notices.push(format!(
            "{failed} of {} failed: listed with the reason, in no figure.",
            plural(runs.len(), "run")
        ));
    }
    notices
}

/// Largest number of failing cells that the page of a release on all hardware lists; it counts the
/// others, and the page about failures lists all.
const FAILURES_MAX: usize = 60;
/// Largest number of rows in each table of verdicts and of changed flags on a release's page; the
/// comparison's own page has all.
const ROWS_MAX: usize = 60;

/// Builds the view of `engine` at `release` on all hardware.
pub fn across(catalog: &Catalog, judged: &Judged, engine: &str, release: &str) -> Value {
    let releases = catalog.releases().into_iter();
    let mut keys: Vec<(ReleaseKey, Vec<&Run>)> =
        releases.filter(|(key, _)| key.engine == engine && key.release == release).collect();
    keys.sort_by(|(a, _), (b, _)| order::natural(&a.hardware, &b.hardware));
    let runs: Vec<&Run> = keys.iter().flat_map(|(_, runs)| runs).copied().collect();
    let mut failures: Vec<Value> =
        keys.iter().flat_map(|(key, runs)| health::failures_of(key, runs)).collect();
    let more_failures = failures.len().saturating_sub(FAILURES_MAX);
    failures.truncate(FAILURES_MAX);
    let campaigns = catalog.registry.campaigns.iter();
    let campaigns = campaigns.filter(|stored| measures(&stored.record, engine, release));
    let on_hardware = |(key, runs): &(ReleaseKey, Vec<&Run>)| on_hardware(judged, key, runs);
    context! {
        engine => outside::name(engine),
        release => outside::name(release),
        extent => extent(&runs, &catalog::cells(&runs)),
        notices => notices(&runs),
        hardware => keys.iter().map(on_hardware).collect::<Value>(),
        failures,
        // Number of runs that ended and do not say how many of their requests failed.
        unreported => runs.iter().filter(|run| is_unreported(run.record)).count(),
        // Number of failing cells beyond those listed; the health page lists all.
        more_failures,
        campaigns => campaigns.map(subjects::campaign).collect::<Value>(),
        again => again(&keys),
        // Commands that measure here what others published, and print both figures.
        reproduce => reproduce(&runs),
    }
}

/// Returns the commands that measure a release again, one for each hardware whose commands differ;
/// none for hardware on which all its figures were published elsewhere or come from GPU validations,
/// whose own pages have the commands.
fn again(keys: &[(ReleaseKey, Vec<&Run>)]) -> Vec<String> {
    let is_measured = |run: &&Run| run.record.kind != Kind::Imported && !run.is_validation;
    let measured = keys.iter().filter(|(_, runs)| runs.iter().any(is_measured));
    distinct(measured.map(|(key, _)| command::release_bench(key, &[])))
}

/// Returns the command for each imported report that any of `runs` was read from.
fn reproduce(runs: &[&Run]) -> Vec<String> {
    let imported = runs.iter().filter(|run| run.record.kind == Kind::Imported);
    let reports = distinct(imported.filter_map(|run| catalog::report_of(run.path)));
    let command = |(source, file): &(String, String)| {
        let folder = format!("results/imports/{source}/{file}");
        outside::command(&["cargo", "xtask", "reproduce", &folder])
    };
    reports.iter().map(command).collect()
}

fn is_unreported(record: &RunRecord) -> bool {
    record.counts.is_some() && facts::failures(record).is_none()
}

/// True when `campaign` planned runs of this release of this engine.
pub fn measures(campaign: &CampaignRecord, engine: &str, release: &str) -> bool {
    campaign.plan.iter().any(|run| run.engine == engine && run.release == release)
}

fn on_hardware(judged: &Judged, key: &ReleaseKey, runs: &[&Run]) -> Value {
    let cells = catalog::cells(runs);
    context! {
        hardware => outside::name(&key.hardware),
        device => fact::device(runs),
        target => Target::ReleaseOn(key.clone()),
        extent => extent(runs, &cells),
        matrix => table::matrix(&cells),
        since => judged.leading_to(key).map(|(pair, diff)| since(pair, diff)),
        // Comparison with the release before where both were only published elsewhere.
        published => judged.published_before(key).map(Pair::link),
    }
}

/// Builds the verdict on a release: the decision of the comparison with the release before.
fn verdict(pair: &Pair, found: &Diff) -> Value {
    context! {
        baseline => outside::name(&pair.baseline),
        target => pair.target(),
        ..diff::decision(found)
    }
}

/// Builds the view of the changes since the release before, on one hardware.
fn since(pair: &Pair, found: &Diff) -> Value {
    let flags = |cell: &CellDiff| {
        let model = outside::name(&cell.cell.model);
        let flags = cell.changed.iter().chain(&cell.moved);
        flags.map(|flag| (model.clone(), diff::changed_flag(flag))).collect::<Vec<_>>()
    };
    let mut changed = distinct(found.cells.iter().flat_map(flags));
    changed.truncate(ROWS_MAX);
    context! {
        counts => diff::counts(found),
        heat => heat_table(pair, found),
        // Rows whose verdict claims a change, worst first.
        claims => diff::table(claims(found).into_iter().take(ROWS_MAX).collect()),
        // Models, each with a flag whose effective value differs.
        changed,
        noise => words::noise(found.noise_pct.values().flatten()),
        ..verdict(pair, found)
    }
}

/// Smallest number of cells for which a heat table is drawn; fewer cells are read faster in the
/// table of verdicts.
const CELLS_MIN: usize = 3;

/// Draws the output throughput of each model and scenario relative to the release before, as
/// `all` compares the releases of `pair`; `None` where there are too few cells.
fn heat_table(pair: &Pair, all: &Diff) -> Option<Heat> {
    let mut rows: BTreeMap<(&str, &str), BTreeMap<&str, &Row>> = BTreeMap::new();
    for row in all.rows().filter(|row| row.verdict.metric == figure::output().name) {
        let cell = &row.verdict.cell;
        rows.entry((&cell.model, &cell.config)).or_default().insert(&cell.scenario, row);
    }
    let mut scenarios: Vec<&str> = rows.values().flat_map(BTreeMap::keys).copied().collect();
    if scenarios.len() < CELLS_MIN {
        return None;
    }
    scenarios.sort_by(|a, b| order::scenarios(a, b));
    scenarios.dedup();
    let mut rows: Vec<_> = rows.into_iter().collect();
    rows.sort_by(|(a, _), (b, _)| order::natural(a.0, b.0).then_with(|| a.1.cmp(b.1)));
    let pages = diff::pages(pair, all);
    let row = |((model, config), found): ((&str, &str), BTreeMap<&str, &Row>)| HeatRow {
        label: outside::line(&format!("{model} {config}")),
        page: pages.get(&(model, config)).cloned().unwrap_or_else(|| pair.target()),
        cells: scenarios.iter().map(|name| heat_cell(found.get(name))).collect(),
    };
    Some(Heat {
        title: format!("Output tokens per second since {}", outside::name(&pair.baseline)),
        caption: "Shaded where a verdict claims a change, red for worse and gray for better: the \
                  deeper, the larger. Bare: nothing is claimed, and the figure is an estimate."
            .to_owned(),
        rows: rows.into_iter().map(row).collect(),
        heads: scenarios.iter().map(|name| heat_head(name)).collect(),
    })
}

/// Returns the head of a column of a heat table: the scenario, or all that are judged together.
fn heat_head(scenario: &str) -> String {
    outside::name(if scenario == ALL_SCENARIOS { "scenarios together" } else { scenario })
}

fn heat_cell(row: Option<&&Row>) -> HeatCell {
    let Some(row) = row else {
        let (text, title) = ("-".to_owned(), "not compared".to_owned());
        return HeatCell { text, title, class: shade(None), anchor: String::new() };
    };
    let (effect, interval, verdict) = diff::shown(row);
    let claims = matches!(
        row.verdict.verdict,
        VerdictKind::Regressed | VerdictKind::Improved | VerdictKind::Unchanged
    );
    let of = row.verdict.together.as_ref().map(|_| format!("{}, ", row.verdict.scenario()));
    let (of, pairs) = (of.unwrap_or_default(), row.verdict.pairs);
    HeatCell {
        title: format!("{of}{verdict}: {effect}, from {interval}; n = {pairs} pairs"),
        text: effect,
        // An estimate without a claim gets no shade, which would look like a verdict.
        class: shade(row.verdict.effect_pct.filter(|_| claims)),
        anchor: diff::anchor(row),
    }
}
