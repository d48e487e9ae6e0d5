//! `redline-emitter`: a scripted server to test clients with. It measures nothing.

use std::fs::File;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use schema::exit::Exit;
use suite::emitter::script::Script;
use suite::emitter::server::Emitter;

/// Plays a script of server-sent events to whoever asks.
///
/// Prints one line `ready http://127.0.0.1:PORT` on standard error, then serves until its standard
/// input closes or it is ended. The script is JSON; its shape is documented in
/// `suite/src/emitter/script.rs`. Without a script every request gets a steady stream of tokens,
/// as many as it asks for.
#[derive(Debug, Parser)]
#[command(version)]
struct Flags {
    /// Script to play.
    #[arg(long, value_name = "FILE")]
    script: Option<PathBuf>,
    /// Write when it truly read and wrote, as JSON lines.
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Address to listen on; port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:0", value_name = "HOST:PORT")]
    listen: SocketAddr,
    /// Serve until ended, whatever standard input does.
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
    let script = match &flags.script {
        Some(path) => Script::open(path)?,
        None => Script::steady(),
    };
    let log: Box<dyn Write + Send> = match &flags.log {
        Some(path) => {
            let file = File::create(path)
                .with_context(|| format!("cannot write log `{}`", path.display()))?;
            Box::new(file)
        }
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
