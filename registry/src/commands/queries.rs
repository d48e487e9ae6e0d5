//! Commands that only read the registry: `check`, `list`, `show`, `best`, `export`, `rules`, `diff`,
//! `trend` and `lab`.

use std::path::{Path, PathBuf};

use anyhow::Context;
use judge::best::{self, Limit, Question};
use judge::diff::{self, policy};
use judge::facts::run_facts;
use judge::lab::{self as labs, Next};
use judge::{Registry, listing, trend};
use registry::history::commits_between;
use registry::list::{self as lists, Filter};
use registry::repository::RESULTS;
use registry::survey::{Survey, Trust};
use schema::canonical::{sha256_hex, to_file_text};
use schema::exit::Exit;
use schema::run::RunRecord;
use schema::untrusted;
use serde::Serialize;
use store::layout::RunParts;
use store::{export as exports, foreign};
use whole_file::TEXT_MAX;

use super::{World, print, print_findings, print_json, reported};
use crate::cli::{
    BestArguments, DiffArguments, DiffFormat, ExportArguments, Format, LabArguments, ListArguments,
    Sources, TrendArguments, TrendFormat,
};

pub fn check(world: &World, registry: &Path, format: Format) -> anyhow::Result<Exit> {
    let report = registry::check::check(registry, Some(&world.place(registry)), world.unix_ms)?;
    answer(format, &report, || report.to_string())?;
    Ok(report.exit())
}

pub fn list(world: &World, given: &ListArguments) -> anyhow::Result<Exit> {
    let filter = Filter {
        parts: (&given.cells).into(),
        release: given.release.clone(),
        status: given.status.clone(),
        validity: given.validity.clone(),
        ..Filter::default()
    };
    let place = world.place(&given.sources.place.registry);
    let roots = given.sources.roots();
    // Only the registry has an index, and its folder is the first.
    let places = std::iter::once(Some(&place)).chain(std::iter::repeat(None));
    let surveys = roots.iter().zip(places).map(|(root, at)| Survey::of(root, at, Trust::Stamps));
    let surveys = surveys.collect::<Result<Vec<_>, _>>()?;
    print_findings(surveys.iter().flat_map(|survey| {
        // Such a file is missing from the table; findings about others are reported by `check`.
        let unreadable = survey.files.iter().filter(|file| file.facts.is_none());
        survey.findings.iter().chain(unreadable.flat_map(|file| &file.findings))
    }));
    // The index does not contain the content of events, which says what is retracted.
    let in_events = |path: &str| first_part(path) == "events";
    let events = store::load_where(&paths(&roots), &in_events)?.events;
    let runs = lists::listed(&surveys, &events, &filter);
    if given.runs {
        return answer(given.format, &runs, || lists::table_of_runs(&runs));
    }
    let rows = lists::rows(&runs);
    answer(given.format, &rows, || lists::table(&rows))
}

pub fn best(given: &BestArguments) -> anyhow::Result<Exit> {
    let question = Question {
        model: given.model.clone(),
        hardware: given.hardware.clone(),
        scenario: given.scenario.clone(),
        metric: best::named(&given.metric)?,
        limits: given.slo.iter().map(|text| Limit::parse(text)).collect::<Result<_, _>>()?,
    };
    let results = given.place.registry.join(RESULTS);
    let (hardware, model) = (Some(given.hardware.clone()), Some(given.model.clone()));
    let parts = RunParts { hardware, model, ..RunParts::default() };
    // Imported results are not ranked, and named where nothing else is there.
    let is_wanted =
        |path: &str| ["events", "imports"].contains(&first_part(path)) || parts.admit(path);
    let loaded = reported(store::load_figures(&[&results], &is_wanted)?);
    let best = best::best(&loaded, &question)?;
    answer(given.format, &best, || best::table(&best))
}

