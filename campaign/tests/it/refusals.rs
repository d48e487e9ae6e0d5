//! Refusals: a request that cannot be measured is refused before anything is built, with a hint
//! about what to do instead.

use std::fs;
use std::process::Command;

use crate::scratch::Scratch;

/// A model without weights.
const SHAPE: &str = "licence = \"none\"\ntokenizer = \"talk\"\n[config]\nhidden_size = 64\narchitectures = [\"A\"]\n";

#[test]
fn an_unknown_release_lists_the_known_ones() {
    let scratch = Scratch::new();
    scratch
        .run(&["release-bench", "v9.9.9"])
        .expect(2, &["release `v9.9.9` is unknown; known are v0.9.2, v0.9.1"]);
    scratch
        .run(&["release-bench", "v0.9.3-dev"])
        .expect(2, &["hint: measure the working tree itself"]);
    scratch.run(&["release-bench"]).expect(2, &["which release?"]);
}

#[test]
fn a_tag_that_points_elsewhere_stops_the_command() {
    let scratch = Scratch::new();
    scratch.git(&["tag", "v0.9.1", "HEAD~3"]);
    scratch.run(&["release-bench", "v0.9.1", "--dry-run"]).expect(0, &[]);
    scratch.git(&["tag", "v0.9.2", "HEAD"]);
    scratch
        .run(&["release-bench", "v0.9.2", "--dry-run"])
        .expect(2, &["tag `v0.9.2` points at", "the first commit with that version is"]);
}

#[test]
fn a_release_that_came_by_a_merge_is_the_merge() {
    let scratch = Scratch::new();
    scratch.git(&["checkout", "--quiet", "-b", "side", "HEAD~1"]);
    scratch.set_version("0.9.4");
    scratch.commit("version 0.9.4 on a side branch");
    scratch.git(&["checkout", "--quiet", "main"]);
    scratch.git(&["merge", "--quiet", "--no-ff", "-X", "theirs", "-m", "merge", "side"]);
    let merge = scratch.git(&["rev-parse", "--short=10", "HEAD"]);
    let shown = format!("v0.9.4, commit {}", merge.trim());
    scratch.run(&["release-bench", "v0.9.4", "--dry-run"]).expect(0, &[&shown]);
}

#[test]
fn a_shallow_clone_says_how_to_get_the_rest() {
    let scratch = Scratch::new();
    let shallow = scratch.fixtures().join("shallow");
    let from = format!("file://{}", scratch.root().display());
    let cloned = Command::new("git")
        .args(["clone", "--quiet", "--depth", "1", &from])
        .arg(&shallow)
        .status()
        .unwrap();
    assert!(cloned.success());
    let root = shallow.to_str().unwrap();
    scratch
        .run(&["release-bench", "v0.9.2", "--dry-run", "--root", root])
        .expect(4, &["does not reach back to release `v0.9.2`", "git fetch --unshallow"]);
}

#[test]
fn a_folder_without_history_is_no_clone() {
    let scratch = Scratch::new();
    fs::remove_dir_all(scratch.root().join(".git")).unwrap();
    scratch.run(&["release-bench", "v0.9.2"]).expect(4, &["is not a git clone", "git clone"]);
}

#[test]
fn a_detached_head_still_knows_its_releases() {
    let scratch = Scratch::new();
    scratch.git(&["checkout", "--quiet", "--detach"]);
    scratch.run(&["release-bench", "v0.9.1", "--dry-run"]).expect(0, &[]);
}

#[test]
fn unknown_pieces_are_named_with_the_known_ones() {
    let scratch = Scratch::new();
    for (args, needle) in [
        (["--model", "huge"], "the target has no model `huge`; it lists tiny"),
        (["--scenario", "nap"], "scenario `nap` is unknown; known are rung-lite, talk-lite"),
        (["--engine", "other"], "engine `other` is unknown; known are redline"),
        (["--target", "b200"], "target `b200` is unknown; known are cpu"),
        (["--executor", "cloud"], "executor `cloud` is unknown; known are local, slurm"),
        (["--baseline", "v0.9.2"], "baseline and candidate are both v0.9.2"),
    ] {
        let args: Vec<&str> = ["release-bench", "v0.9.2"].into_iter().chain(args).collect();
        scratch.run(&args).expect(2, &[needle]);
    }
}

#[test]
fn what_no_scheduler_could_be_told_is_refused() {
    let scratch = Scratch::new();
    for (args, needle) in [
        (["--slurm-option=--partition=p", "--yes"], "`--slurm-option` is for `--executor slurm`"),
        (["--executor=slurm", "--slurm-option=-p"], "`-p` is no long option of sbatch"),
        (["--executor=slurm", "--slurm-option=--array=1-9"], "a job is one list of blocks"),
        (["--executor=slurm", "--url=http://x"], "no scheduler is needed"),
    ] {
        let args: Vec<&str> = ["release-bench", "v0.9.2"].into_iter().chain(args).collect();
        scratch.run(&args).expect(2, &[needle]);
    }
}

