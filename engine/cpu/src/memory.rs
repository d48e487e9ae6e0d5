//! Memory and processor as the operating system gives and names them, and how to ask memory ahead.

#![cfg_attr(
    any(target_env = "gnu", target_arch = "x86_64"),
    expect(unsafe_code, reason = "a call of the C library that no crate wraps; prefetches")
)]

use std::fs;

use memmap2::MmapMut;

use engine_core::DeviceError;

/// Zeroed memory of as many bytes as `sizes` multiply to, touched only as it is used. Errors name
/// it by `operation` and `what`.
pub(super) fn reserve(
    operation: &'static str,
    what: &str,
    sizes: &[usize],
) -> Result<MmapMut, DeviceError> {
    let failed = |message| DeviceError { operation, message };
    let bytes = sizes
        .iter()
        .try_fold(1usize, |bytes, size| bytes.checked_mul(*size))
        .ok_or_else(|| failed(format!("{what} are more than memory can be")))?;
    let memory = MmapMut::map_anon(bytes.max(1))
        .map_err(|err| failed(format!("{bytes} bytes cannot be reserved: {err}")))?;
    // Large pages are fewer to look up; where there are none, small ones will do.
    #[cfg(target_os = "linux")]
    let _ignored = memory.advise(memmap2::Advice::HugePage);
    Ok(memory)
}

/// Blocks from this size on come from the system and go back to it.
#[cfg(target_env = "gnu")]
const LARGE_BLOCK: libc::c_int = 256 << 10;

/// Has large blocks come from the system and go back to it once they are free. The C library would
/// raise its limit for such with each one that is freed, up to 32 MiB, and keep the holes: after a
/// served run, a tenth of a small model's size.
pub fn keep_large_blocks_apart() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it may be called at any time, and changes only where later blocks come from.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BLOCK);
    }
}

/// Returns to the system what was allocated and freed again, of which loading a model leaves a tenth of
/// the model's size: the C library would keep it for later.
pub fn give_back_freed() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it may be called at any time, and moves nothing that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Bytes that could be allocated now: the least of what the machine and the control group allow.
/// Zero where the system does not say.
pub fn free_bytes() -> u64 {
    let machine = fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| field(&text, "MemAvailable:"))
        .map_or(0, |kib| kib * 1024);
    control_group().map_or(machine, |group| machine.min(group))
}

/// Bytes that the control group (version 2) leaves to this process, where it sets a limit.
fn control_group() -> Option<u64> {
    let read = |name: &str| fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok();
    let limit: u64 = read("memory.max")?.trim().parse().ok()?;
    let used: u64 = read("memory.current")?.trim().parse().ok()?;
    // Cached file pages count as used, but are given up under pressure.
    let cached = read("memory.stat").and_then(|text| field(&text, "inactive_file ")).unwrap_or(0);
    Some(limit.saturating_sub(used.saturating_sub(cached)))
}

fn field(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// The processor's brand string, or its architecture where the system gives none.
pub fn processor_name() -> String {
    fs::read_to_string("/proc/cpuinfo")
        .ok()
        .and_then(|text| {
            let line = text.lines().find(|line| line.starts_with("model name"))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        })
        .unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

/// Bytes that memory gives at once.
pub(super) const CACHE_LINE: usize = 64;

/// Asks for the cache line at `address`, which may be anywhere, where the processor can be asked: every
/// x86-64 can.
#[inline(always)]
pub(super) fn fetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch may name any address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Asks for `bytes` bytes at `address`.
#[inline(always)]
pub(super) fn fetch_all(address: *const u8, bytes: usize) {
    for at in (0..bytes).step_by(CACHE_LINE) {
        fetch(address.wrapping_add(at));
    }
}
