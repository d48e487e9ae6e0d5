//! What the device asks of a GPU's driver: memory, copies and launches in the order of one stream,
//! events, records of launches, and what the GPUs of several ranks say to one another. Knows no
//! operation.
//!
//! There are two: [`gpu`], and for tests `emulated`, which runs the kernels on this processor.

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
pub use blas::{Algorithm, Blas, ColumnProduct, Columns, Operands, Side, WORKSPACE_BYTES};
pub use cubins::{CUBINS, Cubins, Source, keep, kernels, kernels_sha256};
pub use memory::{Memory, Pinned, Signal};

use super::buffer::Number;
use super::launch::{Launch, Processors};
use engine_core::{DeviceError, Rank};

/// Where something lies in the memory of the device; 0 is nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Address(pub u64);

impl Address {
    /// Nowhere.
    pub const NULL: Self = Self(0);

    /// The address `bytes` behind this one.
    pub fn plus(self, bytes: usize) -> Self {
        Self(self.0 + bytes as u64)
    }
}

/// What a GPU is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// As the driver has it.
    pub name: String,
    /// What grids are laid out for.
    pub processors: Processors,
    /// Compute capability, 9.0 of Hopper.
    pub capability: (u32, u32),
}

/// Bytes of the device's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryBytes {
    /// What nobody has now.
    pub free: u64,
    /// All of it, whether free or not.
    pub total: u64,
}

/// Why `bytes` bytes cannot be had, with the arithmetic.
pub fn out_of_memory(bytes: usize, memory: MemoryBytes) -> DeviceError {
    let MemoryBytes { free, total } = memory;
    let missing = (bytes as u64).saturating_sub(free);
    let message = format!(
        "out of memory: {bytes} bytes are needed at once, {free} of the device's {total} are free, \
         {missing} are missing; hint: a smaller `--cache-max-entry-count`, \
         `--max-prefill-token-num` or `--max-batch-size`, a smaller model, or weights of fewer bits"
    );
    DeviceError { operation: "allocate", message }
}

/// A mark in the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event(pub u64);

/// Launches that were recorded, to be launched again with the arguments that they had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record(pub u64);

/// A GPU, or what stands for one. Operations happen in the order of their calls; copies, launches
/// and events only begin, and [`Driver::wait`] waits.
///
/// Every operation fails only if the device does, or has no memory left. What a kernel does to the
/// memory of the device is not checked here; it reaches no memory of this program.
pub trait Driver: Send + Sync + fmt::Debug {
    /// What the GPU is.
    fn facts(&self) -> &Facts;

    /// How much memory there is now.
    fn memory(&self) -> Result<MemoryBytes, DeviceError>;

    /// Memory of unspecified content, at a multiple of 256.
    fn allocate(&self, bytes: usize) -> Result<Address, DeviceError>;

    /// Gives back what [`Driver::allocate`] gave, once nothing that was begun uses it any more.
    fn release(&self, address: Address);

    /// Zeroed memory of this program that the device copies from and to by itself.
    fn allocate_pinned(&self, bytes: usize) -> Result<NonNull<u8>, DeviceError>;

    /// Gives back what [`Driver::allocate_pinned`] gave.
    ///
    /// # Safety
    /// [`Driver::allocate_pinned`] gave it as so many bytes, and nobody uses it any more.
    unsafe fn release_pinned(&self, start: NonNull<u8>, bytes: usize);

    /// Begins to copy `bytes` bytes to the device.
    ///
    /// # Safety
    /// They are in pinned memory, and stay as they are until the stream has passed.
    unsafe fn upload(&self, to: Address, from: *const u8, bytes: usize) -> Result<(), DeviceError>;

    /// Begins to copy `bytes` bytes from the device.
    ///
    /// # Safety
    /// They fit into pinned memory that nobody else uses until the stream has passed.
    unsafe fn download(&self, to: *mut u8, from: Address, bytes: usize) -> Result<(), DeviceError>;

    /// Begins to copy within the device.
    fn copy(&self, to: Address, from: Address, bytes: usize) -> Result<(), DeviceError>;

    /// Begins to fill with zeros.
    fn zero(&self, at: Address, bytes: usize) -> Result<(), DeviceError>;

    /// Begins the kernel `entry`.
    fn launch(&self, entry: &str, launch: Launch, arguments: &Arguments)
    -> Result<(), DeviceError>;

    /// An event that the stream has passed already.
    fn event(&self) -> Result<Event, DeviceError>;

    /// As [`Driver::event`], and with a time.
    fn timed_event(&self) -> Result<Event, DeviceError>;

    /// Nanoseconds from one event with a time to another, both of which the stream has passed.
    fn elapsed_ns(&self, from: Event, to: Event) -> Result<f64, DeviceError>;

    /// Moves `event` to here.
    fn mark(&self, event: Event) -> Result<(), DeviceError>;

    /// Waits until the stream has passed `event`.
    fn wait(&self, event: Event) -> Result<(), DeviceError>;

    /// Waits until everything that was begun has ended.
    fn wait_all(&self) -> Result<(), DeviceError>;

    /// From here on launches are recorded instead of begun; nothing else may be begun.
    fn begin_record(&self) -> Result<(), DeviceError>;

    /// Ends what [`Driver::begin_record`] began.
    fn end_record(&self) -> Result<Record, DeviceError>;

    /// Begins what was recorded.
    fn replay(&self, record: Record) -> Result<(), DeviceError>;

    /// Forgets a record; launches of it that have begun still end.
    fn release_record(&self, record: Record);

    /// The library of dense products, where one is installed.
    fn blas(&self) -> Option<&dyn Blas> {
        None
    }
}

/// One rank's way to the others: operations of NCCL, in the order of the rank's stream, and recorded
/// with its launches. Every rank calls the same in the same order.
///
/// Every operation fails only if the device does, or another rank has ended. What has begun when a
/// rank ends is let go, and leaves anything.
pub trait Communicator: Send + fmt::Debug {
    /// Returns this rank's position in the group.
    fn rank(&self) -> Rank;

    /// The `count` numbers at `x` = the sum of all ranks'.
    fn all_reduce(&self, x: Address, count: usize, number: Number) -> Result<(), DeviceError>;

    /// `out` = the `count` numbers at `x` of all ranks, one rank's behind another's.
    fn all_gather(
        &self,
        x: Address,
        out: Address,
        count: usize,
        number: Number,
    ) -> Result<(), DeviceError>;

    /// `out` = the `count` numbers at `x` of rank `root`.
    fn broadcast(
        &self,
        x: Address,
        out: Address,
        count: usize,
        number: Number,
        root: usize,
    ) -> Result<(), DeviceError>;

    /// Lets ranks go that wait for this one: the group cannot be used any more.
    fn abandon(&self);
}

/// A GPU of a group, as its driver gives it.
#[derive(Debug)]
pub struct Member {
    /// The GPU itself.
    pub driver: Arc<dyn Driver>,
    /// Its way to the others.
    pub communicator: Box<dyn Communicator>,
    /// Whether its kernels read and write the memory of all other members.
    pub reaches_others: bool,
}
