//! Recomputes the picks of a configuration: winner, margin, ties, evidence and limits, by the rules
//! of docs/decisions/0046.

use std::collections::BTreeSet;

use super::comparisons::{Ratio, ratio};
use super::pages::{Number, Page, Table};
use super::records::{Figure, Records, Run, grouped, metric, newest};
use super::tables::{Audit, compare_median, version};

/// Largest medians that a pick may have, in microseconds, by title of the metric.
const LIMITS: [(&str, f64); 2] = [("TTFT p50", 1e6), ("TPOT p50", 50e3)];

/// Configuration with its figures.
#[derive(Debug, Clone)]
struct Tested<'r> {
    runs: Vec<&'r Run>,
    output: Figure,
    times: [Option<Figure>; 2],
}

impl Tested<'_> {
    fn engine(&self) -> &str {
        &self.runs[0].engine
    }

    fn name(&self) -> String {
        format!("{} {}", self.engine(), self.runs[0].release)
    }

    fn meets(&self) -> bool {
        let within = |(time, (_, limit)): (&Option<Figure>, (&str, f64))| {
            time.is_some_and(|figure| figure.median <= limit)
        };
        self.times.iter().zip(LIMITS).all(within)
    }
}

impl Tested<'_> {
    fn exact(&self) -> String {
        let medians = self.times.map(|time| time.map(|figure| figure.median));
        format!("{}, {}, times {medians:?} us", self.name(), self.output.median)
    }

    /// Checks `TTFT p50 (7,840 ms, limit 1,000 ms) and TPOT p50 (134 ms, limit 50 ms)`.
    fn misses(&self, stated: &str) -> Result<(), String> {
        let beyond = LIMITS.iter().zip(self.times);
        let beyond =
            beyond.filter(|((_, limit), time)| time.is_none_or(|time| time.median > *limit));
        let mut named = stated.split(" and ");
        for ((title, limit), exact_time) in beyond {
            let shown = named.next().and_then(|text| text.strip_prefix(&format!("{title} (")));
            let shown = shown.and_then(|text| text.strip_suffix(')'));
            let (shown, shown_limit) =
                shown.and_then(|text| text.split_once(", limit ")).ok_or_else(|| self.exact())?;
            time(shown, exact_time)?;
            limit_is(shown_limit, *limit)?;
        }
        if named.next().is_none() { Ok(()) } else { Err(self.exact()) }
    }
}

/// Pick as it is recomputed.
#[derive(Debug)]
pub struct Pick<'r> {
    model: String,
    hardware: String,
    is_published: bool,
    load: String,
    engines: usize,
    /// Words by which pages say whether the limits are met.
    limits: &'static str,
    /// Configurations in the order of their rank.
    ranked: Vec<Tested<'r>>,
    /// Configurations that miss a limit, where others meet them.
    missed: Vec<Tested<'r>>,
    /// Ratio of the first to the best configuration of the next engine, from runs that alternated.
    ratio: Option<Ratio>,
}

/// Ranks all configurations of `records`, one pick for each subject.
pub fn picks(records: &Records) -> Vec<Pick<'_>> {
    let is_named =
        |run: &Run| [&run.engine, &run.model, &run.hardware].iter().all(|name| *name != "unknown");
    let standing = records
        .those(|run| !run.is_retracted && !run.is_copy && run.users.is_some() && is_named(run));
    let subjects = grouped(standing, |run| {
        let load = (run.users.clone(), run.scenario.clone(), run.is_text);
        (run.model.clone(), run.hardware.clone(), run.is_published, load)
    });
    subjects.into_iter().filter_map(|runs| rank(records, &runs)).collect()
}

