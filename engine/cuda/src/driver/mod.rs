//! Interface to a GPU's driver: memory, asynchronous copies and kernel launches in the order of one
//! stream, events, capture and replay of CUDA graphs, and communication between tensor-parallel
//! ranks. Knows no operation of a model.
//!
//! There are two implementations: [`gpu`], and for tests `emulated`, which runs the kernels on the
//! host processor.

#![expect(unsafe_code, reason = "copies that only begin, of memory that is named by its address")]

mod arguments;
mod blas;
mod cubins;
pub mod gpu;
mod memory;

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

pub use arguments::Arguments;
pub use blas::{Algorithm, Blas, ColumnMatmul, Columns, Operands, Side, WORKSPACE_BYTES};
pub use cubins::{CUBINS, Cubins, Source, keep, kernels, kernels_sha256};
pub use memory::{Memory, Pinned, Signal};

use super::buffer::DType;
use super::launch::{Launch, Processors};
use crate::{Result, failed};
use engine_core::DeviceError;

/// Address in device memory; 0 is the null address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Address(pub u64);

impl Address {
    /// The null address, which no allocation contains.
    pub const NULL: Self = Self(0);

    /// Returns the address `bytes` bytes after this one.
    pub fn plus(self, bytes: usize) -> Self {
        Self(self.0 + bytes as u64)
    }
}

/// Properties of a GPU as its driver reports them: name, multiprocessors and compute capability.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Name of the GPU as the driver reports it.
    pub name: String,
    /// Number and properties of the GPU's multiprocessors, from which grid sizes are computed.
    pub processors: Processors,
    /// Compute capability (major, minor) of the GPU: (9, 0) for Hopper.
    pub capability: (u32, u32),
}

/// Free and total device memory, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryBytes {
    /// Bytes of device memory that are free at the time of the call.
    pub free: u64,
    /// Total bytes of device memory.
    pub total: u64,
}

/// Returns the error for an allocation of `bytes` bytes that does not fit into device memory, with
/// the numbers and a hint.
pub fn out_of_memory(bytes: usize, memory: MemoryBytes) -> DeviceError {
    let MemoryBytes { free, total } = memory;
    let missing = (bytes as u64).saturating_sub(free);
    let message = format!(
        "out of memory: {bytes} bytes are needed at once, {free} of the device's {total} are free, \
         {missing} are missing; hint: a smaller `--cache-max-entry-count`, \
         `--max-prefill-token-num` or `--max-batch-size`, a smaller model, or weights of fewer bits"
    );
    failed("allocate", message)
}

/// Event in the GPU's stream, by which the host waits for work or measures its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event(pub u64);

/// Instantiated CUDA graph: captured launches that can be replayed with the arguments of the
/// capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CudaGraph(pub u64);

/// Driver of one GPU, real or emulated. Operations are executed in the order of their calls;
/// copies, launches and events are asynchronous, and [`Driver::wait`] waits for them.
///
/// An operation fails if the device reports an error, if no memory is left, or if no kernel has the
/// name of a launch. What a kernel does to device memory is not checked; kernels do not reach
/// memory of the host process, except what is pinned for them.
pub trait Driver: Send + Sync + fmt::Debug {
    /// Returns the name, multiprocessors and compute capability of the GPU.
    fn facts(&self) -> &Facts;

    /// Returns the numbers of free and of total bytes of device memory.
    fn memory(&self) -> Result<MemoryBytes>;

    /// Allocates `bytes` bytes, at least one, of device memory of unspecified content, aligned to
    /// 256 bytes.
    fn allocate(&self, bytes: usize) -> Result<Address>;

    /// Releases device memory that [`Driver::allocate`] returned, after waiting until all work that
    /// was started has ended.
    fn release(&self, address: Address);

    /// Allocates `bytes` bytes, at least one, of zeroed, pinned host memory for asynchronous
    /// copies.
    fn allocate_pinned(&self, bytes: usize) -> Result<NonNull<u8>>;

    /// Releases pinned host memory that [`Driver::allocate_pinned`] returned.
    ///
    /// # Safety
    /// [`Driver::allocate_pinned`] returned `start` for the same `bytes`, and nothing uses the
    /// memory any more.
    unsafe fn release_pinned(&self, start: NonNull<u8>, bytes: usize);

    /// Starts an asynchronous copy of `bytes` bytes from the host to the device.
    ///
    /// # Safety
    /// The source is pinned memory, and is not changed until the stream has executed the copy.
    unsafe fn upload(&self, to: Address, from: *const u8, bytes: usize) -> Result<()>;

