//! CUDA driver of a real GPU, through NVIDIA's libraries, which are opened at run time.
//!
//! Handles belong to a context, and a context is current per thread: every operation makes it
//! current first, since memory may be released on any thread. There is one stream, and events are
//! recorded only by explicit calls.

#![expect(unsafe_code, reason = "calls into the driver, each after the check that it is there")]

mod blas;
mod compile;
mod libraries;
mod nccl;
mod version;

pub use compile::kernel_code;
pub use libraries::opened;
pub use nccl::{has_nccl, nccl_version};
pub use version::{UnusableDriver, check_driver};

use std::collections::BTreeMap;
use std::ffi::{CString, c_void};
use std::panic;
use std::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUdevice_attribute as Attribute, CUresult};
use cudarc::driver::{DriverError, result};

use self::blas::CublasLt;
use super::cubins::{Cubins, Source};
use super::{
    Address, Arguments, Blas, CudaGraph, Driver, Event, Facts, MemoryBytes, out_of_memory,
};
use crate::CAPABILITY_MIN;
use crate::launch::{Launch, Processors, carveout};
use crate::{Result, failed};
use engine_core::DeviceError;

/// One real GPU with its context, stream and loaded kernels.
#[derive(Debug)]
pub struct Gpu {
    facts: Facts,
    device: sys::CUdevice,
    context: sys::CUcontext,
    stream: sys::CUstream,
    modules: Vec<sys::CUmodule>,
    functions: BTreeMap<&'static str, sys::CUfunction>,
    blas: Option<CublasLt>,
}

// SAFETY: the driver's handles may be used from any thread on which the context is current, and
// every operation makes it current.
unsafe impl Send for Gpu {}
// SAFETY: as above; the driver serializes calls.
unsafe impl Sync for Gpu {}

impl Gpu {
    /// Opens the GPU with this ordinal number in the driver's list and loads all kernels.
    ///
    /// # Errors
    /// There is no driver or no such GPU, the driver or the GPU's compute capability is too old,
    /// the driver reports an error, or the machine code of a kernel can be neither read from the
    /// prepared folder or the cache nor compiled.
    pub fn open(ordinal: usize, cubins: &Cubins) -> Result<Arc<Self>> {
        check_driver().map_err(|error| failed("open", error.to_string()))?;
        // A driver that lacks a function makes cudarc panic.
        let opened = panic::catch_unwind(|| Self::open_present(ordinal, cubins));
        opened.unwrap_or_else(|_| Err(failed("open", "the CUDA driver lacks a function")))
    }

    fn open_present(ordinal: usize, cubins: &Cubins) -> Result<Arc<Self>> {
        let found = || {
            result::init()?;
            let device = result::device::get(ordinal as i32)?;
            Ok((device, facts(device)?))
        };
        let (device, mut facts) = found().map_err(|error| named("open", error))?;
        // Launches are for the kernels that are loaded.
        facts.processors.has_warpgroups &= !cubins.portable;
        if facts.capability < CAPABILITY_MIN {
            let (major, minor) = facts.capability;
            let message = format!(
                "`{}` has compute capability {major}.{minor}, and the kernels need 8.0 or later",
                facts.name
            );
            return Err(failed("open", message));
        }
        let images = compile::images(facts.capability, cubins)?;
        // SAFETY: the driver just returned this device.
        let context = unsafe { result::primary_ctx::retain(device) };
        let context = context.map_err(|error| named("open", error))?;
        let mut gpu = Self {
            facts,
            device,
            context,
            stream: std::ptr::null_mut(),
            modules: Vec::new(),
            functions: BTreeMap::new(),
            blas: None,
        };
        // A non-blocking stream does not synchronize with the default stream of the process.
        let kind = result::stream::StreamKind::NonBlocking;
        gpu.stream = gpu.with("open", || result::stream::create(kind))?;
        gpu.blas = CublasLt::open(gpu.context, gpu.stream);
        for (kernel, image) in &images {
            gpu.load(kernel, image).map_err(|error| named("load_kernels", error))?;
        }
        Ok(Arc::new(gpu))
    }

    /// Loads the kernels of one source file from their machine code, allows each block the largest
    /// dynamic shared memory, and asks for room for the blocks of one multiprocessor.
    fn load(&mut self, kernel: &Source, image: &[u8]) -> Result<(), DriverError> {
        use sys::CUfunction_attribute_enum as Of;
        // SAFETY: the image is a cubin, which encodes its own length; the module stays loaded as
        // long as its functions, and each attribute is read from and set on a function of this
        // module.
        unsafe {
            let module = result::module::load_data(image.as_ptr().cast())?;
            self.modules.push(module);
            let most = result::device::get_attribute(
                self.device,
                Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
            )?;
            for entry in kernel.entries() {
                let name = CString::new(entry).expect("names have no end inside");
                let function = result::module::get_function(module, name)?;
                let own = result::function::get_function_attribute(
                    function,
                    Of::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
                )?;
                result::function::set_function_attribute(
                    function,
                    Of::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                    // Static shared memory counts against the same limit.
                    most - own,
                )?;
                if let Some(percent) = carveout(entry, own as usize, self.facts.processors) {
                    result::function::set_function_attribute(
                        function,
                        Of::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
                        percent as i32,
                    )?;
                }
                self.functions.insert(entry, function);
            }
        }
        Ok(())
    }

