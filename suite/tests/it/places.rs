//! Places that a result may be written to: files, links, devices and pipes. Devices are named through
//! links, so that a client that replaces them harms the test alone.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::symlink;
use std::process::{Output, Stdio};

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use schema::measurement::Measurement;

use crate::workspace::{PLAN, Workspace, server, stderr, url};

/// Runs `run` with `--out NAME` and the flags of a scenario.
fn run_to(workspace: &Workspace, name: &str, extra: &[&str]) -> Output {
    let exchange = server(Vec::new());
    let mut command = workspace.bench();
    command.args(["run", "--url", &url(&exchange), "--progress", "none", "--out", name]);
    command.args(["--engine", "redline.toml", "--scenario", "short.toml"]);
    command.args(["--dataset", "rows.json", "--tokenizer", "tiny.json"]).args(extra);
    command.output().expect("runs")
}

fn link(workspace: &Workspace, name: &str, to: &str) {
    symlink(to, workspace.path(name)).expect("a link");
}

/// Target of the link `name`, or what stands in its place.
fn target(workspace: &Workspace, name: &str) -> String {
    let target = fs::read_link(workspace.path(name));
    target.map_or_else(|error| error.to_string(), |to| to.to_string_lossy().into_owned())
}

#[test]
fn a_full_device_is_an_error_and_stays_a_device() {
    let workspace = Workspace::new();
    link(&workspace, "full", "/dev/full");
    let saved = Workspace::new();
    let (code, _) = saved.run(&server(Vec::new()), &[]);
    assert_eq!(code, Some(0));
    let measurement = saved.path("out.json").to_string_lossy().into_owned();
    let plan: Vec<&str> = PLAN[..7].iter().copied().chain(["--out", "full"]).collect();
    let export = ["export", &measurement, "--format", "vllm-json", "--out", "full"];
    let commands = [&plan[..], &export]
        .map(|arguments| workspace.bench().args(arguments).output().expect("runs"));
    for output in commands.into_iter().chain([run_to(&workspace, "full", &[])]) {
        assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
        assert!(stderr(&output).contains("cannot write `full`"), "{}", stderr(&output));
    }
    assert_eq!(
        (target(&workspace, "full"), workspace.left_over()),
        ("/dev/full".into(), vec!["full".to_owned()])
    );
}

/// Commands that print a result, with their arguments; the measurement of `saved` is exported.
fn printing(saved: &Workspace, url: &str) -> Vec<Vec<String>> {
    let measurement = saved.path("out.json").to_string_lossy().into_owned();
    let run = ["--engine", "redline.toml", "--dataset", "rows.json", "--tokenizer", "tiny.json"];
    let run =
        [&["--url", url, "--progress", "none", "--scenario", "short.toml"][..], &run].concat();
    let serving = ["serving", "--base-url", url, "--tokenizer", "tiny.json", "--disable-tqdm"];
    let commands = [
        PLAN[..7].to_vec(),
        [&["run"][..], &run, &["--out", "m.json"]].concat(),
        [&["sweep"][..], &run, &["--concurrency", "2", "--out", "sweep"]].concat(),
        [&serving[..], &["--dataset-name", "random", "--num-prompts", "4"]].concat(),
        vec!["export", &measurement, "--format", "vllm-json"],
        vec!["audit", "rows.json"],
        vec!["probe", "--url", url, "--engine", "redline.toml"],
        vec!["completions", "bash"],
    ];
    commands.map(|words| words.into_iter().map(str::to_owned).collect()).into()
}

#[test]
fn a_full_standard_output_is_an_error_and_a_closed_one_is_not() {
    let (workspace, saved) = (Workspace::new(), Workspace::new());
    let exchange = server(Vec::new());
    assert_eq!(saved.run(&exchange, &[]).0, Some(0));
    for arguments in printing(&saved, &url(&exchange)) {
        let to = |stdout: Stdio| {
            let mut command = workspace.bench();
            command.args(&arguments).env_remove("OPENAI_API_KEY");
            command.stdout(stdout).stderr(Stdio::piped()).output().expect("runs")
        };
        let full = to(File::create("/dev/full").expect("a device").into());
        assert_eq!(full.status.code(), Some(4), "{arguments:?}: {}", stderr(&full));
        let said = "error: cannot write to standard output: No space left";
        assert!(stderr(&full).contains(said), "{arguments:?}: {}", stderr(&full));
        let (reader, writer) = io::pipe().expect("a pipe");
        drop(reader);
        let (closed, read) = (to(writer.into()), to(Stdio::null()));
        assert_eq!(closed.status.code(), read.status.code(), "{arguments:?}: {}", stderr(&closed));
        assert!(!stderr(&closed).contains("panicked"), "{arguments:?}: {}", stderr(&closed));
    }
}

#[test]
fn a_measurement_goes_to_the_null_device_and_the_table_to_the_user() {
    let workspace = Workspace::new();
    link(&workspace, "null", "/dev/null");
    let output = run_to(&workspace, "null", &["--export", "sglang-jsonl=v.json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(String::from_utf8_lossy(&output.stdout).contains("verdict"));
    assert_eq!(target(&workspace, "null"), "/dev/null");
    let mut left = workspace.left_over();
    left.sort();
    assert_eq!(left, ["null", "v.json"], "no samples file beside a device");
}

#[test]
fn standard_output_gets_the_measurement_alone() {
    let workspace = Workspace::new();
    link(&workspace, "out", "/dev/stdout");
    let output = run_to(&workspace, "out", &[]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let found: Measurement = serde_json::from_slice(&output.stdout).expect("one document");
    assert!(found.counts.is_some() && stderr(&output).contains("verdict"));
    assert_eq!(target(&workspace, "out"), "/dev/stdout");
}

#[test]
fn a_pipe_gets_the_measurement() {
    let workspace = Workspace::new();
    let pipe = workspace.path("pipe");
    mkfifo(&pipe, Mode::S_IRWXU).expect("a pipe");
    let reader = std::thread::spawn(move || fs::read(pipe).expect("readable"));
    let output = run_to(&workspace, "pipe", &[]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = reader.join().expect("no panic");
    serde_json::from_slice::<Measurement>(&text).expect("one document");
    assert_eq!(workspace.left_over(), ["pipe"]);
}

#[test]
fn a_link_stays_and_the_file_behind_it_is_replaced() {
    let workspace = Workspace::new();
    workspace.write("kept.json", "old");
    link(&workspace, "link.json", "kept.json");
    let output = run_to(&workspace, "link.json", &[]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(target(&workspace, "link.json"), "kept.json");
    let text = fs::read(workspace.path("kept.json")).expect("readable");
    serde_json::from_slice::<Measurement>(&text).expect("a measurement");
}

#[test]
fn a_folder_is_no_place_for_a_measurement() {
    let workspace = Workspace::new();
    fs::create_dir(workspace.path("folder")).expect("a folder");
    let output = run_to(&workspace, "folder", &[]);
    assert_eq!(output.status.code(), Some(4));
    assert!(stderr(&output).contains("cannot write `folder`"), "{}", stderr(&output));
    assert_eq!(workspace.left_over(), ["folder"]);
}
