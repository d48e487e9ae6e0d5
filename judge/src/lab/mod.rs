//! Labs: compare the options of a server with its baseline, round by round, until one
//! configuration can be recommended. Pure: the runs of a round are made elsewhere, or are read
//! from records.

mod arm;
mod candidates;
mod change;
mod design;
mod explore;
mod factorial;
mod outline;
mod replay;
mod superseded;
pub mod text;

pub use arm::{Effect, Failure, Found, Launch, Outcomes, Row, Score};
pub use change::{Change, Compared, Sides, change, frontier, is_default};
pub use explore::{Conclusion, Confirmed, check_budget, check_limits, explore, runs_min};
pub use factorial::{Contrast, Screening};
pub use outline::outline;
pub use replay::{Launches, Next, Replay, replay};
pub use superseded::{Superseded, superseded};
