//! Stand-in for the engine: listens on the given port, and misbehaves as `REDLINE_FAKE` says.
//! Compiled with `STAND_IN=peer` it is another engine, half as fast, and obeys `PEER_FAKE`.

use std::io::Write;
use std::net::TcpListener;
use std::process::{Command, exit};
use std::time::Duration;

const IS_PEER: bool = option_env!("STAND_IN").is_some();

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let after = |flag: &str| {
        let at = args.iter().position(|arg| arg == flag).expect("flag");
        args[at + 1].clone()
    };
    // A job on a cluster does not see the tests' own variables.
    let fixtures = std::env::var("FIXTURES").unwrap_or_else(|_| {
        let cache = std::env::var("REDLINE_CACHE").expect("REDLINE_CACHE");
        format!("{}/fixtures", cache.strip_suffix("/cache").expect("a scratch clone's cache"))
    });
    let mut pids = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(format!("{fixtures}/server.pids"))
        .expect("pids");
    writeln!(pids, "{}", std::process::id()).expect("pids");
    let mode = std::env::var(if IS_PEER { "PEER_FAKE" } else { "REDLINE_FAKE" });
    let mode = mode.unwrap_or_default();
    if args[1] == "bench" {
        return bench(&mode);
    }
    if args[1] == "perplexity" {
        return perplexity(&args);
    }
    // So much memory that a page more or less, which is up to the system, changes no verdict.
    let weights = vec![1_u8; 32 << 20];
    std::hint::black_box(&weights);
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
        "torn" if args.iter().any(|arg| arg == "--fast") => {
            let asked = format!("{fixtures}/asked");
            std::thread::spawn(move || loop {
                if std::fs::remove_file(&asked).is_ok() {
                    eprintln!("fatal: page table is torn");
                    exit(7);
                }
                std::thread::sleep(Duration::from_millis(10));
            });
        }
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
    if args.iter().any(|arg| arg == "--broken") {
        eprintln!("error: `--broken` is not supported");
        exit(2);
    }
    let has = |flag: &str| args.iter().any(|arg| arg == flag);
    let speed = match (has("--left"), has("--right")) {
        (true, true) => "both",
        (true, false) | (false, true) => "one",
        (false, false) if has("--fast") => "fast",
        (false, false) => env!("CARGO_PKG_VERSION"),
    };
    std::fs::write(format!("{fixtures}/speed"), speed).expect("speed");
    let port: u16 = after("--port").parse().expect("port");
    std::fs::write(format!("{fixtures}/speed-{port}"), speed).expect("speed");
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

/// Prints results like the engine's own benchmark tool.
fn bench(mode: &str) {
    if mode == "mute" {
        return println!("nothing to tell");
    }
    if mode == "no-bench" {
        eprintln!("warning: short of memory\nerror: cannot map the model");
        exit(9);
    }
    let rate = if IS_PEER { 100 } else { 200 };
    println!(
        r#"{{"model":"/a/path/model.gguf","device":"cpu","threads":2,"dtype":"int8",
            "prefill":[{{"tokens":512,"tokens_per_s":{rate},"limit_share":0.5}}],
            "decode":[{{"batch":1,"context":128,"tokens_per_s":{rate},"limit_share":null}}],
            "limits":{{"int8_ops_per_s":4e12,"bf16_flops_per_s":null,"f32_flops_per_s":1e12,
                "read_bytes_per_s":4e10}}}}"#
    );
}

/// Prints a perplexity like the engine's own tool; the text file must exist.
fn perplexity(args: &[String]) {
    std::fs::read_to_string(&args[3]).expect("text");
    if IS_PEER {
        return eprintln!("[1]21.5,[2]20.2\nFinal: PPL = 20.00 +/- 0.1");
    }
    let is_f32 = args.iter().any(|arg| arg == "f32");
    println!(r#"{{"perplexity":{}}}"#, if is_f32 { 19.0 } else { 20.08 });
}
