//! Failure of a run derived from its failed requests: the class of the failure and its message.

use std::collections::BTreeMap;
use std::time::Duration;

use schema::run::{Failure, FailureClass, Phase};

use super::Assignment;
use crate::client::drive::Driven;
use crate::client::sample::FailureKind;

impl Assignment<'_> {
    /// True when a request failed and the server no longer answers its readiness route. A server
    /// that hung has `no_progress_ns` to answer, as its requests had.
    pub(super) fn is_gone(&self, driven: &Driven) -> bool {
        let limit_ns = if driven.hung { self.no_progress_ns } else { u64::MAX };
        let failed = driven.samples.iter().any(|sample| !sample.is_ok());
        failed && !self.server.answers(&self.engine.ready.route, Duration::from_nanos(limit_ns))
    }
}

/// Failure of a run in which at least one request failed, by the most frequent kind; `None` if all
/// requests were answered.
pub fn of(driven: &Driven, gone: bool, phase: Phase) -> Option<Failure> {
    let mut kinds: BTreeMap<FailureKind, (u64, &str)> = BTreeMap::new();
    for failure in driven.samples.iter().filter_map(|sample| sample.failure.as_ref()) {
        kinds.entry(failure.kind).or_insert((0, &failure.message)).0 += 1;
    }
    // Requests that were never sent tell nothing about the cause.
    let sent = |kind: &FailureKind| *kind != FailureKind::NotSent;
    let (kind, (count, message)) = kinds
        .iter()
        .filter(|(kind, _)| sent(kind) || kinds.len() == 1)
        .max_by_key(|(_, (count, _))| *count)?;
    let total = driven.samples.len();
    let message = format!("{count} of {total} requests: {kind}: {message}");
    let class = if driven.hung {
        FailureClass::Hang
    } else if gone {
        FailureClass::Crash
    } else {
        class_of(*kind)
    };
    let message = if gone { format!("{message}; the server no longer answers") } else { message };
    Some(Failure { class, phase, message })
}

fn class_of(kind: FailureKind) -> FailureClass {
    match kind {
        FailureKind::Connect | FailureKind::Reset | FailureKind::Closed => FailureClass::Crash,
        FailureKind::Stall => FailureClass::Hang,
        FailureKind::Http(408 | 504) => FailureClass::Timeout,
        FailureKind::Http(429 | 503) | FailureKind::NotSent => FailureClass::Infrastructure,
        FailureKind::Http(400..=499 | 501) => FailureClass::Unsupported,
        FailureKind::Http(_)
        | FailureKind::ErrorEvent
        | FailureKind::NoTokens
        | FailureKind::BadHttp
        | FailureKind::BadEvent => FailureClass::BadOutput,
    }
}
