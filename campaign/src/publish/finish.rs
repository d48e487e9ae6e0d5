//! End of a campaign: writes the campaign's record, renders pages, commits the results, and prints
//! tables, comparison and paths.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

use judge::diff::policy::standard;
use judge::diff::report;
use judge::diff::words::plural;
use judge::side_by_side::InTurns;
use judge::summary;
use judge::table::wrapped;
use judge::validity::headline;
use schema::campaign::{self, CampaignRecord, CampaignStatus, SCHEMA};
use schema::comparison::{CellDiff, Decision, DecisionKind, Diff};
use schema::exit::Exit;
use schema::metric::{Unit, by_name};
use schema::run::{RunRecord, ValidityVerdict};
use schema::shell;
use serde_json::Value;
use whole_file::PrintError;

use crate::executor::in_turns::comparisons;
use crate::executor::journal::{Journal, Line, PreparedCampaign};
use crate::node::record::is_bad;
use crate::plan::Plan;
use crate::publish::{Registry, in_turns, write_campaign};
use crate::stop::Stop;
use crate::world::World;

/// Title and metric's name of each row of the table that compares engines.
const ROWS: [(&str, &str); 4] = [
    ("output tokens/s", "output_tokens_per_s"),
    ("requests/s", "requests_per_s"),
    ("TTFT p50, ms", "ttft_us_p50"),
    ("TPOT p50, ms", "tpot_us_p50"),
];

/// Records, publishes and prints the results of a campaign. The exit code tells if a run failed or
/// is INVALID, or else whether the comparison found a regression or is inconclusive.
///
/// # Errors
/// A record is refused or cannot be read, the releases cannot be compared, a file cannot be
/// written, a tool fails, or the command is interrupted.
pub fn finish(
    world: &World,
    ready: &PreparedCampaign,
    records: &[RunRecord],
    journal: &mut Journal,
) -> Result<Exit, Stop> {
    let registry = Registry::new(world, &ready.registry);
    let staged = journal.places.staged();
    // The comparison reads the alternating comparisons from the campaign's record.
    let mut record = campaign_record(world, ready, records, journal)?;
    write_campaign(&staged, &mut record)?;
    if records.is_empty() {
        return finish_in_turns(world, ready, record, journal);
    }
    if let Some((baseline, candidate)) = ready.compared() {
        add_verdicts(&mut record, &registry.compare(baseline, candidate, &staged)?);
    }
    let commit = publish(world, ready, records, record, journal)?;
    let uncommitted = (!ready.commits).then_some(staged.as_path());
    for (engine, release) in ready.plan.releases() {
        world.console.answer("")?;
        registry.print_table(ready.named(engine, release), uncommitted)?;
    }
    if let Some(table) = engines_table(&ready.plan, records) {
        world.console.answer(&format!("\n{}", table.trim_end()))?;
    }
    let ended = match ready.compared() {
        Some((baseline, candidate)) => {
            world.step(&format!("Compare {} with {baseline}", candidate.release));
            world.console.answer("")?;
            registry.diff(baseline, candidate, uncommitted)?
        }
        _ => Exit::Well,
    };
    last_lines(world, ready, records, (commit.as_deref(), uncommitted))?;
    let bad = records.iter().filter(|record| is_bad(record)).count();
    if bad > 0 {
        let failed = "runs failed or are INVALID; their records say why";
        world.console.note(&format!("{bad} of {} {failed}", records.len()));
        return Ok(Exit::Worse);
    }
    Ok(ended)
}

/// Records and prints the results of a campaign that has comparisons in turns and no runs, as where
/// only the jobs of its second stage were ingested.
///
/// # Errors
/// A record is refused, a file cannot be written, a tool fails, or the command is interrupted.
fn finish_in_turns(
    world: &World,
    ready: &PreparedCampaign,
    record: CampaignRecord,
    journal: &mut Journal,
) -> Result<Exit, Stop> {
    let found = in_turns(&record);
    let commit = publish(world, ready, &[], record, journal)?;
    world.console.answer(report::text(&found).trim_end())?;
    match commit {
        Some(commit) => world.console.answer(&format!("commit   {commit}"))?,
        None => {
            let staged = world.places.shown(&journal.places.staged());
            world.console.answer(&format!("records  {staged} (not committed)"))?;
        }
    }
    Ok(found.exit())
}

