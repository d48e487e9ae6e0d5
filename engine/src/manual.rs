//! What a shell and `man` are told of the command line. Knows no command.

use std::fs;
use std::io;
use std::path::Path;

use clap::Command;
use clap_complete::Shell;

/// A script that has a shell complete the words of `program`.
#[must_use]
pub fn completions(mut program: Command, shell: Shell) -> String {
    let name = program.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut program, name, &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// Writes a page for `program` and one for each of its commands, in roff, into a folder that is made
/// where it is missing.
///
/// # Errors
/// The folder cannot be written.
pub fn write_pages(program: Command, folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    clap_mangen::generate_to(program, folder)
}