fn rank<'r>(records: &'r Records, runs: &[&'r Run]) -> Option<Pick<'r>> {
    let output = metric("Output tokens")?;
    let setups = grouped(runs.iter().copied(), |run| {
        (run.engine.clone(), run.release.clone(), run.config.clone())
    });
    let mut tested: Vec<Tested> = setups
        .into_iter()
        .filter_map(|runs| {
            let runs = newest(&runs);
            let figure = |title| records.figure(&metric(title)?, &runs);
            let times = [figure(LIMITS[0].0), figure(LIMITS[1].0)];
            Some(Tested { output: records.figure(&output, &runs)?, times, runs })
        })
        .collect();
    let latest = |engine: &str| {
        let own = tested.iter().filter(|of| of.engine() == engine);
        own.map(|of| version(&of.runs[0].release)).max()
    };
    let is_latest: Vec<bool> =
        tested.iter().map(|of| Some(version(&of.runs[0].release)) == latest(of.engine())).collect();
    let mut keep = is_latest.into_iter();
    tested.retain(|_| keep.next() == Some(true));
    tested.sort_by(|a, b| b.output.median.total_cmp(&a.output.median));
    let engines: BTreeSet<String> = tested.iter().map(|of| of.engine().to_owned()).collect();
    let is_known = tested.iter().any(|of| of.times.iter().all(Option::is_some));
    let is_met = tested.iter().any(Tested::meets);
    let is_batch = runs[0].users.as_ref().is_some_and(|users| users.starts_with("offline batch"));
    let is_met = is_met && !is_batch;
    let limits = match (is_met, is_known) {
        _ if is_batch => "no limits apply to a batch",
        (true, _) => "within the limits",
        (false, true) => "no tested setup meets the limits at this load",
        (false, false) => "the reports have no sound TTFT and TPOT to compare with the limits",
    };
    let (ranked, missed): (Vec<_>, Vec<_>) =
        tested.into_iter().partition(|of| !is_met || of.meets());
    let first = *ranked.first()?.runs.first()?;
    let text = if first.is_text { ", text prompts" } else { "" };
    let ratio = next_of(&ranked).and_then(|next| {
        // Runs of every campaign of both configurations.
        let all = |of: &Tested| -> Vec<&Run> {
            let like = of.runs[0];
            let key = |run: &Run| (run.engine.clone(), run.release.clone(), run.config.clone());
            runs.iter().copied().filter(|run| key(run) == key(like)).collect()
        };
        ratio(records, &all(&ranked[0]), &all(next))
    });
    Some(Pick {
        ratio,
        model: first.model.clone(),
        hardware: first.hardware.clone(),
        is_published: first.is_published,
        load: format!("{}, {}{text}", first.users.as_deref()?, first.scenario),
        engines: engines.len(),
        limits,
        ranked,
        missed,
    })
}

/// Returns the ranked configurations that tie with the first.
fn ties_of<'p, 'r>(ranked: &'p [Tested<'r>]) -> Vec<&'p Tested<'r>> {
    let output = metric("Output tokens").expect("a metric");
    let others = ranked.iter().skip(1);
    others.filter(|of| of.output.ties_with(&ranked[0].output, &output)).collect()
}

/// Returns the best configuration of another engine that does not tie with the first.
fn next_of<'p, 'r>(ranked: &'p [Tested<'r>]) -> Option<&'p Tested<'r>> {
    let mut behind = ranked.iter().skip(1 + ties_of(ranked).len());
    behind.find(|of| of.engine() != ranked[0].engine())
}

