//! Records to views to pages: the results site, the committed Markdown pages, and the table for
//! the terminal. Computes display only; medians, spreads and verdicts come from `registry`.
//!
//! In reading order: `catalog` groups the records, `view` turns them into display terms, `chart`
//! draws, `judged` asks `registry` what it says, `contents` lists every page, `template` fills in
//! `templates/`, and [`pages`], [`document`], [`build`] and [`text`] put the results together, of a
//! [`Catalog`] and, but for the text, by a [`Renderer`].

#![warn(missing_docs)]

pub mod asset;
pub mod build;
mod catalog;
mod chart;
mod compare;
mod contents;
pub mod document;
mod escape;
mod feeds;
mod format;
mod judged;
mod link;
mod order;
mod outside;
pub mod pages;
mod questions;
mod readme;
mod shields;
mod template;
pub mod text;
mod view;

pub use catalog::{Catalog, CatalogError, ReleaseKey, read};
pub use template::{RenderError, Renderer};
