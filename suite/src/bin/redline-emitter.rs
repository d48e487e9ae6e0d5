//! `redline-emitter`: mock server with known times, to test clients with. It measures nothing.

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
use schema::exit::Exit;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use suite::client::limits::allow_files;
use suite::emitter::paced::{Pace, PacedEmitter};
use suite::emitter::script::Script;
use suite::emitter::server::Emitter;

/// Mock LLM server that streams tokens at scripted times, to test clients with.
///
/// Prints one line `ready http://127.0.0.1:PORT` on standard error, then serves until its standard
/// input is closed or it is terminated. The script is JSON; `suite/src/emitter/script.rs` documents
/// its fields. Without a script, every request gets a steady stream of as many tokens as it asks
/// for.
#[derive(Debug, Parser)]
#[command(version)]
struct Flags {
    /// Script that defines the answers.
    #[arg(long, value_name = "FILE")]
    script: Option<PathBuf>,
    /// Instead of a script, answer every completion with as many tokens as it asks for: the first
    /// one FIRST_US microseconds after the request, the others GAP_US microseconds apart. One
    /// thread serves thousands of streams and occupies one core. The log is written on SIGTERM or
    /// SIGINT.
    #[arg(long, value_name = "FIRST_US:GAP_US", conflicts_with = "script")]
    pace: Option<Pace>,
    /// Write a log of the real read and write times as JSON lines: one line per event, or with
    /// `--pace` one per request.
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Address to listen on; port 0 selects a free port.
    #[arg(long, default_value = "127.0.0.1:0", value_name = "HOST:PORT")]
    listen: SocketAddr,
    /// Serve until terminated, even when standard input is closed.
    #[arg(long)]
    detach: bool,
}

fn main() -> ExitCode {
    match serve(&Flags::parse()) {
        Ok(()) => ExitCode::from(Exit::Well.code()),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(Exit::Environment.code())
        }
    }
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
            let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
            stop.store(true, Ordering::Relaxed);
        });
    }
    let mut log = flags.log.as_deref().map(create).transpose()?.map(BufWriter::new);
    // The number of clients is not known in advance, so raise the limit as far as possible.
    allow_files(u64::MAX, 0)?;
    let emitter = PacedEmitter::bind(flags.listen, pace)
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
    let emitter = Emitter::start(flags.listen, script, log)
        .with_context(|| format!("cannot listen on `{}`", flags.listen))?;
    eprintln!("ready http://{}", emitter.address);
    if flags.detach {
        loop {
            std::thread::park();
        }
    }
    io::copy(&mut io::stdin().lock(), &mut io::sink()).context("cannot read standard input")?;
    Ok(())
}
