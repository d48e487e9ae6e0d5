//! Collectives: tensor parallel all-reduce, all-gather and minimum among the ranks of a group.
//!
//! This file must not know what the arrays of numbers mean. The ranks of its `InProcess` group are
//! threads of one process. They add in the order of rank indices, so every rank gets the same bits,
//! however the threads were scheduled.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};

use crate::DeviceError;

/// Error message of a rank that stops because another rank of its tensor-parallel group has ended.
/// The rank that ended first reports the cause.
pub const ANOTHER_ENDED: &str = "another rank has ended";

/// Position of a rank in its tensor-parallel group: its index and the number of ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rank {
    /// Index of the rank in its tensor-parallel group, below `count`.
    pub index: usize,
    /// Number of ranks in the tensor-parallel group, at least 1.
    pub count: usize,
}

impl Rank {
    /// Rank 0 of a group of one: that of a device that computes a whole model alone.
    pub const ONLY: Self = Self { index: 0, count: 1 };

    /// Returns the index range of the heads, columns or experts, `total` in all, that this rank
    /// holds. The ranges of all ranks are contiguous, and their lengths differ by at most 1.
    pub fn share(self, total: usize) -> Range<usize> {
        total * self.index / self.count..total * (self.index + 1) / self.count
    }
}

/// Collective operations of a tensor-parallel group as one rank calls them, over arrays of type
/// `X`. All ranks must call the same operations in the same order.
pub trait Collective<X: ?Sized = [f32]>: Send + fmt::Debug {
    /// Returns the index of the calling rank and the number of ranks in its tensor-parallel group.
    fn rank(&self) -> Rank;

    /// All-reduce: replaces `x` by the elementwise sum of the `x` of all ranks, which must have
    /// equal lengths.
    ///
    /// # Errors
    /// Returns an error if another rank of the group has ended or a rank's device fails.
    fn all_reduce_sum(&mut self, x: &mut X) -> Result<(), DeviceError>;

    /// All-gather: writes to each of the `rows` rows of `out` the same row of every rank's `x`,
    /// side by side in the order of ranks. Ranks may contribute different numbers of columns, as
    /// [`Rank::share`] divides them.
    ///
    /// # Errors
    /// Returns an error if another rank of the group has ended or a rank's device fails.
    fn all_gather(&mut self, x: &X, rows: usize, out: &mut X) -> Result<(), DeviceError>;
}

/// One rank of a tensor-parallel group whose ranks are threads of one process, with its access to
/// the group's shared buffers.
pub struct InProcess {
    rank: Rank,
    group: Arc<Group>,
    /// Index of the buffer set, 0 or 1, that the rank's next collective operation uses; operations
    /// alternate between them.
    turn: usize,
}

/// Buffers and barrier that the threads of a tensor-parallel group share. Operations alternate
/// between two sets of buffers, so one barrier per operation is enough: a rank overwrites a set
/// only after all ranks have reached the operation in between, and so have read the set.
struct Group {
    slots: [Vec<RwLock<Vec<f32>>>; 2],
    meeting: Mutex<Meeting>,
    changed: Condvar,
}

/// State of the barrier of a tensor-parallel group: number of ranks that wait at it, number of
/// times that all ranks have passed it, and whether a rank has ended.
#[derive(Default)]
struct Meeting {
    arrived: usize,
    /// Number of times that all ranks of the group have passed the barrier since the group was
    /// created.
    held: u64,
    /// True once a rank of the group has ended, after which no barrier can complete.
    is_broken: bool,
}

impl fmt::Debug for InProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InProcess").field("rank", &self.rank).finish_non_exhaustive()
    }
}

impl InProcess {
    /// Creates a tensor-parallel group of `count` ranks for threads of this process, and returns
    /// the ranks in the order of their indices.
    pub fn group(count: usize) -> Vec<Self> {
        let slots = || (0..count).map(|_| RwLock::default()).collect();
        let group = Arc::new(Group {
            slots: [slots(), slots()],
            meeting: Mutex::default(),
            changed: Condvar::new(),
        });
        (0..count)
            .map(|index| Self { rank: Rank { index, count }, group: Arc::clone(&group), turn: 0 })
            .collect()
    }

    /// Copies `x` into this rank's shared buffer, waits for the other ranks of the group, and
    /// returns the buffers of all ranks in the order of their indices.
    fn exchange(&mut self, x: &[f32]) -> Result<&[RwLock<Vec<f32>>], DeviceError> {
        let slots = &self.group.slots[self.turn];
        self.turn = 1 - self.turn;
        let mut own = slots[self.rank.index].write().unwrap_or_else(PoisonError::into_inner);
        own.clear();
        own.extend_from_slice(x);
        drop(own);
        self.group.meet(self.rank.count)?;
        Ok(slots)
    }

    /// All-reduce with the minimum: returns the smallest `x` that any rank of the group passed.
    ///
    /// # Errors
    /// Returns an error if another rank of the group has ended.
    pub fn least(&mut self, x: f32) -> Result<f32, DeviceError> {
        let slots = self.exchange(&[x])?;
        let said = slots.iter().map(|slot| slot.read().unwrap_or_else(PoisonError::into_inner)[0]);
        Ok(said.fold(x, f32::min))
    }
}

