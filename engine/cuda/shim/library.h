//! Shared library around a kernel that runs on a host processor: calls kernels by name with
//! pointers to the arguments, as a GPU's driver does.
#pragma once

#include <tuple>
#include <utility>

#include "shim.h"

namespace shim {

/// Launch of one kernel: grid, block, shared memory, and pointers to the arguments.
struct Call {
    dim3 grid;
    u32 threads, shared_bytes;
    void* const* arguments;
    u32 count;
};

template <class... P, std::size_t... I>
void call(void (*kernel)(P...), const Call& c, std::index_sequence<I...>) {
    if (c.count != sizeof...(P)) fail("another number of arguments than the kernel's");
    std::tuple<P...> arguments(*static_cast<P*>(c.arguments[I])...);
    launch(c.grid, c.threads, c.shared_bytes, [&] { std::apply(kernel, arguments); });
}

template <class... P> void run(void (*kernel)(P...), const Call& c) {
    call(kernel, c, std::index_sequence_for<P...>{});
}

}  // namespace shim
