//! The command `client-bench`: compares Redline's load generator with others and with a raw-socket
//! client, which does the least possible work, against a mock server whose log is the truth. Only
//! Redline's own figures are checked against bounds.
//!
//! A row is measured by exchanges of a client with a fresh mock server. Where a client's startup would
//! count, the difference of two measurements with different loads removes it.

pub mod table;
pub mod testbed;
pub mod tool;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use campaign::files::{FileError, make_dir, read_text};
use campaign::git::Git;
use campaign::lock::Lock;
use campaign::node::hardware;
use campaign::process::{Group, describe, show};
use campaign::stop::Stop;
use campaign::tools::{BENCH, EMITTER, FLOOR};
use campaign::world::World;
use clap::ValueEnum;
use judge::quantile::quantile;
use schema::emitted::Emitted;
use schema::exit::Exit;
use serde_json::Value;

use crate::cli::ClientBench;
use crate::clients::table::{FIGURES, Kept, Row, RowResult};
use crate::clients::testbed::{
    Cost, Load, Testbed, Truth, prepare_s, read_lines, run_on, start_on, wait_for,
};
use crate::clients::tool::{Reported, Tool, stamp_errors_ns};
use crate::{RivalError, float, write_table};

const KEPT: &str = "figures.json";
/// Page that contains the table of the client comparison, relative to the repository's root.
const DOCUMENT: &str = "docs/method/client.md";
/// Command named in the marker of the page `docs/method/client.md` that says who writes its table.
const COMMAND: &str = "cargo xtask client-bench --document";

/// Runs `client-bench`. The exit code is 1 if a median of Redline's load generator does not keep
/// its bound.
///
/// # Errors
/// A program is missing, cannot be obtained or started, or takes too long; Redline's load generator
/// fails; another process holds the clone's lock; git or a system call fails; a file cannot be read
/// or written or is not valid; or the run is interrupted. If another client fails, the results say
/// so instead.
pub fn run(world: &World, flags: &ClientBench) -> Result<Exit, Stop> {
    let dir = world.places.target("client-bench");
    let path = dir.join(KEPT);
    if !flags.kept {
        world.tools.check_for(&[BENCH, EMITTER, FLOOR])?;
        let _lock = Lock::take(&world.places.lock(), world.pid)?;
        measure_rows(world, flags, &path)?;
    }
    let kept = Kept::open(&path)?;
    let table = table::render(&kept);
    if flags.document {
        write_table(world, DOCUMENT, COMMAND, &table)?;
    }
    world.console.answer(&if flags.json { read_text(&path)? } else { table })?;
    Ok(if wanted_are_kept(&kept) { Exit::Well } else { Exit::Worse })
}

/// Measures the selected rows one by one, and writes each row to the results file as soon as it is
/// complete.
fn measure_rows(world: &World, flags: &ClientBench, path: &std::path::Path) -> Result<(), Stop> {
    let rows = if flags.rows.is_empty() { Row::value_variants() } else { &flags.rows };
    let tools: Vec<Tool> =
        Tool::ALL.into_iter().filter(|tool| !flags.skipped.contains(tool)).collect();
    let is_needed = |tool: &Tool| rows.iter().any(|row| applies(*row, *tool));
    let needed: Vec<Tool> = tools.iter().copied().filter(is_needed).collect();
    let testbed = Testbed {
        world,
        dir: world.places.target("client-bench"),
        emitter_core: flags.emitter_core,
        client_core: flags.client_core,
        peers: tool::obtain(world, &needed)?,
    };
    for &row in rows {
        let result = measure_row(&testbed, row, &tools, flags)?;
        // The file may contain other rows from earlier calls, which stay.
        let mut kept = Kept::open(path)?;
        kept.rows.insert(row, result);
        kept.save(path)?;
    }
    Ok(())
}

