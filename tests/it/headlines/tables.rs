//! Recomputes the tables of pages: headline tables of releases, tables of configurations by
//! scenario, and engines side by side.

use std::fmt;

use super::pages::{Page, Stated, Table, unit_of};
use super::records::{Figure, Metric, Records, Run, grouped, metric, newest};

/// Difference between what a page states and what the records give.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub page: String,
    pub line: usize,
    pub what: String,
    pub stated: String,
    pub recomputed: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { page, line, what, stated, recomputed } = self;
        write!(f, "{page}:{line}: {what}: states `{stated}`, recomputed `{recomputed}`")
    }
}

/// Result of checking pages: number of figures that were recomputed, and all differences.
#[derive(Debug, Default)]
pub struct Audit {
    pub page: String,
    pub checked: usize,
    pub findings: Vec<Finding>,
}

impl Audit {
    /// Notes whether a statement of the page holds; `recomputed` is asked for where it does not.
    pub fn note(&mut self, line: usize, what: &str, stated: &str, found: Result<(), String>) {
        self.checked += 1;
        if let Err(recomputed) = found {
            let (page, what, stated) = (self.page.clone(), what.to_owned(), stated.to_owned());
            self.findings.push(Finding { page, line, what, stated, recomputed });
        }
    }
}

/// Engine, release and hardware that an address of a release's page names, in either form of the
/// pages; `None` for another address.
pub fn release_of(address: &str) -> Option<[&str; 3]> {
    let parts: Vec<&str> = address.split('/').collect();
    let parts = parts.strip_suffix(&["index.html"]).unwrap_or(&parts);
    let [.., engine, release, hardware] = parts else { return None };
    let hardware = hardware.strip_suffix(".md").unwrap_or(hardware);
    let is_release = hardware != "README" && !release.contains("..") && release.starts_with('v');
    is_release.then_some([*engine, *release, hardware])
}

/// Compares a stated figure with the exact one: its value, and half of its range.
pub fn compare(
    stated: &str,
    exact: Option<Figure>,
    value: f64,
    divisor: f64,
) -> Result<(), String> {
    let Some(figure) = exact else {
        return if stated == "-" { Ok(()) } else { Err("-".to_owned()) };
    };
    let half_pct = (figure.max - figure.min) / 2.0 / value.abs() * 100.0;
    let shown = || format!("{:.5} ±{half_pct:.3} % (n = {})", value / divisor, figure.n);
    let Some(found) = Stated::parse(stated) else { return Err(shown()) };
    let spread_holds = match found.spread_pct {
        Some(spread) => figure.n > 1 && spread.is(half_pct),
        None => figure.n == 1,
    };
    if found.value.is(value / divisor) && spread_holds { Ok(()) } else { Err(shown()) }
}

/// Compares a stated figure with the median over runs.
pub fn compare_median(stated: &str, exact: Option<Figure>, divisor: f64) -> Result<(), String> {
    compare(stated, exact, exact.map_or(0.0, |figure| figure.median), divisor)
}

/// Runs of a release on a hardware that its pages show: those of labs only where there are no
/// others.
fn runs_of_release<'r>(
    records: &'r Records,
    [engine, release, hardware]: [&str; 3],
) -> Vec<&'r Run> {
    // A published result whose reading was retracted stands in a later one.
    let all = records.those(|run| {
        let is_read_again = run.is_published && run.is_retracted;
        [&run.engine, &run.release, &run.hardware] == [engine, release, hardware] && !is_read_again
    });
    let kept = |test: fn(&Run) -> bool| -> Vec<&Run> {
        all.iter().copied().filter(|run| test(run)).collect()
    };
    [kept(|run| !run.is_lab), kept(|run| !run.has_variant()), all.clone()]
        .into_iter()
        .find(|runs| !runs.is_empty())
        .unwrap_or_default()
}

/// Checks the tables of a page that state figures of a release, or of several engines.
pub fn check(records: &Records, page: &Page, address: &str, audit: &mut Audit) {
    for table in &page.tables {
        if table.has(&["Model", "Scenario", "n", "Failed"]) {
            let Some(key) = release_of(address) else { continue };
            summary(records, table, &runs_of_release(records, key), audit);
        } else if let Some(scenarios) = scenarios(table) {
            let title = table.headings.last().cloned().unwrap_or_default();
            if table.heads[0] == "Engine" {
                side_by_side(records, table, &scenarios, &title, address, audit);
            } else if let Some(key) = release_of(&table.link) {
                matrix(records, table, &scenarios, &runs_of_release(records, key), audit);
            }
        }
    }
}

/// Heads that are scenarios; `None` where none is, or the table has metrics as rows.
fn scenarios(table: &Table) -> Option<Vec<String>> {
    let found: Vec<String> =
        table.heads.iter().filter(|head| head.contains('@')).cloned().collect();
    let is_plain = found.iter().all(|head| !head.contains(' '));
    (!found.is_empty() && is_plain && table.has(&["Notes"])).then_some(found)
}

