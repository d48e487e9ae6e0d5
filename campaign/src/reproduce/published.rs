//! The command `reproduce` for results that others published: measures the cells of an imported page
//! here, and prints the page's rows with its figures, ours and the difference.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use judge::quantile::median;
use judge::summary::difference_pct;
use schema::engine::EngineFile;
use schema::exit::Exit;
use schema::run::{Kind, PrintedRow, RunRecord};
use schema::scenario::id_of;
use schema::target::Target;

use super::uncommitted;
use crate::campaign::measure;
use crate::cli::{ReleaseBench, Reproduce};
use crate::executor::job;
use crate::files::files_below;
use crate::plan::decide::decide;
use crate::stop::{Stop, wrong_use};
use crate::world::World;

/// Measures the results at `path`, the file of an imported record or a folder of them, and prints both
/// figures of each row. Exit code 1 where a run failed here.
///
/// # Errors
/// `path` has other records or results that one campaign cannot measure, none of them can be measured
/// by the suite, or the campaign fails.
pub fn run(world: &World, flags: &Reproduce, path: &Path) -> Result<Exit, Stop> {
    let records = records_at(path)?;
    let first = &records[0];
    let targets = world.catalog.targets()?;
    let engine = world.catalog.engine(&first.engine.name)?;
    let Some(target) = targets.get(&first.hardware.id) else {
        let known: Vec<String> = targets.keys().cloned().collect();
        return Err(crate::catalog::unknown("target", &first.hardware.id, &known));
    };
    let scenarios = world.catalog.ids("scenario")?;
    let mut can = Vec::new();
    for record in &records {
        match lacking(record, &engine.file, target, &scenarios) {
            None => can.push(record),
            Some(why) => world.console.note(&format!("{} is not measured: {why}", title(record))),
        }
    }
    let bench = campaign_of(flags, first, &can)?;
    let decided = decide(world, &bench)?;
    let campaign = decided.plan.campaign.clone();
    let replaced: BTreeMap<String, String> = decided
        .brief
        .cells
        .iter()
        .filter_map(|cell| Some((id_of(&cell.scenario).to_owned(), cell.newer.clone()?.1)))
        .collect();
    let Some(ended) = measure(world, &bench, decided)? else { return Ok(Exit::Well) };
    let own = job::records(&world.places.campaign(&campaign).staged())?;
    for record in can {
        let missing = replaced.get(&record.scenario.id).map(String::as_str);
        world.console.answer(&format!("\n{}", table(record, &own, missing)))?;
    }
    Ok(ended)
}

/// Reads the imported records at `path`, which are results of one engine, release and hardware.
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
    let facts = |record: &RunRecord| {
        (record.engine.name.clone(), record.engine.release.clone(), record.hardware.id.clone())
    };
    let subjects: BTreeSet<_> = records.iter().map(facts).collect();
    match subjects.len() {
        0 => Err(wrong_use!("`{}` has no imported record", path.display())),
        1 => Ok(records),
        count => Err(wrong_use!(
            "`{}` has results of {count} combinations of engine, release and hardware",
            path.display()
        )
        .with_hint("name the file of one result")),
    }
}

/// Returns what a result needs that the suite does not have; `None` where it can be measured.
fn lacking(
    record: &RunRecord,
    engine: &EngineFile,
    target: &Target,
    scenarios: &[String],
) -> Option<String> {
    if !scenarios.contains(&record.scenario.id) {
        return Some(format!("the suite has no scenario `{}`", record.scenario.id));
    }
    let model = &record.model.id;
    let Some(planned) = target.models.iter().find(|one| one.id == *model) else {
        return Some(format!("target `{}` has no model `{model}`", record.hardware.id));
    };
    let server = record.server.as_ref();
    if let Some(tp) = server.and_then(|server| server.tp).filter(|tp| *tp != planned.tp) {
        let ours = planned.tp;
        return Some(format!("it ran on {tp} ranks, and the target serves `{model}` on {ours}"));
    }
    let argv = server.and_then(|server| server.argv.as_deref()).unwrap_or_default();
    let flags = own_flags(argv, engine);
    (!flags.is_empty()).then(|| {
        format!(
            "its server had the flags `{0}`; `release-bench --variant published='{0}'` measures them",
            shell_words::join(flags)
        )
    })
}

