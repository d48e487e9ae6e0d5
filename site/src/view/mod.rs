//! View models: what pages show, in display terms only. Everything that comes from a record is
//! cleaned here ([`crate::outside`]); nothing is judged here.

pub mod badge;
pub mod charts;
pub mod data;
pub mod diff;
pub mod explore;
pub mod fact;
pub mod figure;
pub mod kernels;
pub mod limits;
pub mod method;
pub mod model;
pub mod overview;
pub mod release;
pub mod run;
pub mod telemetry;
pub mod words;