pub fn show(run: &str, sources: &Sources) -> anyhow::Result<Exit> {
    let loaded = reported(lists::load_for_find(&paths(&sources.roots()), run)?);
    let stored = lists::find(&loaded, run)?;
    print(untrusted::json(&to_file_text(&stored.record)?).trim_end())?;
    Ok(Exit::Well)
}

/// Prints or writes the selected runs in the format that the flags name; `submissions` makes bundles.
pub fn export(given: &ExportArguments) -> anyhow::Result<Exit> {
    // Campaigns say which runs are those of labs.
    let in_table = |path: &str| first_part(path) != "kernels";
    let filter = given.filter();
    // The registry is loaded late, so that a build without Parquet refuses before it reads it.
    let load = || {
        let roots = given.sources.roots();
        let mut loaded = reported(store::load_figures(&paths(&roots), &in_table)?);
        loaded
            .runs
            .retain(|run| filter == Filter::default() || filter.covers(&run_facts(&run.record)));
        Ok::<_, store::StoreError>(loaded)
    };
    match &given.parquet {
        Some(file) => export_parquet(load, file)?,
        None if given.csv => print(exports::csv(&load()?).trim_end())?,
        None => {
            let loaded = load()?;
            let runs = loaded.of_releases().map(|stored| &stored.record);
            print_json(&match given.pytorch_hud {
                true => foreign::pytorch_hud(runs),
                false => foreign::inferencex(runs),
            })?;
        }
    }
    Ok(Exit::Well)
}

/// Writes the table of runs to `file` as Apache Parquet, completely or not at all.
#[cfg(feature = "parquet")]
fn export_parquet(
    load: impl Fn() -> Result<Registry, store::StoreError>,
    file: &Path,
) -> anyhow::Result<()> {
    let loaded = load()?;
    let cannot = || format!("cannot write `{}`", file.display());
    let mut whole = whole_file::temporary(file).with_context(cannot)?;
    registry::parquet::parquet(&loaded, &mut whole).with_context(cannot)?;
    whole_file::put(whole, file).with_context(cannot)
}

#[cfg(not(feature = "parquet"))]
fn export_parquet(
    _: impl Fn() -> Result<Registry, store::StoreError>,
    _: &Path,
) -> anyhow::Result<()> {
    anyhow::bail!(
        "this program was built without Parquet\nhint: `cargo build --release -p registry --features parquet`, or `--csv`"
    )
}

pub fn rules(format: Format) -> anyhow::Result<Exit> {
    if format == Format::Md {
        print(listing::reference().trim_end())?;
        return Ok(Exit::Well);
    }
    let rules = listing::rules();
    answer(format, &rules, || listing::table(&rules))
}

pub fn diff(world: &World, given: &DiffArguments) -> anyhow::Result<Exit> {
    let (baseline, candidate) = (&given.baseline, &given.candidate);
    let loaded = load_releases(&given.sources, &[baseline, candidate])?;
    let (engine, hardware) = (given.on.engine.clone(), given.on.hardware.clone());
    let filter = diff::Filter { engine, hardware };
    let mut diff = diff::diff(&loaded, baseline, candidate, &filter)?;
    diff::waivers::apply(&mut diff, &loaded, world.unix_s());
    diff.commits = commits_between(&given.sources.place.registry, &loaded, &diff);
    match given.format {
        DiffFormat::Text => print(diff::report::text(&diff).trim_end())?,
        DiffFormat::Md => print(diff::report::markdown(&diff).trim_end())?,
        DiffFormat::Json => print_json(&diff)?,
        DiffFormat::Junit => print(diff::junit::junit(&diff)?.trim_end())?,
    }
    Ok(diff.exit())
}

/// Loads only the runs of `releases`; loads everything where fewer releases than asked for are
/// found, so that the error can list the releases that exist.
fn load_releases(sources: &Sources, releases: &[&str]) -> anyhow::Result<Registry> {
    let roots = sources.roots();
    let loaded = store::load_releases(&paths(&roots), releases)?;
    if loaded.releases().len() < releases.len() {
        return Ok(reported(store::load(&paths(&roots))?));
    }
    Ok(reported(loaded))
}

