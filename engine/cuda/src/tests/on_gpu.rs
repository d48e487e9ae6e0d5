//! The kernel tests on a real GPU: the launches that the shim emulates elsewhere, with the same
//! arguments and the same expected results.
//!
//! `REDLINE_REQUIRE_GPU=1` selects the GPU. Tests of a file `NAME_sm90.cu` launch the kernels for
//! compute capability 9.0, all others the portable ones. An illegal address makes the GPU's context
//! useless, so each test should have a process of its own.

use std::env;
use std::sync::Arc;

use super::shim::{Argument, Call};
use crate::driver::gpu::Gpu;
use crate::driver::{Address, Arguments, Cubins, Driver, Memory, Pinned};

/// Number of bytes before and behind each buffer that a kernel must not write; a multiple of the
/// alignment of an allocation.
const GUARD: usize = 4096;
/// Value of the bytes around a buffer: they are NaN in every floating-point type, so that a kernel
/// that reads them gives a wrong result.
const GUARD_BYTE: u8 = 0xff;

/// Driver of the first GPU, on which all kernels are loaded.
#[derive(Debug)]
pub(super) struct LoadedKernels(Arc<dyn Driver>);

impl LoadedKernels {
    /// Opens the first GPU with the kernels among which those of the file `name` are; panics if
    /// there is none or it cannot be used.
    pub(super) fn open(name: &str) -> Self {
        let environment = Cubins::of_environment(|name| env::var(name).ok());
        let cubins = Cubins { portable: !name.ends_with("_sm90"), ..environment };
        Self(Gpu::open(0, &cubins).unwrap_or_else(|error| panic!("{error}")))
    }

    /// Runs each launch twice and returns the content of its buffers; panics if the runs differ, or
    /// if a kernel writes beside a buffer.
    pub(super) fn run(&self, calls: &[Call]) -> Vec<Vec<Vec<u8>>> {
        let both = |call: &Call| {
            let [first, second] = [self.launch(call), self.launch(call)];
            assert!(first == second, "`{}`: two runs give different results", call.entry);
            first
        };
        calls.iter().map(both).collect()
    }

    fn launch(&self, call: &Call) -> Vec<Vec<u8>> {
        let driver = &self.0;
        let what = |what: &str| format!("`{}` of {:?}: {what}", call.entry, call.launch);
        let mut arguments = Arguments::of([]);
        let mut buffers = Vec::new();
        for argument in &call.arguments {
            arguments = match argument {
                Argument::Value(bytes) => arguments.bytes(bytes),
                Argument::Null => arguments.address(Address::NULL),
                Argument::Buffer(bytes) => {
                    let buffer = Guarded::new(driver, bytes);
                    let at = buffer.memory.address().plus(GUARD);
                    buffers.push(buffer);
                    arguments.address(at)
                }
            };
        }
        let done = driver.launch(&call.entry, call.launch, &arguments);
        done.and_then(|()| driver.wait_all())
            .unwrap_or_else(|error| panic!("{}", what(&error.to_string())));
        let read = |buffer: Guarded| {
            buffer.content().unwrap_or_else(|message| panic!("{}", what(&message)))
        };
        buffers.into_iter().map(read).collect()
    }
}

/// Buffer in device memory with guard bytes on both sides.
struct Guarded {
    driver: Arc<dyn Driver>,
    memory: Memory,
    host: Pinned,
}

impl Guarded {
    fn new(driver: &Arc<dyn Driver>, content: &[u8]) -> Self {
        let bytes = content.len() + 2 * GUARD;
        let (memory, mut host) =
            (Memory::new(driver, bytes).unwrap(), Pinned::new(driver, bytes).unwrap());
        host.bytes_mut().fill(GUARD_BYTE);
        host.bytes_mut()[GUARD..GUARD + content.len()].copy_from_slice(content);
        host.upload(memory.address(), bytes).unwrap();
        driver.wait_all().unwrap();
        Self { driver: Arc::clone(driver), memory, host }
    }

    /// Returns the content of the buffer.
    ///
    /// # Errors
    /// A guard byte has changed: the message has its offset from the start of the buffer.
    fn content(mut self) -> Result<Vec<u8>, String> {
        let bytes = self.memory.bytes();
        self.host.bytes_mut().fill(0);
        self.host.download(0, self.memory.address(), bytes).map_err(|error| error.to_string())?;
        self.driver.wait_all().map_err(|error| error.to_string())?;
        let all = self.host.bytes();
        let is_guard = |i: usize| i < GUARD || i >= bytes - GUARD;
        match (0..bytes).find(|i| is_guard(*i) && all[*i] != GUARD_BYTE) {
            Some(i) => Err(format!(
                "byte {} of a buffer of {} was written",
                i as i64 - GUARD as i64,
                bytes - 2 * GUARD
            )),
            None => Ok(all[GUARD..bytes - GUARD].to_vec()),
        }
    }
}
