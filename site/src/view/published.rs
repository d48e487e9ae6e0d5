//! View of two consecutive releases whose figures were only published elsewhere: the printed figures
//! side by side, with the ratio that `judge` computed. There is no verdict.

use judge::diff::published::{Published, PublishedRow};
use minijinja::{Value, context};

use super::command;
use crate::catalog;
use crate::format::{self, or_dash};
use crate::judged::Pair;
use crate::link::Target;
use crate::outside;

/// Largest number of tables on a page; each is about one model and scenario.
pub const TABLES_MAX: usize = 40;

/// Builds the view of the page of a pair without its tables, which are split into pages.
pub fn view(pair: &Pair) -> Value {
    let [baseline, candidate] = pair.releases();
    let command = command::release_bench(&candidate, &["--baseline", &pair.baseline]);
    let [baseline_page, candidate_page] = [baseline, candidate].map(Target::ReleaseOn);
    context! {
        engine => outside::name(&pair.engine),
        hardware => outside::name(&pair.hardware),
        baseline => outside::name(&pair.baseline),
        candidate => outside::name(&pair.candidate),
        baseline_page,
        candidate_page,
        // Command that measures both releases side by side.
        command,
    }
}

/// Builds the table of one model and scenario.
pub fn table(found: &Published) -> Value {
    let record = found.candidate;
    let rows = found.rows.iter().enumerate().map(|(index, own)| {
        let before = index.checked_sub(1).map(|before| &found.rows[before].section);
        row(own, before != Some(&own.section))
    });
    context! {
        model => outside::name(&record.model.id),
        config => outside::line(&catalog::config(record)),
        scenario => outside::name(&catalog::scenario(record)),
        rows => rows.collect::<Value>(),
    }
}

/// Builds a row; `is_first` of its section.
fn row(row: &PublishedRow, is_first: bool) -> Value {
    let section = row.section.as_deref().filter(|_| is_first);
    context! {
        // Heading above the row; empty where the row needs none.
        section => outside::name(section.unwrap_or_default()),
        label => outside::name(&row.label),
        baseline => outside::name(&row.baseline),
        candidate => outside::name(&row.candidate),
        ratio => or_dash(row.ratio, |ratio| format!("{}x", format::rounded(ratio, None))),
    }
}
