//! Reads and writes `results/`: records are added by one commit each time, checked by named rules,
//! and compared. The only package that knows git.
//!
//! Reading order: [`layout`] (what lies where), [`storage`] (rules over one file), [`store`] (a
//! whole registry as data), [`survey`] with its `index` (a large one quickly), [`record`] and
//! [`commit`] (adding to it), [`sync`] (two clones become one line), [`check`] and `history` (is it
//! sound), [`events`] (what was said about records afterwards), [`summary`], [`diff`], [`trend`],
//! [`best`] and [`lab`] (what it says), [`import`] and [`export`] (figures of others, and ours for
//! them).

#![warn(missing_docs)]

pub mod beside;
pub mod best;
pub mod check;
pub mod commit;
mod demands;
pub mod diff;
pub mod events;
pub mod examine;
pub mod export;
pub mod finding;
mod folder;
pub mod groups;
mod history;
pub mod import;
mod index;
pub mod lab;
mod landing;
pub mod layout;
pub mod list;
mod lock;
pub mod readme;
pub mod record;
pub mod release;
pub mod render;
pub mod repository;
pub mod rules;
pub mod spread;
pub mod storage;
pub mod store;
pub mod summary;
pub mod survey;
pub mod sync;
pub mod trend;

pub use store::{Registry, Stored};
