//! The command `soak`: keeps the working tree's server under repeated load and detects leaks, by its
//! memory, KV pages, descriptors and threads between loads. The clients are `redline-bench`: it sends
//! the requests, aborts others, and reads the server's metrics.

use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use schema::exit::Exit;
use schema::probe::Aborted;
use schema::run::{HardwareFacts, Status};

use crate::cli::Soak;
use crate::peer::{failed, failure};
use crate::{float, local_bench, whole};
use campaign::ScenarioEntry;
use campaign::build::variants;
use campaign::files::{FileError, read_text};
use campaign::lock::Lock;
use campaign::node::hardware;
use campaign::node::load_generator::save_workload;
use campaign::node::run::Bench;
use campaign::node::server::{Server, ask_running, free_port, status_bytes};
use campaign::places::CampaignPlaces;
use campaign::plan::decide::{default_cell, ready_cells};
use campaign::plan::{Cell, PlannedRun};
use campaign::process::Group;
use campaign::server_spec::command_line;
use campaign::server_spec::{ReadyCell, ServerSpec};
use campaign::stop::Stop;
use campaign::tools::{BENCH, unreadable};
use campaign::world::{Ids, World};
use judge::diff::words::plural;

/// Scenarios that each load sends after the standard one: tool calls, structured output, and free
/// text over the chat route.
const SCENARIOS: [&str; 3] = ["tools-lite", "structured-lite", "chat-lite-c4"];
/// Number of clients that abort requests while a scenario's requests are answered.
const ABORTING: &str = "4";
/// Number of loads that are sent even if they take longer than the requested time: the first
/// quarter of them may still fill caches and pools.
const LOADS_MIN: usize = 8;
/// Growth of the server's memory in percent that is tolerated, since allocators return memory at
/// their discretion.
const GROWTH_PCT_MAX: f64 = 2.0;
/// Time without load before descriptors, threads and KV pages are counted for the last time. The
/// server's async runtime keeps a blocking thread for 10 s after its last work; how many there are
/// depends on how many requests arrived at the same moment. A thread that remains longer is a leak.
const IDLE: Duration = Duration::from_secs(12);
/// Longest wait after a load until the server reports no request: those that were aborted last end
/// with the next step.
const SETTLE_MAX: Duration = Duration::from_secs(5);
/// Pause after each reading of the server's metrics, in which it closes the reading's connection.
const SETTLE_PAUSE: Duration = Duration::from_millis(500);

/// Resources that the server occupies between two loads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Held {
    /// Resident anonymous memory of the server in bytes.
    bytes: u64,
    /// Number of open file descriptors of the server.
    files: u64,
    threads: u64,
    reported: Reported,
}

/// Resources that the server reports as metrics.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Reported {
    /// Number of requests that run or wait.
    requests: u64,
    /// Number of KV pages that requests hold. A page that only the prefix cache has is not counted:
    /// it is taken as soon as a request needs it.
    pages: u64,
    /// Part of the server's memory in bytes that KV pages occupy which were used at least once.
    kv_bytes: u64,
}

impl fmt::Display for Held {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, files, threads, reported: Reported { requests, pages, kv_bytes } } = self;
        let (mb, kv_mb) = (bytes / 1_000_000, kv_bytes / 1_000_000);
        write!(formatter, "{mb} MB ({kv_mb} MB of KV cache), {files} files, {threads} threads, ")?;
        let count = |number: u64, noun| plural(usize::try_from(number).unwrap_or(usize::MAX), noun);
        write!(formatter, "{} with {}", count(*requests, "request"), count(*pages, "KV page"))
    }
}

/// Scenario that every load sends, with the folder of its files.
#[derive(Debug)]
struct Workload {
    cell: ReadyCell,
    places: CampaignPlaces,
}

/// Server under load, and what it is sent.
struct Soaked<'a> {
    world: &'a World,
    /// Id of the records, as that of a campaign.
    id: String,
    variant: ServerSpec,
    hardware: HardwareFacts,
    workloads: Vec<Workload>,
    server: Server,
    /// File with the output of the clients that abort.
    aborted: PathBuf,
}

