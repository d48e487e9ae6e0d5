//! View models: what pages show, in display terms only. Everything that comes from a record is
//! cleaned here ([`crate::outside`]); nothing is judged here.

pub mod badge;
pub mod charts;
pub mod fact;
pub mod figure;
pub mod limits;
pub mod model;
pub mod release;
pub mod words;
