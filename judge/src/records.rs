//! The records of a registry as ordered plain data, and which of them still stand.

use std::collections::{BTreeMap, BTreeSet};

use schema::campaign::CampaignRecord;
use schema::event::Event;
use schema::kernel::KernelRecord;
use schema::run::RunRecord;

pub use crate::events::Retraction;
use crate::finding::Finding;

/// A record and the path of its file, below `results/`.
#[derive(Debug, Clone, PartialEq)]
pub struct Stored<T> {
    /// With `/` between its parts.
    pub path: String,
    /// Index of the folder it was read from, in the order in which the folders were given.
    pub root: usize,
    /// What the file says.
    pub record: T,
}

/// Everything in a registry, each list in the order of its paths.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Registry {
    /// Those that were measured, and imported figures.
    pub runs: Vec<Stored<RunRecord>>,
    /// Machines' kernels.
    pub kernels: Vec<Stored<KernelRecord>>,
    /// Campaigns.
    pub campaigns: Vec<Stored<CampaignRecord>>,
    /// What was said of records afterwards.
    pub events: Vec<Stored<Event>>,
    /// Paths of the generated pages, below `results/`.
    pub pages: BTreeSet<String>,
    /// Id of a run, a kernels record or an event to why it was retracted (`events`).
    pub retracted: BTreeMap<String, Retraction>,
    /// Files that could not be read, strays and leftovers.
    pub findings: Vec<Finding>,
}

impl Registry {
    /// The run with this id.
    #[must_use]
    pub fn run(&self, id: &str) -> Option<&Stored<RunRecord>> {
        self.runs.iter().find(|run| run.record.id == id)
    }

    /// The runs that still stand, in the order of their paths.
    pub fn standing(&self) -> impl Iterator<Item = &Stored<RunRecord>> {
        self.runs.iter().filter(|run| !self.retracted.contains_key(&run.record.id))
    }

    /// Ids of the campaigns that labs are. What they tried stands on their own pages: it belongs to
    /// no comparison of releases and to no series.
    #[must_use]
    pub fn labs(&self) -> BTreeSet<&str> {
        let campaigns = self.campaigns.iter().map(|stored| &stored.record);
        campaigns.filter(|campaign| campaign.lab.is_some()).map(|lab| lab.id.as_str()).collect()
    }

    /// The runs that still stand and that no lab made: those of releases.
    pub fn of_releases(&self) -> impl Iterator<Item = &Stored<RunRecord>> {
        let labs = self.labs();
        self.standing().filter(move |run| {
            let campaign = run.record.campaign.as_ref();
            campaign.is_none_or(|campaign| !labs.contains(campaign.id.as_str()))
        })
    }

    /// Engine and release of every run.
    #[must_use]
    pub fn releases(&self) -> BTreeSet<(&str, &str)> {
        let engines = self.runs.iter().map(|run| &run.record.engine);
        engines.map(|engine| (engine.name.as_str(), engine.release.as_str())).collect()
    }
}