/// Prints the last lines of a campaign of releases: verdict, pages and site, or the folder of
/// records that are not committed, the commit, and the command to go on with.
///
/// # Errors
/// A record cannot be read, or the releases cannot be compared.
fn last_lines(
    world: &World,
    ready: &PreparedCampaign,
    records: &[RunRecord],
    (commit, uncommitted): (Option<&str>, Option<&Path>),
) -> Result<(), Stop> {
    let answer = |text: &str| world.console.answer(text);
    let registry = Registry::new(world, &ready.registry);
    let unix_s = world.clock.unix_s();
    let decision = ready
        .compared()
        .map(|(baseline, candidate)| registry.decide(baseline, candidate, uncommitted, unix_s));
    let decision = decision.transpose()?;
    let verdict = match &decision {
        Some(decision) => decision.sentence.clone(),
        None => format!("not compared with another release; {}", validity(records)),
    };
    answer("")?;
    answer(&wrapped(&format!("verdict  {verdict}"), 9))?;
    match uncommitted {
        None => print_paths(world, ready, commit)?,
        Some(staged) => {
            answer(&format!("records  {} (not committed)", world.places.shown(staged)))?;
        }
    }
    answer(&format!("next     {}", next_command(ready, decision.as_ref(), uncommitted.is_some())))?;
    Ok(())
}

/// Counts the runs by their headline verdict: `12 runs: 11 valid, 1 degraded`.
fn validity(records: &[RunRecord]) -> String {
    let mut counts: BTreeMap<ValidityVerdict, usize> = BTreeMap::new();
    for record in records {
        *counts.entry(headline(record)).or_default() += 1;
    }
    let counts = counts.iter().map(|(verdict, count)| format!("{count} {}", verdict.name()));
    format!("{}: {}", plural(records.len(), "run"), counts.collect::<Vec<_>>().join(", "))
}

/// Returns the command to go on with: the whole comparison for a release that is held, the same
/// campaign again where it was inconclusive, else the site.
fn next_command(ready: &PreparedCampaign, decision: Option<&Decision>, staged: bool) -> String {
    let again = || format!("cargo xtask {}", shell::line(&ready.command));
    match (decision.map(|decision| decision.verdict), ready.compared()) {
        (Some(DecisionKind::Hold), Some((baseline, candidate))) if !staged => {
            format!("cargo xtask diff {baseline} {}", candidate.release)
        }
        (Some(DecisionKind::Inconclusive), _) => again(),
        _ if staged => again(),
        _ => "cargo xtask site --open".to_owned(),
    }
}

/// Writes the campaign's record, and commits all records if they are those of releases; returns the
/// commit's hash if its tool reported one.
///
/// # Errors
/// A record is refused, a file cannot be written, a tool fails, or the command is interrupted.
pub fn publish(
    world: &World,
    ready: &PreparedCampaign,
    records: &[RunRecord],
    mut campaign: CampaignRecord,
    journal: &mut Journal,
) -> Result<Option<String>, Stop> {
    write_campaign(&journal.places.staged(), &mut campaign)?;
    if ready.commits { commit(world, ready, records, journal) } else { Ok(None) }
}

/// Renders the pages, commits the staged results unless the journal says that they are committed,
/// and builds the site; returns the commit's hash if one was reported.
fn commit(
    world: &World,
    ready: &PreparedCampaign,
    records: &[RunRecord],
    journal: &mut Journal,
) -> Result<Option<String>, Stop> {
    let registry = Registry::new(world, &ready.registry);
    let staged = journal.places.staged();
    world.step("Render pages");
    // Undoes what a writer that was killed has left, since pages would show it.
    if journal.state.committed.is_none() {
        registry.preflight()?;
    }
    registry.render_pages(&staged)?;
    world.step("Commit the records");
    // The journal is asked first: after a crash the records may be in the registry already.
    let commit = match journal.state.committed.clone() {
        Some(commit) => commit,
        None => {
            let commit = registry.record(&staged, &message(ready, records))?;
            journal.note(Line::Committed { commit: commit.clone() })?;
            commit
        }
    };
    world.step("Build the site");
    registry.build_site(&world.places.site())?;
    Ok(commit)
}

