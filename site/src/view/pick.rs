//! View of picks: for a model, a hardware and a number of users, the configuration with the highest
//! throughput within the limits, its lead, the evidence, and the command that starts its server.
//! `judge` ranks; this module formats.

use std::collections::BTreeMap;

use judge::best::Limit;
use judge::coverage::levels_without_figures;
use judge::diff::words::plural;
use judge::pick::{self, Lead, Limits, Missed, Pick, Tested, Users};
use judge::rule::on_cpu;
use judge::side_by_side::{Paired, Ratio};
use judge::summary::Summary;
use judge::validity;
use minijinja::{Value, context};
use schema::metric::Unit;
use schema::run::RunRecord;
use schema::target::Accelerator;

use super::command::{self, Serve};
use super::figure::{self, Figure};
use super::release::day;
use super::{finding, hardware, side_by_side};
use crate::catalog::{self, Catalog, ReleaseKey};
use crate::format::{self, Scale};
use crate::judged::Judged;
use crate::link::{self, Link, Target};
use crate::outside;
use crate::questions;

/// Id of a model or a hardware that a published report does not name.
const UNKNOWN: &str = "unknown";

/// Largest number of picks in a table; the pages of each model and hardware have all of theirs.
const LINES_MAX: usize = 120;

/// Builds the table of picks of a model, of a hardware, or of all (`None`), measured ones and
/// published ones apart, with the limits that they must meet, and what has figures and no pick.
pub fn table(catalog: &Catalog, judged: &Judged, of: (Option<&str>, Option<&str>)) -> Value {
    let picks: Vec<&Pick> = judged.picks_of(of.0, of.1).collect();
    let unranked = unranked(catalog, judged, of);
    let devices = devices(&picks);
    let gaps = gaps(&picks);
    let (published, measured): (Vec<&Pick>, Vec<&Pick>) =
        picks.into_iter().partition(|pick| pick.subject.is_published);
    let group = |picks: &[&Pick], title: &str| {
        context! {
            title,
            rows => picks.iter().take(LINES_MAX).map(|pick| line(pick)).collect::<Value>(),
            more => picks.len().saturating_sub(LINES_MAX),
        }
    };
    let groups =
        [(measured, "Measured here"), (published, "Published elsewhere, not verified")].into_iter();
    let groups = groups.filter(|(picks, _)| !picks.is_empty());
    context! {
        limits => limits(),
        // Hardware of the picks with its readable name, where that is known.
        devices,
        // Models and hardware that lack figures for some numbers of users.
        gaps,
        groups => groups.map(|(picks, title)| group(&picks, title)).collect::<Value>(),
        // Smallest reach of a figure's range to each side, by which two figures tie.
        reach => format!("{} %", figure::output().floor_pct / 2.0),
        // Models on hardware that have figures and no pick, with the reason.
        unranked,
    }
}

/// Builds a line for each model on a hardware that has figures of throughput and no pick, with the
/// reason.
fn unranked(
    catalog: &Catalog,
    judged: &Judged,
    (model, hardware): (Option<&str>, Option<&str>),
) -> Vec<Value> {
    let is = |wanted: Option<&str>, own: &str| wanted.is_none_or(|wanted| wanted == own);
    let places = catalog.places().into_iter().filter(|(own_model, own_hardware)| {
        let is_named = ![*own_model, *own_hardware].contains(&UNKNOWN);
        is(model, own_model) && is(hardware, own_hardware) && is_named
    });
    let line = |(model, hardware): (&str, &str)| {
        if judged.picks_of(Some(model), Some(hardware)).next().is_some() {
            return None;
        }
        let runs = catalog.runs_where(|run| run.model.id == model && run.hardware.id == hardware);
        let standing = runs.iter().filter(|run| run.retracted.is_none()).map(|run| run.record);
        let why = why_unranked(&standing.collect::<Vec<_>>())?;
        let page = if side_by_side::has_several(catalog, (model, hardware)) {
            let (model, hardware) = (model.to_owned(), hardware.to_owned());
            Target::SideBySide { model, hardware }
        } else {
            Target::Hardware { hardware: hardware.to_owned() }
        };
        let name = outside::name(&format!("{model} on {hardware}"));
        Some(context! { name, page, why })
    };
    places.filter_map(line).collect()
}

