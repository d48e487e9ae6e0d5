//! Recomputes changes in turns from the slices in a campaign's record, as docs/decisions/0052 and
//! docs/method/comparisons.md describe them: the log ratio of each pair, corrected for steal, the
//! Hodges-Lehmann estimate of each start, and the t interval over the starts that had ended when the
//! metric was judged. Shares no code with the programs that render pages.

use serde_json::Value;

use super::comparisons::{Pair, Statement, interval_is, percent, t_quantile};
use super::pages::Table;
use super::records::{Figure, Records};
use super::tables::compare;

/// Shares of the error probability that the looks of a scenario spend, each after another fifth of the
/// time.
const SHARES: [f64; 5] = [0.03, 0.07, 0.15, 0.25, 0.5];
/// Error probability of each end of the interval that is shown, over all looks; and of calling any
/// metric of a campaign worse, or better, that is not.
const ERROR: f64 = 0.025;
/// Ending of the name of a row about several scenarios, as in `5 of 7 scenarios together`.
const TOGETHER: &str = " scenarios together";

/// Change of one metric, as it stood when it was judged.
#[derive(Debug, Clone)]
pub struct Change {
    pub effect_pct: f64,
    pub interval_pct: (f64, f64),
    /// Interval whose error probability is divided over the metrics of the campaign; `None` for a row
    /// about several scenarios.
    deciding_pct: Option<(f64, f64)>,
    starts: usize,
    pairs: usize,
    spent_us: u64,
    budget_us: u64,
    /// Figures of both servers over all starts, for a metric that is another quantity in turns than in
    /// whole runs.
    sides: Option<[Figure; 2]>,
}

/// Recomputes the change that a row states, for `title` in `scenario`, or over the scenarios that the
/// row counts. A row does not say at which look a metric was judged: where several looks were taken
/// after its number of starts, the one that it fits best is meant. `None` where no campaign has such
/// a comparison.
pub fn change(
    records: &Records,
    pair: &Pair,
    (model, scenario, title): (&str, &str, &str),
    (table, row): (&Table, &[String]),
) -> Option<Change> {
    let campaign = records.turns.iter().filter(|campaign| is_of(campaign, pair, model));
    let campaign = campaign.max_by_key(|campaign| campaign["id"].as_str())?;
    let own = items(&campaign["alternations"]).filter(|one| one["model"] == model);
    let own: Vec<&Value> = own.collect();
    let found = match scenario.strip_suffix(TOGETHER) {
        Some(counted) => {
            let (ended, all) = counted.split_once(" of ")?;
            let ended: usize = ended.parse().ok()?;
            let is_whole =
                all.parse::<usize>() == Ok(own.len()) && (2..=own.len()).contains(&ended);
            is_whole.then(|| together(&own, ended, title)).flatten().into_iter().collect()
        }
        None => {
            let one = own.iter().find(|one| one["scenario"] == scenario)?;
            alone(one, title, table.cell(row, "Starts").parse().ok()?)
        }
    };
    let wrong = |change: &Change| {
        let statements = change.statements(table, row, pair, 1.0);
        statements.iter().filter(|(.., found)| found.is_err()).count()
    };
    found.into_iter().min_by_key(wrong)
}

/// True for a campaign that compared both releases of the pair in turns on its hardware.
fn is_of(campaign: &Value, pair: &Pair, model: &str) -> bool {
    let is_pair = |one: &Value| {
        let release = |side: &str| one[side]["engine"]["release"].as_str();
        one["model"] == model
            && one["candidate"]["engine"]["name"] == *pair.engine
            && release("baseline") == Some(pair.baseline.as_str())
            && release("candidate") == Some(pair.candidate.as_str())
    };
    campaign["hardware"] == *pair.hardware && items(&campaign["alternations"]).any(is_pair)
}

