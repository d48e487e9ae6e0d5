//! Parsers for the output of Slurm's tools, and the meaning of Slurm's job states for a campaign.
//! Pure: text in, facts out; they run nothing.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use crate::executor::{JobEnd, JobState};
use crate::process::describe;
use crate::stop::{Stop, environment};

/// Arguments of `squeue` that list job ids, including jobs that have ended and are not yet
/// forgotten.
pub const LIST: [&str; 3] = ["--noheader", "--states=all", "--format=%i"];

/// Arguments of `sacct` that print one row per job and none for its steps. The row format is used
/// because the JSON of some versions reported a job that ended with exit code 7 as a success.
pub const ACCOUNT: [&str; 4] =
    ["--noheader", "--parsable2", "--allocations", "--format=JobIDRaw,State,ExitCode,NodeList"];

/// Slurm's name of the state of a job that a user or Slurm itself cancelled.
pub const CANCELLED: &str = "CANCELLED";

/// Exit code of a job's process, and number of the signal that ended it, 0 if it ended without one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    pub code: i32,
    pub signal: i32,
}

/// State of a job as Slurm reports it, from the output of `scontrol` or `sacct`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Slurm's name of the job's state, such as `NODE_FAIL`.
    pub state: String,
    /// Reason why the job waits or failed, if Slurm states one.
    pub reason: Option<String>,
    pub ended: Ended,
    pub node: Option<String>,
}

/// Parses the job id from the output of `sbatch --parsable`: `17`, or `17;cluster` in a federation.
///
/// # Errors
/// The output contains no job id.
pub fn submitted(stdout: &str) -> Result<String, Stop> {
    let id = stdout.trim().split(';').next().unwrap_or_default();
    job_id("sbatch", id).map(str::to_owned)
}

/// Checks that `text`, which `tool` printed, is a job id: decimal digits only.
///
/// # Errors
/// `text` is not a job id.
pub fn job_id<'a>(tool: &str, text: &'a str) -> Result<&'a str, Stop> {
    let is_id = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_id { Ok(text) } else { Err(unreadable(tool, text, "a job id")) }
}

/// Returns the highest of the job ids at the beginning of the lines that `tool` printed, `None`
/// without lines: ids count up, so it is the latest job.
///
/// # Errors
/// A line does not begin with a job id.
pub fn latest(tool: &str, stdout: &str) -> Result<Option<String>, Stop> {
    let lines = stdout.lines().map(str::trim).filter(|line| !line.is_empty());
    let ids = lines.map(|line| {
        let id = job_id(tool, line.split('|').next().unwrap_or_default())?;
        id.parse::<u64>().map_err(|_| unreadable(tool, line, "a job id"))
    });
    let ids: Vec<u64> = ids.collect::<Result<_, _>>()?;
    // Compared as numbers: as text, `9` would sort after `10`.
    Ok(ids.into_iter().max().map(|id| id.to_string()))
}

/// Parses the line of `scontrol --oneliner show job`, words `Key=Value`. The names of Redline's
/// jobs contain no spaces, so the first word with a key is Slurm's own.
///
/// # Errors
/// A word that every Slurm version prints is missing, or the exit code has another form.
pub fn shown(stdout: &str) -> Result<Report, Stop> {
    let line = stdout.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let value = |key: &str| {
        let words = line.split(' ').filter_map(|word| word.split_once('='));
        words.clone().find(|(k, _)| *k == key).map(|(_, value)| value)
    };
    let needed = |key: &str, expected: &str| {
        value(key).ok_or_else(|| unreadable("scontrol", line, expected))
    };
    Ok(Report {
        state: needed("JobState", "`JobState=`")?.to_owned(),
        reason: value("Reason").and_then(stated),
        ended: ended("scontrol", needed("ExitCode", "`ExitCode=`")?)?,
        node: value("NodeList").and_then(stated),
    })
}

/// Parses the last row that `sacct` printed; `None` if there is none.
///
/// # Errors
/// The row has other columns than the requested ones, or the exit code has another form.
pub fn accounted(stdout: &str) -> Result<Option<Report>, Stop> {
    // The latest attempt is the last row; `sacct` shows earlier ones only on request.
    let Some(line) = stdout.lines().rfind(|line| !line.trim().is_empty()) else { return Ok(None) };
    let columns: Vec<&str> = line.split('|').collect();
    let [_, state, code, nodes] = columns[..] else {
        return Err(unreadable("sacct", line, "four columns"));
    };
    // The state of a cancelled job is followed by the user: `CANCELLED by 1000`.
    let state = state.split(' ').next().unwrap_or_default().to_owned();
    let node = stated(nodes);
    Ok(Some(Report { state, reason: None, ended: ended("sacct", code)?, node }))
}

