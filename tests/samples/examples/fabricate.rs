//! Writes a made-up registry, to look at the pages without having measured anything, or to see how
//! long a large site takes:
//! `cargo run --release --package samples --example fabricate -- DIR [RUNS]`.

use std::path::PathBuf;

use anyhow::{Context, Result};
use samples::registry;

fn main() -> Result<()> {
    let mut arguments = std::env::args_os().skip(1);
    let folder = arguments.next().context("which folder? give it as the argument")?;
    let files = match arguments.next() {
        None => registry::files(),
        Some(count) => {
            let count = count.to_str().and_then(|count| count.parse().ok());
            let records = registry::many(count.context("the second argument is a number of runs")?);
            records.iter().map(registry::file).collect()
        }
    };
    for (path, text) in &files {
        let file = PathBuf::from(&folder).join(path);
        let parent = file.parent().context("a record's path has a folder")?;
        std::fs::create_dir_all(parent)
            .with_context(|| format!("cannot make `{}`", parent.display()))?;
        std::fs::write(&file, text)
            .with_context(|| format!("cannot write `{}`", file.display()))?;
    }
    println!("{} records in {}", files.len(), PathBuf::from(folder).display());
    Ok(())
}
