//! Files that a run leaves on disk, however it ends.

use std::fs;

use schema::measurement::Measurement;
use schema::run::{Status, ValidityVerdict};
use schema::samples::{End, Line, Sample};
use suite::mock_server::script::{Action, Answer, Scripted, When};

use crate::harness::wait_until;
use crate::workspace::{REQUESTS, Workspace, server, url};

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
