//! Conclusions of `judge` about a whole catalog, computed once for all pages: comparisons of
//! consecutive releases, trends, and labs. Nothing is judged here.

use judge::best::{self, Answer, LEVELS, Question};
use judge::diff::{Diff, DiffError, Row, policy};
use judge::lab::{self, Replay};
use judge::trend::{self, TrendError};
use schema::metric::by_name;
use schema::trend::Trend;
use schema::verdict::VerdictKind;
use store::spread;

use crate::catalog::{Catalog, ReleaseKey};
use crate::compare;
use crate::view::diff::Pair;

/// Comparisons, trends and labs of a catalog.
#[derive(Debug)]
pub struct Judged {
    /// Comparison of each pair of consecutive releases of an engine on one hardware, ordered by
    /// engine and hardware.
    pub diffs: Vec<(Pair, Diff)>,
    /// Trend of every release-blocking metric, ordered by cell and metric.
    pub trends: Vec<Trend>,
    /// Replay of each lab campaign, with the campaign's index in the registry, newest first.
    pub labs: Vec<(usize, Replay)>,
}

/// Error: `judge` has no conclusions about the catalog.
#[derive(Debug, thiserror::Error)]
pub enum JudgedError {
    #[error(transparent)]
    Diff(#[from] DiffError),
    #[error(transparent)]
    Trend(#[from] TrendError),
}

/// Ranking of engines at one of [`LEVELS`], of measured or of published figures.
#[derive(Debug)]
pub struct Ranked {
    pub level: &'static str,
    pub published: bool,
    pub answer: Answer,
}

impl Judged {
    /// Computes everything that the pages of `catalog` show.
    ///
    /// # Errors
    ///
    /// A release of a pair has no runs, which the catalog itself excludes.
    pub fn of(catalog: &Catalog) -> Result<Self, JudgedError> {
        let pairs = compare::pairs(catalog);
        let compared = spread::map(&pairs, |pair| -> Result<Diff, DiffError> {
            let mut diff = compare::diff(catalog, pair)?;
            // Pages are a pure function of records and know no current day: a waiver is shown with
            // the day on which it ends.
            judge::diff::waivers::apply(&mut diff, catalog.registry, 0);
            Ok(diff)
        });
        let diffs: Result<Vec<Diff>, DiffError> = compared.into_iter().collect();
        let trends = trend::trends(catalog.registry, &trend::Filter::default())?;
        let diffs = pairs.into_iter().zip(diffs?).collect();
        Ok(Self { diffs, trends, labs: labs(catalog) })
    }

    /// Returns the comparison of `key` with the release before it.
    pub fn leading_to(&self, key: &ReleaseKey) -> Option<&(Pair, Diff)> {
        self.diffs.iter().find(|(pair, _)| pair.sides()[1] == *key)
    }

    /// Release-blocking rows that got worse, waived or not, in the comparisons that lead to the
    /// latest release of each engine on each hardware.
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

/// Replays the runs of each lab. A lab without engines or profiles is skipped.
fn labs(catalog: &Catalog) -> Vec<(usize, Replay)> {
    let policy = policy::standard().file;
    let mut found = Vec::new();
    for (index, stored) in catalog.registry.campaigns.iter().enumerate().rev() {
        let campaign = &stored.record;
        let Some(asked) = &campaign.lab else { continue };
        if asked.file.engines.is_empty() || asked.file.profiles.is_empty() {
            continue;
        }
        let runs = catalog.registry.standing().map(|run| &run.record).filter(|run| {
            run.campaign.as_ref().is_some_and(|campaign_of| campaign_of.id == campaign.id)
        });
        found.push((index, lab::replay(&asked.file, &policy, asked.runs_max, runs)));
    }
    found
}

/// True for a row that fails a release, or would fail it without its waiver.
pub fn is_worse(row: &Row) -> bool {
    row.gates && matches!(row.verdict.verdict, VerdictKind::Regressed | VerdictKind::NewFailure)
}

/// Ranks engines that serve `model` on `hardware` at each service level, measured figures and
/// published ones separately. Empty where there are no runs.
pub fn best(catalog: &Catalog, model: &str, hardware: &str) -> Vec<Ranked> {
    let Some(metric) = by_name("output_tokens_per_s") else { return Vec::new() };
    let mut ranked = Vec::new();
    for published in [false, true] {
        for level in &LEVELS {
            let question = Question {
                model: model.to_owned(),
                hardware: hardware.to_owned(),
                scenario: None,
                metric,
                limits: level.limits(),
                published,
            };
            // A model without runs on the hardware is an error of the query, but here an empty
            // answer.
            let Ok(answer) = best::best(catalog.registry, &question) else { continue };
            ranked.push(Ranked { level: level.name, published, answer });
        }
    }
    ranked
}