/// Metrics of the columns of a table, by head.
fn columns(table: &Table) -> Vec<(String, Metric, f64)> {
    let of = |head: &String| {
        let (title, divisor) = unit_of(head);
        Some((head.clone(), metric(title)?, divisor))
    };
    table.heads.iter().filter_map(of).collect()
}

/// Checks the headline table of a release: one row for each model, scenario and configuration.
fn summary(records: &Records, table: &Table, runs: &[&Run], audit: &mut Audit) {
    let columns = columns(table);
    let mut line = 0;
    for (number, row) in &table.rows {
        line = *number;
        let named = table.cell(row, "Scenario");
        let (scenario, config) = named.split_once(' ').unwrap_or((named, ""));
        let config = config.trim_matches(['(', ')']);
        let model = table.cell(row, "Model");
        let cells = cells(runs, |run| {
            run.model == model
                && run.scenario == scenario
                && (run.is_published || config.is_empty() || run.config == config)
        });
        let notes = |own: &[&Run]| -> Vec<(String, String, Result<(), String>)> {
            let own = newest(own);
            let n = table.cell(row, "n").split(' ').next().unwrap_or_default().to_owned();
            let counted = own.len().to_string();
            let n_found = if n == counted { Ok(()) } else { Err(counted) };
            let figures = columns.iter().map(|(head, metric, divisor)| {
                let stated = table.cell(row, head);
                let found = compare_median(stated, records.figure(metric, &own), *divisor);
                (format!("{model} {named}, {head}"), stated.to_owned(), found)
            });
            figures.chain([(format!("{model} {named}, n"), n, n_found)]).collect()
        };
        best_match(&cells, notes, *number, &format!("{model} {named}"), audit);
    }
    let expected = cells(runs, |_| true).len();
    let found = if table.rows.len() == expected { Ok(()) } else { Err(expected.to_string()) };
    audit.note(line, "number of rows", &table.rows.len().to_string(), found);
}

/// Groups the runs that `test` accepts into cells.
fn cells<'r>(runs: &[&'r Run], test: impl Fn(&Run) -> bool) -> Vec<Vec<&'r Run>> {
    let own = runs.iter().copied().filter(|run| test(run));
    grouped(own, |run| (run.model.clone(), run.config.clone(), run.scenario.clone(), run.is_text))
}

/// Notes the statements about the cell that they fit best. Pages do not name the record of a
/// published result, so that several cells may be meant.
fn best_match(
    cells: &[Vec<&Run>],
    notes: impl Fn(&[&Run]) -> Vec<(String, String, Result<(), String>)>,
    line: usize,
    what: &str,
    audit: &mut Audit,
) {
    let wrong = |notes: &Vec<(String, String, Result<(), String>)>| {
        notes.iter().filter(|(.., found)| found.is_err()).count()
    };
    match cells.iter().map(|runs| notes(runs)).min_by_key(wrong) {
        Some(notes) => {
            for (what, stated, found) in notes {
                audit.note(line, &what, &stated, found);
            }
        }
        None => audit.note(line, what, "a row", Err("no such runs".to_owned())),
    }
}

/// True for a missing figure whose scenario the row did not run: no cell is meant, or those that are
/// meant are published results, each of which has a row of its own.
fn is_elsewhere(stated: &str, cells: &[Vec<&Run>]) -> bool {
    stated == "-" && (cells.is_empty() || cells.len() > 1 && cells[0][0].is_published)
}

/// Notes whether a column of a table states as many figures as there are cells with one, so that no
/// published result is left out.
fn all_stated(
    records: &Records,
    metric: &Metric,
    (table, scenario): (&Table, &str),
    cells: &[Vec<&Run>],
    audit: &mut Audit,
) {
    let rows = table.rows.iter().filter(|(_, row)| table.cell(row, scenario) != "-");
    let stated = rows.filter(|(_, row)| !table.cell(row, scenario).is_empty()).count();
    let with_figure = |runs: &&Vec<&Run>| records.figure(metric, &newest(runs)).is_some();
    let expected = cells.iter().filter(with_figure).count();
    let found = if stated == expected { Ok(()) } else { Err(expected.to_string()) };
    let line = table.rows.first().map_or(0, |(line, _)| *line);
    audit.note(line, &format!("number of figures in {scenario}"), &stated.to_string(), found);
}

