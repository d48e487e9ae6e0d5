//! Who may depend on whom, and under which licences.

use std::path::Path;

use anyhow::Result;

use super::{File, Finding};
use crate::shell::{Shell, cargo};

/// Workspace packages that each package may depend on (tests excepted).
const ALLOWED: &[(&str, &[&str])] = &[
    ("schema", &[]),
    ("audit", &["schema"]),
    ("engine", &[]),
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
    ("cudarc", &["engine"]),
    ("git2", &["registry"]),
    ("httparse", &["suite"]),
    ("minijinja", &["engine", "site"]),
    ("statrs", &["registry", "suite"]),
];

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
    manifests.flat_map(check_manifest).collect()
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

/// The package of a member's manifest; none for the workspace's own.
fn package_of(file: &File) -> Option<String> {
    let folder = file.path.parent()?;
    (folder.components().count() == 1).then(|| folder.display().to_string())
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
        let found = messages(&check(&[file("engine/Cargo.toml", text)]));
        assert_eq!(
            found,
            ["engine/Cargo.toml:2: `engine` must not depend on `schema`: see ARCHITECTURE.md"]
        );
    }

    #[test]
    fn a_dependency_stays_in_its_home() {
        let text = "[dependencies]\ngit2.workspace = true\n[lints]\nworkspace = true\n";
        let found = messages(&check(&[file("campaign/Cargo.toml", text)]));
        assert_eq!(found, ["campaign/Cargo.toml:2: `git2` belongs to `registry` alone"]);
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
