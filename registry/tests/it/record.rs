//! Tests of `redline-results record` and `preflight` on real repositories: one commit of the new
//! files and nothing else, or no trace at all.

use std::fs;

use crate::scratch::{Scratch, place, repeats, write};
use samples::{Sample, reseal};
use schema::canonical::to_file_text;

#[test]
fn a_commit_holds_the_staged_results_and_nothing_else() {
    let scratch = Scratch::new();
    let records = repeats("v0.9.1", 1, 2);
    let staged = scratch.staged("overlay", &records);
    write(&staged.join("README.md"), "# Results\n");
    write(&staged.join("pages/redline/v0.9.1/cpu.md"), "page\n");
    let answer = scratch.results(&[
        "record",
        staged.to_str().unwrap(),
        "--message",
        "Record v0.9.1",
        "--json",
    ]);
    assert_eq!(answer.code, 0, "{answer:?}");
    let said: serde_json::Value = serde_json::from_str(&answer.out).unwrap();
    assert_eq!(said["commit"].as_str().unwrap(), scratch.git(&["rev-parse", "HEAD"]).trim());
    assert_eq!(said["branch"], "main");

    let mut expected: Vec<String> = records.iter().map(place).collect();
    expected.push("results/README.md".into());
    expected.push("results/pages/redline/v0.9.1/cpu.md".into());
    expected.sort();
    let mut committed: Vec<String> = scratch
        .git(&["show", "--format=", "--name-only", "HEAD"])
        .lines()
        .map(str::to_owned)
        .collect();
    committed.sort();
    assert_eq!(committed, expected);
    assert_eq!(said["paths"].as_array().unwrap().len(), expected.len());
    assert_eq!(
        scratch.git(&["log", "-1", "--format=%an <%ae>|%s"]).trim(),
        "Redline <redline@localhost>|Record v0.9.1"
    );
    assert_eq!(scratch.state(), ["", "", ""]);
    assert_eq!(
        fs::read_to_string(scratch.path(&place(&records[0]))).unwrap(),
        to_file_text(&records[0]).unwrap()
    );
    scratch.git(&["fsck", "--strict"]);
}

#[test]
fn the_configured_user_is_the_author() {
    let scratch = Scratch::new();
    scratch.git(&["config", "user.name", "Grace"]);
    scratch.git(&["config", "user.email", "grace@example.org"]);
    assert_eq!(scratch.record(&scratch.staged("o", &repeats("v0.9.1", 1, 1))).code, 0);
    assert_eq!(
        scratch.git(&["log", "-1", "--format=%an <%ae>"]).trim(),
        "Grace <grace@example.org>"
    );
}

#[test]
fn what_the_user_staged_and_changed_stays_as_it_was() {
    let scratch = Scratch::new();
    scratch.write("kept.txt", "1\n");
    scratch.write("gone.txt", "1\n");
    scratch.git(&["add", "."]);
    scratch.git(&["commit", "--quiet", "--message", "Second"]);
    // Files that are staged and then changed again, staged only, changed only, deleted, renamed,
    // new, or marked as intended to add.
    scratch.write("kept.txt", "2\n");
    scratch.git(&["add", "kept.txt"]);
    scratch.write("kept.txt", "3\n");
    scratch.write("staged.txt", "new\n");
    scratch.git(&["add", "staged.txt"]);
    scratch.git(&["rm", "--quiet", "gone.txt"]);
    scratch.git(&["mv", "src/main.rs", "src/lib.rs"]);
    scratch.write("untracked.txt", "x\n");
    scratch.write("intended.txt", "x\n");
    scratch.git(&["add", "--intent-to-add", "intended.txt"]);
    let before = scratch.state();
    assert!(before.iter().all(|part| !part.is_empty()));

    let answer = scratch.record(&scratch.staged("o", &repeats("v0.9.1", 1, 3)));
    assert_eq!(answer.code, 0, "{answer:?}");
    assert_eq!(scratch.state(), before);
    let committed = scratch.git(&["show", "--format=", "--name-only", "HEAD"]);
    assert!(committed.lines().all(|path| path.starts_with("results/")), "{committed}");
    // The user's own commit goes through afterwards and reverts nothing.
    scratch.git(&["commit", "--quiet", "--message", "Mine"]);
    assert_eq!(scratch.files().iter().filter(|path| path.starts_with("results/")).count(), 3);
}

