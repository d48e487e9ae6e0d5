//! SHA-256 of a checkpoint's weights, computed in the background while they load, so that start-up
//! does not wait for it.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread;

use sha2::{Digest as _, Sha256};

/// SHA-256 of a checkpoint's weights that a background thread computes, or the reason why it could
/// not. Clones share the result.
#[derive(Debug, Clone)]
pub struct Digest(Arc<OnceLock<Result<String, String>>>);

impl Digest {
    /// Starts to compute the SHA-256 of weight files in the background. For one file it is the
    /// file's own SHA-256; for several, the SHA-256 of the lines `<sha256>  <file name>\n` in the
    /// order of file names, as `sha256sum` prints them.
    pub fn of_files(mut paths: Vec<PathBuf>) -> Self {
        paths.sort_by(|a, b| a.file_name().cmp(&b.file_name()));
        Self::spawn(move || match paths.as_slice() {
            [path] => file_sha256(path),
            _ => {
                let mut list = String::new();
                for path in &paths {
                    let name = path.file_name().unwrap_or_default().to_string_lossy();
                    list.push_str(&format!("{}  {name}\n", file_sha256(path)?));
                }
                Ok(hex(Sha256::digest(list).as_ref()))
            }
        })
    }

    /// Starts to compute the SHA-256 that identifies random weights, in the background: that of the
    /// two lines `random <seed>` and the SHA-256 of the file `config`. A GGUF file is hashed as a
    /// whole, since shapes come from its header.
    pub fn of_random(config: &Path, seed: u64) -> Self {
        let config = config.to_owned();
        Self::spawn(move || {
            let line = format!("random {seed}\n{}\n", file_sha256(&config)?);
            Ok(hex(Sha256::digest(line).as_ref()))
        })
    }

    fn spawn(compute: impl FnOnce() -> io::Result<String> + Send + 'static) -> Self {
        let digest = Self(Arc::default());
        let writer = digest.clone();
        // Detached: a caller that never waits for the digest does not wait for the thread either.
        thread::spawn(move || writer.0.set(compute().map_err(|err| err.to_string())));
        digest
    }

    /// Waits until the SHA-256 of the weights is computed and returns it in lower-case hex.
    ///
    /// # Errors
    /// Returns the reason if a file could not be opened or read to its end.
    pub fn wait(&self) -> Result<String, String> {
        self.0.wait().clone()
    }
}

/// Returns the SHA-256 of the file at `path` in lower-case hex.
fn file_sha256(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hex(hasher.finalize().as_ref())),
            n => hasher.update(&buffer[..n]),
        }
    }
}

/// Returns the lower-case hexadecimal digits of `bytes`.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
