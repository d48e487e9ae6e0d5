//! Bulk asynchronous copies to shared memory (TMA without tensor maps) and the arrival barriers
//! (mbarrier) that wait for them. For compute capability 9.0 and later.
//! Source: PTX ISA 8.0, mbarrier and cp.async.bulk.
#pragma once
#include "prims.cuh"

#ifdef SHIM
#include "bulk.h"
#else

/// Initializes the arrival barrier `at` in shared memory, for one arriving thread.
DEVICE void open_arrival(u64* at) {
    u32 place = static_cast<u32>(__cvta_generic_to_shared(at));
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(place) : "memory");
}

/// Makes barriers that this thread initialized visible to copies; other threads see them after the
/// next block barrier.
DEVICE void publish_arrivals() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

/// Orders this thread's reads and writes of shared memory before bulk copies to it that are started
/// after the next block barrier.
DEVICE void publish_to_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// Announces the number of bytes that the current phase of the barrier waits for.
DEVICE void expect_bytes(u64* at, u32 bytes) {
    u32 place = static_cast<u32>(__cvta_generic_to_shared(at));
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(place), "r"(bytes)
                 : "memory");
}

/// Starts a bulk copy of `bytes` bytes, a multiple of 16, to shared memory; its bytes count at the
/// barrier `at`.
DEVICE void copy_bulk(void* to, const void* from, u32 bytes, u64* at) {
    u32 target = static_cast<u32>(__cvta_generic_to_shared(to));
    u32 place = static_cast<u32>(__cvta_generic_to_shared(at));
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(target),
                 "l"(from), "r"(bytes), "r"(place)
                 : "memory");
}

/// Waits until all announced bytes have arrived at the barrier `at`. `phase` is 0 for the first
/// wait and alternates after that.
DEVICE void await_bytes(u64* at, u32 phase) {
    u32 place = static_cast<u32>(__cvta_generic_to_shared(at)), have_arrived;
    do {
        asm volatile("{\n.reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n}"
                     : "=r"(have_arrived)
                     : "r"(place), "r"(phase)
                     : "memory");
    } while (!have_arrived);
}
#endif