/// Builds the campaign's record, without its hash and without verdicts.
///
/// # Errors
/// The files of an alternating comparison are missing, damaged or invalid.
pub fn campaign_record(
    world: &World,
    ready: &PreparedCampaign,
    records: &[RunRecord],
    journal: &Journal,
) -> Result<CampaignRecord, Stop> {
    let (plan, state) = (&ready.plan, &journal.state);
    let planned = state.runs_planned().into_values().map(|run| campaign::PlannedRun {
        run: run.run.clone(),
        engine: plan.variants[run.variant].engine.clone(),
        release: plan.variants[run.variant].release.clone(),
        model: plan.cells[run.cell].model.clone(),
        scenario: plan.cells[run.cell].scenario.clone(),
        block: run.block,
        position: run.position,
        stage: run.stage,
    });
    let mut seen = BTreeSet::new();
    let releases = plan.variants.iter().map(|variant| &variant.release);
    let releases = releases.filter(|release| seen.insert(*release)).cloned().collect();
    // Sum over all runs; jobs on several machines may have run at the same time.
    let wall_us: u64 = state.jobs.iter().map(|job| job.wall_us).sum();
    let budget = [("wall_us_expected", ready.expected_us), ("wall_us", wall_us)];
    Ok(CampaignRecord {
        schema: SCHEMA.to_owned(),
        id: plan.campaign.clone(),
        record_sha256: String::new(),
        command: ready.command.iter().map(|word| world.identity.redact(word)).collect(),
        releases,
        hardware: ready.hardware.0.id.clone(),
        plan: planned.collect(),
        random_order_seed: plan.random_order_seed,
        policy: ready.lab.as_ref().map(|lab| lab.outline.policy.clone()),
        noise_floor: None,
        verdicts: Vec::new(),
        budget: budget.map(|(key, us)| (key.to_owned(), Value::from(us))).into(),
        lab: ready.lab.as_ref().map(|lab| Box::new(lab.asked.clone())),
        status: match records.iter().any(is_bad) || records.len() < state.runs_planned().len() {
            true => CampaignStatus::Partial,
            false => CampaignStatus::Complete,
        },
        alternations: comparisons(world, ready, journal)?,
        absent: BTreeMap::new(),
    })
}

/// Adds to a campaign's record what a comparison says about it: policy, noise, and the verdicts on
/// release-blocking metrics in those cells that the comparison judges by the campaign's runs.
fn add_verdicts(record: &mut CampaignRecord, compared: &Diff) {
    let noise = compared.noise_pct.get(&record.id).cloned();
    let is_own = |cell: &&CellDiff| cell.judged.as_ref() == Some(&record.id);
    let rows = compared.cells.iter().filter(is_own).flat_map(|cell| &cell.rows);
    let verdicts = rows.filter(|row| row.gates).map(|row| row.verdict.clone()).collect();
    record.policy = Some(compared.policy.clone());
    record.noise_floor = noise.filter(|noise| !noise.is_empty());
    record.verdicts = verdicts;
}

/// Formats the message of the commit: what was measured, on which hardware, and how many runs
/// failed or are invalid.
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

/// Prints where the releases' pages and the site lie, and the commit.
///
/// # Errors
/// Standard output cannot be written.
pub fn print_paths(
    world: &World,
    ready: &PreparedCampaign,
    commit: Option<&str>,
) -> Result<(), PrintError> {
    let results = ready.registry.join("results");
    let shown = |path: &Path| world.places.shown(path);
    let answer = |text: String| world.console.answer(&text);
    for (engine, release) in ready.plan.releases() {
        let page = schema::path::of_page(engine, release, &ready.hardware.0.id);
        answer(format!("page     {}", shown(&results.join(page))))?;
    }
    answer(format!("site     {}", shown(&world.places.site().join("index.html"))))?;
    if let Some(commit) = commit {
        answer(format!("commit   {commit}"))?;
    }
    Ok(())
}

/// Formats tables that compare the plan's first variant with each variant of another engine, one
/// table for each pair and cell; `None` if the plan has one engine only.
fn engines_table(plan: &Plan, records: &[RunRecord]) -> Option<String> {
    let first = plan.variants.first()?;
    let others = (0..plan.variants.len()).filter(|at| plan.variants[*at].engine != first.engine);
    let mut text = String::new();
    for other in others {
        for cell in 0..plan.cells.len() {
            cell_table(plan, records, cell, other, &mut text);
        }
    }
    (!text.is_empty()).then_some(text)
}

