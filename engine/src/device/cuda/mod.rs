//! The CUDA device: for now a look at which GPUs there are, the first kernels, and how those are
//! launched.
//!
//! cudarc opens the driver's library at run time and panics where there is none, so nothing of it
//! is called before the library was found.

pub mod launch;
#[cfg(test)]
mod tests;

use std::panic;

use cudarc::driver::{result, sys};

/// A GPU that the driver lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    pub name: String,
    pub memory_bytes: u64,
}

/// The GPUs of this machine; empty where there is no driver, or the driver does not start.
#[expect(unsafe_code, reason = "calls into the driver, each after the check that it is there")]
pub fn gpus() -> Vec<Gpu> {
    // SAFETY: looks for the library without calling into it.
    if !unsafe { sys::is_culib_present() } {
        return Vec::new();
    }
    // A driver older than the bindings lacks symbols, which cudarc reports by a panic.
    panic::catch_unwind(list).unwrap_or_default()
}

#[expect(unsafe_code, reason = "calls into the driver, each after the check that it is there")]
fn list() -> Vec<Gpu> {
    if result::init().is_err() {
        return Vec::new();
    }
    let count = result::device::get_count().unwrap_or(0);
    (0..count)
        .filter_map(|ordinal| {
            let device = result::device::get(ordinal).ok()?;
            let name = result::device::get_name(device).ok()?;
            // SAFETY: the driver is initialized and the device is one that it just gave.
            let memory = unsafe { result::device::total_mem(device) }.ok()?;
            Some(Gpu { name, memory_bytes: memory as u64 })
        })
        .collect()
}
