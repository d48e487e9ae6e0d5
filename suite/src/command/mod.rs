//! Commands of `redline-bench`: flags in, files and exit codes out. Only this module prints.

pub mod audit;
pub mod export;
pub mod manual;
pub mod plan;
pub mod probe;
pub mod run;
pub mod search;
pub mod serving;
pub mod sweep;
pub mod verify_manifest;

mod bench;
mod files;
mod inputs;
mod progress;
mod table;
