//! Source distributions in engine files: the releases that are pinned, and how they are built.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Source distributions of an engine that is built with CMake. In `file`, `folder` and `cmake`,
/// `{version}` is replaced by a release's version and `{major}` by the number before its first point.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// Name of the Python package whose source distributions are downloaded and unpacked; no code of
    /// them runs before the build.
    pub package: String,
    /// File name of a release's source distribution.
    pub file: String,
    /// License of the source, for a person who reads this file; no program acts on it.
    pub licence: String,
    /// Folder inside the source that CMake configures.
    pub folder: String,
    /// CMake cache variables as `NAME=VALUE` with which the engine is configured.
    pub cmake: Vec<String>,
    /// Names of the programs that are built from the source; the first one is the server.
    pub programs: Vec<String>,
    /// Release that is built where none is named.
    pub newest: SourceRelease,
    /// Further releases that can be built, the newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub older: Vec<SourceRelease>,
}

/// Pinned source distribution of one release.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SourceRelease {
    /// Version of the package, without `v`.
    pub version: String,
    /// SHA-256 of the source distribution's file, lower-case hex.
    pub sha256: String,
}

/// Source distribution of one release, with all placeholders filled in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Distribution {
    /// Version of the package, without `v`.
    pub version: String,
    /// Source distribution as `name==version`.
    pub sdist: String,
    /// File name of the source distribution.
    pub file: String,
    /// SHA-256 of the source distribution's file, lower-case hex.
    pub sha256: String,
    /// Folder inside the source that CMake configures.
    pub folder: String,
    /// CMake cache variables as `NAME=VALUE`.
    pub cmake: Vec<String>,
    /// Names of the programs that are built; the first one is the server.
    pub programs: Vec<String>,
}

impl Source {
    /// Returns the versions of the pinned releases, the newest first.
    pub fn versions(&self) -> Vec<&str> {
        self.releases().map(|release| release.version.as_str()).collect()
    }

    /// Returns the source distribution of the newest release.
    pub fn newest(&self) -> Distribution {
        self.of(&self.newest)
    }

    /// Returns the source distribution of the release `named`, with or without `v`; `None` if it is
    /// not pinned.
    pub fn release(&self, named: &str) -> Option<Distribution> {
        let version = named.trim_start_matches('v');
        self.releases().find(|release| release.version == version).map(|release| self.of(release))
    }

    fn releases(&self) -> impl Iterator<Item = &SourceRelease> {
        std::iter::once(&self.newest).chain(&self.older)
    }

    fn of(&self, SourceRelease { version, sha256 }: &SourceRelease) -> Distribution {
        let major = version.split('.').next().unwrap_or(version);
        let fill = |text: &str| text.replace("{version}", version).replace("{major}", major);
        Distribution {
            version: version.clone(),
            sdist: format!("{}=={version}", self.package),
            file: fill(&self.file),
            sha256: sha256.clone(),
            folder: fill(&self.folder),
            cmake: self.cmake.iter().map(|setting| fill(setting)).collect(),
            programs: self.programs.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pinned_release_has_its_own_file_folder_and_build_number() {
        let release = |version: &str, sha256: &str| SourceRelease {
            version: version.to_owned(),
            sha256: sha256.to_owned(),
        };
        let source = Source {
            package: "x-bin".to_owned(),
            file: "x_bin-{version}.tar.gz".to_owned(),
            licence: "MIT".to_owned(),
            folder: "x_bin-{version}/x".to_owned(),
            cmake: vec!["NATIVE=ON".to_owned(), "BUILD_NUMBER={major}".to_owned()],
            programs: vec!["x-server".to_owned()],
            newest: release("12.0.1", "aa"),
            older: vec![release("11.0.0", "bb")],
        };
        assert_eq!(source.versions(), ["12.0.1", "11.0.0"]);
        assert_eq!(source.release("v12.0.1"), Some(source.newest()));
        let older = source.release("11.0.0").unwrap();
        assert_eq!((&*older.sdist, &*older.sha256), ("x-bin==11.0.0", "bb"));
        assert_eq!((&*older.file, &*older.folder), ("x_bin-11.0.0.tar.gz", "x_bin-11.0.0/x"));
        assert_eq!(older.cmake, ["NATIVE=ON", "BUILD_NUMBER=11"]);
        assert_eq!(source.release("v10.0.0"), None);
    }
}
