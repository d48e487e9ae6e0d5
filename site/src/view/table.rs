//! Layout of tables of cells: one row per configuration, one column per scenario. What all rows
//! share (parts of configurations, findings) is shown once.

use judge::order;
use minijinja::{Value, context};
use schema::run::Kind;

use super::figure::{self, Column, Figure};
use super::finding::{self, Finding};
use super::tip;
use crate::catalog::{Cell, Run};
use crate::outside;

/// Row of a table of cells, with one cell or none for each scenario.
#[derive(Debug)]
pub struct Row<'a, 'b> {
    /// Cell that opened the row, by whose configuration the row is named.
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

/// Groups `cells` into rows by `name`. Where two cells of one scenario would be in one row, as two
/// published results with the same flags, the second opens a row of its own, so that nothing is
/// hidden.
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
    /// Returns the figure of the column's metric for each scenario of the row; a missing figure
    /// where the row has no cell.
    pub fn figures(&self, column: &Column) -> Vec<Figure> {
        let not_run = || Figure::missing("not run");
        self.cells
            .iter()
            .map(|cell| cell.map_or_else(not_run, |cell| column.figure(cell)))
            .collect()
    }

    /// Returns the findings about the row's cells; each text occurs once.
    fn findings(&self) -> Vec<Finding> {
        let mut found: Vec<Finding> = Vec::new();
        for finding in self.cells.iter().flatten().flat_map(|cell| finding::of_cell(cell)) {
            if !found.iter().any(|known| known.text == finding.text) {
                found.push(finding);
            }
        }
        found
    }
}

/// Returns the findings about each row without those that all rows share, and the shared ones.
pub fn findings(rows: &[Row]) -> (Vec<Vec<Finding>>, Vec<Finding>) {
    let mut of_rows: Vec<Vec<Finding>> = rows.iter().map(Row::findings).collect();
    let common = finding::take_common(&mut of_rows);
    (of_rows, common)
}

/// Builds the matrix of output throughput: models and configurations by scenarios.
pub fn matrix(cells: &[Cell]) -> Value {
    let column = Column::new(figure::output(), cells);
    let scenarios = scenarios(cells);
    let rows = rows(cells, &scenarios, |cell| (cell.key.model.clone(), cell.key.config.clone()));
    let (findings, common) = findings(&rows);
    let row = |(row, badges): (&Row, Vec<Finding>)| {
        context! {
            model => outside::name(&row.first.key.model),
            config => outside::line(&row.first.key.config),
            figures => row.figures(&column),
            badges,
        }
    };
    context! {
        head => column.head(),
        scenarios => scenarios.into_iter().map(outside::name).collect::<Value>(),
        common,
        rows => rows.iter().zip(findings).map(row).collect::<Value>(),
    }
}

/// Configuration parts (such as flags) that all rows of a table share.
#[derive(Debug, Clone, Default)]
pub struct Shared(Vec<String>);

impl Shared {
    /// Finds the parts that the configurations of all `rows` share; each row is given by one of its
    /// cells. A single row shares nothing.
    pub fn of<'c, 'r: 'c>(rows: impl Iterator<Item = &'c Cell<'r>>) -> Self {
        let firsts = rows.filter_map(|cell| cell.runs.first());
        let mut parts: Vec<Vec<String>> =
            firsts.map(|run| tip::configuration(run.record)).collect();
        if parts.len() < 2 {
            return Self::default();
        }
        let mut shared = parts.swap_remove(0);
        shared.retain(|part| parts.iter().all(|own| own.contains(part)));
        Self(shared)
    }

    /// Returns the parts of the configuration of `run` that the rows do not share, as one text;
    /// empty where there are none.
    pub fn rest(&self, run: &Run) -> String {
        let mut parts = tip::configuration(run.record);
        parts.retain(|part| !self.0.contains(part));
        // Flags stand as in a command, parts of a measured configuration as in a list.
        let between = if run.record.kind == Kind::Imported { " " } else { ", " };
        outside::line(&parts.join(between))
    }

    /// Returns the parts of the configuration of `cell` that the rows do not share, as one text.
    pub fn rest_of(&self, cell: &Cell) -> String {
        cell.runs.first().map(|run| self.rest(run)).unwrap_or_default()
    }

    /// Returns the shared parts of the configurations, cleaned for display.
    pub fn shown(&self) -> Vec<String> {
        self.0.iter().map(|part| outside::name(part)).collect()
    }
}
