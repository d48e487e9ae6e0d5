//! Rounds and conclusion of a lab: runs one round after the other until the registry requests none,
//! then prints what was found and the command that starts the recommended server. The order of
//! candidates rotates from block to block, and a candidate whose server fails is not started again
//! in that round.

use std::collections::BTreeSet;
use std::path::Path;

use judge::diff::policy::standard;
use judge::lab::{self, Next, text};
use schema::exit::Exit;
use schema::lab::{Candidate, LabStage, Round, flag_name};
use schema::run::{RunRecord, Status};
use schema::shell;
use schema::untrusted::one_line;
use schema::verdict::Stage;
use toml::{Table, Value};

use super::plan::{lowered, measured_us};
use crate::build::variants::REDLINE;
use crate::console::about;
use crate::executor::Executor;
use crate::executor::drive::{Drive, jobs_of};
use crate::executor::job;
use crate::executor::journal::{Journal, Line, PreparedCampaign, PreparedLab};
use crate::files::write_whole;
use crate::plan::{PlannedRun, Variant};
use crate::publish::Registry;
use crate::publish::finish::{campaign_record, print_paths, publish};
use crate::server_spec::{Filling, recorded_line};
use crate::stop::{Stop, wrong_use};
use crate::world::{Ids, World};

/// Name of the file with the recommended server flags, in the campaign's folder.
const PROFILE: &str = "recommended.toml";

/// A lab in progress: its rounds are planned and run one after the other.
pub struct Explore<'a> {
    pub world: &'a World,
    pub executor: &'a dyn Executor,
    pub journal: &'a mut Journal,
    /// Generator of ids for runs that will be planned.
    pub ids: Ids,
}

/// Returns the lab of a campaign.
///
/// # Panics
/// The campaign is not one of a lab.
pub fn lab_of(ready: &PreparedCampaign) -> &PreparedLab {
    ready.lab.as_deref().expect("a campaign with rounds is a lab's")
}

/// Returns the next round of a campaign's lab or its conclusion, from the records in the registry
/// and in the staged results.
///
/// # Errors
/// The records cannot be read.
pub fn next(world: &World, ready: &PreparedCampaign, staged: &Path) -> Result<Next, Stop> {
    let wanted = |path: &str| matches!(path.split('/').next(), Some("runs" | "events"));
    let results = Registry::new(world, &ready.registry).results();
    let loaded = store::load_figures(&[&results, staged], &wanted)?;
    let runs = loaded.standing().map(|run| &run.record);
    let id = &ready.plan.campaign;
    let of_lab = runs.filter(|run| run.campaign.as_ref().is_some_and(|of| of.id == *id));
    let asked = &lab_of(ready).asked;
    Ok(lab::replay(&asked.file, &standard().file, asked.runs_max, of_lab).next)
}

