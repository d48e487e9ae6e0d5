//! `cargo xtask`: builds Redline's other programs and runs them. It links none of them, so that it
//! compiles in seconds.

mod build;
mod ci;
mod counts;
mod cuda;
mod flags;
mod loops;
mod shell;
mod tidy;

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Result;
use flags::Command;
use shell::Shell;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let command = match flags::parse(&arguments) {
        Ok(command) => command,
        Err(problem) => {
            eprintln!("error: {problem}\n\n{}", flags::HELP);
            return ExitCode::from(2);
        }
    };
    match Shell::at_workspace_root().and_then(|shell| run(&shell, command)) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(4)
        }
    }
}

/// Runs one command of `cargo xtask` and returns its exit code.
fn run(shell: &Shell, command: Command) -> Result<u8> {
    match command {
        Command::Help => {
            println!("{}", flags::HELP);
            Ok(0)
        }
        Command::Program { program, verb, rest } => build::and_run(shell, program, verb, &rest),
        Command::Site { rest } => build::and_render(shell, &rest),
        Command::Codegen { check } => build::generated_files(shell, check),
        Command::Tidy => tidy::run(shell),
        Command::Counts { renew } => counts::run(shell, renew),
        Command::Loops => loops::run(shell),
        Command::CudaCheck => cuda::run(shell),
        Command::Ci { extra } => ci::run(shell, extra),
    }
}
