//! The end of a campaign whose runs are done: its own record, the pages, the commit, the table.

use std::path::Path;
use std::time::Duration;

use schema::campaign::{CampaignRecord, CampaignStatus, PlannedRun, SCHEMA};
use schema::comparison::Diff;
use schema::exit::Exit;
use schema::run::{Absent, RunRecord};
use schema::verdict::Verdict;
use serde_json::Value;

use crate::beside;
use crate::decide::Decided;
use crate::journal::Journal;
use crate::publish::{Registry, write_campaign};
use crate::record::is_bad;
use crate::stop::Stop;
use crate::world::World;

/// Records, publishes and shows what was measured. The exit code is the campaign's answer.
///
/// # Errors
/// A record is refused, or a tool fails.
pub fn finish(
    world: &World,
    decided: &Decided,
    registry: &Registry<'_>,
    records: &[RunRecord],
    wall: Duration,
    journal: &mut Journal,
) -> Result<Exit, Stop> {
    let step = |heading: &str| world.console.step(world.clock.elapsed(), heading);
    let overlay = journal.places().overlay();
    let compared = match decided.compared() {
        Some((baseline, candidate)) => Some(registry.compare(baseline, candidate, &overlay)?),
        None => None,
    };
    let mut campaign = campaign_record(world, decided, records, (wall, compared.as_ref()));
    write_campaign(&overlay, &mut campaign)?;
    let committed = match decided.commits {
        true => Some(commit(world, decided, registry, records, journal)?),
        false => None,
    };
    let uncommitted = committed.is_none().then_some(overlay.as_path());
    for (engine, release) in decided.plan.releases() {
        world.console.answer("");
        registry.print_table(decided.named(engine, release), uncommitted)?;
    }
    if let Some(table) = beside::table(&decided.plan, records) {
        world.console.answer("");
        world.console.answer(table.trim_end());
    }
    world.console.answer("");
    match committed {
        Some(commit) => print_paths(world, decided, commit.as_deref()),
        None => {
            let shown = world.places.shown(&overlay);
            world.console.answer(&format!("records  {shown} (not committed)"));
        }
    }
    let compared = match decided.compared() {
        Some((baseline, candidate)) => {
            step(&format!("Compare {} with {baseline}", candidate.release));
            world.console.answer("");
            registry.diff(baseline, candidate, uncommitted)?
        }
        _ => Exit::Well,
    };
    let bad = records.iter().filter(|record| is_bad(record)).count();
    if bad > 0 {
        let of = records.len();
        world
            .console
            .note(&format!("{bad} of {of} runs failed or are INVALID; their records say why"));
        return Ok(Exit::Worse);
    }
    Ok(compared)
}

/// Renders the pages, commits everything and builds the site. Returns the commit.
fn commit(
    world: &World,
    decided: &Decided,
    registry: &Registry<'_>,
    records: &[RunRecord],
    journal: &mut Journal,
) -> Result<Option<String>, Stop> {
    let step = |heading: &str| world.console.step(world.clock.elapsed(), heading);
    let overlay = journal.places().overlay();
    step("Render pages");
    registry.render_pages(&overlay)?;
    step("Commit the records");
    let commit = registry.record(&overlay, &message(decided, records))?;
    journal.committed = true;
    step("Build the site");
    registry.build_site(&world.places.site())?;
    Ok(commit)
}

/// The campaign's record, not yet signed.
fn campaign_record(
    world: &World,
    decided: &Decided,
    records: &[RunRecord],
    (wall, compared): (Duration, Option<&Diff>),
) -> CampaignRecord {
    let plan = &decided.plan;
    let planned = plan.slots.iter().map(|slot| PlannedRun {
        run: slot.run.clone(),
        engine: plan.sides[slot.side].engine.clone(),
        release: plan.sides[slot.side].release.clone(),
        model: plan.cells[slot.cell].model.clone(),
        scenario: plan.cells[slot.cell].scenario.clone(),
        block: slot.block,
        position: slot.position,
        stage: slot.stage,
    });
    let mut releases: Vec<String> = Vec::new();
    for side in &plan.sides {
        if !releases.contains(&side.release) {
            releases.push(side.release.clone());
        }
    }
    let wall_us = u64::try_from(wall.as_micros()).unwrap_or(u64::MAX);
    let budget = [("wall_us_expected", decided.brief.expected_us()), ("wall_us", wall_us)];
    let noise_floor = compared.and_then(|diff| diff.noise_pct.get(&plan.campaign)).cloned();
    let noise_floor = noise_floor.filter(|noise| !noise.is_empty());
    let mut absent = Absent::new();
    if compared.is_none() {
        absent.insert("policy".to_owned(), "nothing was compared".to_owned());
    }
    if noise_floor.is_none() {
        let reason = "no release was launched twice in succession beside another";
        absent.insert("noise_floor".to_owned(), reason.to_owned());
    }
    CampaignRecord {
        schema: SCHEMA.to_owned(),
        id: plan.campaign.clone(),
        record_sha256: String::new(),
        command: world.command.iter().map(|word| world.identity.redact(word)).collect(),
        releases,
        hardware: decided.hardware.0.id.clone(),
        plan: planned.collect(),
        policy: compared.map(|diff| diff.policy.clone()),
        noise_floor,
        verdicts: compared.map(|diff| verdicts(diff, &plan.campaign)).unwrap_or_default(),
        budget: budget.map(|(key, us)| (key.to_owned(), Value::from(us))).into(),
        status: match records.iter().any(is_bad) {
            true => CampaignStatus::Partial,
            false => CampaignStatus::Complete,
        },
        absent,
    }
}

/// What this campaign says of everything that gates.
fn verdicts(compared: &Diff, campaign: &str) -> Vec<Verdict> {
    let cells = compared.cells.iter().filter(|cell| cell.judged.as_deref() == Some(campaign));
    let rows = cells.flat_map(|cell| &cell.rows).filter(|row| row.gates);
    rows.map(|row| row.verdict.clone()).collect()
}

/// The commit's message: what was measured, on what, how it went.
fn message(decided: &Decided, records: &[RunRecord]) -> String {
    let mut engine = "";
    let mut sides: Vec<String> = Vec::new();
    for side in &decided.plan.sides {
        // The engine is named where it changes.
        let named = (side.engine != engine).then(|| format!("{} ", side.engine));
        sides.push(format!("{}{}", named.unwrap_or_default(), side.title()));
        engine = &side.engine;
    }
    let bad = records.iter().filter(|record| is_bad(record)).count();
    let failed = if bad == 0 { String::new() } else { format!(", {bad} failed or invalid") };
    format!(
        "results: {} on {}\n\nruns: {}{failed}; campaign {}\n",
        sides.join(" and "),
        decided.hardware.0.id,
        records.len(),
        decided.plan.campaign,
    )
}

fn print_paths(world: &World, decided: &Decided, commit: Option<&str>) {
    let results = decided.registry.join("results");
    let shown = |path: &Path| world.places.shown(path);
    let answer = |text: String| world.console.answer(&text);
    for (engine, release) in decided.plan.releases() {
        let page = schema::path::of_page(engine, release, &decided.hardware.0.id);
        answer(format!("page     {}", shown(&results.join(page))));
    }
    answer(format!("site     {}", shown(&world.places.site().join("index.html"))));
    if let Some(commit) = commit {
        answer(format!("commit   {commit}"));
    }
}