fn measure_row(
    testbed: &Testbed<'_>,
    row: Row,
    tools: &[Tool],
    flags: &ClientBench,
) -> Result<RowResult, Stop> {
    let world = testbed.world;
    let mut result = place(world)?;
    for tool in flags.skipped.iter().filter(|tool| applies(row, **tool)) {
        result.absent.insert(tool.id().to_owned(), "left out".to_owned());
    }
    // Clients alternate within a repeat, so that drift of the machine affects all alike.
    for repeat in 1..=flags.repeats {
        for &tool in tools.iter().filter(|tool| applies(row, **tool)) {
            world.interrupt.check()?;
            let title = format!("{row:?}, {}, repeat {repeat}", tool.id());
            world.console.step(world.clock.elapsed(), &title);
            match measure(testbed, row, tool) {
                Ok(values) => {
                    for (figure, value) in &values {
                        world.console.note(&format!("{value:.3} {figure}"));
                    }
                    result.add(tool.id(), values);
                }
                // The failure of another client is a result; that of Redline's is an error.
                Err(stop) if tool != Tool::Redline && stop.exit() == Exit::Worse => {
                    world.console.note(&stop.to_string());
                    let reason = stop.to_string().lines().next().unwrap_or_default().to_owned();
                    result.absent.insert(tool.id().to_owned(), reason);
                }
                Err(stop) => return Err(stop),
            }
        }
    }
    Ok(result)
}

/// Returns a row of the client comparison without values, with the current time, commit and
/// machine.
///
/// # Errors
/// The clone is not a git repository, git fails, or the detection of the hardware is interrupted.
pub fn place(world: &World) -> Result<RowResult, Stop> {
    let git = Git::open(&world.places.root, &world.interrupt)?;
    let commit = git.try_text(&["rev-parse", "HEAD"])?.map(|text| text.trim().to_owned());
    let dirty = !git.text(&["status", "--porcelain"])?.trim().is_empty();
    let machine = hardware::detect(world)?;
    let facts = machine.facts(&machine.id(false));
    Ok(RowResult {
        measured_at: world.clock.rfc3339(),
        commit,
        dirty,
        cpu: format!("{} ({})", facts.cpu_model.unwrap_or_default(), facts.id),
        kernel: facts.kernel.unwrap_or_default(),
        ..RowResult::default()
    })
}

/// True when Redline's load generator keeps the bound of every figure that has one and has been
/// measured.
fn wanted_are_kept(kept: &Kept) -> bool {
    FIGURES.iter().all(|figure| {
        let result = kept.rows.get(&figure.row);
        let repeats = result.and_then(|row| row.repeats(figure.id, Tool::Redline.id()));
        figure.reach.zip(repeats).is_none_or(|(reach, r)| reach.is_kept_by(r.median))
    })
}

const SATURATED: Load = Load::burst(100, 500, 50_000, 0);
const PACED: Load = Load::burst(100, 128, 50_000, 10_000);
const STARTS: Load = Load::burst(1_000, 64, 50_000, 50_000);
const SPREAD: Load = Load::burst(1_000, 200, 50_000, 10_000);
// 9,000 streams with a token every 225 ms are the 40,000 events per second of the table.
const STAMPS: Load = Load::burst(9_000, 20, 500_000, 225_000);
const OPEN_LOOP: Load = Load {
    requests: 5_000,
    tokens: 4,
    first_us: 20_000,
    gap_us: 5_000,
    requests_per_s: Some(1_000),
};
/// Loads that the row "memory" sends: `IDLE` has 10,000 idle streams, and `FULL` has 10,000 streams
/// whose tokens all leave samples. `IDLE_FEW` is the number of idle streams of a third load,
/// otherwise like `IDLE`, that shows what a stream adds.
const IDLE: Load = Load::burst(10_000, 2, 2_000_000, 10_000);
const IDLE_FEW: u64 = 1_000;
const FULL: Load = Load::burst(10_000, 64, 500_000, 125_000);
const CLEAN: Load = Load::burst(20, 33, 20_000, 10_000);
const CLEAN_RUNS: u32 = 50;

/// Loads, in events per second, among which the search finds the highest whose reported gaps
/// between tokens are right. Each stream has 100 events per second.
const LOADS: [u64; 12] = [
    1_000, 2_500, 5_000, 10_000, 20_000, 40_000, 60_000, 80_000, 100_000, 120_000, 140_000, 160_000,
];
/// Largest error of a reported gap between tokens that counts as right: as a share of the true mean
/// for the mean, and in microseconds (`GAP_P99_US`) for the p99.
const MEAN_GAP_SHARE: f64 = 0.01;
const GAP_P99_US: f64 = 2_000.0;

/// Values that one client reached in one repeat, by the id of the figure.
pub type Values = BTreeMap<&'static str, f64>;