fn cell_table(plan: &Plan, records: &[RunRecord], cell: usize, other: usize, text: &mut String) {
    let runs = |variant: usize| -> Vec<&RunRecord> {
        let planned = plan.runs.iter().filter(|run| (run.cell, run.variant) == (cell, variant));
        planned.filter_map(|run| records.iter().find(|record| record.id == run.run)).collect()
    };
    let (ours, theirs) = (runs(0), runs(other));
    let title = |at: usize| format!("{} {}", plan.variants[at].engine, plan.variants[at].title());
    let heading = format!("{}, {}", plan.cells[cell].scenario, plan.cells[cell].model);
    let (left, right) = (title(0), title(other));
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{heading:<36} {left:>18} {right:>18} {:>7}  interval", "ratio");
    let pairs = InTurns::newest(&ours, &theirs);
    for (title, name) in ROWS {
        let row = pairs.as_ref().zip(by_name(name)).and_then(|(pairs, metric)| {
            let scale = if metric.unit == Unit::Microseconds { 1e-3 } else { 1.0 };
            let median = |runs: &[&RunRecord]| {
                let paired = runs.iter().copied().filter(|run| pairs.holds(run));
                summary::of_metric(metric, paired).map(|found| found.median * scale)
            };
            Some((median(&ours)?, median(&theirs)?, pairs.ratio(metric, &standard().file)?))
        });
        let _ = match row {
            Some((ours, theirs, ratio)) => {
                let interval = ratio.interval.map(|(low, high)| format!("{low:.2} to {high:.2}, "));
                let (interval, pairs) = (interval.unwrap_or_default(), ratio.pairs);
                let mean = ratio.mean;
                writeln!(
                    text,
                    "{title:<36} {ours:>18.2} {theirs:>18.2} {mean:>6.2}x  {interval}n={pairs}"
                )
            }
            None => writeln!(text, "{title:<36} {:>18}", "no pair has it"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Cell, PlannedRun, Round, Variant, interleave};
    use expect_test::expect;
    use samples::{Sample, campaign_id};

    /// Builds, for tests, plan and records of a campaign on a machine that is twice as fast in the
    /// second block; the first engine is 3 times as fast as the second.
    fn campaign(engines: [&str; 2], repeats: u32) -> (Plan, Vec<RunRecord>) {
        let mut serial = 0;
        let runs = interleave(&Round::first(1, 2, repeats), || {
            serial += 1;
            campaign_id(serial)
        });
        let cell = Cell { model: "m".into(), tp: 1, scenario: "talk".into(), ..Cell::default() };
        let variants = engines.map(|engine| Variant::plain(engine, "v1.0.0")).to_vec();
        let record = |(serial, run): (u64, &PlannedRun)| {
            let speed = f64::from(run.repeat) * if run.variant == 0 { 3.0 } else { 1.0 };
            let place = (campaign_id(1), run.block, run.position);
            let engine = engines[run.variant].to_owned();
            let sample =
                Sample { engine, campaign: place, serial, seed: 7, speed, ..Sample::default() };
            RunRecord { id: run.run.clone(), ..sample.record() }
        };
        let records = (1..).zip(&runs).map(record).collect();
        (Plan { variants, cells: vec![cell], runs, ..Plan::default() }, records)
    }

    #[test]
    fn two_engines_are_shown_pair_by_pair() {
        let (plan, records) = campaign(["fast", "slow"], 2);
        expect![[r#"
            talk, m                                     fast v1.0.0        slow v1.0.0   ratio  interval
            output tokens/s                                 5905.53            1968.51   3.00x  3.00 to 3.00, n=2
            requests/s                                        46.14              15.38   3.00x  3.00 to 3.00, n=2
            TTFT p50, ms                                      96.66             289.98   0.33x  0.33 to 0.33, n=2
            TPOT p50, ms                                       5.00              15.00   0.33x  0.33 to 0.33, n=2
        "#]].assert_eq(&engines_table(&plan, &records).unwrap());
    }

    #[test]
    fn one_engine_has_no_table() {
        let (plan, records) = campaign(["same", "same"], 1);
        assert_eq!(engines_table(&plan, &records), None);
    }
}
