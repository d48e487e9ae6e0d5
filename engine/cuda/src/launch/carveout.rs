//! Share of a multiprocessor's memory that kernels ask for as shared memory (carve-out); the rest is
//! its L1 cache. Kernels that are compiled for several blocks per multiprocessor ask for what these
//! blocks need: the driver chooses for one launch at a time, and may leave room for one block only.

use super::{Processors, Residency, SYSTEM_BYTES, residency};

/// Returns the shared memory that the kernel `entry` asks for in percent of what a multiprocessor
/// has, if it uses any and two or more of its blocks fit. `static_bytes` is the static shared memory
/// of a block.
pub fn carveout(entry: &str, static_bytes: usize, processors: Processors) -> Option<u32> {
    let own = residency(entry, processors).filter(|own| own.shared_bytes > 0);
    let Residency { shared_bytes, blocks_max, .. } = own?;
    let block_bytes = shared_bytes + static_bytes + SYSTEM_BYTES;
    let blocks = (processors.shared_bytes / block_bytes).min(blocks_max);
    (blocks > 1).then(|| (100 * blocks * block_bytes).div_ceil(processors.shared_bytes) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulated::{Emulated, Script};

    #[test]
    fn kernels_ask_for_the_blocks_that_they_are_compiled_for() {
        let of = |entry, processors| carveout(entry, 1024, processors);
        let [h200, a100] = [Processors::H200, Processors::A100];
        // Two blocks of 82 KiB, four of 42 KiB.
        assert_eq!(of("attention_bf16_128", h200), Some(72));
        assert_eq!(of("attention_bf16_64", h200), Some(74));
        assert_eq!(of("attention_e4m3_128", a100), Some(61));
        assert_eq!(of("tile_matmul_bf16", h200), Some(86));
        assert_eq!(of("expert_matmul_mxfp4", h200), Some(86));
        // One block fits, or is what the kernel is compiled for.
        assert_eq!(of("attention_bf16_256", h200), None);
        assert_eq!(of("tile_matmul_bf16", a100), None);
        assert_eq!(of("grouped_matmul_mxfp4", h200), None);
        assert_eq!(of("rms_norm", h200), None);
    }

    #[test]
    fn loaded_kernels_have_their_carveout() {
        let script = Script { has_warpgroups: true, ..Script::default() };
        let Some(gpu) = Emulated::with(1 << 20, script) else { return };
        let carveouts = gpu.carveouts();
        let entries: Vec<&str> = carveouts.keys().copied().collect();
        assert_eq!(
            entries,
            [
                "attention_bf16_128",
                "attention_bf16_16",
                "attention_bf16_32",
                "attention_bf16_64",
                "attention_e4m3_128",
                "attention_e4m3_64",
                "expert_matmul_bf16",
                "expert_matmul_e4m3",
                "expert_matmul_mxfp4",
                "grouped_matmul_bf16",
                "matmul_bf16",
                "matmul_e4m3",
                "tile_matmul_bf16",
            ]
        );
        // Static memory, as the kernels' files declare it, is part of what a block needs.
        assert_eq!(carveouts["attention_bf16_64"], 74);
    }
}
