//! Tests of `redline-results check`: every change of a committed record is found and named with
//! its differences; quality findings never decide.

use std::fs;

use crate::scratch::{Answer, Scratch, place, repeats};
use samples::{Sample, campaign_id, reseal};
use schema::canonical::{sha256_hex, to_file_text};
use schema::run::{IdsSource, RunRecord};

fn edit(scratch: &Scratch, path: &str) {
    let text = fs::read_to_string(scratch.path(path)).unwrap();
    fs::write(scratch.path(path), text.replace("\"cores\": 2", "\"cores\": 64")).unwrap();
}

fn commit(scratch: &Scratch) {
    scratch.git(&["commit", "--quiet", "--all", "--message", "Tidy up"]);
}

/// Asserts that the check fails and that its output contains all of `parts`.
fn unsound(scratch: &Scratch, parts: &[&str]) -> Answer {
    let answer = scratch.results(&["check"]);
    assert_eq!(answer.code, 2, "{answer:?}");
    for part in parts {
        assert!(answer.out.contains(part), "no `{part}` in\n{}", answer.out);
    }
    answer
}

#[test]
fn a_sound_registry_is_sound() {
    let (scratch, _) = Scratch::recorded();
    let answer = scratch.results(&["check"]);
    assert_eq!((answer.code, answer.out.as_str()), (0, "results: 3 runs\nstorage: sound\n"));
    assert_eq!(Scratch::unborn().results(&["check"]).out, "results: no records\nstorage: sound\n");
}

#[test]
fn an_edit_is_found_committed_or_not() {
    let (scratch, records) = Scratch::recorded();
    let path = place(&records[1]);
    edit(&scratch, &path);
    let what = "`hardware.cores` 2 to 64";
    unsound(&scratch, &[&records[1].id, "edited in the working tree", what, "S03"]);
    scratch.git(&["add", "."]);
    unsound(&scratch, &["edited in the working tree"]);
    commit(&scratch);
    unsound(&scratch, &["edited since", what]);
    // Later commits do not hide the change, and restoring the record resolves it.
    scratch.write("more.txt", "x");
    scratch.git(&["add", "."]);
    commit(&scratch);
    unsound(&scratch, &["edited since"]);
    scratch.git(&["checkout", "--quiet", "HEAD~2", "--", &path]);
    commit(&scratch);
    assert_eq!(scratch.results(&["check"]).code, 0);
}

#[test]
fn an_edit_with_its_hash_and_findings_made_anew_is_found() {
    let (scratch, records) = Scratch::recorded();
    let mut record = records[0].clone();
    record.hardware.cores = Some(64);
    let record = reseal(record);
    scratch.write(&place(&record), &to_file_text(&record).unwrap());
    commit(&scratch);
    let answer = unsound(&scratch, &["S06", "edited since", "`hardware.cores` 2 to 64"]);
    assert!(answer.out.contains("storage: 1 breach\n"), "only history knows: {}", answer.out);
}

#[test]
fn an_edit_that_was_staged_and_put_back_in_the_folder_is_found() {
    let (scratch, records) = Scratch::recorded();
    let path = place(&records[0]);
    let text = fs::read_to_string(scratch.path(&path)).unwrap();
    edit(&scratch, &path);
    scratch.git(&["add", "."]);
    fs::write(scratch.path(&path), text).unwrap();
    unsound(&scratch, &["another version of it is staged"]);
}

#[test]
fn a_deleted_or_moved_record_is_found() {
    let (scratch, records) = Scratch::recorded();
    let path = place(&records[2]);
    fs::remove_file(scratch.path(&path)).unwrap();
    unsound(&scratch, &["deleted from the working tree", "git restore"]);
    commit(&scratch);
    unsound(&scratch, &["deleted since", "git checkout"]);

    let (scratch, records) = Scratch::recorded();
    let path = place(&records[2]);
    let to = path.replace("v0.9.1", "v0.9.3");
    fs::create_dir_all(scratch.path(&to).parent().unwrap()).unwrap();
    scratch.git(&["mv", &path, &to]);
    commit(&scratch);
    unsound(&scratch, &["moved to `runs/redline/v0.9.3/", "S04", "its own fields say"]);
}

#[test]
fn history_is_followed_through_merges() {
    let (scratch, records) = Scratch::recorded();
    scratch.git(&["switch", "--quiet", "--create", "other"]);
    let other = repeats("v0.9.2", 50, 2);
    assert_eq!(scratch.record(&scratch.staged("b", &other)).code, 0);
    scratch.git(&["switch", "--quiet", "main"]);
    assert_eq!(scratch.record(&scratch.staged("a", &repeats("v0.9.3", 70, 2))).code, 0);
    scratch.git(&["merge", "--quiet", "--message", "Merge", "other"]);
    assert_eq!(scratch.results(&["check"]).code, 0);
    edit(&scratch, &place(&other[0]));
    edit(&scratch, &place(&records[0]));
    commit(&scratch);
    unsound(&scratch, &[&other[0].id, &records[0].id]);
}

