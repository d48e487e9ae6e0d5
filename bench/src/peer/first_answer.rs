//! Time from the start of a server's process to its first answer.

use std::fs;
use std::path::Path;
use std::time::Duration;

use schema::probe::FirstAnswer;

use crate::peer::failure;
use campaign::files::{FileError, make_dir, read_text};
use campaign::node::server::{Server, free_port};
use campaign::process::{Group, describe};
use campaign::server_spec::ServerSpec;
use campaign::server_spec::{Filling, command_line};
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
pub fn measure(
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
    let mut ask = world.tools.bench(VERB);
    let timeout_s = variant.engine.file.launch.timeout_s;
    ask.args(["--url", &format!("http://127.0.0.1:{port}"), "--engine"]).arg(&variant.engine.path);
    ask.args(["--timeout-s", &timeout_s.to_string()]).stdout(written);
    let mut client = Group::start(&mut ask)?;
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
