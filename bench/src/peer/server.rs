//! Measurements of a server's process: the time from its start to its first answer, and its resident
//! memory beyond the KV cache, read after the server has been measured.

use std::fs;
use std::path::Path;
use std::time::Duration;

use schema::probe::{FirstAnswer, Probe};
use serde::Serialize;

use crate::RivalError;
use crate::peer::failure;
use campaign::files::{FileError, make_dir, read_text};
use campaign::node::server::{ProbeAnswer, Server, ask, free_port, status_bytes};
use campaign::process::{Group, describe};
use campaign::server_spec::{Filling, ServerSpec, command_line};
use campaign::stop::Stop;
use campaign::tools::{self, BENCH};
use campaign::world::World;

/// Interval at which server and client are polled; the measured time does not depend on it.
const POLL: Duration = Duration::from_millis(20);
const VERB: &str = "first-answer";

/// Measures the seconds from just before the server's start, without flags for load, to the first
/// byte of its first answer. The client is started before the server, so that its own start does
/// not count.
///
/// # Errors
/// The server dies or does not answer in time, or the client cannot be run.
pub fn first_answer_s(
    world: &World,
    variant: &ServerSpec,
    model: &Path,
    threads: u32,
    (log, answer): (&Path, &Path),
) -> Result<f64, Stop> {
    let port = free_port()?;
    let name = model.to_string_lossy();
    // Ready for no more than the server is by itself: only its threads are set.
    let flags = variant.engine.thread_flags(threads);
    let filling = Filling { flags: &flags, ..variant.filling(&name, port) };
    let line = command_line(&variant.engine.file, filling)?;
    // Reading the file puts it into the page cache, so that every measurement starts alike.
    let read = fs::File::open(model).and_then(|mut f| std::io::copy(&mut f, &mut std::io::sink()));
    read.map_err(FileError::at("read", model))?;
    make_dir(answer.parent().unwrap_or(Path::new(".")))?;
    let written = fs::File::create(answer).map_err(FileError::at("write", answer))?;
    let mut asking = world.tools.bench(VERB);
    let timeout_s = variant.engine.file.launch.timeout_s;
    asking
        .args(["--url", &format!("http://127.0.0.1:{port}"), "--engine"])
        .arg(&variant.engine.path);
    asking.args(["--timeout-s", &timeout_s.to_string()]).stdout(written);
    let mut client = Group::start(&mut asking)?;
    let started_ns = world.clock.monotonic_ns();
    let mut server =
        Server::start(&line.argv, &variant.engine.file.launch.env, port, log, &world.interrupt)?;
    let status = loop {
        if let Some(status) = client.wait(Some(POLL), &world.interrupt)? {
            break status;
        }
        if let Some(status) = server.poll()? {
            let what = format!("its server ended with {}", describe(status));
            let log = world.identity.tail(&server.log_tail());
            return Err(failure(&variant.engine.id, &what, &log));
        }
    };
    server.stop();
    if !status.success() {
        return Err(tools::ended(BENCH, VERB, status));
    }
    let first: FirstAnswer = serde_json::from_str(&read_text(answer)?)
        .map_err(|error| tools::unreadable(BENCH, VERB, &error))?;
    Ok(Duration::from_nanos(first.first_byte_ns.saturating_sub(started_ns)).as_secs_f64())
}

const PROBE_LIMIT: Duration = Duration::from_secs(10);
const MIB: f64 = 1024.0 * 1024.0;

/// Memory of one server after its run, in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Resident {
    pub engine: String,
    /// Resident memory `VmRSS`: anonymous memory and mapped files.
    pub rss_bytes: u64,
    pub rss_anon_bytes: Option<u64>,
    pub rss_file_bytes: Option<u64>,
    /// Resident part of the KV cache.
    pub kv_bytes: u64,
    /// Source of the KV cache's size, for the report.
    pub kv_from: &'static str,
}

impl Resident {
    /// Resident memory beyond the KV cache, as a multiple of the model file's size.
    #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^53 bytes")]
    pub fn files(&self, file_bytes: u64) -> f64 {
        self.rss_bytes.saturating_sub(self.kv_bytes) as f64 / file_bytes as f64
    }
}

