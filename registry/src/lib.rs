//! Writes `results/`: records are added by one commit each time, checked by named rules, and
//! withdrawn by events. The only package that knows git.
//!
//! Reading order: [`survey`] with its `index` (what a large folder holds, read quickly), [`record`]
//! and [`commit`] (adding to it), [`sync`] (two clones become one line), [`check`] and `history` (is
//! it sound), [`events`] (retractions, notes and waivers), [`import`] (published figures of others),
//! [`list`], [`changes`] and [`junit`] (answers to commands). The package `store` reads a folder, and
//! `judge` draws the conclusions.

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