    /// Makes the GPU's context current on the calling thread.
    fn bind(&self, operation: &'static str) -> Result<()> {
        // SAFETY: the context was retained and not yet released.
        unsafe { result::ctx::set_current(self.context) }.map_err(|error| named(operation, error))
    }

    /// Calls `call` with the GPU's context current on the calling thread.
    fn with<T>(
        &self,
        operation: &'static str,
        call: impl FnOnce() -> Result<T, DriverError>,
    ) -> Result<T> {
        self.bind(operation)?;
        call().map_err(|error| named(operation, error))
    }

    /// Returns the loaded kernel `entry`.
    fn function(&self, operation: &'static str, entry: &str) -> Result<sys::CUfunction> {
        let missing = || failed(operation, format!("no kernel is called `{entry}`"));
        self.functions.get(entry).copied().ok_or_else(missing)
    }

    /// Creates an event in the GPU's context with these flags.
    fn new_event(&self, operation: &'static str, flags: sys::CUevent_flags) -> Result<Event> {
        self.with(operation, || result::event::create(flags)).map(|event| Event(event as u64))
    }
}

/// Reads name, multiprocessors and compute capability of `device` from the driver.
pub(crate) fn facts(device: sys::CUdevice) -> Result<Facts, DriverError> {
    let attribute = |which| {
        // SAFETY: the driver just returned this device.
        unsafe { result::device::get_attribute(device, which) }
    };
    let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let processors = Processors {
        has_warpgroups: major == 9,
        count: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as usize,
        shared_bytes: attribute(
            Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR,
        )? as usize,
    };
    let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    let name = result::device::get_name(device)?;
    Ok(Facts { name, processors, capability: (major as u32, minor as u32) })
}

/// Converts an error of the driver to a [`DeviceError`] with the name and the explanation that the
/// driver gives for it.
fn named(operation: &'static str, error: DriverError) -> DeviceError {
    let text = |text: Result<&std::ffi::CStr, DriverError>| {
        text.map_or_else(|_| "unknown".to_owned(), |text| text.to_string_lossy().into_owned())
    };
    failed(operation, format!("{}: {}", text(error.error_name()), text(error.error_string())))
}

impl Driver for Gpu {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn memory(&self) -> Result<MemoryBytes> {
        let (free, total) = self.with("memory", result::mem_get_info)?;
        Ok(MemoryBytes { free: free as u64, total: total as u64 })
    }

