//! Tidy rule for dependencies between packages of the workspace: as ARCHITECTURE.md says, they
//! point downwards only.
//!
//! Licences and the homes of other crates are in `deny.toml`; `cargo xtask ci` also runs
//! `cargo-shear`, which finds dependencies without a use.

use toml::{Table, Value};

use super::{File, Finding};

/// Packages of the workspace, each with those that it may depend on. Development dependencies are
/// free: tests look at a package from outside.
const ALLOWED: &[(&str, &[&str])] = &[
    ("schema", &[]),
    ("whole-file", &[]),
    ("reports", &["schema"]),
    ("judge", &["reports", "schema"]),
    ("store", &["judge", "schema", "whole-file"]),
    ("engine-core", &[]),
    ("engine-weights", &["engine-core"]),
    ("engine-cpu", &["engine-core", "engine-weights"]),
    ("engine-cuda", &["engine-core", "engine-weights"]),
    ("engine-model", &["engine-core", "engine-weights"]),
    ("engine-schedule", &["engine-core"]),
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
    ("suite", &["judge", "reports", "schema", "whole-file"]),
    ("registry", &["judge", "reports", "schema", "store", "whole-file"]),
    ("site", &["judge", "reports", "schema", "store", "whole-file"]),
    ("campaign", &["judge", "reports", "schema", "store", "whole-file"]),
    ("bench", &["campaign", "judge", "reports", "samples", "schema"]),
    ("xtask", &[]),
    ("fixtures", &[]),
    ("tests", &["fixtures", "schema"]),
    ("samples", &["judge", "schema"]),
];

/// Reports dependencies that point upwards, packages that `ALLOWED` does not list, packages without
/// the workspace's lints, and manifests that are not TOML; not those of `tests/fuzz`.
pub fn check(files: &[File]) -> Vec<Finding> {
    let manifests = files.iter().filter(|file| {
        file.path.file_name().is_some_and(|name| name == "Cargo.toml") && !file.under("tests/fuzz")
    });
    manifests.flat_map(check_manifest).collect()
}

fn check_manifest(file: &File) -> Vec<Finding> {
    let text = file.text.as_deref().unwrap_or_default();
    let manifest: Table = match toml::from_str(text) {
        Ok(manifest) => manifest,
        Err(error) => return vec![file.finding(0, format!("no manifest: {error}"))],
    };
    let within =
        |table: &str, key: &str| manifest.get(table).and_then(|table: &Value| table.get(key));
    // The root's manifest declares the workspace and has no package.
    let Some(package) = within("package", "name").and_then(Value::as_str) else {
        return Vec::new();
    };
    let mut findings = Vec::new();
    if within("lints", "workspace").and_then(Value::as_bool) != Some(true) {
        findings.push(file.finding(0, "add `[lints]` with `workspace = true`"));
    }
    let Some((_, allowed)) = ALLOWED.iter().find(|(name, _)| *name == package) else {
        let message =
            format!("say in `xtask/src/tidy/dependencies.rs` what `{package}` may depend on");
        findings.push(file.finding(0, message));
        return findings;
    };
    let dependencies = manifest.get("dependencies").and_then(Value::as_table);
    for name in dependencies.into_iter().flat_map(Table::keys) {
        let is_member = ALLOWED.iter().any(|(member, _)| member == name);
        if is_member && !allowed.contains(&&**name) {
            let line = text.lines().position(|line| line.starts_with(&**name)).map_or(0, |n| n + 1);
            let message = format!("`{package}` must not depend on `{name}`: see ARCHITECTURE.md");
            findings.push(file.finding(line, message));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::{file, messages};
    use super::*;

    #[test]
    fn a_dependency_that_points_upwards_is_named_by_line() {
        let text = "[package]\nname = \"engine-cuda\"\n[dependencies]\nengine-core.workspace = true\n\
                    engine-cpu.workspace = true\n[lints]\nworkspace = true\n";
        assert_eq!(
            messages(&check(&[file("engine/cuda/Cargo.toml", text)])),
            ["engine/cuda/Cargo.toml:5: `engine-cuda` must not depend on `engine-cpu`: see \
              ARCHITECTURE.md"]
        );
    }

    #[test]
    fn dependencies_of_tests_are_free() {
        let text = "[package]\nname = \"engine\"\n[dev-dependencies]\nschema.workspace = true\n\
                    [lints]\nworkspace = true\n";
        assert_eq!(check(&[file("engine/Cargo.toml", text)]), []);
    }

    #[test]
    fn an_unknown_package_and_one_without_lints_are_named() {
        let found = check(&[file("new/Cargo.toml", "[package]\nname = \"new\"\n")]);
        assert_eq!(found.len(), 2, "{found:?}");
    }
}