/// Returns the flags of a published command line that the engine's file does not write itself: those
/// beside model, ranks, address and port.
fn own_flags<'a>(argv: &'a [String], engine: &EngineFile) -> Vec<&'a str> {
    let launch = &engine.launch;
    let settings = &launch.settings;
    let settings = [&settings.tp, &settings.host, &settings.port].into_iter().flatten();
    let image = launch.image.iter().flat_map(|image| &image.argv);
    let written = launch.argv.iter().chain(image).chain(settings.flat_map(|one| &one.flags));
    // Also short ones: Python starts a module with `-m`.
    let written: Vec<&str> =
        written.map(String::as_str).filter(|word| word.starts_with('-')).collect();
    let mut flags = Vec::new();
    let mut is_kept = false;
    for word in argv {
        if word.starts_with('-') {
            let name = word.split('=').next().unwrap_or(word);
            is_kept = !written.contains(&name);
        }
        if is_kept {
            flags.push(word.as_str());
        }
    }
    flags
}

/// Returns the flags of the campaign that measures `can`, each in the cell of its model and scenario.
fn campaign_of(
    flags: &Reproduce,
    first: &RunRecord,
    can: &[&RunRecord],
) -> Result<ReleaseBench, Stop> {
    let cells: BTreeSet<(&str, &str)> =
        can.iter().map(|record| (&*record.model.id, &*record.scenario.id)).collect();
    let models: BTreeSet<&str> = cells.iter().map(|(model, _)| *model).collect();
    let scenarios: BTreeSet<&str> = cells.iter().map(|(_, scenario)| *scenario).collect();
    if cells.is_empty() {
        return Err(wrong_use!("the suite can measure none of these results"));
    }
    let owned = |names: BTreeSet<&str>| names.into_iter().map(str::to_owned).collect();
    let own = |(model, scenario): &(&str, &str)| ((*model).to_owned(), (*scenario).to_owned());
    let only = cells.iter().map(own).collect();
    Ok(ReleaseBench {
        release: Some(first.engine.release.clone()),
        engine: first.engine.name.clone(),
        target: Some(first.hardware.id.clone()),
        models: owned(models),
        scenarios: owned(scenarios),
        only,
        ..uncommitted(flags)
    })
}

fn title(record: &RunRecord) -> String {
    let (engine, model) = (&record.engine, &record.model.id);
    let (hardware, scenario) = (&record.hardware.id, &record.scenario.id);
    format!("{} {}, {model}, {scenario} on {hardware}", engine.name, engine.release)
}

/// Formats the rows of a published result with the figures that it prints, the medians of the runs of
/// the same cell among `own` with as many digits, and the differences. The differences are marked where
/// other requests were sent than those of the page, because the dataset `missing` was not at hand.
fn table(record: &RunRecord, own: &[RunRecord], missing: Option<&str>) -> String {
    let is_same = |run: &&RunRecord| {
        (&run.model.id, &run.scenario.id) == (&record.model.id, &record.scenario.id)
    };
    let own: Vec<&RunRecord> = own.iter().filter(is_same).collect();
    let mut text = format!("{}\n\n", title(record));
    let _ = writeln!(text, "{:<40} {:>14} {:>14} {:>11}", "", "published", "ours", "difference");
    let printed = record.source.as_ref().and_then(|source| source.printed.as_ref());
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
        let ours = [ours];
        let marked = table(&published, &ours, Some("sharegpt"));
        assert_eq!(marked.lines().filter(|line| line.ends_with("% *")).count(), 3, "{marked}");
        assert!(marked.ends_with("`cargo xtask fetch sharegpt` gets those"), "{marked}");
        let shown = table(&published, &ours, None);
        let rows: Vec<&str> = shown.lines().skip(2).collect();
        expect![[r#"
                                                          published           ours  difference
            Traffic request rate                                inf
            Successful requests                                  40             32     -20.0 %
            Output token throughput (tok/s)                  1200.5         1320.5     +10.0 %
            Time to First Token
            Median TTFT (ms)                                 300.00         270.00     -10.0 %"#]]
        .assert_eq(&rows.join("\n"));
    }

    #[test]
    fn flags_beside_model_ranks_and_address_are_the_servers_own() {
        let engine = |id: &str| {
            let file = format!("{}/../suite/engines/{id}.toml", env!("CARGO_MANIFEST_DIR"));
            schema::engine::parse(&std::fs::read_to_string(file).unwrap()).unwrap()
        };
        let (sglang, engine) = (engine("sglang"), engine("vllm"));
        let line = "vllm/vllm-openai:v0.10.1 --model m --tensor-parallel-size 2 --host 0.0.0.0";
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(own_flags(&words(line), &engine), Vec::<&str>::new());
        let longer = words(&format!("{line} --max-num-seqs=512 --dtype half"));
        assert_eq!(own_flags(&longer, &engine), ["--max-num-seqs=512", "--dtype", "half"]);
        let line = "lmsysorg/sglang:v0.5.1-cu126 python3 -m sglang.launch_server --model-path m \
                    --tp 2 --host 0.0.0.0";
        assert_eq!(own_flags(&words(line), &sglang), Vec::<&str>::new());
    }
}
