//! Invalid input ends with one clear message and the right exit code, and leaves the tree
//! unchanged.

use std::path::Path;

use tests::clone::Clone;
use tests::program::{Ended, run};

/// Runs a campaign command in `clone` and asserts that the clone is unchanged.
#[track_caller]
fn refused(clone: &Clone, words: &[&str]) -> Ended {
    let before = clone.state();
    let ended = clone.run("redline-campaign", words);
    assert_eq!(before, clone.state(), "the refused command changed the clone:\n{}", ended.stderr);
    ended
}

#[test]
fn an_unknown_release_is_refused_with_the_known_ones() {
    let clone = Clone::of_this_repository(&[]);
    refused(&clone, &["release-bench", "v0.1.7"])
        .expect_code(2)
        .expect_said("v0.1.7")
        .expect_said("v0.9.1");
}

#[test]
fn a_folder_that_is_no_clone_is_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = tests::program::built("redline-campaign");
    let mut command =
        tests::program::command(&program, folder.path(), &["release-bench", "v0.9.2"]);
    // Keeps git from finding a repository above the temporary folder.
    command.env("GIT_CEILING_DIRECTORIES", folder.path().parent().unwrap_or(Path::new("/")));
    run(&mut command).expect_code(4).expect_said("clone");
    let left: Vec<_> = std::fs::read_dir(folder.path()).expect("readable").collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_shallow_clone_says_how_to_deepen_it() {
    let clone = Clone::of_this_repository(&["--depth", "1"]);
    refused(&clone, &["release-bench", "v0.9.1"]).expect_code(4).expect_said("--unshallow");
}

#[test]
fn a_detached_head_is_refused_before_anything_is_measured() {
    let clone = Clone::of_this_repository(&[]);
    clone.git(&["checkout", "--quiet", "--detach"]);
    refused(&clone, &["release-bench", "v0.9.2"]).expect_code(4).expect_said("detached");
}

#[test]
fn a_merge_under_way_is_refused_before_anything_is_measured() {
    let clone = Clone::of_this_repository(&[]);
    clone.git(&["checkout", "--quiet", "-b", "side", "HEAD~1"]);
    clone.git(&["commit", "--quiet", "--allow-empty", "--message", "side"]);
    clone.git(&["merge", "--quiet", "--no-ff", "--no-commit", "@{-1}"]);
    refused(&clone, &["release-bench", "v0.9.2"]).expect_code(4).expect_said("merge");
}

#[test]
fn a_tag_on_another_commit_is_refused() {
    let clone = Clone::of_this_repository(&[]);
    clone.git(&["tag", "--force", "v0.9.2", "HEAD"]);
    refused(&clone, &["release-bench", "v0.9.2"]).expect_code(2).expect_said("tag");
}

#[test]
fn an_unknown_model_or_scenario_is_refused_with_the_known_ones() {
    let clone = Clone::of_this_repository(&[]);
    for (flag, known) in
        [("--scenario", "balanced-lite"), ("--model", "smollm2-135m-instruct-q4_1")]
    {
        refused(&clone, &["release-bench", "v0.9.2", flag, "nothing-like-it"])
            .expect_code(2)
            .expect_said("nothing-like-it")
            .expect_said(known);
    }
}

#[test]
fn no_network_and_no_cache_says_what_to_do() {
    let clone = Clone::of_this_repository(&[]);
    let cache = tempfile::tempdir().expect("a temporary folder");
    let offline = tests::clone::offline_path(cache.path());
    let mut program = clone.program("redline-campaign", &["fetch"]);
    program.env("REDLINE_CACHE", cache.path().join("cache")).env("PATH", offline);
    run(&mut program).expect_code(4).expect_said("--input");
    let left = fixtures::files_under(&cache.path().join("cache"));
    assert!(left.is_empty(), "half-fetched files: {left:?}");
}

#[test]
fn a_given_input_with_another_hash_is_refused() {
    let clone = Clone::of_this_repository(&[]);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("model.gguf");
    std::fs::write(&file, b"GGUF").expect("writable");
    let given = format!("smollm2-135m-instruct-q4_1={}", file.display());
    let mut program = clone.program("redline-campaign", &["fetch", "--input", &given]);
    program.env("REDLINE_CACHE", folder.path().join("cache"));
    run(&mut program).expect_code(2).expect_said("b179c9523d0e6a0f");
    assert!(file.is_file(), "the user's own file was removed");
}

#[test]
fn a_disk_that_takes_no_more_is_named() {
    let Some(conversations) = fixtures::cached(fixtures::CONVERSATIONS_AS_PACKED) else {
        return;
    };
    let clone = Clone::of_this_repository(&[]);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let campaign = tests::program::built("redline-campaign");
    // A limit on file size fails writes as a full disk does, and needs no privileges. `fetch`
    // writes the repaired conversations into a new file, which exceeds the limit.
    let script = "trap '' XFSZ; ulimit -f 2048; exec \"$@\"";
    let given = format!("sharegpt-head={}", conversations.display());
    let words = ["-c", script, "sh", campaign.to_str().expect("UTF-8"), "fetch"];
    let words: Vec<&str> = words.into_iter().chain(["sharegpt-head", "--input", &given]).collect();
    let mut shell = tests::program::command(Path::new("sh"), &clone.root(), &words);
    let cache = folder.path().join("cache");
    shell.env("REDLINE_CACHE", &cache);
    let ended = run(&mut shell).expect_code(4);
    assert!(ended.stderr.contains("cache"), "the path is not named:\n{}", ended.stderr);
    let left = fixtures::files_under(&cache);
    assert!(left.iter().all(|path| path.extension().is_none_or(|e| e != "json")), "{left:?}");
}