#[test]
fn a_shallow_clone_is_checked_as_far_as_it_goes() {
    let (scratch, _) = Scratch::recorded();
    scratch.write("more.txt", "x");
    scratch.git(&["add", "."]);
    commit(&scratch);
    let from = format!("file://{}", scratch.repo().display());
    let shallow = scratch.path("../shallow");
    scratch.git(&["clone", "--quiet", "--depth", "1", &from, shallow.to_str().unwrap()]);
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_redline-results"))
        .args(["check", "--registry", shallow.to_str().unwrap()])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

#[test]
fn strays_links_repeated_ids_and_hostile_files_are_found_at_once() {
    let (scratch, records) = Scratch::recorded();
    let folder = place(&records[0]).rsplit_once('/').unwrap().0.to_owned();
    scratch.write(&format!("{folder}/notes.txt"), "x");
    scratch.write("results/remark.txt", "x");
    let id = |n: u64| format!("{folder}/{}.json", campaign_id(n));
    let hostile: [(u64, &str, &str); 8] = [
        (200, "", "S01"),
        (201, "[[[[", "S01"),
        (202, "null", "S02"),
        (203, "{\"schema\":\"run.v1\",\"schema\":\"run.v1\"}", "S01"),
        (204, "{\"schema\":\"run.v1\",\"id\":1e999}", "S01"),
        (205, "\u{1b}[2J\u{0}", "S01"),
        (206, &"[".repeat(200_000), "S01"),
        (207, "{\"schema\":\"../../run.v1\"}", "S02"),
    ];
    for (n, text, _) in hostile {
        scratch.write(&id(n), text);
    }
    std::os::unix::fs::symlink("/etc/passwd", scratch.path(&id(208))).unwrap();
    let mut twin = records[0].clone();
    twin.scenario.id = "thinking-lite".into();
    let twin = reseal(twin);
    scratch.write(&place(&twin), &to_file_text(&twin).unwrap());
    let mut hostile_path = records[0].clone();
    hostile_path.id = campaign_id(300);
    hostile_path.model.id = "../../..".into();
    scratch.write(&id(300), &to_file_text(&reseal(hostile_path)).unwrap());

    let answer =
        unsound(&scratch, &["notes.txt", "remark S09 remark.txt", "links are not followed"]);
    for (n, _, rule) in hostile {
        let line = format!("breach {rule} {}", id(n).trim_start_matches("results/"));
        assert!(answer.out.contains(&line), "no `{line}` in\n{}", answer.out);
    }
    assert!(answer.out.contains("S05"), "{}", answer.out);
    assert!(answer.out.contains("`model.id` is `../../..`, which cannot be a part of a path"));
    assert!(!answer.out.contains('\u{1b}'), "an escape of a file reached the terminal");
}

#[test]
fn json_reports_the_same() {
    let (scratch, records) = Scratch::recorded();
    edit(&scratch, &place(&records[1]));
    let answer = scratch.results(&["check", "--format", "json"]);
    assert_eq!(answer.code, 2);
    let report: serde_json::Value = serde_json::from_str(&answer.out).unwrap();
    let rules: Vec<&str> =
        report["storage"].as_array().unwrap().iter().map(|f| f["rule"].as_str().unwrap()).collect();
    assert_eq!(rules, ["S03", "S06"]);
    assert_eq!(report["files"]["runs"], 3);
}

#[test]
fn quality_is_a_badge_and_never_an_exit_code() {
    let scratch = Scratch::new();
    let mut wrong = Sample { serial: 1, ..Sample::default() }.record();
    wrong.metrics.as_mut().unwrap().output_tokens_per_s_peak = Some(36.0);
    let pasted = RunRecord { id: campaign_id(77), ..wrong.clone() };
    let records =
        [reseal(wrong), reseal(pasted), Sample { serial: 3, ..Sample::default() }.failed_record()];
    assert_eq!(scratch.record(&scratch.staged("o", &records)).code, 0);
    let answer = scratch.results(&["check"]);
    assert_eq!(answer.code, 0, "{answer:?}");
    for part in ["E36 2 runs", "the best second has 36.0 tokens", "E09 1 run", "storage: sound"] {
        assert!(answer.out.contains(part), "no `{part}` in\n{}", answer.out);
    }
}

#[test]
fn repeats_that_scatter_are_named_once_for_each_cell() {
    let scratch = Scratch::new();
    let run = |serial: u64, scenario: &str, speed: f64| {
        let scenario = scenario.to_owned();
        Sample { serial, seed: serial, scenario, speed, ..Sample::default() }.record()
    };
    let steady = [1.0, 1.01, 0.99].into_iter().zip(1..);
    let loose = [1.0, 1.2, 0.9].into_iter().zip(11..);
    let records: Vec<RunRecord> = steady
        .map(|(speed, serial)| run(serial, "balanced-lite", speed))
        .chain(loose.map(|(speed, serial)| run(serial, "thinking-lite", speed)))
        .collect();
    assert_eq!(scratch.record(&scratch.staged("o", &records)).code, 0);
    for _ in ["examined", "from the index"] {
        let answer = scratch.results(&["check"]);
        assert_eq!((answer.code, answer.out.contains("W09 1 run")), (0, true), "{answer:?}");
        let named = format!("{} output throughput varies by ", records[3].id);
        assert!(answer.out.contains(&named), "{}", answer.out);
        assert!(answer.out.contains(" % over 3 repeats"), "{}", answer.out);
    }
}

#[test]
fn repeats_that_answer_differently_are_named_once_for_each_cell_and_configuration() {
    let scratch = Scratch::new();
    let run = |serial: u64, scenario: &str, batch: u64, outputs: &str| {
        let flags = [("max-batch-size".to_owned(), batch.into())].into();
        let scenario = scenario.to_owned();
        let sample = Sample { serial, seed: serial, scenario, flags, ..Sample::default() };
        let mut record = sample.record();
        let correctness = record.correctness.as_mut().unwrap();
        correctness.tokens_sha256 = Some(sha256_hex(outputs.as_bytes()));
        reseal(record)
    };
    let (one, other) = ("balanced-lite", "thinking-lite");
    // A second scenario, configuration or source of ids is no repeat.
    let mut own = run(5, one, 128, "c");
    own.correctness.as_mut().unwrap().ids_source = Some(IdsSource::Retokenized);
    let steady = [run(1, one, 128, "a"), run(2, one, 128, "a"), run(3, other, 128, "b")];
    let apart = [run(4, one, 256, "d"), reseal(own)];
    let records: Vec<RunRecord> = steady.into_iter().chain(apart).collect();
    assert_eq!(scratch.record(&scratch.staged("o", &records)).code, 0);
    assert!(!scratch.results(&["check"]).out.contains("W20"));
    let unstable = [run(11, other, 128, "b"), run(12, other, 128, "e")];
    assert_eq!(scratch.record(&scratch.staged("p", &unstable)).code, 0);
    for _ in ["examined", "from the index"] {
        let answer = scratch.results(&["check"]);
        assert_eq!((answer.code, answer.out.contains("W20 1 run")), (0, true), "{answer:?}");
        let said = "3 repeats gave 2 different outputs for the 8 fixed prompts";
        assert!(answer.out.contains(&format!("{} {said}", records[2].id)), "{}", answer.out);
    }
}

#[test]
fn a_default_that_moved_is_named_and_a_flag_that_the_command_says_is_not() {
    let scratch = Scratch::new();
    let run = |serial: u64, release: &str, model: &str, flags: &[(&str, u64)], argv: &[&str]| {
        let flags = flags.iter().map(|(flag, value)| ((*flag).to_owned(), (*value).into()));
        let argv = argv.iter().map(|argument| (*argument).to_owned()).collect();
        let (release, model, flags) = (release.to_owned(), model.to_owned(), flags.collect());
        Sample { serial, seed: serial, release, model, flags, argv, ..Sample::default() }.record()
    };
    let moved = [("max-batch-size", 256), ("new-flag", 1)];
    let records = [
        run(1, "v0.9.2", "moved", &[], &[]),
        run(2, "v0.10.0", "moved", &moved, &[]),
        run(3, "v0.10.0", "moved", &moved, &[]),
        run(4, "v0.11.0", "moved", &moved, &[]),
        run(11, "v0.9.2", "said", &[], &[]),
        run(12, "v0.10.0", "said", &moved, &["--max-batch-size=256"]),
        run(21, "v0.9.2", "grown", &[], &[]),
        run(22, "v0.10.0", "grown", &[("new-flag", 1)], &[]),
    ];
    assert_eq!(scratch.record(&scratch.staged("o", &records)).code, 0);
    for _ in ["examined", "from the index"] {
        let answer = scratch.results(&["check"]);
        assert_eq!((answer.code, answer.out.contains("W08 1 run")), (0, true), "{answer:?}");
        let named = format!("{} `max-batch-size` is 256, was 128 in v0.9.2\n", records[1].id);
        assert!(answer.out.contains(&named), "{}", answer.out);
    }
}

#[test]
fn a_folder_without_git_is_checked_without_history() {
    let (scratch, _) = Scratch::recorded();
    fs::remove_dir_all(scratch.path(".git")).unwrap();
    let answer = scratch.results(&["check"]);
    assert_eq!(
        (answer.code, answer.out.contains("history was not checked")),
        (0, true),
        "{answer:?}"
    );
}

#[test]
fn records_on_a_detached_head_are_checked() {
    let (scratch, records) = Scratch::recorded();
    scratch.git(&["checkout", "--quiet", "--detach"]);
    assert_eq!(scratch.results(&["check"]).code, 0);
    edit(&scratch, &place(&records[0]));
    unsound(&scratch, &["edited in the working tree"]);
}
