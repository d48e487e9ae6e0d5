//! Commands of `redline-bench`: flags in, files and exit codes out. Only this module prints.

pub mod audit;
pub mod export;
pub mod first_answer;
pub mod manual;
pub mod plan;
pub mod probe;
pub mod run;
pub mod search;
pub mod serving;
pub mod sweep;
pub mod verify_manifest;

mod bench;
mod inputs;
mod keeper;
mod progress;
mod table;
mod write;
