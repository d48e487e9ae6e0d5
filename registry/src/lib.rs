//! Writes `results/`: each commit only adds records, named rules check them, and events withdraw
//! them. The only package that knows git.
//!
//! Reading order: [`survey`] (the content of a large folder, read quickly), [`record`] and [`commit`]
//! (adding to it), [`undo`] (after a writer that was killed), [`sync`] (uniting two clones in one
//! history), [`check`] and [`history`] (is the registry sound), [`events`] (retractions, annotations
//! and waivers), [`import`] (figures published elsewhere), [`submission`] (signed bundles of records)
//! and [`list`]. The package `store` reads a folder, and `judge` draws the conclusions.

#![warn(missing_docs)]

pub mod check;
pub mod commit;
pub mod events;
pub mod history;
pub mod import;
pub mod list;
#[cfg(feature = "parquet")]
pub mod parquet;
pub mod record;
pub mod repository;
pub mod submission;
pub mod survey;
pub mod sync;
mod turn;
pub mod undo;
