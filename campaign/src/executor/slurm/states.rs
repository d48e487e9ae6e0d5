//! Slurm's job states, each mapped to its meaning for a campaign. Pure: it knows no tool.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use super::answers::{Ended, Report};
use super::ask::SlurmError;
use crate::executor::{JobEnd, JobState};
use crate::process::describe;

/// Meaning of a Slurm job state for a campaign.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meaning {
    /// The job has no node yet.
    Waits,
    /// The job has a node and is not over.
    Runs,
    Well,
    Failed,
    OverTime,
    OverMemory,
    LostNode,
    Preempted,
    Cancelled,
}

/// All job states of the section "Job state codes" in the manual of `squeue`, and its flags,
/// because some versions print a flag instead of a state. `REVOKED`, a job that only another
/// cluster of a federation runs, counts as waiting.
const STATES: &[(&str, Meaning)] = &[
    ("BOOT_FAIL", Meaning::LostNode),
    ("CANCELLED", Meaning::Cancelled),
    ("COMPLETED", Meaning::Well),
    ("COMPLETING", Meaning::Runs),
    ("CONFIGURING", Meaning::Waits),
    ("DEADLINE", Meaning::OverTime),
    ("EXPEDITING", Meaning::Waits),
    ("FAILED", Meaning::Failed),
    ("LAUNCH_FAILED", Meaning::LostNode),
    ("NODE_FAIL", Meaning::LostNode),
    ("OUT_OF_MEMORY", Meaning::OverMemory),
    ("PENDING", Meaning::Waits),
    ("POWER_UP_NODE", Meaning::Waits),
    ("PREEMPTED", Meaning::Preempted),
    ("RECONFIG_FAIL", Meaning::LostNode),
    ("REQUEUED", Meaning::Waits),
    ("REQUEUE_FED", Meaning::Waits),
    ("REQUEUE_HOLD", Meaning::Waits),
    ("RESIZING", Meaning::Runs),
    ("RESV_DEL_HOLD", Meaning::Waits),
    ("REVOKED", Meaning::Waits),
    ("RUNNING", Meaning::Runs),
    ("SIGNALING", Meaning::Runs),
    ("SPECIAL_EXIT", Meaning::Waits),
    ("STAGE_OUT", Meaning::Runs),
    ("STOPPED", Meaning::Runs),
    ("SUSPENDED", Meaning::Runs),
    ("TIMEOUT", Meaning::OverTime),
    ("UPDATE_DB", Meaning::Runs),
];

fn meaning(state: &str) -> Option<Meaning> {
    STATES.iter().find(|(name, _)| *name == state).map(|(_, meaning)| *meaning)
}

/// True when the job is over.
pub fn is_over(report: &Report) -> bool {
    !matches!(meaning(&report.state), Some(Meaning::Waits | Meaning::Runs) | None)
}

/// True when a user or Slurm itself cancelled the job.
pub fn is_cancelled(report: &Report) -> bool {
    meaning(&report.state) == Some(Meaning::Cancelled)
}

/// Converts a report into a job state. `turned_away` is the reason why the job's node refused to
/// begin it, if that is known.
///
/// # Errors
/// Slurm reports a state that its manual does not list.
pub fn state_of(report: Report, turned_away: Option<String>) -> Result<JobState, SlurmError> {
    let Some(meaning) = meaning(&report.state) else {
        let answer = format!("`{}`", report.state);
        return Err(SlurmError::Unreadable { tool: "scontrol", answer, expected: "a known state" });
    };
    let Report { state, reason, ended, node } = report;
    let said = || reason.clone().unwrap_or_else(|| state.clone());
    let end = match meaning {
        Meaning::Waits => return Ok(JobState::Queued { reason: said() }),
        Meaning::Runs => return Ok(JobState::Running { node: node.unwrap_or_default() }),
        Meaning::Well => JobEnd::Well,
        // The job failed without ever having had a node.
        Meaning::Failed if node.is_none() => JobEnd::Impossible { said: said() },
        Meaning::Failed => JobEnd::Failed { said: failure(ended, reason.as_deref()) },
        Meaning::OverTime => JobEnd::TimedOut,
        Meaning::OverMemory => JobEnd::OutOfMemory,
        Meaning::LostNode => JobEnd::LostNode { said: said() },
        Meaning::Preempted => JobEnd::Preempted,
        Meaning::Cancelled => match turned_away {
            Some(said) => JobEnd::LostNode { said },
            None => JobEnd::Cancelled,
        },
    };
    Ok(JobState::Ended { end, node })
}

