//! The folders of `results/`: which path holds what. Knows names only, no files.

/// What a file below `results/` is, by its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FileKind {
    Run,
    Kernels,
    Campaign,
    Event,
    Import,
    /// Derived: rendered anew from the records.
    Page,
    /// Derived: `README.md`.
    Readme,
    /// Left behind by a writer that was stopped; never read.
    Leftover,
    /// Not part of the layout.
    Stray,
}

/// Folders whose files are only ever added.
pub const RECORD_FOLDERS: &[&str] = &["campaigns", "events", "imports", "kernels", "runs"];

impl FileKind {
    /// What the file at `path`, below `results/`, is.
    #[must_use]
    pub fn of(path: &str) -> Self {
        let parts: Vec<&str> = path.split('/').collect();
        let name = parts.last().copied().unwrap_or_default();
        if is_leftover(name) {
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

    /// True for files that are only ever added.
    #[must_use]
    pub fn is_record(self) -> bool {
        matches!(self, Self::Run | Self::Kernels | Self::Campaign | Self::Event | Self::Import)
    }

    /// True for files that are rendered from the records.
    #[must_use]
    pub fn is_derived(self) -> bool {
        matches!(self, Self::Page | Self::Readme)
    }
}

/// True when `path` lies in a folder of records.
#[must_use]
pub fn in_record_folder(path: &str) -> bool {
    path.split_once('/').is_some_and(|(folder, _)| RECORD_FOLDERS.contains(&folder))
}

/// The name under which a file is written before it is renamed to `name`.
#[must_use]
pub fn leftover_name(name: &str, pid: u32) -> String {
    format!(".{name}.tmp-{pid}")
}

fn is_leftover(name: &str) -> bool {
    let pid = name.strip_prefix('.').and_then(|rest| rest.rsplit_once(".tmp-"));
    pid.is_some_and(|(_, pid)| !pid.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit()))
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
}
