//! Occupancy: how many blocks of a kernel a multiprocessor runs at once, as the driver says, beside
//! the number that the kernel's grid assumes. With fewer, some blocks of a launch begin only when
//! others have ended, and a kernel that is balanced for one round takes two.

use std::fmt;

use super::driver::{Driver, kernels};
use super::launch::residency;
use super::{Result, generation};

/// Numbers of blocks of one kernel per multiprocessor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Occupancy {
    /// Name of the kernel.
    pub entry: &'static str,
    /// Number of blocks that a multiprocessor runs at once, as the driver says.
    pub blocks: usize,
    /// Number of blocks that the kernel's grid assumes.
    pub assumed: usize,
}

impl Occupancy {
    /// Returns true if a multiprocessor runs as many blocks as the kernel's grid assumes.
    pub fn is_enough(&self) -> bool {
        self.blocks >= self.assumed
    }
}

impl fmt::Display for Occupancy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { entry, blocks, assumed } = self;
        write!(f, "{entry}: {blocks} blocks per multiprocessor, its grid assumes {assumed}")
    }
}

/// Asks the driver for the occupancy of each kernel whose grid depends on it. The driver computes it
/// from registers, threads and shared memory; nothing is launched.
///
/// # Errors
/// The driver reports an error, or lacks a kernel.
pub fn occupancies(driver: &dyn Driver) -> Result<Vec<Occupancy>> {
    let facts = driver.facts();
    // Kernels for one generation have the names of portable ones.
    let kernels = kernels(generation(facts.capability), true);
    let mut all = Vec::new();
    for entry in kernels.into_iter().flat_map(|kernel| kernel.entries()) {
        let Some(residency) = residency(entry, facts.processors) else { continue };
        let assumed = residency.blocks(facts.processors);
        let blocks = driver.resident_blocks(entry, residency.threads, residency.shared_bytes)?;
        all.push(Occupancy { entry, blocks, assumed });
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulated::{Emulated, Script};

    #[test]
    fn every_grid_has_the_blocks_that_it_assumes_on_either_generation() {
        for has_warpgroups in [false, true] {
            let script = Script { has_warpgroups, ..Script::default() };
            let Some(gpu) = Emulated::with(1 << 20, script) else { return };
            let all = occupancies(&*gpu).unwrap();
            let of = |entry: &str| {
                let one = all.iter().find(|one| one.entry == entry).unwrap();
                (one.blocks, one.assumed)
            };
            assert!(all.iter().all(Occupancy::is_enough), "{all:?}");
            let narrow = if has_warpgroups { (4, 4) } else { (3, 2) };
            assert_eq!(of("attention_bf16_64"), narrow);
            assert_eq!(of("grouped_matmul_mxfp4"), (1, 1));
            assert_eq!(of("stream_read"), (3, 2));
        }
    }

    #[test]
    fn a_kernel_with_too_few_registers_for_its_blocks_is_found() {
        let script = Script { registers: 32_768, ..Script::default() };
        let Some(gpu) = Emulated::with(1 << 20, script) else { return };
        let all = occupancies(&*gpu).unwrap();
        let short: Vec<String> =
            all.iter().filter(|one| !one.is_enough()).map(ToString::to_string).collect();
        let line = "attention_bf16_128: 1 blocks per multiprocessor, its grid assumes 2".to_owned();
        assert!(short.contains(&line), "{short:?}");
        let is_short = |entry: &str| short.iter().any(|line| line.starts_with(entry));
        assert!(is_short("stream_read:") && !is_short("attention_merge:"), "{short:?}");
    }
}