/// Runs `soak`. The exit code is 1 if the server's memory grew by more than 2 %, or its descriptors
/// or threads at all, from the second quarter of the loads to the last; or if it still has requests
/// or KV pages of requests at the end, without load.
///
/// # Errors
/// The model or a scenario is unknown, another process holds the clone's lock, a program is missing
/// or does not build, a model or dataset cannot be obtained, the server does not start, a load is
/// not answered in full, a client that aborts gets no answer, a file cannot be read or written, or
/// the run is interrupted.
pub fn run(world: &World, flags: &Soak) -> Result<Exit, Stop> {
    world.tools.check()?;
    let (cells, scenarios) = cells(world, flags.model.as_deref())?;
    let _lock = Lock::take(&world.places.lock(), world.pid)?;
    let machine = hardware::detect(world)?;
    let variant = variants::build_working_tree(world, world.cores)?;
    world.console.step(world.clock.elapsed(), "Fetch inputs");
    let ready = ready_cells(world, &cells, &scenarios)?;
    let mut ids = Ids::new(world.clock.unix_ms(), world.random);
    let id = ids.next_id();
    let dir = world.places.target("soak").join(&id);
    let served = ready[0].model.served();
    let workloads = workloads(world, ready, &dir)?;

    world.console.step(world.clock.elapsed(), &format!("Serve {}", cells[0].model));
    let server = serve(world, &variant, &served, &CampaignPlaces::at(&dir).log("server"))?;
    let hardware = machine.facts(&machine.id(false));
    let aborted = dir.join("aborted.json");
    let mut soaked = Soaked { world, id, variant, hardware, workloads, server, aborted };
    let end = world.clock.elapsed() + Duration::from_secs(60 * u64::from(flags.minutes));
    let (mut held, mut aborted) = (Vec::new(), 0);
    // A quarter of fewer loads would be too few for a median.
    while world.clock.elapsed() < end || held.len() < LOADS_MIN {
        world.interrupt.check()?;
        let more = soaked.load(&mut ids)?;
        let now = soaked.settled()?;
        held.push(now);
        aborted += more;
        let line = format!("load {}: {now}; {more} requests aborted", held.len());
        world.console.step(world.clock.elapsed(), &line);
    }
    let idle = soaked.idle()?;
    soaked.server.stop();
    let grown = grown(&held, &idle);
    let loads = format!("{} loads, {aborted} requests aborted", held.len());
    let after = "after the first quarter of the loads";
    world.console.answer(&match grown.is_empty() {
        true => format!("{loads}: nothing grew {after}; at the end {idle}"),
        false => format!("{loads}: this grew {after}: {}", grown.join("; ")),
    })?;
    Ok(if grown.is_empty() { Exit::Well } else { Exit::Worse })
}

/// Returns the cells whose requests each load sends, the standard one first, with their scenarios.
fn cells(world: &World, model: Option<&str>) -> Result<(Vec<Cell>, Vec<ScenarioEntry>), Stop> {
    let mut cells = vec![default_cell(world, model)?];
    for scenario in SCENARIOS {
        cells.push(Cell { scenario: scenario.to_owned(), ..cells[0].clone() });
    }
    let mut scenarios = Vec::new();
    for cell in &cells {
        scenarios.push(world.catalog.scenario(&cell.scenario)?);
    }
    Ok((cells, scenarios))
}

/// Draws the requests of each cell, once, so that every load sends the same ones. Files lie below
/// `dir`.
fn workloads(world: &World, cells: Vec<ReadyCell>, dir: &Path) -> Result<Vec<Workload>, Stop> {
    let mut workloads = Vec::new();
    for mut cell in cells {
        // A folder for each scenario: outputs are compared with those of the folder's first run.
        let places = CampaignPlaces::at(&dir.join(&cell.scenario.id));
        let plan = places.plan(&cell.scenario.id);
        save_workload(world, &cell, &plan)?;
        cell.plan = Some(plan);
        workloads.push(Workload { cell, places });
    }
    Ok(workloads)
}

