//! `redline completions` and `redline man`: shell completions and man pages from the command line's
//! definition. They belong to the program, not to the library.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Command, Subcommand};
use clap_complete::Shell;
use engine::say::say;

/// Exit code for an error of the environment, such as a folder that cannot be written.
const ENVIRONMENT: u8 = 4;

#[derive(Debug, Subcommand)]
pub enum Manual {
    /// Prints a script that completes this program's commands and flags in a shell
    Completions { shell: Shell },
    /// Writes this program's man pages into a folder
    Man {
        /// Folder to write into; created if it is missing
        folder: PathBuf,
    },
}

impl Manual {
    /// Prints the completions or writes the man pages of `program`, and returns the exit code.
    pub fn answer(self, mut program: Command) -> ExitCode {
        match self {
            Self::Completions { shell } => {
                let name = program.get_name().to_owned();
                let mut script = Vec::new();
                clap_complete::generate(shell, &mut program, name, &mut script);
                // `write_all` rather than `print!`, which panics when the reader closes the pipe
                // early.
                let told = io::stdout().write_all(&script);
                told.map_or(ExitCode::from(ENVIRONMENT), |()| ExitCode::SUCCESS)
            }
            Self::Man { folder } => match write_pages(program, &folder) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    let folder = folder.display();
                    say(format_args!("error: failed to write man pages into `{folder}`: {error}"));
                    ExitCode::from(ENVIRONMENT)
                }
            },
        }
    }
}

/// Writes one man page for `program` and one for each of its commands, in roff.
fn write_pages(program: Command, folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    clap_mangen::generate_to(program, folder)
}
