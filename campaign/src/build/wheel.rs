//! Wheel of an engine's Python package that is no release, such as one that was built from a pull
//! request: its name, version and hash, and its copy in the cache. It installs nothing.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use zip::ZipArchive;

use super::requirements::is_same_package;
use crate::catalog::Engine;
use crate::files::{FileError, temp_near};
use crate::inputs::cache::{Cache, sha256_file};
use crate::stop::{Stop, wrong_use};

/// Largest number of bytes that are read of a wheel's metadata, whose first lines have name and
/// version.
const METADATA_BYTES_MAX: u64 = 1 << 20;
/// Number of hex digits of a wheel's hash that the printed plan shows.
const DIGITS: usize = 10;

/// Wheel that is measured in place of a release of its package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wheel {
    /// Path of the file as the user gave it.
    path: PathBuf,
    /// Name of the file, from which installers read version and platform.
    pub file: String,
    /// Name of the package, as the wheel's metadata have it.
    pub name: String,
    /// Version, as the wheel's metadata have it.
    pub version: String,
    /// SHA-256 of the file, lower-case hex.
    pub sha256: String,
}

impl Wheel {
    /// Reads name and version of the wheel at `path`, and hashes it.
    ///
    /// # Errors
    /// The engine's file names no Python package; there is no file, or it is no wheel of that
    /// package; or it cannot be read.
    pub fn read(path: &Path, engine: &Engine) -> Result<Self, Stop> {
        let (id, shown) = (&engine.id, path.display());
        let Some(package) = &engine.file.package else {
            return Err(wrong_use!("`suite/engines/{id}.toml` names no Python package"));
        };
        if !path.is_file() {
            return Err(wrong_use!("`--candidate-wheel {shown}` names no file").with_hint(
                "a relative path begins at the folder in which the command is started",
            ));
        }
        let unsound = |why: &str| wrong_use!("`{shown}` is no wheel: {why}");
        let file = path.file_name().and_then(|file| file.to_str()).unwrap_or_default();
        if !is_file_name(file) {
            let form = "NAME-VERSION-PYTHON-ABI-PLATFORM.whl";
            return Err(unsound(&format!("the name of such a file is {form}")));
        }
        let metadata = metadata(path).map_err(|why| unsound(&why))?;
        let (Some(name), Some(version)) = (field(&metadata, "name"), field(&metadata, "version"))
        else {
            return Err(unsound("its metadata lack a name or a version"));
        };
        if !package.names.iter().any(|known| is_same_package(known, name)) {
            let names = package.names.join(" or ");
            return Err(wrong_use!("`{shown}` is a wheel of {name}, not of {names}"));
        }
        if !is_version(version) {
            return Err(unsound(&format!("`{version}` is no version")));
        }
        Ok(Self {
            path: path.to_owned(),
            file: file.to_owned(),
            name: name.to_owned(),
            version: version.to_owned(),
            sha256: sha256_file(path)?,
        })
    }

    /// Returns the wheel as part of a line of the printed plan: its file's name, with the beginning
    /// of its hash.
    pub fn shown(&self) -> String {
        format!("{} (SHA-256 {})", self.file, &self.sha256[..DIGITS])
    }

    /// Returns the path of the wheel's copy in the cache, whether or not it exists.
    pub fn place(&self, cache: &Cache) -> PathBuf {
        cache.place(&self.sha256, &self.file)
    }

    /// Copies the wheel into the cache, so that a later build cannot replace what is measured.
    ///
    /// # Errors
    /// The wheel cannot be read or has changed since its hash was taken, or the cache cannot be
    /// written.
    pub fn keep(&self, cache: &Cache) -> Result<(), Stop> {
        if cache.look_up(&self.sha256, &self.file)?.is_some() {
            return Ok(());
        }
        let place = self.place(cache);
        let mut temp = temp_near(&place)?;
        let mut source = File::open(&self.path).map_err(FileError::at("read", &self.path))?;
        io::copy(&mut source, &mut temp).map_err(FileError::at("write", &place))?;
        cache.store(temp, &self.sha256, &self.file)?;
        Ok(())
    }
}

/// Returns true for text that has the form of a version, which becomes a part of paths and of a
/// tool's arguments.
pub fn is_version(text: &str) -> bool {
    let fit = |byte: u8| byte.is_ascii_alphanumeric() || b".-+_".contains(&byte);
    text.starts_with(|first: char| first.is_ascii_alphanumeric()) && text.bytes().all(fit)
}

/// Returns true for the name of a wheel's file: name, version, perhaps a build number, and the tags
/// of Python, ABI and platform.
fn is_file_name(file: &str) -> bool {
    let parts = file.strip_suffix(".whl").map(|stem| stem.split('-').collect::<Vec<_>>());
    parts.is_some_and(|parts| {
        matches!(parts.len(), 5 | 6) && parts.iter().all(|part| !part.is_empty())
    })
}

/// Reads the metadata of the wheel at `path`, or says why they cannot be read.
fn metadata(path: &Path) -> Result<String, String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    let mut zip = ZipArchive::new(file).map_err(|error| error.to_string())?;
    let is_metadata =
        |name: &str| name.ends_with(".dist-info/METADATA") && name.matches('/').count() == 1;
    let name = zip.file_names().flatten().find(|name| is_metadata(name)).map(Cow::into_owned);
    let name = name.ok_or("it has no metadata")?;
    let member = zip.by_name(&name).map_err(|error| error.to_string())?;
    let mut bytes = Vec::new();
    member.take(METADATA_BYTES_MAX).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the value of a field in the head of a package's metadata; `None` where it is missing or
/// empty. A description follows the head after an empty line.
fn field<'a>(metadata: &'a str, name: &str) -> Option<&'a str> {
    let head = metadata.lines().take_while(|line| !line.trim().is_empty());
    let mut fields = head.filter_map(|line| line.split_once(':'));
    let (_, value) = fields.find(|(key, _)| key.eq_ignore_ascii_case(name))?;
    Some(value.trim()).filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_file_has_five_or_six_parts() {
        for name in [
            "vllm-0.11.1.dev3+g1a2b3c4.cu129-cp38-abi3-manylinux1_x86_64.whl",
            "lmdeploy-0.10.1-1-cp312-cp312-linux_x86_64.whl",
        ] {
            assert!(is_file_name(name), "{name}");
        }
        for name in ["vllm.whl", "vllm-0.11.tar.gz", "vllm--py3-none-any.whl", "a-1-b-c-d.zip"] {
            assert!(!is_file_name(name), "{name}");
        }
    }

    #[test]
    fn fields_are_read_from_the_head_alone() {
        let text = "Metadata-Version: 2.4\nname: vllm\nSummary:\n\nVersion: 9\n";
        assert_eq!(field(text, "Name"), Some("vllm"));
        assert_eq!(field(text, "Version"), None);
        assert_eq!(field(text, "Summary"), None);
    }
}
