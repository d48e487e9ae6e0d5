//! Rounds of a lab: runs one round after the other until the registry requests none. The order of
//! candidates rotates from block to block, and a candidate whose server fails is not started again
//! in that round.

use std::collections::BTreeSet;

use schema::lab::{Candidate, LabStage, Round};
use schema::run::Status;
use schema::verdict::Stage;

use super::budget::{lowered, measured_us};
use super::question::{self, Next};
use super::spec::PreparedLab;
use crate::console::about;
use crate::executor::Executor;
use crate::executor::collect;
use crate::executor::drive::{Drive, jobs_of};
use crate::executor::journal::{Journal, Line};
use crate::executor::prepared::PreparedCampaign;
use crate::plan::PlannedRun;
use crate::publish::Registry;
use crate::stop::Stop;
use crate::world::{Ids, World};

/// A lab in progress.
pub struct Explore<'a> {
    world: &'a World,
    executor: &'a dyn Executor,
    journal: &'a mut Journal,
    /// Generator of ids for runs that are yet to be planned.
    ids: Ids,
}

/// Returns the campaign from the first line of its journal.
///
/// # Panics
/// The campaign is not in the journal yet.
pub fn ready(journal: &Journal) -> &PreparedCampaign {
    journal.state.ready.as_ref().expect("a campaign is written down before it is carried out")
}

fn lab(ready: &PreparedCampaign) -> &PreparedLab {
    ready.lab.as_deref().expect("a campaign with rounds is a lab's")
}

impl<'a> Explore<'a> {
    pub fn new(
        world: &'a World,
        executor: &'a dyn Executor,
        journal: &'a mut Journal,
        ids: Ids,
    ) -> Self {
        Self { world, executor, journal, ids }
    }

    /// Runs round after round until the registry can conclude.
    ///
    /// # Errors
    /// Interrupted, a job cannot be carried out, or the registry's tool fails.
    pub fn carry_out(&mut self) -> Result<(), Stop> {
        // First the jobs that an earlier process has planned, after a resume.
        self.drive()?;
        while let Some(round) = self.next()? {
            if let Some(runs_max) = lowered(lab(ready(self.journal)), &self.journal.state, &round) {
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
                let message = format!("the registry requests the runs from block {block} again");
                return Err(Stop::wrong_use(message)
                    .with_hint("if records of this lab were retracted, start it again"));
            }
        }
        Ok(())
    }

    fn drive(&mut self) -> Result<(), Stop> {
        let ready = ready(self.journal).clone();
        Drive::new(self.world, self.executor, &ready, self.journal).carry_out(None)
    }

    /// Asks the registry for the next round; `None` when it can conclude.
    fn next(&self) -> Result<Option<Round>, Stop> {
        let ready = ready(self.journal);
        let registry = Registry::new(self.world, &ready.registry);
        let staged = self.journal.places().staged();
        match question::next(&registry, lab(ready), &ready.plan.campaign, &staged)?.next {
            Next::Round(round) => Ok(Some(round)),
            Next::Conclusion(_) => Ok(None),
        }
    }

    fn announce(&self, round: &Round) {
        let lab = lab(ready(self.journal));
        let launches =
            round.candidates.len() * lab.asked.file.profiles.len() * round.repeats as usize;
        let each = measured_us(&self.journal.state).unwrap_or(lab.each_us);
        let title = match round.stage {
            LabStage::Engines => "Which engine",
            LabStage::Options => "Which options",
            LabStage::Combinations => "Which combinations",
            LabStage::Confirm => "Confirm on fresh servers",
        };
        let heading = format!(
            "{title}: {} candidates, {launches} runs, {}; {} of at most {} are done",
            round.candidates.len(),
            about(each.saturating_mul(launches as u64)),
            round.runs,
            lab.runs_most(),
        );
        self.world.console.step(self.world.clock.elapsed(), &heading);
    }

    /// Plans the next block of a round, or all of them on an executor that runs jobs in parallel.
    /// Returns false if no block is left.
    fn plan(&mut self, round: &Round) -> Result<bool, Stop> {
        let profiles = self.profiles();
        let planned: BTreeSet<u32> = self.slots_planned().map(|slot| slot.block).collect();
        let failed = self.failed(round)?;
        let mut slots = Vec::new();
        for index in 0..round.repeats * profiles {
            if planned.contains(&(round.block + index)) {
                continue;
            }
            slots.extend(self.block(round, (index / profiles, index % profiles), &failed)?);
            // One block at a time on this machine, so that a server's failure is known before the
            // next.
            if self.executor.is_here() && !slots.is_empty() {
                break;
            }
        }
        if slots.is_empty() {
            return Ok(false);
        }
        let jobs = jobs_of(&ready(self.journal).plan.campaign, &slots);
        self.journal.note(Line::Planned { stage: None, jobs })?;
        Ok(true)
    }

    /// Plans one run of each candidate that has not failed; the order rotates from block to block.
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
        let mut slots = Vec::new();
        for (position, variant) in (0..).zip(order) {
            let repeat = 1 + self.launches(variant, cell);
            slots.push(PlannedRun {
                run: self.ids.next_id(),
                variant,
                cell,
                block,
                position,
                repeat,
                stage,
            });
        }
        Ok(slots)
    }

    /// Returns the index of a candidate's variant; a new variant is added through the journal.
    fn variant(&mut self, candidate: &Candidate) -> Result<usize, Stop> {
        let known = ready(self.journal);
        let of = candidate.engine;
        let variant = lab(known).variant(candidate, &known.plan.variants[of]);
        if let Some(index) = known.plan.variants.iter().position(|other| *other == variant) {
            return Ok(index);
        }
        let index = known.plan.variants.len();
        self.journal.note(Line::Variant { of, variant })?;
        Ok(index)
    }

    fn profiles(&self) -> u32 {
        let profiles = lab(ready(self.journal)).asked.file.profiles.len();
        u32::try_from(profiles).unwrap_or(u32::MAX)
    }

    /// Number of planned runs of a variant in a cell; a retried run counts once.
    fn launches(&self, variant: usize, cell: usize) -> u32 {
        let slots =
            self.slots_planned().filter(|slot| (slot.variant, slot.cell) == (variant, cell));
        let blocks: BTreeSet<u32> = slots.map(|slot| slot.block).collect();
        u32::try_from(blocks.len()).unwrap_or(u32::MAX)
    }

    fn slots_planned(&self) -> impl Iterator<Item = &PlannedRun> {
        self.journal.state.jobs.iter().flat_map(|job| &job.planned.slots)
    }

    /// Indices of variants whose server has failed in this round; further runs of them would not
    /// count.
    fn failed(&self, round: &Round) -> Result<BTreeSet<usize>, Stop> {
        let mut failed = BTreeSet::new();
        let variants = &ready(self.journal).plan.variants;
        for record in collect::records(&self.journal.places().staged())? {
            let block = record.campaign.as_ref().map(|slot| slot.block);
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
