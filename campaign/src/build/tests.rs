//! Builds of several checkouts with one build directory.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use super::call_in;
use crate::places::Places;

/// Writes a workspace whose program prints what its library says; all files are a minute old.
fn workspace(tree: &Path, word: &str) {
    let files = [
        ("Cargo.toml", "[workspace]\nmembers = [\"app\", \"part\"]\nresolver = \"3\"\n".to_owned()),
        (
            "Cargo.lock",
            "version = 4\n\n[[package]]\nname = \"app\"\nversion = \"0.1.0\"\n\
             dependencies = [\n \"part\",\n]\n\n[[package]]\nname = \"part\"\nversion = \"0.1.0\"\n"
                .to_owned(),
        ),
        (
            "app/Cargo.toml",
            "[package]\nname = \"app\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\
             [dependencies]\npart = { path = \"../part\" }\n"
                .to_owned(),
        ),
        ("app/src/main.rs", "fn main() { print!(\"{}\", part::WORD); }\n".to_owned()),
        (
            "part/Cargo.toml",
            "[package]\nname = \"part\"\nversion = \"0.1.0\"\nedition = \"2024\"\n".to_owned(),
        ),
        ("part/src/lib.rs", format!("pub const WORD: &str = \"{word}\";\n")),
    ];
    let before = SystemTime::now() - Duration::from_secs(60);
    for (name, text) in files {
        let path = tree.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        fs::File::options().write(true).open(&path).unwrap().set_modified(before).unwrap();
    }
}

/// Builds the checkout `tree` as a release is built, and returns what its program prints.
fn built_word(places: &Places, tree: &Path, commit: &str) -> String {
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--quiet", "--offline", "--locked", "--workspace"]);
    let target = call_in(&mut cargo, places, tree, commit).unwrap();
    assert!(cargo.status().unwrap().success());
    let printed = Command::new(target.join("debug/app")).output().unwrap().stdout;
    String::from_utf8(printed).unwrap()
}

/// All checkouts exist before the first build, as after an earlier campaign.
#[test]
fn every_checkout_is_built_of_its_own_sources() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let places = Places::new(root, None);
    let trees = [root.to_owned(), places.release_tree("v1"), places.release_tree("v2")];
    for (tree, word) in trees.iter().zip(["user", "first", "second"]) {
        workspace(tree, word);
    }
    let build = |index: usize, commit| built_word(&places, &trees[index], commit);
    assert_eq!(build(1, "c1"), "first");
    assert_eq!(build(2, "c2"), "second");
    assert_eq!(build(0, ""), "user");
    assert_eq!(build(1, "c1"), "first");
    assert_eq!(build(0, ""), "user");
}
