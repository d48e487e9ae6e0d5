//! Coverage of planned cells: which combinations of engine, hardware, model and scenario have figures,
//! measured or published elsewhere.

use schema::run::{Kind, RunRecord};

use crate::facts::concurrency_level;
use crate::order;
use crate::pick::{Pick, Users};
use crate::records::Registry;
use crate::rule::on_cpu;
use crate::validity::is_presentable;

/// Planned cell that may have figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedCell<'a> {
    /// Id of the engine.
    pub engine: &'a str,
    /// Hardware id, such as `h200-141g`; `None` for all machines without a GPU.
    pub hardware: Option<&'a str>,
    /// Id of the model.
    pub model: &'a str,
    /// Number of tensor-parallel ranks; a run that does not state its own has as many.
    pub tp: u32,
    /// Id of the scenario.
    pub scenario: &'a str,
    /// Revision of the scenario, of which own runs are. Reports of others know no revisions.
    pub rev: u32,
}

/// What a registry has of a planned cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Coverage<'a> {
    /// This suite measured the cell: newest release, and number of its runs that may be shown.
    Measured {
        /// Name of the release.
        release: &'a str,
        /// Number of runs of the release.
        runs: usize,
    },
    /// Only a report of others has figures of the cell, which nobody verified: its newest release.
    Published {
        /// Name of the release.
        release: &'a str,
    },
    /// No record has figures of the cell.
    Nothing,
}

/// Runs of a registry that cover cells: those that are not retracted, belong to no lab, had no server
/// flags of a variant and have figures that may be shown.
#[derive(Debug)]
pub struct Covering<'a> {
    runs: Vec<&'a RunRecord>,
}

impl<'a> Covering<'a> {
    /// Selects the covering runs of `registry`.
    pub fn of(registry: &'a Registry) -> Self {
        let runs = registry.of_releases().map(|stored| &stored.record);
        let is_plain =
            |run: &&RunRecord| run.server.as_ref().is_none_or(|server| server.variant.is_none());
        Self { runs: runs.filter(is_plain).filter(|run| is_presentable(run)).collect() }
    }

    /// Returns what the registry has of `cell`.
    pub fn coverage(&self, cell: &PlannedCell<'_>) -> Coverage<'a> {
        let of_cell = |run: &&RunRecord| {
            let is_there = match cell.hardware {
                Some(id) => run.hardware.id == id,
                None => on_cpu(run),
            };
            let names = (&*run.engine.name, &*run.model.id, &*run.scenario.id);
            let tp = run.server.as_ref().and_then(|server| server.tp).unwrap_or(cell.tp);
            let is_rev = run.kind == Kind::Imported || run.scenario.rev == cell.rev;
            is_there && names == (cell.engine, cell.model, cell.scenario) && tp == cell.tp && is_rev
        };
        let of_kind = |kind: Kind| {
            let runs = self.runs.iter().copied().filter(of_cell).filter(|run| run.kind == kind);
            runs.map(|run| run.engine.release.as_str()).collect::<Vec<_>>()
        };
        let measured = of_kind(Kind::Measured);
        if let Some(release) = order::newest(measured.iter().copied()) {
            let runs = measured.iter().filter(|other| **other == release).count();
            return Coverage::Measured { release, runs };
        }
        order::newest(of_kind(Kind::Imported))
            .map_or(Coverage::Nothing, |release| Coverage::Published { release })
    }
}

/// Returns those concurrency levels among `scenarios` whose number of users has no figure in `picks`,
/// each with that number.
pub fn levels_without_figures<'s>(
    scenarios: &'s [String],
    picks: &[&Pick<'_>],
) -> Vec<(u64, &'s str)> {
    let levels = scenarios.iter().filter_map(|id| Some((concurrency_level(id)?.1, id.as_str())));
    let has = |users: u64| picks.iter().any(|pick| pick.subject.users == Users::Closed(users));
    levels.filter(|(users, _)| !has(*users)).collect()
}

#[cfg(test)]
mod tests {
    use samples::Sample;
    use schema::scenario::Arrival;

    use super::*;
    use crate::pick::picks;
    use crate::records::Stored;