/// Returns the reason for which runs with figures of throughput have no pick; `None` where none has
/// such a figure.
fn why_unranked(runs: &[&RunRecord]) -> Option<String> {
    let output = figure::output();
    let figures = runs.iter().copied().filter(|run| output.value(run).is_some());
    let figures: Vec<&RunRecord> = figures.collect();
    let sound = figures.iter().filter(|run| validity::value(output, run).is_some()).count();
    let (all, unsound) = (figures.len(), figures.len() - sound);
    let others = if sound > 0 { ", and the others have no number of users" } else { "" };
    (all > 0).then(|| match unsound {
        0 => "its scenarios have no number of users".to_owned(),
        _ => format!("the throughput of {unsound} of {all} results is INVALID{others}"),
    })
}

/// Builds a line for each model and hardware of `picks` that lacks figures for numbers of users of the
/// concurrency sweep, with the command that measures them.
fn gaps(picks: &[&Pick]) -> Vec<Value> {
    let place = |pick: &Pick| (pick.subject.model.clone(), pick.subject.hardware.clone());
    picks.chunk_by(|a, b| place(a) == place(b)).filter_map(gap).collect()
}

/// Builds the line of a model and hardware, whose picks are `picks`; `None` where no number of users
/// is missing, or the suite cannot measure the model there.
fn gap(picks: &[&Pick]) -> Option<Value> {
    let foremost = pick::foremost(picks.iter().copied())?;
    let (subject, first) = (&foremost.subject, &foremost.first);
    let is_cpu = first.setup.runs.iter().any(|run| on_cpu(run));
    let id = if is_cpu { questions::CPU } else { subject.hardware.as_str() };
    let target = questions::target(id)?;
    let engine = &first.setup.cell.engine;
    questions::engine(engine)?;
    let missing = levels_without_figures(&target.gate_scenarios, picks);
    if missing.is_empty() || !target.models.iter().any(|model| model.id == subject.model) {
        return None;
    }
    let mut words = vec!["--model", subject.model.as_str()];
    if target.accelerator == Accelerator::Rocm {
        words.extend(["--container", "docker"]);
    }
    words.extend(missing.iter().flat_map(|(_, scenario)| ["--scenario", *scenario]));
    let users: Vec<String> = missing.iter().map(|(users, _)| users.to_string()).collect();
    let users: Vec<&str> = users.iter().map(String::as_str).collect();
    let key = ReleaseKey {
        engine: engine.clone(),
        release: first.setup.release.clone(),
        hardware: id.to_owned(),
    };
    Some(context! {
        model => outside::name(&subject.model),
        hardware => outside::name(&subject.hardware),
        users => listed(&users),
        command => command::release_bench(&key, &words),
    })
}

/// Returns the lines that name the hardware of `picks`, by its id.
fn devices(picks: &[&Pick]) -> Vec<Value> {
    let named = picks.iter().map(|pick| (outside::name(&pick.subject.hardware), device(pick)));
    let named: BTreeMap<String, String> = named.filter(|(_, device)| !device.is_empty()).collect();
    named.into_iter().map(|(hardware, device)| context! { hardware, device }).collect()
}

/// Returns the readable name of the hardware of a pick; empty where it is not known.
fn device(pick: &Pick) -> String {
    let runs = &pick.first.setup.runs;
    let name = runs.iter().find_map(|run| hardware::name(&run.hardware));
    name.map(|name| outside::name(&name)).unwrap_or_default()
}

/// Builds the first answer of the overview: the pick that stands for all; `None` without picks.
pub fn foremost(judged: &Judged) -> Option<Value> {
    pick::foremost(judged.picks.iter()).map(line)
}

