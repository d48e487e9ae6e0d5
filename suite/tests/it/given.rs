//! Files that a user names: devices without end, pipes without a writer, files of any length, and
//! files with something else in them.

use std::fs::File;
use std::os::unix::fs::symlink;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use serde_json::{Value, json};

use crate::workspace::{PLAN, Workspace, server, stderr, url};

#[test]
fn what_is_no_short_regular_file_is_refused_at_once_and_named() {
    let workspace = Workspace::new();
    symlink("/dev/zero", workspace.path("zero")).expect("a link");
    mkfifo(&workspace.path("pipe"), Mode::S_IRWXU).expect("a pipe");
    // It has no data, and more than fits into any memory.
    File::create(workspace.path("huge")).and_then(|file| file.set_len(1 << 42)).expect("a file");
    let exchange = server(Vec::new());
    let url = url(&exchange);
    let plan = ["plan", "--scenario", "short.toml", "--dataset", "rows.json", "--tokenizer"];
    let run = ["run", "--url", &url, "--engine", "redline.toml", "--tokenizer", "tiny.json"];
    for arguments in [
        [&plan[..2], &["FILE"]].concat(),
        [&plan[..4], &["FILE", "--tokenizer", "tiny.json"]].concat(),
        [&plan[..], &["FILE"]].concat(),
        vec!["probe", "--url", &url, "--engine", "FILE"],
        vec!["probe", "--url", &url, "--api-key-file", "FILE"],
        [&run[..], &["--plan", "FILE"]].concat(),
        [&["abort"][..], &run[1..], &["--plan", "FILE"]].concat(),
        [&run[..], &["--scenario", "short.toml", "--reference", "FILE"]].concat(),
        vec!["run", "--url", "https://127.0.0.1:9", "--ca-file", "FILE"],
        vec!["audit", "FILE"],
        vec!["export", "FILE", "--format", "vllm-json"],
    ] {
        for file in ["zero", "pipe", "huge"] {
            let named = arguments.iter().map(|word| if *word == "FILE" { file } else { word });
            let output = workspace.bench().args(named).output().expect("runs");
            let said = stderr(&output);
            assert_eq!(output.status.code(), Some(2), "{arguments:?} {file}: {said}");
            assert!(said.contains(&format!("`{file}`")), "{arguments:?}: {said}");
        }
    }
}

#[test]
fn a_file_whose_reader_waits_for_the_kernel_is_refused_at_once() {
    // It is a regular file by its mode, which root alone may open.
    let kernel = "/proc/kmsg";
    let code = if File::open(kernel).is_ok() { 2 } else { 4 };
    let workspace = Workspace::new();
    for words in [
        ["plan", "--scenario", "short.toml", "--dataset", "rows.json", "--tokenizer", kernel],
        ["plan", "--scenario", "short.toml", "--tokenizer", "tiny.json", "--dataset", kernel],
    ] {
        let output = workspace.bench().args(words).output().expect("runs");
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {said}");
        assert!(said.contains("`/proc/kmsg`"), "{words:?}: {said}");
    }
}

#[test]
fn a_tokenizer_on_which_its_library_panics_is_named() {
    let workspace = Workspace::new();
    let sound = std::fs::read_to_string(workspace.path("tiny.json")).expect("a tokenizer");
    let mut tokenizer: Value = serde_json::from_str(&sound).expect("JSON");
    tokenizer["pre_tokenizer"] = json!({"type": "FixedLength", "length": 0});
    workspace.write("tiny.json", &tokenizer.to_string());
    let output = workspace.bench().args(PLAN).output().expect("runs");
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    let last = said.lines().rfind(|line| line.starts_with("error: ")).unwrap_or_default();
    assert!(last.contains("`tiny.json`") && last.contains("its library panicked"), "{said}");
}

#[test]
fn of_a_file_given_by_mistake_little_is_shown() {
    let workspace = Workspace::new();
    workspace.write("secrets", &format!("\u{1b}[31m = {}", "s3cret".repeat(1 << 20)));
    for flag in ["--scenario", "--engine"] {
        let mut command = workspace.bench();
        command.args(["run", "--url", "http://127.0.0.1:9", flag, "secrets"]);
        let output = command.output().expect("runs");
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{} bytes", said.len());
        assert!(said.len() < 1000 && !said.contains('\u{1b}'), "{} bytes", said.len());
    }
    let long = "A".repeat(100_000);
    workspace.write("number.json", &format!("{{\"schema\": \"x\", \"counts\": \"{long}\"}}"));
    workspace.write("list.json", &format!("\"{long}\""));
    let exchange = server(Vec::new());
    let url = url(&exchange);
    let run = ["run", "--url", &url, "--tokenizer", "tiny.json"];
    let run = [&run[..], &["--engine", "redline.toml", "--plan"]].concat();
    for file in ["number.json", "list.json"] {
        for words in [&["export", "--format", "vllm-json"][..], &run[..]] {
            let output = workspace.bench().args(words).arg(file).output().expect("runs");
            let said = stderr(&output);
            assert_eq!(output.status.code(), Some(2), "{words:?}: {} bytes", said.len());
            assert!(said.len() < 1000 && said.contains(file), "{} bytes", said.len());
        }
    }
}