    /// Test helper: returns a registry with a run of each kind and release.
    fn registry(runs: &[(Kind, &str)]) -> Registry {
        let mut registry = Registry::default();
        for (serial, (kind, release)) in (1..).zip(runs) {
            let sample = Sample { release: (*release).to_owned(), serial, ..Sample::default() };
            let record = RunRecord { kind: *kind, ..sample.record() };
            registry.runs.push(Stored { path: format!("{serial}.json"), root: 0, record });
        }
        registry
    }

    /// Test helper: returns the cell of a run, on any hardware.
    fn cell_of(run: &RunRecord) -> PlannedCell<'_> {
        PlannedCell {
            engine: &run.engine.name,
            hardware: None,
            model: &run.model.id,
            tp: 1,
            scenario: &run.scenario.id,
            rev: run.scenario.rev,
        }
    }

    #[test]
    fn own_runs_cover_a_cell_before_reports_and_of_the_newest_release() {
        let sample = Sample::default().record();
        let cell = cell_of(&sample);
        let (own, other) = (Kind::Measured, Kind::Imported);
        for (runs, wanted) in [
            (&[][..], Coverage::Nothing),
            (&[(other, "v0.9.2")], Coverage::Published { release: "v0.9.2" }),
            (
                &[(own, "v0.9.2"), (own, "v0.10.0"), (own, "v0.10.0"), (other, "v0.11.0")],
                Coverage::Measured { release: "v0.10.0", runs: 2 },
            ),
        ] {
            let registry = registry(runs);
            assert_eq!(Covering::of(&registry).coverage(&cell), wanted);
            let elsewhere = PlannedCell { hardware: Some("h200-141g"), ..cell };
            assert_eq!(Covering::of(&registry).coverage(&elsewhere), Coverage::Nothing);
        }
    }

    #[test]
    fn another_revision_variant_or_number_of_ranks_is_another_cell() {
        let sample = Sample::default().record();
        let cell = cell_of(&sample);
        let own = registry(&[(Kind::Measured, "v0.10.0")]);
        let (newer, wider) =
            (PlannedCell { rev: cell.rev + 1, ..cell }, PlannedCell { tp: 2, ..cell });
        let found = Coverage::Measured { release: "v0.10.0", runs: 1 };
        assert_eq!(Covering::of(&own).coverage(&cell), found);
        assert_eq!(Covering::of(&own).coverage(&newer), Coverage::Nothing);
        assert_eq!(Covering::of(&own).coverage(&wider), Coverage::Nothing);
        let published = registry(&[(Kind::Imported, "v0.10.0")]);
        let elsewhere = Coverage::Published { release: "v0.10.0" };
        assert_eq!(Covering::of(&published).coverage(&newer), elsewhere);
        let mut tuned = registry(&[(Kind::Measured, "v0.10.0")]);
        let server = tuned.runs[0].record.server.as_mut().unwrap();
        server.variant = Some("pytorch".to_owned());
        crate::seal(&mut tuned.runs[0].record).unwrap();
        assert_eq!(Covering::of(&tuned).coverage(&cell), Coverage::Nothing);
    }

    #[test]
    fn a_level_without_figures_is_named_with_its_users() {
        let mut registry = registry(&[(Kind::Measured, "v0.10.0")]);
        registry.runs[0].record.scenario.arrival = Some(Arrival::Closed { concurrency: 4 });
        let picks = picks(&registry, &[]);
        let scenarios = ["ladder-c4", "ladder-c16", "sharegpt"].map(str::to_owned);
        let missing = levels_without_figures(&scenarios, &picks.iter().collect::<Vec<_>>());
        assert_eq!(missing, [(16, "ladder-c16")]);
        assert_eq!(levels_without_figures(&scenarios, &[]).len(), 2);
    }

    #[test]
    fn runs_whose_figures_are_invalid_cover_nothing() {
        let mut registry = registry(&[(Kind::Measured, "v0.10.0")]);
        let record = &mut registry.runs[0].record;
        record.counts.as_mut().unwrap().output_tokens_reported = Some(1);
        crate::seal(record).unwrap();
        let record = record.clone();
        let cell = PlannedCell {
            engine: &record.engine.name,
            hardware: None,
            model: &record.model.id,
            tp: 1,
            scenario: &record.scenario.id,
            rev: record.scenario.rev,
        };
        assert_eq!(Covering::of(&registry).coverage(&cell), Coverage::Nothing);
    }
}
