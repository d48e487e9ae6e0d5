//! A campaign that is decided, built and fetched: everything that its launches, its records and
//! their publication need, as plain data. What the journal begins with.

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

/// Where the suite's files lie as they were when the campaign began, below its folder: whoever
/// edits them meanwhile changes nothing of it.
const SUITE: &str = "suite";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PreparedCampaign {
    /// The command as it was typed, without the program.
    pub command: Vec<String>,
    pub executor: String,
    /// More options for `sbatch`.
    #[serde(default)]
    pub slurm_options: Vec<String>,
    /// Every launch that is known from the start.
    pub plan: Plan,
    /// One for each side of the plan.
    #[serde(rename = "sides")]
    pub variants: Vec<LaunchSpec>,
    /// One for each cell of the plan.
    pub cells: Vec<ReadyCell>,
    /// The files that launches of each cell read, and their sizes; a folder's is 0.
    pub inputs: Vec<Vec<(PathBuf, u64)>>,
    /// As it was seen, or is expected, when the campaign began.
    pub hardware: RecordedHardware,
    /// A rank takes a GPU.
    pub on_gpu: bool,
    /// Pairs that confirm what the screen finds; none where nothing is to be confirmed.
    pub confirm_pairs: Option<u32>,
    /// Records of releases are committed; those of a tree or of a stranger's server are not.
    pub commits: bool,
    /// The repository that holds `results/`.
    pub registry: PathBuf,
    /// Expected time of the launches of the plan.
    pub expected_us: u64,
    /// Of one launch, cell by cell and there side by side; zero where nobody knows.
    pub each_us: Vec<Vec<u64>>,
    pub url: Option<String>,
    pub timeout_s: Option<u32>,
    pub max_gpu_hours: Option<f64>,
    /// What is launched round by round; none where the plan says it all.
    #[serde(default)]
    pub lab: Option<Box<PreparedLab>>,
}

impl PreparedCampaign {
    /// Puts together what was decided, built and fetched.
    #[must_use]
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

    /// Copies the suite's files that launches read into the campaign's folder, names them there,
    /// and measures every file.
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

    /// Adds a side that is launched as the one at `of` is, but for its name and flags.
    pub fn add_variant(&mut self, of: usize, variant: Variant) {
        let mut added = self.variants[of].clone();
        added.built.variant = variant.clone();
        self.variants.push(added);
        self.plan.variants.push(variant);
        for each_us in &mut self.each_us {
            each_us.push(each_us[of]);
        }
    }

    /// A release of an engine on this campaign's hardware.
    #[must_use]
    pub fn named<'a>(&'a self, engine: &'a str, release: &'a str) -> Named<'a> {
        Named { engine, release, hardware: &self.hardware.0.id }
    }

    /// Baseline and candidate, where two releases of an engine are compared.
    #[must_use]
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
