//! The command `reproduce` for results that others published: measures the cells of an imported page
//! here, and prints the page's rows with its figures, ours and the difference.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use judge::quantile::median;
use judge::records;
use judge::summary::difference_pct;
use schema::exit::Exit;
use schema::run::{Kind, PrintedRow, RunRecord};
use schema::scenario::id_of;

use super::cells::{PublishedCell, Suite, title};
use super::uncommitted;
use crate::campaign::measure;
use crate::cli::{ReleaseBench, Reproduce};
use crate::executor::job;
use crate::files::files_below;
use crate::plan::decide::decide;
use crate::publish::Registry;
use crate::stop::{Stop, wrong_use};
use crate::world::World;

/// Name of the variant that has the flags of a published server.
const VARIANT: &str = "published";

/// Measures the results at `path`, the file of an imported record or a folder of them, and prints both
/// figures of each row. Results of one engine, release and hardware whose servers had the same flags are
/// measured in one campaign. Exit code 1 where a run failed here.
///
/// # Errors
/// `path` has other records, or retracted ones, none of the results can be measured by the suite, or a
/// campaign fails.
pub fn run(world: &World, flags: &Reproduce, path: &Path) -> Result<Exit, Stop> {
    let records = records_at(path)?;
    refuse_retracted(world, flags, path, &records)?;
    let suite = suite(world)?;
    let mut cells = Vec::new();
    for record in &records {
        match suite.cell(record) {
            Ok(cell) => cells.push(cell),
            Err(why) => world.console.note(&format!("{} is not measured: {why}", title(record))),
        }
    }
    for cell in &cells {
        for note in notes(cell) {
            world.console.note(&note);
        }
    }
    let campaigns = by_server(&cells);
    if campaigns.is_empty() {
        return Err(wrong_use!("the suite can measure none of these results"));
    }
    let mut ended = Exit::Well;
    for (number, (server, cells)) in (0..).zip(&campaigns) {
        // Ids of campaigns that begin in the same millisecond differ by their random bits alone.
        let random = world.random.wrapping_add(number << 40);
        let world = World { random, ..world.clone() };
        let found = measured(&world, &campaign_of(flags, *server, cells), cells)?;
        ended = if found == Exit::Well { ended } else { found };
    }
    Ok(ended)
}

/// Measures cells in the campaign `bench`, and prints the rows of their results; a dry run prints the
/// plan.
fn measured(
    world: &World,
    bench: &ReleaseBench,
    cells: &[&PublishedCell<'_>],
) -> Result<Exit, Stop> {
    let decided = decide(world, bench)?;
    let campaign = decided.plan.campaign.clone();
    let replaced: BTreeMap<String, String> = decided
        .brief
        .cells
        .iter()
        .filter_map(|cell| Some((id_of(&cell.scenario).to_owned(), cell.newer.clone()?.1)))
        .collect();
    let Some(ended) = measure(world, bench, decided)? else { return Ok(Exit::Well) };
    let own = job::records(&world.places.campaign(&campaign).staged())?;
    for cell in cells {
        let missing = replaced.get(&cell.scenario).map(String::as_str);
        world.console.answer(&format!("\n{}", table(cell, &own, missing)))?;
    }
    Ok(ended)
}

/// Reads the suite's files in which cells are looked for.
fn suite(world: &World) -> Result<Suite, Stop> {
    let catalog = &world.catalog;
    let mut suite =
        Suite { engines: BTreeMap::new(), targets: catalog.targets()?, scenarios: BTreeMap::new() };
    for id in catalog.ids("engine")? {
        let file = catalog.engine(&id)?.file;
        suite.engines.insert(id, file);
    }
    // An older revision is measured where the newest one's dataset is not at hand.
    for id in catalog.ids("scenario")?.into_iter().filter(|stem| id_of(stem) == stem.as_str()) {
        let scenario = catalog.scenario(&id)?.scenario;
        suite.scenarios.insert(id, scenario);
    }
    Ok(suite)
}

/// Reads the imported records at `path`.
fn records_at(path: &Path) -> Result<Vec<RunRecord>, Stop> {
    let files = if path.is_dir() { files_below(path) } else { vec![path.to_owned()] };
    let mut records = Vec::new();
    for file in files {
        let record = job::read_record(&file)?;
        if record.kind != Kind::Imported {
            return Err(wrong_use!("`{}` was not published elsewhere", file.display())
                .with_hint("a measured run is named by its id"));
        }
        records.push(record);
    }
    match records.is_empty() {
        true => Err(wrong_use!("`{}` has no imported record", path.display())),
        false => Ok(records),
    }
}

/// Refuses results that an event of the registry has retracted, and names the reading that stands.
fn refuse_retracted(
    world: &World,
    flags: &Reproduce,
    path: &Path,
    records: &[RunRecord],
) -> Result<(), Stop> {
    let root = flags.registry.as_ref().unwrap_or(&world.places.root);
    let results = Registry::new(world, root).results();
    let is_wanted = |path: &str| matches!(path.split('/').next(), Some("events" | "imports"));
    let registry = store::load_where(&[&results], &is_wanted)?;
    let mut retracted = records
        .iter()
        .filter_map(|record| registry.retracted.get(&record.id).map(|found| (record, found)));
    let Some((record, retraction)) = retracted.next() else { return Ok(()) };
    let stop = wrong_use!("`{}` was retracted: {}", path.display(), retraction.reason);
    Err(match standing_reading(&registry, &record.id) {
        Some(folder) => stop.with_hint(format!("`results/{folder}` is the reading that stands")),
        None => stop.with_hint("`cargo xtask list` shows the results that stand"),
    })
}

/// Returns the folder, below `results/`, of a reading of the same report that is not retracted: folders
/// of later readings have the suffix `-r` and the reader's number.
fn standing_reading<'a>(registry: &'a records::Registry, retracted: &str) -> Option<&'a str> {
    let of_report = report(folder(&registry.run(retracted)?.path)?);
    let mut standing = registry.standing().filter_map(|stored| folder(&stored.path));
    standing.find(|folder| report(folder) == of_report)
}

