//! Who may depend on whom, on nothing in vain, and under which licences.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::docs::normal;
use super::{File, Finding};
use crate::shell::{Shell, cargo};

/// Workspace packages that each package may depend on (tests excepted).
const ALLOWED: &[(&str, &[&str])] = &[
    ("schema", &[]),
    ("audit", &["schema"]),
    (
        "engine",
        &[
            "engine-core",
            "engine-weights",
            "engine-cpu",
            "engine-cuda",
            "engine-model",
            "engine-schedule",
        ],
    ),
    ("engine-core", &[]),
    ("engine-weights", &["engine-core"]),
    ("engine-cpu", &["engine-core", "engine-weights"]),
    ("engine-cuda", &["engine-core", "engine-weights"]),
    ("engine-model", &["engine-core", "engine-weights"]),
    ("engine-schedule", &["engine-core"]),
    ("suite", &["schema", "audit"]),
    ("registry", &["schema", "audit"]),
    ("site", &["schema", "audit", "registry"]),
    ("campaign", &["schema", "audit"]),
    ("xtask", &[]),
    ("tests", &["schema"]),
];

/// Dependencies that only these packages may name: one home for each thing.
const HOMES: &[(&str, &[&str])] = &[
    // The site serves its own preview with it (docs/decisions/0031-browser.md).
    ("axum", &["engine", "site"]),
    ("cudarc", &["engine-cuda"]),
    ("git2", &["registry"]),
    ("httparse", &["suite"]),
    ("minijinja", &["engine", "site"]),
    ("statrs", &["registry", "suite"]),
];

/// Packages that are a workspace of their own.
const NO_MEMBERS: &[&str] = &["engine-fuzz"];

/// Licences that may be linked. Each is permissive, and asks for no more than notice.
const LICENCES: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
    "LLVM-exception",
];

pub fn check(files: &[File]) -> Vec<Finding> {
    let manifests = files.iter().filter(|file| file.path.ends_with("Cargo.toml"));
    manifests
        .flat_map(|file| check_manifest(file).into_iter().chain(check_use(file, files)))
        .collect()
}

/// Dependencies that no file of their package names.
fn check_use(file: &File, files: &[File]) -> Vec<Finding> {
    let (Some(text), Some(_), Some(folder)) = (&file.text, package_of(file), file.path.parent())
    else {
        return Vec::new();
    };
    // Tests may include a module from the folder of another package.
    let own = files.iter().filter(|file| file.is_rust() && file.path.starts_with(folder));
    let included: Vec<PathBuf> = own.clone().flat_map(included_folders).collect();
    let others = files.iter().filter(|file| {
        file.is_rust() && included.iter().any(|folder| file.path.starts_with(folder))
    });
    let code = own.chain(others).filter_map(|file| file.text.as_deref());
    let is_edge = |c: char| !(c.is_alphanumeric() || c == '_');
    let words: BTreeSet<&str> = code.flat_map(|text| text.split(is_edge)).collect();
    let mut findings = Vec::new();
    let mut in_dependencies = false;
    for (index, line) in text.lines().enumerate() {
        if line.starts_with('[') {
            in_dependencies = line.ends_with("dependencies]");
        }
        // Notes, and lists over several lines, begin otherwise.
        let name = line.split(['.', ' ', '=']).next().unwrap_or_default();
        let is_name = name.starts_with(|c: char| c.is_ascii_alphanumeric());
        if in_dependencies && is_name && !words.contains(&*name.replace('-', "_")) {
            findings.push(file.finding(index + 1, format!("nothing uses `{name}`: leave it out")));
        }
    }
    findings
}

/// Folders of the modules that `file` includes by a path.
fn included_folders(file: &File) -> impl Iterator<Item = PathBuf> {
    let paths = file.text.as_deref().unwrap_or_default().split("#[path = \"").skip(1);
    let paths = paths.filter_map(|rest| rest.split('"').next());
    let folder = file.path.parent().unwrap_or(Path::new(""));
    paths.filter_map(move |path| Some(normal(&folder.join(path)).parent()?.to_owned()))
}

