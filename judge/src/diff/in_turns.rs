//! Verdicts of alternating comparisons in a comparison of releases: the campaign of a cell's runs has
//! also compared both releases in turns, which decides what changed.

use schema::alternation::AlternatingComparison;
use schema::campaign::CampaignRecord;
use schema::comparison::{CellDiff, Row};
use schema::verdict::{Stage, VerdictKind};

use super::estimate::Estimate;
use super::{Compared, Pairs};
use crate::alternation::{compare, judge};
use crate::records::Registry;

/// Alternating comparison of a cell with the campaign that made it.
#[derive(Clone, Copy)]
pub(super) struct InTurns<'a> {
    campaign: &'a CampaignRecord,
    comparison: &'a AlternatingComparison,
}

impl<'a> InTurns<'a> {
    /// Finds the alternating comparison that the judged campaign made of a cell; `None` where there
    /// is none, or the cell is not comparable.
    pub(super) fn of(compared: &Compared<'_>, registry: &'a Registry) -> Option<Self> {
        let comparable = |pairs: &&Pairs<'_>| pairs.comparable;
        let pairs = compared.pairs.as_ref().filter(comparable)?;
        let mut campaigns = registry.campaigns.iter().map(|stored| &stored.record);
        let campaign = campaigns.find(|record| record.id == pairs.campaign)?;
        let cell = &compared.cell;
        let comparison = campaign
            .alternations
            .iter()
            .find(|found| found.model == cell.model && found.scenario == cell.scenario)?;
        Some(Self { campaign, comparison })
    }

    /// Replaces the verdicts on release-blocking metrics of `cell` by those of the comparison; the
    /// figures stay those of the runs. A metric that is another quantity in turns gets a row of its
    /// own, and the one of the runs decides nothing.
    pub(super) fn judge(&self, cell: &mut CellDiff) {
        for judged in judge(self.comparison).iter().filter(|judged| judged.gates) {
            let is_other = compare::is_other_quantity(judged.metric);
            match cell.rows.iter_mut().find(|row| row.verdict.metric == judged.metric.name) {
                Some(row) if is_other => {
                    estimate_only(row);
                    cell.rows.push(compare::row(&cell.cell, self.comparison, judged));
                }
                Some(row) => {
                    let figures = [row.verdict.baseline, row.verdict.candidate];
                    row.verdict = compare::verdict(&cell.cell, judged, figures);
                    (row.gates, row.large) = (true, false);
                }
                None => cell.rows.push(compare::row(&cell.cell, self.comparison, judged)),
            }
        }
        cell.remarks.extend(compare::remarks(self.comparison));
    }
}

/// Takes the verdict from a row of whole runs, so that its change is an estimate.
fn estimate_only(row: &mut Row) {
    let verdict = &mut row.verdict;
    (verdict.verdict, verdict.stage) = (VerdictKind::Inconclusive, Stage::Estimate);
    (verdict.suspected, verdict.p_adjusted, verdict.noise_pct) = (false, None, None);
    let is_large = |effect_pct: f64| {
        let alone = Estimate::alone(verdict.pairs, effect_pct);
        Estimate { interval_pct: verdict.interval_pct, ..alone }.is_large(verdict.floor_pct)
    };
    row.large = verdict.effect_pct.is_some_and(is_large);
    row.gates = false;
}

/// Judges each model over its scenarios together, where `turns`, the comparisons of `cells`, has all
/// that a campaign made of the model.
pub(super) fn pooled(cells: &[CellDiff], turns: &[Option<InTurns<'_>>]) -> Vec<Row> {
    let found: Vec<(&CellDiff, &InTurns<'_>)> =
        cells.iter().zip(turns).filter_map(|(cell, turns)| Some((cell, turns.as_ref()?))).collect();
    let mut rows = Vec::new();
    for (index, (cell, first)) in found.iter().enumerate() {
        let is_of_model = |turns: &InTurns<'_>| {
            turns.campaign.id == first.campaign.id
                && turns.comparison.model == first.comparison.model
        };
        if found[..index].iter().any(|(_, earlier)| is_of_model(earlier)) {
            continue;
        }
        let all = &first.campaign.alternations;
        let own: Vec<&AlternatingComparison> =
            all.iter().filter(|one| one.model == first.comparison.model).collect();
        if found.iter().filter(|(_, other)| is_of_model(other)).count() == own.len() {
            rows.extend(compare::pooled_rows(&cell.cell, &own, all));
        }
    }
    rows
}
