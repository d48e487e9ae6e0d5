//! The command `soak`: keeps the working tree's server under repeated load and detects memory
//! leaks, by its memory, descriptors and threads between loads.

use std::fs;
use std::time::Duration;

use schema::exit::Exit;
use schema::run::Status;

use crate::cli::Soak;
use crate::peer::{failed, failure};
use crate::{float, local_bench};
use campaign::build::variants;
use campaign::files::FileError;
use campaign::lock::Lock;
use campaign::node::hardware;
use campaign::node::run::{Bench, save_workload};
use campaign::node::server::{Server, free_port, status_bytes};
use campaign::places::CampaignPlaces;
use campaign::plan::PlannedRun;
use campaign::plan::decide::{default_cell, ready_cells};
use campaign::server_spec::ServerSpec;
use campaign::server_spec::command_line;
use campaign::stop::Stop;
use campaign::world::{Ids, World};

/// Number of loads that are sent even if they take longer than the requested time: the first
/// quarter of them may still fill caches and pools.
const LOADS_MIN: usize = 8;
/// Growth of the server's memory in percent that is tolerated, since allocators return memory at
/// their discretion.
const GROWTH_PCT_MAX: f64 = 2.0;
/// Time without load before descriptors and threads are counted for the last time. The server's
/// async runtime keeps a blocking thread for 10 s after its last work; how many there are depends
/// on how many requests arrived at the same moment. A thread that remains longer is a leak.
const IDLE: Duration = Duration::from_secs(12);

/// Resources that the server occupies between two loads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Held {
    /// Resident anonymous memory of the server in bytes.
    bytes: u64,
    /// Number of open file descriptors of the server.
    files: u64,
    threads: u64,
}

/// Runs `soak`. The exit code is 1 if the server's memory grew by more than 2 %, or its descriptors
/// or threads at all, from the second quarter of the loads to the last.
///
/// # Errors
/// The model or scenario is unknown, another process holds the clone's lock, a program is missing
/// or does not build, a model or dataset cannot be obtained, the server does not start, a load is
/// not answered in full, a file cannot be read or written, or the run is interrupted.
pub fn run(world: &World, flags: &Soak) -> Result<Exit, Stop> {
    world.tools.check()?;
    let wanted = default_cell(world, flags.model.as_deref())?;
    let scenario = world.catalog.scenario(&wanted.scenario)?;
    let _lock = Lock::take(&world.places.lock(), world.pid)?;
    let machine = hardware::detect(world)?;
    let variant = variants::build_working_tree(world, world.cores)?;
    world.console.step(world.clock.elapsed(), "Fetch inputs");
    let mut cell = ready_cells(world, &[wanted], &[scenario])?.remove(0);
    let mut ids = Ids::new(world.clock.unix_ms(), world.random);
    let id = ids.next_id();
    let places = CampaignPlaces::at(&world.places.target("soak").join(&id));
    // The workload is drawn once, so that every load sends the same requests.
    let plan = places.plan(&cell.scenario.id);
    save_workload(world, &cell, &plan)?;
    cell.plan = Some(plan);

    world.console.step(world.clock.elapsed(), &format!("Serve {}", cell.cell.model));
    let mut server = serve(world, &variant, &cell.model.served(), &places.log("server"))?;
    let url = server.url();
    let hardware = machine.facts(&machine.id(false));
    let bench = Bench { url: Some(&url), ..local_bench(world, &id, &places, &hardware) };
    let end = world.clock.elapsed() + Duration::from_secs(60 * u64::from(flags.minutes));
    let mut held = Vec::new();
    // A quarter of fewer loads would be too few for a median.
    while world.clock.elapsed() < end || held.len() < LOADS_MIN {
        world.interrupt.check()?;
        let run = ids.next_id();
        let slot = PlannedRun {
            run,
            variant: 0,
            cell: 0,
            block: 0,
            position: 0,
            repeat: 1,
            stage: None,
            server: None,
        };
        let record = bench.run(&slot, &variant, &cell, &mut |_| Ok(()))?;
        if record.status != Status::Ok {
            return Err(failed(&variant.engine.id, &record));
        }
        // Measurements are removed at once, since an hour produces hundreds.
        let measured = places.measurement(&slot.run);
        fs::remove_file(&measured).map_err(FileError::at("remove", &measured))?;
        let now = read(&server)?;
        let (mb, Held { files, threads, .. }) = (now.bytes / 1_000_000, now);
        let line = format!("load {}: {mb} MB, {files} files, {threads} threads", held.len() + 1);
        world.console.step(world.clock.elapsed(), &line);
        held.push(now);
    }
    world.interrupt.sleep(IDLE);
    world.interrupt.check()?;
    let idle = read(&server)?;
    server.stop();
    let grown = grown(&held, &idle);
    let count = held.len();
    world.console.answer(&match grown.is_empty() {
        true => format!("{count} loads: nothing grew after the first quarter of them"),
        false => {
            format!("{count} loads: after the first quarter of them it grew: {}", grown.join("; "))
        }
    })?;
    Ok(if grown.is_empty() { Exit::Well } else { Exit::Worse })
}

