//! Reads and writes `results/`: records are added by one commit each time, checked by named rules,
//! and compared. The only package that knows git.
//!
//! Reading order: [`layout`] (what lies where), [`storage`] (rules over one file), [`store`] (a
//! whole registry as data), [`record`] (adding to it), [`check`] and [`history`] (is it sound),
//! [`events`] (what was said about records afterwards), [`summary`] and [`diff`] (what it says).

pub mod check;
pub mod commit;
mod demands;
pub mod diff;
pub mod events;
pub mod finding;
pub mod history;
pub mod landing;
pub mod layout;
pub mod list;
pub mod lock;
pub mod readme;
pub mod record;
pub mod release;
pub mod render;
pub mod repository;
pub mod storage;
pub mod store;
pub mod summary;
pub mod trend;

pub use store::{Registry, Stored};
