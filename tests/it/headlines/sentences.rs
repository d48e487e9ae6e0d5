//! Recomputes the figures in sentences that people wrote, on the landing page and about comparisons,
//! from the records, from the rows of comparisons that were recomputed from them, and from the target
//! file of the main command.

use std::collections::BTreeSet;

use tests::clone::repository;

use super::comparisons::{self, Row, range};
use super::in_turns;
use super::pages::Number;
use super::records::{Metric, Records, Run, metric, newest};
use super::tables::Audit;

/// Releases that the landing page is about, and the machine of its table.
const RELEASE: &str = "v0.11.0";
const BEFORE: [&str; 2] = ["v0.10.0", "v0.9.2"];
const MACHINE: &str = "cpu-amd-epyc-f26m2s1-2c";
const OTHER_MACHINE: &str = "cpu-amd-epyc-f25m1s1-2c";
const GPU: &str = "h200-141g";

/// Figure in a sentence of the page, and what it has to be.
struct Claim {
    /// Words around the figure, which stands at `#`.
    words: String,
    exact: Exact,
}

/// Correct value of a figure.
enum Exact {
    /// Whole number, in digits or as a word; `none` for zero.
    Count(usize),
    /// Number, rounded as it is written.
    Number(f64),
    /// Smallest and largest of these numbers, as `4.7 to 7.5`.
    Range(Vec<f64>),
    /// These words.
    Text(String),
}

fn claim(words: &str, exact: Exact) -> Claim {
    Claim { words: words.to_owned(), exact }
}

fn count(words: &str, number: usize) -> Claim {
    claim(words, Exact::Count(number))
}

impl Claim {
    /// Notes whether the page states this figure.
    fn check(&self, text: &str, audit: &mut Audit) {
        let (before, after) = self.words.split_once('#').expect("a place for the figure");
        let stated = text.lines().enumerate().find_map(|(index, line)| {
            let (_, rest) = line.split_once(before)?;
            Some((index + 1, rest.split_once(after)?.0))
        });
        match stated {
            Some((line, stated)) => audit.note(line, &self.words, stated, self.exact.is(stated)),
            None => audit.note(0, &self.words, "nothing", Err("such a sentence".to_owned())),
        }
    }
}

impl Exact {
    fn is(&self, stated: &str) -> Result<(), String> {
        let holds = |is_true: bool, exact: String| if is_true { Ok(()) } else { Err(exact) };
        match self {
            Self::Count(number) => {
                let word = WORDS.get(*number).copied().unwrap_or_default();
                let is_true = stated == number.to_string() || stated == word;
                holds(is_true, number.to_string())
            }
            Self::Number(exact) => {
                let number = Number::parse(stated);
                holds(number.is_some_and(|number| number.is(*exact)), format!("{exact:.4}"))
            }
            Self::Range(exact) => range(stated, exact.iter().copied()),
            Self::Text(exact) => holds(stated == exact, exact.clone()),
        }
    }
}

/// Words for small numbers.
const WORDS: [&str; 11] =
    ["none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"];

/// Checks the figures in the sentences of the landing page; `rows` are those of all comparisons.
pub fn landing(records: &Records, rows: &[Row], text: &str, audit: &mut Audit) {
    let all = [
        main_command(),
        of_table(records),
        engines_side_by_side(records),
        of_release_before(rows),
        on_another_machine(records, rows),
        of_earlier_releases(records, rows),
        on_a_gpu(records),
    ];
    for claim in all.iter().flatten() {
        claim.check(text, audit);
    }
}

/// Checks the figures in the sentences about comparisons in turns; `rows` are those of all comparisons.
pub fn method(records: &Records, rows: &[Row], text: &str, audit: &mut Audit) {
    let starts: Vec<usize> = in_turns::extents(records).map(|(starts, _)| starts).collect();
    let longest_us = in_turns::extents(records).map(|(_, spent_us)| spent_us).max();
    let range = |of: Option<&usize>| of.copied().expect("comparisons in turns");
    let memory = |scenario: &str, title: &str| {
        let pair = |row: &&Row| {
            let pair = &row.pair;
            [&*pair.baseline, &*pair.candidate, &*pair.hardware] == [BEFORE[0], RELEASE, MACHINE]
        };
        let mut own = rows.iter().filter(pair);
        let row = own.find(|row| row.scenario == scenario && row.title == title);
        Exact::Number(row.expect("a row of memory").effect_pct)
    };
    let (turns, runs) = ("Peak memory in turns", "Peak memory");
    let claims = [
        claim("cells took up to #.", Exact::Text(in_turns::minutes(longest_us.unwrap_or(0)))),
        count("that gave between # starts, where", range(starts.iter().min())),
        count("of more than a minute, and #.", range(starts.iter().max())),
        claim("cpu-amd-epyc-f26m2s1-2c` it was # % in turns", memory("sharegpt-lite@1", turns)),
        claim("% in turns and # % between whole runs", memory("sharegpt-lite@1", runs)),
        claim("in `sharegpt-lite`, and # % and", memory("ladder-lite-c1@1", turns)),
        claim("in `sharegpt-lite`, and −32.7 % and # % in", memory("ladder-lite-c1@1", runs)),
    ];
    for claim in claims {
        claim.check(text, audit);
    }
}

