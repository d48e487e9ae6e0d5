//! Planted changes, as `tests/planted/planted.toml` describes them, and the choice of the kind that
//! the next trial has.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use campaign::Stop;
use campaign::files::read_text;
use schema::random::SplitMix64;
use schema::scenario::{InvalidFile, from_toml};
use serde::Deserialize;

/// Folder of the planted changes, relative to the clone's root.
pub const FOLDER: &str = "tests/planted";
/// File that describes them, in that folder.
const FILE: &str = "planted.toml";

/// Planted changes in the order of their file.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Planted {
    #[serde(rename = "kind")]
    pub kinds: Vec<Kind>,
}

/// Kind of planted change.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kind {
    pub id: String,
    /// Name of the patch in the folder; `None` for the same code, built in another folder.
    pub patch: Option<String>,
    /// What the change does, in one sentence.
    pub does: String,
    /// Names of metrics of which at least one has to be called worse; empty where none has to.
    pub worse: Vec<String>,
    /// Name of the metric whose measured effect is shown; `None` for the first of `worse`.
    pub shows: Option<String>,
    /// Nominal size of the change in percent.
    pub size_pct: f64,
    /// True where the change has this size on every machine; the trials measure it elsewhere.
    pub is_exact: bool,
    /// Least number of trials.
    pub trials: u32,
    /// Number of the first trials that served the design of the gate. Replays do not draw from them.
    #[serde(default)]
    pub design: usize,
    /// What is wanted of the trials, as the document shows it.
    #[serde(default)]
    pub wanted: String,
}

impl Planted {
    /// Reads the planted changes of the clone `root`.
    ///
    /// # Errors
    /// The file cannot be read or has another form.
    pub fn read(root: &Path) -> Result<Self, Stop> {
        let path = root.join(FOLDER).join(FILE);
        let text = read_text(&path)?;
        let wrong = |error: InvalidFile| Stop::wrong_use(format!("`{}`: {error}", path.display()));
        from_toml(&text).map_err(wrong)
    }

    /// Returns the kinds with these ids, or all without any.
    ///
    /// # Errors
    /// An id is unknown.
    pub fn select(&self, ids: &[String]) -> Result<Vec<&Kind>, Stop> {
        if let Some(id) = ids.iter().find(|id| self.kinds.iter().all(|kind| kind.id != **id)) {
            let known: Vec<&str> = self.kinds.iter().map(|kind| kind.id.as_str()).collect();
            let known = known.join(", ");
            return Err(Stop::wrong_use(format!("no planted change `{id}`; known are {known}")));
        }
        let wanted = |kind: &&Kind| ids.is_empty() || ids.contains(&kind.id);
        Ok(self.kinds.iter().filter(wanted).collect())
    }
}

impl Kind {
    /// Returns the path of the kind's patch in the clone `root`; `None` for the same code.
    pub fn patch_in(&self, root: &Path) -> Option<PathBuf> {
        Some(root.join(FOLDER).join(self.patch.as_ref()?))
    }
}

/// Chooses the kind of the next trial: one of those that have the smallest share of the trials that
/// are wanted of them, at random. `None` where every kind has all of them, unless `beyond` asks for
/// more.
pub fn next<'a>(
    kinds: &[&'a Kind],
    done: &BTreeMap<String, u32>,
    beyond: bool,
    random: &mut SplitMix64,
) -> Option<&'a Kind> {
    let done = |kind: &Kind| done.get(&kind.id).copied().unwrap_or(0);
    let open: Vec<&&Kind> =
        kinds.iter().filter(|kind| beyond || done(kind) < kind.trials).collect();
    // Compared as products, so that equal shares are equal.
    let is_behind = |one: &Kind, other: &Kind| {
        u64::from(done(one)) * u64::from(other.trials.max(1))
            < u64::from(done(other)) * u64::from(one.trials.max(1))
    };
    let behind: Vec<&&Kind> = open
        .iter()
        .copied()
        .filter(|kind| !open.iter().any(|other| is_behind(other, kind)))
        .collect();
    let index = random.draw().checked_rem(behind.len() as u64)?;
    behind.get(usize::try_from(index).ok()?).map(|kind| **kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(id: &str, trials: u32) -> Kind {
        Kind {
            id: id.to_owned(),
            patch: None,
            does: String::new(),
            worse: Vec::new(),
            shows: None,
            size_pct: 0.0,
            is_exact: true,
            trials,
            design: 0,
            wanted: String::new(),
        }
    }

    #[test]
    fn kinds_accumulate_trials_evenly_by_what_is_wanted_of_them() {
        let (many, few) = (kind("many", 20), kind("few", 5));
        let kinds = [&many, &few];
        let mut done = BTreeMap::new();
        let mut random = SplitMix64(3);
        for count in 1..=25 {
            let chosen = next(&kinds, &done, false, &mut random).unwrap();
            *done.entry(chosen.id.clone()).or_insert(0) += 1;
            let of = |id: &str| f64::from(done.get(id).copied().unwrap_or(0));
            let apart = of("many") / 20.0 - of("few") / 5.0;
            assert!((-0.21..=0.06).contains(&apart), "{count}: {done:?}");
        }
        assert_eq!((done["many"], done["few"]), (20, 5));
        assert!(next(&kinds, &done, false, &mut random).is_none());
        assert!(next(&kinds, &done, true, &mut random).is_some());
        assert!(next(&[], &done, true, &mut random).is_none());
    }
}