fn folder(path: &str) -> Option<&str> {
    path.rsplit_once('/').map(|(folder, _)| folder)
}

/// Returns the folder of a report without the number of its reader.
fn report(folder: &str) -> &str {
    match folder.rsplit_once("-r") {
        Some((report, reader)) if reader.bytes().all(|byte| byte.is_ascii_digit()) => report,
        _ => folder,
    }
}

/// Returns what a reader must know about a cell that is not called as on the page.
fn notes(cell: &PublishedCell<'_>) -> Vec<String> {
    let mut notes = Vec::new();
    if cell.scenario != cell.record.scenario.id {
        let (title, scenario) = (title(cell.record), &cell.scenario);
        notes.push(format!("{title} is measured under `{scenario}`, which has the same workload"));
    }
    if let Some(limit) = cell.other_limit {
        notes.push(format!(
            "`{}` has no limit on requests in flight; the page prints {limit}",
            cell.scenario
        ));
    }
    notes
}

/// Server of published results: what one campaign measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct PublishedServer<'a> {
    engine: &'a str,
    release: &'a str,
    target: &'a str,
    flags: &'a [String],
}

/// Groups cells by the server that they need.
fn by_server<'a>(
    cells: &'a [PublishedCell<'a>],
) -> BTreeMap<PublishedServer<'a>, Vec<&'a PublishedCell<'a>>> {
    let mut groups: BTreeMap<PublishedServer<'a>, Vec<&PublishedCell<'a>>> = BTreeMap::new();
    for cell in cells {
        let RunRecord { engine, hardware, .. } = cell.record;
        let server = PublishedServer {
            engine: &engine.name,
            release: &engine.release,
            target: &hardware.id,
            flags: &cell.flags,
        };
        groups.entry(server).or_default().push(cell);
    }
    groups
}

