//! Records of a registry as ordered plain data, and selections of those that are not retracted.

use std::collections::{BTreeMap, BTreeSet};

use schema::campaign::CampaignRecord;
use schema::event::Event;
use schema::kernel::KernelRecord;
use schema::run::RunRecord;

pub use crate::events::Retraction;
use crate::finding::Finding;

/// Error of a query that cannot be answered, such as one that names something unknown: a message,
/// mostly with a hint at what would be accepted.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0}")]
pub struct QueryError(pub String);

/// A record with the path of its file below `results/`.
#[derive(Debug, Clone, PartialEq)]
pub struct Stored<T> {
    /// Path of the record's file below `results/`, with `/` as separator.
    pub path: String,
    /// Index of the results folder that the record was read from, in the order in which the
    /// folders were given.
    pub root: usize,
    /// Content of the record's file, parsed.
    pub record: T,
}

/// Content of a registry: its records by kind, pages, retractions and storage findings. Each list
/// is in the order of its paths.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Registry {
    /// Run records: measured, imported and simulated.
    pub runs: Vec<Stored<RunRecord>>,
    /// Kernel records: benchmarks of an engine's kernels on a machine.
    pub kernels: Vec<Stored<KernelRecord>>,
    /// Campaign records: plans, budgets, verdicts and labs.
    pub campaigns: Vec<Stored<CampaignRecord>>,
    /// Event records, which make later statements about other records: retraction, annotation,
    /// waiver or epoch.
    pub events: Vec<Stored<Event>>,
    /// Paths of the generated pages, below `results/`.
    pub pages: BTreeSet<String>,
    /// Retractions in force, by id of the retracted run, kernel record or event.
    /// [`Registry::apply_events`] computes them.
    pub retracted: BTreeMap<String, Retraction>,
    /// Storage findings from reading the results folders: unreadable files, files that do not
    /// belong there, leftovers, and records that two folders have with different content.
    pub findings: Vec<Finding>,
}

/// Returns the item whose id begins with `start`, among items beside their ids. A whole id is found
/// even where longer ids begin with it, and an id that several items share counts once.
///
/// # Errors
///
/// No id begins with `start`, or several do; the error is their number.
pub fn by_prefix<'i, T>(
    items: impl IntoIterator<Item = (&'i str, T)>,
    start: &str,
) -> Result<T, usize> {
    let mut found: BTreeMap<&str, T> = BTreeMap::new();
    for (id, item) in items.into_iter().filter(|(id, _)| id.starts_with(start)) {
        found.entry(id).or_insert(item);
    }
    let count = found.len();
    let whole = found.remove(start);
    let only = || found.into_values().next().filter(|_| count == 1);
    whole.or_else(only).ok_or(count)
}

impl Registry {
    /// Returns the run with this id, retracted or not; `None` where there is none.
    pub fn run(&self, id: &str) -> Option<&Stored<RunRecord>> {
        self.runs.iter().find(|run| run.record.id == id)
    }

    /// Returns the runs that are not retracted, in the order of their paths.
    pub fn standing(&self) -> impl Iterator<Item = &Stored<RunRecord>> {
        self.runs.iter().filter(|run| !self.retracted.contains_key(&run.record.id))
    }

    /// Returns the ids of the campaigns that are labs. Their runs tried options, so they belong to
    /// lab pages only, not to comparisons of releases or trends.
    pub fn labs(&self) -> BTreeSet<&str> {
        let campaigns = self.campaigns.iter().map(|stored| &stored.record);
        campaigns.filter(|campaign| campaign.lab.is_some()).map(|lab| lab.id.as_str()).collect()
    }

    /// Returns the runs that are neither retracted nor part of a lab.
    pub fn of_releases(&self) -> impl Iterator<Item = &Stored<RunRecord>> {
        let labs = self.labs();
        self.standing().filter(move |run| {
            let campaign = run.record.campaign.as_ref();
            campaign.is_none_or(|campaign| !labs.contains(campaign.id.as_str()))
        })
    }

    /// Returns engine and release of every run, including retracted runs.
    pub fn releases(&self) -> BTreeSet<(&str, &str)> {
        let engines = self.runs.iter().map(|run| &run.record.engine);
        engines.map(|engine| (engine.name.as_str(), engine.release.as_str())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_found_by_its_beginning_where_that_is_unique() {
        let items = [("01A", 1), ("01AB", 2), ("02", 3), ("02", 4)];
        assert_eq!(by_prefix(items, "01AB"), Ok(2));
        assert_eq!(by_prefix(items, "01A"), Ok(1), "a whole id wins over a longer one");
        assert_eq!(by_prefix(items, "0"), Err(3));
        assert_eq!(by_prefix(items, "02"), Ok(3), "one id, two items");
        assert_eq!(by_prefix(items, "3"), Err(0));
    }
}
