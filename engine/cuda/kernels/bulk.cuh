//! Copies of many bytes to shared memory, which one thread begins and nobody computes addresses for,
//! and the arrivals that are waited for. For compute capability 9.0 and later.
//! Source: PTX ISA 8.0, mbarrier and cp.async.bulk.
#pragma once
#include "prims.cuh"

#ifdef SHIM
#include "bulk.h"
#else

/// Lets bytes be expected at `at`, in shared memory, by one thread at a time; nothing is yet.
DEVICE void open_arrival(u64* at) {
    u32 place = static_cast<u32>(__cvta_generic_to_shared(at));
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(place) : "memory");
}

/// What this thread opened may, behind the next barrier, be used by all and by copies.
DEVICE void publish_arrivals() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

/// What this thread read and wrote in shared memory comes, behind the next barrier, before copies to
/// there.
DEVICE void publish_to_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// Says how many bytes are to arrive until the next are expected.
DEVICE void expect_bytes(u64* at, u32 bytes) {
    u32 place = static_cast<u32>(__cvta_generic_to_shared(at));
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(place), "r"(bytes)
                 : "memory");
}

/// Begins to copy `bytes`, a multiple of 16, to shared memory; they arrive at `at`.
DEVICE void copy_bulk(void* to, const void* from, u32 bytes, u64* at) {
    u32 target = static_cast<u32>(__cvta_generic_to_shared(to));
    u32 place = static_cast<u32>(__cvta_generic_to_shared(at));
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(target),
                 "l"(from), "r"(bytes), "r"(place)
                 : "memory");
}

/// Waits for what is expected at `at`, the first time with `phase` 0, then with 1 and 0 in turns.
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