#[test]
fn a_registry_of_its_own_begins_with_its_first_record() {
    let scratch = Scratch::unborn();
    let answer = scratch.results(&["preflight"]);
    assert_eq!((answer.code, answer.out.contains("\"commit\": null")), (0, true), "{answer:?}");
    assert_eq!(scratch.record(&scratch.staged("o", &repeats("v0.9.1", 1, 1))).code, 0);
    assert_eq!(scratch.git(&["rev-list", "--count", "HEAD"]).trim(), "1");
    assert_eq!(scratch.state(), ["", "", ""]);
}

#[test]
fn recording_twice_changes_nothing() {
    let scratch = Scratch::new();
    let staged = scratch.staged("o", &repeats("v0.9.1", 1, 2));
    assert_eq!(scratch.record(&staged).code, 0);
    let head = scratch.git(&["rev-parse", "HEAD"]);
    let again = scratch.record(&staged);
    assert_eq!((again.code, again.out.starts_with("nothing new")), (0, true), "{again:?}");
    assert_eq!(scratch.git(&["rev-parse", "HEAD"]), head);
    assert_eq!(scratch.state(), ["", "", ""]);
}

#[test]
fn files_that_a_killed_writer_put_in_place_are_taken_up() {
    let scratch = Scratch::new();
    let records = repeats("v0.9.1", 1, 2);
    scratch.write(&place(&records[0]), &to_file_text(&records[0]).unwrap());
    let leftover = place(&records[1]).replace("/01", "/.01") + ".tmp-1";
    scratch.write(&leftover, "{\"half\":");
    let answer = scratch.record(&scratch.staged("o", &records));
    assert_eq!(answer.code, 0, "{answer:?}");
    assert_eq!(scratch.state()[0], format!("?? {leftover}\n"));
    let check = scratch.results(&["check"]);
    assert_eq!(check.code, 0, "{check:?}");
    assert!(check.out.contains(".tmp-1: left behind by a writer"), "{}", check.out);
}

#[test]
fn a_repository_that_cannot_take_a_commit_is_told_apart() {
    type Spoil = fn(&Scratch);
    let cases: &[(&str, Spoil, i32, &str)] = &[
        ("detached", |s| drop(s.git(&["checkout", "--quiet", "--detach"])), 4, "HEAD is detached"),
        ("index lock", |s| s.write(".git/index.lock", ""), 4, "another git program holds"),
        ("merge", |s| conflict(s, "merge"), 4, "a merge is under way"),
        ("cherry-pick", |s| conflict(s, "cherry-pick"), 4, "a cherry-pick is under way"),
        ("rebase", |s| conflict(s, "rebase"), 4, "HEAD is detached"),
        (
            "a page",
            |s| s.write("results/pages/redline/v1/x.md", "mine"),
            4,
            "pages/redline/v1/x.md",
        ),
        ("rendered", |s| s.write("results/README.md", "mine\n"), 4, "`results/README.md`"),
        ("results is a file", |s| s.write("results", ""), 2, "is a symbolic link or no folder"),
        (
            "results is a link",
            |s| std::os::unix::fs::symlink("src", s.path("results")).unwrap(),
            2,
            "is a symbolic link or no folder",
        ),
        (
            "no repository",
            |s| fs::remove_dir_all(s.path(".git")).unwrap(),
            2,
            "is not a git repository",
        ),
        ("bare", |s| drop(s.git(&["config", "core.bare", "true"])), 2, "is a bare repository"),
        (
            "signed",
            |s| drop(s.git(&["config", "commit.gpgsign", "true"])),
            4,
            "asks for signed commits",
        ),
        (
            "large files",
            |s| s.write(".gitattributes", "results/**/*.json filter=lfs -text\n"),
            4,
            "as it is: `filter=lfs`",
        ),
        (
            "line ends",
            |s| drop(s.git(&["config", "core.autocrlf", "true"])),
            4,
            "as it is: `core.autocrlf=true`",
        ),
        ("no index", |s| s.write(".git/index", "garbage"), 4, "git failed"),
    ];
    for (name, spoil, code, message) in cases {
        let scratch = Scratch::new();
        let staged = scratch.staged("o", &repeats("v0.9.1", 1, 1));
        spoil(&scratch);
        for answer in [scratch.results(&["preflight"]), scratch.record(&staged)] {
            assert_eq!(answer.code, *code, "{name}: {answer:?}");
            assert!(answer.err.contains(message), "{name}: {answer:?}");
            assert!(answer.out.is_empty(), "{name}: {answer:?}");
        }
        assert!(!scratch.path("results/runs").exists(), "{name} left files behind");
    }
}

