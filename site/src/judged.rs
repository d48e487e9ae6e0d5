//! Conclusions of `judge` about a whole catalog, computed once for all pages: comparisons of
//! consecutive releases, trends, labs, and picks. Nothing is judged here.

use std::collections::BTreeMap;

use anyhow::Result;
use judge::diff::published::{Published, published};
use judge::diff::words::is_worse;
use judge::diff::{Diff, Filter, Row, diff, policy, waivers};
use judge::lab::{self, Next, Replay, Superseded};
use judge::order;
use judge::pick::{self, Pick};
use judge::trend;
use rayon::prelude::*;
use schema::lab::Candidate;
use schema::trend::Trend;

use crate::catalog::{Catalog, ReleaseKey};
use crate::link::{Link, Target};

/// Pair of consecutive releases of one engine on one hardware, which a page compares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    pub engine: String,
    pub hardware: String,
    pub baseline: String,
    pub candidate: String,
}

impl Pair {
    /// Returns the keys of the pair's releases, baseline first.
    pub fn releases(&self) -> [ReleaseKey; 2] {
        [&self.baseline, &self.candidate]
            .map(|release| ReleaseKey::new(&self.engine, release, &self.hardware))
    }

    /// Returns the filter of a comparison of the pair.
    fn filter(&self) -> Filter {
        Filter { engine: Some(self.engine.clone()), hardware: Some(self.hardware.clone()) }
    }

    /// Returns the target of the page that compares the pair of releases.
    pub fn target(&self) -> Target {
        let Self { engine, hardware, baseline, candidate } = self.clone();
        Target::Diff { engine, baseline, candidate, hardware }
    }

    /// Returns a link to the page that compares the pair of releases.
    pub fn link(&self) -> Link {
        let Self { engine, hardware, baseline, candidate } = self;
        Link::new(&format!("{engine} {baseline} to {candidate} on {hardware}"), self.target())
    }
}

/// Comparisons, trends, labs and picks of a catalog.
#[derive(Debug)]
pub struct Judged<'a> {
    /// Comparison of each pair of consecutive releases of an engine on one hardware, ordered by
    /// engine and hardware.
    pub diffs: Vec<(Pair, Diff)>,
    /// Figures of each pair of consecutive releases that others published and nobody measured here.
    /// They are not judged.
    pub published: Vec<(Pair, Vec<Published<'a>>)>,
    /// Trends of at least two points, one for each release-blocking metric of each cell, ordered by
    /// cell and metric.
    pub trends: Vec<Trend>,
    /// Labs, newest first. Labs without engines or profiles are left out.
    pub labs: Vec<DecidedLab>,
    /// Picks of a configuration by model, hardware and number of users, in page order.
    pub picks: Vec<Pick<'a>>,
}

/// Lab campaign with its decisions, computed again from its runs.
#[derive(Debug)]
pub struct DecidedLab {
    /// Index of the lab's campaign in the registry's list of campaigns.
    pub campaign: usize,
    pub replay: Replay,
    /// Newer release of the engine that the lab recommends; `None` where there is none.
    pub superseded: Option<Superseded>,
}

impl<'a> Judged<'a> {
    /// Computes the comparisons, trends, decisions of labs and picks that the pages of `catalog`
    /// show.
    ///
    /// # Errors
    ///
    /// `judge` cannot compare two releases, or cannot compute trends.
    pub fn of(catalog: &Catalog<'a>) -> Result<Self> {
        let mut measured = Vec::new();
        let mut published_pairs = Vec::new();
        for pair in pairs(catalog) {
            let (baseline, candidate) = (&pair.baseline, &pair.candidate);
            match published(catalog.registry, baseline, candidate, &pair.filter()) {
                Some(found) => published_pairs.push((pair, found)),
                None => measured.push(pair),
            }
        }
        let compare = |pair: &Pair| -> Result<Diff> {
            let (baseline, candidate) = (&pair.baseline, &pair.candidate);
            let mut diff = diff(catalog.registry, baseline, candidate, &pair.filter())?;
            // Pages are a pure function of records and know no current day: a waiver is shown with
            // the day on which it ends.
            waivers::apply(&mut diff, catalog.registry, 0);
            Ok(diff)
        };
        let diffs = measured.par_iter().map(compare).collect::<Result<Vec<_>>>()?;
        let trends = trend::trends(catalog.registry, &trend::Filter::default())?;
        let picks = pick::picks(catalog.registry, &pick::limits());
        let diffs = measured.into_iter().zip(diffs).collect();
        Ok(Self { diffs, published: published_pairs, trends, labs: labs(catalog), picks })
    }

