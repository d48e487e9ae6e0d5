//! Campaigns: resolve and build a release, fetch its inputs, launch its server for every planned
//! run, have it measured, and hand the records to the registry.
//!
//! This package knows neither HTTP nor git objects nor templates: it runs `git`, `cargo`,
//! `redline-bench`, `redline-results` and `redline-site`. Modules stand in reading order, and the
//! first line of each says what it is: `release_bench` is the way from a command to a commit,
//! `drive` carries jobs out, `node` is what a job does.

// What every command works with.
pub mod catalog;
pub mod cli;
pub mod console;
mod files;
mod git;
mod lines;
mod lock;
pub mod places;
pub mod process;
pub mod redact;
pub mod stop;
pub mod tools;
pub mod world;

// The machine at hand.
mod calibration;
mod fitness;
mod gpu;
mod hardware;
mod target;

// What is measured, decided before anything is built.
mod brief;
mod decide;
mod estimate;
pub mod launch;
pub mod plan;
mod release;
mod sides;

// What that needs: programs and inputs.
mod build;
pub mod container;
pub mod fetch;
pub mod inputs;
mod installed;
mod worktree;

// A campaign from its journal to its last job.
mod collect;
mod confirm;
mod drive;
mod ending;
pub mod executor;
mod job;
mod journal;
mod ready;
pub mod release_bench;
mod resume;
mod submit;
mod tell;

// A job on its node, launch by launch.
mod failure;
pub mod node;
mod record;
mod run;
mod server;
mod steps;
mod unmeasured;

// From finished runs to a commit and pages.
mod beside;
mod document;
mod finish;
pub mod ingest;
mod publish;

// The other campaigns, and what is no campaign.
pub mod clients;
pub mod kernels;
pub mod lab;
pub mod peer;
pub mod proof;
pub mod scale;
pub mod serve;
pub mod soak;