/// Builds the view of the page of one model on one hardware: a section for each pick.
pub fn view(judged: &Judged, model: &str, hardware: &str) -> Value {
    let picks = judged.picks_of(Some(model), Some(hardware));
    let (published, measured): (Vec<&Pick>, Vec<&Pick>) =
        picks.partition(|pick| pick.subject.is_published);
    context! {
        model => Link::model(model),
        hardware => Link::hardware(hardware),
        // Readable name of the hardware; empty where it is not known.
        device => measured.iter().chain(&published).map(|pick| device(pick)).next(),
        limits => limits(),
        gaps => gaps(&judged.picks_of(Some(model), Some(hardware)).collect::<Vec<_>>()),
        measured => measured.into_iter().map(line).collect::<Value>(),
        published => published.into_iter().map(line).collect::<Value>(),
    }
}

/// Returns the title of the page of one model on one hardware, with the engines that have figures:
/// `qwen3-8b on a100-80g: lmdeploy, sglang and vllm`.
pub fn title(judged: &Judged, model: &str, hardware: &str) -> String {
    let tested = judged.picks_of(Some(model), Some(hardware)).flat_map(|pick| {
        let missed = pick.missed.iter().map(|missed| &missed.tested);
        [&pick.first].into_iter().chain(&pick.next).chain(&pick.ties).chain(missed)
    });
    let mut engines: Vec<&str> = tested.map(|of| of.setup.cell.engine.as_str()).collect();
    engines.sort_unstable();
    engines.dedup();
    format!("{model} on {hardware}: {}", listed(&engines))
}

fn listed(names: &[&str]) -> String {
    match names {
        [] => "no figures".to_owned(),
        [one] => (*one).to_owned(),
        [most @ .., last] => format!("{} and {last}", most.join(", ")),
    }
}

/// Formats the limits that a pick must meet: `TTFT p50 up to 1 s and TPOT p50 up to 50 ms`.
pub fn limits() -> String {
    let shown = |limit: &Limit| format!("{} up to {}", limit.metric.title, limit_value(limit));
    pick::limits().iter().map(shown).collect::<Vec<_>>().join(" and ")
}

fn limit_value(limit: &Limit) -> String {
    let scale = Scale::fit(limit.metric.unit, limit.value);
    format!("{} {}", format::exactly(limit.value / scale.divisor), scale.unit)
}

/// Formats a number of users.
pub fn users(users: Users) -> String {
    match users {
        Users::Closed(count) => plural(usize::try_from(count).unwrap_or(usize::MAX), "user"),
        Users::Burst => "offline batch".to_owned(),
    }
}

/// Builds the line of one pick, for tables, for the overview's first answer, and for the page of its
/// model and hardware.
fn line(pick: &Pick) -> Value {
    let Pick { subject, first, .. } = pick;
    let serve = serve(first);
    let run = first.setup.runs.first();
    let (model, hardware) = (subject.model.clone(), subject.hardware.clone());
    let text = if subject.is_text { ", text prompts" } else { "" };
    let users = load_of(pick);
    let load = format!("{users}, {}{text}", subject.scenario);
    let origin = if subject.is_published { "published-" } else { "" };
    context! {
        model => outside::name(&model),
        hardware => outside::name(&hardware),
        device => device(pick),
        page => Target::Pick { model, hardware },
        anchor => link::anchor(&format!("{origin}{load}")),
        load => outside::name(&load),
        users,
        scenario => Link::scenario(&subject.scenario),
        // Prompts as text make other figures than token ids: a subject of its own.
        text,
        claimed => subject.is_published,
        engine => engine(first),
        config => config(first),
        figure => Figure::median(&first.throughput, Scale::PER_SECOND),
        ttft => time(first.ttft.as_ref()),
        tpot => time(first.tpot.as_ref()),
        lead => lead(pick),
        limits => limits_words(pick.limits),
        // False where the words about limits are a reservation.
        is_met => matches!(pick.limits, Limits::Met | Limits::None),
        price => price(pick),
        ties => pick.ties.iter().map(rival).collect::<Value>(),
        next => pick.next.as_ref().map(rival),
        missed => pick.missed.iter().map(missed).collect::<Value>(),
        evidence => evidence(pick),
        // Command that started the server, and notes on it; empty where no run recorded it.
        command => serve.line,
        notes => serve.notes.iter().map(|note| outside::message(note)).collect::<Vec<_>>().join(" "),
        // Command that builds and serves the release from a clone; none for other engines.
        from_clone => run.and_then(|run| command::from_clone(run)),
    }
}

