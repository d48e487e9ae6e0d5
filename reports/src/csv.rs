//! Reader of the CSV file of LMDeploy's `profile_restful_api.py`: a head with column names, and
//! one row per run.

use super::figures::Figures;
use super::served::Served;
use super::tool::Tool;
use super::workload::workload_of_settings;
use super::{Found, Unread};

/// Beginning of the CSV file's head, by which the format is recognized.
pub const HEAD: &str = "backend,dataset_name,";

/// Reads every row of the CSV text as a result.
pub fn read(text: &str) -> Vec<Result<Found, Unread>> {
    let mut lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    let names: Vec<&str> =
        lines.next().map_or_else(Vec::new, |(_, head)| head.split(',').collect());
    lines.map(|(line, row)| found(&names, line, row)).collect()
}

fn found(names: &[&str], line: u64, row: &str) -> Result<Found, Unread> {
    let unread = |why: String| Unread { line, why };
    let cells: Vec<&str> = row.split(',').collect();
    if cells.len() != names.len() {
        return Err(unread(format!("{} values under {} names", cells.len(), names.len())));
    }
    let text = |name: &str| {
        let at = names.iter().position(|known| *known == name)?;
        Some(cells[at].trim()).filter(|cell| !cell.is_empty())
    };
    let mut figures = Figures::default();
    for (name, cell) in names.iter().zip(&cells).filter(|(name, _)| is_figure(name)) {
        let cell = cell.trim();
        let read = if cell.is_empty() { Ok(()) } else { figures.read(name, 1.0, cell) };
        read.map_err(|why| unread(format!("`{name}`: {why}")))?;
    }
    figures.complete().map_err(unread)?;
    Ok(Found {
        tool: Tool::Lmdeploy,
        backend: text("backend").map(str::to_owned),
        figures,
        served: Served::default(),
        asked: workload_of_settings(|name| text(name).map(str::to_owned)),
        lines: (line, line),
    })
}

/// True for columns with figures; names and settings are not.
fn is_figure(name: &str) -> bool {
    let settings = ["backend", "dataset_name", "sharegpt_output_len"];
    !settings.contains(&name) && !name.starts_with("random_")
}