    /// Returns the picks of one model on one hardware, in page order; those of all models or of all
    /// hardware where one is `None`.
    pub fn picks_of(
        &self,
        model: Option<&str>,
        hardware: Option<&str>,
    ) -> impl Iterator<Item = &Pick<'a>> {
        let is = |wanted: Option<&str>, own: &str| wanted.is_none_or(|wanted| wanted == own);
        self.picks.iter().filter(move |pick| {
            is(model, &pick.subject.model) && is(hardware, &pick.subject.hardware)
        })
    }

    /// Returns the comparison of the release `key` with the release before it; `None` for the first
    /// release.
    pub fn leading_to(&self, key: &ReleaseKey) -> Option<&(Pair, Diff)> {
        self.diffs.iter().find(|(pair, _)| pair.releases()[1] == *key)
    }

    /// Returns the release `key` and the one before it where both were only published elsewhere.
    pub fn published_before(&self, key: &ReleaseKey) -> Option<&Pair> {
        let mut pairs = self.published.iter().map(|(pair, _)| pair);
        pairs.find(|pair| pair.releases()[1] == *key)
    }

    /// Returns the rows of release-blocking metrics that got worse, waived or not, in the
    /// comparisons that lead to the latest release of each engine on each hardware.
    pub fn open(&self) -> impl Iterator<Item = (&Pair, &Row)> {
        let latest = self.diffs.iter().enumerate().filter(|(index, (pair, _))| {
            let next = self.diffs.get(index + 1);
            next.is_none_or(|(other, _)| {
                (&other.engine, &other.hardware) != (&pair.engine, &pair.hardware)
            })
        });
        latest.flat_map(|(_, (pair, diff))| {
            diff.rows().filter(|row| is_worse(row)).map(move |row| (pair, row))
        })
    }
}

/// Returns each pair of consecutive releases of an engine on one hardware.
fn pairs(catalog: &Catalog) -> Vec<Pair> {
    let mut groups: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for key in catalog.releases().into_keys() {
        groups.entry((key.engine, key.hardware)).or_default().push(key.release);
    }
    let mut pairs = Vec::new();
    for ((engine, hardware), mut releases) in groups {
        releases.sort_by(|a, b| order::releases(a, b));
        pairs.extend(releases.windows(2).map(|two| Pair {
            engine: engine.clone(),
            hardware: hardware.clone(),
            baseline: two[0].clone(),
            candidate: two[1].clone(),
        }));
    }
    pairs
}

/// Computes the decisions of each lab again from its runs that are not retracted, newest lab first.
/// Labs without engines or profiles are left out.
fn labs(catalog: &Catalog) -> Vec<DecidedLab> {
    let policy = policy::standard().file;
    let mut found = Vec::new();
    for (index, stored) in catalog.registry.campaigns.iter().enumerate().rev() {
        let campaign = &stored.record;
        let Some(planned) = &campaign.lab else { continue };
        let file = &planned.file;
        if file.engines.is_empty() || file.profiles.is_empty() {
            continue;
        }
        let runs = catalog.registry.standing().map(|run| &run.record);
        let own = runs.filter(|run| run.campaign.as_ref().is_some_and(|of| of.id == campaign.id));
        let replay = lab::replay(file, &policy, planned.runs_max, own);
        let engine = recommended(&replay).and_then(|candidate| file.engines.get(candidate.engine));
        let superseded = engine.and_then(|engine| {
            let at = (file.model.as_str(), campaign.hardware.as_str());
            let release = (engine.id.as_str(), engine.version.as_str());
            lab::superseded(catalog.registry, release, at, &policy)
        });
        found.push(DecidedLab { campaign: index, replay, superseded });
    }
    found
}

/// Returns the candidate that a lab recommends; `None` where it has no conclusion or recommends
/// nothing.
fn recommended(replay: &Replay) -> Option<&Candidate> {
    match &replay.next {
        Next::Conclusion(found) => found.recommended.as_ref(),
        Next::Round(_) => None,
    }
}
