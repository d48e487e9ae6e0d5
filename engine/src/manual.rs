//! `redline completions` and `redline man`: what a shell and `man` are told of the command line.
//! Part of the program alone: whoever uses the library has a command line of their own.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Command, Subcommand};
use clap_complete::Shell;
use engine::say::say;

/// Exit code where the system refuses what was asked for.
const ENVIRONMENT: u8 = 4;

#[derive(Debug, Subcommand)]
pub enum Manual {
    /// Prints what has a shell complete this program's words
    Completions { shell: Shell },
    /// Writes this program's man pages
    Man {
        /// Made where it is missing
        folder: PathBuf,
    },
}

impl Manual {
    /// Does what was asked of `program`, and says how it ended.
    #[must_use]
    pub fn answer(self, mut program: Command) -> ExitCode {
        match self {
            Self::Completions { shell } => {
                let name = program.get_name().to_owned();
                let mut script = Vec::new();
                clap_complete::generate(shell, &mut program, name, &mut script);
                // Whoever reads may stop early.
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

/// Writes a page for `program` and one for each of its commands, in roff.
fn write_pages(program: Command, folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    clap_mangen::generate_to(program, folder)
}
