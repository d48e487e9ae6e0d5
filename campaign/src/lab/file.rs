//! The lab's file, and the part of it that a campaign keeps: budget, engines, and the variants that
//! its candidates become.

use std::path::{Path, PathBuf};

use schema::campaign::CampaignLab;
use schema::canonical::sha256_hex;
use schema::lab::{LabBudget, LabFile, LabOutline};

use super::budget;
use super::spec::PreparedLab;
use crate::cli::{Lab, ReleaseBench};
use crate::files::read_text;
use crate::plan::decide::Decided;
use crate::stop::Stop;
use crate::world::World;

/// A lab's file with its id, path and SHA-256.
#[derive(Debug)]
pub struct LabSource {
    pub id: String,
    pub path: PathBuf,
    pub sha256: String,
    pub lab: LabFile,
}

/// Reads a lab's file: one of `suite/labs/` by its id, or any file by its path.
///
/// # Errors
/// The file does not exist or is invalid.
pub fn read(world: &World, name: &str) -> Result<LabSource, Stop> {
    let path = match is_path(name) {
        true => PathBuf::from(name),
        false => world.catalog.path("lab", name)?,
    };
    let text = read_text(&path)?;
    let unsound = |error| Stop::wrong_use(format!("`{}` is no lab: {error}", path.display()));
    let lab = schema::lab::parse(&text).map_err(unsound)?;
    Ok(LabSource { id: id(name), sha256: sha256_hex(text.as_bytes()), path, lab })
}

/// Returns the id of a lab that is given by id or by path: for a path, the file name without its
/// extension.
pub fn id(name: &str) -> String {
    let stem = Path::new(name).file_stem().filter(|_| is_path(name));
    stem.map_or_else(|| name.to_owned(), |stem| stem.to_string_lossy().into_owned())
}

fn is_path(name: &str) -> bool {
    name.contains('/') || name.ends_with(".toml")
}

impl LabSource {
    /// Converts the lab to the flags of a `release-bench` that measures its engines side by side;
    /// the runs themselves are planned round by round.
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
    ) -> Result<PreparedLab, Stop> {
        let each_us = budget::each_us(decided);
        let limits = self.budget(flags);
        let runs_max = budget::runs_max(limits, each_us);
        budget::refuse_small(limits, runs_max, (&outline, each_us))?;
        let loaded = decided.wanted.iter().map(|wanted| wanted.variant.flags.clone()).collect();
        let lab = PreparedLab {
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
            wanted.variant = lab.variant(&LabFile::plain(index), &wanted.variant);
        }
        decided.plan.variants =
            decided.wanted.iter().map(|wanted| wanted.variant.clone()).collect();
        // The runs of a lab are planned round by round, from the registry's answers.
        decided.plan.slots.clear();
        Ok(lab)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lab_is_named_by_its_stem() {
        assert_eq!((id("cpu").as_str(), id("my/labs/a.b.toml").as_str()), ("cpu", "a.b"));
    }
}
