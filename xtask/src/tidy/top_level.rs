//! Tidy rule for the top level of the tree: it holds the known files and folders only, so that a
//! result which a command wrote into the current folder is not committed by mistake.

use std::collections::BTreeSet;
use std::path::Path;

use super::{File, Finding};

/// Files and folders of the top level.
const KNOWN: &[&str] = &[
    ".cargo",
    ".ci",
    ".config",
    ".dockerignore",
    ".github",
    ".gitignore",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE",
    "README.md",
    "bench",
    "campaign",
    "clippy.toml",
    "deny.toml",
    "docs",
    "engine",
    "judge",
    "registry",
    "reports",
    "results",
    "rustfmt.toml",
    "schema",
    "site",
    "suite",
    "templates",
    "tests",
    "whole-file",
    "xtask",
];

/// Returns a finding for each file or folder of the top level that is not known.
pub fn check(files: &[File]) -> Vec<Finding> {
    let first = |file: &File| file.path.iter().next().map(|name| Path::new(name).to_owned());
    let names: BTreeSet<_> = files.iter().filter_map(first).collect();
    let unknown =
        names.into_iter().filter(|name| !KNOWN.iter().any(|known| name == Path::new(known)));
    let finding = |path| Finding {
        path,
        line: 0,
        message: "nothing else belongs to the top level: delete or move it, or list it in \
                  xtask/src/tidy/top_level.rs"
            .to_owned(),
    };
    unknown.map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::super::{file, messages};
    use super::*;

    #[test]
    fn a_result_at_the_top_level_is_named_once() {
        let files = [
            file("Cargo.toml", ""),
            file("alternation-20261128T101112Z.json", "{}"),
            file("docs/alternation-20261128T101112Z.json", "{}"),
            file("scratch/a.rs", ""),
            file("scratch/b.rs", ""),
        ];
        let found = messages(&check(&files));
        let names: Vec<&str> = found.iter().filter_map(|text| text.split(':').next()).collect();
        assert_eq!(names, ["alternation-20261128T101112Z.json", "scratch"]);
        assert!(found[0].contains("nothing else belongs to the top level"), "{found:?}");
    }
}