impl Pick<'_> {
    fn first(&self) -> &Tested<'_> {
        &self.ranked[0]
    }

    fn ties(&self) -> Vec<&Tested<'_>> {
        ties_of(&self.ranked)
    }

    /// Checks the words about the lead over other engines.
    fn lead(&self, stated: &str) -> Result<(), String> {
        let first = self.first();
        let (ties, of_other) = (self.ties(), |of: &&Tested| of.engine() != first.engine());
        if ties.iter().any(of_other) {
            let mut names: Vec<String> = ties.iter().map(|of| of.name()).collect();
            names.dedup();
            return same(stated, &format!("tie with {}", names.join(", ")));
        }
        let Some(next) = next_of(&self.ranked) else {
            if self.engines > 1 {
                return self.alone(stated);
            }
            let how = if self.is_published { "published" } else { "measured" };
            return same(stated, &format!("the only engine {how} at this load"));
        };
        if self.is_published {
            let exact = format!("ahead of {} with {}", next.name(), next.output.median);
            let figure = stated.strip_prefix(&format!("ahead of {} with ", next.name()));
            let figure = figure.ok_or(exact)?;
            return compare_median(figure, Some(next.output), 1.0);
        }
        let times = first.output.median / next.output.median;
        let Some((mean, interval, pairs)) = self.ratio else {
            let end = format!(" times {}, in runs that did not alternate: a hint", next.name());
            return number(stated.strip_suffix(&end), times);
        };
        let s = if pairs == 1 { "" } else { "s" };
        let middle =
            format!(" times {} in {pairs} pair{s} of whole runs that alternated", next.name());
        let exact = || format!("{mean:.4}{middle} {interval:?}");
        let (stated, end) = stated.split_once(&middle).ok_or_else(exact)?;
        number(Some(stated), mean)?;
        let Some((low, high)) = interval else { return same(end, "") };
        let bounds = end.strip_prefix(" (95 %: ").and_then(|end| end.strip_suffix(')'));
        let (stated_low, stated_high) =
            bounds.and_then(|bounds| bounds.split_once(" to ")).ok_or_else(exact)?;
        number(Some(stated_low), low)?;
        number(Some(stated_high), high)
    }

    /// Checks the words about an engine that is alone within the limits, with the limits that the
    /// fastest other engine misses.
    fn alone(&self, stated: &str) -> Result<(), String> {
        let other = self.missed.iter().find(|of| of.engine() != self.first().engine());
        let other = other.ok_or("an engine that misses the limits")?;
        let start = format!("the only engine within the limits: {}, ", other.name());
        let rest = stated.strip_prefix(&start).ok_or_else(|| other.exact())?;
        let (figure, misses) = rest.split_once(", misses ").ok_or_else(|| other.exact())?;
        compare_median(figure, Some(other.output), 1.0)?;
        other.misses(misses)
    }

    fn evidence(&self) -> String {
        let origin =
            if self.is_published { "published elsewhere, not verified" } else { "measured" };
        let runs = &self.first().runs;
        let n = match self.first().output.n {
            1 => "one run".to_owned(),
            n => format!("median of {n} runs"),
        };
        let mut parts = vec![origin.to_owned(), n];
        let day = runs.iter().map(|run| run.day()).max().unwrap_or_default();
        parts.push(match day {
            "" => "date not stated".to_owned(),
            day => day.to_owned(),
        });
        parts.extend((self.engines > 1).then(|| format!("of {} engines", self.engines)));
        parts.join(", ")
    }

    /// Checks everything that a page states about the pick.
    fn check(&self, stated: &Shown, audit: &mut Audit) {
        let what =
            |name: &str| format!("pick {} {} {}: {name}", self.model, self.hardware, self.load);
        let line = stated.line;
        let first = self.first();
        audit.note(line, &what("winner"), &stated.engine, same(&stated.engine, &first.name()));
        let figure = compare_median(&stated.figure, Some(first.output), 1.0);
        audit.note(line, &what("output tokens/s"), &stated.figure, figure);
        let lead = stated.lead.trim_end_matches([';', ' ']);
        audit.note(line, &what("lead"), lead, self.lead(lead));
        // Findings about the runs follow the evidence.
        let evidence = stated.evidence.split("; ").next().unwrap_or_default();
        let evidence = same(evidence, &self.evidence());
        audit.note(line, &what("evidence"), &stated.evidence, evidence);
        audit.note(line, &what("limits"), &stated.limits, same(&stated.limits, self.limits));
        for ((title, _), (text, exact)) in LIMITS.iter().zip(stated.times.iter().zip(first.times)) {
            audit.note(line, &what(title), text, time(text, exact));
        }
    }
}

