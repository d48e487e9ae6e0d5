//! How many pages and places for recurrent state a server has: from flags, model and free memory.
//!
//! Knows no device: it divides bytes.

use crate::config::{CHUNK_TOKENS, Config, PAGE_TOKENS, STATE_INTERVAL};
use crate::launch::PrepareError;
use engine_model::ModelInfo;
use engine_schedule::{Limits, StateLimits};

/// Memory that is free after weights and all else that steps need.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FreeMemory {
    pub bytes: u64,
    /// Whether nobody else uses it, as on a GPU: what no batch can use keeps prefixes.
    pub is_own: bool,
}

/// What the scheduler may use: the flags, and as much memory as they allow.
pub(crate) fn limits(
    config: &Config,
    info: &ModelInfo,
    memory: FreeMemory,
) -> Result<Limits, PrepareError> {
    let free_bytes = memory.bytes;
    let max_batch_size = config.max_batch_size.value;
    let max_seq_len = config.max_seq_len.value.unwrap_or(info.max_seq_len);
    let ask = Ask {
        entry_count: config.cache_max_entry_count.value,
        sequences: max_batch_size,
        useful_pages: match memory.is_own {
            true => usize::MAX,
            false => max_batch_size.saturating_mul(max_seq_len.div_ceil(PAGE_TOKENS)),
        },
        page_bytes: page_bytes(info),
        state_bytes: info.state_bytes as u64,
        snapshots: !config.no_prefix_cache.value,
    };
    let Some(Share { pages, places }) = ask.divide(free_bytes) else {
        let Ask { page_bytes, state_bytes, .. } = ask;
        return Err(PrepareError::NoPage { free_bytes, page_bytes, state_bytes });
    };
    Ok(Limits {
        max_batch_size,
        token_budget: config.max_prefill_token_num.value,
        max_seq_len,
        pages,
        page_tokens: PAGE_TOKENS,
        chunk_tokens: CHUNK_TOKENS,
        prefix_cache: ask.snapshots,
        states: (places > 0).then_some(StateLimits { places, interval: STATE_INTERVAL }),
        run_ahead: 0,
    })
}

/// Bytes of one page over all layers.
pub(crate) fn page_bytes(info: &ModelInfo) -> u64 {
    (info.kv_bytes_per_token * PAGE_TOKENS) as u64
}

/// What memory is to be divided for.
#[derive(Debug)]
struct Ask {
    /// `--cache-max-entry-count`: a share of the free memory up to 1, above it a number of pages.
    entry_count: f64,
    /// Sequences that are to run at once.
    sequences: usize,
    /// The batch cannot use more pages than this. A CPU's memory has other users.
    useful_pages: usize,
    page_bytes: u64,
    /// 0 for models without recurrent state.
    state_bytes: u64,
    snapshots: bool,
}

#[derive(Debug, PartialEq, Eq)]
struct Share {
    pages: usize,
    places: usize,
}

impl Ask {
    /// Pages, and places for recurrent state: one for each sequence that runs, as long as that is
    /// no more than half of the memory, and one for each snapshot that the pages can end in.
    fn divide(&self, free_bytes: u64) -> Option<Share> {
        let snapshots = |pages: usize| {
            if self.snapshots { pages * PAGE_TOKENS / STATE_INTERVAL } else { 0 }
        };
        let mut sequences = if self.state_bytes == 0 { 0 } else { self.sequences };
        let pages = if self.entry_count > 1.0 {
            self.entry_count as usize
        } else {
            let budget = free_bytes as f64 * self.entry_count;
            let state_bytes = self.state_bytes as f64;
            if state_bytes > 0.0 {
                sequences = sequences.min((budget / 2.0 / state_bytes) as usize).max(1);
            }
            let rest = budget - sequences as f64 * state_bytes;
            let shared =
                if self.snapshots { PAGE_TOKENS as f64 / STATE_INTERVAL as f64 } else { 0.0 };
            let affordable = rest / (self.page_bytes as f64 + shared * state_bytes);
            (affordable as usize).min(self.useful_pages)
        };
        let places = if self.state_bytes == 0 { 0 } else { sequences + snapshots(pages) };
        (pages > 0).then_some(Share { pages, places })
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
        let share = |pages, places| Some(Share { pages, places });
        // Half of 4,096 MiB; a state of 48 MiB in every 256 pages costs a page 3/16 MiB more.
        assert_eq!(ask().divide(4096 * MIB), share(2048, 0));
        assert_eq!(Ask { useful_pages: 100, ..ask() }.divide(4096 * MIB), share(100, 0));
        let hybrid = || Ask { state_bytes: 48 * MIB, ..ask() };
        assert_eq!(hybrid().divide(4096 * MIB), share(1077, 16 + 4));
        let plain = Ask { snapshots: false, ..hybrid() };
        assert_eq!(plain.divide(4096 * MIB), share(1280, 16));
        // Where states would take it all, fewer sequences run.
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
                let Some(Share { pages, places }) = ask.divide(free) else { continue };
                let bytes = pages as u64 * ask.page_bytes + places as u64 * state_bytes;
                assert!(bytes <= free / 2, "{pages} pages and {places} places of {state_bytes}");
            }
        }
    }
}