pub fn trend(given: &TrendArguments) -> anyhow::Result<Exit> {
    let results = given.place.registry.join(RESULTS);
    let parts = RunParts::from(&given.cells);
    let loaded = reported(store::load_runs(&[&results], &parts)?);
    let RunParts { engine, hardware, model, scenario } = parts;
    let metric = given.metric.clone();
    let filter = trend::Filter { engine, hardware, model, scenario, metric };
    let trends = trend::trends(&loaded, &filter)?;
    match given.format {
        TrendFormat::Text => print(&trend::text::text(&trends))?,
        TrendFormat::Json => print_json(&trends)?,
    }
    Ok(Exit::Well)
}

/// JSON output of the command `lab`: the lab's next round or conclusion, together with its text for
/// people, so that a caller needs only one request.
#[derive(Serialize)]
struct Answer<'a> {
    #[serde(flatten)]
    next: &'a Next,
    text: String,
}

/// Prints the lab's next round or conclusion, computed from the records of its campaign alone; with
/// `outline`, how many runs and rounds the lab may take. A campaign with a record is decided by the
/// file and the limit on runs that it was carried out with.
pub fn lab(given: &LabArguments) -> anyhow::Result<Exit> {
    let file = given.file.display();
    let text = whole_file::read_text(&given.file, "lab", TEXT_MAX)?;
    let lab = schema::lab::parse(&text).with_context(|| format!("`{file}` is no lab"))?;
    let policy::Standard { file: policy, quoted } = policy::standard();
    if given.outline {
        let outline = labs::outline(&lab, &policy, &quoted);
        return answer(given.format, &outline, || labs::text::outlined(&outline));
    }
    let wanted = |path: &str| matches!(first_part(path), "campaigns" | "runs" | "events");
    let loaded = reported(store::load_figures(&paths(&given.sources.roots()), &wanted)?);
    let of_lab = |run: &&RunRecord| {
        run.campaign.as_ref().map(|campaign| &campaign.id) == given.campaign.as_ref()
    };
    let mut campaigns = loaded.campaigns.iter().map(|stored| &stored.record);
    let campaign = campaigns.find(|campaign| Some(&campaign.id) == given.campaign.as_ref());
    let asked = campaign.and_then(|campaign| campaign.lab.as_deref());
    if asked.is_some_and(|asked| asked.sha256 != sha256_hex(text.as_bytes())) {
        eprintln!(
            "note: the campaign carried out another revision of `{file}`, which is used here"
        );
    }
    let lab = asked.map_or(lab, |asked| asked.file.clone());
    let recorded = asked.map(|asked| asked.runs_max);
    let runs_max = given.runs_max.or(recorded).or(lab.budget.runs).unwrap_or(u32::MAX);
    labs::check_budget(&lab, &policy, runs_max)?;
    let runs = loaded.standing().map(|run| &run.record).filter(of_lab);
    let next = labs::replay(&lab, &policy, runs_max, runs).next;
    let text = labs::text::text(&lab, &next);
    answer(given.format, &Answer { next: &next, text: text.clone() }, || text)
}

/// Prints the result of a command: as JSON if `format` asks for it, else as text.
pub(super) fn answer(
    format: Format,
    result: &impl Serialize,
    text: impl FnOnce() -> String,
) -> anyhow::Result<Exit> {
    match format {
        Format::Json => print_json(result)?,
        _ => print(&text())?,
    }
    Ok(Exit::Well)
}

pub(super) fn paths(roots: &[PathBuf]) -> Vec<&Path> {
    roots.iter().map(PathBuf::as_path).collect()
}

fn first_part(path: &str) -> &str {
    path.split('/').next().unwrap_or_default()
}
