//! Tensor-parallel group of real GPUs: each has its own context and stream, and NCCL connects them.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::{self as driver, CUresult};
use cudarc::nccl::result::NcclError;
use cudarc::nccl::sys::{cudaStream_t, ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclResult_t};

use super::libraries::Library;
use super::{Gpu, named};
use crate::buffer::DType;
use crate::driver::cubins::Cubins;
use crate::driver::{Address, Communicator, Member, Operation};
use crate::{Result, failed};
use engine_core::DeviceError;
use engine_core::collective::ANOTHER_ENDED;

/// NCCL communicator of one rank of a tensor-parallel group.
#[derive(Debug)]
struct Nccl {
    gpu: Arc<Gpu>,
    rank: usize,
    handles: Arc<Handles>,
}

/// NCCL handles of all ranks of a group.
#[derive(Debug)]
struct Handles {
    calls: Calls,
    /// Handle of each rank; null after the group was aborted.
    handles: Vec<Mutex<ncclComm_t>>,
}

/// NCCL's functions. They are looked up here because cudarc does not know the name `libnccl.so.2`,
/// which Python's packages have.
#[derive(Debug, Clone, Copy)]
struct Calls {
    init_all: unsafe extern "C" fn(*mut ncclComm_t, c_int, *const c_int) -> ncclResult_t,
    abort: unsafe extern "C" fn(ncclComm_t) -> ncclResult_t,
    all_reduce: unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        ncclDataType_t,
        ncclRedOp_t,
        ncclComm_t,
        cudaStream_t,
    ) -> ncclResult_t,
    all_gather: unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        ncclDataType_t,
        ncclComm_t,
        cudaStream_t,
    ) -> ncclResult_t,
    broadcast: unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        ncclDataType_t,
        c_int,
        ncclComm_t,
        cudaStream_t,
    ) -> ncclResult_t,
}

impl Calls {
    /// Looks up all functions in an open NCCL library.
    ///
    /// # Errors
    /// The library is too old and lacks one of them.
    fn of(library: &libloading::Library) -> Result<Self> {
        /// Looks up one function; its type must be that of the function with this name.
        unsafe fn find<F: Copy>(library: &libloading::Library, name: &str) -> Result<F> {
            // SAFETY: the caller guarantees it.
            let found = unsafe { library.get::<F>(name) };
            let missing = |_| {
                let message = format!("this NCCL is too old for this release: it has no `{name}`");
                failed("open_group", message)
            };
            found.map(|function| *function).map_err(missing)
        }
        // SAFETY: the types are those of NCCL's documentation, and of cudarc's bindings. The
        // library stays open until the process ends.
        unsafe {
            Ok(Self {
                init_all: find(library, "ncclCommInitAll")?,
                abort: find(library, "ncclCommAbort")?,
                all_reduce: find(library, "ncclAllReduce")?,
                all_gather: find(library, "ncclAllGather")?,
                broadcast: find(library, "ncclBroadcast")?,
            })
        }
    }
}

// SAFETY: a communicator may be used from any thread, by one at a time, which its lock ensures.
unsafe impl Send for Handles {}
// SAFETY: as above.
unsafe impl Sync for Handles {}

/// Returns true if the NCCL library is installed.
pub fn has_nccl() -> bool {
    Library::Nccl.open().is_some()
}

/// Returns NCCL with its version, such as `NCCL 22707` for 2.27.7; `None` if it is not installed or
/// does not say.
pub fn nccl_version() -> Option<String> {
    type GetVersion = unsafe extern "C" fn(*mut c_int) -> ncclResult_t;
    let library = &Library::Nccl.open()?.library;
    let mut version = 0;
    // SAFETY: the type is that of NCCL's documentation, and the number is writable.
    let got = unsafe { library.get::<GetVersion>("ncclGetVersion").ok()?(&raw mut version) };
    got.result().ok()?;
    Some(format!("NCCL {version}"))
}

impl Gpu {
    /// Opens the first `count` GPUs, loads all kernels and connects the GPUs with NCCL.
    ///
    /// # Errors
    /// A GPU cannot be opened, as for [`Gpu::open`], NCCL is not installed, too old or cannot
    /// connect the GPUs, or a driver reports an error.
    pub fn open_group(count: usize, cubins: &Cubins) -> Result<Vec<Member>> {
        let Some(nccl) = Library::Nccl.open() else {
            let message = "NCCL, by which GPUs that share a model sum their parts, is not found by the \
                           dynamic linker or in Python's packages; hint: install NCCL 2 (`libnccl2`, \
                           or `nvidia-nccl-cu13` of the Python packages), or have the folder of \
                           `libnccl.so.2` in `LD_LIBRARY_PATH`; or `--tp 1`";
            return Err(failed("open_group", message));
        };
        let calls = Calls::of(&nccl.library)?;
        let gpus: Vec<Arc<Self>> =
            (0..count).map(|ordinal| Self::open(ordinal, cubins)).collect::<Result<_, _>>()?;
        let handles = Arc::new(connect(calls, count)?);
        let reaches: Vec<bool> =
            gpus.iter().map(|gpu| gpu.reach_all(&gpus)).collect::<Result<_, _>>()?;
        let member = |(index, (gpu, reaches_others)): (usize, (Arc<Self>, bool))| {
            let (gpu_of_rank, handles) = (Arc::clone(&gpu), Arc::clone(&handles));
            let communicator = Box::new(Nccl { gpu: gpu_of_rank, rank: index, handles });
            Member { driver: gpu, communicator, reaches_others }
        };
        Ok(gpus.into_iter().zip(reaches).enumerate().map(member).collect())
    }

