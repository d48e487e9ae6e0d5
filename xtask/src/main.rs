//! `cargo xtask`: builds Redline's other programs and runs them, with the command line that names
//! them. It links none of them, so that it compiles in seconds.

mod build;
mod ci;
mod cli_reference;
mod counts;
mod cuda;
mod loops;
mod shell;
mod tidy;

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Context, Result};
use shell::Shell;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let command = match parse(&arguments) {
        Ok(command) => command,
        Err(problem) => {
            eprintln!("error: {problem}\n\n{}", HELP);
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
            match writeln!(io::stdout(), "{HELP}") {
                // A reader that closed the pipe has all that it wants.
                Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                    Err(error).context("cannot write to standard output")
                }
                _ => Ok(0),
            }
        }
        Command::Program { program, verb, rest } => build::and_run(shell, program, verb, &rest),
        Command::Site { rest } => build::and_render(shell, &rest),
        Command::Chat { rest } => build::and_chat(shell, &rest),
        Command::Codegen { check } => cli_reference::generated_files(shell, check),
        Command::Tidy => tidy::run(shell),
        Command::Counts { renew } => counts::run(shell, renew),
        Command::Loops => loops::run(shell),
        Command::CudaCheck => cuda::run(shell),
        Command::Ci { extra } => ci::run(shell, extra),
    }
}

/// Help text that `cargo xtask --help` prints.
const HELP: &str = "\
usage: cargo xtask COMMAND

Measure
  release-bench VERSION   build that release, measure it, commit its records, render its pages
                          (--help lists the flags; --dry-run prints the plan)
  gate [BASELINE]         say whether the working tree is slower than the newest release, within a
                          budget of minutes (--budget 15m; a baseline may also be any commit)
  gate-bench              test the gate with planted changes, and with identical code
                          (--resume adds trials; --document: into docs/method/gate.md)
  lab NAME                find which server options are worth setting, and under which load
                          (--dry-run prints the plan, --resume continues one)
  ingest DIR              finish a campaign with nothing but the folders of its jobs
  matrix                  print what is measured, published elsewhere, planned or impossible, and the
                          commands that measure the rest (--target ID)
  reproduce RUN           measure a committed run again, and say whether its figures come out
  diff A B                compare two releases from their records
  kernels                 benchmark the kernels, and a model against the machine's limits, and
                          write a kernels record
  peer-bench ENGINE       compare the working tree with another engine, such as llama.cpp
  client-bench            compare the load generator with others, on a mock server that keeps
                          its own log (--row NAME: only that row; --document: into docs/method/client.md)
  scale-bench             time the registry's tools and the site on a large generated registry
                          (--records N; --document: into docs/method/scale.md)
  soak                    detect leaks: keep the working tree's server under load
                          (--minutes N; default: an hour)
  gpu-validation pack VERSION
                          pack a release into a bundle that validates it on a machine with a GPU,
                          without network or compiler; `gpu-validation collect` records the results
  serve VERSION --model ID
                          build that release and serve a model with it
  fetch [ID...]           fetch models and data sets into the cache
  chat MODEL              chat in the terminal with a model of the suite, which is fetched, or with
                          a file, a folder or a hub id; flags are those of `redline chat`

Registry and site
  check                   check every record under results/
  list, show RUN          list what the registry holds, or print one run
  best MODEL --hardware ID
                          best configuration for a model there, by a metric and within limits
  export --csv            every run as one flat table
  rules                   list the rules that records are checked by
  retract, annotate, waive, epoch
                          declare later that records are wrong, add a note to them, accept a
                          regression until a date, note that a machine changed
  sync REMOTE             synchronize this clone with a remote, and render the pages of both
  import FILE...          import results that others published; --help lists the flags
  trend                   show metrics over releases and days, and where they changed
  site [--check|--pages|--open]
                          render the site to target/site; --check: verify that the committed
                          pages are fresh; --pages: render them; --open: serve the site on this
                          machine and follow records and templates (--port N)

Work on Redline
  ci [--extra]            everything that must pass; --extra: the slower stages
  tidy                    check the house rules
  counts [--renew]        count the kernels' instructions and compare with the committed counts;
                          --renew: write the present counts
  loops                   check the innermost loops of the AVX-512 kernels in the built server
  cuda-check              compile the CUDA kernels, which needs no GPU, and check their machine code
  codegen [--check]       write the files that are generated from the code