    fn allocate(&self, bytes: usize) -> Result<Address> {
        self.bind("allocate")?;
        // SAFETY: the size is not 0, and the memory is read only after it was written.
        match unsafe { result::malloc_sync(bytes) } {
            Ok(address) => Ok(Address(address)),
            Err(DriverError(CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => {
                Err(out_of_memory(bytes, self.memory()?))
            }
            Err(error) => Err(named("allocate", error)),
        }
    }

    fn release(&self, address: Address) {
        // Memory that cannot be released is freed when the process ends.
        // SAFETY: the memory was allocated and is released once; the driver waits for work that
        // uses it.
        let _failed = self.with("release", || unsafe { result::free_sync(address.0) });
    }

    fn allocate_pinned(&self, bytes: usize) -> Result<NonNull<u8>> {
        // SAFETY: the size is not 0.
        let start = self.with("allocate_pinned", || unsafe { result::malloc_host(bytes, 0) })?;
        let no_memory = || failed("allocate_pinned", format!("no memory for {bytes} bytes"));
        let start = NonNull::new(start.cast::<u8>()).ok_or_else(no_memory)?;
        // SAFETY: the allocation has `bytes` bytes, and nothing else refers to it.
        unsafe { start.as_ptr().write_bytes(0, bytes) };
        Ok(start)
    }

    unsafe fn release_pinned(&self, start: NonNull<u8>, _bytes: usize) {
        // SAFETY: the caller guarantees it.
        let _failed =
            self.with("release_pinned", || unsafe { result::free_host(start.as_ptr().cast()) });
    }

    unsafe fn upload(&self, to: Address, from: *const u8, bytes: usize) -> Result<()> {
        // SAFETY: the caller guarantees it.
        self.with("upload", || unsafe {
            sys::cuMemcpyHtoDAsync_v2(to.0, from.cast(), bytes, self.stream).result()
        })
    }

    unsafe fn download(&self, to: *mut u8, from: Address, bytes: usize) -> Result<()> {
        // SAFETY: the caller guarantees it.
        self.with("download", || unsafe {
            sys::cuMemcpyDtoHAsync_v2(to.cast(), from.0, bytes, self.stream).result()
        })
    }

    fn copy(&self, to: Address, from: Address, bytes: usize) -> Result<()> {
        // SAFETY: both addresses are device memory, which the driver checks.
        self.with("copy", || unsafe { result::memcpy_dtod_async(to.0, from.0, bytes, self.stream) })
    }

    fn zero(&self, at: Address, bytes: usize) -> Result<()> {
        // SAFETY: the address is device memory, which the driver checks.
        self.with("zero", || unsafe { result::memset_d8_async(at.0, 0, bytes, self.stream) })
    }

    fn launch(&self, entry: &str, launch: Launch, arguments: &Arguments) -> Result<()> {
        let function = self.function("launch", entry)?;
        let (grid, block) = (launch.grid.into(), (launch.block, 1, 1));
        let (shared, stream) = (launch.shared_bytes, self.stream);
        let mut pointers: Vec<*mut c_void> =
            arguments.pointers().into_iter().map(|at| at.cast_mut().cast()).collect();
        // SAFETY: the function is loaded, and the arguments are copied before this call returns.
        // Tests with the emulated driver show that the arguments match the kernel's parameters.
        self.with("launch", || unsafe {
            result::launch_kernel(function, grid, block, shared, stream, &mut pointers)
        })
        .map_err(|error| failed("launch", format!("`{entry}` of {launch:?}: {}", error.message)))
    }

    fn resident_blocks(&self, entry: &str, threads: usize, shared_bytes: usize) -> Result<usize> {
        let function = self.function("resident_blocks", entry)?;
        // SAFETY: the function is loaded.
        let blocks = self.with("resident_blocks", || unsafe {
            result::occupancy::max_active_block_per_multiprocessor(
                function,
                threads as i32,
                shared_bytes,
            )
        })?;
        Ok(blocks as usize)
    }

    fn event(&self) -> Result<Event> {
        self.new_event("event", sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    fn timed_event(&self) -> Result<Event> {
        self.new_event("timed_event", sys::CUevent_flags::CU_EVENT_DEFAULT)
    }

    fn elapsed_ns(&self, from: Event, to: Event) -> Result<f64> {
        let [from, to] = [from, to].map(|event| event.0 as sys::CUevent);
        // SAFETY: this driver created both events, and events are never destroyed.
        let ms = self.with("elapsed_ns", || unsafe { result::event::elapsed(from, to) })?;
        Ok(f64::from(ms) * 1e6)
    }

    fn mark(&self, event: Event) -> Result<()> {
        // SAFETY: this driver created the event, and events are never destroyed.
        self.with("mark", || unsafe { result::event::record(event.0 as sys::CUevent, self.stream) })
    }

    fn wait(&self, event: Event) -> Result<()> {
        // SAFETY: this driver created the event, and events are never destroyed.
        self.with("wait", || unsafe { result::event::synchronize(event.0 as sys::CUevent) })
    }

    fn wait_all(&self) -> Result<()> {
        // SAFETY: the stream lives as long as `self`.
        self.with("wait_all", || unsafe { result::stream::synchronize(self.stream) })
    }

    fn begin_capture(&self) -> Result<()> {
        // In this mode other threads, such as those of other ranks, may call CUDA during a capture.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives as long as `self`.
        self.with("begin_capture", || unsafe { result::stream::begin_capture(self.stream, mode) })
    }

    fn end_capture(&self) -> Result<CudaGraph> {
        // SAFETY: a capture of the stream is in progress; the driver just returned the graph, which
        // is not needed any more once it is instantiated.
        let graph = self.with("end_capture", || unsafe {
            let graph = result::stream::end_capture(self.stream)?;
            let executable = result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0));
            result::graph::destroy(graph)?;
            executable
        })?;
        Ok(CudaGraph(graph as u64))
    }

    fn replay(&self, graph: CudaGraph) -> Result<()> {
        // SAFETY: this driver instantiated the CUDA graph, and it was not yet released.
        self.with("replay", || unsafe {
            result::graph::launch(graph.0 as sys::CUgraphExec, self.stream)
        })
    }

    fn release_graph(&self, graph: CudaGraph) {
        // SAFETY: as for a replay; the driver waits for a launch of the graph that is still
        // running.
        let _failed = self.with("release_graph", || unsafe {
            result::graph::exec_destroy(graph.0 as sys::CUgraphExec)
        });
    }

    fn blas(&self) -> Option<&dyn Blas> {
        self.blas.as_ref().map(|blas| blas as &dyn Blas)
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // cuBLASLt uses the context, so it is closed before the context is released.
        self.blas = None;
        if self.bind("close").is_err() {
            return;
        }
        // SAFETY: nothing else has these handles any more, and each is released once.
        unsafe {
            for module in &self.modules {
                let _failed = result::module::unload(*module);
            }
            if !self.stream.is_null() {
                let _failed = result::stream::destroy(self.stream);
            }
            let _failed = result::primary_ctx::release(self.device);
        }
    }
}
