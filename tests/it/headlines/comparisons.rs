//! Recomputes comparisons of releases from their interleaved blocks, or from their slices in turns:
//! ratio, t interval, means, and the figures of the sentence that states the verdict. The verdict
//! itself is taken from the page.

use super::in_turns;
use super::pages::{Number, Page, Table, unit_of};
use super::records::{Figure, Metric, Records, Run, grouped, metric};
use super::tables::{Audit, compare, release_of};

/// Two releases of an engine on a hardware.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    pub engine: String,
    pub baseline: String,
    pub candidate: String,
    pub hardware: String,
}

/// Row of a comparison: what the page calls it, and its effect as it is recomputed.
#[derive(Debug, Clone)]
pub struct Row {
    pub pair: Pair,
    pub is_blocking: bool,
    pub scenario: String,
    pub title: String,
    pub verdict: String,
    pub effect_pct: f64,
    pub interval_pct: Option<(f64, f64)>,
    min_effect_pct: f64,
}

impl Pair {
    /// Returns the pair whose page has this address; `None` for another page.
    pub fn of(address: &str) -> Option<Self> {
        let parts: Vec<&str> = address.trim_end_matches("/index.html").split('/').collect();
        let [.., engine, releases, hardware] = &parts[..] else { return None };
        let (baseline, candidate) = releases.split_once("..")?;
        let hardware = hardware.trim_end_matches(".md");
        let [engine, baseline, candidate, hardware] =
            [*engine, baseline, candidate, hardware].map(str::to_owned);
        Some(Self { engine, baseline, candidate, hardware })
    }

    fn runs<'r>(&self, records: &'r Records, release: &str) -> Vec<&'r Run> {
        records.those(|run| {
            let is_here = (&run.engine, &run.hardware) == (&self.engine, &self.hardware);
            is_here && run.release == release && run.is_whole()
        })
    }
}

/// Ending of the title of a metric that is another quantity in turns than in whole runs.
const IN_TURNS: &str = " in turns";
/// Words for a metric that had too few starts to be judged.
const TOO_FEW: &str = "too few starts";

/// Runs of both releases in one block.
type Block<'r> = (Vec<&'r Run>, Vec<&'r Run>);

/// Checks the tables of a comparison's page; returns their rows.
pub fn check(records: &Records, page: &Page, address: &str, audit: &mut Audit) -> Vec<Row> {
    let Some(pair) = Pair::of(address) else { return Vec::new() };
    let mut rows = Vec::new();
    for table in page.tables.iter().filter(|table| table.has(&["Scenario", "Metric", "Pairs"])) {
        rows.extend(table_of(records, table, &pair, audit));
    }
    rows
}

