//! Memory allocation, amount of free memory, name of the processor, cache-line aligned buffers, and
//! prefetch.

#![cfg_attr(
    any(target_env = "gnu", target_arch = "x86_64"),
    expect(unsafe_code, reason = "a call of the C library that no crate wraps; prefetches")
)]

use std::fs;

use memmap2::MmapMut;

use engine_core::DeviceError;

/// Reserves as many bytes of zeroed memory as the product of `sizes`; the system provides pages
/// when they are first touched. Fails if the product overflows or the system refuses. The error has
/// the name `operation`; for an overflow its message also names what was to be reserved, `what`.
pub(super) fn reserve(
    operation: &'static str,
    what: &str,
    sizes: &[usize],
) -> Result<MmapMut, DeviceError> {
    let failed = |message| DeviceError { operation, message };
    let bytes = sizes
        .iter()
        .try_fold(1usize, |bytes, size| bytes.checked_mul(*size))
        .ok_or_else(|| failed(format!("{what} exceed the address space")))?;
    let memory = MmapMut::map_anon(bytes.max(1))
        .map_err(|err| failed(format!("{bytes} bytes cannot be reserved: {err}")))?;
    // Huge pages save address translations. The advice may fail, which only costs speed.
    #[cfg(target_os = "linux")]
    let _ignored = memory.advise(memmap2::Advice::HugePage);
    Ok(memory)
}

/// Smallest size in bytes of a block of memory that glibc, once configured, takes directly from the
/// system.
#[cfg(target_env = "gnu")]
const LARGE_BLOCK: libc::c_int = 256 << 10;

/// Configures glibc to take blocks of 256 KiB or more directly from the system and to return them
/// to it when freed. By default the size from which it does so grows with each such block freed, up
/// to 32 MiB, and the holes that smaller freed blocks leave are kept: in a server these holes add
/// up to a tenth of a small model's size. Does nothing with other C libraries.
pub fn keep_large_blocks_apart() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it may be called at any time, and changes only where later blocks come from.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BLOCK);
    }
}

/// Hands memory that was freed, but that glibc keeps, back to the system. After a model was loaded,
/// such memory is a tenth of the model's size. Does nothing with other C libraries.
pub fn give_back_freed() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it may be called at any time, and moves nothing that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Returns the number of bytes of memory that could be allocated now, the smaller of what the
/// machine and the control group allow. Zero where the system has no `/proc/meminfo`.
pub fn free_bytes() -> u64 {
    available(&["inactive_file "])
}

/// Returns the number of bytes of memory that could be allocated now as [`free_bytes`] does, if the
/// control group dropped all of its cached files, also those in use: the cache may hold the very
/// files that are about to be read.
pub fn loadable_bytes() -> u64 {
    available(&["inactive_file ", "active_file "])
}

fn available(cached: &[&str]) -> u64 {
    let machine = fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| field(&text, "MemAvailable:"))
        .map_or(0, |kib| kib * 1024);
    control_group(cached).map_or(machine, |group| machine.min(group))
}

/// Returns the number of bytes of memory that the control group (version 2) leaves to this process,
/// where the fields `cached` of its statistics do not count as used; none if it sets no limit or
/// cannot be read.
fn control_group(cached: &[&str]) -> Option<u64> {
    let read = |name: &str| fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok();
    let limit: u64 = read("memory.max")?.trim().parse().ok()?;
    let used: u64 = read("memory.current")?.trim().parse().ok()?;
    // Cached file pages count as used, but the system drops them under pressure.
    let stat = read("memory.stat").unwrap_or_default();
    let cached: u64 = cached.iter().filter_map(|name| field(&stat, name)).sum();
    Some(limit.saturating_sub(used.saturating_sub(cached)))
}

/// Returns the number that follows `name` in the first line of `text` that begins with `name`;
/// `None` if there is no such line or no number.
fn field(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// Returns the processor's brand string, or its architecture where the system reports none.
pub fn processor_name() -> String {
    fs::read_to_string("/proc/cpuinfo")
        .ok()
        .and_then(|text| {
            let line = text.lines().find(|line| line.starts_with("model name"))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        })
        .unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

/// Extends working memory to at least `len` elements, whose content is unspecified afterwards.
/// Memory of a larger earlier step is kept, so that it is not filled with zeros again.
pub(super) fn grow<T: Clone + Default>(memory: &mut Vec<T>, len: usize) {
    if memory.len() < len {
        // No copy and no spare capacity: the content is not needed, and the largest step comes
        // early.
        *memory = Vec::new();
        *memory = vec![T::default(); len];
    }
}

/// Number of bytes of a cache line.
pub(super) const CACHE_LINE: usize = 64;

/// Byte buffer aligned to a cache line.
#[derive(Debug)]
pub(super) struct Aligned(Vec<Line>);

/// Sixty-four bytes, the unit of allocation that aligns a byte buffer to a cache line.
#[derive(Debug, Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

impl Aligned {
    pub(super) fn zeroed(bytes: usize) -> Self {
        Self(vec![Line([0; 64]); bytes.div_ceil(64)])
    }

    pub(super) fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.0)
    }
}

/// Prefetches the cache line at `address`, which need not be valid memory. Does nothing on
/// processors other than x86-64.
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

/// Prefetches the cache lines of `bytes` bytes from `address` on, which need not be valid memory.
#[inline(always)]
pub(super) fn fetch_all(address: *const u8, bytes: usize) {
    for at in (0..bytes).step_by(CACHE_LINE) {
        fetch(address.wrapping_add(at));
    }
}
