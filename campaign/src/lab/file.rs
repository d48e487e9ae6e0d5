//! What a lab asks: its file, and what of it a campaign keeps from its plan to its end.

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

/// A lab's file as it was read.
#[derive(Debug)]
pub struct LabSource {
    pub id: String,
    pub path: PathBuf,
    pub sha256: String,
    pub lab: LabFile,
}

/// Reads a file of `suite/labs/`, or the one at a path.
///
/// # Errors
/// There is none, or it is not sound.
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

/// The id of a lab that is named, or whose path is.
#[must_use]
pub fn id(name: &str) -> String {
    let stem = Path::new(name).file_stem().filter(|_| is_path(name));
    stem.map_or_else(|| name.to_owned(), |stem| stem.to_string_lossy().into_owned())
}

fn is_path(name: &str) -> bool {
    name.contains('/') || name.ends_with(".toml")
}

impl LabSource {
    /// The campaign that a lab is, but that its launches are not known yet: its engines beside each
    /// other.
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

    /// The file's budget, or what the command line says in place of it.
    #[must_use]
    pub fn budget(&self, flags: &Lab) -> LabBudget {
        let LabBudget { runs, hours } = self.lab.budget;
        LabBudget { runs: flags.max_runs.or(runs), hours: flags.max_hours.or(hours) }
    }

    /// The lab as its campaign keeps it. The engines by their own flags become the campaign's sides;
    /// none is launched before a round asks for it.
    ///
    /// # Errors
    /// The budget is too small to conclude anything.
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