fn table_of(records: &Records, table: &Table, pair: &Pair, audit: &mut Audit) -> Vec<Row> {
    let named = table.headings.get(1).map_or("", String::as_str);
    let mut words = named.split([',', ' ']).filter(|word| !word.is_empty());
    let (model, config) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut found = Vec::new();
    for (line, row) in &table.rows {
        let (scenario, name) =
            (table.cell(row, "Scenario"), table.cell(row, "Metric").replace(" /s", "/s"));
        let (title, divisor) = unit_of(&name);
        let measured = title.strip_suffix(IN_TURNS).unwrap_or(title);
        let Some(metric) = metric(measured) else { continue };
        let stages = stages(records, pair, (model, config, scenario));
        let candidates = stages.iter().filter_map(|blocks| {
            let exact = Exact::of(records, &metric, blocks)?;
            let statements = exact.compare(table, row, pair, divisor);
            Some((exact, statements))
        });
        let wrong = |statements: &[(&str, &str, Result<(), String>)]| {
            statements.iter().filter(|(.., found)| found.is_err()).count()
        };
        let what = format!("{model} {scenario}, {title}");
        let best = candidates.min_by_key(|(_, statements)| wrong(statements));
        let verdict = table.cell(row, "Verdict");
        let minimum = table.cell(row, "Minimum effect").trim_end_matches('%');
        let min_effect_pct = Number::parse(minimum.trim()).map_or(0.0, |number| number.value);
        let mut add = |effect_pct, interval_pct| {
            found.push(Row {
                pair: pair.clone(),
                is_blocking: verdict != "not judged"
                    && (table.headings.last())
                        .is_some_and(|last| last.starts_with("Release-blocking")),
                scenario: scenario.to_owned(),
                title: title.to_owned(),
                verdict: verdict.to_owned(),
                effect_pct,
                interval_pct,
                min_effect_pct,
            });
        };
        // Slices decided, which are in the campaign's record: the means of both releases are those of
        // their runs, except of a metric that is another quantity in turns.
        if verdict.contains("in turns") {
            let best = best.filter(|_| measured == title);
            let means = best.into_iter().flat_map(|(_, statements)| statements);
            for (column, stated, found) in
                means.filter(|(column, ..)| ["baseline", "candidate"].contains(column))
            {
                audit.note(*line, &format!("{what}, {column}"), stated, found);
            }
            let cell = (model, scenario, measured);
            let Some(change) = in_turns::change(records, pair, cell, (table, row)) else {
                audit.note(*line, &what, "a row", Err("no slices in turns".to_owned()));
                continue;
            };
            for (column, stated, found) in change.statements(table, row, pair, divisor) {
                audit.note(*line, &format!("{what}, {column}"), &stated, found);
            }
            add(change.effect_pct, Some(change.interval_pct));
            continue;
        }
        let Some((exact, statements)) = best else {
            audit.note(*line, &what, "a row", Err("no interleaved blocks".to_owned()));
            continue;
        };
        for (column, stated, found) in statements {
            audit.note(*line, &format!("{what}, {column}"), stated, found);
        }
        add(exact.effect_pct, exact.interval_pct);
    }
    found
}

/// Returns the blocks of the newest campaign that interleaved both releases in a cell, those of its
/// first stage and those of its confirmation.
fn stages<'r>(
    records: &'r Records,
    pair: &Pair,
    (model, config, scenario): (&str, &str, &str),
) -> [Vec<Block<'r>>; 2] {
    let of_cell = |run: &&Run| run.model == model && run.scenario == scenario;
    let candidate: Vec<&Run> = pair
        .runs(records, &pair.candidate)
        .into_iter()
        .filter(of_cell)
        .filter(|run| run.config == config)
        .collect();
    let command = candidate.first().map(|run| run.command());
    let baseline: Vec<&Run> = pair
        .runs(records, &pair.baseline)
        .into_iter()
        .filter(of_cell)
        .filter(|run| Some(run.command()) == command)
        .collect();
    let both = interleaved(&baseline, &candidate);
    let (confirm, screen) = both.into_iter().partition(|(old, _)| old[0].is_confirming());
    [screen, confirm]
}

