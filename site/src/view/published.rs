//! View of the figures that others published for two consecutive releases: as printed, side by side,
//! with the ratio that `judge` computed. There is no verdict.

use judge::diff::published::{Published, PublishedRow};
use minijinja::{Value, context};

use crate::catalog;
use crate::format::{self, or_dash};
use crate::outside;

/// Largest number of tables on a page; each is about one model and scenario.
pub const TABLES_MAX: usize = 40;

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
