//! Compiles files of the suite into the site's program, so that a new one is one file: writes
//! `suite.rs` with a table of ids and texts for each kind, which `src/questions.rs` includes.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

fn main() -> io::Result<()> {
    let suite = PathBuf::from(variable("CARGO_MANIFEST_DIR")?).join("../suite").canonicalize()?;
    let mut text = String::new();
    for name in ["SCENARIOS", "LABS", "MODELS", "DATASETS", "ENGINES", "TARGETS", "VALIDATIONS"] {
        let folder = suite.join(name.to_lowercase());
        // A new file changes the folder's own time.
        println!("cargo::rerun-if-changed={}", folder.display());
        table(&mut text, name, &folder)?;
    }
    fs::write(PathBuf::from(variable("OUT_DIR")?).join("suite.rs"), text)
}

fn table(text: &mut String, name: &str, folder: &Path) -> io::Result<()> {
    let entries = fs::read_dir(folder)?.collect::<io::Result<Vec<_>>>()?;
    let mut paths: Vec<PathBuf> = entries.into_iter().map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    paths.sort();
    let _ = writeln!(text, "const {name}: &[(&str, &str)] = &[");
    for path in &paths {
        let id = path.file_stem().unwrap_or_default().to_string_lossy();
        let _ = writeln!(text, "    ({id:?}, include_str!({:?})),", path.display().to_string());
    }
    let _ = writeln!(text, "];");
    Ok(())
}

fn variable(name: &str) -> io::Result<String> {
    env::var(name).map_err(|error| io::Error::other(format!("{name}: {error}")))
}
