//! Labs: compare the options of a server with its baseline, round by round, until one
//! configuration can be recommended. Pure: the runs of a round are made elsewhere, or are read
//! from records.

mod arm;
mod candidates;
mod explore;
mod outcome;
mod outline;
mod replay;
mod score;
pub mod text;

pub use arm::{Found, Row};
pub use explore::{Conclusion, Confirmed, LabTooSmall, explore, runs_min};
pub use outcome::{Failure, Launch, Outcomes};
pub use outline::outline;
pub use replay::{Launches, Next, Replay, next, replay};
pub use score::{Effect, Score};
