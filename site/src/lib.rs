//! Records to views to pages: the results site, the committed Markdown pages, and the table for
//! the terminal. Computes display only; medians, spreads and verdicts come from `registry`.
//!
//! In reading order: [`catalog`] groups the records, [`view`] turns them into display terms,
//! [`chart`] draws, [`judged`] asks `registry` what it says, [`contents`] lists every page,
//! [`template`] fills in `templates/`, and [`pages`], [`build`] and [`text`] put the results
//! together.

pub mod asset;
pub mod build;
pub mod catalog;
pub mod chart;
pub mod compare;
pub mod contents;
pub mod document;
pub mod escape;
pub mod feeds;
pub mod format;
pub mod judged;
pub mod link;
pub mod order;
pub mod outside;
pub mod pages;
pub mod questions;
#[doc(hidden)]
pub mod sample;
pub mod shields;
pub mod template;
pub mod text;
pub mod view;
