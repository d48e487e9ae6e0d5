//! Decision about unfinished runs of a job that has ended: retry them, record them as failed, or
//! stop the campaign. Pure. An engine's own failure is a record and never comes here.

use schema::run::FailureClass;

use crate::executor::JobEnd;
use crate::executor::job::NodeEnd;
use crate::stop::Stop;

/// Number of retries after failures that neither the job nor the engine caused, such as a lost
/// node.
const RETRIES: u32 = 2;

/// Decision about the blocks that a job has not finished.
#[derive(Debug)]
pub enum Next {
    /// Retry the blocks, on another node if the executor has one.
    Again { said: String },
    /// Record the runs of the blocks as failed.
    Failed { class: FailureClass, said: String },
    /// Stop the campaign; `--resume` runs the remaining blocks.
    Stop(Stop),
}

/// Decides about the unfinished blocks of an ended job. `report` is the node's own, if it
/// wrote one; `lost` counts earlier attempts that were lost; `is_here` is true when this machine is
/// the only node.
pub fn next(end: &JobEnd, report: Option<&NodeEnd>, lost: u32, is_here: bool) -> Next {
    // Three losses in a row point to the job itself, so that the runs are recorded as failed.
    let again = |class: FailureClass, said: String| match lost < RETRIES {
        true => Next::Again { said },
        false => Next::Failed { class, said: format!("{said}, on each of {} attempts", lost + 1) },
    };
    let infrastructure = |said: String| again(FailureClass::Infrastructure, said);
    if let Some(report) = report {
        let stop = report.stop().unwrap_or_else(|| {
            Stop::wrong_use("the node reports success, but some records are missing")
        });
        return match report {
            NodeEnd::Unfit { said } | NodeEnd::Broke { said, .. } if !is_here => {
                infrastructure(said.clone())
            }
            _ => Next::Stop(stop),
        };
    }
    match end {
        JobEnd::Well => infrastructure("the job ended without a final report".to_owned()),
        JobEnd::Failed { said } => infrastructure(format!("the job ended: {said}")),
        JobEnd::LostNode { said } => infrastructure(format!("the node was lost: {said}")),
        JobEnd::Preempted => {
            let said = "the scheduler took the node for another job";
            again(FailureClass::Preempted, said.to_owned())
        }
        JobEnd::TimedOut => Next::Failed {
            class: FailureClass::Timeout,
            said: "the job exceeded its time limit".to_owned(),
        },
        JobEnd::OutOfMemory => Next::Failed {
            class: FailureClass::Oom,
            said: "the job exceeded its memory limit".to_owned(),
        },
        JobEnd::Cancelled => Next::Stop(Stop::environment("a job was cancelled")),
        JobEnd::Impossible { said } => {
            Next::Stop(Stop::environment(format!("no node can run a job: {said}")))
        }
    }
}
