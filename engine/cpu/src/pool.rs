//! Thread pool that runs one task at a time on all of its threads, which are pinned to processors
//! where that is possible.
//!
//! A step of a small model is about two hundred operations of a few microseconds. Threads therefore
//! spin for a moment between operations before they park: waking a thread costs as much as an
//! operation, while an idle server must use no CPU time.

#![expect(unsafe_code, reason = "a task borrowed from the caller's stack crosses threads")]

use std::any::Any;
use std::cell::UnsafeCell;
use std::fmt;
use std::hint;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// Number of iterations of the spin loop before a waiting worker thread parks or the waiting caller
/// yields its processor, about a hundred microseconds.
const SPINS: u32 = 2_000;

/// Number of elements of an operation below which one thread is faster than the whole thread pool.
pub(super) const PARALLEL_ELEMENTS: usize = 16_384;

/// Largest number of elements, rounded up to whole rows, of a work item of [`Pool::rows`], few
/// enough that its output is still in the cache when it is quantized.
const ITEM_ELEMENTS: usize = 16_384;

/// Pointer to the task that a thread pool's caller gave to its threads; valid while that caller
/// waits.
type Task = *const (dyn Fn(usize) + Sync);

/// State that the thread pool's caller and its worker threads share.
struct Shared {
    /// Number of tasks given to the worker threads so far; a change is the signal to start the
    /// task, or to end where the pool is dropped.
    generation: AtomicUsize,
    task: UnsafeCell<Option<Task>>,
    /// Number of worker threads that have not finished the current task.
    running: AtomicUsize,
    stop: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `task` is written only by the owner of the pool while `running` is zero, before the
// release of `generation` that lets workers read it.
unsafe impl Sync for Shared {}
// SAFETY: the pointer inside is only followed while the caller that owns the task waits.
unsafe impl Send for Shared {}

/// Worker thread of the thread pool, and the flag that it sets before it parks.
struct Worker {
    handle: JoinHandle<()>,
    parked: Arc<AtomicBool>,
}

/// Index of the next work item of one thread's share, on a cache line of its own to avoid false
/// sharing.
#[derive(Default)]
#[repr(align(64))]
struct Next(AtomicUsize);

/// Thread pool whose threads work together on one task at a time; the caller is one of them.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<Worker>,
    /// Index of the next work item of each thread's share, `[threads]`.
    next: Vec<Next>,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads()).finish()
    }
}

impl Pool {
    /// Creates a thread pool of `threads` threads, the caller included. If the process may use that
    /// many processors, each worker thread is pinned to its own, else none is pinned. The caller is
    /// never pinned, because threads that it starts later would inherit the pinning.
    pub fn new(threads: usize) -> Self {
        let processors = allowed_processors();
        Self::on(threads, if processors.len() < threads { &[] } else { &processors })
    }

    /// Creates a thread pool whose threads are not pinned to processors, for processes with several
    /// pools.
    pub fn unpinned(threads: usize) -> Self {
        Self::on(threads, &[])
    }

    /// Creates a thread pool whose worker threads are pinned: worker `i`, counted from 1, to
    /// `processors[i]`, or not at all if `processors` has no entry `i`.
    fn on(threads: usize, processors: &[usize]) -> Self {
        let shared = Arc::new(Shared {
            generation: AtomicUsize::new(0),
            task: UnsafeCell::new(None),
            running: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
        });
        let workers = (1..threads)
            .map(|thread| {
                let (shared, parked) = (Arc::clone(&shared), Arc::new(AtomicBool::new(false)));
                let flag = Arc::clone(&parked);
                let pin = processors.get(thread).copied();
                let handle = thread::spawn(move || {
                    if let Some(processor) = pin {
                        pin_to(processor);
                    }
                    work(&shared, &flag, thread);
                });
                Worker { handle, parked }
            })
            .collect();
        Self { shared, workers, next: (0..threads).map(|_| Next::default()).collect() }
    }

    /// Returns the number of threads of the thread pool, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `task(thread)` once on every thread of the pool and returns when all calls have
    /// returned. A panic in one of them is resumed in the caller.
    pub fn each(&mut self, task: &(dyn Fn(usize) + Sync)) {
        self.run(task);
    }

    /// Runs `task` once on every thread of the pool. No other thread may use the pool meanwhile,
    /// although `&self` would let it.
    fn run(&self, task: &(dyn Fn(usize) + Sync)) {
        if self.workers.is_empty() {
            return task(0);
        }
        let task: *const (dyn Fn(usize) + Sync + '_) = task;
        // SAFETY: only the lifetime is erased. The task outlives its use, because this function
        // returns only when every worker is done with it, also when the caller's share panics.
        let task = unsafe { std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), Task>(task) };
        // SAFETY: no worker runs, so nobody reads the cell.
        unsafe { *self.shared.task.get() = Some(task) };
        self.shared.running.store(self.workers.len(), Ordering::Release);
        self.shared.generation.fetch_add(1, Ordering::SeqCst);
        self.wake();
        // SAFETY: the task is alive, see above.
        let own = panic::catch_unwind(AssertUnwindSafe(|| unsafe { (*task)(0) }));
        let mut spins = 0u32;
        while self.shared.running.load(Ordering::Acquire) != 0 {
            spins += 1;
            if spins < SPINS {
                hint::spin_loop();
            } else {
                thread::yield_now();
            }
        }
        let theirs = self.shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(payload) = own.err().or(theirs) {
            panic::resume_unwind(payload);
        }
    }