    /// Enables direct access of this GPU's kernels to the memory of `others`. Returns false where
    /// the machine does not support it.
    fn reach_all(&self, others: &[Arc<Self>]) -> Result<bool> {
        self.bind("reach_all")?;
        for other in others.iter().filter(|other| other.device != self.device) {
            let mut can = 0;
            // SAFETY: the driver returned both devices, and their contexts are retained.
            let reached = unsafe {
                driver::cuDeviceCanAccessPeer(&raw mut can, self.device, other.device)
                    .result()
                    .map_err(|error| named("reach_all", error))?;
                if can == 0 {
                    return Ok(false);
                }
                driver::cuCtxEnablePeerAccess(other.context, 0)
            };
            // A group opened earlier in this process may have enabled access already.
            if reached != CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED {
                reached.result().map_err(|error| named("reach_all", error))?;
            }
        }
        Ok(true)
    }
}

/// Creates the NCCL communicators of the first `count` GPUs in one call, so that no rank waits for
/// another that fails to start.
fn connect(calls: Calls, count: usize) -> Result<Handles> {
    let ordinals: Vec<c_int> = (0..count as c_int).collect();
    let mut handles = vec![ptr::null_mut(); count];
    // SAFETY: both arrays have `count` elements.
    let made = unsafe { (calls.init_all)(handles.as_mut_ptr(), count as c_int, ordinals.as_ptr()) };
    made.result().map_err(|error| nccl_failed("ncclCommInitAll", &error))?;
    Ok(Handles { calls, handles: handles.into_iter().map(Mutex::new).collect() })
}

fn nccl_failed(operation: &'static str, error: &NcclError) -> DeviceError {
    failed(operation, format!("{:?}; hint: `NCCL_DEBUG=INFO` makes NCCL print more", error.0))
}

impl Handles {
    fn lock(&self, rank: usize) -> MutexGuard<'_, ncclComm_t> {
        self.handles[rank].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Aborts pending NCCL operations and releases the communicators of all ranks.
    fn abort(&self) {
        // All ranks at once: operations of the others would wait for an aborted one forever.
        for rank in 0..self.handles.len() {
            let mut handle = self.lock(rank);
            if !handle.is_null() {
                // SAFETY: the communicator was created and is released once; its lock excludes a
                // concurrent call.
                let _failed = unsafe { (self.calls.abort)(*handle) };
                *handle = ptr::null_mut();
            }
        }
    }
}

impl Drop for Handles {
    fn drop(&mut self) {
        self.abort();
    }
}

fn data_type(dtype: DType) -> ncclDataType_t {
    match dtype {
        DType::Bf16 => ncclDataType_t::ncclBfloat16,
        DType::F32 => ncclDataType_t::ncclFloat32,
    }
}

impl Communicator for Nccl {
    fn start(
        &self,
        operation: Operation,
        [x, out]: [Address; 2],
        count: usize,
        dtype: DType,
    ) -> Result<()> {
        self.gpu.bind(operation.name())?;
        let handle = self.handles.lock(self.rank);
        if handle.is_null() {
            return Err(failed(operation.name(), ANOTHER_ENDED));
        }
        let (stream, dtype) = (self.gpu.stream.cast(), data_type(dtype));
        let (x, out) = (x.0 as *const c_void, out.0 as *mut c_void);
        let calls = &self.handles.calls;
        // SAFETY: the context is current and the communicator locked; the addresses are device
        // memory, whose length the caller guarantees, as for a kernel launch.
        let begun = unsafe {
            match operation {
                Operation::AllReduce => {
                    (calls.all_reduce)(x, out, count, dtype, ncclRedOp_t::ncclSum, *handle, stream)
                }
                Operation::AllGather => (calls.all_gather)(x, out, count, dtype, *handle, stream),
                Operation::Broadcast { root } => {
                    (calls.broadcast)(x, out, count, dtype, root as c_int, *handle, stream)
                }
            }
        };
        begun.result().map(|_| ()).map_err(|error| nccl_failed(operation.name(), &error))
    }

    fn abandon(&self) {
        self.handles.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_named_with_where_to_get_it() {
        if has_nccl() {
            fixtures::skip("a machine without NCCL", "run it elsewhere");
            return;
        }
        let error = Gpu::open_group(2, &Cubins::default()).unwrap_err().to_string();
        for part in
            ["NCCL, by which", "is not found", "`LD_LIBRARY_PATH`", "nvidia-nccl-cu13", "`--tp 1`"]
        {
            assert!(error.contains(part), "`{part}` is not in {error}");
        }
    }
}