/// Returns the first reason in the output of `sinfo --format=%T|%E` which says that a node is out
/// of service because its prolog, a check before a job, failed; `None` if no reason does.
pub fn failed_prolog(stdout: &str) -> Option<String> {
    let reasons = stdout.lines().filter_map(|line| line.trim().split_once('|'));
    reasons.map(|(_, reason)| reason).find(|r| r.to_lowercase().contains("prolog")).map(Into::into)
}

/// Parses an exit code and a signal that `tool` printed, such as `7:0`.
fn ended(tool: &str, text: &str) -> Result<Ended, Stop> {
    let parsed = text.split_once(':').and_then(|(code, signal)| {
        Some(Ended { code: code.parse().ok()?, signal: signal.parse().ok()? })
    });
    parsed.ok_or_else(|| unreadable(tool, text, "an exit code such as `7:0`"))
}

/// Returns a value of Slurm's output; `None` if it is one of Slurm's words for "nothing".
fn stated(value: &str) -> Option<String> {
    let says_nothing = matches!(value, "" | "None" | "(null)" | "None assigned" | "Unknown");
    (!says_nothing).then(|| value.to_owned())
}

fn unreadable(tool: &str, answer: &str, expected: &str) -> Stop {
    let start: String = answer.trim().chars().take(120).collect();
    let answer = if start.is_empty() { "nothing".to_owned() } else { format!("`{start}`") };
    environment!("`{tool}` answered {answer}, where {expected} was expected")
        .with_hint("the answers of Slurm 22.05 are known; is the tool a wrapper?")
}

