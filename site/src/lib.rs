//! Renders the records of a registry as a results site, as committed Markdown pages, and as a
//! table for the terminal. Formats only; medians, rankings and verdicts come from `judge`.
//!
//! Reading order: `catalog` groups the records, `view` turns them into display terms, `chart`
//! draws, `judged` collects the conclusions of `judge`, `contents` lists every page, `template`
//! fills in `templates/`, and [`pages`], [`document`], [`build`] and [`text`] write the results,
//! from a [`Catalog`] and (except the text) a [`Renderer`].

#![warn(missing_docs)]

pub mod asset;
pub mod build;
mod catalog;
mod chart;
mod contents;
pub mod document;
mod escape;
mod feeds;
mod format;
mod judged;
mod link;
mod outside;
pub mod pages;
mod questions;
mod template;
pub mod terminal;
pub mod text;
mod view;

pub use catalog::{Catalog, ReleaseKey, read};
pub use template::{RenderError, Renderer};
