//! Lays cells out as a table: one row per configuration, one column per scenario. Knows positions
//! of cells, but no figures.

use super::badge::{self, Badge};
use crate::catalog::Cell;
use crate::order;

/// Row of the table, with a place for each scenario.
#[derive(Debug)]
pub struct Row<'a, 'b> {
    /// Cell that opened the row, and which names it.
    pub first: &'a Cell<'b>,
    pub cells: Vec<Option<&'a Cell<'b>>>,
}

/// Returns the scenarios of `cells`, in page order.
pub fn scenarios<'a>(cells: &'a [Cell]) -> Vec<&'a str> {
    let mut scenarios: Vec<&str> = cells.iter().map(|cell| cell.key.scenario.as_str()).collect();
    scenarios.sort_by(|a, b| order::scenarios(a, b));
    scenarios.dedup();
    scenarios
}

/// Groups `cells` into rows by `name`. Where two cells would share a place, as two published
/// results with the same flags do, the second opens a row of its own, so that nothing is hidden.
pub fn rows<'a, 'b, N: PartialEq>(
    cells: &'a [Cell<'b>],
    scenarios: &[&str],
    name: impl Fn(&Cell) -> N,
) -> Vec<Row<'a, 'b>> {
    let mut rows: Vec<Row> = Vec::new();
    for cell in cells {
        let Some(column) = scenarios.iter().position(|name| *name == cell.key.scenario) else {
            continue;
        };
        let free = |row: &&mut Row| row.cells[column].is_none() && name(row.first) == name(cell);
        match rows.iter_mut().find(free) {
            Some(row) => row.cells[column] = Some(cell),
            None => {
                let mut places = vec![None; scenarios.len()];
                places[column] = Some(cell);
                rows.push(Row { first: cell, cells: places });
            }
        }
    }
    rows
}

impl Row<'_, '_> {
    /// Returns the badges of the row's cells, each text once.
    pub fn badges(&self) -> Vec<Badge> {
        let mut badges: Vec<Badge> = Vec::new();
        for badge in self.cells.iter().flatten().flat_map(|cell| badge::of_cell(cell)) {
            if !badges.iter().any(|known| known.text == badge.text) {
                badges.push(badge);
            }
        }
        badges
    }
}
