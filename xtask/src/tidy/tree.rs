//! Tidy rules for the tree: size of files and of the whole tree, first key of scenario files.

use super::{File, Finding};

/// Largest size of a file in bytes, records excepted.
const FILE_BYTES_MAX: u64 = 256 * 1024;

/// Largest size of a record in bytes. A kernels record has an entry of 350 bytes for every op,
/// shape and instruction set.
const DATA_BYTES_MAX: u64 = 1024 * 1024;

/// Largest size of the whole tree in bytes, so that it stays quick to clone.
const TREE_BYTES_MAX: u64 = 40 * 1024 * 1024;

pub fn check(files: &[File]) -> Vec<Finding> {
    let mut findings: Vec<Finding> = files.iter().flat_map(check_file).collect();
    let total: u64 = files.iter().map(|file| file.bytes).sum();
    if total > TREE_BYTES_MAX {
        let message = format!("the tree holds {total} bytes, more than {TREE_BYTES_MAX}");
        findings.push(Finding { path: ".".into(), line: 0, message });
    }
    findings
}

fn check_file(file: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    let is_data = ["results", "tests/fixtures"].iter().any(|folder| file.under(folder));
    let bytes_max = if is_data { DATA_BYTES_MAX } else { FILE_BYTES_MAX };
    if file.bytes > bytes_max {
        let message = format!("{} bytes, more than {bytes_max}: keep it elsewhere", file.bytes);
        findings.push(file.finding(0, message));
    }
    let is_scenario = file.under("suite/scenarios");
    let first = file.text.as_deref().and_then(|text| text.lines().next()).unwrap_or_default();
    if is_scenario && !first.starts_with("question = ") {
        findings.push(file.finding(1, "a scenario's first key is the `question` it answers"));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::{file, messages};
    use super::*;

    #[test]
    fn a_scenario_begins_with_its_question() {
        let found = messages(&check(&[
            file("suite/scenarios/a.toml", "rev = 1\n"),
            file("suite/scenarios/b.toml", "question = \"How fast?\"\n"),
        ]));
        assert_eq!(
            found,
            ["suite/scenarios/a.toml:1: a scenario's first key is the `question` it answers"]
        );
    }

    #[test]
    fn a_large_file_is_named() {
        let of = |path, bytes| File { bytes, ..file(path, "") };
        assert_eq!(check(&[of("docs/picture.svg", FILE_BYTES_MAX + 1)]).len(), 1);
        assert_eq!(check(&[of("results/kernels/x.json", FILE_BYTES_MAX + 1)]).len(), 0);
        assert_eq!(check(&[of("results/kernels/x.json", DATA_BYTES_MAX + 1)]).len(), 1);
    }
}
