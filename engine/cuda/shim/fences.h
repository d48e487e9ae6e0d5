//! Fences between the proxies, and the checks of asynchronous instructions by the state of
//! `proxies.h`.
//!
//! A bulk copy or a warpgroup multiplication fails unless each earlier write of a thread to its
//! bytes was followed by a fence of that thread, and the fence by a barrier; and a copy fails unless
//! each earlier read was followed by a barrier. Lanes of one warp need no barrier. All fail on bytes
//! of a copy in flight, and copies on operands of a multiplication in flight.
//! Source: PTX ISA 8.0, asynchronous proxy.
#pragma once

#include "block.h"

namespace shim {

/// Publishes what the current thread wrote before to asynchronous accesses after the next barrier.
inline void publish() {
    fiber().fences.push_back(block().barriers);
    watch_thread();
}

/// True if `who` is neither the current warp nor none, and no barrier has been passed since.
NOT_WATCHED inline bool is_unordered(u32 who, u32 barriers) {
    return who != NONE && who != block().current / LANES && barriers == block().barriers;
}

/// True if the current warp sees the granule's bulk copy, if there is one. A copy is forgotten once
/// all threads see it, after a barrier behind the first wait.
NOT_WATCHED inline bool sees_bulk_copy(Granule& g) {
    if (g.bulk_copy == NONE) return true;
    Block& b = block();
    Awaited awaited = b.bulk_copies[g.bulk_copy];
    if (awaited.barriers < b.barriers) {
        g.bulk_copy = NONE;
        return true;
    }
    return awaited.warps >> (b.current / LANES) & 1;
}

/// Fails if bytes are accessed before the copy to them was waited for.
NOT_WATCHED inline void check_copied(Granule& g, const char* accesses) {
    if (g.copier != NONE || !sees_bulk_copy(g)) {
        fail(accesses, " bytes of a copy that was not awaited");
    }
}

/// Fails if bytes are overwritten while multiplications read them.
NOT_WATCHED inline void check_multiplied(const Granule& g, const char* writes) {
    if (g.multiplications > 0) {
        fail(writes, " an operand of a multiplication that was not awaited");
    }
    if (is_unordered(g.multiplier, g.multiply_barriers)) {
        fail(writes, " an operand of a multiplication that another warp awaited after the last barrier");
    }
}

/// Fails if a copy overwrites bytes that threads of other warps may still read.
inline void check_read(const Granule& g, const char* writes) {
    if (is_unordered(g.reader, g.read_barriers)) {
        fail(writes, " memory that threads have read since the last barrier");
    }
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

/// Granule of an address in shared memory; null for other memory, and where nothing is recorded.
inline Granule* granule(const void* at) {
    if (!IS_WATCHED) return nullptr;
    Block& b = block();
    std::size_t offset = static_cast<std::size_t>(static_cast<const u8*>(at) - b.shared.data());
    return offset < b.shared.size() ? &b.granules[offset / GRANULE_BYTES] : nullptr;
}

/// Checks an operand of a multiplication that begins: 16 bytes at an offset in shared memory.
inline void begin_operand(u64 at) {
    if (!IS_WATCHED) return;
    Granule& g = block().granules.at(at / GRANULE_BYTES);
    check_copied(g, "a multiplication reads");
    check_published(g, "a multiplication");
    ++g.multiplications;
    g.is_asynchronous = true;
}

/// Ends the read of an operand by a multiplication that the current warp has waited for.
inline void end_operand(u64 at) {
    if (!IS_WATCHED) return;
    Granule& g = block().granules.at(at / GRANULE_BYTES);
    --g.multiplications;
    g.multiplier = is_unordered(g.multiplier, g.multiply_barriers) ? SEVERAL : block().current / LANES;
    g.multiply_barriers = block().barriers;
}

/// Checks the destination of a bulk copy, whose number among the block's is `bulk_copy`.
inline void begin_bulk_copy(const void* to, u32 bytes, u32 bulk_copy) {
    Granule* first = granule(to);
    if (!first) return;
    const std::vector<Granule>& all = block().granules;
    if (bytes / GRANULE_BYTES > static_cast<std::size_t>(all.data() + all.size() - first)) {
        fail("a bulk copy to memory behind the shared memory");
    }
    const char* writes = "a bulk copy writes";
    for (Granule* g = first; g < first + bytes / GRANULE_BYTES; ++g) {
        check_copied(*g, writes);
        check_published(*g, "a bulk copy");
        check_multiplied(*g, writes);
        check_read(*g, writes);
        *g = Granule{};
        g->bulk_copy = bulk_copy;
        g->is_asynchronous = true;
    }
}

/// Checks the destination of a thread's copy of 16 bytes.
inline void check_copy(const void* to) {
    Granule* g = granule(to);
    if (!g) return;
    const char* writes = "a copy writes";
    check_copied(*g, writes);
    check_multiplied(*g, writes);
    check_read(*g, writes);
}

/// Begins a thread's copy of 16 bytes.
inline void begin_copy(const void* to) {
    Granule* g = granule(to);
    if (!g) return;
    g->copier = block().current;
    g->is_asynchronous = true;
}

}  // namespace shim
