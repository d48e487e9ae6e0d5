//! Commands `list`, `show`, `best`, `export` and `rules`, which change nothing.

use std::path::{Path, PathBuf};

use judge::Registry;
use judge::best::{self, Limit, Question};
use judge::listing::{self as listed_rules};
use registry::list::{self, Filter};
use registry::repository::RESULTS;
use registry::survey::{Survey, Trust};
use schema::canonical::to_file_text;
use schema::exit::Exit;
use store::export;
use store::layout::RunParts;
#[cfg(feature = "parquet")]
use {anyhow::Context, tempfile::NamedTempFile};

use super::World;
use crate::cli::{BestArguments, ExportArguments, Format, ListArguments, Sources};

impl From<&ListArguments> for Filter {
    fn from(given: &ListArguments) -> Self {
        Self {
            engine: given.cells.on.engine.clone(),
            release: given.release.clone(),
            hardware: given.cells.on.hardware.clone(),
            model: given.cells.model.clone(),
            scenario: given.cells.scenario.clone(),
            status: given.status.clone(),
            validity: given.validity.clone(),
        }
    }
}

pub fn list(world: &World, given: &ListArguments) -> anyhow::Result<Exit> {
    let place = world.place(&given.sources.place.registry);
    let roots = given.sources.roots();
    // Only the registry has an index, and its folder is the first.
    let places = std::iter::once(Some(&place)).chain(std::iter::repeat(None));
    let surveys = roots.iter().zip(places).map(|(root, at)| Survey::of(root, at, Trust::Stamps));
    let surveys = surveys.collect::<Result<Vec<_>, _>>()?;
    for survey in &surveys {
        let unreadable = survey.files.iter().filter(|file| file.facts.is_none());
        let unreadable = unreadable.flat_map(|file| &file.findings);
        for finding in survey.findings.iter().chain(unreadable) {
            eprintln!("{finding}");
        }
    }
    let roots: Vec<&Path> = roots.iter().map(PathBuf::as_path).collect();
    let in_events = |path: &str| first_part(path) == "events";
    let events = store::load_where(&roots, &in_events)?.events;
    let runs = list::listed(&surveys, &events, &given.into());
    let text = match (given.format, given.runs) {
        (Format::Json, true) => crate::json(&runs)?,
        (Format::Json, false) => crate::json(&list::rows(&runs))?,
        (_, true) => list::table_of_runs(&runs),
        (_, false) => list::table(&list::rows(&runs)),
    };
    crate::print(&text)?;
    Ok(Exit::Well)
}

pub fn best(given: &BestArguments) -> anyhow::Result<Exit> {
    let question = Question {
        model: given.model.clone(),
        hardware: given.hardware.clone(),
        scenario: given.scenario.clone(),
        metric: best::named(&given.metric)?,
        limits: given.slo.iter().map(|text| Limit::parse(text)).collect::<Result<_, _>>()?,
        published: false,
    };
    let results = given.place.registry.join(RESULTS);
    let parts = RunParts {
        hardware: Some(given.hardware.clone()),
        model: Some(given.model.clone()),
        ..RunParts::default()
    };
    let loaded = crate::said(store::load_runs(&[&results], &parts)?);
    let answer = best::best(&loaded, &question)?;
    let text = match given.format {
        Format::Json => crate::json(&answer)?,
        _ => best::table(&answer),
    };
    crate::print(&text)?;
    Ok(Exit::Well)
}

pub fn show(run: &str, sources: &Sources) -> anyhow::Result<Exit> {
    let roots = sources.roots();
    let roots: Vec<&Path> = roots.iter().map(PathBuf::as_path).collect();
    let loaded = crate::said(list::load_for_find(&roots, run)?);
    let stored = list::find(&loaded, run)?;
    crate::print(to_file_text(&stored.record)?.trim_end())?;
    Ok(Exit::Well)
}

pub fn export(given: &ExportArguments) -> anyhow::Result<Exit> {
    match &given.parquet {
        Some(file) => export_parquet(given, file)?,
        None => crate::print(export::csv(&figures(&given.sources)?).trim_end())?,
    }
    Ok(Exit::Well)
}

/// Loads every run without the parts that tables do not show.
fn figures(sources: &Sources) -> anyhow::Result<Registry> {
    let roots = sources.roots();
    let roots: Vec<&Path> = roots.iter().map(PathBuf::as_path).collect();
    let in_table = |path: &str| !["kernels", "campaigns"].contains(&first_part(path));
    Ok(crate::said(store::load_figures(&roots, &in_table)?))
}

fn first_part(path: &str) -> &str {
    path.split('/').next().unwrap_or_default()
}

/// Writes the table under a temporary name and renames it, so that a file of that name is
/// complete.
#[cfg(feature = "parquet")]
fn export_parquet(given: &ExportArguments, file: &Path) -> anyhow::Result<()> {
    let loaded = figures(&given.sources)?;
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    let cannot = || format!("cannot write `{}`", file.display());
    // In the same folder, because a rename works within one file system only.
    let mut aside = NamedTempFile::new_in(folder.unwrap_or(Path::new("."))).with_context(cannot)?;
    registry::parquet::parquet(&loaded, &mut aside).with_context(cannot)?;
    aside.persist(file).map_err(|error| error.error).with_context(cannot)?;
    Ok(())
}

#[cfg(not(feature = "parquet"))]
fn export_parquet(_: &ExportArguments, _: &Path) -> anyhow::Result<()> {
    anyhow::bail!(
        "this program was built without Parquet\nhint: `cargo build --release -p registry --features parquet`, or `--csv`"
    )
}

pub fn rules(format: Format) -> anyhow::Result<Exit> {
    let rules = listed_rules::rules();
    let text = match format {
        Format::Json => crate::json(&rules)?,
        _ => listed_rules::table(&rules),
    };
    crate::print(&text)?;
    Ok(Exit::Well)
}
