//! `redline-bench completions` and `redline-bench man`: shell completions and man pages, generated
//! from the definition of the command line.

use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Command};
use clap_complete::Shell;
use schema::exit::Exit;

/// Print a completion script for a shell.
#[derive(Debug, Args)]
pub struct CompletionsFlags {
    /// Shell for which the completion script is printed.
    shell: Shell,
}

/// Write man pages for this program and its commands.
#[derive(Debug, Args)]
pub struct ManFlags {
    /// Folder to write the man pages to; it is created if missing.
    folder: PathBuf,
}

/// Prints the completion script of the command line `program` for the chosen shell.
///
/// # Errors
/// Standard output cannot be written.
pub fn complete(flags: &CompletionsFlags, mut program: Command) -> anyhow::Result<Exit> {
    let name = program.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(flags.shell, &mut program, name, &mut script);
    whole_file::print(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Well)
}

/// Writes one man page for `program` and one for each of its commands, in roff format.
///
/// # Errors
/// The folder cannot be created, or a file in it cannot be written.
pub fn write_pages(flags: &ManFlags, program: Command) -> anyhow::Result<Exit> {
    let folder = &flags.folder;
    fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(program, folder))
        .with_context(|| format!("failed to write man pages into `{}`", folder.display()))?;
    Ok(Exit::Well)
}
