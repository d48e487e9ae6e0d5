//! KV cache allocation: divides free memory into KV pages and slots for recurrent state, by the
//! flags and the model's sizes.
//!
//! Must not know any device: it divides bytes.

use anyhow::{Result, bail};

use crate::EnvironmentError;
use crate::config::{CHUNK_TOKENS, Config, PAGE_TOKENS, STATE_INTERVAL};
use engine_model::ModelInfo;
use engine_schedule::{Limits, StateLimits};

/// Token budget of a step with decoding sequences on a CPU, where a prefill chunk of 512 tokens is
/// a pause of a tenth of a second and more for their readers. Chunks of this size are computed at
/// the same speed.
const MIXED_TOKENS: usize = 256;

/// Memory left for KV pages and recurrent state after the weights, and on a GPU also after the
/// buffers that steps need.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FreeMemory {
    pub bytes: u64,
    /// True when no other process uses this memory, as on a GPU. Memory beyond what the largest
    /// batch could use then also becomes KV pages, which keep prefixes for later prompts.
    pub is_own: bool,
}

/// Computes the scheduler's limits from the flags, the model and the free memory; an error if not
/// even one KV page fits.
pub(crate) fn limits(config: &Config, info: &ModelInfo, memory: FreeMemory) -> Result<Limits> {
    let free_bytes = memory.bytes;
    let max_batch_size = config.max_batch_size;
    let max_seq_len = config.max_seq_len.unwrap_or(info.max_seq_len);
    let ask = Ask {
        entry_count: config.cache_max_entry_count,
        sequences: max_batch_size,
        // A CPU's memory has other users, so take no more than the largest batch can use.
        useful_pages: match memory.is_own {
            true => usize::MAX,
            false => max_batch_size.saturating_mul(max_seq_len.div_ceil(PAGE_TOKENS)),
        },
        page_bytes: page_bytes(info),
        state_bytes: info.state_bytes as u64,
        snapshots: !config.no_prefix_cache,
    };
    let Some(Share { pages, slots }) = ask.divide(free_bytes) else {
        let Ask { page_bytes, state_bytes, .. } = ask;
        bail!(EnvironmentError(format!(
            "too little memory for one KV page: {free_bytes} bytes are free, a page takes \
             {page_bytes} and a sequence's state {state_bytes}; hint: raise \
             `--cache-max-entry-count`, or free memory"
        )));
    };
    Ok(Limits {
        max_batch_size,
        token_budget: config.max_prefill_token_num,
        // A GPU computes a chunk of thousands of tokens between two tokens that a reader sees.
        mixed_budget: if memory.is_own { usize::MAX } else { MIXED_TOKENS },
        max_seq_len,
        pages,
        page_tokens: PAGE_TOKENS,
        chunk_tokens: CHUNK_TOKENS,
        prefix_cache: ask.snapshots,
        states: (slots > 0).then_some(StateLimits { slots, interval: STATE_INTERVAL }),
        // The caller sets both, since the model knows how far its device can run ahead.
        run_ahead: 0,
        max_drafts: 0,
    })
}

/// Returns the size in bytes of one KV page over all layers, keys and values together.
pub(crate) fn page_bytes(info: &ModelInfo) -> u64 {
    (info.kv_bytes_per_token * PAGE_TOKENS) as u64
}

/// Numbers by which free memory is divided: sizes in bytes of a KV page and of a recurrent state,
/// and limits on the numbers of pages and sequences.
#[derive(Debug)]
struct Ask {
    /// Value of `--cache-max-entry-count`: up to 1 the share of free memory to use, above 1 a
    /// number of KV pages.
    entry_count: f64,
    /// Limit on the number of sequences that run at once (`--max-batch-size`).
    sequences: usize,
    /// Largest number of KV pages to take from the share of free memory: on a CPU those that the
    /// largest batch can fill, since more would only be taken away from the other users of the
    /// memory.
    useful_pages: usize,
    /// Size in bytes of one KV page over all layers.
    page_bytes: u64,
    /// Size in bytes of one sequence's recurrent state; 0 for models without recurrent state.
    state_bytes: u64,
    /// True when the prefix cache is on, so that snapshots of the recurrent state are kept.
    snapshots: bool,
}

