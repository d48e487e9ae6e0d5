//! A lab: options of a server against its baseline, round by round, until one configuration can be
//! recommended. Pure: rounds are launched by somebody else, or were launched long ago.

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
