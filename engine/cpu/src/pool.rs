//! A small pool of pinned threads that runs one task at a time.
//!
//! A step of a small model is some two hundred operations of a few microseconds. Threads therefore
//! spin for a moment between operations before they park: waking a thread costs as much as an
//! operation, while an idle server must cost nothing.

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

/// Turns of the spin loop before a worker parks: about a hundred microseconds.
const SPINS: u32 = 2_000;

type Task = *const (dyn Fn(usize) + Sync);

/// What the threads share.
struct Shared {
    /// Number of tasks published so far; a change is the signal to start.
    generation: AtomicUsize,
    task: UnsafeCell<Option<Task>>,
    /// Workers that have not finished the current task.
    running: AtomicUsize,
    stop: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `task` is written only by the owner of the pool while `running` is zero, before the
// release of `generation` that lets workers read it.
unsafe impl Sync for Shared {}
// SAFETY: the pointer inside is only followed while the caller that owns the task waits.
unsafe impl Send for Shared {}

struct Worker {
    handle: JoinHandle<()>,
    parked: Arc<AtomicBool>,
}

/// The next item of one thread's share, on a cache line of its own.
#[derive(Default)]
#[repr(align(64))]
struct Next(AtomicUsize);

/// Threads that work together on one task at a time; the caller is one of them.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<Worker>,
    /// `[threads]`
    next: Vec<Next>,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads()).finish()
    }
}

impl Pool {
    /// A pool of `threads` threads, the caller included. Where as many processors may be used, each
    /// worker is pinned to its own; the caller is not pinned, as threads that it starts later would
    /// inherit that.
    pub fn new(threads: usize) -> Self {
        let processors = allowed_processors();
        Self::on(threads, if processors.len() < threads { &[] } else { &processors })
    }

    /// A pool whose threads run where the system puts them, for where there are several pools.
    pub fn unpinned(threads: usize) -> Self {
        Self::on(threads, &[])
    }

    /// A pool whose workers are pinned to `processors` from the second, as far as these go.
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

    /// Threads that work, that of the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `task(thread)` once on every thread and returns when all have returned. A panic in one
    /// of them is raised again here.
    pub fn each(&mut self, task: &(dyn Fn(usize) + Sync)) {
        self.run(task);
    }

    /// As [`Pool::each`], for a caller that has the pool to itself.
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

    /// Calls `task(thread, item)` once for every item below `items`. Each thread has as many items
    /// that follow one another, so that what one operation left in its cache is there for the next,
    /// and takes those of others when it is done. Which thread gets which is therefore not fixed,
    /// and must not matter.
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
            // A worker catches the panics of its tasks, so it cannot have ended by one.
            let _ended = worker.handle.join();
        }
    }
}

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

/// Waits until the generation is no longer `seen`: spins a while, then parks.
fn next_generation(shared: &Shared, parked: &AtomicBool, seen: usize) -> usize {
    for _ in 0..SPINS {
        let now = shared.generation.load(Ordering::SeqCst);
        if now != seen {
            return now;
        }
        hint::spin_loop();
    }
    loop {
        // The flag goes up before the last look: whoever publishes after that look sees the flag.
        parked.store(true, Ordering::SeqCst);
        let now = shared.generation.load(Ordering::SeqCst);
        if now != seen {
            parked.store(false, Ordering::SeqCst);
            return now;
        }
        thread::park();
    }
}

/// Processors that this process may run on.
fn allowed_processors() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(Pid::from_raw(0)) else { return Vec::new() };
    (0..CpuSet::count()).filter(|&processor| set.is_set(processor).unwrap_or(false)).collect()
}

fn pin_to(processor: usize) {
    let mut set = CpuSet::new();
    if set.set(processor).is_ok() {
        // Pinning is an optimization: where it is forbidden the thread runs unpinned.
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