impl Soaked<'_> {
    /// Sends the requests of each workload and waits for all answers, while clients abort as many
    /// requests. Returns the number of aborted requests.
    fn load(&self, ids: &mut Ids) -> Result<u64, Stop> {
        let mut requests = 0;
        // The seeds are those of every load, so that loads are alike.
        for (seed, workload) in (1..).zip(&self.workloads) {
            let mut clients = self.start_aborting(workload, seed)?;
            self.answer(workload, ids.next_id())?;
            let ended = clients.wait(None, &self.world.interrupt)?;
            if !ended.is_some_and(|status| status.success()) {
                return Err(self.failure("it failed clients that abort; their error is above"));
            }
            let report: Aborted = serde_json::from_str(&read_text(&self.aborted)?)
                .map_err(|error| unreadable(BENCH, "abort", &error))?;
            requests += report.requests;
        }
        Ok(requests)
    }

    /// Starts clients that abort as many requests as `workload` has, drawn from all workloads.
    fn start_aborting(&self, workload: &Workload, seed: u64) -> Result<Group, Stop> {
        let mut command = self.world.tools.bench("abort");
        command.args(["--url", &self.server.url(), "--engine"]).arg(&self.variant.engine.path);
        for plan in self.workloads.iter().filter_map(|workload| workload.cell.plan.as_ref()) {
            command.args([OsStr::new("--plan"), plan.as_os_str()]);
        }
        command.arg("--tokenizer").arg(&workload.cell.tokenizer);
        let requests = workload.cell.scenario.scenario.workload.requests;
        command.args(["--clients", ABORTING, "--requests", &requests.to_string()]);
        command.args(["--seed", &seed.to_string()]);
        let out = File::create(&self.aborted).map_err(FileError::at("write", &self.aborted))?;
        Ok(Group::start(command.stdout(out))?)
    }

    /// Sends the requests of `workload` as the run `run`, and checks that all are answered.
    fn answer(&self, workload: &Workload, run: String) -> Result<(), Stop> {
        let url = self.server.url();
        let bench = Bench {
            url: Some(&url),
            ..local_bench(self.world, &self.id, &workload.places, &self.hardware)
        };
        let planned = PlannedRun {
            run,
            variant: 0,
            cell: 0,
            block: 0,
            position: 0,
            repeat: 1,
            stage: None,
            server: None,
        };
        let record = bench.run(&planned, &self.variant, &workload.cell, &mut |_| Ok(()))?;
        if record.status != Status::Ok {
            return Err(failed(&self.variant.engine.id, &record));
        }
        // Measurement and samples are removed at once, since an hour produces hundreds.
        let measured = workload.places.measurement(&planned.run);
        if let Some(folder) = measured.parent() {
            fs::remove_dir_all(folder).map_err(FileError::at("remove", folder))?;
        }
        Ok(())
    }

    /// Reads the server's resources once it reports that it has no request, or after
    /// [`SETTLE_MAX`].
    fn settled(&self) -> Result<Held, Stop> {
        let until = self.world.clock.elapsed() + SETTLE_MAX;
        loop {
            let reported = self.reported()?;
            self.world.interrupt.sleep(SETTLE_PAUSE);
            self.world.interrupt.check()?;
            let is_idle = reported.requests == 0 && reported.pages == 0;
            if is_idle || self.world.clock.elapsed() >= until {
                return read(&self.server, reported);
            }
        }
    }

    /// Reads the server's resources after a time without load.
    fn idle(&self) -> Result<Held, Stop> {
        self.world.interrupt.sleep(IDLE);
        self.world.interrupt.check()?;
        // Metrics come last, because their reading takes a connection and a thread.
        let held = read(&self.server, Reported::default())?;
        Ok(Held { reported: self.reported()?, ..held })
    }

    /// Reads the resources that the server reports as metrics.
    fn reported(&self) -> Result<Reported, Stop> {
        let probe = ask_running(self.world, &self.server.url(), &self.variant.engine)?;
        let metric = |name: &str| {
            let value = probe.metrics.get(name).copied().map(whole);
            value.ok_or_else(|| self.failure(&format!("it does not report the metric `{name}`")))
        };
        // On a GPU the KV cache is not in the memory of the process.
        let is_here = probe.device.as_deref() == Some("cpu");
        let kv_bytes = probe.server.kv_bytes.filter(|_| is_here).unwrap_or(0);
        let page_bytes = kv_bytes / metric("kv_pages")?.max(1);
        Ok(Reported {
            requests: metric("requests_running")? + metric("requests_waiting")?,
            pages: metric("kv_pages_used")?,
            kv_bytes: page_bytes * metric("kv_pages_touched")?,
        })
    }

    /// Builds the error of a server that does not do `what` is expected of it, with the end of its
    /// log.
    fn failure(&self, what: &str) -> Stop {
        let log = self.world.identity.tail(&self.server.log_tail());
        failure(&self.variant.engine.id, what, &log)
    }
}

