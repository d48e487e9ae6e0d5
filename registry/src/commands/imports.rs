//! Command `import`: results published elsewhere are committed together with the pages that show them,
//! and with the retraction of an earlier reading of the same report.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{bail, ensure};
use judge::Registry;
use judge::diff::words::plural;
use registry::events::compose;
use registry::import::{Claim, Stated, complete, import, source_of};
use registry::repository::RESULTS;
use reports::READER;
use schema::canonical::to_file_text;
use schema::event::{self, Event, EventKind};
use schema::exit::Exit;
use schema::id::ulid;
use schema::run::{Kind, Level, RunRecord};
use schema::untrusted::one_line;
use whole_file::DATA_MAX;

use super::additions::{StagedResults, after_the_others};
use super::{World, print, reported};
use crate::cli::ImportArguments;

/// Id of a hardware that nobody states.
const UNKNOWN: &str = "unknown";

/// Imports results published elsewhere from every given file, and commits all results in one commit;
/// with `dry_run`, only prints them. If no result can be imported, nothing is committed, and the exit
/// code is that of unsound data.
pub fn import_files(world: &World, given: &ImportArguments) -> anyhow::Result<Exit> {
    let (records, unread) = read(given)?;
    if records.is_empty() {
        eprintln!("error: nothing was imported\nhint: the lines above say why");
        return Ok(Exit::Unsound);
    }
    let registry = given.renders.place.registry.join(RESULTS);
    let loaded = reported(store::load(&[&registry])?);
    check_hardware(&loaded, &records, given)?;
    let earlier = earlier_readings(&loaded, &records);
    for (folder, reader) in &earlier {
        print(&format!("{folder} was read by r{reader}; this reading replaces it"))?;
    }
    let replaces = !earlier.is_empty();
    let left = if unread == 0 { String::new() } else { format!(", {unread} not read") };
    let count = records.len();
    if given.dry_run {
        print(&format!("{count} results{left}; nothing is recorded"))?;
        return Ok(Exit::Well);
    }
    let staged = StagedResults::new()?;
    for (place, record) in &records {
        staged.write(place, &to_file_text(record)?)?;
    }
    if replaces {
        // In the commit of the new reading, so that no page ever shows both, or neither.
        let reason = format!("superseded by the reading of r{READER}");
        let targets = earlier.into_keys().collect();
        let draft = Event { targets, ..Event::draft(EventKind::Retract, &reason, &[]) };
        let id = ulid(after_the_others(&loaded, world.unix_ms), world.random);
        let event = compose(&loaded, draft, (id, world.unix_s()))?;
        staged.write(schema::path::of_event(&event.id)?.as_ref(), &event::to_text(&event)?)?;
    }
    let message = format!("imports: {count} published results");
    let recorded = staged.commit(world, &given.renders, &message)?;
    let commit = recorded.commit.as_deref().unwrap_or("none: all were there already");
    print(&format!("{count} results{left}; commit {commit}"))?;
    if replaces {
        print("`cargo xtask site --pages` removes the pages of the earlier reading")?;
    }
    Ok(Exit::Well)
}

/// Reads and prints the results in the given files, with their paths below `results/`, and counts
/// those that cannot be read.
fn read(given: &ImportArguments) -> anyhow::Result<(Vec<(PathBuf, RunRecord)>, usize)> {
    let claim = claim(given)?;
    let stated = Stated {
        engine: given.engine.clone(),
        release: given.release.clone(),
        model: given.model.clone(),
        scenario: given.scenario.clone(),
    };
    let (mut records, mut unread) = (Vec::new(), 0);
    for path in &given.files {
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let bytes = whole_file::read(path, "file", DATA_MAX)?;
        // Bytes of a log that are not UTF-8 must not prevent the import of its other results.
        let text = String::from_utf8_lossy(&bytes);
        let source = given.source.clone().unwrap_or_else(|| source_of(&file));
        let mut imported = import(&text, &file, &source, claim.as_ref())?;
        complete(&mut imported, &stated)?;
        for unread in &imported.unread {
            let place = format!("{}:{}", path.display(), unread.line);
            eprintln!("{}", one_line(&format!("{place}: not imported: {}", unread.why)));
        }
        unread += imported.unread.len();
        for (place, record) in &imported.records {
            print(&line(place, record))?;
            if given.dry_run {
                print_findings(record)?;
            }
        }
        records.extend(imported.records);
    }
    Ok((records, unread))
}