/// Returns the change in one scenario after its first `count` starts, for each look that may have been
/// taken then.
fn alone(one: &Value, title: &str, count: usize) -> Vec<Change> {
    let all: Vec<&Value> = items(&one["starts"]).collect();
    let Some(own) = all.get(..count) else { return Vec::new() };
    let (Some(budget_us), Some(family)) = (one["budget_us"].as_u64(), one["family"].as_f64())
    else {
        return Vec::new();
    };
    let look = |fifth: u64| {
        let ended = all.iter().position(|start| end_us(start) >= budget_us * fifth / 5);
        ended.map(|index| index + 1)
    };
    let looks: Vec<usize> = (1..=5).map_while(look).collect();
    let taken = looks.iter().zip(SHARES).filter(|(starts, _)| **starts == count);
    let mut shares: Vec<f64> = taken.map(|(_, share)| share).collect();
    if count == all.len() {
        // An undecided metric is shown with the interval of the next look, or of the last one.
        shares.push(SHARES[looks.len().min(SHARES.len() - 1)]);
    }
    let logs = log_ratios(own, title);
    let sides = sides(&all, title);
    let change = |share: f64| {
        let (effect_pct, interval_pct) = interval(&logs, ERROR * share)?;
        let (_, deciding) = interval(&logs, ERROR * share / family)?;
        Some(Change {
            effect_pct,
            interval_pct,
            deciding_pct: Some(deciding),
            starts: count,
            pairs: pairs(own),
            spent_us: own.last().map_or(0, |start| end_us(start)),
            budget_us,
            sides,
        })
    };
    shares.into_iter().filter_map(change).collect()
}

/// Returns the change over the first `ended` of all comparisons of a model: each start counts once, and
/// later looks spend more of the error probability.
fn together(own: &[&Value], ended: usize, title: &str) -> Option<Change> {
    let (mut logs, mut count, mut of_pairs) = (Vec::new(), 0, 0);
    let (mut spent_us, mut budget_us) = (0, 0);
    for one in &own[..ended] {
        let all: Vec<&Value> = items(&one["starts"]).collect();
        logs.extend(log_ratios(&all, title));
        count += all.len();
        of_pairs += pairs(&all);
        budget_us = spent_us + one["budget_us"].as_u64()?;
        spent_us += all.last().map_or(0, |start| end_us(start));
    }
    let looks = (own.len() - 1) as f64;
    let share = (2.0 * (ended - 1) as f64 - 1.0) / (looks * looks);
    let (effect_pct, interval_pct) = interval(&logs, ERROR * share)?;
    Some(Change {
        effect_pct,
        interval_pct,
        deciding_pct: None,
        starts: count,
        pairs: of_pairs,
        spent_us,
        budget_us,
        sides: None,
    })
}

impl Change {
    /// Compares a row with this change: by column, what is stated and whether it holds.
    pub fn statements(
        &self,
        table: &Table,
        row: &[String],
        pair: &Pair,
        divisor: f64,
    ) -> Vec<Statement> {
        let is = |stated: &str, exact: String| if stated == exact { Ok(()) } else { Err(exact) };
        let cell = |head: &str| table.cell(row, head);
        let time = format!("{} of {}", minutes(self.spent_us), minutes(self.budget_us));
        let mut found = vec![
            ("starts", cell("Starts"), is(cell("Starts"), self.starts.to_string())),
            ("pairs", cell("Pairs"), is(cell("Pairs"), self.pairs.to_string())),
            ("time", cell("Time"), is(cell("Time"), time)),
            ("change", cell("Change"), percent(cell("Change"), self.effect_pct)),
            (
                "interval",
                cell("95 % interval"),
                interval_is(cell("95 % interval"), Some(self.interval_pct)),
            ),
        ];
        let verdict = cell("Verdict");
        let deciding =
            verdict.split_once("decided by ").map(|(_, rest)| rest.trim_end_matches(')'));
        if let (Some(stated), Some(exact)) = (deciding, self.deciding_pct) {
            found.push(("deciding interval", stated, interval_is(stated, Some(exact))));
        }
        for (index, side) in self.sides.into_iter().flatten().enumerate() {
            let release = [pair.baseline.as_str(), &pair.candidate][index];
            let stated = cell(release);
            found.push((release, stated, compare(stated, Some(side), side.mean, divisor)));
        }
        found
            .into_iter()
            .map(|(column, stated, found)| (column.to_owned(), stated.to_owned(), found))
            .collect()
    }
}

