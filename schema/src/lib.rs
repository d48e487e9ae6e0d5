//! Plain data that Redline's packages exchange: records, scenarios, targets, models, engines,
//! workload manifests and verdicts.
//!
//! No I/O and no clock. A reader ignores unknown keys; a writer never renames a key (see
//! `README.md`). Units are part of field names; times are integers in microseconds.

#![warn(missing_docs)]

pub mod alternation;
pub mod arrival;
pub mod campaign;
pub mod canonical;
pub mod comparison;
pub mod correctness;
mod distribution;
pub mod document;
pub mod emitted;
pub mod engine;
pub mod event;
pub mod exit;
pub mod figures;
pub mod gpu_validation;
pub mod histogram;
pub mod id;
mod image;
pub mod kernel;
pub mod lab;
pub mod manifest;
pub mod measurement;
pub mod metric;
mod missing;
pub mod model;
pub mod path;
pub mod plan;
pub mod policy;
pub mod printed;
pub mod probe;
pub mod random;
pub mod reference;
pub mod run;
pub mod samples;
pub mod scenario;
pub mod schemas;
pub mod search;
pub mod setup;
pub mod shell;
pub mod submission;
pub mod target;
pub mod telemetry;
pub mod trend;
pub mod untrusted;
pub mod verdict;
pub mod version;
mod words;
pub mod workload;