/// Pick as a page states it.
#[derive(Debug, Default)]
struct Shown {
    line: usize,
    engine: String,
    figure: String,
    lead: String,
    evidence: String,
    times: [String; 2],
    limits: String,
}

/// Compares a number with its exact value.
fn number(stated: Option<&str>, exact: f64) -> Result<(), String> {
    let stated = stated.and_then(Number::parse);
    let is_rounded = stated.is_some_and(|number| number.is(exact));
    if is_rounded { Ok(()) } else { Err(format!("{exact:.5}")) }
}

fn same(stated: &str, exact: &str) -> Result<(), String> {
    if stated == exact { Ok(()) } else { Err(exact.to_owned()) }
}

/// Compares `1,690 ms`, `181 s` or `not reported` with a median in microseconds.
fn time(stated: &str, exact: Option<Figure>) -> Result<(), String> {
    let Some(figure) = exact else { return same(stated, "not reported") };
    let wrong = || format!("{} us", figure.median);
    let (number, unit) = stated.split_once(' ').ok_or_else(wrong)?;
    let divisor = if unit == "s" { 1e6 } else { 1e3 };
    let number = Number::parse(number).ok_or_else(wrong)?;
    if number.is(figure.median / divisor) { Ok(()) } else { Err(wrong()) }
}

/// Compares `1,000 ms` or `1 s` with a limit in microseconds.
fn limit_is(stated: &str, limit: f64) -> Result<(), String> {
    let wrong = || format!("{limit} us");
    let (number, unit) = stated.split_once(' ').ok_or_else(wrong)?;
    let divisor = if unit == "s" { 1e6 } else { 1e3 };
    let number: f64 = number.replace(',', "").parse().map_err(|_| wrong())?;
    if number == limit / divisor { Ok(()) } else { Err(wrong()) }
}

/// Checks the sentences of a page that state the limits of a pick.
fn limits(page: &Page, audit: &mut Audit) {
    for line in &page.lines {
        for (title, limit) in LIMITS {
            let Some((_, rest)) = line.text.split_once(&format!("{title} up to ")) else {
                continue;
            };
            let words: Vec<&str> = rest.split_whitespace().take(2).collect();
            let stated = words.join(" ").trim_end_matches(['.', ',', ';']).to_owned();
            audit.note(
                line.number,
                &format!("limit of {title}"),
                &stated,
                limit_is(&stated, limit),
            );
        }
    }
}

/// Checks all picks of a page, in tables, in sections and in the card of the first screen.
pub fn check(picks: &[Pick], page: &Page, address: &str, audit: &mut Audit) {
    let tables: Vec<&Table> =
        page.tables.iter().filter(|table| table.has(&["Lead", "Evidence"])).collect();
    let mut listed = Vec::new();
    for table in &tables {
        for (line, row) in &table.rows {
            let shown = row_of(table, *line, row);
            let (users, model, hardware) = subject(table, row);
            let is_published = shown.evidence.starts_with("published");
            let found = picks.iter().find(|pick| {
                (pick.model.as_str(), pick.hardware.as_str()) == (model, hardware)
                    && pick.is_published == is_published
                    && words(&pick.load) == words(users)
            });
            listed.push((model.to_owned(), hardware.to_owned(), words(users)));
            match found {
                Some(pick) => pick.check(&shown, audit),
                None => audit.note(*line, "pick", users, Err("no such pick".to_owned())),
            }
        }
    }
    let is_whole =
        ["index.html", "results/README.md", "results/pages/README.md"].contains(&address);
    let is_cut =
        page.lines.iter().any(|line| line.text.starts_with("and ") && line.text.contains(" more"));
    if is_whole && !is_cut {
        for pick in picks {
            let key = (pick.model.clone(), pick.hardware.clone(), words(&pick.load));
            let found = if listed.contains(&key) { Ok(()) } else { Err("a pick".to_owned()) };
            audit.note(0, &format!("pick {} {} {}", key.0, key.1, pick.load), "nothing", found);
        }
    }
    limits(page, audit);
    cards(picks, page, address, audit);
}