impl Explore<'_> {
    /// Runs round after round of the lab until the registry can conclude.
    ///
    /// # Errors
    /// The command is interrupted, a job cannot be carried out, a record cannot be read, the
    /// journal cannot be written, or the registry requests the same runs again.
    pub fn carry_out(&mut self) -> Result<(), Stop> {
        // First the jobs that an earlier process has planned, after a resume.
        self.drive()?;
        while let Next::Round(round) = self.next()? {
            if let Some(runs_max) =
                lowered(lab_of(self.journal.prepared()), &self.journal.state, &round)
            {
                let note = format!("runs take longer than expected: at most {runs_max} are made");
                self.world.console.note(&note);
                self.journal.note(Line::Allowed { runs_max })?;
                continue;
            }
            self.announce(&round);
            let before = self.journal.state.jobs.len();
            while self.plan(&round)? {
                self.drive()?;
            }
            // Without this check, a round that plans no job would be requested for ever.
            if self.journal.state.jobs.len() == before {
                let block = round.block;
                return Err(wrong_use!("the registry requests the runs from block {block} again")
                    .with_hint("if records of this lab were retracted, start it again"));
            }
        }
        Ok(())
    }

    fn drive(&mut self) -> Result<(), Stop> {
        let ready = self.journal.prepared().clone();
        Drive::new(self.world, self.executor, &ready, self.journal).carry_out(None)
    }

    fn next(&self) -> Result<Next, Stop> {
        next(self.world, self.journal.prepared(), &self.journal.places.staged())
    }

    fn announce(&self, round: &Round) {
        let lab = lab_of(self.journal.prepared());
        let runs = round.candidates.len() * lab.asked.file.profiles.len() * round.repeats as usize;
        let each = measured_us(&self.journal.state).unwrap_or(lab.each_us);
        let title = match round.stage {
            LabStage::Engines => "Which engine",
            LabStage::Options => "Which options",
            LabStage::Combinations => "Which combinations",
            LabStage::Factorial => "Which options and pairs",
            LabStage::Confirm => "Confirm on fresh servers",
        };
        let heading = format!(
            "{title}: {} candidates, {runs} runs, {}; {} of at most {} are done",
            round.candidates.len(),
            about(each.saturating_mul(runs as u64)),
            round.runs,
            lab.runs_most(),
        );
        self.world.step(&heading);
    }

    /// Plans the next block of a round, or all blocks on an executor that runs jobs in parallel.
    /// Returns false if no block is left.
    fn plan(&mut self, round: &Round) -> Result<bool, Stop> {
        let profiles = self.profiles();
        let planned: BTreeSet<u32> = self.planned().map(|run| run.block).collect();
        let failed = self.failed(round)?;
        let mut runs = Vec::new();
        for index in 0..round.repeats * profiles {
            if planned.contains(&(round.block + index)) {
                continue;
            }
            runs.extend(self.block(round, (index / profiles, index % profiles), &failed)?);
            // One block at a time on this machine, so that a server's failure is known before the
            // next.
            if self.executor.is_here() && !runs.is_empty() {
                break;
            }
        }
        if runs.is_empty() {
            return Ok(false);
        }
        let jobs = jobs_of(&self.journal.prepared().plan.campaign, &runs);
        self.journal.note(Line::Planned { stage: None, jobs })?;
        Ok(true)
    }

    /// Plans a block of a lab's round: one run, under one profile, of each candidate of the round
    /// that has no failed run in it. The order of the candidates rotates from block to block.
    fn block(
        &mut self,
        round: &Round,
        (repeat, profile): (u32, u32),
        failed: &BTreeSet<usize>,
    ) -> Result<Vec<PlannedRun>, Stop> {
        let profiles = self.profiles();
        let mut order = Vec::new();
        for candidate in &round.candidates {
            order.push(self.variant(candidate)?);
        }
        // Rotation gives each candidate each position equally often, against drift of the machine.
        let first = (repeat + profile) as usize % order.len().max(1);
        order.rotate_left(first);
        order.retain(|variant| !failed.contains(variant));
        let (block, cell) = (round.block + repeat * profiles + profile, profile as usize);
        let stage = (round.stage == LabStage::Confirm).then_some(Stage::Confirm);
        let mut runs = Vec::new();
        for (position, variant) in (0..).zip(order) {
            let repeat = 1 + self.planned_runs(variant, cell);
            runs.push(PlannedRun {
                run: self.ids.next_id(),
                variant,
                cell,
                block,
                position,
                repeat,
                stage,
                server: None,
            });
        }
        Ok(runs)
    }

    /// Returns the index of a candidate's variant in the plan; a new variant is added through the
    /// journal.
    fn variant(&mut self, candidate: &Candidate) -> Result<usize, Stop> {
        let known = self.journal.prepared();
        let of = candidate.engine;
        let variant = lab_of(known).variant(candidate, &known.plan.variants[of]);
        if let Some(index) = known.plan.variants.iter().position(|other| *other == variant) {
            return Ok(index);
        }
        let index = known.plan.variants.len();
        self.journal.note(Line::Variant { of, variant })?;
        Ok(index)
    }

    fn profiles(&self) -> u32 {
        let profiles = lab_of(self.journal.prepared()).asked.file.profiles.len();
        u32::try_from(profiles).unwrap_or(u32::MAX)
    }

    /// Returns the number of planned runs of a variant in a cell; a retried run counts once.
    fn planned_runs(&self, variant: usize, cell: usize) -> u32 {
        let runs = self.planned().filter(|run| (run.variant, run.cell) == (variant, cell));
        let blocks: BTreeSet<u32> = runs.map(|run| run.block).collect();
        u32::try_from(blocks.len()).unwrap_or(u32::MAX)
    }

    fn planned(&self) -> impl Iterator<Item = &PlannedRun> {
        self.journal.state.jobs.iter().flat_map(|job| &job.planned.runs)
    }

    /// Returns the indices of the variants that have a failed run in `round`, and are therefore not
    /// run again in it.
    fn failed(&self, round: &Round) -> Result<BTreeSet<usize>, Stop> {
        let mut failed = BTreeSet::new();
        let variants = &self.journal.prepared().plan.variants;
        for record in job::records(&self.journal.places.staged())? {
            let block = record.campaign.as_ref().map(|of| of.block);
            if record.status != Status::Failed || block < Some(round.block) {
                continue;
            }
            let name = record.server.as_ref().and_then(|server| server.variant.clone());
            failed.extend(
                variants.iter().position(|variant| {
                    variant.engine == record.engine.name && variant.name == name
                }),
            );
        }
        Ok(failed)
    }
}

