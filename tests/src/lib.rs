//! The harness of the black-box tests: the built programs, scratch clones, and inputs that may be
//! absent. It knows processes, files and exit codes, and nothing of the inside of any program.

#![warn(missing_docs)]

pub mod clone;
pub mod disk;
pub mod inputs;
pub mod program;
pub mod scripted;
pub mod server;
pub mod skip;
pub mod slurm;
