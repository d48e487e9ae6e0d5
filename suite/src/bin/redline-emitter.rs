//! `redline-emitter`: the mock server for tests of clients. It streams tokens at known times and
//! measures nothing.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use clap::Parser;
use schema::emitted::Emitted;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use suite::client::orders::allow_files;
use suite::mock_server::paced::{Pace, PacedMockServer};
use suite::mock_server::script::Script;
use suite::mock_server::server::MockServer;

/// Streams scripted or evenly paced tokens to clients under test.
///
/// Prints one line `ready http://ADDRESS:PORT` on standard error, then serves until its standard
/// input closes (unless `--detach` is given) or it receives a signal. The script is JSON; its
/// format is documented in `suite/src/mock_server/script.rs`. Without a script every request gets a
/// steady stream of as many tokens as it requests.
#[derive(Debug, Parser)]
#[command(version)]
struct Flags {
    /// Script with the answers to play, a JSON file; default: a steady stream for every request.
    #[arg(long, value_name = "FILE")]
    script: Option<PathBuf>,
    /// Instead of playing a script, answer every completion with as many tokens as it requests: the
    /// first FIRST_US microseconds after the request, the others GAP_US apart. One thread serves
    /// thousands of streams and polls without sleeping. On SIGTERM, SIGINT or the end of standard
    /// input the server writes its log and ends.
    #[arg(long, value_name = "FIRST_US:GAP_US", conflicts_with = "script")]
    pace: Option<Pace>,
    /// Write the true times of the server's reads and writes to FILE, as JSON lines: one per event,
    /// or one per request with `--pace`.
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Address on which the mock server listens; port 0 takes a free port.
    #[arg(long, default_value = "127.0.0.1:0", value_name = "HOST:PORT")]
    listen: SocketAddr,
    /// Serve until a signal arrives, even after standard input is closed.
    #[arg(long)]
    detach: bool,
}

fn main() -> ExitCode {
    suite::exit_code(serve(&Flags::parse()))
}

fn serve(flags: &Flags) -> anyhow::Result<()> {
    match flags.pace {
        Some(pace) => serve_paced(flags, pace),
        None => play(flags),
    }
}

fn serve_paced(flags: &Flags, pace: Pace) -> anyhow::Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        flag::register(signal, Arc::clone(&stop)).context("cannot catch signals")?;
    }
    if !flags.detach {
        let stop = Arc::clone(&stop);
        std::thread::spawn(move || {
            // The end of standard input means that the program which started this one has ended.
            let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
            stop.store(true, Ordering::Relaxed);
        });
    }
    let mut log = flags.log.as_deref().map(create).transpose()?.map(BufWriter::new);
    // The number of clients is not known in advance, so the limit is raised as far as it goes.
    allow_files(u64::MAX, 0)?;
    let emitter = PacedMockServer::bind(flags.listen, pace)
        .with_context(|| format!("cannot listen on `{}`", flags.listen))?;
    eprintln!("ready http://{}", emitter.address);
    let emitted = emitter.serve(&stop).context("a system call failed")?;
    let Some(log) = &mut log else { return Ok(()) };
    write_log(log, &emitted).context("cannot write the log")
}

fn write_log(log: &mut impl Write, emitted: &[Emitted]) -> io::Result<()> {
    for answer in emitted {
        serde_json::to_writer(&mut *log, answer)?;
        log.write_all(b"\n")?;
    }
    log.flush()
}

fn create(path: &Path) -> anyhow::Result<File> {
    File::create(path).with_context(|| format!("cannot write log `{}`", path.display()))
}

fn play(flags: &Flags) -> anyhow::Result<()> {
    let script = match &flags.script {
        Some(path) => Script::open(path)?,
        None => Script::steady(),
    };
    let log: Box<dyn Write + Send> = match &flags.log {
        Some(path) => Box::new(create(path)?),
        None => Box::new(io::sink()),
    };
    let emitter = MockServer::start(flags.listen, script, log)
        .with_context(|| format!("cannot listen on `{}`", flags.listen))?;
    eprintln!("ready http://{}", emitter.address);
    if flags.detach {
        loop {
            // `park` may return without a reason, hence the loop.
            std::thread::park();
        }
    }
    io::copy(&mut io::stdin().lock(), &mut io::sink()).context("cannot read standard input")?;
    Ok(())
}
