//! `list`, `best`, `export` and `rules`: questions that change nothing.

use std::path::Path;

use registry::Registry;
use registry::best::{self, Limit, Question};
use registry::export;
use registry::list::{self, Filter};
use registry::repository::RESULTS;
use registry::rules::{self as listed_rules};
use registry::survey::{Survey, Trust};
use schema::exit::Exit;

use super::World;
use crate::cli::{BestArguments, ExportArguments, Format, ListArguments};

impl From<&ListArguments> for Filter {
    fn from(given: &ListArguments) -> Self {
        Self {
            engine: given.engine.clone(),
            release: given.release.clone(),
            hardware: given.hardware.clone(),
            model: given.model.clone(),
            scenario: given.scenario.clone(),
            status: given.status.clone(),
            validity: given.validity.clone(),
        }
    }
}

pub fn list(world: &World, given: &ListArguments) -> anyhow::Result<Exit> {
    let results = given.registry.join(RESULTS);
    let place = world.place(&given.registry);
    let mut surveys = vec![Survey::of(&results, Some(&place), Trust::Stamps)?];
    if let Some(overlay) = &given.overlay {
        surveys.push(Survey::of(overlay, None, Trust::Stamps)?);
    }
    for survey in &surveys {
        let unreadable = survey.files.iter().filter(|file| file.facts.is_none());
        let unreadable = unreadable.flat_map(|file| &file.findings);
        for finding in survey.findings.iter().chain(unreadable) {
            eprintln!("{finding}");
        }
    }
    let roots: Vec<&Path> =
        std::iter::once(results.as_path()).chain(given.overlay.as_deref()).collect();
    let events = Registry::load_where(&roots, |path| path.starts_with("events/"))?.events;
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
    let results = given.registry.join(RESULTS);
    // A path tells hardware and model; the record is asked again.
    let wanted = |path: &str| {
        let parts: Vec<&str> = path.split('/').collect();
        parts[0] == "events"
            || (parts.get(3) == Some(&given.hardware.as_str())
                && parts.get(4) == Some(&given.model.as_str()))
    };
    let loaded = Registry::load_where(&[&results], wanted)?;
    for finding in &loaded.findings {
        eprintln!("{finding}");
    }
    let answer = best::best(&loaded, &question)?;
    let text = match given.format {
        Format::Json => crate::json(&answer)?,
        _ => best::table(&answer),
    };
    crate::print(&text)?;
    Ok(Exit::Well)
}

pub fn export(given: &ExportArguments) -> anyhow::Result<Exit> {
    let loaded = crate::load(&given.registry, given.overlay.as_deref())?;
    crate::print(export::csv(&loaded).trim_end())?;
    Ok(Exit::Well)
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
