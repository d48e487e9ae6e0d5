//! The kernels as libraries of this processor: compiled once for all tests, and kept beside them.

#![expect(unsafe_code, reason = "libraries are opened and called")]

use std::collections::BTreeMap;
use std::env;
use std::ffi::{CString, c_char, c_int, c_void};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::thread;

use sha2::{Digest, Sha256};

use crate::device::cuda::driver::Arguments;
use crate::device::cuda::driver::cubins::{HEADERS, Source, kernels};
use crate::device::cuda::launch::Launch;
use crate::weights::hex;

const COMPILE: &str = "-std=c++17 -O2 -ftree-vectorize -DSHIM -shared -fPIC -fvisibility=hidden \
                       -fno-strict-aliasing -ffp-contract=off";
/// What kernels become libraries with.
const SHIM: [&str; 2] = [include_str!("../../shim/shim.h"), include_str!("../../shim/library.h")];

/// Runs the entry that it is given the name of; 0 if it has such.
type Run = unsafe extern "C" fn(*const c_char, *const u32, *const *const u64, u32) -> c_int;

/// Shared memory of the shim is that of its library: one block at a time, whoever launches it.
static TURN: Mutex<()> = Mutex::new(());

/// The library of every entry.
#[derive(Debug)]
pub struct Libraries {
    entries: BTreeMap<&'static str, Run>,
}

impl Libraries {
    /// None, and a line that says so, where there is no compiler.
    pub fn compile() -> Option<Self> {
        if let Err(error) = Command::new("g++").arg("--version").output()
            && error.kind() == ErrorKind::NotFound
        {
            eprintln!("skipped: there is no `g++` to compile kernels for this processor with");
            return None;
        }
        let (folder, kernels) = (folder(), kernels("shim", true));
        fs::create_dir_all(&folder).unwrap();
        // Tests are processes of their own: one compiles, the others wait.
        let lock = File::create(folder.join("lock")).unwrap();
        lock.lock().unwrap();
        thread::scope(|scope| {
            let (even, odd): (Vec<_>, Vec<_>) =
                kernels.iter().zip(0..).partition(|(_, index)| index % 2 == 0);
            for half in [even, odd] {
                let folder = &folder;
                scope.spawn(move || half.iter().for_each(|(kernel, _)| compile(kernel, folder)));
            }
        });
        let of = |kernel: &'static Source| {
            let run = open(&path(kernel, &folder));
            kernel.entries().map(move |entry| (entry, run))
        };
        Some(Self { entries: kernels.into_iter().flat_map(of).collect() })
    }

    /// # Panics
    /// There is no such entry.
    pub fn run(&self, entry: &str, launch: Launch, arguments: &Arguments) {
        let Launch { grid: [x, y, z], block, shared_bytes } = launch;
        let (name, pointers) = (CString::new(entry).unwrap(), arguments.pointers());
        let shape = [x, y, z, block, shared_bytes];
        let run =
            self.entries.get(entry).unwrap_or_else(|| panic!("no kernel is called `{entry}`"));
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the library was made for this call; the arguments are as many as it is told, and
        // where they point to was looked at when they were launched.
        let done =
            unsafe { run(name.as_ptr(), shape.as_ptr(), pointers.as_ptr(), pointers.len() as u32) };
        assert_eq!(done, 0, "the library of `{entry}` has it");
    }
}

/// Beside the tests.
fn folder() -> PathBuf {
    env::current_exe().unwrap().ancestors().nth(2).unwrap().join("shim")
}

fn path(kernel: &Source, folder: &Path) -> PathBuf {
    let mut hash = Sha256::new();
    let headers = HEADERS.iter().map(|header| header.text);
    for text in headers.chain(SHIM).chain([COMPILE, kernel.text]) {
        hash.update(text);
    }
    folder.join(format!("{}.{}.so", kernel.name, &hex(&hash.finalize())[..16]))
}

fn compile(kernel: &Source, folder: &Path) {
    let library = path(kernel, folder);
    if library.exists() {
        return;
    }
    let home = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/device/cuda");
    let source = home.join("kernels").join(kernel.name).with_extension("cu");
    let each = kernel.entries().map(|entry| {
        format!("    if (!std::strcmp(name, \"{entry}\")) return shim::run({entry}, c), 0;\n")
    });
    let program = format!(
        "#include \"{}\"\n#include \"library.h\"\n\
         extern \"C\" __attribute__((visibility(\"default\"))) int run(const char* name, \
         const u32* shape, void* const* arguments, u32 count) {{\n    \
         shim::Call c = {{{{shape[0], shape[1], shape[2]}}, shape[3], shape[4], arguments, count}};\n\
         {}    return 1;\n}}\n",
        source.display(),
        each.collect::<String>()
    );
    let (text, part) = (library.with_extension("cpp"), library.with_extension("part"));
    fs::write(&text, program).unwrap();
    let done = Command::new("g++")
        .args(COMPILE.split_whitespace())
        .arg("-I")
        .arg(home.join("shim"))
        .arg(&text)
        .arg("-o")
        .arg(&part)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{}:\n{said}", source.display());
    fs::rename(part, library).unwrap();
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
