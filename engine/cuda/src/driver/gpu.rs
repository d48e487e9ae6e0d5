//! A GPU, through the libraries that its driver installed; they are opened at run time.
//!
//! Handles belong to a context, and a context to the threads that it is bound to: every operation
//! binds it first, since memory may be given back by any thread. One stream, so there are no events
//! but those that are asked for.

#![expect(unsafe_code, reason = "calls into the driver, each after the check that it is there")]

mod blas;
mod compile;
mod nccl;

pub use nccl::has_nccl;

use std::collections::BTreeMap;
use std::ffi::{CString, c_void};
use std::panic;
use std::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUdevice_attribute as Attribute, CUresult};
use cudarc::driver::{DriverError, result};

use self::blas::CublasLt;
use super::cubins::{Cubins, Source};
use super::{Address, Arguments, Blas, Driver, Event, Facts, MemoryBytes, Record, out_of_memory};
use crate::CAPABILITY_MIN;
use crate::launch::{Launch, Processors};
use engine_core::DeviceError;

/// One GPU with the kernels.
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

// SAFETY: the driver's handles may be used from any thread that the context is bound to, which every
// operation sees to.
unsafe impl Send for Gpu {}
// SAFETY: as above; the driver serializes calls.
unsafe impl Sync for Gpu {}

impl Gpu {
    /// The GPU of this number, with all kernels loaded.
    ///
    /// # Errors
    /// There is no driver or no such GPU, it is too old, or the kernels cannot be compiled for it.
    pub fn open(ordinal: usize, cubins: &Cubins) -> Result<Arc<Self>, DeviceError> {
        // SAFETY: looks for the library without calling into it.
        if !unsafe { sys::is_culib_present() } {
            return Err(failed("open", "there is no CUDA driver".to_owned()));
        }
        // A driver older than the bindings lacks symbols, which cudarc reports by a panic.
        let opened = panic::catch_unwind(|| Self::open_present(ordinal, cubins));
        opened.unwrap_or_else(|_| {
            Err(failed("open", "the CUDA driver is too old for this release".to_owned()))
        })
    }

    fn open_present(ordinal: usize, cubins: &Cubins) -> Result<Arc<Self>, DeviceError> {
        result::init().map_err(|error| named("open", error))?;
        let device = result::device::get(ordinal as i32).map_err(|error| named("open", error))?;
        let facts = facts(device).map_err(|error| named("open", error))?;
        if facts.capability < CAPABILITY_MIN {
            let (major, minor) = facts.capability;
            let message = format!(
                "`{}` has compute capability {major}.{minor}, and the kernels need 8.0 or later",
                facts.name
            );
            return Err(failed("open", message));
        }
        let images = compile::images(facts.capability, cubins)?;
        // SAFETY: the device is one that the driver just gave.
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
        gpu.bind("open")?;
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking);
        gpu.stream = stream.map_err(|error| named("open", error))?;
        gpu.blas = CublasLt::open(gpu.context, gpu.stream);
        for (kernel, image) in &images {
            gpu.load(kernel, image).map_err(|error| named("load_kernels", error))?;
        }
        Ok(Arc::new(gpu))
    }

    /// Loads the entries of `kernel`, each with as much dynamic shared memory as a block may have.
    fn load(&mut self, kernel: &Source, image: &[u8]) -> Result<(), DriverError> {
        use sys::CUfunction_attribute_enum as Of;
        // SAFETY: the image is a cubin, which says its own length; the module stays loaded as long
        // as its functions, and the attributes are those of a function of it.
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
                    most - own,
                )?;
                self.functions.insert(entry, function);
            }
        }
        Ok(())
    }

    fn bind(&self, operation: &'static str) -> Result<(), DeviceError> {
        // SAFETY: the context was retained and not yet released.
        unsafe { result::ctx::set_current(self.context) }.map_err(|error| named(operation, error))
    }

    /// Does `call` with the context bound.
    fn with(
        &self,
        operation: &'static str,
        call: impl FnOnce() -> Result<(), DriverError>,
    ) -> Result<(), DeviceError> {
        self.bind(operation)?;
        call().map_err(|error| named(operation, error))
    }
}

