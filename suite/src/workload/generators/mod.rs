//! The random generators that the tools of the field draw their requests with, bit for bit.
//!
//! A suite that wants the same requests must draw the same bits. Knows nothing of workloads.

mod mt19937;
mod numpy;
mod pcg64;
mod python;

pub use numpy::NumpyRandom;
pub use pcg64::Pcg64;
pub use python::PythonRandom;
