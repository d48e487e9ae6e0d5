//! State of dynamic shared memory, for each 16 bytes: the last accesses by threads (generic proxy) and
//! by asynchronous instructions (copies, warpgroup multiplications), and what orders them.
//!
//! `fences.h` checks asynchronous instructions by it, and `accesses.h` threads. In files where
//! WATCHES is not defined nothing is recorded.
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
/// Stands for a warp where several warps did the same since the same barrier.
constexpr u32 SEVERAL = 0xfffffffeu;

/// Last accesses to 16 bytes; NONE if there was none since the last bulk copy.
struct Granule {
    /// Thread that wrote last, the number of its fences and of the block's barriers before that.
    u32 writer = NONE, fences = NONE, write_barriers = NONE;
    /// Warp that read last, and the number of the block's barriers before that.
    u32 reader = NONE, read_barriers = NONE;
    /// Thread whose copy (`copy_async`) to these bytes is in flight.
    u32 copier = NONE;
    /// Bulk copy to these bytes that not all threads have waited for: its index among the block's.
    u32 bulk_copy = NONE;
    /// Number of multiplications in flight that read these bytes.
    u32 multiplications = 0;
    /// Warp that waited last for such a multiplication, and the number of barriers before that.
    u32 multiplier = NONE, multiply_barriers = NONE;
    /// True if `writer` wrote by a copy that it has waited for.
    bool is_copied = false;
    /// True if accesses by threads have to be checked: false where all that is above of asynchronous
    /// instructions was before the last barrier.
    bool is_asynchronous = false;
};

/// Waits for the bulk copies of one phase of an arrival barrier: the warps that have waited, one bit
/// each, and the number of the block's barriers before the first of them did.
struct Awaited {
    u32 warps = 0, barriers = NONE;
};

/// Shared memory of the block that this host thread runs, and the thread that is running.
struct Watch {
    const u8* start;
    std::size_t bytes;
    Granule* granules;
    u32 thread, fences, barriers;
};

inline thread_local Watch watch = {};

}  // namespace shim
