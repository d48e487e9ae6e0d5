//! Commands of `redline-bench`: flags in, files and exit codes out. In the library, only this
//! module prints results.

pub mod abort;
pub mod alternate;
pub mod audit;
pub mod export;
pub mod manual;
pub mod plan;
pub mod probe;
pub mod run;
pub mod serving;
pub mod sweep;

mod files;
mod progress;
mod table;
mod threshold;
