//! Outcome of a simulated campaign: the records that it left, without what differs between two
//! campaigns with the same plan.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use schema::alternation::Start;
use schema::campaign::CampaignRecord;
use schema::exit::Exit;
use schema::run::{FailureClass, RunRecord, Status};
use schema::verdict::VerdictKind;

use super::campaigns::gate_out;
use super::time::Time;
use crate::executor::job;
use crate::executor::journal::Journal;
use crate::places::Places;

/// Place of a run in its campaign: release, scenario, block, position and stage.
type Place = (String, String, u32, u32, String);

/// What a finished campaign has left.
#[derive(Debug)]
pub struct Outcome {
    /// Exit code; `None` where the process that finished the campaign was killed.
    pub exit: Option<Exit>,
    /// Figures, status and verdict of each run, by its place in the campaign; in the registry where
    /// the campaign commits, else in its folder.
    pub records: BTreeMap<Place, String>,
    /// Ids of planned runs without a record.
    missing: BTreeSet<String>,
    /// Starts of the alternating comparisons.
    pub starts: Vec<Vec<Start>>,
    /// Verdicts on release-blocking metrics, by the metric.
    verdicts: Vec<(String, VerdictKind)>,
    /// Number of failed runs of each class.
    failed: BTreeMap<String, usize>,
    /// Number of steps of the controller, where nothing disturbed it.
    pub steps: u32,
    /// Number of runs and starts that were measured, where nothing disturbed it.
    pub measured: u32,
}

/// Returns the ids of the campaigns of a clone, oldest first.
pub fn campaigns(clone: &Path) -> Vec<String> {
    let entries = fs::read_dir(Places::new(clone, None).campaigns()).into_iter().flatten();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.collect::<BTreeSet<_>>().into_iter().collect()
}

/// Returns the id of the finished campaign of a clone.
pub fn campaign(clone: &Path) -> Option<String> {
    let places = Places::new(clone, None);
    campaigns(clone).into_iter().find(|id| Journal::read(&places.campaign(id)).unwrap().finished)
}

/// Asserts that the registry of a clone passes its own check.
pub fn expect_sound(clone: &Path, time: &Time) {
    let unix_ms = u64::try_from(time.now().unix_timestamp_nanos() / 1_000_000).unwrap();
    let report = registry::check::check(clone, None, unix_ms).unwrap();
    assert_eq!(report.exit(), Exit::Well, "{report}");
}

impl Outcome {
    /// Reads what the finished campaign of a clone has left.
    pub fn of(clone: &Path, exit: Option<Exit>) -> Self {
        let id = campaign(clone).expect("the campaign is finished");
        let places = Places::new(clone, None).campaign(&id);
        let state = Journal::read(&places).unwrap();
        let ready = state.ready.as_ref().unwrap();
        let (runs, campaign) = if ready.commits {
            let loaded = store::load(&[&clone.join("results")]).unwrap();
            let runs = loaded.runs.into_iter().map(|run| run.record).collect::<Vec<_>>();
            let mut campaigns = loaded.campaigns.into_iter().map(|campaign| campaign.record);
            let campaign = campaigns.next().expect("the campaign's record");
            assert!(campaigns.next().is_none(), "two records of campaigns");
            (runs, campaign)
        } else {
            let text = fs::read_to_string(gate_out(clone).join("campaign.json")).unwrap();
            (job::records(&places.staged()).unwrap(), serde_json::from_str(&text).unwrap())
        };
        let mut missing: BTreeSet<String> =
            state.runs_planned().into_keys().map(str::to_owned).collect();
        for run in &runs {
            assert!(missing.remove(&run.id), "{}: not planned, or recorded twice", run.id);
        }
        Self { missing, ..Self::read(&runs, &campaign, exit) }
    }

    fn read(runs: &[RunRecord], campaign: &CampaignRecord, exit: Option<Exit>) -> Self {
        let mut failed = BTreeMap::new();
        for class in runs.iter().filter_map(|run| Some(run.failure.as_ref()?.class)) {
            *failed.entry(class_name(class)).or_default() += 1;
        }
        let place = |run: &RunRecord| {
            let slot = run.campaign.as_ref().unwrap();
            let (release, scenario) = (run.engine.release.clone(), run.scenario.id.clone());
            (release, scenario, slot.block, slot.position, format!("{:?}", slot.stage))
        };
        let verdict = |of: &schema::verdict::Verdict| (of.metric.clone(), of.verdict);
        Self {
            exit,
            records: runs.iter().map(|run| (place(run), figures(run))).collect(),
            missing: BTreeSet::new(),
            starts: campaign.alternations.iter().map(|one| one.starts.clone()).collect(),
            verdicts: campaign.verdicts.iter().map(verdict).collect(),
            failed,
            steps: 0,
            measured: 0,
        }
    }

    /// Asserts that each planned run has its record.
    pub fn expect_all(&self) {
        assert!(self.missing.is_empty(), "planned runs without a record: {:?}", self.missing);
    }

    /// Returns the records that nodes wrote; the controller writes those of runs whose nodes were
    /// lost too often.
    pub fn of_nodes(&self) -> BTreeMap<Place, String> {
        let records = self.records.clone().into_iter();
        records.filter(|(_, figures)| !figures.starts_with("Failed")).collect()
    }

    /// Asserts that the outcome is the one that nothing disturbed, except for runs that failed
    /// because their nodes were lost `lost` times at most.
    pub fn expect(&self, undisturbed: &Self, lost: u32) {
        if self.failed.is_empty() {
            assert_eq!(self.records, undisturbed.records, "the records");
            assert_eq!(self.verdicts, undisturbed.verdicts, "the verdicts");
            assert_eq!(self.starts, undisturbed.starts, "the starts of comparisons in turns");
            assert!(self.exit.is_none() || self.exit == undisturbed.exit, "{:?}", self.exit);
            return;
        }
        assert!(lost > 2, "runs failed after {lost} losses: {:?}", self.failed);
        for (place, figures) in &self.records {
            let same = undisturbed.records.get(place) == Some(figures);
            assert!(same || figures.starts_with("Failed"), "{place:?}: {figures}");
        }
    }
}

fn class_name(class: FailureClass) -> String {
    let name = format!("{class:?}");
    assert!(matches!(class, FailureClass::Infrastructure | FailureClass::Preempted), "{name}");
    name
}

/// Returns the status, the verdict and the figures of a run as a text.
fn figures(run: &RunRecord) -> String {
    if run.status == Status::Failed {
        return format!("Failed: {:?}", run.failure.as_ref().map(|failure| failure.class));
    }
    let metrics = serde_json::to_string(&run.metrics).unwrap();
    format!("{:?} {:?} {metrics}", run.status, run.validity.verdict)
}