/// Converts a report into a job state. `turned_away` is the reason why the job's node refused to
/// begin it, if that is known.
///
/// The states are all of the section "Job state codes" in the manual of `squeue`, and its flags,
/// because some versions print a flag instead of a state. `REVOKED`, a job that only another
/// cluster of a federation runs, counts as waiting.
///
/// # Errors
/// Slurm reports a state that its manual does not list.
pub fn state_of(report: Report, turned_away: Option<String>) -> Result<JobState, Stop> {
    let Report { state, reason, ended, node } = report;
    let said = || reason.clone().unwrap_or_else(|| state.clone());
    let end = match state.as_str() {
        "CONFIGURING" | "EXPEDITING" | "PENDING" | "POWER_UP_NODE" | "REQUEUED" | "REQUEUE_FED"
        | "REQUEUE_HOLD" | "RESV_DEL_HOLD" | "REVOKED" | "SPECIAL_EXIT" => {
            return Ok(JobState::Queued { reason: said() });
        }
        // The job has a node and is not over.
        "COMPLETING" | "RESIZING" | "RUNNING" | "SIGNALING" | "STAGE_OUT" | "STOPPED"
        | "SUSPENDED" | "UPDATE_DB" => {
            return Ok(JobState::Running { node: node.unwrap_or_default() });
        }
        "COMPLETED" => JobEnd::Well,
        // The job failed without ever having had a node.
        "FAILED" if node.is_none() => JobEnd::Impossible { said: said() },
        "FAILED" => JobEnd::Failed { said: failure(ended, reason.as_deref()) },
        "DEADLINE" | "TIMEOUT" => JobEnd::TimedOut,
        "OUT_OF_MEMORY" => JobEnd::OutOfMemory,
        "BOOT_FAIL" | "LAUNCH_FAILED" | "NODE_FAIL" | "RECONFIG_FAIL" => {
            JobEnd::LostNode { said: said() }
        }
        "PREEMPTED" => JobEnd::Preempted,
        CANCELLED => match turned_away {
            Some(said) => JobEnd::LostNode { said },
            None => JobEnd::Cancelled,
        },
        other => return Err(unreadable("scontrol", other, "a known state")),
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
    use super::*;

    /// Sample output, for tests, of `scontrol --oneliner show job` of Slurm 22.05 for a job that
    /// ended with exit code 7, truncated after the fields that are read.
    const FAILED: &str = "JobId=2 JobName=odd|name UserId=root(0) GroupId=root(0) MCS_label=N/A \
        Priority=4294901758 Nice=0 Account=(null) QOS=(null) JobState=FAILED \
        Reason=NonZeroExitCode Dependency=(null) Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 \
        ExitCode=7:0 RunTime=00:00:00 TimeLimit=UNLIMITED TimeMin=N/A Partition=batch \
        ReqNodeList=(null) ExcNodeList=node1 NodeList=node2 BatchHost=node2 NumNodes=1 \
        WorkDir=/jobs/JobState=X StdOut=/jobs/slurm-2.log Power= \n";

    /// Sample output, for tests, of `scontrol --oneliner show job` for a job that has just been
    /// submitted.
    const WAITING: &str = "JobId=12 JobName=redline-0123456789ab-1 UserId=root(0) JobState=PENDING \
        Reason=Resources Dependency=(null) Requeue=0 Restarts=0 ExitCode=0:0 ReqNodeList=(null) \
        ExcNodeList=(null) NodeList= NumNodes=1-1 \n";

    /// Builds, for tests, Slurm's report on a job from its fields; `ended` is exit code and signal.
    fn report(state: &str, reason: Option<&str>, ended: (i32, i32), node: Option<&str>) -> Report {
        let ended = Ended { code: ended.0, signal: ended.1 };
        let owned = |text: &str| text.to_owned();
        Report { state: owned(state), reason: reason.map(owned), ended, node: node.map(owned) }
    }

    fn accounted_as(row: &str) -> Report {
        accounted(row).unwrap().unwrap()
    }

    #[test]
    fn the_controllers_line_is_read_by_its_keys() {
        let failed = report("FAILED", Some("NonZeroExitCode"), (7, 0), Some("node2"));
        assert_eq!(shown(FAILED).unwrap(), failed);
        assert_eq!(shown(WAITING).unwrap(), report("PENDING", Some("Resources"), (0, 0), None));
    }

    #[test]
    fn the_rows_of_accounting_are_read_with_who_cancelled() {
        let node1 = Some("node1");
        for (row, expected) in [
            ("1|CANCELLED by 0|0:0|node1\n", report("CANCELLED", None, (0, 0), node1)),
            ("2|FAILED|7:0|node1\n", report("FAILED", None, (7, 0), node1)),
            ("3|FAILED|0:9|node1\n", report("FAILED", None, (0, 9), node1)),
            ("5|TIMEOUT|0:0|node1\n", report("TIMEOUT", None, (0, 0), node1)),
            ("6|FAILED|1:0|None assigned\n", report("FAILED", None, (1, 0), None)),
        ] {
            assert_eq!(accounted_as(row), expected, "{row}");
        }
        assert_eq!(accounted("\n").unwrap(), None, "a job that accounting has not heard of");
    }

    #[test]
    fn the_latest_of_a_name_is_the_highest_number() {
        assert_eq!(latest("squeue", "9\n10\n").unwrap().as_deref(), Some("10"));
        assert_eq!(latest("squeue", "\n").unwrap(), None);
        let rows = "7|FAILED|7:0|node1\n11|RUNNING|0:0|node1\n";
        assert_eq!(latest("sacct", rows).unwrap().as_deref(), Some("11"));
        assert_eq!(submitted("17\n").unwrap(), "17");
        assert_eq!(submitted("17;cluster\n").unwrap(), "17", "in a federation");
    }

    #[test]
    fn what_is_not_understood_is_said_with_the_tool_that_said_it() {
        let said = |error: Stop| error.cause().0;
        let sbatch = said(submitted("Submitted batch job 17\n").unwrap_err());
        assert_eq!(
            sbatch,
            "`sbatch` answered `Submitted batch job 17`, where a job id was expected"
        );
        let empty = said(submitted("").unwrap_err());
        assert_eq!(empty, "`sbatch` answered nothing, where a job id was expected");
        assert!(said(shown("").unwrap_err()).starts_with("`scontrol` answered nothing"));
        let code = said(shown(&FAILED.replace("7:0", "seven")).unwrap_err());
        assert!(code.contains("`scontrol` answered `seven`, where an exit code"), "{code}");
        let row = said(accounted("2|FAILED|7:0\n").unwrap_err());
        assert!(row.contains("`sacct` answered `2|FAILED|7:0`, where four columns"), "{row}");
        assert!(said(latest("squeue", "JOBID\n").unwrap_err()).contains("`squeue`"));
    }

    #[test]
    fn only_a_failed_check_takes_the_blame_for_a_cancelled_job() {
        assert_eq!(failed_prolog("drained|Prolog error\n").as_deref(), Some("Prolog error"));
        assert_eq!(failed_prolog("idle|none\n"), None);
        assert_eq!(failed_prolog("drained|disk is full\n"), None);
    }

    fn seen(report: Report) -> JobState {
        state_of(report, None).unwrap()
    }

    #[test]
    fn every_state_of_slurms_manual_has_its_meaning() {
        let ends = |end: JobEnd| JobState::Ended { end, node: Some("n7".to_owned()) };
        let waits = |state: &str| JobState::Queued { reason: state.to_owned() };
        let lost = |state: &str| ends(JobEnd::LostNode { said: state.to_owned() });
        let mut count = 0;
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
                assert_eq!(seen(report), expected(state), "{state}");
                count += 1;
            }
        }
        assert_eq!(count, 29, "a state that no claim is made of");
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
        let state = state_of(cancelled(), Some("Prolog error".to_owned())).unwrap();
        let end = JobEnd::LostNode { said: "Prolog error".to_owned() };
        assert_eq!(state, JobState::Ended { end, node: Some("n7".to_owned()) });
    }
}
