//! The lab's file, and the part of it that a campaign keeps: budget, engines, and the variants that
//! its candidates become.

use std::path::{Path, PathBuf};

use schema::campaign::CampaignLab;
use schema::canonical::sha256_hex;
use schema::lab::{Candidate, LabBudget, LabFile, LabOutline, flag_name, without};
use serde::{Deserialize, Serialize};

use super::budget;
use super::check::opposite;
use crate::cli::{Lab, ReleaseBench};
use crate::files::read_text;
use crate::plan::Side;
use crate::plan::decide::Decided;
use crate::stop::Stop;
use crate::world::World;

/// A lab's file with its id, path and SHA-256.
#[derive(Debug)]
pub struct AskedLab {
    pub id: String,
    pub path: PathBuf,
    pub sha256: String,
    pub lab: LabFile,
}

/// Facts about a lab that its campaign keeps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReadyLab {
    /// The lab as the campaign's record will state it; its number of runs may be reduced during the
    /// campaign.
    pub asked: CampaignLab,
    pub outline: LabOutline,
    /// Largest total time of the runs, in hours; `None` without a time budget.
    pub hours_max: Option<f64>,
    /// Expected time of a run in microseconds.
    pub each_us: u64,
    /// Copy of the lab's file as it was when the campaign began.
    pub path: PathBuf,
    /// Server flags that each engine's own file adds for a loaded server, by engine.
    pub loaded: Vec<Vec<String>>,
}

/// Reads a lab's file: one of `suite/labs/` by its id, or any file by its path.
///
/// # Errors
/// The file does not exist or is invalid.
pub fn read(world: &World, name: &str) -> Result<AskedLab, Stop> {
    let path = match is_path(name) {
        true => PathBuf::from(name),
        false => world.catalog.path("lab", name)?,
    };
    let text = read_text(&path)?;
    let unsound = |error| Stop::wrong_use(format!("`{}` is no lab: {error}", path.display()));
    let lab = schema::lab::parse(&text).map_err(unsound)?;
    Ok(AskedLab { id: id(name), sha256: sha256_hex(text.as_bytes()), path, lab })
}

/// Returns the id of a lab that is given by id or by path: for a path, the file name without its
/// extension.
#[must_use]
pub fn id(name: &str) -> String {
    let stem = Path::new(name).file_stem().filter(|_| is_path(name));
    stem.map_or_else(|| name.to_owned(), |stem| stem.to_string_lossy().into_owned())
}

fn is_path(name: &str) -> bool {
    name.contains('/') || name.ends_with(".toml")
}

impl AskedLab {
    /// Converts the lab to the flags of a `release-bench` that measures its engines side by side;
    /// the runs themselves are planned round by round.
    #[must_use]
    pub fn campaign(&self, flags: &Lab) -> ReleaseBench {
        let lab = &self.lab;
        let first = lab.engines.first();
        let others = lab.engines.iter().skip(1);
        ReleaseBench {
            release: first.map(|engine| engine.version.clone()),
            engine: first.map(|engine| engine.id.clone()).unwrap_or_default(),
            beside: others.map(|engine| (engine.id.clone(), engine.version.clone())).collect(),
            target: Some(lab.target.clone()),
            models: vec![lab.model.clone()],
            scenarios: lab.profiles.clone(),
            execution: flags.execution.clone(),
            dry_run: flags.dry_run,
            ..ReleaseBench::default()
        }
    }

    /// Budget of the lab: the file's, overridden by the command line.
    #[must_use]
    pub fn budget(&self, flags: &Lab) -> LabBudget {
        let LabBudget { runs, hours } = self.lab.budget;
        LabBudget { runs: flags.max_runs.or(runs), hours: flags.max_hours.or(hours) }
    }

    /// Makes the lab's part of the campaign. The lab's engines with their own flags become the
    /// first variants; none runs before a round requests it.
    ///
    /// # Errors
    /// The budget is too small for a conclusion.
    pub fn ready(
        &self,
        flags: &Lab,
        outline: LabOutline,
        decided: &mut Decided,
    ) -> Result<ReadyLab, Stop> {
        let each_us = budget::each_us(decided);
        let limits = self.budget(flags);
        let runs_max = budget::runs_max(limits, each_us);
        budget::refuse_small(limits, runs_max, (&outline, each_us))?;
        let loaded = decided.wanted.iter().map(|wanted| wanted.side.flags.clone()).collect();
        let lab = ReadyLab {
            asked: CampaignLab {
                id: self.id.clone(),
                sha256: self.sha256.clone(),
                file: self.lab.clone(),
                runs_max,
            },
            outline,
            hours_max: limits.hours,
            each_us,
            path: self.path.clone(),
            loaded,
        };
        for (index, wanted) in decided.wanted.iter_mut().enumerate() {
            wanted.side = lab.side(&LabFile::plain(index), &wanted.side);
        }
        decided.plan.sides = decided.wanted.iter().map(|wanted| wanted.side.clone()).collect();
        // The runs of a lab are planned round by round, from the registry's answers.
        decided.plan.slots.clear();
        Ok(lab)
    }
}

impl ReadyLab {
    /// Largest number of runs of the lab.
    #[must_use]
    pub fn runs_most(&self) -> u32 {
        self.asked.runs_max.min(self.outline.runs_most)
    }

    /// Converts a candidate to a variant of `engine`'s release.
    #[must_use]
    pub fn side(&self, candidate: &Candidate, engine: &Side) -> Side {
        let loaded = self.loaded.get(candidate.engine).map_or(&[][..], Vec::as_slice);
        let flags = joined(loaded, self.asked.file.flags(candidate));
        Side { variant: candidate.variant(), flags, ..engine.clone() }
    }
}

/// Appends a lab's flags to those of an engine's file, and removes from the latter each flag that
/// the lab repeats or negates.
fn joined(loaded: &[String], own: Vec<String>) -> Vec<String> {
    let said: Vec<&str> = own.iter().filter_map(|word| flag_name(word)).collect();
    let denied: Vec<String> = said.iter().map(|name| opposite(name)).collect();
    let names: Vec<&str> = said.iter().copied().chain(denied.iter().map(String::as_str)).collect();
    let mut flags = without(loaded, &names);
    flags.extend(own);
    flags
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_labs_flags_take_the_place_of_those_of_the_engines_file() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let loaded = words("--threads 2 --parallel 32 --no-cache-prompt --cache-ram 0");
        let flags = joined(&loaded, words("--threads=1 --cache-prompt"));
        assert_eq!(flags.join(" "), "--parallel 32 --cache-ram 0 --threads=1 --cache-prompt");
    }

    #[test]
    fn a_lab_is_named_by_its_stem() {
        assert_eq!((id("cpu").as_str(), id("my/labs/a.b.toml").as_str()), ("cpu", "a.b"));
    }
}
