//! Writes a made-up registry, to look at the pages without having measured anything:
//! `cargo run --release --package site --example fabricate -- DIR`.

use std::path::PathBuf;

use anyhow::{Context, Result};

fn main() -> Result<()> {
    let folder = std::env::args_os().nth(1).context("which folder? give it as the argument")?;
    for (path, text) in site::sample::files() {
        let file = PathBuf::from(&folder).join(path);
        let parent = file.parent().context("a record's path has a folder")?;
        std::fs::create_dir_all(parent)
            .with_context(|| format!("cannot make `{}`", parent.display()))?;
        std::fs::write(&file, text)
            .with_context(|| format!("cannot write `{}`", file.display()))?;
    }
    Ok(())
}