/// Returns the blocks of the newest campaign that has runs of both sides in one block.
fn interleaved<'r>(old: &[&'r Run], new: &[&'r Run]) -> Vec<Block<'r>> {
    let all = old.iter().chain(new).copied();
    let blocks = grouped(all, |run| (run.campaign.clone(), run.block()));
    let mut both: Vec<Block> = blocks
        .into_iter()
        .map(|runs| runs.into_iter().partition(|run| old.iter().any(|other| other.id == run.id)))
        .filter(|(old, new): &Block| !old.is_empty() && !new.is_empty())
        .collect();
    let newest = both.iter().map(|(old, _)| old[0].campaign.clone()).max().unwrap_or_default();
    both.retain(|(old, _)| !newest.is_empty() && old[0].campaign == newest);
    both
}

/// Ratio of two configurations within interleaved pairs: mean, 95 % interval, number of pairs.
pub type Ratio = (f64, Option<(f64, f64)>, usize);

/// Returns the ratio of output tokens/s of `ours` to `theirs` in the newest campaign that ran both
/// in turns on the same requests; `None` where none did.
pub fn ratio(records: &Records, ours: &[&Run], theirs: &[&Run]) -> Option<Ratio> {
    let whole = |runs: &[&'_ Run]| -> Vec<String> {
        runs.iter().filter(|run| run.is_whole()).map(|run| run.id.clone()).collect()
    };
    let (ours, theirs) = (whole(ours), whole(theirs));
    let of = |ids: &[String]| records.those(|run| ids.contains(&run.id));
    let mut blocks = interleaved(&of(&theirs), &of(&ours));
    blocks
        .retain(|(old, new)| old.iter().chain(new).all(|run| run.workload() == old[0].workload()));
    let exact = Exact::of(records, &metric("Output tokens")?, &blocks)?;
    let ratio = |percent: f64| 1.0 + percent / 100.0;
    let interval = exact.interval_pct.map(|(low, high)| (ratio(low), ratio(high)));
    Some((ratio(exact.effect_pct), interval, exact.pairs))
}

/// Figures of one metric in one cell, from its blocks.
struct Exact {
    sides: [Figure; 2],
    pairs: usize,
    effect_pct: f64,
    interval_pct: Option<(f64, f64)>,
}

impl Exact {
    fn of(records: &Records, metric: &Metric, blocks: &[Block]) -> Option<Self> {
        let mean_log = |runs: &[&Run]| -> Option<f64> {
            let values: Vec<f64> =
                runs.iter().filter_map(|run| records.value(metric, run)).collect();
            let is_positive = !values.is_empty() && values.iter().all(|value| *value > 0.0);
            let logs: f64 = values.iter().map(|value| value.ln()).sum();
            is_positive.then(|| logs / values.len() as f64)
        };
        let ratio = |(old, new): &Block| Some(mean_log(new)? - mean_log(old)?);
        let logs: Vec<f64> = blocks.iter().filter_map(ratio).collect();
        let n = logs.len() as f64;
        let mean = logs.iter().sum::<f64>() / n;
        let percent = |log: f64| log.exp_m1() * 100.0;
        let squares: f64 = logs.iter().map(|log| (log - mean).powi(2)).sum();
        let reach = (logs.len() > 1)
            .then(|| t_quantile(logs.len() - 1, 0.975) * (squares / (n - 1.0) / n).sqrt());
        let old: Vec<&Run> = blocks.iter().flat_map(|(old, _)| old.clone()).collect();
        let new: Vec<&Run> = blocks.iter().flat_map(|(_, new)| new.clone()).collect();
        Some(Self {
            sides: [records.figure(metric, &old)?, records.figure(metric, &new)?],
            pairs: logs.len(),
            effect_pct: percent(mean),
            interval_pct: reach.map(|reach| (percent(mean - reach), percent(mean + reach))),
        })
    }

    /// Compares a row with these figures: by column, what is stated and whether it holds.
    fn compare<'t>(
        &self,
        table: &Table,
        row: &'t [String],
        pair: &Pair,
        divisor: f64,
    ) -> Vec<(&'static str, &'t str, Result<(), String>)> {
        let [old, new] = self.sides;
        let side = |release: &str, side: Figure| {
            compare(table.cell(row, release), Some(side), side.mean, divisor)
        };
        let pairs = table.cell(row, "Pairs");
        let is_pairs = pairs == self.pairs.to_string();
        let interval = table.cell(row, "95 % interval");
        vec![
            ("baseline", table.cell(row, &pair.baseline), side(&pair.baseline, old)),
            ("candidate", table.cell(row, &pair.candidate), side(&pair.candidate, new)),
            ("pairs", pairs, if is_pairs { Ok(()) } else { Err(self.pairs.to_string()) }),
            (
                "change",
                table.cell(row, "Change"),
                percent(table.cell(row, "Change"), self.effect_pct),
            ),
            ("interval", interval, interval_is(interval, self.interval_pct)),
        ]
    }
}

/// Compares `+121 %` with an exact change.
pub fn percent(stated: &str, exact: f64) -> Result<(), String> {
    let number = stated.trim().strip_suffix('%').and_then(Number::parse);
    match number {
        Some(number) if number.is(exact) => Ok(()),
        _ => Err(format!("{exact:+.3} %")),
    }
}

