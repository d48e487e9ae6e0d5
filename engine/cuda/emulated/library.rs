//! The kernels as libraries of this processor.

#![expect(unsafe_code, reason = "libraries are opened and called")]

use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;

use super::compiler::{compiled, home};
use engine_cuda::driver::Arguments;
use engine_cuda::driver::{Source, kernels};
use engine_cuda::launch::Launch;

const COMPILE: &str = "-std=c++17 -O2 -ftree-vectorize -DSHIM -shared -fPIC -fvisibility=hidden \
                       -fno-strict-aliasing -ffp-contract=off";

/// Runs the entry that it is given the name of; 0 if it has such.
type Run = unsafe extern "C" fn(*const c_char, *const u32, *const *const u64, u32) -> c_int;

/// Shared memory of the shim is that of its library: one block at a time, whoever launches it.
static TURN: Mutex<()> = Mutex::new(());

/// The library of every entry.
#[derive(Debug)]
pub struct Libraries {
    entries: BTreeMap<&'static str, Entry>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    run: Run,
    /// Whether its blocks have shared memory of a fixed size. Those of ranks that wait for one another
    /// must have none.
    is_sharing: bool,
}

impl Libraries {
    /// None, and a line that says so, where there is no compiler.
    pub fn compile() -> Option<Self> {
        let kernels = kernels("shim", true);
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
                let head = kernel.text.lines().find(|line| line.starts_with(&own));
                let is_sharing = !head.is_some_and(|line| line.contains(", shared 0"));
                (entry, Entry { run, is_sharing })
            })
        };
        Some(Self { entries: halves.into_iter().flatten().flat_map(of).collect() })
    }

    /// # Panics
    /// There is no such entry.
    pub fn run(&self, entry: &str, launch: Launch, arguments: &Arguments) {
        let Launch { grid: [x, y, z], block, shared_bytes } = launch;
        let (name, pointers) = (CString::new(entry).unwrap(), arguments.pointers());
        let shape = [x, y, z, block, shared_bytes];
        let Entry { run, is_sharing } =
            *self.entries.get(entry).unwrap_or_else(|| panic!("no kernel is called `{entry}`"));
        let is_sharing = is_sharing || shared_bytes > 0;
        let _turn = is_sharing.then(|| TURN.lock().unwrap_or_else(PoisonError::into_inner));
        // SAFETY: the library was made for this call; the arguments are as many as it is told, and
        // where they point to was looked at when they were launched.
        let done =
            unsafe { run(name.as_ptr(), shape.as_ptr(), pointers.as_ptr(), pointers.len() as u32) };
        assert_eq!(done, 0, "the library of `{entry}` has it");
    }
}

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

fn open(library: &Path) -> Run {
    let path = CString::new(library.as_os_str().as_encoded_bytes()).unwrap();
    // SAFETY: the library does nothing when it is opened, and stays open.
    let run = unsafe {
        let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        assert!(!handle.is_null(), "`{}` opens", library.display());
        libc::dlsym(handle, c"run".as_ptr())
    };
    assert!(!run.is_null(), "`{}` has its entry", library.display());
    // SAFETY: that is its type.
    unsafe { std::mem::transmute::<*mut c_void, Run>(run) }
}
