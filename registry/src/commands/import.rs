//! Command `import`: reads results published elsewhere and commits them together with the pages.

use std::fs;
use std::path::Path;

use anyhow::Context;
use registry::commit::Clock;
use registry::import::{Claim, import, source_of};
use registry::record::record;
use registry::render::render;
use schema::canonical::to_file_text;
use schema::exit::Exit;
use schema::run::RunRecord;

use super::World;
use crate::cli::{ImportArguments, Renders};

/// Reads every file, and commits all results in one commit.
pub fn run(world: &World, given: &ImportArguments) -> anyhow::Result<Exit> {
    let claim = given.hardware.as_ref().zip(given.hardware_evidence.as_ref());
    let claim = claim.map(|(hardware, evidence)| Claim {
        hardware: hardware.clone(),
        evidence: evidence.clone(),
    });
    let overlay = tempfile::tempdir().context("cannot make a folder for the records")?;
    let (mut count, mut unread) = (0, 0);
    for path in &given.files {
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let bytes = fs::read(path).with_context(|| format!("cannot read `{}`", path.display()))?;
        let text = String::from_utf8_lossy(&bytes);
        let source = given.source.clone().unwrap_or_else(|| source_of(&file));
        let imported = import(&text, &file, &source, claim.as_ref())?;
        for unread in &imported.unread {
            eprintln!("{}:{}: not imported: {}", path.display(), unread.line, unread.why);
        }
        unread += imported.unread.len();
        for (place, record) in &imported.records {
            crate::print(&line(place, record))?;
            let place = overlay.path().join(place);
            let folder = place.parent().context("a record has no folder")?;
            fs::create_dir_all(folder)?;
            fs::write(&place, to_file_text(record)?)?;
        }
        count += imported.records.len();
    }
    if count == 0 {
        eprintln!("error: nothing was imported\nhint: the lines above say why");
        return Ok(Exit::Unsound);
    }
    let left = if unread == 0 { String::new() } else { format!(", {unread} not read") };
    if given.dry_run {
        crate::print(&format!("{count} results{left}; nothing is recorded"))?;
        return Ok(Exit::Well);
    }
    let Renders { place, tools_dir } = &given.renders;
    let tools = tools_dir.as_deref().unwrap_or(&world.tools);
    render(tools, &place.registry, Some(overlay.path()), overlay.path())?;
    let message = format!("imports: {count} published results");
    let clock = Clock { unix_s: world.unix_s() };
    let recorded = record(&place.registry, overlay.path(), &message, clock)?;
    for note in &recorded.notes {
        eprintln!("note: {note}");
    }
    let commit = recorded.commit.as_deref().unwrap_or("none: all were there already");
    crate::print(&format!("{count} results{left}; commit {commit}"))?;
    Ok(Exit::Well)
}

/// Line about an imported result: `imports/x/01234567/001.json  vllm v0.10.1, qwen3-8b, tp 1,
/// sharegpt, lines 10 to 40`.
fn line(place: &Path, record: &RunRecord) -> String {
    let tp = record.server.as_ref().and_then(|server| server.tp);
    let tp = tp.map_or_else(|| "tp unknown".to_owned(), |tp| format!("tp {tp}"));
    let lines =
        record.source.as_ref().map_or((0, 0), |source| (source.line_first, source.line_last));
    format!(
        "{}  {} {}, {}, {tp}, {}, lines {} to {}",
        place.display(),
        record.engine.name,
        record.engine.release,
        record.model.id,
        record.scenario.id,
        lines.0,
        lines.1
    )
}
