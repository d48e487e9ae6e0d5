//! The testbed of an exchange: its folder, the cores of mock server and client, and the other
//! clients.

use std::fs::File;
use std::path::{Path, PathBuf};

use campaign::files::{FileError, read_text};
use campaign::stop::Stop;
use campaign::world::World;

/// Where the other clients are, as far as they are wanted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Peers {
    pub sglang: Option<SglangClient>,
    pub aiperf: Option<PathBuf>,
}

/// SGLang's client: an extension module, and the interpreter that loads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SglangClient {
    pub python: PathBuf,
    pub module: PathBuf,
}

/// Everything that exchanges share.
#[derive(Debug)]
pub struct Testbed<'a> {
    pub world: &'a World,
    /// Working folder. Each measurement overwrites the files of the previous one.
    pub dir: PathBuf,
    pub emitter_core: usize,
    pub client_core: usize,
    pub peers: Peers,
}

impl Testbed<'_> {
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Creates a file in the folder.
    ///
    /// # Errors
    /// The folder is not writable.
    pub fn create(&self, name: &str) -> Result<File, FileError> {
        let path = self.path(name);
        File::create(&path).map_err(FileError::at("write", &path))
    }
}

/// Reads a file with one JSON document per line.
///
/// # Errors
/// The file cannot be read or has another form.
pub fn read_lines<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Vec<T>, Stop> {
    let text = read_text(path)?;
    let lines = text.lines().map(serde_json::from_str).collect::<Result<Vec<T>, _>>();
    lines.map_err(|error| Stop::wrong_use(format!("`{}` cannot be read: {error}", path.display())))
}
