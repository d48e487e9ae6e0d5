//! Kernels of the emulated driver as shared libraries of the host processor: compiles, loads and
//! calls them.

#![expect(unsafe_code, reason = "libraries are opened and called")]

use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;

use super::compiler::{compiled, home};
use engine_cuda::driver::Arguments;
use engine_cuda::driver::{Source, kernels};
use engine_cuda::launch::{BLOCK_MAX, GRID_MAX, Launch, Processors, SYSTEM_BYTES};

const COMPILE: &str = "-std=c++17 -O2 -U_FORTIFY_SOURCE -ftree-vectorize -DSHIM -shared -fPIC -fvisibility=hidden \
                       -fno-strict-aliasing -ffp-contract=off";

/// Largest numbers of threads and of blocks that a multiprocessor of compute capability 8.0 or 9.0
/// runs at once.
const RESIDENT_THREADS_MAX: usize = 2048;
const RESIDENT_BLOCKS_MAX: usize = 32;
/// Step in which a multiprocessor gives registers to a thread.
const REGISTERS_STEP: usize = 8;

/// Entry function of a compiled library: runs the kernel of the given name with grid, block and
/// shared memory sizes and arguments and returns 0, or returns 1 if the library has no such kernel.
type Run = unsafe extern "C" fn(*const c_char, *const u32, *const *const u64, u32) -> c_int;

/// Lock for kernels with shared memory: the shim keeps shared memory in a static variable of the
/// library, so only one launch may use it at a time, whichever test thread starts it.
static TURN: Mutex<()> = Mutex::new(());

/// Kernels that are compiled for the host and loaded as libraries, by the name of the kernel entry.
#[derive(Debug)]
pub struct Libraries {
    entries: BTreeMap<&'static str, Entry>,
}

/// Kernel entry in a library that is loaded into the test process.
#[derive(Debug, Clone, Copy)]
struct Entry {
    run: Run,
    /// Bytes of static shared memory that the head of the kernel's file allows; 0 for a kernel
    /// without. Kernels with shared memory need the lock, so those whose ranks wait for one another
    /// must have none, since they must run at the same time.
    static_bytes: usize,
    /// Registers of a thread that the head of the kernel's file allows.
    registers: usize,
}

impl Libraries {
    /// Compiles all kernels for GPUs of `generation`, such as `sm_90a`, for the host and loads them.
    /// Returns `None` and prints a message where no compiler is installed.
    pub fn compile(generation: &str) -> Option<Self> {
        let kernels = kernels(generation, false);
        let (even, odd): (Vec<_>, Vec<_>) =
            kernels.into_iter().zip(0..).partition(|(_, index)| index % 2 == 0);
        let halves = thread::scope(|scope| {
            let compile = |half: Vec<(&'static Source, i32)>| {
                let each = half.into_iter().map(|(kernel, _)| Some((kernel, compile(kernel)?)));
                each.collect::<Option<Vec<_>>>()
            };
            let even = scope.spawn(move || compile(even));
            Some([compile(odd)?, even.join().unwrap()?])
        })?;
        let of = |(kernel, library): (&'static Source, PathBuf)| {
            let run = open(&library);
            kernel.entries().map(move |entry| {
                let own = format!("//@ {entry}: ");
                let head = kernel.text.lines().find_map(|line| line.strip_prefix(&own));
                let limit = |name: &str| {
                    let value = head?.split(", ").find_map(|part| part.strip_prefix(name))?;
                    value.parse().ok()
                };
                let limits = [limit("registers "), limit("shared ")];
                let [Some(registers), Some(static_bytes)] = limits else {
                    panic!("`{entry}` has no budget");
                };
                (entry, Entry { run, static_bytes, registers })
            })
        };
        let mut all: Vec<_> = halves.into_iter().flatten().collect();
        // Files for one generation come last, since their entries replace portable ones.
        all.sort_by_key(|(kernel, _)| kernel.is_for(generation).is_some());
        Some(Self { entries: all.into_iter().flat_map(of).collect() })
    }

    /// Returns the bytes of static shared memory of each kernel entry.
    pub fn static_bytes(&self) -> impl Iterator<Item = (&'static str, usize)> {
        self.entries.iter().map(|(name, entry)| (*name, entry.static_bytes))
    }

    /// Returns the number of blocks of the kernel `entry`, of so many threads and bytes of dynamic
    /// shared memory, that a multiprocessor with `registers` registers runs at once.
    pub fn resident_blocks(
        &self,
        entry: &str,
        (threads, shared_bytes): (usize, usize),
        registers: usize,
        processors: Processors,
    ) -> usize {
        let own = &self.entries[entry];
        let by_registers = registers / (own.registers.next_multiple_of(REGISTERS_STEP) * threads);
        let block_bytes = shared_bytes + own.static_bytes + SYSTEM_BYTES;
        let by_memory = processors.shared_bytes / block_bytes;
        (RESIDENT_THREADS_MAX / threads).min(by_registers).min(by_memory).min(RESIDENT_BLOCKS_MAX)
    }