/// Publishes a lab's records and prints its conclusion and the recommended command. The exit code
/// tells if a configuration is recommended, none meets the limits, or the lab is not finished.
///
/// # Errors
/// A record is refused or cannot be read, the engine's file has no flag for a setting of the
/// recommended server, a tool fails, a file cannot be written, or the command is interrupted.
pub fn finish(
    world: &World,
    ready: &PreparedCampaign,
    records: &[RunRecord],
    journal: &mut Journal,
) -> Result<Exit, Stop> {
    let record = campaign_record(world, ready, records, journal)?;
    let commit = publish(world, ready, records, record, journal)?;
    let exit = report(world, ready, journal)?;
    print_paths(world, ready, commit.as_deref())?;
    Ok(exit)
}

fn report(world: &World, ready: &PreparedCampaign, journal: &Journal) -> Result<Exit, Stop> {
    let lab = lab_of(ready);
    let next = next(world, ready, &journal.places.staged())?;
    world.console.answer(&format!("\n{}\n", text::text(&lab.asked.file, &next)))?;
    let recommended = match next {
        Next::Conclusion(found) => found.recommended,
        Next::Round(_) => {
            world.console.note("the lab is not finished: nothing is recommended yet");
            return Ok(Exit::Inconclusive);
        }
    };
    // No configuration runs within the limits: a result, reported by exit code 1.
    let Some(candidate) = recommended else { return Ok(Exit::Worse) };
    let variant = lab.variant(&candidate, &ready.plan.variants[candidate.engine]);
    world.console.answer(&format!("serve    {}", serve(ready, lab, &candidate, &variant)?))?;
    if let Some(text) = (variant.engine == REDLINE).then(|| profile(&variant.flags)).flatten() {
        let path = journal.places.dir.join(PROFILE);
        write_whole(&path, text.as_bytes())?;
        let shown = world.places.shown(&path);
        world.console.answer(&format!("profile  {shown}, for `redline serve MODEL --profile`"))?;
    }
    Ok(Exit::Well)
}

/// Returns the command line that starts the recommended server.
fn serve(
    ready: &PreparedCampaign,
    lab: &PreparedLab,
    candidate: &Candidate,
    variant: &Variant,
) -> Result<String, Stop> {
    let model = &lab.asked.file.model;
    let spec = ready.variants[candidate.engine].with_variant(variant.clone());
    if variant.engine == REDLINE {
        let mut words = vec!["cargo", "xtask", "serve", &variant.release, "--model", model];
        words.extend((!variant.flags.is_empty()).then_some("--"));
        words.extend(variant.flags.iter().map(String::as_str));
        return Ok(pasted(&words));
    }
    let cell = ready.plan.cells.first();
    let filling = Filling {
        tp: cell.map_or(1, |cell| cell.tp),
        host: None,
        port: None,
        observed: false,
        ..spec.filling(model, 0)
    };
    let image = spec.built.image.as_ref();
    Ok(pasted(&recorded_line(&spec.engine.file, filling, image, ready.on_gpu)?))
}

/// Returns a command line for the shell, without characters that a terminal acts on.
fn pasted(words: &[impl AsRef<str>]) -> String {
    shell::line(&words.iter().map(|word| one_line(word.as_ref())).collect::<Vec<_>>())
}

/// Returns server flags as the text of a file for `redline serve --profile`; `None` without flags.
fn profile(flags: &[String]) -> Option<String> {
    let mut table = Table::new();
    let mut name = None;
    for word in flags {
        match (flag_name(word), &name) {
            (Some(flag), _) => {
                let key = flag.trim_start_matches('-').to_owned();
                let value = word.split_once('=').map(|(_, value)| typed(value));
                table.insert(key.clone(), value.unwrap_or(Value::Boolean(true)));
                name = Some(key);
            }
            (None, Some(key)) => {
                table.insert(key.clone(), typed(word));
            }
            (None, None) => {}
        }
    }
    (!table.is_empty()).then(|| table.to_string())
}

/// Converts a flag's value to a TOML number if it is one, else to a string.
fn typed(value: &str) -> Value {
    let whole = value.parse().map(Value::Integer);
    let real = value.parse().map(Value::Float);
    whole.or(real).unwrap_or_else(|_| Value::String(value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn recommended_flags_are_a_profile() {
        let flags = "--threads 1 --no-prefix-cache --kv-dtype f16 --cache-max-entry-count=0.5";
        expect![[r#"
            cache-max-entry-count = 0.5
            kv-dtype = "f16"
            no-prefix-cache = true
            threads = 1
        "#]]
        .assert_eq(&profile(&words(flags)).unwrap());
        assert_eq!(profile(&[]), None);
    }

    #[test]
    fn a_command_can_be_pasted() {
        let line = [words("serve --threads 1"), vec!["{\"a\": 1}".to_owned(), "it's".to_owned()]];
        assert_eq!(pasted(&line.concat()), r#"serve --threads 1 '{"a": 1}' 'it'\''s'"#);
        assert_eq!(pasted(&["\u{1b}c"]), r"'\u{1b}c'");
    }
}