/// Compares `+106 to +137 %` with an exact interval.
pub fn interval_is(stated: &str, exact: Option<(f64, f64)>) -> Result<(), String> {
    let Some((low, high)) = exact else {
        return if stated == "-" { Ok(()) } else { Err("-".to_owned()) };
    };
    let numbers = stated.strip_suffix('%').and_then(|text| text.split_once(" to "));
    let numbers = numbers.map(|(low, high)| (Number::parse(low), Number::parse(high)));
    match numbers {
        Some((Some(stated_low), Some(stated_high)))
            if stated_low.is(low) && stated_high.is(high) =>
        {
            Ok(())
        }
        _ => Err(format!("{low:+.3} to {high:+.3} %")),
    }
}

/// Quantile of Student's t distribution at the probability `p`, of at least one half, by bisection over
/// Simpson's integral of its density.
pub fn t_quantile(freedom: usize, p: f64) -> f64 {
    let nu = freedom as f64;
    let density = |t: f64| (1.0 + t * t / nu).powf(-f64::midpoint(nu, 1.0));
    let integral = |end: f64| {
        let steps = 400;
        let width = end / f64::from(steps);
        let weight = |step: i32| if step % 2 == 0 { 2.0 } else { 4.0 };
        let inner: f64 = (1..steps).map(|s| weight(s) * density(width * f64::from(s))).sum();
        (density(0.0) + inner + density(end)) * width / 3.0
    };
    // Gamma((nu + 1) / 2) / Gamma(nu / 2) grows by nu / (nu - 1) when nu grows by two.
    let first = if freedom % 2 == 1 {
        1.0 / std::f64::consts::PI.sqrt()
    } else {
        std::f64::consts::PI.sqrt() / 2.0
    };
    let start = if freedom % 2 == 1 { 1 } else { 2 };
    let gammas =
        (start..freedom).step_by(2).fold(first, |ratio, k| ratio * (k as f64 + 1.0) / k as f64);
    let scale = gammas / (nu * std::f64::consts::PI).sqrt();
    let (mut low, mut high) = (0.0, 64.0);
    for _ in 0..40 {
        let middle = f64::midpoint(low, high);
        if scale * integral(middle) < p - 0.5 { low = middle } else { high = middle }
    }
    f64::midpoint(low, high)
}

/// Checks the figures of sentences about a comparison: ranges of improvements, and the largest
/// regression that could not be excluded.
pub fn sentences(rows: &[Row], page: &Page, address: &str, audit: &mut Audit) {
    let release = release_of(address);
    // A page about a release on all hardware has a section for each.
    let mut section = "";
    for line in &page.lines {
        let text = &line.text;
        if let Some((name, _)) = text.split_once(": ")
            && !name.contains(' ')
        {
            section = name;
        }
        let is_verdict = ["SHIP", "HOLD", "INCONCLUSIVE"].iter().any(|word| text.starts_with(word))
            || text.starts_with("Latest compared release: ");
        if !is_verdict {
            continue;
        }
        let own: Vec<&Row> = rows
            .iter()
            .filter(|row| row.is_blocking && row.pair.is_of(text, address, release, section))
            .collect();
        if own.is_empty() {
            audit.note(line.number, "verdict", text, Err("no comparison".to_owned()));
            continue;
        }
        for (what, stated, found) in statements(&own, text) {
            audit.note(line.number, &what, &stated, found);
        }
    }
}

impl Pair {
    /// True where a line of a page is about this pair: the page's address is that of the pair, or of
    /// its candidate, or the line names both. `section` names the hardware
    /// that a section above the line is about.
    fn is_of(&self, text: &str, address: &str, release: Option<[&str; 3]>, section: &str) -> bool {
        if let Some(pair) = Self::of(address) {
            return pair == *self;
        }
        let folder = format!("{}/{}/", self.engine, self.candidate);
        let rest = address.split_once(&folder).map(|(_, rest)| rest);
        if ["README.md", "index.html"].iter().any(|name| rest == Some(*name)) {
            return section == self.hardware;
        }
        let own = [self.engine.as_str(), &self.candidate, &self.hardware];
        release == Some(own)
            || text.starts_with(&format!(
                "Latest compared release: {} {} on {}, compared with {}.",
                self.engine, self.candidate, self.hardware, self.baseline
            ))
    }
}

/// Statement of a sentence or row: what it is about, its words, and whether it holds.
pub type Statement = (String, String, Result<(), String>);

