//! Parsers for the output of Slurm's tools. Pure: text in, facts out; they run nothing.

use super::ask::SlurmError;

/// Arguments of `squeue` that list job ids, including jobs that have ended and are not yet
/// forgotten.
pub const LIST: [&str; 3] = ["--noheader", "--states=all", "--format=%i"];

/// Arguments of `sacct` that print one row per job and none for its steps. The row format is used
/// because the JSON of some versions reported a job that ended with exit code 7 as a success.
pub const ACCOUNT: [&str; 4] =
    ["--noheader", "--parsable2", "--allocations", "--format=JobIDRaw,State,ExitCode,NodeList"];

/// Exit code of a job's process, and the signal that ended it, or 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    pub code: i32,
    pub signal: i32,
}

/// Description of a job, as `scontrol` or `sacct` prints it.
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
pub fn submitted(stdout: &str) -> Result<String, SlurmError> {
    let id = stdout.trim().split(';').next().unwrap_or_default();
    job_id("sbatch", id).map(str::to_owned)
}

/// Checks that `text` is a job id: decimal digits only.
///
/// # Errors
/// `text` is not a job id.
pub fn job_id<'a>(tool: &'static str, text: &'a str) -> Result<&'a str, SlurmError> {
    let is_id = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_id { Ok(text) } else { Err(unreadable(tool, text, "a job id")) }
}

/// Returns the highest of the job ids at the beginning of the lines: ids count up, so it is the
/// latest job.
///
/// # Errors
/// A line begins with something else.
pub fn latest(tool: &'static str, stdout: &str) -> Result<Option<String>, SlurmError> {
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
/// A word that every Slurm version prints is missing.
pub fn shown(stdout: &str) -> Result<Report, SlurmError> {
    let line = stdout.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let value = |key: &str| {
        let words = line.split(' ').filter_map(|word| word.split_once('='));
        words.clone().find(|(k, _)| *k == key).map(|(_, value)| value)
    };
    let needed = |key: &'static str, expected: &'static str| {
        value(key).ok_or_else(|| unreadable("scontrol", line, expected))
    };
    Ok(Report {
        state: needed("JobState", "`JobState=`")?.to_owned(),
        reason: value("Reason").and_then(stated),
        ended: ended("scontrol", needed("ExitCode", "`ExitCode=`")?)?,
        node: value("NodeList").and_then(stated),
    })
}

/// Parses the row of `sacct`; `None` if there is none.
///
/// # Errors
/// The row has other columns than the requested ones.
pub fn accounted(stdout: &str) -> Result<Option<Report>, SlurmError> {
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

/// Finds, in the output of `sinfo --format=%T|%E`, that a node is out of service because its
/// prolog, a check before a job, failed.
pub fn failed_prolog(stdout: &str) -> Option<String> {
    let reasons = stdout.lines().filter_map(|line| line.trim().split_once('|'));
    reasons.map(|(_, reason)| reason).find(|r| r.to_lowercase().contains("prolog")).map(Into::into)
}

/// True when a tool failed because the controller knows no such job.
pub fn is_unknown_id(stderr: &str) -> bool {
    stderr.contains("Invalid job id specified")
}

/// True when `sacct` failed because the cluster keeps no accounting.
pub fn is_without_accounting(stderr: &str) -> bool {
    stderr.contains("accounting storage is disabled")
}

/// Parses an exit code and a signal, such as `7:0`.
fn ended(tool: &'static str, text: &str) -> Result<Ended, SlurmError> {
    let parsed = text.split_once(':').and_then(|(code, signal)| {
        Some(Ended { code: code.parse().ok()?, signal: signal.parse().ok()? })
    });
    parsed.ok_or_else(|| unreadable(tool, text, "an exit code such as `7:0`"))
}

/// Returns a value of Slurm's output unless it is one of Slurm's words for "nothing".
fn stated(value: &str) -> Option<String> {
    let says_nothing = matches!(value, "" | "None" | "(null)" | "None assigned" | "Unknown");
    (!says_nothing).then(|| value.to_owned())
}

fn unreadable(tool: &'static str, answer: &str, expected: &'static str) -> SlurmError {
    let start: String = answer.trim().chars().take(120).collect();
    let answer = if start.is_empty() { "nothing".to_owned() } else { format!("`{start}`") };
    SlurmError::Unreadable { tool, answer, expected }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Output of Slurm 22.05 for a job that ended with exit code 7, truncated after the fields that
    /// are read.
    const FAILED: &str = "JobId=2 JobName=odd|name UserId=root(0) GroupId=root(0) MCS_label=N/A \
        Priority=4294901758 Nice=0 Account=(null) QOS=(null) JobState=FAILED \
        Reason=NonZeroExitCode Dependency=(null) Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 \
        ExitCode=7:0 RunTime=00:00:00 TimeLimit=UNLIMITED TimeMin=N/A Partition=batch \
        ReqNodeList=(null) ExcNodeList=node1 NodeList=node2 BatchHost=node2 NumNodes=1 \
        WorkDir=/jobs/JobState=X StdOut=/jobs/slurm-2.log Power= \n";

    /// Output of the same command for a job that has just been submitted.
    const WAITING: &str = "JobId=12 JobName=redline-0123456789ab-1 UserId=root(0) JobState=PENDING \
        Reason=Resources Dependency=(null) Requeue=0 Restarts=0 ExitCode=0:0 ReqNodeList=(null) \
        ExcNodeList=(null) NodeList= NumNodes=1-1 \n";

    /// Makes a report from its fields.
    pub(in super::super) fn report(
        state: &str,
        reason: Option<&str>,
        ended: (i32, i32),
        node: Option<&str>,
    ) -> Report {
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
        let said = |error: SlurmError| error.to_string();
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

    #[test]
    fn no_such_job_and_no_accounting_are_answers() {
        assert!(is_unknown_id("slurm_load_jobs error: Invalid job id specified"));
        assert!(!is_unknown_id("slurm_load_jobs error: Unable to contact slurm controller"));
        assert!(is_without_accounting("Slurm accounting storage is disabled"));
    }
}