/// Formats the load of a pick: its number of users, or the number of requests of a batch.
fn load_of(pick: &Pick) -> String {
    let requests = pick.first.setup.runs.first().and_then(|run| run.scenario.requests);
    match (pick.subject.users, requests) {
        (Users::Burst, Some(requests)) => {
            format!("offline batch of {} requests", format::whole(requests))
        }
        (of, _) => users(of),
    }
}

/// Formats what the first configuration takes besides time, and how much of a choice it is: peak
/// memory, and whether other flags were tested.
fn price(pick: &Pick) -> String {
    let engine = outside::name(&pick.first.setup.cell.engine);
    let tested = match pick.configurations {
        1 => format!("The only configuration of {engine} that was tested at this load."),
        count => format!("The fastest of {count} configurations of {engine} that were tested."),
    };
    let memory = pick.first.memory.iter().map(|(metric, memory)| {
        let scale = Scale::fit(Unit::Bytes, memory.median);
        format!("{} {} {}. ", metric.title, Figure::median(memory, scale).text, scale.unit)
    });
    memory.collect::<Vec<String>>().concat() + &tested
}

/// Builds the line of a configuration that ties with the first, or follows it.
fn rival(tested: &Tested) -> Value {
    let serve = serve(tested);
    context! {
        engine => engine(tested),
        config => config(tested),
        figure => Figure::median(&tested.throughput, Scale::PER_SECOND),
        ttft => time(tested.ttft.as_ref()),
        tpot => time(tested.tpot.as_ref()),
        // Limits that it misses, in words; empty here.
        misses => "",
        marks => marks(tested),
        command => serve.line,
        notes => serve.notes.iter().map(|note| outside::message(note)).collect::<Vec<_>>().join(" "),
    }
}

/// Builds the line of a configuration that misses limits, with the limits that it misses.
fn missed(missed: &Missed) -> Value {
    context! { misses => misses(missed), ..rival(&missed.tested) }
}

/// Formats the limits that a configuration misses: `TTFT p50 (7,840 ms, limit 1,000 ms)`.
fn misses(missed: &Missed) -> String {
    let one = |(limit, median): &(Limit, Option<f64>)| {
        let value = median.map_or_else(|| "not reported".to_owned(), time_of);
        format!("{} ({value}, limit {})", limit.metric.title, limit_value(limit))
    };
    missed.limits.iter().map(one).collect::<Vec<_>>().join(" and ")
}

/// Formats a time in microseconds with its unit, to three digits.
fn time_of(us: f64) -> String {
    let scale = Scale::fit(Unit::Microseconds, us);
    format!("{} {}", format::rounded(us / scale.divisor, None), scale.unit)
}

fn engine(tested: &Tested) -> Link {
    let cell = &tested.setup.cell;
    Link::release(&ReleaseKey::new(&cell.engine, &tested.setup.release, &cell.hardware))
}

fn name(tested: &Tested) -> String {
    outside::name(&format!("{} {}", tested.setup.cell.engine, tested.setup.release))
}

/// Returns the configuration of a tested setup; that of a published result is its flags.
fn config(tested: &Tested) -> String {
    tested.setup.runs.first().map(|run| outside::message(&catalog::config(run))).unwrap_or_default()
}

