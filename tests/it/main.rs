//! Black-box tests, one file per promise to a user. They run real binaries and use files,
//! processes, HTTP and git only.

mod bad_input;
mod browser;
mod client_bench;
mod cluster;
mod crowd;
mod documents;
mod engines;
mod failing;
mod full_disk;
mod gpu_validation;
mod hand_edited;
mod headlines;
mod interrupted;
mod plans;
mod quickstart;
mod registry;
mod scale_bench;
mod serving;
mod soak;
mod stages;
mod upgrade;
mod whole_way;