/// True when the client comparison measures the client `tool` in the table row `row`; false where
/// the client cannot yield the row's figures, or would take too long.
pub fn applies(row: Row, tool: Tool) -> bool {
    match row {
        Row::Saturated | Row::Paced | Row::Starts => true,
        // AIPerf is left out: a search would take half an hour because each of its starts takes
        // seconds, and its memory is spread over many processes.
        Row::Limit | Row::Spread | Row::OpenLoop => tool != Tool::Aiperf,
        Row::Memory => matches!(tool, Tool::Redline | Tool::Sglang),
        Row::Stamps | Row::Parse | Row::Prepare | Row::Clean => tool == Tool::Redline,
    }
}

/// Measures the figures of the table row `row` once with the client `tool`.
///
/// # Errors
/// A program or another file cannot be obtained; a program does not start, fails or takes too long;
/// a file cannot be read or written or is not valid; the system does not report CPU time or memory;
/// or the wait is interrupted. A time that the client does not report is no error: its figure is
/// left out.
pub fn measure(testbed: &Testbed<'_>, row: Row, tool: Tool) -> Result<Values, Stop> {
    match row {
        Row::Saturated => saturated(testbed, tool),
        Row::Paced => paced(testbed, tool),
        Row::Starts => starts(testbed, tool),
        Row::Limit => limit(testbed, tool),
        Row::Spread => spread(testbed, tool),
        Row::Stamps => stamps(testbed),
        Row::OpenLoop => open_loop(testbed, tool),
        Row::Memory => memory(testbed, tool),
        Row::Parse => Ok(values([("parse_us_p50", Some(parse_us(testbed)?))])),
        Row::Prepare => Ok(values([("prepare_s", Some(prepare_s(testbed)?))])),
        Row::Clean => clean(testbed),
    }
}

