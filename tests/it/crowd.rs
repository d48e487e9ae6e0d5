//! Ten thousand concurrent streams, from Redline's load generator to Redline's server.

use std::fs;
use std::path::Path;

use fixtures::cached;
use nix::sys::resource::{Resource, getrlimit};
use schema::measurement::Measurement;
use tests::clone::repository;
use tests::program::{built, command, run};
use tests::server::Server;

/// SHA-256 of the tiny model's tokenizer, lower-case hex.
const TOKENIZER: &str = "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4";

const STREAMS: u64 = 10_000;
/// Number of tokens in each answer.
const TOKENS: u64 = 4;

/// Writes the suite's tiny model into `folder`: its configuration and tokenizer.
fn model(folder: &Path, tokenizer: &Path) {
    let file = repository().join("suite/models/tiny-random.toml");
    let text = fs::read_to_string(file).expect("the model's file");
    let file: toml::Table = text.parse().expect("TOML");
    let config = serde_json::to_string(&file["config"]).expect("JSON");
    fs::create_dir(folder).expect("writable");
    fs::write(folder.join("config.json"), config).expect("writable");
    fs::copy(tokenizer, folder.join("tokenizer.json")).expect("a copy");
}

/// Number of file descriptors that a process has open.
fn files_of(id: u32) -> usize {
    fs::read_dir(format!("/proc/{id}/fd")).expect("it runs").count()
}

#[test]
fn extra_ten_thousand_streams_are_all_answered_in_full() {
    let Some(tokenizer) = cached(TOKENIZER) else { return };
    let (_, files) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    // A process also needs descriptors for other things than its streams.
    if files < STREAMS + 500 {
        fixtures::skip("so many open files", "raise the limit of open files (ulimit -n)");
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    model(&folder.path().join("model"), &tokenizer);
    let scenario = format!(
        "question = \"Is every one of them answered?\"\nrev = 1\n\
         workload = {{ pack = \"random@vllm\", requests = {STREAMS}, seed = 1, input_tokens = 8, \
         output_tokens = {TOKENS}, range_ratio = 0.0 }}\n\
         warmup = {{ requests = 1, from = \"disjoint\" }}\narrival = {{ kind = \"all-at-once\" }}\n\
         output = {{ ignore_eos = true, temperature = 0.0 }}\ntier = \"lite\"\n"
    );
    fs::write(folder.path().join("crowd.toml"), scenario).expect("writable");
    let serve = ["serve", &at("model"), "--load-format", "random", "--port", "0"];
    let server = Server::start(&mut command(&built("redline"), folder.path(), &serve));
    let before = files_of(server.id());

    let engine = repository().join("suite/engines/redline.toml").display().to_string();
    let (tokenizer, out) = (tokenizer.display().to_string(), at("out.json"));
    let scenario = at("crowd.toml");
    let mut words = vec!["run", "--url", &server.url, "--engine", &engine, "--progress", "none"];
    words.extend(["--scenario", &scenario, "--tokenizer", &tokenizer, "--out", &out]);
    run(&mut command(&built("redline-bench"), folder.path(), &words)).expect_code(0);

    let text = fs::read_to_string(folder.path().join("out.json")).expect("a measurement");
    let measured: Measurement = serde_json::from_str(&text).expect("of the suite's schema");
    let counts = measured.counts.expect("counts");
    assert_eq!((counts.requests_ok, counts.requests_failed), (Some(STREAMS), Some(0)));
    assert_eq!(counts.output_tokens_reported, Some(STREAMS * TOKENS));
    tests::program::until("the server to let go of what it held", || {
        (files_of(server.id()) <= before).then_some(())
    });
}
