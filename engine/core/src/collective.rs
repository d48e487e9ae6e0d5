//! What the ranks of a tensor-parallel group say to one another: sums and concatenations.
//!
//! Knows buffers of numbers, not what they mean. The ranks of one process are threads; they add in
//! the order of their numbers, so that every rank holds the same bits afterwards, however the
//! threads were scheduled.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};

use crate::DeviceError;

/// What a rank says that was let go because another has ended: the cause is there.
pub const ANOTHER_ENDED: &str = "another rank has ended";

/// A place in a group of devices that share a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rank {
    /// Below `count`.
    pub index: usize,
    /// Ranks of the group, at least one.
    pub count: usize,
}

impl Rank {
    /// A device with a model to itself.
    pub const ONLY: Self = Self { index: 0, count: 1 };

    /// The things of `total` that it has: neighbors, as many as the other ranks have, or one less.
    pub fn share(self, total: usize) -> Range<usize> {
        total * self.index / self.count..total * (self.index + 1) / self.count
    }
}

/// One rank's way to the others, for numbers that are where `X` says. Every rank calls the same
/// operations in the same order.
pub trait Collective<X: ?Sized = [f32]>: Send + fmt::Debug {
    /// Which of the ranks this is.
    fn rank(&self) -> Rank;

    /// `x` = the sum of all ranks' `x`, which are of one length.
    ///
    /// # Errors
    /// Another rank has ended.
    fn all_reduce_sum(&mut self, x: &mut X) -> Result<(), DeviceError>;

    /// Each of `rows` rows of `out` = that row of every rank's `x`, side by side in the order of
    /// ranks. Rows of different ranks may differ in length.
    ///
    /// # Errors
    /// Another rank has ended.
    fn all_gather(&mut self, x: &X, rows: usize, out: &mut X) -> Result<(), DeviceError>;
}

/// A rank that is a thread of this process.
pub struct InProcess {
    rank: Rank,
    group: Arc<Group>,
    /// Which of the two sets of slots the next operation uses.
    turn: usize,
}

/// What the ranks share. While an operation reads one set of slots the next can fill the other: a
/// rank fills the first again only after all have arrived at the operation between.
struct Group {
    slots: [Vec<RwLock<Vec<f32>>>; 2],
    meeting: Mutex<Meeting>,
    changed: Condvar,
}

#[derive(Default)]
struct Meeting {
    arrived: usize,
    /// Meetings that were complete.
    held: u64,
    /// A rank has ended: nobody will be complete again.
    is_broken: bool,
}

impl fmt::Debug for InProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InProcess").field("rank", &self.rank).finish_non_exhaustive()
    }
}

impl InProcess {
    /// A group of `count` ranks, in their order.
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

    /// Shows `x` to all ranks; returns what every rank has shown.
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

    /// The smallest of what the ranks have to say.
    ///
    /// # Errors
    /// Another rank has ended.
    pub fn least(&mut self, x: f32) -> Result<f32, DeviceError> {
        let slots = self.exchange(&[x])?;
        let said = slots.iter().map(|slot| slot.read().unwrap_or_else(PoisonError::into_inner)[0]);
        Ok(said.fold(x, f32::min))
    }
}

impl Group {
    fn meeting(&self) -> MutexGuard<'_, Meeting> {
        self.meeting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `count` ranks are here.
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

    /// What each rank of a group of `count` gives.
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
        // Numbers whose sum depends on the order: only the order of ranks gives this.
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
        // Rank r has r + 1 columns, the last none.
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
