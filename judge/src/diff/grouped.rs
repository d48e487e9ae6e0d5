//! Remarks, flags and large changes of a comparison, grouped so that a reader sees each once with
//! the scenarios that it is about.

use std::collections::BTreeMap;

use schema::comparison::{CellDiff, FlagChange, Row};
use schema::metric::{Better, METRICS};

use super::words::{self, plural};

/// Sentence about one or more scenarios of a comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remark {
    /// Sentence about the scenarios, without a period, in the words of the cells' remarks.
    pub text: String,
    /// Scenarios that the sentence is about, as `id@rev`, in the order of the cells.
    pub scenarios: Vec<String>,
}

/// Returns the remarks of `cells`, each once with its scenarios: the pairs behind the figures, the
/// remarks stored with the cells in the order in which they first occur, and the drift of the
/// machine.
pub fn remarks(cells: &[&CellDiff]) -> Vec<Remark> {
    let mut found: Vec<Remark> = Vec::new();
    let pairs = cells.iter().filter_map(|cell| Some((words::pairs(cell)?, cell)));
    let stored =
        cells.iter().flat_map(|cell| cell.remarks.iter().map(move |text| (text.clone(), cell)));
    for (text, cell) in pairs.chain(stored) {
        let scenario = cell.cell.scenario.clone();
        match found.iter_mut().find(|remark| remark.text == text) {
            Some(remark) => remark.scenarios.push(scenario),
            None => found.push(Remark { text, scenarios: vec![scenario] }),
        }
    }
    found.extend(drift(cells));
    found
}

/// Returns one remark for each earlier campaign and direction in which the baseline's throughput
/// moved.
fn drift(cells: &[&CellDiff]) -> Vec<Remark> {
    let mut found: BTreeMap<(&str, bool), Vec<(f64, &str)>> = BTreeMap::new();
    for cell in cells {
        if let Some(drift) = &cell.drift {
            let group = found.entry((&drift.campaign, drift.effect_pct > 0.0)).or_default();
            group.push((drift.effect_pct.abs(), &cell.cell.scenario));
        }
    }
    let remark = |((campaign, faster), moved): ((&str, bool), Vec<(f64, &str)>)| {
        let sizes = || moved.iter().map(|(size, _)| *size);
        let (least, most) = (sizes().fold(f64::INFINITY, f64::min), sizes().fold(0.0, f64::max));
        let range = match moved.len() {
            1 => format!("{most:.1} %"),
            _ => format!("{least:.1} to {most:.1} %"),
        };
        let way = if faster { "faster" } else { "slower" };
        Remark {
            text: format!(
                "the baseline ran {range} {way} than in campaign `{campaign}`: the machine or its \
                 load changed"
            ),
            scenarios: moved.into_iter().map(|(_, scenario)| scenario.to_owned()).collect(),
        }
    };
    found.into_iter().map(remark).collect()
}

/// Formats the scenarios of a remark: `all 7 scenarios`, up to three by name, or their number.
pub fn scenarios(named: &[String], all: usize) -> String {
    match named.len() {
        count if count == all && count > 1 => format!("all {}", plural(count, "scenario")),
        0..=3 => named.join(", "),
        count => plural(count, "scenario"),
    }
}

/// Returns the flags of `cells` that `pick` selects, each once.
pub fn flags<'a>(
    cells: &[&'a CellDiff],
    pick: impl Fn(&'a CellDiff) -> &'a [FlagChange],
) -> Vec<&'a FlagChange> {
    let mut found: Vec<&FlagChange> = Vec::new();
    for change in cells.iter().flat_map(|cell| pick(cell)) {
        if !found.contains(&change) {
            found.push(change);
        }
    }
    found
}

/// Smallest changes of a release-blocking metric that a comparison would have shown.
#[derive(Debug, Clone, PartialEq)]
pub struct Visible {
    /// Title of the metric.
    pub title: String,
    /// Range over the scenarios, in percent, of the smallest change that as many pairs with the same
    /// scatter show with the policy's power.
    pub range_pct: (f64, f64),
}

/// Returns, for each release-blocking metric of `cells` in display order, which change the pairs of
/// its scenarios would have shown: a smaller one may be there and not be seen. Scenarios with too few
/// starts to be judged show none.
pub fn visible(cells: &[&CellDiff]) -> Vec<Visible> {
    let mut found: BTreeMap<usize, Visible> = BTreeMap::new();
    let judged = |row: &&Row| row.gates && words::too_few_starts(row).is_none();
    for row in cells.iter().flat_map(|cell| &cell.rows).filter(judged) {
        let place = METRICS.iter().position(|metric| metric.name == row.verdict.metric);
        let (Some(place), Some(pct)) = (place, row.verdict.mde_pct) else { continue };
        let title = row.title.clone();
        let entry = found.entry(place).or_insert(Visible { title, range_pct: (pct, pct) });
        entry.range_pct = (entry.range_pct.0.min(pct), entry.range_pct.1.max(pct));
    }
    found.into_values().collect()
}

/// Large changes of one metric in one direction, over the scenarios that have one.
#[derive(Debug, Clone, PartialEq)]
pub struct LargeChange {
    /// Title of the metric.
    pub title: String,
    /// True for a change for the worse.
    pub worse: bool,
    /// Smallest and largest effect of the changes, in percent.
    pub range_pct: (f64, f64),
    /// Scenarios with such a change, as `id@rev`.
    pub scenarios: Vec<String>,
}

/// Returns the large changes of metrics that are not release-blocking in `cells`, one entry for each
/// metric and direction: changes for the worse first, then by display order.
pub fn large(cells: &[&CellDiff]) -> Vec<LargeChange> {
    let mut found: BTreeMap<(bool, usize), LargeChange> = BTreeMap::new();
    for row in cells.iter().flat_map(|cell| &cell.rows).filter(|row| row.large) {
        let place = METRICS.iter().position(|metric| metric.name == row.verdict.metric);
        let (Some(place), Some(effect)) = (place, row.verdict.effect_pct) else { continue };
        let worse = is_worse(row, effect);
        let change = found.entry((!worse, place)).or_insert_with(|| LargeChange {
            title: row.title.clone(),
            worse,
            range_pct: (effect, effect),
            scenarios: Vec::new(),
        });
        change.range_pct = (change.range_pct.0.min(effect), change.range_pct.1.max(effect));
        change.scenarios.push(row.verdict.cell.scenario.clone());
    }
    found.into_values().collect()
}

fn is_worse(row: &Row, effect: f64) -> bool {
    match row.better {
        Better::Higher => effect < 0.0,
        Better::Lower => effect > 0.0,
    }
}
