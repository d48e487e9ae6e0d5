//! Finds a model's tokenizer: a file, a folder, or a hub id in the local cache of Hugging Face's
//! libraries. Nothing is downloaded.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::bail;

const FILE: &str = "tokenizer.json";

/// Path of the tokenizer that `name` denotes. `variable` reads environment variables.
///
/// # Errors
/// No tokenizer is found under that name.
pub fn find(name: &str, variable: &dyn Fn(&str) -> Option<String>) -> anyhow::Result<PathBuf> {
    let path = Path::new(name);
    if path.is_file() {
        return Ok(path.to_owned());
    }
    if path.join(FILE).is_file() {
        return Ok(path.join(FILE));
    }
    let cache = cache(variable);
    match cache.as_deref().and_then(|cache| cached(name, cache)) {
        Some(found) => Ok(found),
        None => bail!(
            "`{name}` is neither a file nor a folder with a `{FILE}`{}\nhint: give one with \
             `--tokenizer`; a GGUF file works too, and nothing is downloaded",
            cache.map_or_else(String::new, |cache| format!(", nor in `{}`", cache.display()))
        ),
    }
}

/// Folder of the hub cache, found by the same environment variables as in Hugging Face's libraries.
fn cache(variable: &dyn Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("HF_HUB_CACHE")
        .or_else(|| set("HF_HOME").map(|home| home.join("hub")))
        .or_else(|| set("XDG_CACHE_HOME").map(|cache| cache.join("huggingface/hub")))
        .or_else(|| set("HOME").map(|home| home.join(".cache/huggingface/hub")))
}

/// Path `models--org--name/snapshots/REVISION/tokenizer.json` in the cache, with the revision that
/// `main` refers to; `None` if the file does not exist.
fn cached(id: &str, cache: &Path) -> Option<PathBuf> {
    let (organisation, model) = id.split_once('/')?;
    // |Names come from the user and must not lead out of the cache folder.
    let plain = |part: &str| !part.is_empty() && !part.contains(['/', '\\']) && part != "..";
    let folder = cache.join(format!("models--{organisation}--{model}"));
    let revision = fs::read_to_string(folder.join("refs/main")).ok()?;
    let revision = revision.trim();
    let file = folder.join("snapshots").join(revision).join(FILE);
    (plain(organisation) && plain(model) && plain(revision) && file.is_file()).then_some(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    #[test]
    fn a_tokenizer_is_a_file_or_in_a_folder_or_in_the_cache() {
        let folder = TempDir::new().unwrap();
        let snapshot = folder.path().join("models--org--name/snapshots/abc");
        let refs = folder.path().join("models--org--name/refs");
        fs::create_dir_all(&snapshot).unwrap();
        fs::create_dir_all(&refs).unwrap();
        fs::write(refs.join("main"), "abc\n").unwrap();
        fs::write(snapshot.join(FILE), "{}").unwrap();
        let root = folder.path().to_str().unwrap().to_owned();
        let variable = |name: &str| (name == "HF_HUB_CACHE").then(|| root.clone());
        let wanted = snapshot.join(FILE);
        for name in [wanted.to_str().unwrap(), snapshot.to_str().unwrap(), "org/name"] {
            assert_eq!(find(name, &variable).unwrap(), wanted, "{name}");
        }
        for name in ["org/absent", "absent", "../x", "org/name/more", "/"] {
            let said = find(name, &variable).unwrap_err().to_string();
            assert!(said.contains("hint: ") && said.contains(name), "{said}");
        }
    }
}