/// Starts the server and waits until it reports that it is ready.
fn serve(world: &World, variant: &ServerSpec, model: &str, log: &Path) -> Result<Server, Stop> {
    let (port, launch) = (free_port()?, &variant.engine.file.launch);
    let line = command_line(&variant.engine.file, variant.filling(model, port))?;
    let mut server = Server::start(&line.argv, &launch.env, port, log, &world.interrupt)?;
    let limit = Duration::from_secs(launch.timeout_s);
    match server.wait_ready(&world.tools, &variant.engine.path, limit, &world.interrupt)? {
        Ok(_) => Ok(server),
        Err(not_ready) => {
            let what = format!("its server did not become ready: {not_ready:?}");
            let log = world.identity.tail(&server.log_tail());
            Err(failure(&variant.engine.id, &what, &log))
        }
    }
}

/// Reads the server's current memory, descriptors and threads, beside what it `reported`.
fn read(server: &Server, reported: Reported) -> Result<Held, Stop> {
    let gone = || Stop::environment("the system does not show what the server holds");
    let status = server.status().ok_or_else(gone)?;
    let threads = status.lines().find_map(|line| line.strip_prefix("Threads:"));
    let files = fs::read_dir(format!("/proc/{}/fd", server.id())).map_err(|_| gone())?;
    Ok(Held {
        // Anonymous memory only: pages of the mapped model file come and go with the page cache.
        bytes: status_bytes(&status, "RssAnon").ok_or_else(gone)?,
        files: files.count() as u64,
        threads: threads.and_then(|count| count.trim().parse().ok()).ok_or_else(gone)?,
        reported,
    })
}

