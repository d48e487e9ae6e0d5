//! Made-up figures of a simulation: those of a run depend on its place in the plan alone, so that a
//! run that is repeated has the same.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use samples::Sample;
use samples::alternation::InTurns;
use schema::alternation::{AlternatingComparison, Start};
use schema::run::{EngineFacts, HardwareFacts, RunRecord};

use crate::executor::job::Job;
use crate::node::alternation::Alternating;
use crate::node::run::{Bench, SharedServer};
use crate::node::{Inspected, Instruments};
use crate::plan::PlannedRun;
use crate::server_spec::{ReadyCell, ServerSpec};
use crate::stop::Stop;
use crate::world::World;

/// Time of a run.
const RUN: Duration = Duration::from_secs(20);
/// Number of starts of a comparison in turns.
const STARTS: usize = 3;
/// Speed of the candidate; that of the baseline is 1.
const SPEED: f64 = 0.8;
/// Release that is compared with.
pub const BASELINE: &str = "v0.9.1";
/// Release that is measured.
pub const CANDIDATE: &str = "v0.9.2";

/// Instruments of the simulated nodes.
#[derive(Debug, Default)]
pub struct Figures {
    /// Number of runs that were measured.
    pub measured: Cell<u32>,
    /// Records by release, and by block, repeat and stage: a record takes milliseconds to make.
    made: RefCell<BTreeMap<String, RunRecord>>,
}

/// Returns the hardware of all simulated nodes.
pub fn hardware() -> HardwareFacts {
    HardwareFacts { id: Sample::default().hardware, ..HardwareFacts::default() }
}

/// Returns facts about the engine of a release.
pub fn engine(release: &str) -> EngineFacts {
    Sample { release: release.to_owned(), ..Sample::default() }.record().engine
}

impl Figures {
    fn record(&self, planned: &PlannedRun, spec: &ServerSpec, cell: &ReadyCell) -> RunRecord {
        let release = &spec.built.facts.release;
        let PlannedRun { cell: number, block, position, repeat, stage, .. } = planned;
        let key = format!("{release} {number} {block} {position} {repeat} {stage:?}");
        let mut made = self.made.borrow_mut();
        let make = || {
            let sample = Sample {
                release: release.clone(),
                model: cell.cell.model.clone(),
                scenario: cell.scenario.id.clone(),
                seed: u64::from(block * 10 + position + 1),
                speed: if release == CANDIDATE { SPEED } else { 1.0 },
                repeat: *repeat,
                stage: *stage,
                ..Sample::default()
            };
            // The histograms are most of a record's bytes, and nothing here depends on them.
            RunRecord { histograms: None, ..sample.record() }
        };
        made.entry(key).or_insert_with(make).clone()
    }
}

impl Instruments for Figures {
    fn inspect(&self, _: &World, _: &Job, _: &Path) -> Result<Inspected, Stop> {
        Ok(Ok(hardware()))
    }

    fn run(
        &self,
        bench: &Bench<'_>,
        planned: &PlannedRun,
        spec: &ServerSpec,
        cell: &ReadyCell,
        _: &mut SharedServer,
    ) -> Result<RunRecord, Stop> {
        self.measured.set(self.measured.get() + 1);
        bench.world.clock.sleep(RUN);
        let (id, campaign) = (planned.run.clone(), Some(bench.in_campaign(planned)));
        Ok(RunRecord { id, campaign, ..self.record(planned, spec, cell) })
    }

    fn alternate(
        &self,
        alternating: &Alternating<'_>,
        earlier: Vec<Start>,
        after: &mut dyn FnMut(&AlternatingComparison) -> Result<(), Stop>,
    ) -> Result<AlternatingComparison, Stop> {
        let world = alternating.bench.world;
        let whole = InTurns {
            model: alternating.cell.cell.model.clone(),
            scenario: format!("{}@1", alternating.cell.scenario.id),
            speed: SPEED,
            ..InTurns::default()
        };
        let whole = whole.comparison();
        let mut comparison = AlternatingComparison { starts: earlier, ..whole.clone() };
        for start in whole.starts.iter().take(STARTS).skip(comparison.starts.len()) {
            world.interrupt.check()?;
            self.measured.set(self.measured.get() + 1);
            world.clock.sleep(RUN);
            comparison.starts.push(start.clone());
            after(&comparison)?;
        }
        Ok(comparison)
    }
}