/// Scenarios and runs of the main command.
fn main_command() -> Vec<Claim> {
    let file = repository().join("suite/targets/cpu.toml");
    let text = std::fs::read_to_string(file).expect("the target of machines without a GPU");
    let target: toml::Table = text.parse().expect("a target is TOML");
    let repeats = target["repeats"].as_integer().and_then(|number| usize::try_from(number).ok());
    vec![
        count("serves the model, runs # scenarios ", standard().len()),
        count("serves the model, runs four scenarios # times each", repeats.expect("a number")),
    ]
}

/// Standard scenarios of machines without a GPU, as `id@rev`.
fn standard() -> [String; 4] {
    ["sharegpt", "balanced", "thinking", "long-input"].map(|id| format!("{id}-lite@1"))
}

/// Runs of a release on a hardware that pages show, of all campaigns.
fn runs<'r>(records: &'r Records, engine: &str, release: &str, hardware: &str) -> Vec<&'r Run> {
    records.those(|run| {
        let is_own = (&*run.engine, &*run.release, &*run.hardware) == (engine, release, hardware);
        is_own && !run.is_lab && !run.is_published
    })
}

/// Runs of the newest campaign in one scenario.
fn of_scenario<'r>(runs: &[&'r Run], scenario: &str) -> Vec<&'r Run> {
    newest(&runs.iter().copied().filter(|run| run.scenario == scenario).collect::<Vec<_>>())
}

fn output() -> Metric {
    metric("Output tokens").expect("a metric")
}

/// Median of a metric over the runs of the newest campaign in each of these scenarios.
fn medians(records: &Records, runs: &[&Run], metric: &Metric, scenarios: &[String]) -> Vec<f64> {
    let median = |scenario: &String| {
        records.figure(metric, &of_scenario(runs, scenario)).expect("the scenario was run").median
    };
    scenarios.iter().map(median).collect()
}

/// The number that all of `numbers` are; none where they differ.
fn common(numbers: impl Iterator<Item = usize>) -> usize {
    let all: BTreeSet<usize> = numbers.collect();
    if all.len() == 1 { all.into_iter().next().unwrap_or_default() } else { 0 }
}

/// Sentence above the table.
fn of_table(records: &Records) -> Vec<Claim> {
    let runs = runs(records, "redline", RELEASE, MACHINE);
    let cells = standard().map(|scenario| of_scenario(&runs, &scenario));
    let own: Vec<&Run> = cells.iter().flatten().copied().collect();
    let valid = own.iter().filter(|run| run.text("/validity/verdict") == "valid").count();
    let requests = cells[0][0].count("/scenario/requests").expect("a number of requests");
    let parameters = own[0].count("/model/parameters").expect("a number of parameters");
    let models: BTreeSet<&str> = (records.runs.iter())
        .filter(|run| !run.is_published && run.text("/model/weights") == "real")
        .map(|run| run.model.as_str())
        .collect();
    vec![
        count("median of # runs ± half of their range", common(cells.iter().map(Vec::len))),
        claim("half of their range, # VALID", Exact::Text(format!("{valid} of {}", own.len()))),
        claim("are sent at once, # in sharegpt-lite", Exact::Number(requests as f64)),
        claim("SmolLM2-# (Q4_1", Exact::Text(format!("{:.0}M", parameters as f64 / 1e6))),
        claim("SmolLM2 with # million parameters", Exact::Number(parameters as f64 / 1e6)),
        count("- Only # model was measured here with its real weights", models.len()),
    ]
}

