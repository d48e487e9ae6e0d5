//! Errors of commands: a message with its hint, and whether the data or the environment is to blame,
//! which decides the exit code.

use std::collections::BTreeSet;
use std::io;

use judge::finding::Finding;
use schema::exit::Exit;
use store::StoreError;

/// Failure of the environment and not of the data: for example, a lock is held, a tool is missing,
/// or a setting of the repository forbids the commit.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Environment(pub String);

/// Refusal of records or pages that break storage rules, with all findings.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Unsound {
    message: String,
    /// Findings of storage rules about the refused files, both breaches and remarks.
    pub findings: Vec<Finding>,
}

impl Unsound {
    /// Builds the error. `whose` names the files and who made them, `outcome` says what was not
    /// done.
    pub fn new(whose: &str, outcome: &str, findings: Vec<Finding>) -> Self {
        let breaches = findings.iter().filter(|finding| finding.breach);
        let count = breaches.map(|finding| &finding.path).collect::<BTreeSet<_>>().len();
        Self { message: format!("{count} of {whose} are unsound, {outcome}"), findings }
    }
}

/// Returns the exit code of a command that ends with `error`: that of the environment for failures
/// of git, files or tools, else that of unsound data.
pub fn exit_of(error: &anyhow::Error) -> Exit {
    let of_environment = error.is::<Environment>()
        || error.is::<StoreError>()
        || error.is::<git2::Error>()
        || error.is::<io::Error>();
    if of_environment { Exit::Environment } else { Exit::Unsound }
}

/// Formats an error and its causes on one line, with their hints on lines of their own at the end.
pub fn chain(error: &anyhow::Error) -> String {
    let mut messages: Vec<String> = Vec::new();
    let mut hints: Vec<String> = Vec::new();
    for cause in error.chain() {
        if cause.is::<git2::Error>() {
            messages.push("git failed".to_owned());
        }
        let text = cause.to_string();
        let mut lines = text.lines();
        messages.push(lines.next().unwrap_or_default().to_owned());
        hints.extend(lines.map(|line| format!("\n{line}")));
    }
    messages.join(": ") + &hints.concat()
}
