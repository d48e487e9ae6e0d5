//! Memory that this process may still take, and whether a model fits into it: without enough, the
//! system ends the process in the middle of loading, and says nothing.

use std::fs;

use anyhow::{Result, bail};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};

use crate::EnvironmentError;
use engine_weights::{ModelFiles, safetensors};

/// Bytes of address space that loading takes beside the weights: tokenizer, buffers, a first KV page.
const KEPT: u64 = 384 << 20;
/// Bytes of address space that a thread takes: its stack, and what the allocator reserves for it.
const THREAD: u64 = 4 << 20;

/// Returns the number of bytes of memory that the KV cache may divide: the smallest of what the
/// machine and the control group allow, and of half the address space that is left, since buffers
/// and requests need the other half. Zero where the system does not say.
pub(crate) fn free_bytes() -> u64 {
    let free = engine_cpu::free_bytes();
    address_space().map_or(free, |left| free.min(left / 2))
}

/// Refuses to load a model onto the CPU whose weights exceed the free memory, or, mapped and packed,
/// the address space that the process may still take. `weights` is the size in bytes of their
/// files.
///
/// # Errors
/// The memory or the address space does not suffice.
pub(crate) fn check(weights: u64, threads: usize) -> Result<()> {
    let free = engine_cpu::loadable_bytes();
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    // Zero means that the system does not say.
    if free > 0 && weights > free {
        bail!(EnvironmentError(format!(
            "too little memory: the weights take {} MiB, and {} MiB are free; hint: free memory, \
             raise the limit of the control group, or serve a smaller model",
            mib(weights),
            free >> 20
        )));
    }
    let needed = 2 * weights + KEPT + threads as u64 * THREAD;
    match address_space() {
        Some(left) if left < needed => bail!(EnvironmentError(format!(
            "too little address space: loading takes {} MiB, and the limit leaves {} MiB; hint: \
             raise it with `ulimit -v`, or serve a smaller model",
            mib(needed),
            left >> 20
        ))),
        _ => Ok(()),
    }
}

/// Returns the size in bytes of the files that hold a model's weights. A file that cannot be read
/// counts as empty: loading it says what is wrong.
pub(crate) fn weights_bytes(files: &ModelFiles) -> u64 {
    let paths = match files {
        ModelFiles::Gguf(path) => vec![path.clone()],
        ModelFiles::Folder(folder) => safetensors::files(folder).unwrap_or_default(),
    };
    paths.iter().filter_map(|path| Some(fs::metadata(path).ok()?.len())).sum()
}

/// Returns the number of bytes of address space that the limit of this process (`ulimit -v`) leaves;
/// `None` without a limit, or where the system does not say what is in use.
fn address_space() -> Option<u64> {
    let (limit, _) = getrlimit(Resource::RLIMIT_AS).ok()?;
    if limit == RLIM_INFINITY {
        return None;
    }
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let used = status.lines().find_map(|line| line.strip_prefix("VmSize:"))?;
    let used_kib: u64 = used.split_whitespace().next()?.parse().ok()?;
    Some(limit.saturating_sub(used_kib * 1024))
}
