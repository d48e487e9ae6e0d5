//! Layout of `results/`: which path holds which kind of file. Knows names only, no files.

/// Kind of a file below `results/`, derived from its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FileKind {
    /// Record of a run that is not imported: `runs/.../ULID.json`.
    Run,
    /// Record of kernel benchmarks on a machine: `kernels/.../ULID.json`.
    Kernels,
    /// Campaign record: `campaigns/YEAR/ULID.json`.
    Campaign,
    /// Event record: `events/YEAR/ULID.toml`.
    Event,
    /// Record of a result published elsewhere: `imports/SOURCE/HASH/NUMBER.json`.
    Import,
    /// Markdown page rendered from the records: `pages/NAME.md` or `pages/ENGINE/RELEASE/NAME.md`.
    Page,
    /// `README.md` of the registry, rendered from the records.
    Readme,
    /// Temporary file that a stopped writer left behind; it is reported and never parsed.
    Leftover,
    /// File whose path is not part of the layout of `results/`.
    Stray,
}

/// Folders of `results/` that contain records, which are append-only.
pub const RECORD_FOLDERS: &[&str] = &["campaigns", "events", "imports", "kernels", "runs"];

impl FileKind {
    /// Returns the kind of the file at `path`, below `results/`.
    pub fn of(path: &str) -> Self {
        let parts: Vec<&str> = path.split('/').collect();
        let name = parts.last().copied().unwrap_or_default();
        if whole_file::is_temporary(name) {
            return Self::Leftover;
        }
        let stem = |end: &str| name.strip_suffix(end).is_some_and(|stem| !stem.is_empty());
        match (parts[0], parts.len()) {
            ("runs", 8) if stem(".json") => Self::Run,
            ("kernels", 5) if stem(".json") => Self::Kernels,
            ("campaigns", 3) if stem(".json") => Self::Campaign,
            ("events", 3) if stem(".toml") => Self::Event,
            ("imports", 4) if stem(".json") => Self::Import,
            ("pages", 2 | 4) if stem(".md") => Self::Page,
            ("README.md", 1) => Self::Readme,
            _ => Self::Stray,
        }
    }

    /// Returns true for records: the kinds of files that are append-only.
    pub fn is_record(self) -> bool {
        matches!(self, Self::Run | Self::Kernels | Self::Campaign | Self::Event | Self::Import)
    }

    /// Returns true for pages and `README.md`: the kinds of files that are rendered from the
    /// records.
    pub fn is_derived(self) -> bool {
        matches!(self, Self::Page | Self::Readme)
    }
}

/// Returns true when `path`, below `results/`, lies in one of the folders that contain records,
/// such as `runs/`; the file need not be a record.
pub fn in_record_folder(path: &str) -> bool {
    path.split_once('/').is_some_and(|(folder, _)| RECORD_FOLDERS.contains(&folder))
}

/// Filter of runs that are not imported, by parts of their paths, which repeat fields of their
/// records (rule S04). Without any field set, all of them pass. It is a coarse filter: callers
/// check the records themselves where it matters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunParts {
    /// Id of the engine whose runs pass the filter; `None` for all engines.
    pub engine: Option<String>,
    /// Id of the hardware whose runs pass the filter; `None` for all hardware.
    pub hardware: Option<String>,
    /// Id of the model whose runs pass the filter; `None` for all models.
    pub model: Option<String>,
    /// Scenario whose runs pass the filter, as `id` or `id@rev`; `None` for all scenarios.
    pub scenario: Option<String>,
}

impl RunParts {
    /// Returns true when `path`, below `results/`, is a run that passes the filter, or a folder
    /// that may contain one.
    pub fn admit(&self, path: &str) -> bool {
        let parts: Vec<&str> = path.split('/').collect();
        let is = |wanted: &Option<String>, index: usize| {
            let (Some(wanted), Some(part)) = (wanted, parts.get(index)) else { return true };
            part == wanted || part.split_once('@').is_some_and(|(id, _)| id == wanted)
        };
        parts[0] == "runs"
            && is(&self.engine, 1)
            && is(&self.hardware, 3)
            && is(&self.model, 4)
            && is(&self.scenario, 6)
    }
}

/// Returns the temporary name under which process `pid` writes a file before it renames it to
/// `name`.
pub fn leftover_name(name: &str, pid: u32) -> String {
    whole_file::temporary_name(name, &pid.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_tells_what_lies_there() {
        for (path, kind) in [
            ("runs/e/v1/hw/m/c/s@1/X.json", FileKind::Run),
            ("runs/e/v1/hw/m/c/s@1/X.toml", FileKind::Stray),
            ("runs/e/v1/hw/m/c/X.json", FileKind::Stray),
            ("runs/e/v1/hw/m/c/s@1/.X.json.tmp-17", FileKind::Leftover),
            ("runs/e/v1/hw/m/c/s@1/.X.json.tmp-", FileKind::Stray),
            ("kernels/e/v1/hw/X.json", FileKind::Kernels),
            ("campaigns/2026/X.json", FileKind::Campaign),
            ("events/2026/X.toml", FileKind::Event),
            ("imports/seed/01234567/0.json", FileKind::Import),
            ("pages/e/v1/hw.md", FileKind::Page),
            ("pages/README.md", FileKind::Page),
            ("pages/e/hw.md", FileKind::Stray),
            ("README.md", FileKind::Readme),
            ("notes.md", FileKind::Stray),
            ("", FileKind::Stray),
        ] {
            assert_eq!(FileKind::of(path), kind, "{path}");
        }
        assert_eq!(FileKind::of(&leftover_name("X.json", 9)), FileKind::Leftover);
    }

    #[test]
    fn parts_admit_runs_and_the_folders_above_them() {
        let some = |text: &str| Some(text.to_owned());
        let parts = RunParts { hardware: some("hw"), scenario: some("s"), ..RunParts::default() };
        for (path, admitted) in [
            ("runs", true),
            ("runs/e/v1", true),
            ("runs/e/v1/hw", true),
            ("runs/e/v1/other", false),
            ("runs/e/v1/hw/m/c/s@1/X.json", true),
            ("runs/e/v1/hw/m/c/s-lite@1/X.json", false),
            ("imports/x/01234567/0.json", false),
            ("runs2", false),
        ] {
            assert_eq!(parts.admit(path), admitted, "{path}");
        }
        let exact = RunParts { scenario: some("s@2"), ..RunParts::default() };
        assert!(exact.admit("runs/e/v1/hw/m/c/s@2") && !exact.admit("runs/e/v1/hw/m/c/s@1"));
    }
}