fn check_manifest(file: &File) -> Vec<Finding> {
    let (Some(text), Some(package)) = (&file.text, package_of(file)) else { return Vec::new() };
    let mut findings = Vec::new();
    if !text.contains("[lints]\nworkspace = true") {
        findings.push(file.finding(0, "add `[lints]` with `workspace = true`"));
    }
    let Some((_, allowed)) = ALLOWED.iter().find(|(name, _)| *name == package) else {
        let message =
            format!("say in `xtask/src/tidy/manifests.rs` what `{package}` may depend on");
        findings.push(file.finding(0, message));
        return findings;
    };
    let mut in_dependencies = false;
    for (index, line) in text.lines().enumerate() {
        if line.starts_with('[') {
            in_dependencies = line == "[dependencies]";
        }
        let name = line.split(['.', ' ', '=']).next().unwrap_or_default();
        if !in_dependencies || name.is_empty() {
            continue;
        }
        let is_member = ALLOWED.iter().any(|(member, _)| *member == name);
        if is_member && !allowed.contains(&name) {
            let message = format!("`{package}` must not depend on `{name}`: see ARCHITECTURE.md");
            findings.push(file.finding(index + 1, message));
        }
        let home = HOMES.iter().find(|(dependency, _)| *dependency == name);
        if let Some((_, homes)) = home.filter(|(_, homes)| !homes.contains(&package.as_str())) {
            let message = format!("`{name}` belongs to `{}` alone", homes.join("`, `"));
            findings.push(file.finding(index + 1, message));
        }
    }
    findings
}

/// The package of a member's manifest, named as its folders are; none for the workspace's own, and for
/// packages that are no members.
fn package_of(file: &File) -> Option<String> {
    let name = file.path.parent()?.to_str()?.replace('/', "-");
    let is_member = !name.is_empty() && !NO_MEMBERS.contains(&name.as_str());
    is_member.then_some(name)
}

/// Checks the licence of every crate that is compiled.
///
/// # Errors
/// Cargo cannot list the crates.
pub fn check_licences(shell: &Shell) -> Result<Vec<Finding>> {
    let listed = shell.read(
        &cargo(),
        &["tree", "--locked", "--workspace", "--prefix", "none", "--format", "{p}|{l}"],
    )?;
    let mut lines: Vec<&str> = listed.lines().map(|line| line.trim_end_matches(" (*)")).collect();
    lines.sort_unstable();
    lines.dedup();
    Ok(lines.into_iter().filter_map(licence_finding).collect())
}

fn licence_finding(line: &str) -> Option<Finding> {
    let (package, expression) = line.rsplit_once('|')?;
    if is_allowed(expression) {
        return None;
    }
    let name = package.split(' ').next().unwrap_or(package);
    let message = format!("`{name}` is licensed `{expression}`, which is not on the list in tidy");
    Some(Finding { path: Path::new("Cargo.lock").into(), line: 0, message })
}

/// An SPDX expression is allowed when each of its `AND` terms offers an allowed choice.
fn is_allowed(expression: &str) -> bool {
    let flat = expression.replace(['(', ')'], "").replace('/', " OR ");
    flat.split(" AND ").all(|term| {
        term.split(" OR ")
            .any(|choice| choice.split(" WITH ").all(|licence| LICENCES.contains(&licence.trim())))
    })
}

#[cfg(test)]
mod tests {
    use super::super::{file, messages};
    use super::*;

    #[test]
    fn the_engine_depends_on_no_member() {
        let text = "[dependencies]\nschema.workspace = true\n[lints]\nworkspace = true\n";
        let files = [file("engine/Cargo.toml", text), file("engine/src/lib.rs", "use schema;\n")];
        assert_eq!(
            messages(&check(&files)),
            ["engine/Cargo.toml:2: `engine` must not depend on `schema`: see ARCHITECTURE.md"]
        );
    }

    #[test]
    fn a_dependency_stays_in_its_home() {
        let text = "[dependencies]\ngit2.workspace = true\n[lints]\nworkspace = true\n";
        let files = [file("campaign/Cargo.toml", text), file("campaign/src/lib.rs", "use git2;\n")];
        assert_eq!(
            messages(&check(&files)),
            ["campaign/Cargo.toml:2: `git2` belongs to `registry` alone"]
        );
    }

    #[test]
    fn a_dependency_that_nothing_names_is_left_out() {
        let text = "[dependencies]\na-b.workspace = true\n[dev-dependencies]\nc = \"1\"\n\
                    [lints]\nworkspace = true\n";
        let files = [file("suite/Cargo.toml", text), file("suite/src/lib.rs", "use a_b::C;\n")];
        assert_eq!(
            messages(&check(&files)),
            ["suite/Cargo.toml:4: nothing uses `c`: leave it out"]
        );
    }

    #[test]
    fn a_licence_needs_one_allowed_choice_in_every_term() {
        for allowed in ["MIT", "MIT OR GPL-3.0", "MIT/Apache-2.0", "(MIT OR X) AND Unicode-3.0"] {
            assert!(is_allowed(allowed), "`{allowed}` was refused");
        }
        for refused in ["GPL-3.0", "MIT AND GPL-3.0", ""] {
            assert!(!is_allowed(refused), "`{refused}` was taken");
        }
    }
}