/// Sentence about another engine, in pairs of runs that alternated.
fn engines_side_by_side(records: &Records) -> Vec<Claim> {
    let ours = runs(records, "redline", RELEASE, MACHINE);
    let theirs = runs(records, "llama.cpp", "v11434.0.0", MACHINE);
    let ratio = |scenario: &String| {
        let sides = [&ours, &theirs].map(|runs| {
            runs.iter().copied().filter(|run| run.scenario == *scenario).collect::<Vec<_>>()
        });
        comparisons::ratio(records, &sides[0], &sides[1]).expect("both ran in turns")
    };
    let ratios: Vec<comparisons::Ratio> = standard().iter().map(ratio).collect();
    let slots = of_scenario(&theirs, &standard()[0])[0].count("/server/max_batch_size");
    let times = Exact::Range(ratios.iter().map(|(ratio, ..)| *ratio).collect());
    vec![
        count("v11434.0.0, in # pairs of runs", common(ratios.iter().map(|(.., pairs)| *pairs))),
        claim("runs that alternated on this machine: [# times its output tokens/s]", times),
        count(") in the # scenarios; llama.cpp", ratios.len()),
        claim("llama.cpp had # slots", Exact::Number(slots.expect("a number") as f64)),
    ]
}

/// Rows of the comparison of two releases on a hardware.
fn of_pair<'r>(rows: &'r [Row], releases: [&str; 2], hardware: &str) -> Vec<&'r Row> {
    let is_own = |row: &&Row| {
        let pair = &row.pair;
        row.is_blocking
            && [&*pair.baseline, &*pair.candidate] == releases
            && (&*pair.engine, &*pair.hardware) == ("redline", hardware)
    };
    rows.iter().filter(is_own).collect()
}

/// Row of output tokens over several scenarios, with the number of scenarios that had ended and of
/// all.
fn together<'r>(rows: &[&'r Row]) -> (&'r Row, [usize; 2]) {
    let row = rows.iter().find(|row| row.is_together() && row.title == "Output tokens");
    let row = row.expect("output tokens over several scenarios");
    let mut words = row.scenario.split(' ').filter_map(|word| word.parse().ok());
    let mut number = || words.next().expect("a number of scenarios");
    (row, [number(), number()])
}

fn bounds(row: &Row) -> Exact {
    let (low, high) = row.interval_pct.expect("an interval");
    Exact::Range(vec![low, high])
}

/// Sentences about the release before, in turns on the machine of the table.
fn of_release_before(rows: &[Row]) -> Vec<Claim> {
    let own = of_pair(rows, [BEFORE[0], RELEASE], MACHINE);
    let (all, [ended, scenarios]) = together(&own);
    let alone: Vec<&&Row> = own.iter().filter(|row| !row.is_together()).collect();
    let called =
        |verdict: &str| alone.iter().filter(|row| row.verdict.starts_with(verdict)).count();
    vec![
        claim("It has # % more output tokens/s (95 %", Exact::Number(all.effect_pct)),
        claim("more output tokens/s (95 % interval # %)", bounds(all)),
        count("over the starts of the # scenarios of ", ended),
        count("scenarios of # that had ended when this was decided", scenarios),
        count("Of the # release-blocking metrics of single scenarios", alone.len()),
        count("metrics of single scenarios, # are better", called("improved")),
        count("are better, # unchanged", called("unchanged")),
        count("unchanged, # not worse and", called("not worse")),
        count("not worse and # worse;", called("regressed")),
        count("none worse; # are undecided alone", called("inconclusive")),
    ]
}

/// Sentences about the second machine.
fn on_another_machine(records: &Records, rows: &[Row]) -> Vec<Claim> {
    let own = of_pair(rows, [BEFORE[0], RELEASE], OTHER_MACHINE);
    let (all, [ended, _]) = together(&own);
    let runs = runs(records, "redline", RELEASE, OTHER_MACHINE);
    let [tools, chat] = ["tools-lite@1", "chat-lite-c4@1"].map(str::to_owned);
    let users = [&tools, &chat].map(|scenario| {
        let users = of_scenario(&runs, scenario)[0].count("/scenario/arrival/concurrency");
        usize::try_from(users.expect("a number of users")).expect("few")
    });
    let ratio = |title: &str| {
        let metric = metric(title).expect("a metric");
        let both = medians(records, &runs, &metric, &[tools.clone(), chat.clone()]);
        Exact::Number(both[0] / both[1])
    };
    let counts = [&tools, &chat].map(|scenario| of_scenario(&runs, scenario).len());
    vec![
        claim("f25m1s1-2c.md), with # % more output tokens/s", Exact::Number(all.effect_pct)),
        claim("% more output tokens/s (# %) over", bounds(all)),
        count("%) over # scenarios. v0.11.0 reaches", ended),
        claim(
            "v0.11.0 reaches [# output tokens/s]",
            Exact::Range(medians(records, &runs, &output(), &standard())),
        ),
        count(") there in the # scenarios of the table", standard().len()),
        count("Tool calls were measured there, too, for # users", common(users.into_iter())),
        claim("users: # times the output tokens/s of chat", ratio("Output tokens")),
        claim("of chat and # times its TTFT p95", ratio("TTFT p95")),
        count("TTFT p95, from # runs of each", common(counts.into_iter())),
    ]
}

