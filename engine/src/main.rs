//! The program `redline`: serves a model or measures it. Time, environment and arguments are read
//! here and handed down.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;

use clap::error::ContextValue;
use clap::{Command, CommandFactory, FromArgMatches, Subcommand};
use clap_complete::Shell;
use engine::cli::{Cli, Surroundings};
use engine::{log_error, one_line, print, serve};
use engine_core::clock::Clock;
use engine_cuda::driver::Cubins;
use engine_weights::hub_cache;

/// Exit code for an error of the environment, such as a folder that cannot be written.
const ENVIRONMENT: u8 = 4;

fn main() -> ExitCode {
    let program = Manual::augment_subcommands(Cli::command());
    // Man pages and completions are made from the same definition of the command line.
    let given = program.clone().try_get_matches().unwrap_or_else(|error| refuse(error));
    // `completions` and `man` need neither clock nor environment.
    if let Ok(manual) = Manual::from_arg_matches(&given) {
        return manual.answer(program);
    }
    let cli = Cli::from_arg_matches(&given).unwrap_or_else(|error| refuse(error));
    let variable = |name: &str| std::env::var(name).ok();
    let surroundings = Surroundings {
        clock: Clock::start(),
        cores: thread::available_parallelism().map_or(1, usize::from),
        hub_cache: hub_cache(variable),
        cubins: Cubins::of_environment(variable),
    };
    cli.run(surroundings, serve::prepare)
}

/// Ends the process with an error of the command line, or with the help if the user requested it.
/// Arguments are quoted as one line.
fn refuse(mut error: clap::Error) -> ! {
    let quoted: Vec<_> = error.context().map(|(kind, value)| (kind, value.clone())).collect();
    for (kind, value) in quoted {
        if let ContextValue::String(text) = value {
            error.insert(kind, ContextValue::String(one_line(&text)));
        }
    }
    error.exit()
}

// A doc comment here would replace the description of the program in its help.
#[derive(Debug, Subcommand)]
enum Manual {
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
    fn answer(self, mut program: Command) -> ExitCode {
        match self {
            Self::Completions { shell } => {
                let name = program.get_name().to_owned();
                let mut script = Vec::new();
                clap_complete::generate(shell, &mut program, name, &mut script);
                print(&String::from_utf8_lossy(&script))
            }
            Self::Man { folder } => match write_pages(program, &folder) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    let folder = folder.display();
                    log_error(&format!("failed to write man pages into `{folder}`: {error}"));
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