fn items(array: &Value) -> impl Iterator<Item = &Value> + Clone {
    array.as_array().into_iter().flatten()
}

fn end_us(start: &Value) -> u64 {
    start["end_us"].as_u64().unwrap_or_default()
}

/// Number of pairs of slices in these starts.
fn pairs(starts: &[&Value]) -> usize {
    starts.iter().map(|start| items(&start["alternation"]["slices"]).count()).sum::<usize>() / 2
}

/// Returns the number of starts of each comparison in turns, and the time that it took in microseconds.
pub fn extents(records: &Records) -> impl Iterator<Item = (usize, u64)> {
    let all = records.turns.iter().flat_map(|campaign| items(&campaign["alternations"]));
    all.map(|one| {
        let ends = items(&one["starts"]).map(end_us);
        (ends.clone().count(), ends.max().unwrap_or_default())
    })
}

/// Formats a time as pages do: `4 min 10 s`.
pub fn minutes(us: u64) -> String {
    let (minutes, seconds) = (us / 60_000_000, us / 1_000_000 % 60);
    match (minutes, seconds) {
        (0, seconds) => format!("{seconds} s"),
        (minutes, 0) => format!("{minutes} min"),
        (minutes, seconds) => format!("{minutes} min {seconds} s"),
    }
}

/// Returns the geometric mean of the ratios in percent, and its two-sided t interval with the error
/// probability `error` at each end; `None` for fewer than two ratios.
fn interval(logs: &[f64], error: f64) -> Option<(f64, (f64, f64))> {
    let freedom = logs.len().checked_sub(1).filter(|freedom| *freedom > 0)?;
    let n = logs.len() as f64;
    let mean = logs.iter().sum::<f64>() / n;
    let squares: f64 = logs.iter().map(|log| (log - mean).powi(2)).sum();
    let reach = t_quantile(freedom, 1.0 - error) * (squares / freedom as f64 / n).sqrt();
    let percent = |log: f64| log.exp_m1() * 100.0;
    Some((percent(mean), (percent(mean - reach), percent(mean + reach))))
}

/// Returns the log ratio of a metric in each start that has it, candidate over baseline.
fn log_ratios(starts: &[&Value], title: &str) -> Vec<f64> {
    match title {
        "Peak memory" => of_starts(starts, "/SIDE/rss_bytes_max"),
        "Start-up" => of_starts(starts, "/SIDE/startup_us"),
        "TTFT p99" => of_starts(starts, "/alternation/SIDE/ttft_us_p99"),
        "TPOT p99" => of_starts(starts, "/alternation/SIDE/tpot_us_p99"),
        "Output tokens" => of_slices(starts, |slice| {
            Some(slice["output_tokens"].as_f64()? / slice["elapsed_us"].as_f64()?)
        }),
        "TTFT p50" => of_slices(starts, |slice| slice["ttft_us_p50"].as_f64()),
        "TPOT p50" => of_slices(starts, |slice| slice["tpot_us_p50"].as_f64()),
        _ => Vec::new(),
    }
}

/// Returns the log ratio in each start of what stands at `place`, with the name of either side in it.
fn of_starts(starts: &[&Value], place: &str) -> Vec<f64> {
    let [baseline, candidate] = ["baseline", "candidate"].map(|side| place.replace("SIDE", side));
    let value = |start: &Value, place: &str| start.pointer(place).and_then(Value::as_f64);
    let ratio = |start: &&Value| log_ratio(value(start, &baseline), value(start, &candidate));
    starts.iter().filter_map(ratio).collect()
}

fn log_ratio(baseline: Option<f64>, candidate: Option<f64>) -> Option<f64> {
    let (baseline, candidate) = (baseline?, candidate?);
    (baseline > 0.0 && candidate > 0.0).then(|| (candidate / baseline).ln())
}