/// Checks the figures of a sentence about the comparison that has the given rows.
fn statements(rows: &[&Row], text: &str) -> Vec<Statement> {
    let mut titles: Vec<&str> = rows.iter().map(|row| row.title.as_str()).collect();
    titles.sort_unstable();
    titles.dedup();
    let improved = titles.iter().filter_map(|title| improvement(rows, title, text));
    let others = [
        excluded(rows, text),
        not_worse(rows, text),
        undecided(rows, text),
        together_only(rows, text),
        times(rows, text),
    ];
    improved.chain(others.into_iter().flatten()).collect()
}

/// True for a row without a decision whose metric is not decided over scenarios together either.
fn is_open(row: &Row, rows: &[&Row]) -> bool {
    let is_undecided = |row: &Row| row.verdict.starts_with("inconclusive");
    let decided_together =
        |all: &&Row| all.is_together() && all.title == row.title && !is_undecided(all);
    is_undecided(row) && !rows.iter().any(decided_together)
}

impl Row {
    /// True for a row about several scenarios, whose metrics have rows of their own.
    pub fn is_together(&self) -> bool {
        self.scenario.ends_with(" scenarios together")
    }

    /// Returns the largest regression in percent that the row's interval includes.
    fn harm(&self) -> Option<f64> {
        let (low, high) = self.interval_pct?;
        Some(if self.title.ends_with("tokens") { -low } else { high })
    }

    /// True where the interval excludes a regression of the minimum effect.
    fn excludes_regression(&self) -> bool {
        let ratio = |percent: f64| 1.0 + percent / 100.0;
        let is_below = |(low, high): (f64, f64)| {
            let is_rate = self.title.ends_with("tokens");
            let worst = if is_rate { 1.0 / ratio(low) } else { ratio(high) };
            worst < ratio(self.min_effect_pct)
        };
        self.interval_pct.is_some_and(is_below) && !self.verdict.contains(TOO_FEW)
    }
}

/// Returns the largest regression of `rows` in percent, and metric and scenario that have it.
fn worst<'r>(rows: impl Iterator<Item = &'r Row>) -> (f64, String) {
    let harms =
        rows.filter_map(|row| Some((row.harm()?, format!("{} in {}", row.title, row.scenario))));
    harms.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or_default()
}

fn holds(is_true: bool, exact: String) -> Result<(), String> {
    if is_true { Ok(()) } else { Err(exact) }
}

/// Checks `121 to 165` or `121` against the smallest and the largest of exact values.
pub fn range(stated: &str, exact: impl Iterator<Item = f64>) -> Result<(), String> {
    let (low, high) =
        exact.fold((f64::MAX, f64::MIN), |(low, high), of| (low.min(of), high.max(of)));
    let numbers: Vec<Number> = stated.split(" to ").filter_map(Number::parse).collect();
    let is_true = match numbers[..] {
        [first, last] => first.is(low) && last.is(high),
        [one] => one.is(low) && one.is(high),
        _ => false,
    };
    holds(is_true, format!("{low:.4} to {high:.4}"))
}

/// Checks `Output tokens up 121 to 165 %`: the range over the rows that the page calls improved.
fn improvement(rows: &[&Row], title: &str, text: &str) -> Option<Statement> {
    let improved =
        || rows.iter().filter(|row| row.title == title && row.verdict.starts_with("improved"));
    improved().next()?;
    let ways = [" up ", " down "];
    let (_, rest) = ways.iter().find_map(|way| text.split_once(&format!("{title}{way}")))?;
    let (stated, _) = rest.split_once(" %")?;
    let found = range(stated, improved().map(|row| row.effect_pct.abs()));
    Some((format!("improvement of {title}"), stated.to_owned(), found))
}

/// Checks `A regression of up to 17 % of Output tokens in sharegpt-lite@1 could not be excluded`.
fn excluded(rows: &[&Row], text: &str) -> Option<Statement> {
    let (_, rest) = text.split_once("egression of up to ")?;
    let (stated, rest) = rest.split_once(" % of ")?;
    let is_possible = |row: &&Row| is_open(row, rows) && !row.verdict.contains(TOO_FEW);
    let (bound, named) = worst(rows.iter().copied().filter(is_possible));
    let is_true =
        Number::parse(stated).is_some_and(|number| number.is(bound)) && rest.starts_with(&named);
    let found = holds(is_true, format!("{bound:.3} % of {named}"));
    Some(("regression that could not be excluded".to_owned(), stated.to_owned(), found))
}

