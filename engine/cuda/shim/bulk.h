//! Emulation of the bulk copies and arrival barriers of `bulk.cuh` on a host processor.
//!
//! Copies are executed when they are started, or as late as allowed, when a thread waits for them.
//! It detects bytes that are announced and never copied, or copied and not announced; copies that
//! no thread waits for; sources that change before the wait; misaligned addresses; arrival barriers
//! that are used before the thread that initialized them has published them and all threads have
//! passed a barrier; and what `fences.h` and `accesses.h` say.
#pragma once

#include "shim.h"

namespace shim {

inline const char AWAITS_BYTES[] = "await_bytes";

/// Arrival barrier at this address in the current block.
inline Arrival& arrival(const u64* at) {
    for (Arrival& one : block().arrivals) {
        if (one.at != at) continue;
        bool is_own = one.opener / LANES == block().current / LANES;
        if (!one.is_published || (!is_own && one.barriers == block().barriers)) {
            fail("an arrival barrier is used before it was published");
        }
        return one;
    }
    fail("bytes at a place that was not opened");
}

/// Number of the bulk copies of an arrival barrier's next phase, which nobody has waited for.
inline u32 next_copies() {
    std::vector<Awaited>& all = block().bulk_copies;
    all.emplace_back();
    return static_cast<u32>(all.size() - 1);
}

/// Completes the current phase of an arrival barrier.
inline void complete(Arrival& arrival) {
    for (const BulkCopy& copy : arrival.copies) {
        check_source(copy.from, copy.source.data(), copy.bytes);
        if (!block().are_copies_early) std::memcpy(copy.to, copy.from, copy.bytes);
    }
    arrival.copies.clear();
    arrival.expected = arrival.begun = 0;
    arrival.phase ^= 1;
    arrival.completed = arrival.current;
    arrival.current = next_copies();
}

/// Wakes the threads that wait for bytes, so that they check again.
inline void wake_waiting() {
    for (Fiber& one : block().fibers) {
        if (one.awaits == AWAITS_BYTES) one.awaits = nullptr;
    }
}

}  // namespace shim

inline void open_arrival(u64* at) {
    shim::Block& b = shim::block();
    u32 completed = shim::next_copies(), current = shim::next_copies();
    b.arrivals.push_back({at, 0, 0, 0, {}, current, completed, b.current, b.barriers, false});
}

inline void publish_arrivals() {
    shim::Block& b = shim::block();
    for (shim::Arrival& one : b.arrivals) {
        if (one.opener != b.current || one.is_published) continue;
        one.is_published = true;
        one.barriers = b.barriers;
    }
}

inline void publish_to_copies() { shim::publish(); }

inline void expect_bytes(u64* at, u32 bytes) {
    shim::Arrival& arrival = shim::arrival(at);
    if (arrival.expected > 0) shim::fail("bytes are expected before those before have arrived");
    arrival.expected = bytes;
    shim::wake_waiting();
}

inline void copy_bulk(void* to, const void* from, u32 bytes, u64* at) {
    if ((reinterpret_cast<std::size_t>(to) | reinterpret_cast<std::size_t>(from) | bytes) % 16) {
        shim::fail("a copy is not aligned");
    }
    shim::Arrival& arrival = shim::arrival(at);
    arrival.begun += bytes;
    const u8* source = static_cast<const u8*>(from);
    arrival.copies.push_back({to, from, bytes, std::vector<u8>(source, source + bytes)});
    shim::begin_bulk_copy(to, bytes, arrival.current);
    if (shim::block().are_copies_early) std::memcpy(to, from, bytes);
    shim::wake_waiting();
}

inline void await_bytes(u64* at, u32 phase) {
    shim::Arrival& arrival = shim::arrival(at);
    while (arrival.phase == phase) {
        if (arrival.expected == 0 || arrival.expected != arrival.begun) {
            shim::wait(shim::AWAITS_BYTES);
            continue;
        }
        shim::complete(arrival);
    }
    shim::Block& b = shim::block();
    shim::Awaited& awaited = b.bulk_copies[arrival.completed];
    awaited.warps |= 1u << (b.current / LANES);
    awaited.barriers = std::min(awaited.barriers, b.barriers);
}
