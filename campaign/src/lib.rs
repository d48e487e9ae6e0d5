//! One release-bench or lab: resolve and build a release, fetch its inputs, launch its server for every
//! planned run, have it measured, and hand the records to the registry.
//!
//! This package knows neither HTTP nor git objects nor templates: it runs `git`, `cargo`,
//! `redline-bench`, `redline-results` and `redline-site`.

pub mod beside;
pub mod brief;
pub mod build;
pub mod calibration;
pub mod catalog;
pub mod cli;
pub mod clients;
pub mod collect;
pub mod confirm;
pub mod console;
pub mod container;
pub mod decide;
pub mod document;
pub mod drive;
pub mod ending;
pub mod estimate;
pub mod executor;
pub mod failure;
pub mod fetch;
pub mod files;
pub mod finish;
pub mod fitness;
pub mod git;
pub mod gpu;
pub mod hardware;
pub mod ingest;
pub mod inputs;
pub mod installed;
pub mod job;
pub mod journal;
pub mod kernels;
pub mod lab;
pub mod launch;
pub mod lines;
pub mod lock;
pub mod node;
pub mod peer;
pub mod places;
pub mod plan;
pub mod process;
pub mod proof;
pub mod publish;
pub mod ready;
pub mod record;
pub mod redact;
pub mod release;
pub mod release_bench;
pub mod resume;
pub mod run;
pub mod serve;
pub mod server;
pub mod sides;
pub mod soak;
pub mod steps;
pub mod stop;
pub mod submit;
pub mod target;
pub mod tell;
pub mod tools;
pub mod unmeasured;
pub mod worktree;
pub mod world;