    /// Calls `task(thread, item)` once for every work item below `items`. Each thread of the pool
    /// has an equal share of consecutive items, so that data which one operation left in its cache
    /// is there for the next. A thread that is done takes items from other shares, so the
    /// assignment varies and results must not depend on it.
    pub fn items(&mut self, items: usize, task: &(dyn Fn(usize, usize) + Sync)) {
        if items <= 1 || self.workers.is_empty() {
            return (0..items).for_each(|item| task(0, item));
        }
        let (next, threads) = (&self.next, self.next.len());
        let first = |share: usize| items * share / threads;
        for (share, next) in next.iter().enumerate() {
            next.0.store(first(share), Ordering::Relaxed);
        }
        self.run(&|thread| {
            for share in (thread..threads).chain(0..thread) {
                loop {
                    let item = next[share].0.fetch_add(1, Ordering::Relaxed);
                    if item >= first(share + 1) {
                        break;
                    }
                    task(thread, item);
                }
            }
        });
    }

    /// Splits `rows` rows of `cols` columns into work items and calls `task(first row, number of
    /// rows)` for each on the pool's threads; small operations are one item on the calling thread.
    pub(super) fn rows(&mut self, rows: usize, cols: usize, task: &(dyn Fn(usize, usize) + Sync)) {
        if rows * cols < PARALLEL_ELEMENTS || self.threads() == 1 {
            return task(0, rows);
        }
        let per_item = rows.div_ceil(4 * self.threads()).min(ITEM_ELEMENTS.div_ceil(cols));
        self.items(rows.div_ceil(per_item), &|_, item| {
            let first = item * per_item;
            task(first, per_item.min(rows - first));
        });
    }

    /// Wakes those worker threads of the pool that have parked.
    fn wake(&self) {
        for worker in &self.workers {
            if worker.parked.swap(false, Ordering::SeqCst) {
                worker.handle.thread().unpark();
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.generation.fetch_add(1, Ordering::SeqCst);
        self.wake();
        for worker in self.workers.drain(..) {
            // A worker catches the panics of its tasks, so it cannot have ended by a panic.
            let _ended = worker.handle.join();
        }
    }
}

/// Runs the main loop of a worker thread: waits for a task, runs it, reports its end, until the
/// pool is dropped.
fn work(shared: &Shared, parked: &AtomicBool, thread: usize) {
    let mut seen = 0;
    loop {
        seen = next_generation(shared, parked, seen);
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        // SAFETY: the task was written before this generation was published, and stays until
        // `running` is zero.
        let task = unsafe { *shared.task.get() };
        if let Some(task) = task {
            // SAFETY: the caller waits for `running`, so what the task borrows is alive.
            let call = AssertUnwindSafe(|| unsafe { (*task)(thread) });
            if let Err(payload) = panic::catch_unwind(call) {
                *shared.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(payload);
            }
        }
        shared.running.fetch_sub(1, Ordering::Release);
    }
}

/// Waits until the number of published tasks differs from `seen`, and returns that number. Spins
/// for a while, then parks the thread.
fn next_generation(shared: &Shared, parked: &AtomicBool, seen: usize) -> usize {
    for _ in 0..SPINS {
        let now = shared.generation.load(Ordering::SeqCst);
        if now != seen {
            return now;
        }
        hint::spin_loop();
    }
    loop {
        // The flag is set before the generation is read for the last time, so a publisher either is
        // seen here or sees the flag and unparks this thread.
        parked.store(true, Ordering::SeqCst);
        let now = shared.generation.load(Ordering::SeqCst);
        if now != seen {
            parked.store(false, Ordering::SeqCst);
            return now;
        }
        thread::park();
    }
}

/// Returns the indices of the processors that this process may run on; empty if the system does not
/// report them.
fn allowed_processors() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(Pid::from_raw(0)) else { return Vec::new() };
    (0..CpuSet::count()).filter(|&processor| set.is_set(processor).unwrap_or(false)).collect()
}

/// Pins the calling thread to the processor with this index, where the system permits it.
fn pin_to(processor: usize) {
    let mut set = CpuSet::new();
    if set.set(processor).is_ok() {
        // Pinning is an optimization: where it is forbidden, the thread runs unpinned.
        let _ignored = sched_setaffinity(Pid::from_raw(0), &set);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_runs_once_whatever_the_number_of_threads() {
        for threads in [1, 2, 3, 8] {
            let mut pool = Pool::new(threads);
            for items in [0, 1, 2, 7, 100] {
                let counts: Vec<AtomicUsize> = (0..items).map(|_| AtomicUsize::new(0)).collect();
                pool.items(items, &|_, item| {
                    counts[item].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|n| n.load(Ordering::Relaxed) == 1), "{threads}/{items}");
            }
        }
    }

    #[test]
    fn a_panic_in_a_task_reaches_the_caller_and_the_pool_lives_on() {
        let mut pool = Pool::new(3);
        for culprit in 0..3 {
            let result = panic::catch_unwind(AssertUnwindSafe(|| {
                pool.each(&|thread| assert_ne!(thread, culprit, "the culprit"));
            }));
            assert!(result.is_err(), "thread {culprit}");
            let calls = AtomicUsize::new(0);
            pool.each(&|_| {
                calls.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(calls.load(Ordering::Relaxed), 3);
        }
    }
}