    /// Starts an asynchronous copy of `bytes` bytes from the device to the host.
    ///
    /// # Safety
    /// The bytes fit into pinned memory at `to`, which nothing else uses until the stream has
    /// executed the copy.
    unsafe fn download(&self, to: *mut u8, from: Address, bytes: usize) -> Result<()>;

    /// Starts an asynchronous copy of `bytes` bytes between two addresses in the device's memory.
    fn copy(&self, to: Address, from: Address, bytes: usize) -> Result<()>;

    /// Starts to fill `bytes` bytes of device memory with zeros.
    fn zero(&self, at: Address, bytes: usize) -> Result<()>;

    /// Launches the kernel with the name `entry` asynchronously, with the grid and block in
    /// `launch`.
    fn launch(&self, entry: &str, launch: Launch, arguments: &Arguments) -> Result<()>;

    /// Returns the number of blocks of the kernel `entry`, of `threads` threads and `shared_bytes`
    /// bytes of dynamic shared memory, that one multiprocessor runs at once: 0 if it runs none.
    fn resident_blocks(&self, entry: &str, threads: usize, shared_bytes: usize) -> Result<usize>;

    /// Creates an event without timing; before it is recorded it counts as reached.
    fn event(&self) -> Result<Event>;

    /// Creates an event that also takes the time at which the stream reaches it.
    fn timed_event(&self) -> Result<Event>;

    /// Returns the nanoseconds between two timed events that the stream has reached.
    fn elapsed_ns(&self, from: Event, to: Event) -> Result<f64>;

    /// Records `event` in the GPU's stream behind the work started so far.
    fn mark(&self, event: Event) -> Result<()>;

    /// Blocks the calling thread until the GPU's stream has reached `event`.
    fn wait(&self, event: Event) -> Result<()>;

    /// Blocks the calling thread until all work of the GPU's stream started so far has ended.
    fn wait_all(&self) -> Result<()>;

    /// Begins to capture a CUDA graph: from here on, launches, matrix multiplications by the GEMM
    /// library and collective operations are captured instead of executed, and no other work may be
    /// started.
    fn begin_capture(&self) -> Result<()>;

    /// Ends the capture that [`Driver::begin_capture`] began and instantiates the CUDA graph.
    fn end_capture(&self) -> Result<CudaGraph>;

    /// Replays a captured CUDA graph asynchronously, in the order of the stream.
    fn replay(&self, graph: CudaGraph) -> Result<()>;

    /// Releases a CUDA graph; replays of it that were started still complete.
    fn release_graph(&self, graph: CudaGraph);

    /// Returns the vendor's GEMM library (cuBLASLt), or `None` if it is not installed or cannot be
    /// used.
    fn blas(&self) -> Option<&dyn Blas> {
        None
    }
}

/// Collective operation of NCCL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Writes the elementwise sum of all ranks' elements to each rank.
    AllReduce,
    /// Writes the elements of all ranks to each rank, in the order of the ranks.
    AllGather,
    /// Copies the elements of rank `root` to each rank.
    Broadcast {
        /// Index of the rank whose elements are copied.
        root: usize,
    },
}

impl Operation {
    /// Returns the name of NCCL's function for the collective operation.
    pub fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "ncclAllReduce",
            Self::AllGather => "ncclAllGather",
            Self::Broadcast { .. } => "ncclBroadcast",
        }
    }
}

/// Communicator of one rank of a tensor-parallel group: NCCL operations in the order of the rank's
/// stream, which a CUDA graph can capture. Every rank must call the same operations in the same
/// order.
///
/// An operation fails if NCCL or the device reports an error, or if another rank has ended.
/// Operations in progress when a rank ends are released, and their results are undefined.
pub trait Communicator: Send + fmt::Debug {
    /// Starts `operation` on `count` elements of each rank. `addresses` has two device addresses:
    /// that of this rank's elements, then that of the result.
    fn start(
        &self,
        operation: Operation,
        addresses: [Address; 2],
        count: usize,
        dtype: DType,
    ) -> Result<()>;

    /// Aborts the tensor-parallel group: releases ranks that wait for this one. The group cannot be
    /// used afterwards.
    fn abandon(&self);
}

/// One GPU of a tensor-parallel group.
#[derive(Debug)]
pub struct Member {
    /// Driver of this rank's GPU.
    pub driver: Arc<dyn Driver>,
    /// Communicator that connects this rank's GPU to the other ranks.
    pub communicator: Box<dyn Communicator>,
    /// True if kernels of this rank's GPU can read and write the memory of all other ranks' GPUs
    /// directly.
    pub reaches_others: bool,
}