/// Returns the flags of the campaign that measures `cells` on `server`, each model in its scenarios.
fn campaign_of(
    flags: &Reproduce,
    server: PublishedServer<'_>,
    cells: &[&PublishedCell<'_>],
) -> ReleaseBench {
    let pair = |cell: &&PublishedCell<'_>| (cell.record.model.id.clone(), cell.scenario.clone());
    let only: BTreeSet<(String, String)> = cells.iter().map(pair).collect();
    let models: BTreeSet<String> = only.iter().map(|(model, _)| model.clone()).collect();
    let scenarios: BTreeSet<String> = only.iter().map(|(_, scenario)| scenario.clone()).collect();
    let has_flags = !server.flags.is_empty();
    ReleaseBench {
        release: Some(server.release.to_owned()),
        engine: server.engine.to_owned(),
        target: Some(server.target.to_owned()),
        models: models.into_iter().collect(),
        scenarios: scenarios.into_iter().collect(),
        only: only.into_iter().collect(),
        in_place: has_flags.then(|| (VARIANT.to_owned(), server.flags.to_vec())),
        ..uncommitted(flags)
    }
}

/// Formats the rows of a published result with the figures that it prints, the medians of the runs of
/// the same cell among `own` with as many digits, and the differences. The differences are marked where
/// other requests were sent than those of the page, because the dataset `missing` was not at hand.
fn table(cell: &PublishedCell<'_>, own: &[RunRecord], missing: Option<&str>) -> String {
    let own: Vec<&RunRecord> = own.iter().filter(|run| cell.has(run)).collect();
    let mut text = format!("{}\n\n", cell.title());
    let _ = writeln!(text, "{:<40} {:>14} {:>14} {:>11}", "", "published", "ours", "difference");
    let printed = cell.record.source.as_ref().and_then(|source| source.printed.as_ref());
    let mut section = None;
    for row in printed.map(|printed| printed.rows.as_slice()).unwrap_or_default() {
        if row.section != section {
            section.clone_from(&row.section);
            let _ = writeln!(text, "{}", row.section.as_deref().unwrap_or_default());
        }
        let line = line(row, &own);
        let mark = if missing.is_some() && line.ends_with('%') { " *" } else { "" };
        let _ = writeln!(text, "{line}{mark}");
    }
    if let Some(dataset) = missing {
        let _ = writeln!(
            text,
            "\n* other requests than the published ones: `cargo xtask fetch {dataset}` gets those"
        );
    }
    text.trim_end().to_owned()
}

fn line(row: &PrintedRow, own: &[&RunRecord]) -> String {
    let values: Vec<f64> =
        own.iter().filter_map(|run| reports::figure_of(run, &row.label)).collect();
    let published: Option<f64> = row.text.parse().ok().filter(|value: &f64| value.is_finite());
    let (ours, difference) = match (published, median(&values)) {
        (Some(published), Some(ours)) => {
            let digits = row.text.split_once('.').map_or(0, |(_, digits)| digits.len());
            let difference = difference_pct(ours, published);
            let difference = difference.map_or_else(String::new, |pct| format!("{pct:+.1} %"));
            (format!("{ours:.digits$}"), difference)
        }
        _ => (String::new(), String::new()),
    };
    format!("{:<40} {:>14} {ours:>14} {difference:>11}", row.label, row.text).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use samples::Sample;
    use schema::run::{Printed, Source};

    use super::*;

    fn row(label: &str, text: &str) -> PrintedRow {
        PrintedRow { section: None, label: label.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn rows_and_digits_are_those_of_the_page() {
        let rows = vec![
            row("Traffic request rate", "inf"),
            row("Successful requests", "40"),
            row("Output token throughput (tok/s)", "1200.5"),
            row("Peak concurrent requests", "20.00"),
            PrintedRow {
                section: Some("Time to First Token".to_owned()),
                ..row("Median TTFT (ms)", "300.00")
            },
        ];
        let printed = Some(Printed { rows, ..Printed::default() });
        let published = RunRecord {
            source: Some(Source { printed, ..Source::default() }),
            ..Sample::default().record()
        };
        let mut ours = Sample::default().record();
        let metrics = ours.metrics.as_mut().unwrap();
        metrics.output_tokens_per_s = Some(1_320.55);
        metrics.ttft_us.as_mut().unwrap().p50 = Some(270_000);
        ours.client.as_mut().unwrap().streams_max = Some(18);
        let ours = [ours];
        let cell = PublishedCell {
            record: &published,
            scenario: published.scenario.id.clone(),
            flags: vec!["--dtype=half".to_owned()],
            other_limit: None,
        };
        let marked = table(&cell, &ours, Some("sharegpt"));
        let title = marked.lines().next().unwrap();
        assert!(title.ends_with(", --dtype=half"), "{title}");
        assert_eq!(marked.lines().filter(|line| line.ends_with("% *")).count(), 4, "{marked}");
        assert!(marked.ends_with("`cargo xtask fetch sharegpt` gets those"), "{marked}");
        let shown = table(&cell, &ours, None);
        let rows: Vec<&str> = shown.lines().skip(2).collect();
        expect![[r#"
                                                          published           ours  difference
            Traffic request rate                                inf
            Successful requests                                  40             32     -20.0 %
            Output token throughput (tok/s)                  1200.5         1320.5     +10.0 %
            Peak concurrent requests                          20.00          18.00     -10.0 %
            Time to First Token
            Median TTFT (ms)                                 300.00         270.00     -10.0 %"#]]
        .assert_eq(&rows.join("\n"));
    }
}
