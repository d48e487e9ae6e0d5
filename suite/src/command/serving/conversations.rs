//! Finds the conversations that SGLang's and LMDeploy's tools download where no file is named: the
//! suite's dataset `sharegpt`, by its hash, in the caches of Redline and of the hub. Nothing is
//! downloaded.

use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use schema::model::{DatasetFile, InputSource, parse_dataset};

use super::Variables;
use super::hub::hub_cache;
use crate::workload::dataset::Dataset;

/// Dataset file with the id on the hub, the name and the SHA-256 of the conversations.
const SHAREGPT: &str = include_str!("../../../datasets/sharegpt.toml");

/// Returns the path of the conversations; `None` if no cache has them. `variable` reads environment
/// variables.
///
/// # Errors
/// A file of that name in a cache cannot be read.
pub fn find(variable: &Variables<'_>) -> anyhow::Result<Option<PathBuf>> {
    find_pinned(&parse_dataset(SHAREGPT)?, variable)
}

/// Returns the command that downloads the conversations into the hub's cache, for a person to type.
///
/// # Errors
/// The dataset file names no source on the hub.
pub fn command() -> anyhow::Result<String> {
    let dataset = parse_dataset(SHAREGPT)?;
    let (id, file) = source(&dataset)?;
    Ok(format!("hf download --repo-type dataset {id} {file}"))
}

fn source(dataset: &DatasetFile) -> anyhow::Result<(&str, &str)> {
    let mut named = dataset.sources.iter().filter_map(|source| {
        let InputSource { hub, file, .. } = source;
        hub.as_deref().zip(file.as_deref())
    });
    named.next().context("the data set names no file on the hub")
}

fn find_pinned(dataset: &DatasetFile, variable: &Variables<'_>) -> anyhow::Result<Option<PathBuf>> {
    let (id, file) = source(dataset)?;
    let own = redline_cache(variable).map(|dir| dir.join("sha256").join(&dataset.sha256));
    let snapshots = hub_cache(variable)
        .map(|dir| dir.join(format!("datasets--{}/snapshots", id.replace('/', "--"))));
    let revisions = snapshots.into_iter().flat_map(fs::read_dir).flatten().flatten();
    let folders = own.into_iter().chain(revisions.map(|revision| revision.path()));
    for path in folders.map(|folder| folder.join(file)).filter(|path| path.is_file()) {
        // Other revisions of the data set have files of the same name.
        if Dataset::open(&path)?.sha256 == dataset.sha256 {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

/// Returns the folder in which `cargo xtask fetch` keeps its files; `None` if no variable says where
/// it is.
fn redline_cache(variable: &Variables<'_>) -> Option<PathBuf> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("REDLINE_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|cache| cache.join("redline")))
        .or_else(|| set("HOME").map(|home| home.join(".cache/redline")))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use schema::canonical::sha256_hex;
    use tempfile::TempDir;

    use super::*;

    /// Test helper: returns the dataset whose file has the content `text`.
    fn pinned(text: &str) -> DatasetFile {
        let source = InputSource {
            hub: Some("org/talk".to_owned()),
            file: Some("talk.json".to_owned()),
            ..InputSource::default()
        };
        let sha256 = sha256_hex(text.as_bytes());
        DatasetFile { sources: vec![source], sha256, ..parse_dataset(SHAREGPT).unwrap() }
    }

    fn write(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn conversations_are_found_by_their_hash_in_either_cache() {
        let folder = TempDir::new().unwrap();
        let dataset = pinned("[1]");
        let home = folder.path().to_str().unwrap().to_owned();
        let of_home = |name: &str| (name == "HOME").then(|| home.clone());
        assert_eq!(find_pinned(&dataset, &of_home).unwrap(), None);
        let hub = folder.path().join(".cache/huggingface/hub/datasets--org--talk/snapshots");
        write(&hub.join("a/talk.json"), "[2]");
        assert_eq!(find_pinned(&dataset, &of_home).unwrap(), None, "another file of that name");
        write(&hub.join("b/talk.json"), "[1]");
        assert_eq!(find_pinned(&dataset, &of_home).unwrap(), Some(hub.join("b/talk.json")));
        let own = folder.path().join("own");
        let kept = own.join("sha256").join(&dataset.sha256).join("talk.json");
        write(&kept, "[1]");
        let own = own.to_str().unwrap().to_owned();
        let both = |name: &str| of_home(name).or((name == "REDLINE_CACHE").then(|| own.clone()));
        assert_eq!(find_pinned(&dataset, &both).unwrap(), Some(kept.clone()), "hashed once");
        write(&kept, "[3]");
        assert_eq!(find_pinned(&dataset, &both).unwrap(), Some(hub.join("b/talk.json")));
        assert_eq!(find_pinned(&dataset, &|_| None).unwrap(), None);
    }

    #[test]
    fn the_command_that_downloads_names_repository_and_file() {
        let command = command().unwrap();
        assert!(
            command.starts_with("hf download --repo-type dataset anon8231489123/"),
            "{command}"
        );
        assert!(command.ends_with(" ShareGPT_V3_unfiltered_cleaned_split.json"), "{command}");
    }
}
