//! What follows from how a job ended: whether what is left of it is launched again, is recorded as
//! failed, or ends the campaign. Pure; an engine's own failure is a record and never comes here.

use schema::run::FailureClass;

use crate::executor::JobEnd;
use crate::executor::job::NodeEnd;
use crate::stop::Stop;

/// How often what neither the job nor the engine is to blame for is tried again.
pub const RETRIES: u32 = 2;

/// What becomes of the blocks that a job has not finished.
#[derive(Debug)]
pub enum Next {
    /// They are launched again, elsewhere where there is an elsewhere.
    Again { said: String },
    /// Their runs are recorded as failed.
    Failed { class: FailureClass, said: String },
    /// The campaign stops; what is left is launched when it goes on.
    Stop(Stop),
}

/// Judges the end of a job with blocks that are not finished, of which `lost` attempts were lost
/// before. `is_here` says that there is no other node than this machine.
#[must_use]
pub fn next(end: &JobEnd, told: Option<&NodeEnd>, lost: u32, is_here: bool) -> Next {
    let again = |class: FailureClass, said: String| match lost < RETRIES {
        true => Next::Again { said },
        false => Next::Failed { class, said: format!("{said}, on each of {} attempts", lost + 1) },
    };
    let infrastructure = |said: String| again(FailureClass::Infrastructure, said);
    if let Some(told) = told {
        let stop = told.stop().unwrap_or_else(|| {
            Stop::wrong_use("the node says that all is done, and some records are not there")
        });
        return match told {
            NodeEnd::Unfit { said } | NodeEnd::Broke { said, .. } if !is_here => {
                infrastructure(said.clone())
            }
            _ => Next::Stop(stop),
        };
    }
    match end {
        JobEnd::Well => infrastructure("the job ended and left nothing that says how".to_owned()),
        JobEnd::Failed { said } => infrastructure(format!("the job ended: {said}")),
        JobEnd::LostNode { said } => infrastructure(format!("the node was lost: {said}")),
        JobEnd::Preempted => {
            let said = "the scheduler took the node for another job";
            again(FailureClass::Preempted, said.to_owned())
        }
        JobEnd::TimedOut => Next::Failed {
            class: FailureClass::Timeout,
            said: "the job did not end within the time that it was given".to_owned(),
        },
        JobEnd::OutOfMemory => Next::Failed {
            class: FailureClass::Oom,
            said: "the job took more memory than it was given".to_owned(),
        },
        JobEnd::Cancelled => Next::Stop(Stop::environment("a job was cancelled")),
        JobEnd::Impossible { said } => {
            Next::Stop(Stop::environment(format!("no node can run a job: {said}")))
        }
    }
}
