//! Why a command ends before its work is done: the cause, the exit code, and what to do next.

use std::error::Error;
use std::fmt;

use schema::exit::Exit;

/// An error that knows which exit code it deserves.
pub trait Ends: Error + Send + Sync + 'static {
    fn exit(&self) -> Exit;

    /// What the user can do about it.
    fn hint(&self) -> Option<String> {
        None
    }
}

/// The end of a command, as `main` reports it.
#[derive(Debug)]
pub struct Stop {
    exit: Exit,
    hint: Option<String>,
    cause: Box<dyn Error + Send + Sync>,
}

impl Stop {
    /// With which code the program ends.
    #[must_use]
    pub fn exit(&self) -> Exit {
        self.exit
    }

    /// Its cause in one sentence, and the hint.
    #[must_use]
    pub fn cause(&self) -> (String, Option<String>) {
        let mut said = self.cause.to_string();
        let mut cause = self.cause.source();
        while let Some(error) = cause {
            said.push_str(&format!(": {error}"));
            cause = error.source();
        }
        (said, self.hint.clone())
    }

    /// Replaces the hint.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Adds a fact to the hint.
    #[must_use]
    pub fn also(mut self, fact: &str) -> Self {
        self.hint = Some(match self.hint {
            Some(hint) => format!("{hint}\nnote: {fact}"),
            None => fact.to_owned(),
        });
        self
    }

    /// Wrong use of the command line, in one sentence.
    #[must_use]
    pub fn wrong_use(message: impl Into<String>) -> Self {
        Self { exit: Exit::Unsound, hint: None, cause: message.into().into() }
    }

    /// The machine or the clone is not fit for the command, in one sentence.
    #[must_use]
    pub fn environment(message: impl Into<String>) -> Self {
        Self { exit: Exit::Environment, hint: None, cause: message.into().into() }
    }
}

/// `error: cause: its cause`, then the hint on a line of its own.
impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.cause().0)?;
        match &self.hint {
            Some(hint) => write!(f, "\nhint: {hint}"),
            None => Ok(()),
        }
    }
}

// `Stop` itself is no `Error`, so that every error can become one with `?`.
impl<E: Ends> From<E> for Stop {
    fn from(error: E) -> Self {
        Self { exit: error.exit(), hint: error.hint(), cause: Box::new(error) }
    }
}

impl Ends for store::StoreError {
    fn exit(&self) -> Exit {
        Exit::Environment
    }
}

impl Ends for judge::diff::DiffError {
    fn exit(&self) -> Exit {
        Exit::Unsound
    }
}