/// Compares the resources after the loads with those in the second quarter of the loads; returns a
/// phrase for each resource that grew. Medians are compared, because single loads leave slightly
/// different amounts. Memory after the loads is that of the last quarter; descriptors and threads
/// are those of the `idle` server, which must have no request and no KV page of one.
fn grown(held: &[Held], idle: &Held) -> Vec<String> {
    let quarter = held.len() / 4;
    let (early, late) = (&held[quarter..2 * quarter], &held[held.len() - quarter..]);
    let median = |of: &[Held], value: fn(&Held) -> u64| {
        let values: Vec<f64> = of.iter().map(|held| float(value(held))).collect();
        judge::quantile::median(&values).unwrap_or(0.0)
    };
    let mut grown = Vec::new();
    let bytes = |held: &Held| held.bytes;
    let (before, after) = (median(early, bytes), median(late, bytes));
    // A page of the KV cache that is used for the first time takes memory that was allocated for it
    // at the start. How many are used at the same time varies with the moments of the aborts.
    let kv_bytes = |held: &Held| held.reported.kv_bytes;
    let first_used = (median(late, kv_bytes) - median(early, kv_bytes)).max(0.0);
    if after > before * (1.0 + GROWTH_PCT_MAX / 100.0) + first_used {
        grown.push(format!("memory from {:.1} to {:.1} MB", before / 1e6, after / 1e6));
    }
    let pair = |value: fn(&Held) -> u64| (median(early, value), float(value(idle)));
    let left = |value: u64| (0.0, float(value));
    for (what, (before, after)) in [
        ("files", pair(|held| held.files)),
        ("threads", pair(|held| held.threads)),
        ("requests without a client", left(idle.reported.requests)),
        ("KV pages without a request", left(idle.reported.pages)),
    ] {
        // Unlike memory these are counted exactly, so that any growth is a leak.
        if after > before {
            grown.push(format!("{what} from {before} to {after}"));
        }
    }
    grown
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns 40 loads, of which load `n` leaves `bytes(n)` and `files(n)`. After load 20 the
    /// server has a fifth thread.
    fn loads(bytes: impl Fn(u64) -> u64, files: impl Fn(u64) -> u64) -> Vec<Held> {
        let threads = |load| if load < 20 { 4 } else { 5 };
        let held = |load| Held {
            bytes: bytes(load),
            files: files(load),
            threads: threads(load),
            reported: Reported::default(),
        };
        (0..40).map(held).collect()
    }

    /// Returns what grew over these loads if the fifth thread ends when the server is idle.
    fn grown_in(bytes: impl Fn(u64) -> u64, files: impl Fn(u64) -> u64) -> Vec<String> {
        let loads = loads(bytes, files);
        grown(&loads, &Held { threads: 4, ..loads[39] })
    }

    /// Memory that grows by 70 MB within the first quarter of the loads.
    fn warm(load: u64) -> u64 {
        100_000_000 + load.min(8) * 10_000_000
    }

    /// Memory that also grows by 0.2 MB with each load.
    fn leaking(load: u64) -> u64 {
        warm(load) + load * 200_000
    }

    #[test]
    fn what_grows_after_the_first_quarter_is_reported() {
        assert_eq!(grown_in(warm, |_| 20), [] as [String; 0]);
        let uneven = |load: u64| warm(load) + load % 2 * 1_000_000;
        assert_eq!(grown_in(uneven, |_| 20), [] as [String; 0]);
        assert_eq!(grown_in(leaking, |_| 20), ["memory from 182.9 to 186.9 MB"]);
        assert_eq!(grown_in(warm, |load| 20 + load / 10), ["files from 21 to 23"]);
        let remains = loads(warm, |_| 20);
        assert_eq!(grown(&remains, &remains[39]), ["threads from 4 to 5"]);
    }

    #[test]
    fn memory_of_kv_pages_that_are_used_for_the_first_time_is_no_leak() {
        let mut loads = loads(leaking, |_| 20);
        for (load, held) in (0..).zip(&mut loads) {
            held.reported.kv_bytes = leaking(load);
            held.threads = 4;
        }
        assert_eq!(grown(&loads, &loads[39]), [] as [String; 0]);
    }

    #[test]
    fn requests_and_pages_that_are_left_without_load_are_reported() {
        let loads = loads(warm, |_| 20);
        let idle = |reported| Held { threads: 4, reported, ..loads[39] };
        let cached = idle(Reported { kv_bytes: 1 << 30, ..Reported::default() });
        assert_eq!(grown(&loads, &cached), [] as [String; 0], "the prefix cache may have pages");
        let stuck = idle(Reported { requests: 1, pages: 7, ..Reported::default() });
        assert_eq!(
            grown(&loads, &stuck),
            ["requests without a client from 0 to 1", "KV pages without a request from 0 to 7"]
        );
        assert_eq!(
            stuck.to_string(),
            "180 MB (0 MB of KV cache), 20 files, 4 threads, 1 request with 7 KV pages"
        );
    }
}