/// Starts the server and waits until it reports that it is ready.
fn serve(
    world: &World,
    variant: &ServerSpec,
    model: &str,
    log: &std::path::Path,
) -> Result<Server, Stop> {
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

/// Reads the server's current memory, descriptors and threads.
fn read(server: &Server) -> Result<Held, Stop> {
    let gone = || Stop::environment("the system does not show what the server holds");
    let status = server.status().ok_or_else(gone)?;
    let threads = status.lines().find_map(|line| line.strip_prefix("Threads:"));
    let files = fs::read_dir(format!("/proc/{}/fd", server.id())).map_err(|_| gone())?;
    Ok(Held {
        // Anonymous memory only: pages of the mapped model file come and go with the page cache.
        bytes: status_bytes(&status, "RssAnon").ok_or_else(gone)?,
        files: files.count() as u64,
        threads: threads.and_then(|count| count.trim().parse().ok()).ok_or_else(gone)?,
    })
}

/// Compares the resources after the loads with those in the second quarter of the loads; returns a
/// phrase for each resource that grew. Medians are compared, because single loads leave slightly
/// different amounts. Memory after the loads is that of the last quarter; descriptors and threads
/// are those of the `idle` server.
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
    if after > before * (1.0 + GROWTH_PCT_MAX / 100.0) {
        grown.push(format!("memory from {:.1} to {:.1} MB", before / 1e6, after / 1e6));
    }
    let pair = |value: fn(&Held) -> u64| (median(early, value), float(value(idle)));
    for (what, (before, after)) in
        [("files", pair(|held| held.files)), ("threads", pair(|held| held.threads))]
    {
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
        let held = |load| Held { bytes: bytes(load), files: files(load), threads: threads(load) };
        (0..40).map(held).collect()
    }

    /// Returns what grew over these loads if the fifth thread ends when the server is idle.
    fn grown_in(bytes: impl Fn(u64) -> u64, files: impl Fn(u64) -> u64) -> Vec<String> {
        let loads = loads(bytes, files);
        grown(&loads, &Held { threads: 4, ..loads[39] })
    }

    #[test]
    fn what_grows_after_the_first_quarter_is_reported() {
        let warm = |load: u64| 100_000_000 + load.min(8) * 10_000_000;
        assert_eq!(grown_in(warm, |_| 20), [] as [String; 0]);
        let uneven = |load: u64| warm(load) + load % 2 * 1_000_000;
        assert_eq!(grown_in(uneven, |_| 20), [] as [String; 0]);
        let leak = |load: u64| warm(load) + load * 200_000;
        assert_eq!(grown_in(leak, |_| 20), ["memory from 182.9 to 186.9 MB"]);
        assert_eq!(grown_in(warm, |load| 20 + load / 10), ["files from 21 to 23"]);
        let remains = loads(warm, |_| 20);
        assert_eq!(grown(&remains, &remains[39]), ["threads from 4 to 5"]);
    }
}