/// Describes a failed job: `exit code 7`, `signal 9 (SIGKILL)`, or Slurm's reason if the process
/// itself succeeded or was never started.
fn failure(ended: Ended, reason: Option<&str>) -> String {
    match (ended, reason) {
        (Ended { code: 0, signal: 0 }, Some(reason)) => reason.to_owned(),
        // The encoding of a wait status: exit code in the high byte, signal in the low one.
        (Ended { code, signal }, _) => describe(ExitStatus::from_raw(code << 8 | signal)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::answers::tests::report;
    use super::*;

    fn seen(report: Report) -> JobState {
        state_of(report, None).unwrap()
    }

    #[test]
    fn every_state_of_slurms_manual_has_its_meaning() {
        let ends = |end: JobEnd| JobState::Ended { end, node: Some("n7".to_owned()) };
        let waits = |state: &str| JobState::Queued { reason: state.to_owned() };
        let lost = |state: &str| ends(JobEnd::LostNode { said: state.to_owned() });
        for (states, expected) in [
            (
                "PENDING CONFIGURING POWER_UP_NODE EXPEDITING REQUEUED REQUEUE_FED REQUEUE_HOLD \
                 RESV_DEL_HOLD REVOKED SPECIAL_EXIT",
                &waits as &dyn Fn(&str) -> JobState,
            ),
            (
                "RUNNING COMPLETING RESIZING SIGNALING STAGE_OUT STOPPED SUSPENDED UPDATE_DB",
                &|_| JobState::Running { node: "n7".to_owned() },
            ),
            ("COMPLETED", &|_| ends(JobEnd::Well)),
            ("FAILED", &|_| ends(JobEnd::Failed { said: "exit code 0".to_owned() })),
            ("TIMEOUT DEADLINE", &|_| ends(JobEnd::TimedOut)),
            ("OUT_OF_MEMORY", &|_| ends(JobEnd::OutOfMemory)),
            ("NODE_FAIL BOOT_FAIL LAUNCH_FAILED RECONFIG_FAIL", &lost),
            ("PREEMPTED", &|_| ends(JobEnd::Preempted)),
            ("CANCELLED", &|_| ends(JobEnd::Cancelled)),
        ] {
            for state in states.split_whitespace() {
                let report = report(state, None, (0, 0), Some("n7"));
                let over = matches!(expected(state), JobState::Ended { .. });
                assert_eq!(is_over(&report), over, "{state}");
                assert_eq!(seen(report), expected(state), "{state}");
            }
        }
        assert_eq!(STATES.len(), 29, "a state that no claim is made of");
        let error = state_of(report("MOLTEN", None, (0, 0), None), None).unwrap_err();
        assert!(error.to_string().contains("answered `MOLTEN`"), "{error}");
    }

    #[test]
    fn how_a_job_failed_is_said_as_of_any_process() {
        let said = |reason, ended| match seen(report("FAILED", Some(reason), ended, Some("n7"))) {
            JobState::Ended { end: JobEnd::Failed { said }, .. } => said,
            other => panic!("{other:?}"),
        };
        assert_eq!(said("NonZeroExitCode", (7, 0)), "exit code 7");
        assert_eq!(said("JobLaunchFailure", (0, 9)), "signal 9 (SIGKILL)");
        assert_eq!(said("SystemFailure", (0, 0)), "SystemFailure");
    }

    #[test]
    fn what_failed_without_a_node_could_never_run() {
        let state = seen(report("FAILED", Some("BadConstraints"), (1, 0), None));
        let end = JobEnd::Impossible { said: "BadConstraints".to_owned() };
        assert_eq!(state, JobState::Ended { end, node: None });
    }

    #[test]
    fn a_node_that_turned_a_job_away_is_lost_and_nobody_cancelled_it() {
        let cancelled = || report("CANCELLED", None, (0, 0), Some("n7"));
        assert!(is_cancelled(&cancelled()));
        let state = state_of(cancelled(), Some("Prolog error".to_owned())).unwrap();
        let end = JobEnd::LostNode { said: "Prolog error".to_owned() };
        assert_eq!(state, JobState::Ended { end, node: Some("n7".to_owned()) });
    }
}