/// Load, model and hardware of a row, which HTML has in one cell.
fn subject<'r>(table: &Table, row: &'r [String]) -> (&'r str, &'r str, &'r str) {
    let cell = |name| table.cell(row, name);
    if table.has(&["Users"]) {
        return (cell("Users"), cell("Model"), cell("Hardware"));
    }
    let mut parts = cell("Users, model, hardware").rsplitn(3, ' ');
    let (hardware, model) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    (parts.next().unwrap_or_default(), model, hardware)
}

/// Words of a load without the signs that differ between the forms of a page.
fn words(load: &str) -> String {
    load.replace(',', "")
}

fn row_of(table: &Table, line: usize, row: &[String]) -> Shown {
    let cell = |name: &str| table.cell(row, name).to_owned();
    let lead = cell("Lead");
    // The words about limits follow the lead where they are not met.
    let unmet = ["no tested setup", "the reports have", "no limits apply"];
    let place = unmet.iter().find_map(|start| lead.find(start)).unwrap_or(lead.len());
    let (lead, limits) = lead.split_at(place);
    let is_batch = cell("Users").starts_with("offline batch")
        || cell("Users, model, hardware").starts_with("offline batch");
    let limits = match limits {
        "" if is_batch => "no limits apply to a batch",
        "" => "within the limits",
        limits => limits,
    };
    Shown {
        line,
        engine: cell("Configuration"),
        figure: cell("Output tokens/s"),
        lead: lead.trim_end_matches([';', ' ']).to_owned(),
        evidence: cell("Evidence"),
        times: [cell("TTFT p50"), cell("TPOT p50")],
        limits: limits.to_owned(),
    }
}

/// Checks the cards of picks: the winner's line, and the lines that follow it.
fn cards(picks: &[Pick], page: &Page, address: &str, audit: &mut Audit) {
    let parts: Vec<&str> = address.trim_end_matches("/index.html").split('/').collect();
    let place = match &parts[..] {
        [.., "picks" | "pick", model, hardware] => {
            Some((model.to_string(), hardware.trim_end_matches(".md").to_owned()))
        }
        _ => None,
    };
    let mut is_published = false;
    let mut load = String::new();
    let mut pick: Option<&Pick> = None;
    for (index, line) in page.lines.iter().enumerate() {
        let text = line.text.trim();
        if let Some(heading) = text.strip_prefix("## ") {
            is_published = heading.starts_with("Published");
        }
        if let Some(heading) = text.strip_prefix("### ") {
            heading.clone_into(&mut load);
        }
        // The first screen names model, hardware and load in the line above its card. The landing page
        // has no card.
        let (place, load) = match (&place, text.split_once(" output tokens/s")) {
            (Some(place), _) => (place.clone(), load.clone()),
            (None, Some(_)) if address != "README.md" => {
                match index.checked_sub(1).map(|above| page.lines[above].text.as_str()) {
                    Some(above) => {
                        let Some((model, rest)) = above.split_once(" on ") else { continue };
                        let Some((hardware, load)) = rest.split_once(", ") else { continue };
                        ((model.to_owned(), hardware.to_owned()), load.to_owned())
                    }
                    None => continue,
                }
            }
            _ => continue,
        };
        if let Some((name, rest)) = text.split_once(" output tokens/s") {
            if let Some((kind, tested)) = name.split_once(": ")
                && ["Tie", "Next engine", "Outside the limits"].contains(&kind)
            {
                let next = pick.map(|pick| pick.other(kind, tested, rest));
                let found = next.unwrap_or_else(|| Err("no pick".to_owned()));
                audit.note(line.number, &format!("{kind} of {load}"), tested, found);
                continue;
            }
            pick = picks.iter().find(|pick| {
                (&pick.model, &pick.hardware) == (&place.0, &place.1)
                    && pick.is_published == (is_published || rest.contains("published elsewhere"))
                    && words(&pick.load) == words(&load)
            });
            let rest: Vec<&str> =
                page.lines[index + 1..].iter().take(2).map(|l| l.text.trim()).collect();
            let all = format!("{} {}", text.trim_start_matches("- "), rest.join(" "));
            match (pick, card(line.number, &all)) {
                (Some(pick), Some(shown)) => pick.check(&shown, audit),
                (_, shown) => {
                    let stated = format!("{shown:?} of {load}");
                    audit.note(line.number, "card", &stated, Err("a pick".to_owned()));
                }
            }
        }
    }
}

