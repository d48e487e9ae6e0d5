//! View of a single run: its figures, why they may be trusted, and how to reproduce them.

use minijinja::{Value, context};
use schema::metric::{self, Metric};
use schema::run::{Check, Kind, Level, RunRecord, Summary};
use serde_json::Value as Json;

use super::figure::{self, Column, Figure};
use super::model::{note, state};
use super::release::day;
use super::{charts, command, fact, finding, printed};
use crate::catalog::{self, ReleaseKey, Run};
use crate::format::{self, Scale};
use crate::link::{Link, Target};
use crate::outside;

/// Builds the view of the page of one run.
pub fn view(run: &Run) -> Value {
    let record = run.record;
    let runs = [run];
    let cells = catalog::cells(&runs);
    let release = Link::release(&ReleaseKey::of(record));
    let mut groups = fact::environment(&runs);
    groups.insert(0, fact::group("Run", fact::run(&runs)));
    groups.push(fact::group("Model", fact::model(&runs)));
    groups.push(fact::group("Evidence", fact::evidence(&runs)));
    groups.extend(fact::telemetry(&runs));
    let (plain, bibtex) = citation(run);
    let absent = record.absent.iter().take(MAP_MAX);
    let absent = absent.map(|(path, reason)| (outside::name(path), outside::message(reason)));
    context! {
        id => outside::name(&record.id),
        state => state(run),
        note => note(run),
        badges => finding::of_runs(&runs),
        release => release.text,
        hardware => outside::name(&record.hardware.id),
        model => outside::name(&record.model.id),
        config => outside::name(&schema::path::config_name(record)),
        scenario => outside::name(&catalog::scenario(record)),
        release_page => release.target,
        record => Target::Record { path: run.path.to_owned() },
        // Id of the run that replaces this one, if it was retracted.
        replaced_by => run.replaced_by.as_deref().map(outside::name),
        // A published result in the form of its report; none for other runs.
        printed => printed::printed(record).map(|_| printed::table(&runs)),
        metrics => metrics(run),
        latencies => latencies(record),
        chart => cells.first().and_then(charts::latencies),
        groups,
        checks => checks(run),
        // Checks that the record stores and that count no more.
        superseded => superseded(run),
        // Revisions of the rules: that of the record, and the present one.
        checks_rev => [record.checks_rev, judge::CHECKS_REV],
        // Command that measures this run again and compares both; none where no command can.
        reproduce => reproduce(run),
        commands => command::of_model(&record.model.id, &cells, &runs),
        configuration => fact::configuration(&runs),
        // Fields that the record does not know, with the reasons.
        absent => absent.collect::<Value>(),
        record_sha256 => outside::name(&record.record_sha256),
        citation => context! { plain, bibtex },
        published => published(run),
        json => json(record),
    }
}

/// Returns the command that measures a run again; `None` for a run that was published elsewhere or
/// had the server flags of a variant, which `reproduce` refuses, and for a run of a GPU validation,
/// which it cannot measure.
fn reproduce(run: &Run) -> Option<String> {
    let record = run.record;
    let has_variant = record.server.as_ref().is_some_and(|server| server.variant.is_some());
    let is_own = record.kind == Kind::Measured && !has_variant && !run.is_validation;
    is_own.then(|| outside::command(&["cargo", "xtask", "reproduce", &record.id]))
}

/// Builds the view of where an imported record was read from (report, file and line numbers);
/// `None` for other records.
fn published(run: &Run) -> Option<Value> {
    let source = run.record.source.as_ref()?;
    let report = catalog::report_of(run.path);
    Some(context! {
        report =>
            report.map_or(Target::Imports {}, |(source, file)| Target::Report { source, file }),
        file => outside::name(&source.file),
        lines => printed::lines(source),
    })
}

/// Builds the lines of a run's metrics, except statistics of latencies, as its record has them,
/// even where summaries leave the run out.
fn metrics(run: &Run) -> Value {
    let shown = metric::shown(run.record.hardware.has_gpu());
    let plain = shown.filter(|metric| !metric.title.contains(' ') || !is_latency(metric.name));
    let line = |metric: &'static Metric| {
        let value = metric.value(run.record).filter(|value| value.is_finite());
        let scale = Scale::fit(metric.unit, value.unwrap_or(0.0));
        let missing = || {
            let reason = figure::absent(run.record, &figure::path_of(metric));
            Figure::missing(reason.unwrap_or("not recorded"))
        };
        let figure = value.map_or_else(missing, |value| Figure::single(value, scale));
        context! {
            head => Column { metric, scale }.head(),
            figure,
            // Value as it is stored in the record.
            stored => value.map_or_else(|| "null".to_owned(), |value| value.to_string()),
        }
    };
    plain.map(line).collect()
}

fn is_latency(name: &str) -> bool {
    ["ttft_us", "tpot_us", "itl_", "e2e_us"].iter().any(|prefix| name.starts_with(prefix))
}

/// Builds the lines of a run's latencies: mean, standard deviation, p50, p90, p95, p99 and maximum
/// of each.
fn latencies(record: &RunRecord) -> Value {
    let milliseconds =
        |us: u64| Figure::single(format::as_f64(us), Scale { unit: "ms", divisor: 1e3 });
    let line = |(name, summary): (&'static str, Option<&Summary>)| {
        let reason = figure::absent(record, &format!("metrics.{name}")).unwrap_or("not recorded");
        let figure =
            |value: Option<u64>| value.map_or_else(|| Figure::missing(reason), milliseconds);
        let all = summary.map_or([None; 7], |s| [s.mean, s.std, s.p50, s.p90, s.p95, s.p99, s.max]);
        context! { name => latency_title(name), figures => all.map(figure) }
    };
    record.metrics.iter().flat_map(|metrics| metrics.summaries()).map(line).collect()
}