/// Numbers of KV pages, and of slots for recurrent state, into which free memory is divided.
#[derive(Debug, PartialEq, Eq)]
struct Share {
    pages: usize,
    slots: usize,
}

impl Ask {
    /// Divides the share `entry_count` of `free_bytes` into KV pages and slots for recurrent state;
    /// `None` if not even one page fits. Each running sequence gets a slot, as long as these take
    /// at most half of the share. An `entry_count` above 1 is the number of pages itself, and each
    /// running sequence then gets a slot, however much memory is free. With the prefix cache there
    /// is one more slot for every `STATE_INTERVAL` tokens of the pages, for a snapshot.
    fn divide(&self, free_bytes: u64) -> Option<Share> {
        let snapshots = |pages: usize| {
            if self.snapshots { pages * PAGE_TOKENS / STATE_INTERVAL } else { 0 }
        };
        let mut sequences = if self.state_bytes == 0 { 0 } else { self.sequences };
        // Above 1 the flag is a number of pages, however much memory is free.
        let pages = if self.entry_count > 1.0 {
            self.entry_count as usize
        } else {
            let budget = free_bytes as f64 * self.entry_count;
            let state_bytes = self.state_bytes as f64;
            if state_bytes > 0.0 {
                // Without this limit the states of a large batch would leave no memory for pages.
                // One sequence must always be able to run.
                sequences = sequences.min((budget / 2.0 / state_bytes) as usize).max(1);
            }
            let rest = budget - sequences as f64 * state_bytes;
            let shared =
                if self.snapshots { PAGE_TOKENS as f64 / STATE_INTERVAL as f64 } else { 0.0 };
            // Every page also pays its share of the snapshots that are taken every
            // `STATE_INTERVAL`.
            let affordable = rest / (self.page_bytes as f64 + shared * state_bytes);
            (affordable as usize).min(self.useful_pages)
        };
        let slots = if self.state_bytes == 0 { 0 } else { sequences + snapshots(pages) };
        (pages > 0).then_some(Share { pages, slots })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn ask() -> Ask {
        Ask {
            entry_count: 0.5,
            sequences: 16,
            useful_pages: 1_000_000,
            page_bytes: MIB,
            state_bytes: 0,
            snapshots: true,
        }
    }

    #[test]
    fn memory_goes_to_pages_and_where_there_is_state_to_both() {
        let share = |pages, slots| Some(Share { pages, slots });
        // Half of 4,096 MiB; a state of 48 MiB in every 256 pages adds 3/16 MiB to the cost of a
        // page.
        assert_eq!(ask().divide(4096 * MIB), share(2048, 0));
        assert_eq!(Ask { useful_pages: 100, ..ask() }.divide(4096 * MIB), share(100, 0));
        let hybrid = || Ask { state_bytes: 48 * MIB, ..ask() };
        assert_eq!(hybrid().divide(4096 * MIB), share(1077, 16 + 4));
        let plain = Ask { snapshots: false, ..hybrid() };
        assert_eq!(plain.divide(4096 * MIB), share(1280, 16));
        // States of 16 sequences would take all memory, so fewer sequences run.
        assert_eq!(hybrid().divide(1024 * MIB), share(229, 5));
        assert_eq!(Ask { entry_count: 512.0, ..hybrid() }.divide(MIB), share(512, 16 + 2));
        assert_eq!(hybrid().divide(64 * MIB), None);
        assert_eq!(ask().divide(MIB), None);
    }

    #[test]
    fn what_is_divided_never_exceeds_the_memory_asked_for() {
        for free in [100, 333, 1000, 5000, 70_000].map(|mib| mib * MIB) {
            for state_bytes in [1, MIB / 3, 48 * MIB] {
                let ask = Ask { state_bytes, ..ask() };
                let Some(Share { pages, slots }) = ask.divide(free) else { continue };
                let bytes = pages as u64 * ask.page_bytes + slots as u64 * state_bytes;
                assert!(bytes <= free / 2, "{pages} pages and {slots} slots of {state_bytes}");
            }
        }
    }
}
