//! Finds tokenizers and datasets by the names that Hugging Face's libraries take: a file, a folder,
//! or an id of the hub whose files are in the local cache. Nothing is downloaded.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use super::Variables;

const TOKENIZER_FILE: &str = "tokenizer.json";

/// Datasets of the hub whose rows are read as vLLM's tool reads them, each with the number of output
/// tokens that the tool requests by default.
const DATASETS: [(&str, u64); 2] = [("philschmid/mt-bench", 256), ("likaixin/InstructCoder", 200)];

/// Returns the number of output tokens that vLLM's tool requests by default for the dataset that
/// `--hf-name`, else `--dataset-path`, gives the id of.
///
/// # Errors
/// The dataset is not one that is known.
pub fn output_tokens(name: Option<&str>, path: Option<&Path>) -> anyhow::Result<u64> {
    let name = name.map(Path::new).or(path).unwrap_or(Path::new(""));
    let found = DATASETS.iter().find(|(id, _)| Path::new(id) == name);
    let (_, tokens) = found.with_context(|| {
        format!(
            "`--dataset-name hf` does not know the rows of `{}`\nhint: give the path of one of `{}` \
             with `--dataset-path`, and its id with `--hf-name`; conversations in ShareGPT's format \
             are `--dataset-name sharegpt`, and one `{{\"prompt\": \"...\"}}` per line \
             `--dataset-name custom`",
            name.display(),
            DATASETS.map(|(id, _)| id).join("`, `")
        )
    })?;
    Ok(*tokens)
}

/// Returns the file with the rows of a dataset: `path`, or the one file with rows in the folder `path`
/// or in the cached dataset with the id `path`, whose name contains `split` if there are several.
///
/// # Errors
/// There is no such file, or several, or it has a format that is not read.
pub fn find_rows(
    path: &Path,
    split: Option<&str>,
    variable: &Variables<'_>,
) -> anyhow::Result<PathBuf> {
    let shown = path.display();
    let cached = || snapshot("datasets", &path.to_string_lossy(), &hub_cache(variable)?);
    let found = if path.is_file() {
        vec![path.to_owned()]
    } else {
        let folder = Some(path.to_owned()).filter(|path| path.is_dir()).or_else(cached);
        let folder = folder.with_context(|| {
            format!(
                "`{shown}` is neither a file, nor a folder, nor in the local cache of the hub\n\
                 hint: nothing is downloaded; `hf download --repo-type dataset {shown}` does it"
            )
        })?;
        let names = fs::read_dir(&folder)
            .and_then(|entries| {
                entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>, _>>()
            })
            .with_context(|| format!("cannot read folder `{}`", folder.display()))?;
        names.into_iter().filter(|name| has_rows(name)).collect()
    };
    let of_split = |path: &&PathBuf| {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        split.is_some_and(|split| stem.contains(split))
    };
    let chosen: Vec<&PathBuf> = match found.len() {
        0 | 1 => found.iter().collect(),
        _ => found.iter().filter(of_split).collect(),
    };
    match chosen[..] {
        [file] if has_rows(file) => Ok(file.clone()),
        _ => bail!(
            "`{shown}` gives no file of rows that can be read, or several: it must be one `.json` or \
             `.jsonl`\nhint: `datasets.load_dataset(...).to_json(\"rows.jsonl\")` in Python writes one; \
             give it with `--dataset-path`, and the id with `--hf-name`"
        ),
    }
}

/// True for a file of rows in a format that is read.
fn has_rows(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "json" || extension == "jsonl")
}

/// Returns the path of the tokenizer that `name` denotes: a file, a folder, or a hub id in the
/// local cache. `variable` reads environment variables.
///
/// # Errors
/// No tokenizer is found under that name.
pub fn find_tokenizer(name: &str, variable: &Variables<'_>) -> anyhow::Result<PathBuf> {
    let path = Path::new(name);
    if path.is_file() {
        return Ok(path.to_owned());
    }
    if path.join(TOKENIZER_FILE).is_file() {
        return Ok(path.join(TOKENIZER_FILE));
    }
    let cache = hub_cache(variable);
    let cached = cache.as_deref().and_then(|cache| snapshot("models", name, cache));
    match cached.map(|folder| folder.join(TOKENIZER_FILE)).filter(|file| file.is_file()) {
        Some(found) => Ok(found),
        None => bail!(
            "`{name}` is neither a file nor a folder with a `{TOKENIZER_FILE}`{}\nhint: {}give one with \
             `--tokenizer`; a GGUF file works too, and nothing is downloaded",
            cache.map_or_else(String::new, |cache| format!(", nor in `{}`", cache.display())),
            match is_hub_id(name) {
                true => format!("`hf download {name} {TOKENIZER_FILE}` gets it; or "),
                false => String::new(),
            }
        ),
    }
}

