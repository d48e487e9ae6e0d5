//! CUDA device: the operations of [`Device`](engine_core::Device) as kernel launches, over a driver
//! that tests replace by an emulated one. Also lists the GPUs of the machine.
//!
//! cudarc opens the driver's library at run time and panics where there is none, so every call
//! comes after a check that the library is present.

#![warn(missing_docs)]

mod buffer;
pub mod check;
mod choice;
mod device;
pub mod driver;
#[cfg(test)]
#[expect(dead_code, reason = "groups of GPUs are for the tests of models")]
#[path = "../emulated/mod.rs"]
mod emulated;
mod gemm;
mod group;
pub mod launch;
mod layers;
pub mod limits;
pub mod occupancy;
mod outputs;
#[cfg(test)]
#[path = "../../core/tests/reference/mod.rs"]
mod reference;
mod routes;
mod staging;
mod step;
pub mod stopwatch;
mod stream;
#[cfg(test)]
mod tests;
mod weights;

use std::panic;

pub use buffer::DType;
pub use device::Cuda;
#[cfg(test)]
extern crate self as engine_cuda;

use cudarc::driver::{DriverError, result};
use engine_core::DeviceError;

use driver::Facts;
use driver::gpu::{check_driver, facts};

/// Result of an operation of the CUDA device.
pub type Result<T, E = DeviceError> = std::result::Result<T, E>;

/// Returns the error for a failed `operation` of the device, with a `message` that says why it
/// failed.
fn failed(operation: &'static str, message: impl Into<String>) -> DeviceError {
    DeviceError { operation, message: message.into() }
}

/// Oldest supported compute capability (major, minor): the kernels use asynchronous copies to
/// shared memory, which exist since 8.0.
pub const CAPABILITY_MIN: (u32, u32) = (8, 0);

/// GPU of this machine as its driver lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// Name of the GPU as the driver reports it.
    pub name: String,
    /// Total size of the GPU's memory in bytes, free or not.
    pub memory_bytes: u64,
    /// Compute capability (major, minor) of the GPU: (9, 0) for Hopper.
    pub capability: (u32, u32),
}

/// Lists the GPUs of this machine; empty where no driver is installed, or it is too old or does not
/// start. GPUs whose properties cannot be read are left out.
pub fn gpus() -> Vec<Gpu> {
    if check_driver().is_err() {
        return Vec::new();
    }
    // A driver that lacks a function makes cudarc panic.
    panic::catch_unwind(list).unwrap_or_default()
}

/// Lists the GPUs that the kernels support, one per rank: the GPUs of the driver's list before the
/// first that is not supported.
pub fn usable() -> Vec<Gpu> {
    gpus().into_iter().take_while(|gpu| gpu.capability >= CAPABILITY_MIN).collect()
}

/// Returns the architecture name, such as `sm_90a`, for which kernels are compiled for a GPU of
/// this compute capability. GPUs of one major version run code compiled for its first minor
/// version; the suffix `a` adds instructions that only Hopper has.
pub fn generation(capability: (u32, u32)) -> &'static str {
    match capability {
        (..=8, _) => "sm_80",
        (9, _) => "sm_90a",
        (10, _) => "sm_100",
        (11, _) => "sm_110",
        _ => "sm_120",
    }
}

/// Lists the GPUs through the driver, which must be present.
#[expect(unsafe_code, reason = "calls into the driver, each after the check that it is there")]
fn list() -> Vec<Gpu> {
    if result::init().is_err() {
        return Vec::new();
    }
    let count = result::device::get_count().unwrap_or(0);
    let one = |ordinal| -> Result<Gpu, DriverError> {
        let device = result::device::get(ordinal)?;
        let Facts { name, capability, .. } = facts(device)?;
        // SAFETY: the driver is initialized and just returned this device.
        let memory_bytes = unsafe { result::device::total_mem(device)? } as u64;
        Ok(Gpu { name, memory_bytes, capability })
    };
    (0..count).filter_map(|ordinal| one(ordinal).ok()).collect()
}
