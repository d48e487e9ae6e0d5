//! The folders of `results/`: which path holds what. Knows names only, no files.

/// What a file below `results/` is, by its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FileKind {
    /// A run that was measured here.
    Run,
    /// A machine's kernels.
    Kernels,
    /// A campaign.
    Campaign,
    /// An event.
    Event,
    /// A published figure of others.
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

/// Runs by parts of their paths, which repeat what their records say (rule S04); nothing given
/// means all of them. What it admits is asked again of the record where it matters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunParts {
    /// The engine's id.
    pub engine: Option<String>,
    /// Id of the hardware.
    pub hardware: Option<String>,
    /// The model's id.
    pub model: Option<String>,
    /// `id`, or `id@rev`.
    pub scenario: Option<String>,
}

impl RunParts {
    /// True when `path`, below `results/`, is that of such a run, or of a folder above one.
    #[must_use]
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
