//! Compiles all kernels for one GPU with NVRTC, unless their machine code is in a prepared folder
//! or in the cache.

use std::ffi::{CString, c_char, c_int};
use std::panic;
use std::ptr;
use std::thread;

use cudarc::nvrtc::{result, sys};

use super::libraries::Library;
use crate::driver::cubins::{CUBINS, Cubins, HEADERS, Source, kernels};
use crate::generation;
use crate::{Result, failed};

/// CUDA kernel file with its machine code (cubin).
pub type Image = (&'static Source, Vec<u8>);

/// Returns every kernel file for a GPU of this compute capability with its machine code. Files
/// whose machine code is not stored are compiled in parallel.
///
/// # Errors
/// The prepared folder lacks a readable file, or NVRTC is needed and is not installed, fails, or
/// rejects a kernel.
pub fn images(capability: (u32, u32), cubins: &Cubins) -> Result<Vec<Image>> {
    let generation = generation(capability);
    // The version is only a part of cache keys, and NVRTC is not needed with a prepared folder.
    let compiler = if cubins.prepared.is_some() { String::new() } else { version() };
    let compiler = &compiler;
    let image = |kernel: &'static Source| {
        let code = kernel.cubin(cubins, generation, compiler, || compile(kernel, generation))?;
        Ok((kernel, code))
    };
    let image = &image;
    let kernels = kernels(generation, cubins.portable);
    // NVRTC compiles a file on one thread, so the files are compiled in parallel.
    let all: Result<Vec<_>, String> = thread::scope(|scope| {
        let threads: Vec<_> =
            kernels.into_iter().map(|kernel| scope.spawn(move || image(kernel))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| panic::resume_unwind(panic)))
            .collect()
    });
    all.map_err(|message| failed("load_kernels", message))
}

/// Returns the origin of the kernels' machine code: `cubins` for a prepared folder, else NVRTC with
/// its version, which compiled them now or at an earlier start.
pub fn kernel_code(cubins: &Cubins) -> String {
    match cubins.prepared {
        Some(_) => "cubins".to_owned(),
        None => format!("NVRTC {}", version()).trim_end().to_owned(),
    }
}

/// Returns the version of NVRTC, part of the key of cached machine code; empty where NVRTC is not
/// installed or reports no version.
fn version() -> String {
    if Library::Nvrtc.open().is_none() {
        return String::new();
    }
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both numbers are writable.
    let asked = unsafe { sys::nvrtcVersion(&raw mut major, &raw mut minor) }.result();
    asked.map_or_else(|_| String::new(), |()| format!("{major}.{minor}"))
}

/// Compiles the kernels of one source file with NVRTC to machine code for `generation`, such as
/// `sm_90a`.
pub(super) fn compile(kernel: &Source, generation: &str) -> Result<Vec<u8>, String> {
    if Library::Nvrtc.open().is_none() {
        return Err(format!(
            "`libnvrtc`, the compiler for kernels, is not found by the dynamic linker, in Python's \
             packages or in `/usr/local/cuda`; hint: have its folder in `LD_LIBRARY_PATH`, or a \
             folder of compiled kernels in `{CUBINS}`; or `--device cpu`"
        ));
    }
    let text = |text: &str| CString::new(text).map_err(|_| "a source has a NUL byte".to_owned());
    let (source, name) = (text(kernel.text)?, text(kernel.name)?);
    let headers: Vec<CString> =
        HEADERS.iter().map(|header| text(header.text)).collect::<Result<_, _>>()?;
    let names: Vec<CString> = HEADERS
        .iter()
        .map(|header| text(&format!("{}.cuh", header.name)))
        .collect::<Result<_, _>>()?;
    let pointers = |all: &[CString]| all.iter().map(|one| one.as_ptr()).collect::<Vec<_>>();
    let mut program = ptr::null_mut();
    // SAFETY: the texts live as long as the program, which is destroyed below.
    let made = unsafe {
        sys::nvrtcCreateProgram(
            &raw mut program,
            source.as_ptr(),
            name.as_ptr(),
            HEADERS.len() as c_int,
            pointers(&headers).as_ptr(),
            pointers(&names).as_ptr(),
        )
    };
    made.result().map_err(|error| format!("NVRTC cannot create a program: {error:?}"))?;
    let options = ["--std=c++17".to_owned(), format!("--gpu-architecture={generation}")];
    // SAFETY: the program was just created.
    let image = unsafe { result::compile_program(program, &options) }
        .map_err(|error| {
            format!("`{}.cu` does not compile: {error:?}\n{}", kernel.name, log(program))
        })
        .and_then(|()| cubin(program).map_err(|error| format!("no machine code: {error:?}")));
    // SAFETY: the program is destroyed once.
    let _failed = unsafe { result::destroy_program(program) };
    image
}

/// Returns the messages of NVRTC about a program, such as compile errors.
fn log(program: sys::nvrtcProgram) -> String {
    // SAFETY: the program was not yet destroyed.
    let log = unsafe { result::get_program_log(program) }.unwrap_or_default();
    let bytes: Vec<u8> = log.into_iter().map(c_char::cast_unsigned).collect();
    String::from_utf8_lossy(&bytes).trim_end_matches('\0').to_owned()
}

/// Returns the machine code (cubin) of a compiled NVRTC program.
fn cubin(program: sys::nvrtcProgram) -> Result<Vec<u8>, result::NvrtcError> {
    let mut size = 0;
    // SAFETY: the program was compiled, and the buffer has the size that it reports.
    unsafe {
        sys::nvrtcGetCUBINSize(program, &raw mut size).result()?;
        let mut image = vec![0u8; size];
        sys::nvrtcGetCUBIN(program, image.as_mut_ptr().cast()).result()?;
        Ok(image)
    }
}