/// Leaves a git operation unfinished, with a conflict.
fn conflict(scratch: &Scratch, operation: &str) {
    scratch.git(&["switch", "--quiet", "--create", "other"]);
    scratch.write("src/main.rs", "other\n");
    scratch.git(&["commit", "--quiet", "--all", "--message", "Other"]);
    scratch.git(&["switch", "--quiet", "main"]);
    scratch.write("src/main.rs", "main\n");
    scratch.git(&["commit", "--quiet", "--all", "--message", "Main"]);
    assert!(!scratch.try_git(&[operation, "other"]).status.success());
}

#[test]
fn a_folder_inside_a_repository_is_answered_with_its_root() {
    let scratch = Scratch::new();
    let inside = scratch.path("src");
    let answer = scratch.command(&[]).args(["preflight"]).output().unwrap();
    assert_eq!(answer.status.code(), Some(2), "flags before the command are wrong use");
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_redline-results"))
        .args(["preflight", "--registry", inside.to_str().unwrap()])
        .output()
        .unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        (output.status.code(), err.contains("hint: name its root")),
        (Some(2), true),
        "{err}"
    );
}

#[test]
fn hooks_are_not_run_and_it_says_so() {
    let scratch = Scratch::new();
    scratch.write(".git/hooks/pre-commit", "#!/bin/sh\nexit 1\n");
    let answer = scratch.results(&["preflight"]);
    assert!(answer.out.contains("hooks are not run: pre-commit"), "{answer:?}");
    let answer = scratch.record(&scratch.staged("o", &repeats("v0.9.1", 1, 1)));
    assert_eq!((answer.code, answer.err.contains("hooks are not run")), (0, true), "{answer:?}");
}

#[test]
fn every_unsound_file_is_named_at_once_and_nothing_is_written() {
    let scratch = Scratch::new();
    let records = repeats("v0.9.1", 1, 6);
    let staged = scratch.staged("o", &records);
    let at = |index: usize| staged.join(schema::path::of_run(&records[index]).unwrap());
    // A record that was edited by hand.
    let text = fs::read_to_string(at(0)).unwrap();
    fs::write(at(0), text.replace("\"requests_ok\": 32", "\"requests_ok\": 31")).unwrap();
    // A record that was cut short.
    fs::write(at(1), &text[..text.len() / 2]).unwrap();
    // A record of a later schema.
    fs::write(at(2), text.replace("run.v1", "run.v9")).unwrap();
    // A record at the path of another release.
    let moved = at(3).to_str().unwrap().replace("v0.9.1", "v0.9.3");
    write(moved.as_ref(), &fs::read_to_string(at(3)).unwrap());
    fs::remove_file(at(3)).unwrap();
    // A record whose figures contradict its stored findings.
    let mut flattered = records[4].clone();
    flattered.metrics.as_mut().unwrap().output_tokens_per_s = Some(9e9);
    flattered.record_sha256 = schema::canonical::record_sha256(&flattered).unwrap();
    fs::write(at(4), to_file_text(&flattered).unwrap()).unwrap();
    // A stray file, a link, a record of a working tree, a record with a path of the machine.
    write(&staged.join("notes.txt"), "x");
    std::os::unix::fs::symlink("/etc/passwd", staged.join("pages.md")).unwrap();
    let mut local =
        Sample { serial: 50, release: "v0.9.2-dev".into(), ..Sample::default() }.record();
    local.server.as_mut().unwrap().argv = Some(vec!["/home/ada/model.gguf".into()]);
    scratch.staged("o", &[reseal(local)]);

    let answer = scratch.record(&staged);
    assert_eq!((answer.code, answer.out.as_str()), (2, ""), "{answer:?}");
    for part in [
        "S03",
        "S01",
        "S12",
        "v0.9.3",
        "E06 is stored as passed, recomputed as broken",
        "notes.txt",
        "pages.md",
        "release is `v0.9.2-dev`",
        "`server.argv` holds a path of the machine",
        "8 of the overlay's files are unsound, nothing was recorded",
    ] {
        assert!(answer.err.contains(part), "no `{part}` in {}", answer.err);
    }
    assert!(!scratch.path("results").exists());
    assert_eq!(scratch.state(), ["", "", ""]);
}

#[test]
fn a_committed_record_is_never_replaced_and_an_id_is_used_once() {
    let scratch = Scratch::new();
    let record = Sample::default().record();
    assert_eq!(scratch.record(&scratch.staged("first", std::slice::from_ref(&record))).code, 0);
    let mut other = record.clone();
    other.hardware.kernel = Some("7.0".into());
    let answer = scratch.record(&scratch.staged("second", &[reseal(other)]));
    assert_eq!(answer.code, 2, "{answer:?}");
    assert!(answer.err.contains("S06"), "{answer:?}");
    let mut twin = record;
    twin.scenario.id = "thinking-lite".into();
    let answer = scratch.record(&scratch.staged("third", &[reseal(twin)]));
    assert_eq!((answer.code, answer.err.contains("S05")), (2, true), "{answer:?}");
    assert_eq!(scratch.git(&["rev-list", "--count", "HEAD"]).trim(), "2");
}

