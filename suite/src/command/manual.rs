//! `redline-bench completions` and `redline-bench man`: what a shell and `man` are told of the
//! command line.

use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Command};
use clap_complete::Shell;
use schema::exit::Exit;

/// Print what has a shell complete this program's words.
#[derive(Debug, Args)]
pub struct CompletionsFlags {
    shell: Shell,
}

/// Write this program's man pages.
#[derive(Debug, Args)]
pub struct ManFlags {
    /// Made where it is missing.
    folder: PathBuf,
}

/// Prints the script for `program`.
pub fn complete(flags: &CompletionsFlags, mut program: Command) -> Exit {
    let name = program.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(flags.shell, &mut program, name, &mut script);
    print!("{}", String::from_utf8_lossy(&script));
    Exit::Well
}

/// Writes a page for `program` and one for each of its commands, in roff.
///
/// # Errors
/// The folder cannot be written.
pub fn write_pages(flags: &ManFlags, program: Command) -> anyhow::Result<Exit> {
    let folder = &flags.folder;
    fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(program, folder))
        .with_context(|| format!("failed to write man pages into `{}`", folder.display()))?;
    Ok(Exit::Well)
}
