//! Random generators that other benchmark tools use, reproduced bit for bit.
//!
//! To send the same requests as a tool, the suite must draw the same bits. Knows nothing of
//! workloads.

mod mt19937;
mod numpy;
mod pcg64;
mod python;

pub use numpy::NumpyRandom;
pub use pcg64::Pcg64;
pub use python::PythonRandom;