/// True for a name of one folder.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && !name.contains(['/', '\\']) && name != ".."
}

/// True for a name of the form `org/name`.
fn is_hub_id(name: &str) -> bool {
    name.split_once('/')
        .is_some_and(|(organisation, name)| is_plain(organisation) && is_plain(name))
}

/// Returns the folder of the hub cache. Hugging Face's libraries find it by the same environment
/// variables; `None` if they are all unset or empty.
pub fn hub_cache(variable: &Variables<'_>) -> Option<PathBuf> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("HF_HUB_CACHE")
        .or_else(|| set("HF_HOME").map(|home| home.join("hub")))
        .or_else(|| set("XDG_CACHE_HOME").map(|cache| cache.join("huggingface/hub")))
        .or_else(|| set("HOME").map(|home| home.join(".cache/huggingface/hub")))
}

/// Returns the folder `KIND--org--name/snapshots/REVISION` in the hub cache, with the revision that
/// `main` refers to; `None` if it does not exist or `id` is not of the form `org/name`.
fn snapshot(kind: &str, id: &str, hub_cache: &Path) -> Option<PathBuf> {
    let (organisation, name) = id.split_once('/')?;
    // Names come from the user and must not lead out of the cache folder.
    let repository = hub_cache.join(format!("{kind}--{organisation}--{name}"));
    let revision = fs::read_to_string(repository.join("refs/main")).ok()?;
    let revision = revision.trim();
    let folder = repository.join("snapshots").join(revision);
    (is_hub_id(id) && is_plain(revision) && folder.is_dir()).then_some(folder)
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
        fs::write(snapshot.join(TOKENIZER_FILE), "{}").unwrap();
        let root = folder.path().to_str().unwrap().to_owned();
        let variable = |name: &str| (name == "HF_HUB_CACHE").then(|| root.clone());
        let wanted = snapshot.join(TOKENIZER_FILE);
        for name in [wanted.to_str().unwrap(), snapshot.to_str().unwrap(), "org/name"] {
            assert_eq!(find_tokenizer(name, &variable).unwrap(), wanted, "{name}");
        }
        for name in ["org/absent", "absent", "../x", "org/name/more", "/"] {
            let said = find_tokenizer(name, &variable).unwrap_err().to_string();
            assert!(said.contains("hint: ") && said.contains(name), "{said}");
            let command = "hint: `hf download org/absent tokenizer.json` gets it; or give one with";
            assert_eq!(said.contains(command), name == "org/absent", "{said}");
        }
    }

    #[test]
    fn rows_are_one_file_that_can_be_read() {
        let root = TempDir::new().unwrap();
        let snapshot = root.path().join("datasets--org--name/snapshots/abc");
        fs::create_dir_all(&snapshot).unwrap();
        fs::create_dir_all(root.path().join("datasets--org--name/refs")).unwrap();
        fs::write(root.path().join("datasets--org--name/refs/main"), "abc").unwrap();
        let cache = root.path().to_str().unwrap().to_owned();
        let variable = |name: &str| (name == "HF_HUB_CACHE").then(|| cache.clone());
        let found = |path: &Path, split| find_rows(path, split, &variable);
        let write = |name: &str| {
            fs::write(snapshot.join(name), "").unwrap();
            snapshot.join(name)
        };
        let parquet = write("rows.parquet");
        for path in [Path::new("org/name"), &parquet, Path::new("org/absent")] {
            let said = found(path, None).unwrap_err().to_string();
            assert!(said.contains("hint: "), "{said}");
        }
        let test = write("test-0.jsonl");
        for path in [Path::new("org/name"), &snapshot, &test] {
            assert_eq!(found(path, Some("train")).unwrap(), test, "the only one");
        }
        let train = write("train-0.jsonl");
        assert_eq!(found(&snapshot, Some("train")).unwrap(), train);
        assert!(found(&snapshot, None).is_err());
    }

    #[test]
    fn a_dataset_is_known_by_its_id() {
        let path = Some(Path::new("philschmid/mt-bench"));
        assert_eq!(output_tokens(None, path).unwrap(), 256);
        assert_eq!(output_tokens(Some("likaixin/InstructCoder"), path).unwrap(), 200);
        let said = output_tokens(Some("org/other"), path).unwrap_err().to_string();
        assert!(said.contains("`org/other`\nhint: give the path of one of `philschmid/"), "{said}");
    }
}
