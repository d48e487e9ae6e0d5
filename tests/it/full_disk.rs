//! A disk that fills up during a campaign: the campaign ends with exit code 4, what was measured
//! stays unchanged, no run is blamed, and with space it continues where it stopped.

use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use fixtures::{CONVERSATIONS, MODEL, cached, files_under};
use serde_json::{Value, json};
use tests::clone::{Clone, path_with};
use tests::disk::Disk;
use tests::program::{Ended, built, wait, while_running};
use tests::scripted::Scripted;

/// Size of the disk in bytes: a little more than a node requires to be free before it measures.
const BYTES: u64 = 320 << 20;

/// Arguments of a campaign with two runs of ten sequential requests, on a server that is up.
fn words<'a>(url: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let words = ["release-bench", "--scenario", "ladder-lite-c1", "--repeats", "2", "--url", url];
    words.iter().chain(more).copied().collect()
}

/// JSON lines of all files with this name below the campaigns' folder.
fn lines(clone: &Clone, name: &str) -> Vec<Value> {
    let files = files_under(&clone.root().join("target/campaigns"));
    let texts = files.iter().filter(|path| path.ends_with(name)).map(std::fs::read_to_string);
    let texts: Vec<String> = texts.filter_map(Result::ok).collect();
    let lines = texts.iter().flat_map(|text| text.lines());
    lines.filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Number of steps of this kind that the campaign's node has logged.
fn steps(clone: &Clone, kind: &str) -> usize {
    lines(clone, "steps.jsonl").iter().filter(|step| step["step"] == kind).count()
}

/// Records of finished blocks on the disk: path and bytes.
fn finished_records(clone: &Clone) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = clone.root().join("target/campaigns");
    let steps = lines(clone, "steps.jsonl");
    let facts = steps.iter().filter_map(|step| step["files"].as_array()).flatten();
    let names: Vec<String> =
        facts.filter_map(|fact| Some(fact["path"].as_str()?.to_owned())).collect();
    let is_named = |path: &PathBuf| names.iter().any(|name| path.ends_with(name));
    let files = files_under(&folder).into_iter().filter(is_named);
    files.map(|path| (path.clone(), std::fs::read(path).expect("readable"))).collect()
}

fn ended(clone: &Clone, url: &str, more: &[&str]) -> Ended {
    let mut command = clone.program("redline-campaign", &words(url, more));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    wait(command.spawn().expect("it starts"), Duration::from_secs(120))
}

#[test]
fn a_disk_that_fills_up_in_mid_campaign_loses_nothing_and_the_campaign_goes_on() {
    let (Some(_), Some(_)) = (cached(MODEL), cached(CONVERSATIONS)) else { return };
    let clone = Clone::of_this_repository(&[]);
    let Some(disk) = Disk::mounted_at(&clone.root().join("target/campaigns"), BYTES) else {
        return;
    };
    let before = clone.state();
    let server =
        Scripted::answering(&[json!({"times": 0, "steady": {"first_us": 2000, "gap_us": 4000}})]);
    let mut command = clone.program("redline-campaign", &words(server.url(), &[]));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    while_running(&mut child, "the second launch", || {
        (steps(&clone, "block-done") == 1 && steps(&clone, "run-begun") == 2).then_some(())
    });
    let filler = disk.fill();
    let kept = finished_records(&clone);
    assert_eq!(kept.len(), 1, "one block was over: {kept:?}");

    let full = wait(child, Duration::from_secs(180)).expect_code(4);
    let said = full.stderr.to_lowercase();
    assert!(said.contains("no space left") || said.contains("no storage space"), "{said}");
    assert_eq!(clone.processes(), [], "a process is left");
    assert_eq!(finished_records(&clone), kept, "what was measured is as it was");
    assert!(clone.uncommitted_runs().iter().all(|(_, run)| run.failure.is_none()), "blamed");

    // A resume without space fails in the same way.
    let again = ended(&clone, server.url(), &["--resume"]).expect_code(4);
    assert!(!again.stderr.contains("panicked"), "{}", again.stderr);
    drop(filler);
    ended(&clone, server.url(), &["--resume"]).expect_code(0);
    let (runs, done) = (clone.uncommitted_runs(), finished_records(&clone));
    assert!(kept.iter().all(|file| done.contains(file)), "what was measured is as it was");
    let repeats: Vec<Option<u32>> =
        runs.iter().map(|(_, run)| Some(run.campaign.as_ref()?.repeat)).collect();
    assert!(runs.iter().all(|(_, run)| run.failure.is_none()), "{runs:?}");
    assert_eq!(repeats.len(), 2, "{repeats:?}");
    assert!(repeats.contains(&Some(1)) && repeats.contains(&Some(2)), "{repeats:?}");
    assert_eq!(before, clone.state());
    assert_eq!(clone.processes(), [], "a process is left");
}

/// Script in place of the load generator: no file of its runs may have more than 4 KiB, which fails
/// writes as a full disk does. The placeholder of a run is shorter, its measurement longer.
const NARROW: &str = "[ \"$1\" != run ] || { trap '' XFSZ; ulimit -f 8; }";

#[test]
fn a_measurement_that_cannot_be_written_is_the_disks_fault_and_no_run_is_blamed() {
    let (Some(_), Some(_)) = (cached(MODEL), cached(CONVERSATIONS)) else { return };
    let clone = Clone::of_this_repository(&[]);
    let tools = tempfile::tempdir().expect("a temporary folder");
    // The node's own files have all the space that they need.
    let bench = format!("{NARROW}\nexec '{}' \"$@\"", built("redline-bench").display());
    path_with(tools.path(), &[("redline-bench", &bench)]);
    let programs = tools.path().join("programs");
    for name in ["redline-results", "redline-site"] {
        symlink(built(name), programs.join(name)).expect("a link");
    }
    let server =
        Scripted::answering(&[json!({"times": 0, "steady": {"first_us": 2000, "gap_us": 1000}})]);
    let folder = programs.display().to_string();
    let full = ended(&clone, server.url(), &["--tools-dir", &folder]).expect_code(4);
    assert!(
        full.stderr.contains("cannot write") && full.stderr.contains("the disk of"),
        "{full:?}"
    );
    assert_eq!(clone.uncommitted_runs(), [], "a run is blamed");
    let files = files_under(&clone.root().join("target/campaigns"));
    let left =
        files.iter().filter(|path| path.parent().is_some_and(|at| at.ends_with("measurements")));
    let left: Vec<_> =
        left.filter(|path| path.extension().is_some_and(|end| end == "json")).collect();
    assert!(left.is_empty(), "placeholders are left: {left:?}");
    // With space, the campaign has all of its runs.
    ended(&clone, server.url(), &["--resume"]).expect_code(0);
    let runs = clone.uncommitted_runs();
    assert!(runs.len() == 2 && runs.iter().all(|(_, run)| run.failure.is_none()), "{runs:?}");
}