#[test]
fn a_checkout_with_changes_is_not_overwritten() {
    let scratch = Scratch::new();
    let args = ["release-bench", "v0.9.2", "--repeats", "1"];
    scratch.run(&args).expect(0, &[]);
    let tree = scratch.root().join("target/releases/v0.9.2");
    fs::write(tree.join("engine/src/main.rs"), "fn main() {}").unwrap();
    scratch.run(&args).expect(4, &["has changes of its own", "git worktree remove --force"]);
    assert_eq!(fs::read_to_string(tree.join("engine/src/main.rs")).unwrap(), "fn main() {}");
}

#[test]
fn a_copied_clone_leaves_the_checkouts_of_the_first_alone() {
    let scratch = Scratch::new();
    let args = ["release-bench", "v0.9.2", "--repeats", "1"];
    scratch.run(&args).expect(0, &[]);
    let copy = scratch.fixtures().join("copy");
    let copied = Command::new("cp").arg("-a").arg(scratch.root()).arg(&copy).status().unwrap();
    assert!(copied.success());
    let index = scratch.root().join(".git/worktrees/v0.9.2/index");
    let before = fs::read(&index).unwrap();
    let root = copy.to_str().unwrap();
    let said = ["belongs to another clone", "rm -r "];
    scratch.run(&[&args[..], &["--root", root]].concat()).expect(4, &said);
    assert_eq!(fs::read(&index).unwrap(), before);
    fs::remove_dir_all(copy.join("target/releases/v0.9.2")).unwrap();
    scratch.run(&[&args[..], &["--root", root]].concat()).expect(0, &[]);
}

#[test]
fn a_checkout_that_vanished_is_made_again() {
    let scratch = Scratch::new();
    let args = ["release-bench", "v0.9.2", "--repeats", "1"];
    scratch.run(&args).expect(0, &[]);
    let tree = scratch.root().join("target/releases/v0.9.2");
    fs::remove_dir_all(&tree).unwrap();
    scratch.run(&args).expect(0, &[]);
    fs::remove_file(tree.join(".git")).unwrap();
    scratch.run(&args).expect(0, &[]);
}

#[test]
fn an_engine_that_makes_no_weights_up_is_not_asked_to() {
    let scratch = Scratch::new();
    scratch.write("suite/models/shape.toml", SHAPE);
    let engine = scratch.root().join("suite/engines/redline.toml");
    let text = fs::read_to_string(&engine).unwrap();
    let without = text.replace("random_weights = [\"--load-format\", \"random\"]\n", "");
    assert_ne!(without, text);
    fs::write(&engine, without).unwrap();
    scratch.write(
        "suite/targets/cpu.toml",
        "match = {}\nscenarios = [\"talk-lite\"]\nrepeats = 1\nmodels = [{ id = \"shape\", tp = 1 }]\n",
    );
    scratch.run(&["release-bench", "v0.9.2", "--dry-run"]).expect(
        2,
        &["`shape` has random weights, which engine `redline` cannot generate", "suite/engines"],
    );
}

#[test]
fn an_engine_without_a_chat_route_is_not_asked_to_chat() {
    let scratch = Scratch::new();
    let scenario = scratch.root().join("suite/scenarios/talk-lite.toml");
    let text = fs::read_to_string(&scenario).unwrap();
    let chat = text.replace("output = { ", "output = { chat = true, ");
    assert_ne!(chat, text);
    fs::write(&scenario, chat).unwrap();
    scratch.run(&["release-bench", "v0.9.2", "--dry-run"]).expect(0, &[]);
    let engine = scratch.root().join("suite/engines/redline.toml");
    let text = fs::read_to_string(&engine).unwrap();
    let without = text.replace("chat_route = \"/v1/chat/completions\"\n", "");
    assert_ne!(without, text);
    fs::write(&engine, without).unwrap();
    scratch.run(&["release-bench", "v0.9.2", "--dry-run"]).expect(
        2,
        &[
            "engine `redline` has no route for them",
            "`request.chat_route` in `suite/engines/redline",
        ],
    );
}

#[test]
fn a_given_input_that_does_not_exist_is_refused_at_once() {
    let scratch = Scratch::new();
    scratch
        .run(&["release-bench", "v0.9.2", "--input", "tiny=nowhere.gguf", "--dry-run"])
        .expect(2, &["`--input tiny=nowhere.gguf` names no file"]);
}
