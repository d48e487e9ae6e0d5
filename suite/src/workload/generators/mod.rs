//! Random generators that other benchmark tools use, reproduced bit for bit.
//!
//! To send the same requests as a tool, the suite must draw the same random bits.

mod mt19937;
mod pcg64;

pub use mt19937::{NumpyRandom, PythonRandom};
pub use pcg64::Pcg64;
