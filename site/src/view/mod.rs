//! View models: what pages show, in display terms only. Everything that comes from a record is
//! cleaned here ([`crate::outside`]); nothing is judged here.

pub mod across;
pub mod badge;
pub mod bars;
pub mod beside;
pub mod by_hardware;
pub mod by_model;
pub mod by_scenario;
pub mod charts;
pub mod citation;
pub mod claims;
pub mod config;
pub mod corrections;
pub mod data;
pub mod diff;
pub mod explore;
pub mod fact;
pub mod figure;
pub mod frontier;
pub mod grid;
pub mod health;
pub mod heat;
pub mod imports;
pub mod kernels;
pub mod lab;
pub mod limits;
pub mod method;
pub mod model;
pub mod overview;
pub mod pager;
pub mod release;
pub mod run;
pub mod telemetry;
pub mod trend;
pub mod trends;
pub mod words;