/// Returns the location of the log ratios of each start's pairs, corrected for steal.
fn of_slices(starts: &[&Value], figure: fn(&Value) -> Option<f64>) -> Vec<f64> {
    let of_pair = |pair: &[&Value]| {
        if pair.iter().any(|slice| slice["requests_failed"] != 0) {
            return None;
        }
        let side = |name: &str| pair.iter().copied().find(|slice| slice["variant"] == name);
        let (baseline, candidate) = (side("baseline")?, side("candidate")?);
        let steal =
            |slice: &Value| Some(slice["steal_us"].as_f64()? / slice["elapsed_us"].as_f64()?);
        let taken = steal(baseline).zip(steal(candidate)).map_or(0.0, |(old, new)| new - old);
        Some((taken, log_ratio(figure(baseline), figure(candidate))?))
    };
    let of_start = |start: &&Value| -> Vec<(f64, f64)> {
        let slices: Vec<&Value> = items(&start["alternation"]["slices"]).collect();
        slices.chunks_exact(2).filter_map(of_pair).collect()
    };
    let starts: Vec<Vec<(f64, f64)>> = starts.iter().map(of_start).collect();
    let slope = slope(&starts);
    let location = |pairs: &Vec<(f64, f64)>| {
        hodges_lehmann(&pairs.iter().map(|(x, y)| y - slope * x).collect::<Vec<f64>>())
    };
    starts.iter().filter_map(location).collect()
}

/// Least-squares slope of log ratios on steal over the pairs of all starts, each start about its own
/// mean; 0 where no steal differs.
fn slope(starts: &[Vec<(f64, f64)>]) -> f64 {
    let (mut products, mut squares) = (0.0, 0.0);
    for pairs in starts {
        let mean =
            |of: fn(&(f64, f64)) -> f64| pairs.iter().map(of).sum::<f64>() / pairs.len() as f64;
        let (x, y) = (mean(|pair| pair.0), mean(|pair| pair.1));
        products += pairs.iter().map(|pair| (pair.0 - x) * (pair.1 - y)).sum::<f64>();
        squares += pairs.iter().map(|pair| (pair.0 - x).powi(2)).sum::<f64>();
    }
    if squares > 0.0 { products / squares } else { 0.0 }
}

/// Median of the means of all pairs of values, each value paired with itself too; `None` without
/// values.
fn hodges_lehmann(values: &[f64]) -> Option<f64> {
    let mut means = Vec::new();
    for (index, one) in values.iter().enumerate() {
        means.extend(values[index..].iter().map(|two| f64::midpoint(*one, *two)));
    }
    Figure::of(means).map(|figure| figure.median)
}

/// Figures of both servers over all starts; `None` for a metric that whole runs have as well.
fn sides(starts: &[&Value], title: &str) -> Option<[Figure; 2]> {
    let side = |side: &str| {
        let bytes = starts.iter().filter_map(|start| start[side]["rss_bytes_max"].as_f64());
        Figure::of(bytes.collect())
    };
    if title == "Peak memory" { Some([side("baseline")?, side("candidate")?]) } else { None }
}

#[test]
fn a_start_is_corrected_for_steal_and_located_by_its_pairs() {
    // Half of the steal is lost; one pair of five was disturbed by something else.
    let pairs = [(0.0, 0.02), (0.1, 0.02 - 0.05), (-0.1, 0.02 + 0.05), (0.0, 0.02), (0.0, 0.02)];
    assert!((slope(&[pairs.to_vec()]) + 0.5).abs() < 1e-12);
    let found = hodges_lehmann(&[0.02, 0.02, 0.02, 0.02, -0.9]).expect("values");
    assert!((found - 0.02).abs() < 1e-12, "{found}");
    let (effect, (low, high)) = interval(&[0.0, 0.02], 0.025).expect("two values");
    // The mean ± 12.706 standard errors of 0.01.
    let expected = [0.01, 0.01 - 0.12706, 0.01 + 0.12706].map(|log: f64| log.exp_m1() * 100.0);
    for (found, expected) in [effect, low, high].into_iter().zip(expected) {
        assert!((found - expected).abs() < 0.01, "{found} {expected}");
    }
}
