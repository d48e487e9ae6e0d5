//! A ready campaign: planned, built and fetched. Plain data with everything that its runs, records
//! and publication need; the first line of the journal contains it.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::cli::ReleaseBench;
use crate::executor::job::RecordedHardware;
use crate::files::{self, read_text, write_whole};
use crate::lab::PreparedLab;
use crate::launch::{LaunchSpec, ReadyCell};
use crate::node::fitness;
use crate::places::CampaignPlaces;
use crate::plan::brief::CellBrief;
use crate::plan::decide::Decided;
use crate::plan::{Plan, Variant};
use crate::publish::Named;
use crate::stop::Stop;
use crate::world::World;

/// Folder, in the campaign's folder, for copies of the suite's files: edits made during the
/// campaign do not affect its runs.
const SUITE: &str = "suite";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PreparedCampaign {
    /// Arguments of the command as they were typed, without the program's name.
    pub command: Vec<String>,
    pub executor: String,
    /// Additional options for `sbatch`.
    #[serde(default)]
    pub slurm_options: Vec<String>,
    /// Runs that are known from the start; confirmation runs and a lab's rounds follow in the
    /// journal.
    pub plan: Plan,
    /// One for each side of the plan.
    #[serde(rename = "sides")]
    pub variants: Vec<LaunchSpec>,
    /// Cells with their fetched inputs, in the order of the plan's.
    pub cells: Vec<ReadyCell>,
    /// Files that the runs of each cell read, each with its size in bytes; a folder has size 0.
    pub inputs: Vec<Vec<(PathBuf, u64)>>,
    /// Hardware facts, as detected or expected when the campaign began.
    pub hardware: RecordedHardware,
    /// True when each tensor-parallel rank takes a GPU.
    pub on_gpu: bool,
    /// Number of confirmation pairs per cell that differs; `None` without a confirmation stage.
    pub confirm_pairs: Option<u32>,
    /// True when the records are committed. Records of releases are; records of a working tree or
    /// of a server started by somebody else are not.
    pub commits: bool,
    /// Repository whose `results/` receives the records.
    pub registry: PathBuf,
    /// Expected time of all runs of the plan in microseconds.
    pub expected_us: u64,
    /// Expected time of one run in microseconds, by cell and variant; 0 if unknown.
    pub each_us: Vec<Vec<u64>>,
    pub url: Option<String>,
    pub timeout_s: Option<u32>,
    pub max_gpu_hours: Option<f64>,
    /// The lab that plans runs round by round; `None` for a campaign whose plan is complete.
    #[serde(default)]
    pub lab: Option<Box<PreparedLab>>,
}

impl PreparedCampaign {
    /// Combines the decided plan with the built variants and fetched inputs.
    pub fn new(
        world: &World,
        flags: &ReleaseBench,
        decided: &Decided,
        variants: Vec<LaunchSpec>,
        cells: Vec<ReadyCell>,
    ) -> Self {
        let each = |model: &str, scenario: &str, engine: &str| {
            let is_of = |brief: &&CellBrief| {
                let same = brief.engine == engine && brief.model == model;
                same && brief.scenario.split('@').next() == Some(scenario)
            };
            decided.brief.cells.iter().find(is_of).and_then(|brief| brief.each.us()).unwrap_or(0)
        };
        let variants_of = |cell: &crate::plan::Cell| {
            let of = decided.plan.variants.iter();
            of.map(|variant| each(&cell.model, &cell.scenario, &variant.engine)).collect()
        };
        Self {
            command: world.command.clone(),
            executor: flags.execution.executor.clone(),
            slurm_options: flags.execution.slurm_options.clone(),
            plan: decided.plan.clone(),
            variants,
            cells,
            inputs: Vec::new(),
            hardware: RecordedHardware(decided.hardware.clone()),
            on_gpu: decided.brief.on_gpu,
            confirm_pairs: decided.confirm_pairs,
            commits: decided.commits,
            registry: decided.registry.clone(),
            expected_us: decided.brief.expected_us(),
            each_us: decided.plan.cells.iter().map(variants_of).collect(),
            url: flags.url.clone(),
            timeout_s: flags.execution.timeout_s,
            max_gpu_hours: flags.max_gpu_hours,
            lab: None,
        }
    }

    /// Copies the suite's files that the runs read into the campaign's folder, points the plan at
    /// the copies, and notes the size of every input file.
    ///
    /// # Errors
    /// A file cannot be read or written.
    pub fn freeze(&mut self, places: &CampaignPlaces) -> Result<(), Stop> {
        let dir = places.dir().join(SUITE);
        for variant in &mut self.variants {
            variant.engine.path = keep(&variant.engine.path, &dir.join("engines"))?;
        }
        for cell in &mut self.cells {
            cell.scenario.path = keep(&cell.scenario.path, &dir.join("scenarios"))?;
        }
        if let Some(lab) = &mut self.lab {
            lab.path = keep(&lab.path, &dir.join("labs"))?;
        }
        self.inputs = self.cells.iter().map(|cell| fitness::inputs(cell, &self.variants)).collect();
        Ok(())
    }

    /// Adds a variant that is started like variant `of` except for its name and flags.
    pub fn add_variant(&mut self, of: usize, variant: Variant) {
        let mut added = self.variants[of].clone();
        added.built.variant = variant.clone();
        self.variants.push(added);
        self.plan.variants.push(variant);
        // The new variant is expected to take as long as the one that it is derived from.
        for each_us in &mut self.each_us {
            each_us.push(each_us[of]);
        }
    }

    /// Names a release of an engine on this campaign's hardware, for the registry.
    pub fn named<'a>(&'a self, engine: &'a str, release: &'a str) -> Named<'a> {
        Named { engine, release, hardware: &self.hardware.0.id }
    }

    /// Returns baseline and candidate if two releases of an engine are compared.
    pub fn compared(&self) -> Option<(&str, Named<'_>)> {
        let (baseline, candidate) = self.plan.compared()?;
        Some((baseline, self.named(&self.plan.variants[0].engine, candidate)))
    }
}

fn keep(file: &Path, dir: &Path) -> Result<PathBuf, Stop> {
    let to = dir.join(file.file_name().unwrap_or_default());
    files::make_dir(dir)?;
    write_whole(&to, read_text(file)?.as_bytes())?;
    Ok(to)
}