/// Reads the memory of a running server.
///
/// # Errors
/// The system or the server does not report it.
pub fn resident(world: &World, variant: &ServerSpec, server: &Server) -> Result<Resident, Stop> {
    let engine = &variant.engine;
    let unknown =
        |what: &str| RivalError(format!("{}: its memory cannot be read: {what}", engine.id));
    let status = server.status().ok_or_else(|| unknown("the system does not show its memory"))?;
    let bytes = |field: &str| status_bytes(&status, field);
    let answer = ask(&world.tools, &server.url(), &engine.path, PROBE_LIMIT, &world.interrupt)?;
    let ProbeAnswer::Ready(probe) = answer else {
        return Err(unknown("it no longer answers").into());
    };
    let marker = engine.file.cache.kv_log.as_deref();
    // Engines without such a metric allocate the whole KV cache at the start and log its size.
    let logged = || marker.and_then(|marker| logged_mib(&server.log(), marker));
    let (kv_bytes, kv_from) = match (touched(&probe), logged()) {
        (Some(bytes), _) => (bytes, "the pages that were touched, of its metrics"),
        (None, Some(bytes)) => (bytes, "the whole buffer, of its log"),
        (None, None) => return Err(unknown("it reports the size of its KV cache nowhere").into()),
    };
    Ok(Resident {
        engine: engine.id.clone(),
        rss_bytes: bytes("VmRSS").ok_or_else(|| unknown("the system does not show its memory"))?,
        rss_anon_bytes: bytes("RssAnon"),
        rss_file_bytes: bytes("RssFile"),
        kv_bytes,
        kv_from,
    })
}

/// Bytes of the KV pages that were used at least once: untouched pages are not resident.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counts of pages and bytes are whole, positive and below 2^53"
)]
fn touched(probe: &Probe) -> Option<u64> {
    let count = |name: &str| probe.metrics.get(name).copied();
    let (touched, pages) = (count("kv_pages_touched")?, count("kv_pages")?);
    (pages > 0.0).then_some((probe.server.kv_bytes? as f64 * touched / pages) as u64)
}

/// Sums the sizes in MiB that follow `marker` in a log, in bytes.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a size in a log is positive and below 2^53 bytes"
)]
fn logged_mib(log: &str, marker: &str) -> Option<u64> {
    let sizes = log.split(marker).skip(1).filter_map(|rest| {
        rest.split_whitespace().next()?.parse::<f64>().ok().filter(|mib| *mib >= 0.0)
    });
    let sizes: Vec<f64> = sizes.collect();
    (!sizes.is_empty()).then(|| (sizes.iter().sum::<f64>() * MIB) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use schema::run::ServerFacts;

    #[test]
    fn the_kv_cache_is_read_from_a_log() {
        let log = "load\nkv: CPU KV buffer size =    90.00 MiB\nkv: CPU KV buffer size = 1.5 MiB\n";
        assert_eq!(logged_mib(log, "KV buffer size ="), Some((91.5 * MIB) as u64));
        assert_eq!(logged_mib("KV buffer size = unknown", "KV buffer size ="), None);
        assert_eq!(logged_mib("", "KV buffer size ="), None);
    }

    #[test]
    fn only_touched_pages_are_resident() {
        let mut probe = Probe {
            server: ServerFacts { kv_bytes: Some(1000), ..ServerFacts::default() },
            ..Probe::default()
        };
        assert_eq!(touched(&probe), None);
        probe.metrics = [("kv_pages".into(), 10.0), ("kv_pages_touched".into(), 3.0)].into();
        assert_eq!(touched(&probe), Some(300));
    }

    #[test]
    fn memory_is_a_multiple_of_the_file() {
        let resident = Resident {
            engine: "x".into(),
            rss_bytes: 250,
            rss_anon_bytes: None,
            rss_file_bytes: None,
            kv_bytes: 100,
            kv_from: "a test",
        };
        assert_eq!(resident.files(100), 1.5);
    }
}
