//! Checks of threads' accesses to dynamic shared memory, by the state of `proxies.h`.
//!
//! An access fails to bytes of a copy that was not waited for: a bulk copy by a lane of the warp, or
//! by any thread before the last barrier; a copy of 16 bytes by the thread that started it, and for
//! other warps before the last barrier. A write fails to an operand of a multiplication, unless the
//! warp has waited for it, and all other warps that read the operand did before the last barrier.
//!
//! Loads and stores are seen through AddressSanitizer, where WATCHES is defined: with the flags of
//! the tests, the compiler calls a function before each, which the linker replaces by one of those
//! below. It calls none for a store to the address of a load just before it.
#pragma once

#include "fences.h"

namespace shim {

/// Checks an access of the current thread to bytes of asynchronous instructions.
NOT_WATCHED inline void check_access(Granule& g, bool is_write) {
    const char* accesses = is_write ? "a thread writes" : "a thread reads";
    check_copied(g, accesses);
    if (is_write) check_multiplied(g, accesses);
    if (g.is_copied && is_unordered(g.writer / LANES, g.write_barriers)) {
        fail(accesses, " bytes of a copy that another warp awaited after the last barrier");
    }
    u32 now = block().barriers;
    g.is_copied = g.is_copied && g.write_barriers == now;
    g.is_asynchronous = g.is_copied || g.bulk_copy != NONE || g.multiplications > 0 ||
                        (g.multiplier != NONE && g.multiply_barriers == now);
}

/// Checks and records an access of the current thread.
NOT_WATCHED inline void see(const void* at, std::size_t bytes, bool is_write) {
    Watch& w = watch;
    std::size_t from = static_cast<std::size_t>(static_cast<const u8*>(at) - w.start);
    if (from >= w.bytes) return;
    for (std::size_t i = from / GRANULE_BYTES; i * GRANULE_BYTES < from + bytes; ++i) {
        Granule& g = w.granules[i];
        if (g.is_asynchronous) check_access(g, is_write);
        if (is_write) {
            g.writer = w.thread;
            g.fences = w.fences;
            g.write_barriers = w.barriers;
            g.is_copied = false;
        } else {
            u32 warp = w.thread / LANES;
            bool is_shared = g.reader != NONE && g.reader != warp && g.read_barriers == w.barriers;
            g.reader = is_shared ? SEVERAL : warp;
            g.read_barriers = w.barriers;
        }
    }
}

}  // namespace shim

#ifdef WATCHES
#define WATCHED(CHECK, BYTES, IS_WRITE)                                                            \
    extern "C" void __real___asan_##CHECK(const void* at);                                         \
    extern "C" NOT_WATCHED void __wrap___asan_##CHECK(const void* at) {                            \
        shim::see(at, BYTES, IS_WRITE);                                                            \
        __real___asan_##CHECK(at);                                                                 \
    }
#define WATCHED_RANGE(CHECK, IS_WRITE)                                                             \
    extern "C" void __real___asan_##CHECK(const void* at, std::size_t bytes);                      \
    extern "C" NOT_WATCHED void __wrap___asan_##CHECK(const void* at, std::size_t bytes) {         \
        shim::see(at, bytes, IS_WRITE);                                                            \
        __real___asan_##CHECK(at, bytes);                                                          \
    }
WATCHED(load1, 1, false)
WATCHED(load2, 2, false)
WATCHED(load4, 4, false)
WATCHED(load8, 8, false)
WATCHED(load16, 16, false)
WATCHED(store1, 1, true)
WATCHED(store2, 2, true)
WATCHED(store4, 4, true)
WATCHED(store8, 8, true)
WATCHED(store16, 16, true)
WATCHED_RANGE(loadN, false)
WATCHED_RANGE(storeN, true)
#endif