impl Group {
    /// Locks the state of the group's barrier. A lock poisoned by a rank's panic is used anyway,
    /// since `is_broken` reports the rank's end.
    fn meeting(&self) -> MutexGuard<'_, Meeting> {
        self.meeting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits at the barrier until `count` ranks have arrived; returns an error if a rank has ended
    /// instead.
    fn meet(&self, count: usize) -> Result<(), DeviceError> {
        let mut meeting = self.meeting();
        let held = meeting.held;
        meeting.arrived += 1;
        if meeting.arrived == count {
            meeting.arrived = 0;
            meeting.held += 1;
            self.changed.notify_all();
            return Ok(());
        }
        while meeting.held == held && !meeting.is_broken {
            meeting = self.changed.wait(meeting).unwrap_or_else(PoisonError::into_inner);
        }
        if meeting.held == held {
            let message = ANOTHER_ENDED.to_owned();
            return Err(DeviceError { operation: "a collective operation", message });
        }
        Ok(())
    }
}

impl Drop for InProcess {
    fn drop(&mut self) {
        // Other ranks may wait in a barrier that this one never reaches; they stop with an error.
        self.group.meeting().is_broken = true;
        self.group.changed.notify_all();
    }
}

impl Collective for InProcess {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn all_reduce_sum(&mut self, x: &mut [f32]) -> Result<(), DeviceError> {
        let slots = self.exchange(x)?;
        // All ranks add all parts from zero in the order of ranks, so they get the same bits.
        x.fill(0.0);
        for slot in slots {
            let part = slot.read().unwrap_or_else(PoisonError::into_inner);
            assert_eq!(part.len(), x.len(), "every rank sums as many numbers");
            x.iter_mut().zip(part.iter()).for_each(|(x, part)| *x += part);
        }
        Ok(())
    }

    fn all_gather(&mut self, x: &[f32], rows: usize, out: &mut [f32]) -> Result<(), DeviceError> {
        let slots = self.exchange(x)?;
        if rows == 0 {
            return Ok(());
        }
        let width = out.len() / rows;
        let mut first = 0;
        for slot in slots {
            let part = slot.read().unwrap_or_else(PoisonError::into_inner);
            let cols = part.len() / rows;
            if cols > 0 {
                for (out, part) in out.chunks_exact_mut(width).zip(part.chunks_exact(cols)) {
                    out[first..first + cols].copy_from_slice(part);
                }
            }
            first += cols;
        }
        assert_eq!(first, width, "the parts of all ranks make up a row");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Test helper: runs `run` on one thread for each rank of a new group of `count` ranks, and
    /// returns the results in the order of ranks.
    fn on_ranks<T: Send>(count: usize, run: impl Fn(InProcess) -> T + Sync) -> Vec<T> {
        thread::scope(|scope| {
            let run = &run;
            let ranks: Vec<_> =
                InProcess::group(count).into_iter().map(|rank| scope.spawn(|| run(rank))).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    #[test]
    fn every_rank_has_the_same_bits_after_any_number_of_sums() {
        // The order of addition changes the sum of these numbers, so only a sum in the order of
        // ranks gives it.
        let part =
            |rank: usize, turn: usize| 1e8f32.powi(rank as i32 % 2) / (turn + 1 + rank) as f32;
        for count in [1, 2, 3, 8] {
            let sums = on_ranks(count, |mut rank| {
                let mut sums = Vec::new();
                for turn in 0..200 {
                    let mut x = [part(rank.rank().index, turn), 1.0];
                    rank.all_reduce_sum(&mut x).unwrap();
                    assert_eq!(x[1], count as f32);
                    sums.push(x[0]);
                }
                sums
            });
            let want: Vec<f32> = (0..200)
                .map(|turn| (0..count).fold(0.0, |sum, rank| sum + part(rank, turn)))
                .collect();
            assert!(sums.iter().all(|sums| *sums == want), "{count} ranks");
        }
    }

    #[test]
    fn gathered_rows_stand_side_by_side() {
        // Rank r has r + 1 columns, except the last, which has none.
        let gathered = on_ranks(3, |mut rank| {
            let index = rank.rank().index;
            let cols = (index + 1) % 3;
            let x: Vec<f32> = (0..2 * cols).map(|i| (10 * index + i) as f32).collect();
            let mut out = [0.0; 6];
            rank.all_gather(&x, 2, &mut out).unwrap();
            out
        });
        assert!(gathered.iter().all(|out| *out == [0.0, 10.0, 11.0, 1.0, 12.0, 13.0]));
    }

    #[test]
    fn ranks_agree_on_the_least_of_what_they_say() {
        let agreed = on_ranks(3, |mut rank| {
            let index = rank.rank().index as f32;
            [rank.least(index).unwrap(), rank.least(5.0 - index).unwrap()]
        });
        assert_eq!(agreed, [[0.0, 3.0]; 3]);
    }

    #[test]
    fn a_rank_that_ends_lets_the_others_go() {
        let results = on_ranks(3, |mut rank| {
            if rank.rank().index == 1 {
                return Ok(());
            }
            rank.all_reduce_sum(&mut [0.0])
        });
        assert!(results[1].is_ok());
        for result in [&results[0], &results[2]] {
            let message = result.as_ref().unwrap_err().to_string();
            assert!(message.contains("another rank has ended"), "{message}");
        }
    }
}
