//! Redline's other programs in a simulation: the registry is the real one, called in this process;
//! pages list the records that they are rendered from.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use registry::record::record;
use registry::repository::{WorkTree, chain, exit_of};
use registry::undo::undo_killed;

use super::machine::{Machine, StepResult, current};
use crate::files::files_below;
use crate::process::{Interrupt, ProcessError, Written};

/// Runs a program of Redline on the machine of this thread; `None` for other programs, and without
/// a machine.
pub fn run(command: &Command, interrupt: &Interrupt) -> Option<Result<Written, ProcessError>> {
    let machine = current()?;
    let name = Path::new(command.get_program()).file_name()?.to_str()?;
    let words: Vec<&str> = command.get_args().filter_map(|word| word.to_str()).collect();
    let call = Call { machine: &machine, words };
    let mut written = None;
    let mut effect = || written = Some(call.carry_out(name));
    let told = machine.program(&format!("{name} {}", call.words[0]), &mut effect);
    Some(match told {
        StepResult::Go => Ok(written.expect("a program that is run has its effect")),
        _ if interrupt.raised() => Err(ProcessError::Interrupted),
        // Killed, as where memory is short.
        _ => Ok(ended(9, "", "")),
    })
}

/// A program's call.
struct Call<'a> {
    machine: &'a Machine,
    words: Vec<&'a str>,
}

impl Call<'_> {
    fn carry_out(&self, name: &str) -> Written {
        let registry = self.path("--registry");
        match (name, self.words[0]) {
            ("redline-results", "preflight") => {
                let ready = WorkTree::open(&registry).and_then(|tree| {
                    undo_killed(&tree)?;
                    tree.ready()
                });
                answer(ready.map(|_| String::new()).map_err(failed))
            }
            ("redline-results", "record") => {
                let unix_s = self.machine.time.now().unix_timestamp();
                let (staged, message) = (Path::new(self.words[1]), self.word("--message"));
                let recorded = record(&registry, staged, message, unix_s);
                let commit = recorded.map(|of| format!("{{\"commit\": {:?}}}", of.commit.unwrap()));
                answer(commit.map_err(failed))
            }
            ("redline-site", "pages") => {
                self.render();
                ended(0, "", "")
            }
            ("redline-results", "diff") | ("redline-site", "build" | "table") => ended(0, "", ""),
            other => panic!("no simulation runs {other:?}"),
        }
    }

    /// Returns the value of a flag.
    fn word(&self, flag: &str) -> &str {
        let at = self.words.iter().position(|word| *word == flag).unwrap();
        self.words[at + 1]
    }

    fn path(&self, flag: &str) -> PathBuf {
        self.word(flag).into()
    }

    /// Writes the page of the records of registry and overlay.
    fn render(&self) {
        let roots = [self.path("--registry").join("results"), self.path("--overlay")];
        let below = |root: &PathBuf| {
            let files = files_below(root).into_iter();
            let names = files.map(|path| path.strip_prefix(root).unwrap().display().to_string());
            names.filter(|name| name.ends_with(".json")).collect::<Vec<_>>()
        };
        let names: BTreeSet<String> = roots.iter().flat_map(below).collect();
        let text: String = names.iter().map(|name| format!("{name}\n")).collect();
        fs::write(self.path("--out").join("README.md"), text).unwrap();
    }
}

/// Returns the exit code and the message of an error.
fn failed(error: anyhow::Error) -> (u8, String) {
    (exit_of(&error).code(), chain(&error))
}

/// Builds what a program has written, from its output or from its exit code and error.
fn answer(result: Result<String, (u8, String)>) -> Written {
    match result {
        Ok(stdout) => ended(0, &stdout, ""),
        Err((code, stderr)) => ended(i32::from(code) << 8, "", &stderr),
    }
}

/// Builds what a program has written that ends with this status of `wait`.
fn ended(status: i32, stdout: &str, stderr: &str) -> Written {
    let status = ExitStatus::from_raw(status);
    Written { status, stdout: stdout.to_owned(), stderr: stderr.to_owned() }
}
