//! Lookup of a model on this machine: in a folder, in a .gguf file, or by its hub id in the local
//! Hugging Face cache.

use std::fs;
use std::path::{Path, PathBuf};

use super::CheckpointError;
use super::file::read_text;

/// Limit on the size in bytes of a file of the hub cache that holds a commit, which has 40 digits.
const REFERENCE_BYTES_MAX: u64 = 4 << 10;

/// Model found on this machine: its id and the location of its files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelSource {
    /// Id of the model: its hub id, or the name of its folder, or of its GGUF file without the
    /// extension.
    pub id: String,
    /// Commit of the model's hub repository; `None` if the model was not found in the hub cache.
    pub revision: Option<String>,
    /// Location and layout of the model's files.
    pub files: ModelFiles,
}

/// Layout of a model's files on this machine, with their path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelFiles {
    /// Model in the Hugging Face layout: path of the folder that has its `config.json`, in which
    /// weights are looked up as safetensors and the tokenizer as `tokenizer.json`.
    Folder(PathBuf),
    /// Model in GGUF: path of the file, which holds configuration, weights and tokenizer.
    Gguf(PathBuf),
}

impl ModelSource {
    /// Finds the model `name` on this machine: the path of a folder or file, or `org/model` or
    /// `org/model@revision` in `cache`, the folder that [`hub_cache`] returns; without a `cache`
    /// only paths are looked up.
    ///
    /// # Errors
    /// Fails if no such model is on this machine, or if its folder in the cache has no
    /// `config.json` and several GGUF files.
    pub fn find(name: &str, cache: Option<&Path>) -> Result<Self, CheckpointError> {
        let path = Path::new(name);
        if path.is_file() {
            let id = stem(path);
            return Ok(Self { id, revision: None, files: ModelFiles::Gguf(path.to_owned()) });
        }
        if path.join("config.json").is_file() {
            // A path such as `.` gets its folder's real name as id.
            let id = path.canonicalize().as_deref().map_or_else(|_| stem(path), stem);
            return Ok(Self { id, revision: None, files: ModelFiles::Folder(path.to_owned()) });
        }
        let searched = match cache {
            None => String::new(),
            Some(cache) => {
                if let Some(found) = in_cache(name, cache)? {
                    return Ok(found);
                }
                format!(" `{}`", cache.display())
            }
        };
        Err(CheckpointError::NotFound { name: name.to_owned(), searched })
    }
}

/// Returns the folder of the Hugging Face hub cache as Hugging Face's libraries determine it:
/// `HF_HUB_CACHE`, else `HF_HOME/hub`, else `huggingface/hub` in `XDG_CACHE_HOME` or `~/.cache`.
/// `variable` reads an environment variable. None if all of these variables and `HOME` are unset or
/// empty.
pub fn hub_cache(variable: impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("HF_HUB_CACHE")
        .or_else(|| set("HF_HOME").map(|home| home.join("hub")))
        .or_else(|| set("XDG_CACHE_HOME").map(|cache| cache.join("huggingface/hub")))
        .or_else(|| set("HOME").map(|home| home.join(".cache/huggingface/hub")))
}

/// Returns the model id for the path of a model: the name of its folder, or of its GGUF file
/// without the extension.
fn stem(path: &Path) -> String {
    let name = if path.extension().is_some_and(|ending| ending == "gguf") {
        path.file_stem()
    } else {
        path.file_name()
    };
    name.unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

/// Finds the model with the hub id `name`, with or without `@revision`, in
/// `models--org--name/snapshots/<revision>` of the cache; none if it is not there, an error if it
/// has several GGUF files and no `config.json`.
fn in_cache(name: &str, cache: &Path) -> Result<Option<ModelSource>, CheckpointError> {
    let (id, wanted) = match name.split_once('@') {
        Some((id, revision)) => (id, Some(revision)),
        None => (name, None),
    };
    let is_id = id.split('/').count() == 2 && id.split('/').all(is_file_name);
    if !is_id || !wanted.is_none_or(is_file_name) {
        return Ok(None);
    }
    let folder = cache.join(format!("models--{}", id.replace('/', "--")));
    // A branch or tag is a file that holds its commit; a commit names its snapshot directly.
    let reference = folder.join("refs").join(wanted.unwrap_or("main"));
    let reference = read_text(&reference, REFERENCE_BYTES_MAX);
    let revision = match (reference, wanted) {
        (Ok(revision), _) => revision.trim().to_owned(),
        (Err(_), Some(wanted)) => wanted.to_owned(),
        (Err(_), None) => return Ok(None),
    };
    if !is_file_name(&revision) {
        return Ok(None);
    }
    let snapshot = folder.join("snapshots").join(&revision);
    let files = if snapshot.join("config.json").is_file() {
        ModelFiles::Folder(snapshot)
    } else {
        match gguf_files(&snapshot).as_slice() {
            [] => return Ok(None),
            [only] => ModelFiles::Gguf(only.clone()),
            several => {
                let reason =
                    format!("it holds {} .gguf files; hint: give the path of one", several.len());
                return Err(CheckpointError::unsupported(&snapshot, reason));
            }
        }
    };
    Ok(Some(ModelSource { id: id.to_owned(), revision: Some(revision), files }))
}

/// Returns the paths of the GGUF files in a folder, sorted; an empty list if the folder cannot be
/// read.
fn gguf_files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|ending| ending == "gguf"))
        .collect();
    paths.sort();
    paths
}

/// True if `name` is that of a file or folder alone: with separators or as `..`, it could lead to any
/// place of the machine.
pub fn is_file_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains(['/', '\\'])
}