/// Checks a table of the output throughput by model, configuration and scenario.
fn matrix(
    records: &Records,
    table: &Table,
    scenarios: &[String],
    runs: &[&Run],
    audit: &mut Audit,
) {
    let output = metric("Output tokens").expect("a metric");
    for (line, row) in &table.rows {
        // HTML has model and configuration in one cell.
        let model = row[0].split(' ').next().unwrap_or_default();
        let config = match table.cell(row, "Configuration") {
            "" => row[0].split_once(' ').map_or("", |(_, config)| config),
            config => config,
        };
        for scenario in scenarios {
            let stated = table.cell(row, scenario);
            let cells = cells(runs, |run| {
                let is_named = run.is_published || run.config == config;
                run.model == model && run.scenario == *scenario && is_named
            });
            let what = format!("{model} {scenario}");
            if is_elsewhere(stated, &cells) {
                continue;
            }
            let notes = |own: &[&Run]| {
                let figure = records.figure(&output, &newest(own));
                vec![(what.clone(), stated.to_owned(), compare_median(stated, figure, 1.0))]
            };
            best_match(&cells, notes, *line, &what, audit);
        }
    }
    for scenario in scenarios {
        let is_listed = |run: &Run| {
            table.rows.iter().any(|(_, row)| row[0].split(' ').next() == Some(&run.model))
        };
        let cells = cells(runs, |run| run.scenario == *scenario && is_listed(run));
        all_stated(records, &output, (table, scenario), &cells, audit);
    }
}

/// Checks a table of one metric: engines by scenarios, each engine with its latest release.
fn side_by_side(
    records: &Records,
    table: &Table,
    scenarios: &[String],
    title: &str,
    address: &str,
    audit: &mut Audit,
) {
    let head = title.replace(" /s", "/s");
    let (title, divisor) = unit_of(&head);
    let parts: Vec<&str> = address.trim_end_matches("/index.html").split('/').collect();
    let (Some(metric), [.., "m" | "side-by-side", model, hardware]) = (metric(title), &parts[..])
    else {
        return;
    };
    let hardware = hardware.trim_end_matches(".md");
    for (line, row) in &table.rows {
        let (engine, release) = row[0].split_once(' ').unwrap_or((&row[0], ""));
        let own = records.those(|run| {
            let is_here = run.model == *model && run.hardware == hardware;
            is_here && run.engine == engine && !run.is_lab && !run.is_copy
        });
        let latest = own.iter().map(|run| run.release.as_str()).max_by_key(|name| version(name));
        let found = if latest == Some(release) { Ok(()) } else { Err(format!("{latest:?}")) };
        audit.note(*line, &format!("latest release of {engine}"), release, found);
        let config = table.cell(row, "Configuration");
        for scenario in scenarios {
            let stated = table.cell(row, scenario);
            let cells = cells(&own, |run| {
                // A page leaves out the parts of a configuration that all rows share.
                let is_part = |part: &str| run.config.contains(part);
                let is_named = run.is_published
                    || config.is_empty()
                    || config.contains(&run.config)
                    || config.split(", ").any(is_part);
                run.release == release && run.scenario == *scenario && is_named
            });
            if is_elsewhere(stated, &cells) {
                continue;
            }
            let what = format!("{engine} {release} in {scenario}, {head}");
            let notes = |own: &[&Run]| {
                let figure = records.figure(&metric, &newest(own));
                vec![(what.clone(), stated.to_owned(), compare_median(stated, figure, divisor))]
            };
            best_match(&cells, notes, *line, &what, audit);
        }
    }
    for scenario in scenarios {
        let is_listed = |run: &Run| {
            let name = format!("{} {}", run.engine, run.release);
            table.rows.iter().any(|(_, row)| row[0] == name)
        };
        let own = records.those(|run| {
            let is_here = run.model == *model && run.hardware == hardware;
            is_here && run.scenario == *scenario && !run.is_lab && !run.is_copy && is_listed(run)
        });
        all_stated(records, &metric, (table, scenario), &cells(&own, |_| true), audit);
    }
}

/// Numbers of a release's name, by which releases are ordered.
pub fn version(release: &str) -> Vec<u64> {
    release.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect()
}

/// Checks the table of the landing page, which copies figures of the page that it links to.
pub fn landing(records: &Records, page: &Page, text: &str, audit: &mut Audit) {
    let address = text.split("](results/pages/").nth(1).and_then(|rest| rest.split(')').next());
    let key = address.and_then(release_of).expect("the page that the figures are from");
    let runs = runs_of_release(records, key);
    for table in page
        .tables
        .iter()
        .filter(|table| table.heads.first().is_some_and(|head| head == "Scenario"))
    {
        for (line, row) in &table.rows {
            let cells = cells(&runs, |run| run.scenario == row[0]);
            let notes = |own: &[&Run]| {
                let own = newest(own);
                let of = |(head, metric, divisor): (String, Metric, f64)| {
                    let stated = table.cell(row, &head);
                    let found = compare_median(stated, records.figure(&metric, &own), divisor);
                    (format!("{}, {head}", row[0]), stated.to_owned(), found)
                };
                columns(table).into_iter().map(of).collect()
            };
            best_match(&cells, notes, *line, &row[0], audit);
        }
    }
}
