//! Room for two servers side by side, which an alternating comparison needs.

use std::fs;
use std::path::Path;

use procfs::{Current, Meminfo};

use crate::files::{files_below, size};
use crate::inputs::Obtained;
use crate::node::hardware::Machine;
use crate::stop::{Stop, environment};

/// Memory of a server on a processor beside its weights, in bytes: KV cache, activations and code.
const NOT_WEIGHTS: u64 = 1 << 30;
/// Memory of a server on a processor, as a multiple of the size of its weights: weights may be
/// repacked for the kernels while the file is mapped.
const PER_WEIGHTS: u64 = 2;
/// Largest share of a GPU's memory, in percent, that the weights of one server may take where two
/// share the GPU.
const WEIGHTS_PERCENT_MAX: u64 = 30;
/// Share of a GPU's memory, in percent, that each of two servers on it may use.
const SHARED_PERCENT: u32 = 45;

/// Whether two servers of a model fit into memory side by side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Room {
    /// Both fit. On a GPU, each may use at most `memory_percent` of its memory; `None` on a
    /// processor.
    Both { memory_percent: Option<u32> },
    /// Only one fits, or it is not known whether both do, for the reason in `said`.
    One { said: String },
}

/// Returns whether two servers of the fetched `model` with `tp` ranks fit side by side: on the GPUs
/// of `machine`, or with `on_gpu` false into the memory of this machine.
pub fn of(model: &Obtained, tp: u32, machine: &Machine, on_gpu: bool) -> Room {
    let weights = weights_bytes(&model.path);
    match (on_gpu, machine.gpus.first().and_then(|gpu| gpu.memory_bytes)) {
        (true, Some(memory)) => on_one_gpu(weights.filter(|_| !model.random_weights), tp, memory),
        (true, None) => Room::One { said: "the memory of the GPU is not known".to_owned() },
        // Random weights have no file, and such models are made small for tests on a processor.
        (false, _) => in_memory(weights.unwrap_or(0), available_bytes()),
    }
}

/// Builds the error of a gate whose two servers do not fit, for the reason in `said`.
pub fn none(said: &str) -> Stop {
    environment!("{said}").with_hint(
        "`cargo xtask release-bench --worktree --baseline VERSION` compares in pairs of starts, one \
         server at a time",
    )
}

fn on_one_gpu(weights: Option<u64>, tp: u32, memory: u64) -> Room {
    let Some(weights) = weights else {
        return Room::One { said: "the size of the weights is not known".to_owned() };
    };
    let each = weights / u64::from(tp.max(1));
    if each * 100 <= memory * WEIGHTS_PERCENT_MAX {
        return Room::Both { memory_percent: Some(SHARED_PERCENT) };
    }
    let (each, memory) = (each >> 30, memory >> 30);
    Room::One {
        said: format!("weights of {each} GiB leave no room for a second server in {memory} GiB"),
    }
}

fn in_memory(weights: u64, available: Option<u64>) -> Room {
    let needed = 2 * (PER_WEIGHTS * weights + NOT_WEIGHTS);
    match available {
        Some(available) if needed > available => {
            let (needed, available) = (needed >> 20, available >> 20);
            let said =
                format!("two servers need {needed} MiB of memory, and {available} MiB are free");
            Room::One { said }
        }
        _ => Room::Both { memory_percent: None },
    }
}

/// Returns the size of a model's weights in bytes: of the file, or of the safetensors files of a
/// folder; `None` if there are none.
fn weights_bytes(path: &Path) -> Option<u64> {
    if path.is_file() {
        return size(path);
    }
    let is_weights =
        |path: &&std::path::PathBuf| path.extension().is_some_and(|e| e == "safetensors");
    let bytes: u64 =
        files_below(path).iter().filter(is_weights).filter_map(|path| size(path)).sum();
    (bytes > 0).then_some(bytes)
}

/// Returns the memory that is free for programs on this machine, in bytes, within the limit of this
/// process's control group; `None` if the kernel does not report it.
fn available_bytes() -> Option<u64> {
    let free = Meminfo::current().ok()?.mem_available?;
    let limit = fs::read_to_string("/sys/fs/cgroup/memory.max").unwrap_or_default();
    Some(limit.trim().parse().map_or(free, |limit: u64| limit.min(free)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_servers_have_room_or_the_plan_says_why_not() {
        const GIB: u64 = 1 << 30;
        assert_eq!(in_memory(GIB, Some(6 * GIB)), Room::Both { memory_percent: None });
        let Room::One { said } = in_memory(GIB, Some(6 * GIB - 1)) else { panic!("no room") };
        assert_eq!(said, "two servers need 6144 MiB of memory, and 6143 MiB are free");
        assert_eq!(in_memory(GIB, None), Room::Both { memory_percent: None });
        let shared = Room::Both { memory_percent: Some(45) };
        assert_eq!(on_one_gpu(Some(16 * GIB), 1, 80 * GIB), shared);
        assert_eq!(on_one_gpu(Some(140 * GIB), 8, 80 * GIB), shared);
        assert!(matches!(on_one_gpu(Some(30 * GIB), 1, 80 * GIB), Room::One { .. }));
        assert!(matches!(on_one_gpu(None, 1, 80 * GIB), Room::One { .. }));
    }
}
