//! Writes `results/`: each commit only adds records, named rules check them, and events withdraw
//! them. The only package that knows git.
//!
//! Reading order: [`survey`] with its `index` (the content of a large folder, read quickly),
//! [`record`] and [`commit`] (adding to it), [`sync`] (uniting two clones in one history),
//! [`check`] and `history` (is the registry sound), [`events`] (retractions, annotations and
//! waivers), [`import`] (figures published elsewhere), [`list`], [`changes`] and [`junit`]
//! (outputs of commands). The package `store` reads a folder, and `judge` draws the conclusions.

#![warn(missing_docs)]

pub mod changes;
pub mod check;
pub mod commit;
mod demands;
pub mod events;
mod history;
pub mod import;
mod index;
pub mod junit;
mod landing;
pub mod list;
mod lock;
#[cfg(feature = "parquet")]
pub mod parquet;
pub mod record;
pub mod render;
pub mod repository;
pub mod survey;
pub mod sync;
