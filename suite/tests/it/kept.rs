//! Files that a run leaves on disk, however it ends.

use std::fs;
use std::process::{Command, Output};

use schema::measurement::Measurement;
use schema::run::{Status, ValidityVerdict};
use schema::samples::{End, Line, Sample};
use suite::mock_server::script::{Action, Answer, Scripted, When};

use crate::harness::wait_until;
use crate::workspace::{REQUESTS, Workspace, server, stderr, url};

pub fn lines(workspace: &Workspace) -> Vec<Line> {
    let text = fs::read_to_string(workspace.path("out.samples.jsonl")).unwrap_or_default();
    // The last line may be incomplete while it is being written.
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().map(|line| serde_json::from_str(line).expect("a line")).collect()
}

fn samples(lines: &[Line]) -> Vec<&Sample> {
    let mut found = Vec::new();
    for line in lines {
        if let Line::Sample(sample) = line {
            found.push(sample.as_ref());
        }
    }
    found
}

#[test]
fn every_sample_of_a_run_is_on_disk_with_its_times_in_order() {
    let workspace = Workspace::new();
    let (code, found) = workspace.run(&server(Vec::new()), &[]);
    assert_eq!(code, Some(0));
    let lines = lines(&workspace);
    let Some(Line::Head(head)) = lines.first() else { panic!("no head") };
    assert_eq!((head.scenario.as_str(), head.requests), ("short@1", REQUESTS));
    assert_eq!(head.manifest_sha256, found.scenario.manifest_sha256);
    let end = End { status: Status::Ok, samples: REQUESTS, failures: [].into() };
    assert_eq!(lines.last(), Some(&Line::End(end)));
    let samples = samples(&lines);
    let mut requests: Vec<u64> = samples.iter().map(|sample| sample.request).collect();
    requests.sort_unstable();
    assert_eq!(requests, [0, 1, 2, 3]);
    for sample in samples {
        let times = [
            Some(sample.scheduled_at_ns),
            sample.taken_at_ns,
            sample.sent_at_ns,
            sample.written_at_ns,
            sample.first_chunk_at_ns,
            sample.parsed_at_ns,
        ];
        assert!(times.iter().all(Option::is_some) && times.is_sorted(), "{sample:?}");
        assert!(sample.end_at_ns >= sample.first_chunk_at_ns.expect("checked"));
        assert_eq!((sample.gaps_ns.len(), sample.lags_ns.len()), (4, 5));
        assert_eq!(sample.chunk_tokens, [Some(1); 5]);
        assert_eq!((sample.prompt_tokens, sample.completion_tokens), (Some(8), Some(5)));
    }
}

/// Runs `run` with a limit on the size of its files, which fails writes as a full disk does.
fn run_within(workspace: &Workspace, kib: u64) -> Output {
    let exchange = server(Vec::new());
    let run = workspace.run_flags(&url(&exchange));
    let script = format!("trap '' XFSZ; ulimit -f {}; exec \"$@\"", kib * 2);
    let mut shell = Command::new("sh");
    shell.args(["-c", &script, "sh"]).arg(run.get_program()).args(run.get_args());
    shell.current_dir(workspace.path("")).output().expect("runs")
}

#[test]
fn a_run_whose_files_cannot_be_written_leaves_no_measurement_that_blames_it() {
    // The placeholder has space, the measurement has none.
    let workspace = Workspace::new();
    let full = run_within(&workspace, 4);
    assert_eq!(full.status.code(), Some(4), "{}", stderr(&full));
    assert!(stderr(&full).contains("cannot write `out.json`"), "{}", stderr(&full));
    assert_eq!(workspace.left_over(), ["out.samples.jsonl"], "every sample was written");
    // Not even the samples file can be begun.
    let workspace = Workspace::new();
    fs::create_dir(workspace.path("out.samples.jsonl")).expect("a folder");
    let full = run_within(&workspace, 4);
    assert_eq!(full.status.code(), Some(4), "{}", stderr(&full));
    assert!(stderr(&full).contains("cannot write samples"), "{}", stderr(&full));
    assert_eq!(workspace.left_over(), ["out.samples.jsonl"]);
}

#[test]
fn a_killed_run_says_that_it_is_partial_and_keeps_its_samples() {
    let stall = Answer {
        when: When { index: Some(2 + 3), ..When::default() },
        ..Answer::events(vec![Scripted::action(0, Action::Stall)])
    };
    let workspace = Workspace::new();
    let exchange = server(vec![stall]);
    let mut child = workspace.run_flags(&url(&exchange)).spawn().expect("runs");
    wait_until(|| samples(&lines(&workspace)).len() >= 3);
    // SIGKILL leaves the process no chance to clean up.
    child.kill().expect("still running");
    child.wait().expect("ended");
    let text = fs::read(workspace.path("out.json")).expect("there from the start");
    let found: Measurement = serde_json::from_slice(&text).expect("a measurement");
    assert_eq!((found.status, found.validity.verdict), (Status::Partial, ValidityVerdict::Invalid));
    let failure = found.failure.clone().expect("a failure");
    assert!(failure.message.contains("`out.samples.jsonl`"), "{}", failure.message);
    let lines = lines(&workspace);
    assert_eq!(samples(&lines).len(), 3);
    assert!(!lines.iter().any(|line| matches!(line, Line::End(_))));
}