/// Sentences about the two releases before.
fn of_earlier_releases(records: &Records, rows: &[Row]) -> Vec<Claim> {
    let own = of_pair(rows, [BEFORE[1], BEFORE[0]], MACHINE);
    let confirming = |run: &&&Run| run.is_confirming();
    let all = runs(records, "redline", BEFORE[0], MACHINE);
    let campaign = all.iter().filter(confirming).map(|run| &run.campaign).max();
    let campaign = campaign.expect("a campaign with a confirmation");
    let of_campaign: Vec<&Run> =
        all.iter().copied().filter(|run| run.campaign == *campaign).collect();
    let scenarios: BTreeSet<&str> =
        of_campaign.iter().filter(confirming).map(|run| run.scenario.as_str()).collect();
    let pairs = scenarios.iter().map(|scenario| {
        let own = of_campaign.iter().filter(confirming).filter(|run| run.scenario == *scenario);
        own.map(|run| run.block()).collect::<BTreeSet<_>>().len()
    });
    let rates = own.iter().filter(|row| row.title == "Output tokens");
    let times = rates.map(|row| 1.0 + row.effect_pct / 100.0).collect();
    let waived: Vec<&&Row> = own.iter().filter(|row| row.verdict.contains("waived")).collect();
    let of_that_day =
        of_campaign.iter().filter(|run| run.text("/validity/verdict") == "degraded").count();
    vec![
        count("table's kind, # confirming pairs in each of", common(pairs)),
        count("confirming pairs in each of # scenarios: ", scenarios.len()),
        claim("in each of seven scenarios: # times its output tokens/s", Exact::Range(times)),
        claim("output tokens/s, and # % more peak memory in", Exact::Number(waived[0].effect_pct)),
        count("more peak memory in # scenario, which is waived", waived.len()),
        count("of these # runs of v0.10.0 are DEGRADED", of_campaign.len()),
        count("and by those of that day # were", of_that_day),
        claim("By today's rules # runs of v0.10.0 are DEGRADED", Exact::Text(degraded_today())),
    ]
}

/// Share of degraded runs by today's rules, which only the page of the comparison states.
fn degraded_today() -> String {
    let [candidate, baseline] = BEFORE;
    let page = format!("results/pages/redline/{baseline}..{candidate}/{MACHINE}.md");
    let text = std::fs::read_to_string(repository().join(page)).expect("the comparison's page");
    let shown = text.lines().find_map(|line| {
        let (_, shares) = line.split_once("Degraded runs: ")?.1.split_once(" and ")?;
        Some(shares.split_once(" with ")?.0.replace(" of ", " of these "))
    });
    shown.expect("the share of degraded runs")
}

/// Sentences about the GPU.
fn on_a_gpu(records: &Records) -> Vec<Claim> {
    let own = runs(records, "redline", RELEASE, GPU);
    let models: BTreeSet<&str> = own
        .iter()
        .filter(|run| run.text("/model/weights") == "random")
        .map(|run| run.model.as_str())
        .collect();
    let degraded = own.iter().filter(|run| run.text("/validity/verdict") == "degraded").count();
    let servers = own.iter().filter(|run| run.count("/campaign/server_runs_before") == Some(0));
    let degraded = if degraded == own.len() { degraded } else { 0 };
    vec![
        count("h200-141g.md): # models with random weights", models.len()),
        count("All # runs are DEGRADED, and", degraded),
        count("are DEGRADED, and # were INVALID", own.iter().filter(|run| run.was_invalid).count()),
        count("as on the H200, where # servers", servers.count()),
        count("servers answered the # runs", own.len()),
    ]
}
