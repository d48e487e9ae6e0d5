//! What whoever waits is told of the runs of a stage, as the nodes' steps tell it.

use std::collections::BTreeMap;

use schema::verdict::Stage;

use crate::executor::job::JobPlaces;
use crate::executor::journal::Entry;
use crate::executor::prepared::PreparedCampaign;
use crate::node::steps::Step;
use crate::plan::PlannedRun;
use crate::world::World;

/// The headings of a stage, and what was told of each job.
#[derive(Debug)]
pub struct StageLog<'a> {
    world: &'a World,
    /// By run.
    headings: BTreeMap<String, String>,
    /// Steps that were told, by the job's key.
    told: BTreeMap<String, usize>,
    /// The run under whose heading notes are written.
    last: String,
    /// Why a job waits, by its key.
    waits: BTreeMap<String, String>,
    /// The last passing line.
    passed: String,
}

impl<'a> StageLog<'a> {
    /// Of all jobs of a stage, further attempts included.
    #[must_use]
    pub fn of(
        world: &'a World,
        ready: &PreparedCampaign,
        stage: Option<Stage>,
        jobs: &[&Entry],
    ) -> Self {
        let verb = if stage == Some(Stage::Confirm) { "Confirm" } else { "Run" };
        let first = jobs.iter().filter(|job| job.planned.attempt == 1);
        let slots: Vec<&PlannedRun> = first.flat_map(|job| &job.planned.slots).collect();
        let heading = |(index, slot): (usize, &&PlannedRun)| {
            let cell = &ready.cells[slot.cell].scenario.id;
            let (title, repeat) = (title(ready, slot.variant), slot.repeat);
            let total = match &ready.lab {
                Some(lab) => format!("at most {}", lab.runs_most()),
                None => slots.len().to_string(),
            };
            let text = format!("{verb} {} of {total}: {title}, {cell}, repeat {repeat}", index + 1);
            (slot.run.clone(), text)
        };
        let headings = slots.iter().enumerate().map(heading).collect();
        Self {
            world,
            headings,
            told: BTreeMap::new(),
            last: String::new(),
            waits: BTreeMap::new(),
            passed: String::new(),
        }
    }

    /// Passes over what was told before this process was there: all but the run that is under way.
    pub fn skip(&mut self, key: &str, steps: &[Step]) {
        let under_way = matches!(steps.last(), Some(Step::RunBegun { .. }));
        self.told.insert(key.to_owned(), steps.len() - usize::from(under_way));
    }

    /// Tells the steps of a job that were not told yet.
    pub fn follow(&mut self, key: &str, steps: &[Step]) {
        let told = self.told.insert(key.to_owned(), steps.len()).unwrap_or(0);
        for step in steps.iter().skip(told) {
            match step {
                Step::RunBegun { run } => self.head(run, ""),
                Step::RunEnded { run, said, .. } => {
                    if self.last != *run {
                        self.head(run, " (ended)");
                    }
                    said.iter().for_each(|line| self.world.console.note(line));
                }
                Step::Noted { said } => self.world.console.note(said),
                Step::SetAside { .. } => {
                    self.world.console.note("a block that was interrupted begins again");
                }
                Step::Began | Step::BlockBegun { .. } | Step::BlockDone { .. } => {}
            }
        }
    }

    /// Tells why a job does not run yet, once for each reason.
    pub fn waits(&mut self, key: &str, reason: &str) {
        if self.waits.insert(key.to_owned(), reason.to_owned()).as_deref() != Some(reason) {
            self.world.console.note(&format!("job `{key}` waits: {reason}"));
        }
    }

    /// Shows the last that a node has written, where somebody watches.
    pub fn passing(&mut self, places: &JobPlaces) {
        if !self.world.console.is_live() {
            return;
        }
        let log = std::fs::read(places.log()).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        if let Some(line) = log.lines().next_back().filter(|line| *line != self.passed) {
            self.world.console.passing(line);
            line.clone_into(&mut self.passed);
        }
    }

    fn head(&mut self, run: &str, more: &str) {
        let heading = self.headings.get(run).map_or(run, String::as_str);
        self.world.console.step(self.world.clock.elapsed(), &format!("{heading}{more}"));
        run.clone_into(&mut self.last);
    }
}

/// The side's release, and its engine where there are several.
fn title(ready: &PreparedCampaign, variant: usize) -> String {
    let variants = &ready.plan.variants;
    match variants.iter().all(|other| other.engine == variants[variant].engine) {
        true => variants[variant].title(),
        false => format!("{} {}", variants[variant].engine, variants[variant].title()),
    }
}
