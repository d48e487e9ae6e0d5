//! Harness of the black-box tests: built programs, scratch clones of the repository, servers, Slurm
//! clusters, and inputs that may be missing. It knows processes, files and exit codes, and must not
//! know the inside of any program.

#![warn(missing_docs)]

pub mod clone;
pub mod disk;
pub mod killed;
pub mod program;
pub mod scripted;
pub mod server;
pub mod slurm;
