//! Fences between the proxies, and the checks of asynchronous accesses by `proxies.h`.
#pragma once

#include "block.h"

namespace shim {

/// Publishes what the current thread wrote before to asynchronous accesses after the next barrier.
inline void publish() {
    fiber().fences.push_back(block().barriers);
    watch_thread();
}

/// Fails if the current warp may not access a granule asynchronously, because of a thread's write.
inline void check_published(const Granule& g, const char* operation) {
    if (g.writer == NONE) return;
    const std::vector<u32>& fences = block().fibers[g.writer].fences;
    if (g.fences >= fences.size()) {
        fail(operation, " of memory that a thread wrote and did not publish");
    }
    bool is_own = g.writer / LANES == block().current / LANES;
    if (!is_own && fences[g.fences] == block().barriers) {
        fail(operation, " of memory that a thread published after the last barrier");
    }
}

/// Checks an operand of a multiplication: 16 bytes at an offset in shared memory.
inline void check_operand(u64 at) {
    if (IS_WATCHED) check_published(block().granules.at(at / GRANULE_BYTES), "a multiplication");
}

/// Checks the destination of a bulk copy.
inline void check_overwrite(const void* to, u32 bytes) {
    if (!IS_WATCHED) return;
    Block& b = block();
    std::size_t from = static_cast<std::size_t>(static_cast<const u8*>(to) - b.shared.data());
    if (from >= b.shared.size()) return;
    for (std::size_t i = from / GRANULE_BYTES; i < (from + bytes) / GRANULE_BYTES; ++i) {
        Granule& g = b.granules.at(i);
        check_published(g, "a bulk copy");
        bool is_own = g.reader == b.current / LANES;
        if (g.reader != NONE && !is_own && g.read_barriers == b.barriers) {
            fail("a bulk copy to memory that threads have read since the last barrier");
        }
        g = {NONE, NONE, NONE, NONE, NONE};
    }
}

}  // namespace shim
