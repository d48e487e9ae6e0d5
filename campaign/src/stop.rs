//! The error type of commands: cause, exit code, and a hint about what to do next.

use std::error::Error;
use std::fmt;

use schema::exit::Exit;

/// An error that determines the exit code of the program.
pub trait Ends: Error + Send + Sync + 'static {
    fn exit(&self) -> Exit {
        Exit::Environment
    }

    /// Returns advice to the user about how to fix the error; `None` if there is none.
    fn hint(&self) -> Option<String> {
        None
    }
}

/// Builds a failure with exit code 2, for wrong use of the command line or invalid data, from the
/// arguments of `format!`.
macro_rules! wrong_use {
    ($($words:tt)*) => { $crate::stop::Stop::wrong_use(format!($($words)*)) };
}

/// Builds a failure with exit code 4, for a machine, clone or tool that fails, from the arguments
/// of `format!`.
macro_rules! environment {
    ($($words:tt)*) => { $crate::stop::Stop::environment(format!($($words)*)) };
}

pub(crate) use {environment, wrong_use};

/// The failure of a command, as `main` prints it.
#[derive(Debug)]
pub struct Stop {
    exit: Exit,
    hint: Option<String>,
    cause: Box<dyn Error + Send + Sync>,
}

impl Stop {
    /// Returns the exit code that the program ends with.
    pub fn exit(&self) -> Exit {
        self.exit
    }

    /// Returns the error message with its chain of causes joined by colons, and the hint if there
    /// is one.
    pub fn cause(&self) -> (String, Option<String>) {
        let mut said = self.cause.to_string();
        // Errors print only their own sentence, so the causes are appended here.
        let mut cause = self.cause.source();
        while let Some(error) = cause {
            said.push_str(&format!(": {error}"));
            cause = error.source();
        }
        (said, self.hint.clone())
    }

    /// Sets the failure's hint, in place of an earlier one.
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Puts `what`, a sentence that says what failed, and a colon before the failure's message.
    pub fn context(self, what: &str) -> Self {
        let cause = format!("{what}: {}", self.cause().0).into();
        Self { cause, ..self }
    }

    /// Appends `note: FACT` to the failure's hint; without a hint, the fact becomes the hint.
    pub fn also(mut self, fact: &str) -> Self {
        self.hint = Some(match self.hint {
            Some(hint) => format!("{hint}\nnote: {fact}"),
            None => fact.to_owned(),
        });
        self
    }

    /// Builds a failure with exit code 2, for wrong use of the command line or invalid data,
    /// without a hint.
    pub fn wrong_use(message: impl Into<String>) -> Self {
        Self { exit: Exit::Unsound, hint: None, cause: message.into().into() }
    }

    /// Builds a failure with exit code 4, for a machine, clone or tool that fails, without a hint.
    pub fn environment(message: impl Into<String>) -> Self {
        Self { exit: Exit::Environment, hint: None, cause: message.into().into() }
    }
}

/// Formats the failure as `error: MESSAGE`, with the chain of causes joined by colons, and, if
/// there is a hint, `hint: HINT` on a line of its own.
impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.cause().0)?;
        match &self.hint {
            Some(hint) => write!(f, "\nhint: {hint}"),
            None => Ok(()),
        }
    }
}

// `Stop` does not implement `Error`: otherwise this blanket conversion, which lets `?` turn every
// error into a `Stop`, would overlap with `From<T> for T`.
impl<E: Ends> From<E> for Stop {
    fn from(error: E) -> Self {
        Self { exit: error.exit(), hint: error.hint(), cause: Box::new(error) }
    }
}

impl Ends for store::StoreError {}

impl Ends for whole_file::PrintError {}

impl Ends for whole_file::ReadError {
    fn exit(&self) -> Exit {
        self.system().map_or(Exit::Unsound, |_| Exit::Environment)
    }
}

impl Ends for judge::QueryError {
    fn exit(&self) -> Exit {
        Exit::Unsound
    }
}

impl Ends for schema::canonical::CanonicalError {
    fn exit(&self) -> Exit {
        Exit::Unsound
    }
}

impl Ends for schema::path::PathError {
    fn exit(&self) -> Exit {
        Exit::Unsound
    }
}