/// Checks `5 of 23 release-blocking metrics are undecided between unchanged and better`, and of `(a loss
/// of 1.4 % at most: TTFT p50 in ladder-lite-c16@1)` size and name. The intervals of these metrics
/// exclude a regression of the minimum effect.
fn not_worse(rows: &[&Row], text: &str) -> Option<Statement> {
    let (head, rest) = text.split_once(" undecided between unchanged and better")?;
    let alone = || rows.iter().copied().filter(|row| !row.is_together());
    let own = || alone().filter(|row| row.verdict.starts_with("not worse"));
    let (bound, named) = worst(own());
    let counted = format!("{} of {} release-blocking metrics", own().count(), alone().count());
    let stated = head.rsplit("; ").next()?.to_owned();
    let is_counted = stated == format!("{counted} are") || stated == format!("{counted} is");
    let loss =
        rest.split_once(" (a loss of ").and_then(|(_, rest)| rest.split_once(" % at most: "));
    let is_loss = match loss {
        None => bound < 0.05,
        Some((size, rest)) => {
            Number::parse(size).is_some_and(|number| number.is(bound)) && rest.starts_with(&named)
        }
    };
    let is_true = is_counted && is_loss && own().all(Row::excludes_regression);
    let found = holds(is_true, format!("{counted}, {bound:.3} % of {named}"));
    Some(("metrics that are not worse".to_owned(), stated, found))
}

/// Checks `7 of 8 release-blocking metrics are undecided`, which counts metrics of scenarios.
fn undecided(rows: &[&Row], text: &str) -> Option<Statement> {
    let (head, rest) = text.split_once(" release-blocking metrics are undecided")?;
    if rest.starts_with(" between") {
        return None;
    }
    let stated = head.rsplit("; ").next()?.to_owned();
    let alone = || rows.iter().copied().filter(|row| !row.is_together());
    let open = alone().filter(|row| is_open(row, rows)).count();
    let exact = format!("{open} of {}", alone().count());
    let found = holds(stated == exact, exact);
    Some(("undecided metrics".to_owned(), stated, found))
}

/// Checks the number of `2 more are decided over scenarios together only`.
fn together_only(rows: &[&Row], text: &str) -> Option<Statement> {
    let (head, _) = text.split_once(" decided over scenarios together only")?;
    let stated = head.rsplit("; ").next()?.split(' ').next()?.to_owned();
    let alone = rows.iter().copied().filter(|row| !row.is_together());
    let is_only = |row: &&Row| row.verdict.starts_with("inconclusive") && !is_open(row, rows);
    let exact = alone.filter(is_only).count().to_string();
    let found = holds(stated == exact, exact);
    Some(("metrics that are decided together only".to_owned(), stated, found))
}

/// Checks `2.2 to 2.6 times its output tokens`.
fn times(rows: &[&Row], text: &str) -> Option<Statement> {
    let (head, _) = text.split_once(" times its output tokens")?;
    let stated = head.rsplit(": ").next()?.to_owned();
    let own = rows.iter().filter(|row| row.title == "Output tokens");
    let found = range(&stated, own.map(|row| 1.0 + row.effect_pct / 100.0));
    Some(("ratio of output tokens".to_owned(), stated, found))
}

#[test]
fn quantiles_of_t_are_those_of_tables() {
    for (freedom, expected) in [(1, 12.706), (2, 4.303), (4, 2.776), (7, 2.365), (12, 2.179)] {
        let found = t_quantile(freedom, 0.975);
        assert!((found - expected).abs() < 0.001, "{freedom}: {found}");
    }
    for (freedom, expected) in [(3, 10.215), (7, 4.785), (20, 3.552)] {
        let found = t_quantile(freedom, 0.999);
        assert!((found - expected).abs() < 0.001, "{freedom}: {found}");
    }
}
