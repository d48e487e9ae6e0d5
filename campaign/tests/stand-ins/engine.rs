//! A stand-in for the engine: it listens where it is told, and misbehaves as REDLINE_FAKE says.

use std::io::Write;
use std::net::TcpListener;
use std::process::{Command, exit};
use std::time::Duration;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let after = |flag: &str| {
        let at = args.iter().position(|arg| arg == flag).expect("flag");
        args[at + 1].clone()
    };
    let fixtures = std::env::var("FIXTURES").expect("FIXTURES");
    let mut pids = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(format!("{fixtures}/server.pids"))
        .expect("pids");
    writeln!(pids, "{}", std::process::id()).expect("pids");
    let mode = std::env::var("REDLINE_FAKE").unwrap_or_default();
    eprintln!("engine {} loads {}", env!("CARGO_PKG_VERSION"), args[2]);
    match mode.as_str() {
        "refuse" => {
            eprintln!("error: `--threads 9` is not supported");
            exit(2);
        }
        "crash" => panic!("cannot read {}", args[2]),
        "killed" => {
            let me = std::process::id().to_string();
            Command::new("kill").args(["-9", &me]).status().expect("kill");
        }
        "deaf" => loop {
            std::thread::sleep(Duration::from_secs(1));
        },
        "family" => {
            // A child that outlives SIGTERM, as a worker process might.
            let script = "trap '' TERM; echo $$ >> \"$FIXTURES/server.pids\"; while :; do sleep 0.1; done";
            Command::new("sh").args(["-c", script]).spawn().expect("sh");
        }
        "unlucky" => {
            let once = format!("{fixtures}/unlucky");
            if std::fs::File::create_new(once).is_ok() {
                eprintln!("error: cannot bind: Address already in use (os error 98)");
                exit(4);
            }
        }
        _ => {}
    }
    let port: u16 = after("--port").parse().expect("port");
    let listener = TcpListener::bind(("127.0.0.1", port)).expect("bind");
    eprintln!("ready http://127.0.0.1:{port}");
    for stream in listener.incoming() {
        drop(stream);
        if mode == "dies" {
            std::thread::sleep(Duration::from_millis(300));
            eprintln!("fatal: page table is torn");
            exit(7);
        }
    }
}