/// Returns the name of a latency on pages for the name of its histogram: `TTFT` for `ttft_us`.
fn latency_title(name: &str) -> &str {
    match name {
        "ttft_us" => "TTFT",
        "tpot_us" => "TPOT",
        "itl_chunk_us" => "ITL per chunk",
        "itl_token_us" => "ITL per token",
        "e2e_us" => "E2E",
        other => other,
    }
}

/// Builds the lines of the findings about the run that count today, kept and broken rules; findings
/// of rules newer than its record are last.
fn checks(run: &Run) -> Value {
    let stored = run.record.checks.iter().filter(|check| judge::counts_today(check));
    let stored = stored.map(|check| (check, false));
    let all = stored.chain(run.later.iter().map(|check| (check, true)));
    all.map(|(check, later)| context! { later, ..check_line(check) }).collect()
}

/// Builds the lines of the findings that the record stores by rules that others took the place of,
/// each with the rule that judges the run instead.
fn superseded(run: &Run) -> Value {
    let stored = run.record.checks.iter().filter(|check| !judge::counts_today(check));
    let line = |check: &Check| {
        let instead = judge::rule(&check.rule).and_then(|rule| rule.successor);
        context! { instead, ..check_line(check) }
    };
    stored.map(line).collect()
}

fn check_line(check: &Check) -> Value {
    let rule = judge::rule(&check.rule);
    context! {
        rule => outside::name(&check.rule),
        // True when the method page describes the rule.
        known => rule.is_some(),
        title => rule.map_or("a rule that this version does not know", |rule| rule.title),
        level => if check.level == Level::Error { "error" } else { "warning" },
        ok => check.ok,
        detail => outside::message(check.detail.as_deref().unwrap_or_default()),
    }
}

/// Largest length of a record's text that a run's page shows, in bytes; a longer one is only in the
/// file.
const TEXT_MAX: usize = 400;
/// Largest number of entries of a list in a record that a run's page shows; a longer list is
/// replaced by its length.
const LIST_MAX: usize = 64;
/// Largest number of keys of a map in a record that a run's page shows; a larger map is replaced by
/// its number of keys.
const MAP_MAX: usize = 120;

/// Formats the record of a run as JSON for reading. Long texts, such as histograms, long lists and
/// large maps are replaced by their size; entries with a long key are left out.
fn json(record: &RunRecord) -> String {
    let mut value = serde_json::to_value(record).unwrap_or(Json::Null);
    shorten(&mut value);
    // Pages must not depend on the order of fields in the program.
    value.sort_all_objects();
    let text = serde_json::to_string_pretty(&value).unwrap_or_default();
    outside::block(&text)
}

fn shorten(value: &mut Json) {
    let size = match value {
        Json::String(text) if text.len() > TEXT_MAX => Some((text.len(), "bytes")),
        Json::Array(list) if list.len() > LIST_MAX => Some((list.len(), "entries")),
        Json::Object(map) if map.len() > MAP_MAX => Some((map.len(), "keys")),
        _ => None,
    };
    match (size, value) {
        (Some((size, what)), value) => *value = format!("({size} {what}, in the file)").into(),
        (None, Json::Array(list)) => list.iter_mut().for_each(shorten),
        (None, Json::Object(map)) => {
            map.values_mut().for_each(shorten);
            map.retain(|key, _| key.len() <= TEXT_MAX);
        }
        (None, _) => {}
    }
}

/// Returns two citations of a run, one for running text and one for a bibliography (BibTeX). They
/// cite its id and the hash of its record, which stay the same wherever the record is kept.
fn citation(run: &Run) -> (String, String) {
    let record = run.record;
    let id = outside::name(&record.id);
    let title = outside::message(&format!(
        "{} {} serving {} on {}, {}",
        record.engine.name,
        record.engine.release,
        record.model.id,
        record.hardware.id,
        catalog::scenario(record)
    ));
    let started = record.time.as_ref().and_then(|time| time.started_at.as_deref());
    let day = started.map(day);
    let when = day.clone().map(|day| format!(", {day}")).unwrap_or_default();
    let kind = match record.kind.name() {
        "imported" => "published by others, unverified",
        kind => kind,
    };
    let sha256 = outside::name(&record.record_sha256);
    let plain =
        format!("Redline results, run {id}: {title}{when}; {kind}. Record SHA-256 {sha256}.");
    let year: String = day.unwrap_or_default().chars().take(4).collect();
    let bibtex = format!(
        "@misc{{redline-{},\n  title = {{{}}},\n  howpublished = {{Redline results, run {}}},\n  year = {{{}}},\n  note = {{{kind}; record SHA-256 {}}}\n}}",
        key(&id),
        bibtex(&title),
        bibtex(&id),
        bibtex(&year),
        bibtex(&sha256)
    );
    (plain, bibtex)
}

/// Converts `id` to a BibTeX key: letters, digits and hyphens.
fn key(id: &str) -> String {
    id.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect()
}

/// Escapes `text` for a BibTeX field in braces.
fn bibtex(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '{' | '}' | '\\' => out.push(' '),
            '%' | '&' | '$' | '#' | '_' => out.extend(['\\', c]),
            '~' => out.push_str("\\textasciitilde "),
            '^' => out.push_str("\\textasciicircum "),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_of_bibtex_cannot_be_left() {
        assert_eq!(bibtex(r"a_b} , evil = {x\y"), r"a\_b  , evil =  x y");
        assert_eq!(bibtex("50 % ~"), r"50 \% \textasciitilde ");
        assert_eq!(key("ee356a43-001"), "ee356a43-001");
        assert_eq!(key("a,b={"), "a-b--");
    }
}
