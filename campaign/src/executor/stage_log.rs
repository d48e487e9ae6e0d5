//! Progress output of a stage: prints the state of its runs from the step logs that the nodes
//! write.

use std::collections::BTreeMap;

use schema::verdict::Stage;

use crate::executor::job::Step;
use crate::executor::journal::{Entry, PreparedCampaign};
use crate::places::CampaignPlaces;
use crate::plan::{Cell, PlannedRun};
use crate::world::World;

/// Progress printer of a stage: the heading of each run, and how much of each job is printed
/// already.
#[derive(Debug)]
pub struct StageLog<'a> {
    world: &'a World,
    /// Headings of the stage's runs by run id, such as `Run 3 of 20: v0.9.2, balanced, repeat 1`.
    headings: BTreeMap<String, String>,
    /// Number of steps of each job that are printed already, by job key.
    printed: BTreeMap<String, usize>,
    /// Id of the run whose heading was printed last; notes belong under it.
    last: String,
    /// Reason why each job waits, as it was printed last, by job key.
    waits: BTreeMap<String, String>,
    /// Progress line printed last, so that it is not repeated.
    passed: String,
}

impl<'a> StageLog<'a> {
    /// Builds the progress printer for all jobs of a stage, including later attempts.
    pub fn of(
        world: &'a World,
        ready: &PreparedCampaign,
        stage: Option<Stage>,
        jobs: &[&Entry],
    ) -> Self {
        let verb = if stage == Some(Stage::Confirm) { "Confirm" } else { "Run" };
        // Later attempts repeat runs of the first, whose headings are numbered already.
        let first = jobs.iter().filter(|job| job.planned.attempt == 1);
        let runs: Vec<&PlannedRun> = first.flat_map(|job| &job.planned.runs).collect();
        let heading = |(index, run): (usize, &&PlannedRun)| {
            let cell = &ready.cells[run.cell].scenario.id;
            let (title, repeat) = (title(ready, run.variant), run.repeat);
            let total = match &ready.lab {
                Some(lab) => format!("at most {}", lab.runs_most()),
                None => runs.len().to_string(),
            };
            let text = format!("{verb} {} of {total}: {title}, {cell}, repeat {repeat}", index + 1);
            (run.run.clone(), text)
        };
        let compare = |run: &&PlannedRun| {
            let Cell { model, scenario, .. } = &ready.plan.cells[run.cell];
            (run.run.clone(), format!("Compare in turns: {model}, {scenario}"))
        };
        let headings = match stage {
            Some(Stage::Alternate) => runs.iter().map(compare).collect(),
            _ => runs.iter().enumerate().map(heading).collect(),
        };
        Self {
            world,
            headings,
            printed: BTreeMap::new(),
            last: String::new(),
            waits: BTreeMap::new(),
            passed: String::new(),
        }
    }

    /// Marks all steps so far of a job as printed, because they precede this process or this
    /// submission, except a last step that begins a run: the heading of that run is still to be
    /// printed.
    pub fn skip(&mut self, key: &str, steps: &[Step]) {
        let under_way = matches!(steps.last(), Some(Step::RunBegun { .. }));
        self.printed.insert(key.to_owned(), steps.len() - usize::from(under_way));
    }

    /// Prints the steps of the job with this key that are not printed yet: begun and ended runs,
    /// notes, and blocks that begin again. The other kinds of steps print nothing.
    pub fn follow(&mut self, key: &str, steps: &[Step]) {
        let printed = self.printed.insert(key.to_owned(), steps.len()).unwrap_or(0);
        for step in steps.iter().skip(printed) {
            match step {
                Step::RunBegun { run } => self.head(run, ""),
                Step::RunEnded { run, said, .. } => {
                    // On a cluster, runs of several jobs interleave, so the note needs its heading
                    // again.
                    if self.last != *run {
                        self.head(run, " (ended)");
                    }
                    said.iter().for_each(|line| self.world.console.note(line));
                }
                Step::Noted { said } => self.world.console.note(said),
                Step::StartEnded { said, .. } => {
                    said.iter().for_each(|line| self.world.console.note(line));
                }
                Step::SetAside { .. } => {
                    self.world.console.note("a block that was interrupted begins again");
                }
                Step::Began | Step::BlockBegun { .. } | Step::BlockDone { .. } => {}
            }
        }
    }

    /// Prints why a job does not run yet, unless that reason was the last one printed for the job.
    pub fn waits(&mut self, key: &str, reason: &str) {
        if self.waits.insert(key.to_owned(), reason.to_owned()).as_deref() != Some(reason) {
            self.world.console.note(&format!("job `{key}` waits: {reason}"));
        }
    }

    /// Shows the last line of a node's log as a progress line; does nothing if standard error is no
    /// terminal.
    pub fn passing(&mut self, places: &CampaignPlaces) {
        if !self.world.console.is_live() {
            return;
        }
        let log = std::fs::read(places.node_log()).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        if let Some(line) = log.lines().next_back().filter(|line| *line != self.passed) {
            self.world.console.passing(line);
            line.clone_into(&mut self.passed);
        }
    }

    fn head(&mut self, run: &str, more: &str) {
        let heading = self.headings.get(run).map_or(run, String::as_str);
        self.world.step(&format!("{heading}{more}"));
        run.clone_into(&mut self.last);
    }
}

/// Returns the title of a variant: its release and, if it has one, its name, preceded by the engine
/// if the campaign has several engines.
fn title(ready: &PreparedCampaign, variant: usize) -> String {
    let variants = &ready.plan.variants;
    match variants.iter().all(|other| other.engine == variants[variant].engine) {
        true => variants[variant].title(),
        false => format!("{} {}", variants[variant].engine, variants[variant].title()),
    }
}