fn serve(tested: &Tested) -> Serve {
    let mut runs = tested.setup.runs.iter().rev();
    runs.find_map(|run| command::serve(run)).unwrap_or_default()
}

/// Formats the median of a time with its unit; `not reported` where there is none.
fn time(summary: Option<&Summary>) -> String {
    let Some(summary) = summary else { return "not reported".to_owned() };
    let scale = Scale::fit(Unit::Microseconds, summary.median);
    format!("{} {}", Figure::median(summary, scale).text, scale.unit)
}

/// Formats the lead over other engines in words. With one engine there is no ranking, and the words
/// say so.
fn lead(pick: &Pick) -> String {
    match pick.lead() {
        Lead::Only if pick.subject.is_published => {
            "the only engine published at this load".to_owned()
        }
        Lead::Only => "the only engine measured at this load".to_owned(),
        Lead::Alone { other } => format!(
            "the only engine within the limits: {}, {}, misses {}",
            name(&other.tested),
            figure(&other.tested),
            misses(other)
        ),
        Lead::Tie => {
            let tied: Vec<String> = pick.ties.iter().map(name).collect();
            format!("tie with {}", catalog::distinct(tied).join(", "))
        }
        // Results of different reports, or of one run each, have no ratio that could be repeated.
        Lead::Ahead { next, .. } if pick.subject.is_published => {
            format!("ahead of {} with {}", name(next), figure(next))
        }
        Lead::Ahead { times, next, .. } => match &pick.paired {
            Some(Paired { ratio, .. }) => in_turns(ratio, &name(next)),
            None => {
                let times = format::rounded(times, None);
                format!("{times} times {}, in runs that did not alternate: a hint", name(next))
            }
        },
    }
}

fn figure(tested: &Tested) -> String {
    Figure::median(&tested.throughput, Scale::PER_SECOND).shown()
}

/// Formats a ratio of interleaved runs with its interval and the number of pairs.
fn in_turns(ratio: &Ratio, name: &str) -> String {
    let shown = |value: f64| format::rounded(value, None);
    let pairs = plural(usize::try_from(ratio.pairs).unwrap_or(usize::MAX), "pair");
    let interval = ratio.interval.map_or_else(String::new, |(low, high)| {
        format!(" (95 %: {} to {})", shown(low), shown(high))
    });
    format!("{} times {name} in {pairs} of whole runs that alternated{interval}", shown(ratio.mean))
}

fn limits_words(limits: Limits) -> &'static str {
    match limits {
        Limits::Met => "within the limits",
        Limits::NotMet => "no tested setup meets the limits at this load",
        Limits::None => "no limits apply to a batch",
        Limits::Unknown => "the reports have no sound TTFT and TPOT to compare with the limits",
    }
}

/// Formats the findings about the runs of a configuration, as the page of its release marks them;
/// empty where there are none.
pub fn marks(tested: &Tested) -> String {
    let found = finding::of_records(&tested.setup.runs);
    found.iter().map(|mark| mark.text.as_str()).collect::<Vec<_>>().join(", ")
}

/// Formats the evidence for a pick: origin, number of runs, day, number of engines, and findings.
fn evidence(pick: &Pick) -> String {
    let origin = match pick.subject.is_published {
        true => "published elsewhere, not verified".to_owned(),
        false => "measured".to_owned(),
    };
    let runs = match pick.first.throughput.n {
        1 => "one run".to_owned(),
        n => format!("median of {n} runs"),
    };
    let mut parts = vec![origin, runs];
    parts.push(match pick.first.setup.measured_at() {
        Some(at) => day(&at),
        None => "date not stated".to_owned(),
    });
    if pick.engines > 1 {
        parts.push(format!("of {}", plural(pick.engines, "engine")));
    }
    let marks = marks(&pick.first);
    let marks = if marks.is_empty() { marks } else { format!("; {marks}") };
    parts.join(", ") + &marks
}