Arguments after the command go to the program that does the work.
Exit codes: 0 success, 1 worse, 2 wrong use or unsound data, 3 inconclusive, 4 environment.";

/// Programs that carry out commands of `cargo xtask`, each with the commands that it carries out.
const PROGRAMS: &[(&str, &[&str])] = &[
    (
        "redline-campaign",
        &[
            "release-bench",
            "gate",
            "lab",
            "ingest",
            "kernels",
            "matrix",
            "reproduce",
            "serve",
            "fetch",
        ],
    ),
    (
        "redline-peers",
        &["peer-bench", "client-bench", "gate-bench", "scale-bench", "soak", "gpu-validation"],
    ),
    (
        "redline-results",
        &[
            "diff", "check", "import", "trend", "list", "show", "best", "export", "rules",
            "retract", "annotate", "waive", "epoch", "sync",
        ],
    ),
];

/// Parsed command of `cargo xtask`, with the arguments to pass on. `Program` stands for all
/// commands of `PROGRAMS`, which other programs carry out.
#[derive(Debug, PartialEq, Eq)]
enum Command {
    Help,
    Program { program: &'static str, verb: &'static str, rest: Vec<OsString> },
    Site { rest: Vec<OsString> },
    Chat { rest: Vec<OsString> },
    Codegen { check: bool },
    Tidy,
    Counts { renew: bool },
    Loops,
    CudaCheck,
    Ci { extra: bool },
}

/// Parses the arguments after the program's name.
///
/// # Errors
/// The command is unknown, or does not take a given argument.
fn parse(arguments: &[OsString]) -> Result<Command, String> {
    let Some((word, rest)) = arguments.split_first() else { return Ok(Command::Help) };
    let word = word.to_string_lossy();
    for &(program, verbs) in PROGRAMS {
        if let Some(&verb) = verbs.iter().find(|verb| **verb == word) {
            return Ok(Command::Program { program, verb, rest: rest.to_vec() });
        }
    }
    // The only flag that the command takes, or an empty text.
    let with_flag = |name: &str| match rest {
        [] => Ok(false),
        [flag] if !name.is_empty() && flag == name => Ok(true),
        [other, ..] => Err(format!("unexpected argument `{}`", other.to_string_lossy())),
    };
    let alone = |command| with_flag("").map(|_| command);
    match &*word {
        "help" | "-h" | "--help" => Ok(Command::Help),
        "site" => Ok(Command::Site { rest: rest.to_vec() }),
        "chat" => Ok(Command::Chat { rest: rest.to_vec() }),
        "codegen" => Ok(Command::Codegen { check: with_flag("--check")? }),
        "ci" => Ok(Command::Ci { extra: with_flag("--extra")? }),
        "counts" => Ok(Command::Counts { renew: with_flag("--renew")? }),
        "tidy" => alone(Command::Tidy),
        "loops" => alone(Command::Loops),
        "cuda-check" => alone(Command::CudaCheck),
        _ => Err(format!("no command `{word}`")),
    }
}

#[cfg(test)]
mod flags_tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn every_command_in_the_help_is_known() {
        let listed = HELP.lines().filter_map(|line| line.strip_prefix("  "));
        let verbs: Vec<&str> = listed
            .filter(|line| !line.starts_with(' '))
            .flat_map(|line| line.split("  ").next().unwrap_or_default().split(", "))
            .filter_map(|entry| entry.split_whitespace().next())
            .collect();
        assert!(verbs.len() >= 10, "{verbs:?}");
        for verb in verbs {
            assert!(parse(&words(verb)).is_ok(), "`{verb}` is in the help but not known");
        }
    }

    #[test]
    fn arguments_after_the_command_are_passed_on() {
        let parsed = parse(&words("release-bench v0.9.2 --repeats 5")).expect("known");
        let rest = words("v0.9.2 --repeats 5");
        let (program, verb) = ("redline-campaign", "release-bench");
        assert_eq!(parsed, Command::Program { program, verb, rest });
    }

    #[test]
    fn unknown_commands_and_flags_are_refused() {
        for line in ["measure", "ci --fast", "codegen now", "tidy --check", "loops --renew"] {
            assert!(parse(&words(line)).is_err(), "`{line}` was taken");
        }
    }
}
