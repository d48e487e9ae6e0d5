//! Test program around a kernel that runs on a host processor: reads launches with their arguments
//! from one file, runs each, and writes the final content of its buffers to another.
//!
//! A launch in the file: the entry's name, grid, threads, bytes of dynamic shared memory, mode of its
//! run, arguments. Names and arguments are preceded by their length. The mode says in which order the
//! launch's threads run, and when asynchronous copies and multiplications are performed. A launch may
//! run a second time, with the other order and the other time. Both runs must give the same bytes;
//! this detects many data races.
#pragma once

#include <cstdint>
#include <fstream>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "shim.h"

namespace shim {

enum class Kind : u32 { Value = 0, Buffer = 1, Null = 2 };

struct Argument {
    Kind kind;
    std::vector<u8> bytes;
};

struct Launch {
    dim3 grid;
    u32 threads, shared_bytes;
    /// Order of threads, and time of copies and multiplications, in the first run.
    bool is_reversed, are_copies_early;
    /// True to run the launch a second time, with the other order and the other time.
    bool is_repeated;
    std::vector<Argument> arguments;
};

using Entry = std::function<void(Launch&)>;

template <class T> T pass(Argument& argument) {
    if constexpr (std::is_pointer_v<T>) {
        if (argument.kind == Kind::Value) fail("a value where a pointer is expected");
        return argument.kind == Kind::Null ? nullptr : reinterpret_cast<T>(argument.bytes.data());
    } else {
        T value;
        if (argument.kind != Kind::Value || argument.bytes.size() != sizeof value) {
            fail("an argument of another size than the kernel's");
        }
        std::memcpy(&value, argument.bytes.data(), sizeof value);
        return value;
    }
}

template <class... P, std::size_t... I>
void call(void (*kernel)(P...), Launch& l, std::index_sequence<I...>) {
    if (l.arguments.size() != sizeof...(P)) fail("another number of arguments than the kernel's");
    std::tuple<P...> arguments(pass<P>(l.arguments[I])...);
    launch(l.grid, l.threads, l.shared_bytes, [&] { std::apply(kernel, arguments); });
}

template <class... P> Entry entry(void (*kernel)(P...)) {
    return [kernel](Launch& l) { call(kernel, l, std::index_sequence_for<P...>{}); };
}

struct Reader {
    std::ifstream file;

    u32 word() {
        u32 x = 0;
        file.read(reinterpret_cast<char*>(&x), sizeof x);
        if (!file) fail("the file of launches ends early");
        return x;
    }

    std::vector<u8> bytes() {
        std::vector<u8> all(word());
        file.read(reinterpret_cast<char*>(all.data()), static_cast<std::streamsize>(all.size()));
        if (!file) fail("the file of launches ends early");
        return all;
    }

    Launch launch() {
        Launch l;
        l.grid = {word(), word(), word()};
        l.threads = word();
        l.shared_bytes = word();
        u32 mode = word();
        l.is_reversed = mode & 1;
        l.are_copies_early = mode & 2;
        l.is_repeated = mode & 4;
        l.arguments.resize(word());
        for (Argument& argument : l.arguments) {
            argument.kind = static_cast<Kind>(word());
            argument.bytes = bytes();
        }
        return l;
    }
};

inline void run_once(const Entry& entry, Launch& l, bool is_reversed, bool are_copies_early) {
    block().is_reversed = is_reversed;
    block().are_copies_early = are_copies_early;
    entry(l);
}

/// Fails if the buffers of two runs of a launch differ.
inline void compare(const Launch& l, const Launch& again, const std::string& name) {
    for (std::size_t i = 0; i < l.arguments.size(); ++i) {
        if (l.arguments[i].kind != Kind::Buffer) continue;
        if (l.arguments[i].bytes != again.arguments[i].bytes) {
            fail("results depend on the order of threads or the time of copies: ", name.c_str());
        }
    }
}

inline int run(int argc, char** argv, const std::map<std::string, Entry>& entries) {
    if (argc != 3) fail("usage: LAUNCHES RESULTS");
    Reader reader{std::ifstream(argv[1], std::ios::binary)};
    std::ofstream out(argv[2], std::ios::binary);
    for (u32 left = reader.word(); left > 0; --left) {
        std::vector<u8> name = reader.bytes();
        auto found = entries.find(std::string(name.begin(), name.end()));
        if (found == entries.end()) fail("no such entry");
        Launch l = reader.launch(), again = l;
        run_once(found->second, l, l.is_reversed, l.are_copies_early);
        if (l.is_repeated) {
            run_once(found->second, again, !l.is_reversed, !l.are_copies_early);
            compare(l, again, found->first);
        }
        for (const Argument& argument : l.arguments) {
            if (argument.kind != Kind::Buffer) continue;
            out.write(reinterpret_cast<const char*>(argument.bytes.data()),
                      static_cast<std::streamsize>(argument.bytes.size()));
        }
    }
    out.flush();
    return out ? 0 : 1;
}

}  // namespace shim
