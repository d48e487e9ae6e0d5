//! Classification of a failed run. An engine's failure is a result: it is recorded and never
//! retried.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use schema::run::{Failure, FailureClass, Phase};

use crate::process::describe;
use crate::redact::Identity;

/// Failure of a run, as the campaign observed it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Happening {
    /// The server's process ended, with this status, before the server was ready.
    ExitedBeforeReady(ExitStatus),
    /// The server was not ready within `limit_s` seconds; `said` is its last answer to a probe, or
    /// why there was none.
    NotReady { limit_s: u64, said: String },
    /// The server's answer about its own configuration cannot be parsed, for this reason.
    Unreadable(String),
    /// The server runs, but reports another version than the one that was started.
    OtherVersion { expected: String, found: String },
    /// The server's process ended, with this status, during the measurement.
    Died(ExitStatus),
    /// The server's process runs and no longer answers; the text says how the last probe failed.
    Silent(String),
    /// The load generator did not end within `limit_s` seconds.
    Stuck { limit_s: u64 },
}

const SIGKILL: i32 = 9;
/// Exit code of `redline` for a flag or value that the release does not support.
const REFUSED: i32 = 2;

/// Classifies a failure of a run and writes its message, with the end of the server's log. `phase`
/// is how far the load generator had come, if known.
pub fn classify(
    happening: &Happening,
    phase: Option<Phase>,
    log_tail: &str,
    identity: &Identity,
) -> Failure {
    let during = phase.unwrap_or(Phase::Measure);
    let (class, phase, what) = match happening {
        Happening::ExitedBeforeReady(status) => {
            let class = match status.code() {
                // Argument parsers, Rust's and Python's, exit with 2 for an unknown flag or value.
                Some(REFUSED) => FailureClass::Unsupported,
                _ => death(*status, log_tail),
            };
            let what = format!("the server ended with {} before it was ready", describe(*status));
            (class, Phase::Load, what)
        }
        Happening::NotReady { limit_s, said } => {
            let what = format!("the server was not ready after {limit_s} s: {said}");
            (FailureClass::Hang, Phase::Load, what)
        }
        Happening::Unreadable(said) => {
            let what = format!("the server's description of itself cannot be read: {said}");
            (FailureClass::BadOutput, Phase::Load, what)
        }
        Happening::OtherVersion { expected, found } => {
            let what = format!("the server reports version {found}, expected {expected}");
            (FailureClass::Infrastructure, Phase::Load, what)
        }
        Happening::Died(status) => {
            let what = format!("the server ended with {} during the run", describe(*status));
            (death(*status, log_tail), during, what)
        }
        Happening::Silent(said) => {
            let what = format!("the server runs and no longer answers: {said}");
            (FailureClass::Hang, during, what)
        }
        Happening::Stuck { limit_s } => {
            let what = format!("the run did not end within {limit_s} s");
            (FailureClass::Hang, during, what)
        }
    };
    let mut message = identity.redact(&what);
    let tail = identity.tail(log_tail);
    if !tail.is_empty() {
        message.push_str("\nlast lines of the server:\n");
        message.push_str(&tail);
    }
    Failure { class, phase, message }
}

/// Classifies the death of a server. SIGKILL without a request to end can only come from the
/// kernel's out-of-memory killer; other deaths name memory in the log or are crashes.
fn death(status: ExitStatus, log_tail: &str) -> FailureClass {
    let log = log_tail.to_lowercase();
    let says_memory = ["out of memory", "cannot allocate memory", "memory allocation of"]
        .iter()
        .any(|needle| log.contains(needle));
    if status.signal() == Some(SIGKILL) || says_memory {
        FailureClass::Oom
    } else {
        FailureClass::Crash
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit(code: i32) -> ExitStatus {
        ExitStatus::from_raw(code << 8)
    }

    fn signal(number: i32) -> ExitStatus {
        ExitStatus::from_raw(number)
    }

    #[test]
    fn every_way_to_fail_has_its_class_and_phase() {
        use FailureClass as C;
        for (happening, log, class, phase) in [
            (Happening::ExitedBeforeReady(exit(1)), "", C::Crash, Phase::Load),
            (Happening::ExitedBeforeReady(exit(2)), "", C::Unsupported, Phase::Load),
            (Happening::ExitedBeforeReady(signal(9)), "", C::Oom, Phase::Load),
            (Happening::ExitedBeforeReady(signal(11)), "", C::Crash, Phase::Load),
            (Happening::Died(exit(101)), "CUDA: Out of memory", C::Oom, Phase::Measure),
            (
                Happening::Died(signal(6)),
                "memory allocation of 9 bytes failed",
                C::Oom,
                Phase::Measure,
            ),
            (Happening::Died(exit(0)), "", C::Crash, Phase::Measure),
            (Happening::NotReady { limit_s: 5, said: String::new() }, "", C::Hang, Phase::Load),
            (Happening::Unreadable("x".into()), "", C::BadOutput, Phase::Load),
            (Happening::Silent("x".into()), "", C::Hang, Phase::Measure),
            (Happening::Stuck { limit_s: 9 }, "", C::Hang, Phase::Measure),
        ] {
            let failure = classify(&happening, None, log, &Identity::default());
            assert_eq!((failure.class, failure.phase), (class, phase), "{happening:?}");
        }
        let warm =
            classify(&Happening::Died(exit(1)), Some(Phase::Warmup), "", &Identity::default());
        assert_eq!(warm.phase, Phase::Warmup);
    }

    #[test]
    fn the_message_ends_with_the_servers_last_words_without_paths() {
        let happening = Happening::ExitedBeforeReady(exit(4));
        let log = "loading\nerror: cannot read `/home/ada/m.gguf`: cut short\n";
        let failure = classify(&happening, None, log, &Identity::default());
        assert_eq!(
            failure.message,
            "the server ended with exit code 4 before it was ready\n\
             last lines of the server:\n\
             loading\nerror: cannot read `{path}/m.gguf`: cut short"
        );
    }
}