/// Name, processors and capability of `device`.
fn facts(device: sys::CUdevice) -> Result<Facts, DriverError> {
    let attribute = |which| {
        // SAFETY: the device is one that the driver just gave.
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

fn failed(operation: &'static str, message: String) -> DeviceError {
    DeviceError { operation, message }
}

/// An error as the driver names and explains it.
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

    fn memory(&self) -> Result<MemoryBytes, DeviceError> {
        self.bind("memory")?;
        let (free, total) = result::mem_get_info().map_err(|error| named("memory", error))?;
        Ok(MemoryBytes { free: free as u64, total: total as u64 })
    }

    fn allocate(&self, bytes: usize) -> Result<Address, DeviceError> {
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
        // What cannot be given back any more goes with the process.
        let _failed = self.with("release", || {
            // SAFETY: it was allocated and is given back once; the driver waits for what uses it.
            unsafe { result::free_sync(address.0) }
        });
    }

    fn allocate_pinned(&self, bytes: usize) -> Result<NonNull<u8>, DeviceError> {
        self.bind("allocate_pinned")?;
        // SAFETY: the size is not 0.
        let start = unsafe { result::malloc_host(bytes, 0) };
        let start = start.map_err(|error| named("allocate_pinned", error))?.cast::<u8>();
        let no_memory = || failed("allocate_pinned", format!("no memory for {bytes} bytes"));
        let start = NonNull::new(start).ok_or_else(no_memory)?;
        // SAFETY: it is that long, and nobody else has it.
        unsafe { start.as_ptr().write_bytes(0, bytes) };
        Ok(start)
    }

    unsafe fn release_pinned(&self, start: NonNull<u8>, _bytes: usize) {
        let _failed = self.with("release_pinned", || {
            // SAFETY: as the caller says.
            unsafe { result::free_host(start.as_ptr().cast()) }
        });
    }

    unsafe fn upload(&self, to: Address, from: *const u8, bytes: usize) -> Result<(), DeviceError> {
        self.with("upload", || {
            // SAFETY: as the caller says.
            unsafe { sys::cuMemcpyHtoDAsync_v2(to.0, from.cast(), bytes, self.stream) }.result()
        })
    }

    unsafe fn download(&self, to: *mut u8, from: Address, bytes: usize) -> Result<(), DeviceError> {
        self.with("download", || {
            // SAFETY: as the caller says.
            unsafe { sys::cuMemcpyDtoHAsync_v2(to.cast(), from.0, bytes, self.stream) }.result()
        })
    }

    fn copy(&self, to: Address, from: Address, bytes: usize) -> Result<(), DeviceError> {
        self.with("copy", || {
            // SAFETY: both are memory of the device, which the driver checks.
            unsafe { result::memcpy_dtod_async(to.0, from.0, bytes, self.stream) }
        })
    }

    fn zero(&self, at: Address, bytes: usize) -> Result<(), DeviceError> {
        self.with("zero", || {
            // SAFETY: it is memory of the device, which the driver checks.
            unsafe { result::memset_d8_async(at.0, 0, bytes, self.stream) }
        })
    }

    fn launch(
        &self,
        entry: &str,
        launch: Launch,
        arguments: &Arguments,
    ) -> Result<(), DeviceError> {
        let Some(function) = self.functions.get(entry) else {
            return Err(failed("launch", format!("no kernel is called `{entry}`")));
        };
        let [x, y, z] = launch.grid;
        let mut pointers: Vec<*mut c_void> =
            arguments.pointers().into_iter().map(|at| at.cast_mut().cast()).collect();
        self.with("launch", || {
            // SAFETY: the function is loaded; the arguments are copied before this returns. Whether
            // they are those of the kernel is tested where kernels run on a processor.
            unsafe {
                let (block, shared) = ((launch.block, 1, 1), launch.shared_bytes);
                result::launch_kernel(
                    *function,
                    (x, y, z),
                    block,
                    shared,
                    self.stream,
                    &mut pointers,
                )
            }
        })
        .map_err(|error| failed("launch", format!("`{entry}` of {launch:?}: {}", error.message)))
    }

    fn event(&self) -> Result<Event, DeviceError> {
        self.bind("event")?;
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING);
        event.map(|event| Event(event as u64)).map_err(|error| named("event", error))
    }

    fn timed_event(&self) -> Result<Event, DeviceError> {
        self.bind("timed_event")?;
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT);
        event.map(|event| Event(event as u64)).map_err(|error| named("timed_event", error))
    }

    fn elapsed_ns(&self, from: Event, to: Event) -> Result<f64, DeviceError> {
        self.bind("elapsed_ns")?;
        // SAFETY: the events were made by this driver, and events are never destroyed.
        let ms = unsafe { result::event::elapsed(from.0 as sys::CUevent, to.0 as sys::CUevent) };
        ms.map(|ms| f64::from(ms) * 1e6).map_err(|error| named("elapsed_ns", error))
    }

    fn mark(&self, event: Event) -> Result<(), DeviceError> {
        self.with("mark", || {
            // SAFETY: the event was made by this driver, and events are never destroyed.
            unsafe { result::event::record(event.0 as sys::CUevent, self.stream) }
        })
    }

    fn wait(&self, event: Event) -> Result<(), DeviceError> {
        self.with("wait", || {
            // SAFETY: as above.
            unsafe { result::event::synchronize(event.0 as sys::CUevent) }
        })
    }

    fn wait_all(&self) -> Result<(), DeviceError> {
        self.with("wait_all", || {
            // SAFETY: the stream lives as long as this.
            unsafe { result::stream::synchronize(self.stream) }
        })
    }

    fn begin_record(&self) -> Result<(), DeviceError> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        self.with("begin_record", || {
            // SAFETY: as above.
            unsafe { result::stream::begin_capture(self.stream, mode) }
        })
    }

    fn end_record(&self) -> Result<Record, DeviceError> {
        self.bind("end_record")?;
        // SAFETY: the stream is recorded; the graph is one that the driver just gave, and is not
        // needed once it was instantiated.
        let record = unsafe {
            result::stream::end_capture(self.stream).and_then(|graph| {
                let flags = sys::CUgraphInstantiate_flags(0);
                let record = result::graph::instantiate(graph, flags);
                result::graph::destroy(graph)?;
                record
            })
        };
        record.map(|record| Record(record as u64)).map_err(|error| named("end_record", error))
    }

    fn replay(&self, record: Record) -> Result<(), DeviceError> {
        self.with("replay", || {
            // SAFETY: the record was made by this driver, and was not yet released.
            unsafe { result::graph::launch(record.0 as sys::CUgraphExec, self.stream) }
        })
    }

    fn release_record(&self, record: Record) {
        let _failed = self.with("release_record", || {
            // SAFETY: as above; the driver waits for what runs.
            unsafe { result::graph::exec_destroy(record.0 as sys::CUgraphExec) }
        });
    }

    fn blas(&self) -> Option<&dyn Blas> {
        self.blas.as_ref().map(|blas| blas as &dyn Blas)
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        self.blas = None;
        if self.bind("close").is_err() {
            return;
        }
        // SAFETY: nobody else has these handles any more, and each is given back once.
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
