//! Mutable slice that several threads write at once, each its own part.

#![expect(unsafe_code, reason = "disjoint parts of one slice, which the borrow checker cannot see")]

use std::marker::PhantomData;

/// Mutable slice whose disjoint parts are given to several threads.
#[derive(Debug)]
pub(super) struct Shared<'a, T> {
    start: *mut T,
    len: usize,
    owner: PhantomData<&'a mut [T]>,
}

// SAFETY: access goes through `part`, whose callers vouch for disjoint parts.
unsafe impl<T: Send + Sync> Sync for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    pub(super) fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), owner: PhantomData }
    }

    /// Returns a pointer to element `start` of the shared slice, where a block of `rows` times
    /// `cols` elements begins that lies within the slice, with `stride` elements from row to row.
    pub(super) fn block(&self, start: usize, rows: usize, stride: usize, cols: usize) -> *mut T {
        let end = start + rows.saturating_sub(1) * stride + cols;
        assert!(end <= self.len, "the block lies within the slice");
        self.start.wrapping_add(start)
    }

    /// Returns elements `start .. start + len` of the shared slice for writing.
    ///
    /// # Safety
    /// Until the part is dropped, nobody else uses any element of it.
    #[expect(clippy::mut_from_ref, reason = "that is the purpose; the caller vouches for it")]
    pub(super) unsafe fn part(&self, start: usize, len: usize) -> &mut [T] {
        assert!(start <= self.len && len <= self.len - start, "the part lies within the slice");
        // SAFETY: the part lies within the slice, and the caller vouches that it is not shared.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start), len) }
    }

    /// Returns elements `start .. start + len` of the shared slice for reading.
    ///
    /// # Safety
    /// Until the part is dropped, nobody writes any element of it.
    pub(super) unsafe fn view(&self, start: usize, len: usize) -> &[T] {
        assert!(start <= self.len && len <= self.len - start, "the part lies within the slice");
        // SAFETY: the part lies within the slice, and the caller vouches that nobody writes it.
        unsafe { std::slice::from_raw_parts(self.start.add(start), len) }
    }
}