    /// Runs the kernel `entry` on the host processor, as a GPU with these processors does.
    ///
    /// # Panics
    /// No compiled library has a kernel of that name, or the launch exceeds a limit of the GPU.
    pub fn run(&self, entry: &str, launch: Launch, arguments: &Arguments, processors: Processors) {
        let Launch { grid: [x, y, z], block, shared_bytes } = launch;
        let (name, pointers) = (CString::new(entry).unwrap(), arguments.pointers());
        let shape = [x, y, z, block, shared_bytes];
        let Entry { run, static_bytes, .. } =
            *self.entries.get(entry).unwrap_or_else(|| panic!("no kernel is called `{entry}`"));
        if let Some(limit) = exceeded(&launch, static_bytes, processors) {
            panic!("`{entry}` of {launch:?} with {static_bytes} static bytes exceeds {limit}");
        }
        let is_sharing = static_bytes > 0 || shared_bytes > 0;
        let _turn = is_sharing.then(|| TURN.lock().unwrap_or_else(PoisonError::into_inner));
        // SAFETY: the library was compiled for exactly this signature and gets the number of its
        // arguments; the addresses among them were checked when the kernel was launched.
        let done =
            unsafe { run(name.as_ptr(), shape.as_ptr(), pointers.as_ptr(), pointers.len() as u32) };
        assert_eq!(done, 0, "the library of `{entry}` has it");
    }
}

/// Returns the limit that `launch` of a kernel with `static_bytes` bytes of static shared memory
/// exceeds; `None` if a GPU with these processors runs it.
fn exceeded(launch: &Launch, static_bytes: usize, processors: Processors) -> Option<&'static str> {
    let Launch { grid: [x, y, z], block, shared_bytes } = *launch;
    let [x, y, z, block] = [x, y, z, block].map(|count| count as usize);
    let shared = shared_bytes as usize + static_bytes;
    let is_whole = block > 0 && block.is_multiple_of(32);
    let limits = [
        (x > 0 && x < 1 << 31, "2^31 - 1 blocks, or has none"),
        (y > 0 && z > 0 && y.max(z) <= GRID_MAX, "65,535 blocks in y or z, or has none"),
        (is_whole && block <= BLOCK_MAX, "1,024 threads, or has no whole warps"),
        // A block has all of a multiprocessor's shared memory but what the system reserves for it:
        // 227 KiB on an H200, 163 KiB on an A100.
        (shared + SYSTEM_BYTES <= processors.shared_bytes, "the shared memory of a block"),
    ];
    limits.into_iter().find(|(fits, _)| !fits).map(|(_, limit)| limit)
}

/// Compiles the kernels of one source file into a host library with a `run` function that calls
/// them by name; `None` where no compiler is installed.
fn compile(kernel: &Source) -> Option<PathBuf> {
    let each = kernel.entries().map(|entry| {
        format!("    if (!std::strcmp(name, \"{entry}\")) return shim::run({entry}, c), 0;\n")
    });
    let run = format!(
        "#include \"library.h\"\n\
         extern \"C\" __attribute__((visibility(\"default\"))) int run(const char* name, \
         const u32* shape, void* const* arguments, u32 count) {{\n    \
         shim::Call c = {{{{shape[0], shape[1], shape[2]}}, shape[3], shape[4], arguments, count}};\n\
         {}    return 1;\n}}\n",
        each.collect::<String>()
    );
    compiled(&home().join("kernels").join(kernel.name).with_extension("cu"), &run, COMPILE)
}

/// Opens a compiled library and returns its `run` function.
fn open(library: &Path) -> Run {
    let path = CString::new(library.as_os_str().as_encoded_bytes()).unwrap();
    // SAFETY: the library runs no code when it is opened, and stays open.
    let run = unsafe {
        let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        assert!(!handle.is_null(), "`{}` opens", library.display());
        libc::dlsym(handle, c"run".as_ptr())
    };
    assert!(!run.is_null(), "`{}` has its entry", library.display());
    // SAFETY: `run` has this type in every compiled library.
    unsafe { std::mem::transmute::<*mut c_void, Run>(run) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launches_that_a_gpu_refuses_are_found() {
        let [h200, a100] = [(true, 228), (false, 164)].map(|(has_warpgroups, kib)| Processors {
            count: 2,
            shared_bytes: kib << 10,
            has_warpgroups,
        });
        let fits = Launch { grid: [70_000, 65_535, 1], block: 1024, shared_bytes: 226 << 10 };
        assert_eq!(exceeded(&fits, 1024, h200), None);
        let smaller = Launch { shared_bytes: 162 << 10, ..fits };
        assert_eq!(exceeded(&smaller, 1024, a100), None);
        for (launch, processors, limit) in [
            (Launch { grid: [1, 65_536, 1], ..fits }, h200, "65,535"),
            (Launch { grid: [1, 1, 0], ..fits }, h200, "or has none"),
            (Launch { block: 1056, ..fits }, h200, "1,024"),
            (Launch { block: 33, ..fits }, h200, "whole warps"),
            (Launch { shared_bytes: 227 << 10, ..fits }, h200, "shared memory"),
            (Launch { shared_bytes: 163 << 10, ..fits }, a100, "shared memory"),
        ] {
            let found = exceeded(&launch, 1024, processors).unwrap_or_default();
            assert!(found.contains(limit), "{launch:?}: {found}");
        }
    }
}
