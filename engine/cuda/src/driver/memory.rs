//! Owned device memory and pinned host memory, released when dropped. No other file calls a driver
//! to release either.

#![expect(unsafe_code, reason = "pinned memory is written by the device")]

use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{Address, Driver};
use crate::Result;

/// Allocation of device memory, released when dropped.
#[derive(Debug)]
pub struct Memory {
    driver: Arc<dyn Driver>,
    address: Address,
    bytes: usize,
}

impl Memory {
    /// Allocates `bytes` bytes of device memory of unspecified content, aligned to 256 bytes.
    ///
    /// # Errors
    /// The device does not have enough free memory, or reports an error.
    pub fn new(driver: &Arc<dyn Driver>, bytes: usize) -> Result<Self> {
        // CUDA refuses allocations of zero bytes.
        let address = driver.allocate(bytes.max(1))?;
        Ok(Self { driver: Arc::clone(driver), address, bytes })
    }

    /// Returns the address of the first byte of the allocation in device memory.
    pub fn address(&self) -> Address {
        self.address
    }

    /// Returns the size of the allocation in device memory in bytes, as requested.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.driver.release(self.address);
    }
}

/// Allocation of pinned (page-locked) host memory that the device copies to and from, released when
/// dropped.
#[derive(Debug)]
pub struct Pinned {
    driver: Arc<dyn Driver>,
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: nothing else refers to the memory.
unsafe impl Send for Pinned {}

impl Pinned {
    /// Allocates `bytes` bytes of pinned host memory, zeroed.
    ///
    /// # Errors
    /// The host does not have enough memory, or the device reports an error.
    pub fn new(driver: &Arc<dyn Driver>, bytes: usize) -> Result<Self> {
        // CUDA refuses allocations of zero bytes.
        let start = driver.allocate_pinned(bytes.max(1))?;
        Ok(Self { driver: Arc::clone(driver), start, bytes })
    }

    /// Returns the size of the pinned host memory in bytes, as requested.
    pub fn size(&self) -> usize {
        self.bytes
    }

    /// Returns the content of the pinned host memory. What the device copies there is complete only
    /// after a wait for that copy.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the allocation has that many bytes and was zeroed. The caller of a download waits
        // before it reads.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }

    /// Returns the content of the pinned host memory for writing, to be filled before
    /// [`Pinned::upload`].
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed mutably.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }

    /// Starts an asynchronous copy of the first `bytes` bytes of the pinned memory to the device.
    /// These bytes of the pinned memory must not be changed until the stream has executed the copy.
    ///
    /// # Errors
    /// The device reports an error.
    pub fn upload(&self, to: Address, bytes: usize) -> Result<()> {
        assert!(bytes <= self.bytes, "they are there");
        // SAFETY: the memory is pinned, and it is released only after all work on the device has
        // ended.
        unsafe { self.driver.upload(to, self.start.as_ptr(), bytes) }
    }

    /// Starts an asynchronous copy of `bytes` bytes from the device address `from` to byte offset
    /// `at` in the pinned memory. The copied bytes must not be read until the stream has executed
    /// the copy.
    ///
    /// # Errors
    /// The device reports an error.
    pub fn download(&mut self, at: usize, from: Address, bytes: usize) -> Result<()> {
        assert!(at + bytes <= self.bytes, "they fit");
        // SAFETY: as above, and the bytes fit.
        unsafe { self.driver.download(self.start.as_ptr().add(at), from, bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // The error is ignored: a device that failed does not copy any more.
        let _failed = self.driver.wait_all();
        // SAFETY: the driver allocated the memory, and its copies have ended.
        unsafe { self.driver.release_pinned(self.start, self.bytes) }
    }
}

/// Flag in pinned host memory that kernels of all devices can read while they run: 0, and 1 for
/// good once it is raised.
#[derive(Debug)]
pub struct Signal(Pinned);

impl Signal {
    /// Creates a flag for kernels in pinned host memory, which is not raised yet.
    ///
    /// # Errors
    /// The host does not have enough memory, or the device reports an error.
    pub fn new(driver: &Arc<dyn Driver>) -> Result<Self> {
        Pinned::new(driver, size_of::<u32>()).map(Self)
    }

    /// Returns the address of the flag for kernels: pinned memory has the same address on the host
    /// and on all devices.
    pub fn address(&self) -> Address {
        Address(self.0.start.as_ptr() as u64)
    }

    /// Raises the flag for good, so that kernels that wait for other ranks end.
    pub fn raise(&self) {
        self.word().store(1, Ordering::Release);
    }

    /// Returns true once any rank has raised the flag.
    pub fn is_raised(&self) -> bool {
        self.word().load(Ordering::Acquire) != 0
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: the memory has the size and alignment of a word, and its bytes are never
        // borrowed.
        unsafe { AtomicU32::from_ptr(self.0.start.as_ptr().cast()) }
    }
}

// SAFETY: threads access the word only by atomic operations.
unsafe impl Sync for Signal {}