/// Returns the hardware that the user states; `None` where the user states none, or `unknown`.
fn claim(given: &ImportArguments) -> anyhow::Result<Option<Claim>> {
    match (given.hardware.clone(), given.hardware_evidence.clone()) {
        (Some(hardware), _) if hardware == UNKNOWN => Ok(None),
        (Some(hardware), Some(evidence)) => Ok(Some(Claim { hardware, evidence })),
        (Some(hardware), None) => bail!(
            "`--hardware {hardware}` needs evidence\nhint: `--hardware-evidence TEXT` says how it is \
             known that the results were measured there"
        ),
        (None, _) => Ok(None),
    }
}

/// Checks that the hardware of each result is known, or said to be unknown, and that no result is
/// committed with another hardware: a committed record is never changed.
fn check_hardware(
    registry: &Registry,
    records: &[(PathBuf, RunRecord)],
    given: &ImportArguments,
) -> anyhow::Result<()> {
    let unknown = records.iter().filter(|(_, record)| record.hardware.id == UNKNOWN).count();
    ensure!(
        unknown == 0 || given.hardware.as_deref() == Some(UNKNOWN),
        "the hardware of {} is not known\nhint: `--hardware ID --hardware-evidence TEXT` states it, such \
         as a100-80g; `--hardware unknown` imports them without it, for good",
        plural(unknown, "result")
    );
    let committed: BTreeMap<&Path, &RunRecord> =
        registry.runs.iter().map(|run| (Path::new(&run.path), &run.record)).collect();
    for (place, record) in records {
        let Some(committed) = committed.get(place.as_path()) else { continue };
        let (before, now) = (&committed.hardware.id, &record.hardware.id);
        ensure!(
            before == now,
            "`{RESULTS}/{}` was imported with the hardware `{before}`, not `{now}`\nhint: retract its \
             folder, and import the page with a line more, such as the hardware's name: the ids of \
             results come from the text of the file",
            place.display()
        );
    }
    Ok(())
}

/// Returns the folders of the readings by earlier readers of the reports in `records`, as far as they
/// still stand, each with the revision of its reader.
fn earlier_readings(
    registry: &Registry,
    records: &[(PathBuf, RunRecord)],
) -> BTreeMap<String, u32> {
    let now: BTreeMap<&str, u32> =
        records.iter().filter_map(|(_, record)| reading_of(record)).collect();
    let mut earlier = BTreeMap::new();
    for run in registry.standing().filter(|run| run.record.kind == Kind::Imported) {
        let Some((report, reader)) = reading_of(&run.record) else { continue };
        let is_earlier = now.get(report).is_some_and(|newer| *newer > reader);
        if let Some((folder, _)) = run.path.rsplit_once('/').filter(|_| is_earlier) {
            earlier.insert(format!("{folder}/"), reader);
        }
    }
    earlier
}

/// Returns the SHA-256 of the report that a record was read from, and the revision of the reader; the
/// first reader did not state its revision.
fn reading_of(record: &RunRecord) -> Option<(&str, u32)> {
    let source = record.source.as_ref()?;
    Some((source.sha256.as_str(), source.reader.unwrap_or(1)))
}

/// Prints a line for each rule that an imported result fails.
fn print_findings(record: &RunRecord) -> anyhow::Result<()> {
    for check in record.checks.iter().filter(|check| !check.ok) {
        let level = match check.level {
            Level::Error => "error",
            Level::Warning => "warning",
        };
        let detail = check.detail.as_deref().unwrap_or_default();
        print(&one_line(&format!("  {level} {}: {detail}", check.rule)))?;
    }
    Ok(())
}

/// Formats the line about an imported result: `imports/x/01234567/001.json  vllm v0.10.1, qwen3-8b,
/// tp 1, sharegpt, on a100-80g, lines 10 to 40`.
fn line(place: &Path, record: &RunRecord) -> String {
    let tp = record.server.as_ref().and_then(|server| server.tp);
    let tp = tp.map_or_else(|| UNKNOWN.to_owned(), |tp| tp.to_string());
    let source = record.source.as_ref();
    let (first, last) = source.map_or((0, 0), |source| (source.line_first, source.line_last));
    let RunRecord { engine, model, scenario, hardware, .. } = record;
    format!(
        "{}  {} {}, {}, tp {tp}, {}, on {}, lines {first} to {last}",
        place.display(),
        engine.name,
        engine.release,
        model.id,
        scenario.id,
        hardware.id
    )
}
