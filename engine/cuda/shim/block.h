//! Execution of a kernel on a host processor: blocks run one after another, each thread of a block
//! is a fiber, and warp operations are executed by the last lane to arrive.
#pragma once

#include <sanitizer/asan_interface.h>
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include "proxies.h"

struct dim3 {
    u32 x = 1, y = 1, z = 1;
};

namespace shim {

[[noreturn]] inline void fail(const char* what, const char* more = "") {
    std::fprintf(stderr, "shim: %s%s\n", what, more);
    std::exit(3);
}

constexpr std::size_t STACK_BYTES = 1 << 16;
constexpr u32 EXCHANGE_BYTES = 64;

/// Copy of 16 bytes by a thread; zeros where nothing is there. `source` is what it had to copy when
/// it was started.
struct Copy {
    void* to;
    const void* from;
    bool is_there;
    u8 source[16];
};

struct BulkCopy {
    void* to;
    const void* from;
    u32 bytes;
    std::vector<u8> source;
};

/// Arrival barrier in shared memory: announced bytes, and bytes of copies started, in the current
/// phase.
struct Arrival {
    const u64* at;
    u32 phase, expected, begun;
    std::vector<BulkCopy> copies;
    /// Numbers, among the block's, of the bulk copies of the current phase and of the phase before.
    u32 current, completed;
    /// Thread that initialized the barrier, the number of the block's barriers before that, and
    /// whether the thread published it.
    u32 opener, barriers;
    bool is_published;
};

/// Warpgroup multiplication of one warp: where each lane's sums and registers of A are, the values
/// that these registers had, and the descriptors. Without registers, A is in shared memory.
struct Multiplication {
    float* sums[LANES];
    const u32* a[LANES];
    u32 held[LANES][4];
    u64 a_tile, b_tile;
    /// Number of parts of the sums, each of eight columns.
    u32 parts;
    bool is_transposed;
};

/// Sums of multiplications that were started and not performed, of a warp; the lanes' own are NaN
/// meanwhile.
struct HiddenSums {
    float* at[LANES];
    std::vector<float> values[LANES];
    u32 open;
};

/// Saved execution state of a fiber. New contexts are started by the C library, whose switches make
/// a system call; jumps between running contexts do not, but AddressSanitizer does not support
/// them.
struct Place {
    ucontext_t context;
#ifndef __SANITIZE_ADDRESS__
    jmp_buf jump;
    bool has_jump = false;
#endif
};

/// Switches from the fiber `from` to `to`; returns when another fiber switches back to `from`.
inline void go(Place& from, Place& to) {
#ifdef __SANITIZE_ADDRESS__
    swapcontext(&from.context, &to.context);
#else
    if (_setjmp(from.jump)) return;
    from.has_jump = true;
    if (to.has_jump) _longjmp(to.jump, 1);
    setcontext(&to.context);
#endif
}

/// One thread of the block.
struct Fiber {
    Place place;
    std::vector<char> stack = std::vector<char>(STACK_BYTES);
    /// Name of the operation that the thread waits for, or null.
    const char* awaits = nullptr;
    bool has_ended = false;
    /// Groups of asynchronous copies that were started; the last group is open.
    std::vector<std::vector<Copy>> copies;
    /// Number of the block's barriers before each of the thread's fences between proxies.
    std::vector<u32> fences;
};

/// Exchange buffers of a warp operation: what each lane passes in and gets back.
struct Warp {
    const char* operation = nullptr;
    u32 arrived = 0;
    alignas(16) u8 brought[LANES][EXCHANGE_BYTES];
    alignas(16) u8 taken[LANES][EXCHANGE_BYTES];
    /// Groups of warpgroup multiplications that were started; the last group is open.
    std::vector<std::vector<Multiplication>> multiplications;
    std::vector<HiddenSums> hidden;
    /// True between `begin_wgmma` and the end of its group.
    bool has_begun = false;
};

struct Block {
    dim3 grid, index;
    u32 threads = 0;
    std::vector<Fiber> fibers;
    std::vector<Warp> warps;
    std::vector<u8> shared;
    std::vector<Granule> granules;
    std::vector<Arrival> arrivals;
    /// Waits for the bulk copies of each phase of the arrival barriers.
    std::vector<Awaited> bulk_copies;
    const std::function<void()>* body = nullptr;
    Place launcher;
    u32 current = 0;
    u32 at_barrier = 0;
    /// Number of barriers that all threads have passed.
    u32 barriers = 0;
    /// True when threads run from the last to the first.
    bool is_reversed = false;
    /// True when copies are performed as early as possible and multiplications as late as possible;
    /// else copies as late and multiplications as early as possible.
    bool are_copies_early = false;
};

/// Current block of this host thread; each host thread emulates a GPU of its own.
inline Block& block() {
    static thread_local Block one;
    return one;
}

inline Fiber& fiber() { return block().fibers[block().current]; }

/// Accesses are those of the current thread from here on.
inline void watch_thread() {
    if (!IS_WATCHED) return;
    watch.thread = block().current;
    watch.fences = static_cast<u32>(fiber().fences.size());
    watch.barriers = block().barriers;
}

/// Finds the next thread of the block that can run, if any.
inline bool next(u32& thread) {
    Block& b = block();
    for (u32 i = 1; i <= b.threads; ++i) {
        thread = (b.current + (b.is_reversed ? b.threads - i : i)) % b.threads;
        if (!b.fibers[thread].has_ended && !b.fibers[thread].awaits) return true;
    }
    return false;
}

inline void fail_waiting() {
    for (u32 i = 0; i < block().threads; ++i) {
        Fiber& one = block().fibers[i];
        if (!one.has_ended) fail("threads wait for ever at ", one.awaits);
    }
}

/// Switches to other threads until this one no longer waits for `operation`.
inline void wait(const char* operation) {
    u32 before = block().current, thread;
    fiber().awaits = operation;
    if (!next(thread)) fail_waiting();
    block().current = thread;
    go(block().fibers[before].place, block().fibers[thread].place);
    watch_thread();
}

/// Main function of a fiber: runs the kernel as one thread, in one block after another where fibers
/// are reused.
inline void run_thread() {
    for (;;) {
        watch_thread();
        (*block().body)();
        u32 before = block().current, thread;
        if (!fiber().copies.empty()) fail("a thread ends before its copies do");
        fiber().has_ended = true;
        if (next(thread)) {
            block().current = thread;
            go(block().fibers[before].place, block().fibers[thread].place);
            continue;
        }
        if (!std::all_of(block().fibers.begin(), block().fibers.begin() + block().threads,
                         [](Fiber& one) { return one.has_ended; })) {
            fail_waiting();
        }
        go(block().fibers[before].place, block().launcher);
    }
}

/// Starts a fiber, unless it can be reused from an earlier block.
inline void begin_thread(Fiber& one) {
    one.awaits = nullptr;
    one.has_ended = false;
    one.fences.clear();
#ifndef __SANITIZE_ADDRESS__
    if (one.place.has_jump) return;
#endif
    ucontext_t& context = one.place.context;
    getcontext(&context);
    context.uc_stack.ss_sp = one.stack.data();
    context.uc_stack.ss_size = one.stack.size();
    context.uc_link = nullptr;
    makecontext(&context, run_thread, 0);
    // With a size of 0, AddressSanitizer does not clear the stack at every switch.
    context.uc_stack.ss_size = 0;
    ASAN_UNPOISON_MEMORY_REGION(one.stack.data(), one.stack.size());
}

inline void run_block(dim3 index) {
    Block& b = block();
    b.index = index;
    // Unwritten shared memory is NaN, so that a kernel that reads it fails its test.
    std::fill(b.shared.begin(), b.shared.end(), u8{0xff});
    b.arrivals.clear();
    b.bulk_copies.clear();
    b.barriers = 0;
    if (IS_WATCHED) {
        std::fill(b.granules.begin(), b.granules.end(), Granule{});
        watch = {b.shared.data(), b.shared.size(), b.granules.data(), 0, 0, 0};
    }
    for (u32 i = 0; i < b.threads; ++i) begin_thread(b.fibers[i]);
    b.current = b.is_reversed ? b.threads - 1 : 0;
    go(b.launcher, b.fibers[b.current].place);
    for (const Arrival& arrival : b.arrivals) {
        if (arrival.expected > 0 || arrival.begun > 0) fail("a block ends before its bytes arrive");
    }
    for (const Warp& warp : b.warps) {
        if (!warp.multiplications.empty()) fail("a block ends before its multiplications do");
    }
}

/// Runs `body` as every thread of the grid.
inline void launch(dim3 grid, u32 threads, u32 shared_bytes, const std::function<void()>& body) {
    if (threads == 0 || threads % LANES != 0 || threads > 1024) fail("a block is of 1 to 32 warps");
    Block& b = block();
    b.grid = grid;
    b.threads = threads;
    if (b.fibers.size() < threads) b.fibers.resize(threads);
    b.warps.assign(threads / LANES, Warp{});
    watch = {};
    b.shared = std::vector<u8>(shared_bytes);
    if (IS_WATCHED) b.granules.resize((shared_bytes + GRANULE_BYTES - 1) / GRANULE_BYTES);
    b.body = &body;
    for (u32 z = 0; z < grid.z; ++z) {
        for (u32 y = 0; y < grid.y; ++y) {
            for (u32 x = 0; x < grid.x; ++x) run_block({x, y, z});
        }
    }
}

/// Executes a warp operation once all lanes have arrived: `compute` gets every lane's input and
/// writes every lane's result.
template <class In, class Out, class Compute>
inline Out together(const char* operation, const In& in, const Compute& compute) {
    static_assert(sizeof(In) <= EXCHANGE_BYTES && sizeof(Out) <= EXCHANGE_BYTES, "they fit");
    Block& b = block();
    u32 first = b.current / LANES * LANES, at = b.current % LANES;
    Warp& warp = b.warps[b.current / LANES];
    if (warp.arrived > 0 && warp.operation != operation) {
        fail("lanes of one warp are apart: one is at ", operation);
    }
    warp.operation = operation;
    std::memcpy(warp.brought[at], &in, sizeof in);
    if (++warp.arrived < LANES) {
        wait(operation);
    } else {
        In all[LANES];
        Out results[LANES];
        for (u32 i = 0; i < LANES; ++i) std::memcpy(&all[i], warp.brought[i], sizeof(In));
        compute(all, results);
        for (u32 i = 0; i < LANES; ++i) {
            std::memcpy(warp.taken[i], &results[i], sizeof(Out));
            b.fibers[first + i].awaits = nullptr;
        }
        warp.arrived = 0;
    }
    Out out;
    std::memcpy(&out, warp.taken[at], sizeof out);
    return out;
}

}  // namespace shim
