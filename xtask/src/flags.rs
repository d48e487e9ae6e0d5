//! The command line: this file is the help text.

use std::ffi::OsString;

use lexopt::prelude::*;

/// What `cargo xtask --help` prints.
pub const HELP: &str = "\
usage: cargo xtask COMMAND

Measure
  release-bench VERSION   build that release, measure it, commit its records, render its pages
                          (--help lists the flags; --dry-run prints the plan)
  lab NAME                find out which options of a server are worth it, for which load
                          (--dry-run prints the plan, --resume goes on with one)
  ingest DIR              finish a campaign from the folders of its jobs alone
  diff A B                compare two releases from their records
  kernels                 run the op benches, and a model beside the limits of the machine, and
                          write a kernels record
  peer-bench ENGINE       measure the working tree beside another engine, such as llama.cpp
  client-bench            measure the load generator beside others, against an emitter that keeps
                          its own log (--row NAME: only that row; --document: into docs/METHOD.md)
  scale-bench             time the registry's tools and the site over a registry made up at size
                          (--records N; --document: into docs/METHOD.md)
  soak                    keep the working tree's server under load and detect memory leaks
                          (--minutes N; else an hour)
  gpu-validation pack VERSION
                          put a release into a folder that validates it on a machine with a GPU,
                          without network and compiler; `gpu-validation collect` records the results
  serve VERSION --model ID
                          build that release and serve a model with it
  fetch [ID...]           fetch models and data sets into the cache

Registry and site
  check                   check every record under results/
  list, show RUN          what the registry holds
  best MODEL --hardware ID
                          what serves a model best there, by a metric and within limits
  export --csv            every run as one flat table
  rules                   the rules by which records are checked
  retract, annotate, waive, epoch
                          say afterwards that records were wrong, what is worth knowing of them,
                          that a regression is accepted until a day, that a machine changed
  sync REMOTE             bring this clone and a remote together, with the pages of both
  import FILE...          record published results of others; --help lists the flags
  trend                   how figures went over releases and days, and where they changed
  site [--check|--pages|--open]
                          render the site to target/site; --check: are the committed pages
                          fresh? --pages: render them anew; --open: serve the site on this
                          machine and follow records and templates (--port N)

Work on Redline
  ci [--extra]            everything that must pass; --extra: the slower stages
  tidy                    the house rules
  counts [--renew]        count the instructions of the kernels and compare with what is committed;
                          --renew: commit to what they are now
  loops                   look at the innermost loops of the AVX-512 kernels in the built server
  cuda-check              compile the CUDA kernels, which needs no GPU, and check their machine code
  codegen [--check]       write what is generated from the code

Arguments after the command go to the program that does the work.
Exit codes: 0 well, 1 worse, 2 wrong use or unsound data, 3 inconclusive, 4 environment.";

/// A parsed command line.
#[derive(Debug, PartialEq, Eq)]
pub enum Command {
    Help,
    /// A verb of `redline-campaign`.
    Campaign {
        verb: &'static str,
        rest: Vec<OsString>,
    },
    /// A verb of `redline-peers`.
    Peers {
        verb: &'static str,
        rest: Vec<OsString>,
    },
    /// A verb of `redline-results`.
    Results {
        verb: &'static str,
        rest: Vec<OsString>,
    },
    Site {
        rest: Vec<OsString>,
    },
    Codegen {
        check: bool,
    },
    Tidy,
    Counts {
        renew: bool,
    },
    Loops,
    CudaCheck,
    Ci {
        extra: bool,
    },
}

/// Parses the arguments after the program's name.
///
/// # Errors
/// No such command, or a flag that it does not take.
pub fn parse(arguments: &[OsString]) -> Result<Command, lexopt::Error> {
    let Some((verb, rest)) = arguments.split_first() else { return Ok(Command::Help) };
    let rest = rest.to_vec();
    let command = match verb.to_str() {
        Some("help" | "-h" | "--help") => Command::Help,
        Some("release-bench") => Command::Campaign { verb: "release-bench", rest },
        Some("lab") => Command::Campaign { verb: "lab", rest },
        Some("ingest") => Command::Campaign { verb: "ingest", rest },
        Some("kernels") => Command::Campaign { verb: "kernels", rest },
        Some("peer-bench") => Command::Peers { verb: "peer-bench", rest },
        Some("client-bench") => Command::Peers { verb: "client-bench", rest },
        Some("scale-bench") => Command::Peers { verb: "scale-bench", rest },
        Some("soak") => Command::Peers { verb: "soak", rest },
        Some("gpu-validation") => Command::Peers { verb: "gpu-validation", rest },
        Some("serve") => Command::Campaign { verb: "serve", rest },
        Some("fetch") => Command::Campaign { verb: "fetch", rest },
        Some("diff") => Command::Results { verb: "diff", rest },
        Some("check") => Command::Results { verb: "check", rest },
        Some("import") => Command::Results { verb: "import", rest },
        Some("trend") => Command::Results { verb: "trend", rest },
        Some("list") => Command::Results { verb: "list", rest },
        Some("best") => Command::Results { verb: "best", rest },
        Some("export") => Command::Results { verb: "export", rest },
        Some("rules") => Command::Results { verb: "rules", rest },
        Some("retract") => Command::Results { verb: "retract", rest },
        Some("annotate") => Command::Results { verb: "annotate", rest },
        Some("waive") => Command::Results { verb: "waive", rest },
        Some("epoch") => Command::Results { verb: "epoch", rest },
        Some("sync") => Command::Results { verb: "sync", rest },
        Some("show") => Command::Results { verb: "show", rest },
        Some("site") => Command::Site { rest },
        Some("codegen") => Command::Codegen { check: one_flag(&rest, "check")? },
        Some("ci") => Command::Ci { extra: one_flag(&rest, "extra")? },
        Some("tidy") => {
            one_flag(&rest, "")?;
            Command::Tidy
        }
        Some("counts") => Command::Counts { renew: one_flag(&rest, "renew")? },
        Some("loops") => {
            one_flag(&rest, "")?;
            Command::Loops
        }
        Some("cuda-check") => {
            one_flag(&rest, "")?;
            Command::CudaCheck
        }
        _ => return Err(format!("no command `{}`", verb.to_string_lossy()).into()),
    };
    Ok(command)
}

/// True when `--name` is given; any other argument is an error.
fn one_flag(rest: &[OsString], name: &str) -> Result<bool, lexopt::Error> {
    let mut parser = lexopt::Parser::from_args(rest);
    let mut given = false;
    while let Some(argument) = parser.next()? {
        match argument {
            Long(flag) if flag == name => given = true,
            _ => return Err(argument.unexpected()),
        }
    }
    Ok(given)
}

#[cfg(test)]
mod tests {
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
        assert_eq!(parsed, Command::Campaign { verb: "release-bench", rest });
    }

    #[test]
    fn unknown_commands_and_flags_are_refused() {
        for line in ["measure", "ci --fast", "codegen now", "tidy --check", "loops --renew"] {
            assert!(parse(&words(line)).is_err(), "`{line}` was taken");
        }
    }
}
