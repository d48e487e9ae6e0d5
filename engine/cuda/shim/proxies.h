//! Order of accesses to dynamic shared memory by threads (generic proxy) and by asynchronous
//! instructions (asynchronous proxy), for each 16 bytes.
//!
//! An access of a bulk copy or of a warpgroup multiplication fails unless each earlier write of a
//! thread was followed by a fence of that thread, and the fence by a barrier; and a copy fails
//! unless each earlier read was followed by a barrier. Lanes of one warp need no barrier.
//! Source: PTX ISA 8.0, asynchronous proxy.
//!
//! Threads' loads and stores are seen through AddressSanitizer, where WATCHES is defined: with the
//! flags of the tests, the compiler calls a function before each, which the linker replaces by one
//! of those below. It calls none for a store to the address of a load just before it.
#pragma once

#include <cstddef>

namespace shim {

#ifdef WATCHES
constexpr bool IS_WATCHED = true;
#else
constexpr bool IS_WATCHED = false;
#endif

/// Functions that are called for every access, and so may not be instrumented themselves.
#define NOT_WATCHED __attribute__((no_sanitize("address,undefined")))

constexpr std::size_t GRANULE_BYTES = 16;
/// Reader of a granule that several warps have read since the same barrier.
constexpr u32 SEVERAL = 0xfffffffeu;

/// Last accesses of threads to 16 bytes; NONE if there was none since the last bulk copy.
struct Granule {
    /// Thread that wrote last, the number of its fences and of the block's barriers before that.
    u32 writer, fences, write_barriers;
    /// Warp that read last, and the number of the block's barriers before that.
    u32 reader, read_barriers;
};

/// Shared memory of the block that this host thread runs, and the thread that is running.
struct Watch {
    const u8* start;
    std::size_t bytes;
    Granule* granules;
    u32 thread, fences, barriers;
};

inline thread_local Watch watch = {};

NOT_WATCHED inline void see(const void* at, std::size_t bytes, bool is_write) {
    Watch& w = watch;
    std::size_t from = static_cast<std::size_t>(static_cast<const u8*>(at) - w.start);
    if (from >= w.bytes) return;
    for (std::size_t i = from / GRANULE_BYTES; i * GRANULE_BYTES < from + bytes; ++i) {
        Granule& g = w.granules[i];
        if (is_write) {
            g.writer = w.thread;
            g.fences = w.fences;
            g.write_barriers = w.barriers;
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