impl Pick<'_> {
    /// Checks the line about a configuration that ties with the winner, follows it or misses a limit,
    /// given as name and figure, and the words after them.
    fn other(&self, kind: &str, stated: &str, rest: &str) -> Result<(), String> {
        if kind == "Outside the limits" {
            let missed = rest.strip_prefix(", misses ").and_then(|text| text.rsplit_once(')'));
            let (missed, _) = missed.ok_or("the limits that it misses")?;
            let own =
                |of: &&Tested| self.named(of, stated) && of.misses(&format!("{missed})")).is_ok();
            let all = || self.missed.iter().map(Tested::exact).collect::<Vec<_>>().join(" or ");
            return self.missed.iter().find(own).map(|_| ()).ok_or_else(all);
        }
        let next = next_of(&self.ranked).into_iter();
        let known: Vec<&Tested> = if kind == "Tie" { self.ties() } else { next.collect() };
        let fits = known.iter().any(|of| {
            let times = LIMITS.iter().zip(of.times).all(|((title, _), exact)| {
                let shown = rest.split_once(&format!("{title} ")).map(|(_, rest)| rest);
                let words: Vec<&str> = shown.unwrap_or_default().split(' ').take(2).collect();
                let text = words.join(" ");
                time(text.trim_end_matches([',', '.']), exact).is_ok()
            });
            times && self.named(of, stated)
        });
        let names = || known.iter().map(|of| format!("{} {}", of.name(), of.output.median));
        if fits { Ok(()) } else { Err(names().collect::<Vec<_>>().join(" or ")) }
    }

    /// True where `stated` has the name and the figure of a configuration.
    fn named(&self, of: &Tested, stated: &str) -> bool {
        let figure =
            stated.strip_prefix(&of.name()).map(|rest| rest.trim_start_matches([',', ' ']));
        figure.is_some_and(|figure| compare_median(figure, Some(of.output), 1.0).is_ok())
    }
}

/// Parses a card: `ENGINE: FIGURE output tokens/s, LEAD; EVIDENCE. TTFT p50 T, TPOT p50 T: LIMITS.`
fn card(line: usize, text: &str) -> Option<Shown> {
    let (head, rest) = text.split_once(" output tokens/s")?;
    let mut names = head.splitn(3, ' ');
    let (engine, release) = (names.next()?, names.next()?.trim_end_matches(':'));
    let figure = names.next()?.to_owned();
    let (lead, rest) = rest.trim_start_matches([',', ' ']).split_once("; ")?;
    let (evidence, rest) = rest.split_once(". TTFT p50 ")?;
    let (ttft, rest) = rest.split_once(", TPOT p50 ")?;
    let (tpot, rest) = rest.split_once(": ")?;
    let (limits, _) = rest.split_once('.')?;
    Some(Shown {
        line,
        engine: format!("{engine} {release}"),
        figure,
        lead: lead.to_owned(),
        evidence: evidence.to_owned(),
        times: [ttft.to_owned(), tpot.to_owned()],
        limits: limits.to_owned(),
    })
}