#[test]
fn a_file_of_the_users_is_not_written_over() {
    let scratch = Scratch::new();
    let records = repeats("v0.9.1", 1, 2);
    scratch.write(&place(&records[1]), "mine\n");
    let before = scratch.state();
    let answer = scratch.record(&scratch.staged("o", &records));
    assert_eq!(
        (answer.code, answer.err.contains("exists with other content")),
        (2, true),
        "{answer:?}"
    );
    assert_eq!(scratch.state(), before);
    assert!(!scratch.path(&place(&records[0])).exists(), "the other file stayed behind");
    assert_eq!(fs::read_to_string(scratch.path(&place(&records[1]))).unwrap(), "mine\n");
}

#[test]
fn rendered_files_are_replaced_and_records_stay() {
    let scratch = Scratch::new();
    let first = scratch.staged("first", &repeats("v0.9.1", 1, 1));
    write(&first.join("README.md"), "one\n");
    assert_eq!(scratch.record(&first).code, 0);
    let second = scratch.staged("second", &repeats("v0.9.2", 11, 1));
    write(&second.join("README.md"), "two\n");
    assert_eq!(scratch.record(&second).code, 0);
    assert_eq!(fs::read_to_string(scratch.path("results/README.md")).unwrap(), "two\n");
    assert_eq!(scratch.files().len(), 4);
    assert_eq!(scratch.state(), ["", "", ""]);
    assert_eq!(scratch.results(&["check"]).code, 0);
}

#[test]
fn writers_take_turns_and_no_commit_is_lost() {
    let scratch = Scratch::new();
    let folders: Vec<_> = (0..6_u64)
        .map(|n| scratch.staged(&format!("o{n}"), &repeats("v0.9.1", 100 * n + 1, 2)))
        .collect();
    let children: Vec<_> = folders
        .iter()
        .map(|staged| {
            let arguments = ["record", staged.to_str().unwrap(), "--message", "Record"];
            scratch.command(&arguments).spawn().unwrap()
        })
        .collect();
    // The user commits in the meantime.
    for turn in 0..5 {
        scratch.write("turn.txt", &turn.to_string());
        let _ = scratch.try_git(&["commit", "--quiet", "--message", "Turn", "--", "turn.txt"]);
    }
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let records = scratch.files().iter().filter(|path| path.starts_with("results/")).count();
    assert_eq!(records, 12);
    assert_eq!(scratch.state()[1], "", "nothing of the records is left in the index");
    assert_eq!(scratch.results(&["check"]).code, 0);
    scratch.git(&["fsck", "--strict"]);
}

#[test]
fn a_branch_that_stays_locked_leaves_no_trace() {
    let scratch = Scratch::new();
    scratch.write("staged.txt", "x");
    scratch.git(&["add", "."]);
    let before = scratch.state();
    scratch.write(".git/refs/heads/main.lock", "");
    let staged = scratch.staged("o", &repeats("v0.9.1", 1, 2));
    let answer = scratch.record(&staged);
    // The lock's owner may have been killed, so whoever deletes the file must see its name.
    let named = answer.err.contains("refs/heads/main.lock`\nhint: wait for it; delete the file");
    assert_eq!((answer.code, named), (4, true), "{answer:?}");
    assert_eq!(scratch.state(), before);
    assert!(!scratch.path("results").exists());
    fs::remove_file(scratch.path(".git/refs/heads/main.lock")).unwrap();
    assert_eq!(scratch.record(&staged).code, 0);
    assert_eq!(scratch.state(), before);
}

#[test]
fn a_linked_working_tree_commits_on_its_own_branch() {
    let scratch = Scratch::new();
    let linked = scratch.path("../linked");
    scratch.git(&["worktree", "add", "--quiet", "-b", "results", linked.to_str().unwrap()]);
    let staged = scratch.staged("o", &repeats("v0.9.1", 1, 1));
    let status = std::process::Command::new(env!("CARGO_BIN_EXE_redline-results"))
        .args(["record", staged.to_str().unwrap(), "--message", "Record"])
        .args(["--registry", linked.to_str().unwrap()])
        .status()
        .unwrap();
    assert!(status.success());
    assert_eq!(scratch.git(&["rev-list", "--count", "main"]).trim(), "1");
    assert_eq!(scratch.git(&["rev-list", "--count", "results"]).trim(), "2");
}