/// Builds the map from figure id to value, without the figures whose value is `None`.
fn values<const N: usize>(known: [(&'static str, Option<f64>); N]) -> Values {
    let is_figure = |id: &str| FIGURES.iter().any(|known| known.id == id);
    debug_assert!(known.iter().all(|(id, _)| is_figure(id)), "a figure of {known:?} is in no row");
    known.into_iter().filter_map(|(id, value)| Some((id, value?))).collect()
}

/// Reported time minus true time, both given in microseconds, in milliseconds; `None` if one of
/// them is unknown.
fn error_ms(said: Option<f64>, true_us: Option<f64>) -> Option<f64> {
    Some((said? - true_us?) / 1e3)
}

/// Processor time of the client per event in microseconds, from the difference between a
/// measurement with more events and one with fewer.
fn cpu_us_per_event(less: &Exchange, more: &Exchange, loads: (&Load, &Load)) -> f64 {
    (more.cost.cpu_us - less.cost.cpu_us) / float(loads.1.events() - loads.0.events())
}

fn saturated(testbed: &Testbed<'_>, tool: Tool) -> Result<Values, Stop> {
    // The difference of two loads cancels the client's startup.
    let (less, more) = (SATURATED, Load { tokens: 5 * SATURATED.tokens, ..SATURATED });
    let (short, long) = (exchange(testbed, tool, &less)?, exchange(testbed, tool, &more)?);
    let costs = cpu_us_per_event(&short, &long, (&less, &more));
    Ok(values([("saturated_events_per_cpu_s", Some(1e6 / costs))]))
}

fn paced(testbed: &Testbed<'_>, tool: Tool) -> Result<Values, Stop> {
    let (less, more) = (PACED, Load { tokens: 4 * PACED.tokens, ..PACED });
    let (short, long) = (exchange(testbed, tool, &less)?, exchange(testbed, tool, &more)?);
    let costs = cpu_us_per_event(&short, &long, (&less, &more));
    let (said, truth) = (short.reported.ttft, short.truth.ttft);
    Ok(values([
        ("paced_cpu_us_per_event", Some(costs)),
        ("ttft_error_ms_mean", error_ms(said.mean_us, truth.mean_us)),
        ("ttft_error_ms_p99", error_ms(said.p99_us, truth.p99_us)),
    ]))
}

fn starts(testbed: &Testbed<'_>, tool: Tool) -> Result<Values, Stop> {
    let taken = exchange(testbed, tool, &STARTS)?;
    let (said, truth) = (taken.reported.ttft, taken.truth.ttft);
    let lag = taken.reported.lag;
    Ok(values([
        ("starts_ttft_error_ms_mean", error_ms(said.mean_us, truth.mean_us)),
        ("starts_ttft_error_ms_p99", error_ms(said.p99_us, truth.p99_us)),
        ("starts_lag_ms_mean", error_ms(lag.mean_us, Some(0.0))),
        ("starts_lag_ms_p99", error_ms(lag.p99_us, Some(0.0))),
    ]))
}

/// Finds, by binary search in `LOADS`, the highest load in events per second, 0 if there is none,
/// at which the client reports the gaps between tokens correctly; loads below a correct one are
/// assumed to be correct too.
fn limit(testbed: &Testbed<'_>, tool: Tool) -> Result<Values, Stop> {
    let (mut right, mut wrong) = (None, LOADS.len());
    while right.map_or(0, |at| at + 1) < wrong {
        let first = right.map_or(0, |at| at + 1);
        let at = usize::midpoint(first, wrong);
        let load = Load::burst(LOADS[at] / 100, 200, 50_000, 10_000);
        // A wrong load is measured once more, since other programs on the machine may have
        // disturbed it.
        let is_right = gaps_are_right(&exchange(testbed, tool, &load)?)
            || gaps_are_right(&exchange(testbed, tool, &load)?);
        match is_right {
            true => right = Some(at),
            false => wrong = at,
        }
    }
    let most = right.map_or(0.0, |at| float(LOADS[at]));
    Ok(values([("right_events_per_s_max", Some(most))]))
}

fn gaps_are_right(taken: &Exchange) -> bool {
    let (said, truth) = (taken.reported.gaps, taken.truth.gaps);
    let close = |said: Option<f64>, true_us: Option<f64>, within: fn(f64) -> f64| {
        said.zip(true_us).is_some_and(|(said, true_us)| (said - true_us).abs() <= within(true_us))
    };
    close(said.mean_us, truth.mean_us, |mean| MEAN_GAP_SHARE * mean)
        && close(said.p99_us, truth.p99_us, |_| GAP_P99_US)
}

fn spread(testbed: &Testbed<'_>, tool: Tool) -> Result<Values, Stop> {
    let taken = exchange(testbed, tool, &SPREAD)?;
    let (said, truth) = (taken.reported.gaps.std_us, taken.truth.gaps.std_us);
    Ok(values([("itl_spread_ms", error_ms(said, truth))]))
}

fn stamps(testbed: &Testbed<'_>) -> Result<Values, Stop> {
    let taken = exchange(testbed, Tool::Redline, &STAMPS)?;
    let (mut recorded, mut had) = stamp_errors_ns(testbed, &taken.truth.answers)?;
    recorded.sort_unstable();
    had.sort_unstable();
    let us = |sorted: &[u64], share| {
        let none = || Stop::environment("no sample could be found again in the mock server's log");
        quantile(sorted, share).map(|ns| ns / 1e3).ok_or_else(none)
    };
    Ok(values([
        ("stamp_error_us_p99", Some(us(&recorded, 0.99)?)),
        ("stamp_error_us_p999", Some(us(&recorded, 0.999)?)),
        ("user_stamp_error_us_p99", Some(us(&had, 0.99)?)),
    ]))
}

fn open_loop(testbed: &Testbed<'_>, tool: Tool) -> Result<Values, Stop> {
    let taken = exchange(testbed, tool, &OPEN_LOOP)?;
    Ok(values([
        ("send_lag_ms_p99", error_ms(taken.reported.lag.p99_us, Some(0.0))),
        ("rate_error_pct", rate_error_pct(tool, &taken.truth)),
    ]))
}

/// Difference in percent between the time over which the requests arrived at the mock server and
/// the time that the requested rate gives; above 0 if they came too slowly. `None` without answers,
/// and for clients other than Redline's, which sends at even intervals: with random ones, the mean
/// of a few thousand deviates by chance.
fn rate_error_pct(tool: Tool, truth: &Truth) -> Option<f64> {
    let arrived = || truth.answers.iter().map(|answer| answer.received_ns);
    let (first, last) = (arrived().min()?, arrived().max()?);
    // Between n requests lie n - 1 intervals.
    let asked_s = (float(truth.answers.len() as u64) - 1.0) / f64::from(OPEN_LOOP.requests_per_s?);
    let took_s = float(last - first) / 1e9;
    (tool == Tool::Redline).then(|| (took_s / asked_s - 1.0) * 100.0)
}

fn memory(testbed: &Testbed<'_>, tool: Tool) -> Result<Values, Stop> {
    let unknown = || Stop::environment("the system does not report how much memory a client took");
    let peak = |load: &Load| -> Result<f64, Stop> {
        Ok(float(exchange(testbed, tool, load)?.cost.peak_bytes.ok_or_else(unknown)?))
    };
    // The client's fixed memory is in both peaks and cancels in the difference.
    let few = peak(&Load { requests: IDLE_FEW, ..IDLE })?;
    let streams = float(IDLE.requests - IDLE_FEW);
    let idle = (peak(&IDLE)? - few) / streams / 1e3;
    Ok(values([("idle_stream_kb", Some(idle)), ("peak_mb", Some(peak(&FULL)? / 1e6))]))
}

fn clean(testbed: &Testbed<'_>) -> Result<Values, Stop> {
    let mut verdicts: BTreeMap<String, u32> = BTreeMap::new();
    for _ in 0..CLEAN_RUNS {
        let reported = exchange(testbed, Tool::Redline, &CLEAN)?.reported;
        for reason in &reported.reasons {
            testbed.world.console.note(reason);
        }
        *verdicts.entry(reported.verdict.unwrap_or_default()).or_default() += 1;
    }
    let of = |verdict: &str| Some(f64::from(verdicts.get(verdict).copied().unwrap_or(0)));
    Ok(values([("invalid_runs", of("invalid")), ("degraded_runs", of("degraded"))]))
}

/// Path, in criterion's folder, of the result of the parser benchmark whose chunks have the form of
/// the mock server's.
const ESTIMATES: &str = "parse/completions/new/estimates.json";
/// Number of events that the load generator's parser benchmark parses in one iteration.
const EVENTS: f64 = 1000.0;

/// Runs the load generator's criterion benchmark and returns its median time, in microseconds, of
/// parsing one event into a sample.
fn parse_us(testbed: &Testbed<'_>) -> Result<f64, Stop> {
    let home = testbed.path("criterion");
    // An earlier result must not be read if the benchmark writes none.
    let _ = fs::remove_dir_all(&home);
    let mut cargo = Command::new("cargo");
    cargo
        .args(["bench", "--quiet", "--locked", "-p", "suite", "--bench", "parse", "--"])
        .args(["--noplot", "--warm-up-time", "1", "--measurement-time", "3", "completions"])
        .env("CRITERION_HOME", &home);
    let places = &testbed.world.places;
    campaign::build::call_in(&mut cargo, places, &places.root, "")?;
    let status = show(&mut cargo, &testbed.world.interrupt)?;
    if !status.success() {
        return Err(Stop::environment(format!("`cargo bench` ended with {}", describe(status))));
    }
    let estimates: Value =
        serde_json::from_str(&read_text(&home.join(ESTIMATES))?).unwrap_or_default();
    let median_ns = estimates.pointer("/median/point_estimate").and_then(Value::as_f64);
    let median_ns = median_ns.ok_or_else(|| Stop::environment("the bench left no median"))?;
    Ok(median_ns / EVENTS / 1e3)
}

/// Time limit for the mock server to write its log; a measurement fails if it is exceeded.
const GRACE: Duration = Duration::from_secs(20);

/// Result of one exchange between a client and the mock server: the times that the client reports,
/// the true times, and the resources that the client used.
#[derive(Debug)]
pub struct Exchange {
    pub reported: Reported,
    pub truth: Truth,
    pub cost: Cost,
}

/// Starts a mock server, lets the client `tool` send `load` to it, and reads what the client
/// reports.
///
/// # Errors
/// A program is not installed, does not start, fails or takes too long; a file cannot be read or
/// written or is not valid; a client that reads answers did not get one to every request; a system
/// call fails; or the wait was interrupted.
pub fn exchange(testbed: &Testbed<'_>, tool: Tool, load: &Load) -> Result<Exchange, Stop> {
    make_dir(&testbed.dir)?;
    let server = start_mock_server(testbed, load)?;
    let mut command = tool.command(testbed, load, &server.address)?;
    let said = testbed.dir.join("client.log");
    let log = File::create(&said).map_err(FileError::at("write", &said))?;
    command.stderr(log).stdout(testbed.create("client.out")?).current_dir(&testbed.dir);
    let (status, cost) = run_on(testbed.client_core, &mut command, &testbed.world.interrupt)?;
    // The mock server writes its log when it ends.
    let truth = Truth::of(server.end()?, load);
    let failed = |what: String| {
        let log = read_text(&said).unwrap_or_default();
        let last = log.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("silent");
        let id = tool.id();
        Stop::from(RivalError(format!("{id}: {what}: {}", last.trim())))
            .with_hint(format!("`--skip {id}` leaves it out"))
    };
    if !tool.may_end_with(status.code()) {
        return Err(failed(format!("ended with {}", describe(status))));
    }
    let answered = truth.answers.len() as u64;
    // The raw-socket client in send-only mode ends before its answers are complete.
    if answered != load.requests && !tool.only_sends(load) {
        let what = format!("{answered} of {} requests were answered", load.requests);
        return Err(failed(what));
    }
    let reported = tool.read(testbed, load).map_err(failed)?;
    Ok(Exchange { reported, truth, cost })
}

fn start_mock_server(testbed: &Testbed<'_>, load: &Load) -> Result<MockServer, Stop> {
    let (log, said) = (testbed.path("emitted.jsonl"), testbed.path("emitter.log"));
    let mut command = Command::new(testbed.world.tools.path(EMITTER));
    command.args(["--detach", "--pace", &format!("{}:{}", load.first_us, load.gap_us)]);
    command.arg("--log").arg(&log).stdout(Stdio::null()).stderr(testbed.create("emitter.log")?);
    let group = start_on(testbed.emitter_core, &mut command)?;
    let ready = || {
        let text = read_text(&said).ok()?;
        // An address without its line feed may not be complete yet.
        Some(text.strip_prefix("ready http://")?.strip_suffix('\n')?.to_owned())
    };
    let address = wait_for("the mock server was not ready", &testbed.world.interrupt, ready)?;
    Ok(MockServer { group, address, log })
}

/// Running process of the mock server.
struct MockServer {
    group: Group,
    /// Address of the mock server, `HOST:PORT`.
    address: String,
    log: PathBuf,
}

impl MockServer {
    /// Stops the mock server and returns the lines of its log.
    fn end(mut self) -> Result<Vec<Emitted>, Stop> {
        self.group.end(GRACE);
        read_lines(&self.log)
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;
    use crate::clients::testbed::Spread;

    fn taken(said: (f64, f64), truth: (f64, f64)) -> Exchange {
        let gaps = |(mean, p99)| Spread { mean_us: Some(mean), std_us: None, p99_us: Some(p99) };
        Exchange {
            reported: Reported { gaps: gaps(said), ..Reported::default() },
            truth: Truth { gaps: gaps(truth), ..Truth::default() },
            cost: Cost { cpu_us: 0.0, wall_s: 0.0, peak_bytes: None },
        }
    }

    #[test]
    fn gaps_are_right_within_a_share_of_the_mean_and_two_milliseconds_of_the_p99() {
        assert!(gaps_are_right(&taken((10_100.0, 12_000.0), (10_000.0, 10_000.0))));
        assert!(!gaps_are_right(&taken((10_101.0, 10_000.0), (10_000.0, 10_000.0))));
        assert!(!gaps_are_right(&taken((10_000.0, 12_001.0), (10_000.0, 10_000.0))));
        let silent = Exchange { reported: Reported::default(), ..taken((0.0, 0.0), (0.0, 0.0)) };
        assert!(!gaps_are_right(&silent), "what is not reported is not right");
    }

    #[test]
    fn what_starting_costs_does_not_count() {
        let cost = |cpu_us| Exchange {
            cost: Cost { cpu_us, wall_s: 0.0, peak_bytes: None },
            ..taken((0.0, 0.0), (0.0, 0.0))
        };
        let (less, more) = (Load::burst(10, 10, 0, 0), Load::burst(10, 30, 0, 0));
        assert_eq!(cpu_us_per_event(&cost(5_000.0), &cost(6_000.0), (&less, &more)), 5.0);
    }

    #[test]
    fn every_row_can_be_measured_with_redline() {
        assert!(Row::value_variants().iter().all(|row| applies(*row, Tool::Redline)));
    }
}
