//! End of a campaign: writes the campaign's record, renders pages, commits the results, and prints
//! tables, comparison and paths.

use std::collections::BTreeMap;
use std::path::Path;

use schema::campaign::{self, CampaignRecord, CampaignStatus, SCHEMA};
use schema::comparison::Diff;
use schema::exit::Exit;
use schema::run::RunRecord;
use schema::verdict::Verdict;
use serde_json::Value;

use crate::executor::journal::{Journal, Line, State};
use crate::executor::prepared::PreparedCampaign;
use crate::node::record::is_bad;
use crate::plan::PlannedRun;
use crate::publish::engines;
use crate::publish::{Registry, write_campaign};
use crate::stop::Stop;
use crate::world::World;

/// Outcome of a publication: none of the records of a tree or a foreign server is committed.
pub struct Published {
    pub is_committed: bool,
    /// The commit, where its tool stated it.
    pub commit: Option<String>,
}

/// Records, publishes and prints the results of a campaign. The exit code tells if a run failed or
/// a release-blocking metric regressed.
///
/// # Errors
/// A record is refused, or a tool fails.
pub fn finish(
    world: &World,
    ready: &PreparedCampaign,
    registry: &Registry<'_>,
    records: &[RunRecord],
    journal: &mut Journal,
) -> Result<Exit, Stop> {
    let step = |heading: &str| world.console.step(world.clock.elapsed(), heading);
    let staged = journal.places().staged();
    let compared = match ready.compared() {
        Some((baseline, candidate)) => Some(registry.compare(baseline, candidate, &staged)?),
        None => None,
    };
    let published = publish(world, ready, registry, records, compared.as_ref(), journal)?;
    let uncommitted = (!published.is_committed).then_some(staged.as_path());
    for (engine, release) in ready.plan.releases() {
        world.console.answer("");
        registry.print_table(ready.named(engine, release), uncommitted)?;
    }
    if let Some(table) = engines::table(&ready.plan, records) {
        world.console.answer("");
        world.console.answer(table.trim_end());
    }
    world.console.answer("");
    match uncommitted {
        None => print_paths(world, ready, published.commit.as_deref()),
        Some(staged) => {
            let shown = world.places.shown(staged);
            world.console.answer(&format!("records  {shown} (not committed)"));
        }
    }
    let compared = match ready.compared() {
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

/// Writes the campaign's record, and commits all records where they are those of releases.
///
/// # Errors
/// A record is refused, or a tool fails.
pub fn publish(
    world: &World,
    ready: &PreparedCampaign,
    registry: &Registry<'_>,
    records: &[RunRecord],
    compared: Option<&Diff>,
    journal: &mut Journal,
) -> Result<Published, Stop> {
    let mut campaign = campaign_record(world, ready, records, &journal.state, compared);
    write_campaign(&journal.places().staged(), &mut campaign)?;
    let commit = match ready.commits {
        true => commit(world, ready, registry, records, journal)?,
        false => None,
    };
    Ok(Published { is_committed: ready.commits, commit })
}

/// Renders the pages, commits the staged results and builds the site; returns the commit's hash.
fn commit(
    world: &World,
    ready: &PreparedCampaign,
    registry: &Registry<'_>,
    records: &[RunRecord],
    journal: &mut Journal,
) -> Result<Option<String>, Stop> {
    let step = |heading: &str| world.console.step(world.clock.elapsed(), heading);
    let staged = journal.places().staged();
    step("Render pages");
    registry.render_pages(&staged)?;
    step("Commit the records");
    // The journal is asked first: after a crash the records may be in the registry already.
    let commit = match journal.state.committed.clone() {
        Some(commit) => commit,
        None => registry.record(&staged, &message(ready, records))?,
    };
    if journal.state.committed.is_none() {
        journal.note(Line::Committed { commit: commit.clone() })?;
    }
    step("Build the site");
    registry.build_site(&world.places.site())?;
    Ok(commit)
}

/// Makes the campaign's record, without its hash.
fn campaign_record(
    world: &World,
    ready: &PreparedCampaign,
    records: &[RunRecord],
    state: &State,
    compared: Option<&Diff>,
) -> CampaignRecord {
    let plan = &ready.plan;
    // A retried run occurs in several jobs and is listed once.
    let slots = state.jobs.iter().flat_map(|job| &job.planned.slots);
    let slots: BTreeMap<&str, &PlannedRun> = slots.map(|slot| (slot.run.as_str(), slot)).collect();
    let planned = slots.into_values().map(|slot| campaign::PlannedRun {
        run: slot.run.clone(),
        engine: plan.variants[slot.variant].engine.clone(),
        release: plan.variants[slot.variant].release.clone(),
        model: plan.cells[slot.cell].model.clone(),
        scenario: plan.cells[slot.cell].scenario.clone(),
        block: slot.block,
        position: slot.position,
        stage: slot.stage,
    });
    let mut releases: Vec<String> = Vec::new();
    for variant in &plan.variants {
        if !releases.contains(&variant.release) {
            releases.push(variant.release.clone());
        }
    }
    // Sum over all runs; jobs on several machines may have run at the same time.
    let wall_us: u64 = state.jobs.iter().map(|job| job.wall_us).sum();
    let budget = [("wall_us_expected", ready.expected_us), ("wall_us", wall_us)];
    let noise_floor = compared.and_then(|diff| diff.noise_pct.get(&plan.campaign)).cloned();
    let noise_floor = noise_floor.filter(|noise| !noise.is_empty());
    let of_lab = ready.lab.as_ref().map(|lab| lab.outline.policy.clone());
    let policy = compared.map(|diff| diff.policy.clone()).or(of_lab);
    CampaignRecord {
        schema: SCHEMA.to_owned(),
        id: plan.campaign.clone(),
        record_sha256: String::new(),
        command: ready.command.iter().map(|word| world.identity.redact(word)).collect(),
        releases,
        hardware: ready.hardware.0.id.clone(),
        plan: planned.collect(),
        policy,
        noise_floor,
        verdicts: compared.map(|diff| verdicts(diff, &plan.campaign)).unwrap_or_default(),
        budget: budget.map(|(key, us)| (key.to_owned(), Value::from(us))).into(),
        lab: ready.lab.as_ref().map(|lab| Box::new(lab.asked.clone())),
        status: match records.iter().any(is_bad) || records.len() < state.runs_planned().len() {
            true => CampaignStatus::Partial,
            false => CampaignStatus::Complete,
        },
        absent: BTreeMap::new(),
    }
}

/// Selects the verdicts of this campaign on release-blocking metrics.
fn verdicts(compared: &Diff, campaign: &str) -> Vec<Verdict> {
    let cells = compared.cells.iter().filter(|cell| cell.judged.as_deref() == Some(campaign));
    let rows = cells.flat_map(|cell| &cell.rows).filter(|row| row.gates);
    rows.map(|row| row.verdict.clone()).collect()
}

/// Commit message: what was measured, on which hardware, and how many runs failed.
fn message(ready: &PreparedCampaign, records: &[RunRecord]) -> String {
    let mut engine = "";
    let mut variants: Vec<String> = Vec::new();
    for variant in &ready.plan.variants {
        // The engine is named only where it changes from one variant to the next.
        let named = (variant.engine != engine).then(|| format!("{} ", variant.engine));
        variants.push(format!("{}{}", named.unwrap_or_default(), variant.title()));
        engine = &variant.engine;
    }
    let bad = records.iter().filter(|record| is_bad(record)).count();
    let failed = if bad == 0 { String::new() } else { format!(", {bad} failed or invalid") };
    let measured = match &ready.lab {
        Some(lab) => format!("lab {}", lab.asked.id),
        None => variants.join(" and "),
    };
    format!(
        "results: {measured} on {}\n\nruns: {}{failed}; campaign {}\n",
        ready.hardware.0.id,
        records.len(),
        ready.plan.campaign,
    )
}

/// Prints where pages and site lie, and the commit.
pub fn print_paths(world: &World, ready: &PreparedCampaign, commit: Option<&str>) {
    let results = ready.registry.join("results");
    let shown = |path: &Path| world.places.shown(path);
    let answer = |text: String| world.console.answer(&text);
    for (engine, release) in ready.plan.releases() {
        let page = schema::path::of_page(engine, release, &ready.hardware.0.id);
        answer(format!("page     {}", shown(&results.join(page))));
    }
    answer(format!("site     {}", shown(&world.places.site().join("index.html"))));
    if let Some(commit) = commit {
        answer(format!("commit   {commit}"));
    }
}
