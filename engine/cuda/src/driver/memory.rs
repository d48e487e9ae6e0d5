//! Memory that is given back when its owner goes.

#![expect(unsafe_code, reason = "pinned memory is written by the device")]

use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{Address, Driver};
use engine_core::DeviceError;

/// Memory of the device.
#[derive(Debug)]
pub struct Memory {
    driver: Arc<dyn Driver>,
    address: Address,
    bytes: usize,
}

impl Memory {
    /// `bytes` bytes of unspecified content, at a multiple of 256.
    ///
    /// # Errors
    /// The device has not that much memory.
    pub fn new(driver: &Arc<dyn Driver>, bytes: usize) -> Result<Self, DeviceError> {
        let address = driver.allocate(bytes.max(1))?;
        Ok(Self { driver: Arc::clone(driver), address, bytes })
    }

    /// Where it begins.
    pub fn address(&self) -> Address {
        self.address
    }

    /// How long it is.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.driver.release(self.address);
    }
}

/// Memory of this program that the device copies from and to.
#[derive(Debug)]
pub struct Pinned {
    driver: Arc<dyn Driver>,
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: nobody else has the memory.
unsafe impl Send for Pinned {}

impl Pinned {
    /// `bytes` zeros.
    ///
    /// # Errors
    /// The system has not that much memory.
    pub fn new(driver: &Arc<dyn Driver>, bytes: usize) -> Result<Self, DeviceError> {
        let start = driver.allocate_pinned(bytes.max(1))?;
        Ok(Self { driver: Arc::clone(driver), start, bytes })
    }

    /// How many bytes it has.
    pub fn size(&self) -> usize {
        self.bytes
    }

    /// The content; what the device still writes is there after the wait for it.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: it is that long and was zeroed. Whoever begins a download waits before reading.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }

    /// The content, to change it before [`Pinned::upload`].
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and nobody else has it.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }

    /// Begins to copy the first `bytes` bytes to the device. They must stay as they are until the
    /// stream has passed.
    ///
    /// # Errors
    /// The device failed.
    pub fn upload(&self, to: Address, bytes: usize) -> Result<(), DeviceError> {
        assert!(bytes <= self.bytes, "they are there");
        // SAFETY: it is pinned; it goes only after the device has come to rest.
        unsafe { self.driver.upload(to, self.start.as_ptr(), bytes) }
    }

    /// Begins to copy `bytes` bytes from the device to `at`. They must not be read until the stream
    /// has passed.
    ///
    /// # Errors
    /// The device failed.
    pub fn download(&mut self, at: usize, from: Address, bytes: usize) -> Result<(), DeviceError> {
        assert!(at + bytes <= self.bytes, "they fit");
        // SAFETY: as above, and they fit.
        unsafe { self.driver.download(self.start.as_ptr().add(at), from, bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // A device that failed copies nothing any more.
        let _failed = self.driver.wait_all();
        // SAFETY: the driver gave it, and its copies have ended.
        unsafe { self.driver.release_pinned(self.start, self.bytes) }
    }
}

/// A word of this program's memory that kernels of all devices read while they run: 0 until it is
/// raised.
#[derive(Debug)]
pub struct Signal(Pinned);

impl Signal {
    /// A signal that is not raised.
    ///
    /// # Errors
    /// The system has no memory.
    pub fn new(driver: &Arc<dyn Driver>) -> Result<Self, DeviceError> {
        Pinned::new(driver, size_of::<u32>()).map(Self)
    }

    /// Where kernels read it: pinned memory has one address on all devices.
    pub fn address(&self) -> Address {
        Address(self.0.start.as_ptr() as u64)
    }

    /// Raises it for good.
    pub fn raise(&self) {
        self.word().store(1, Ordering::Release);
    }

    /// Whether anybody has raised it.
    pub fn is_raised(&self) -> bool {
        self.word().load(Ordering::Acquire) != 0
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: it is as long and as aligned, and nobody takes its bytes.
        unsafe { AtomicU32::from_ptr(self.0.start.as_ptr().cast()) }
    }
}

// SAFETY: what several threads do to it is atomic.
unsafe impl Sync for Signal {}
