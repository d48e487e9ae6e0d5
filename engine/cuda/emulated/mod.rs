//! Emulated CUDA driver for tests: runs the kernels on the host processor through the shim, each
//! launch synchronously.
//!
//! It panics where a real GPU would crash or silently compute wrong results, such as a launch that
//! names memory outside every allocation, or a replay of a CUDA graph whose memory has moved.

#![expect(unsafe_code, reason = "kernels are called with addresses")]

mod blas;
pub mod compiler;
mod group;
mod library;
pub mod script;

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc};
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine_cuda::driver::{
    Address, Algorithm, Arguments, Blas, ColumnMatmul, CudaGraph, Driver, Event, Facts,
    MemoryBytes, Operands, out_of_memory,
};
use engine_cuda::launch::{Launch, Processors, carveout};
use engine_cuda::{Result, generation};
use group::Meeting;
use library::Libraries;
pub use script::Script;

/// Alignment of allocations in bytes, as CUDA guarantees it.
const ALIGNMENT: usize = 256;

/// Emulated GPU with its properties, compiled kernels, allocations and captured CUDA graphs.
#[derive(Debug)]
pub struct Emulated {
    facts: Facts,
    /// Total size of the emulated device memory in bytes.
    total: u64,
    libraries: Libraries,
    /// Shared memory that kernels asked for when they were loaded, in percent, by entry.
    carveouts: BTreeMap<&'static str, u32>,
    script: Script,
    state: Mutex<State>,
}

/// Mutable state of an emulated GPU.
#[derive(Debug, Default)]
struct State {
    allocations: BTreeMap<u64, Allocation>,
    /// Number of allocations of device memory made so far, including released ones.
    allocated: u64,
    /// Work of the CUDA graph that is being captured; `None` outside a capture.
    capturing: Option<Vec<Captured>>,
    /// Captured CUDA graphs, by the index in [`CudaGraph`]; a released one is empty.
    graphs: Vec<Vec<Captured>>,
    /// Number of kernel launches on the emulated GPU so far: those executed, those captured, and
    /// those in each replay.
    launches: u64,
    /// Number of CUDA graph replays on the emulated GPU so far.
    replays: u64,
    /// Number of matrix multiplications by the emulated GEMM library so far (executed, captured,
    /// and in each replay), by algorithm and number of rows.
    matmuls: BTreeMap<(u64, usize), u64>,
    /// Emulated time in nanoseconds: the sum of the scripted times of all work executed so far.
    now_ns: f64,
    /// Emulated time in nanoseconds at which each event was recorded in the stream.
    marks: Vec<f64>,
    /// Collective operations, by NCCL or by the all-reduce kernel, that the emulated GPU executed
    /// so far, each as text.
    together: Vec<String>,
    /// Number of launches so far of the kernel with the scripted fault.
    faults: u64,
    /// True after a fault that ends all work.
    is_lost: bool,
}

/// One allocation of emulated device memory.
#[derive(Debug, Clone, Copy)]
struct Allocation {
    bytes: usize,
    /// Unique number of the allocation, never reused, so that memory freed and allocated again at
    /// the same address is recognized as different.
    number: u64,
}

/// Work captured in a CUDA graph, with the unique numbers of the allocations in which its addresses
/// were at capture.
#[derive(Debug, Clone)]
struct Captured {
    work: Work,
    allocations: Vec<Option<u64>>,
}

/// Work of an emulated GPU that runs in stream order: a kernel, a GEMM call or a collective
/// operation.
#[derive(Debug, Clone)]
enum Work {
    Launch { entry: String, launch: Launch, arguments: Box<Arguments> },
    Matmul { matmul: ColumnMatmul, algorithm: Algorithm, operands: Operands },
    Meeting(Meeting),
}

impl Work {
    /// Returns the name with which [`Script::ns`] is asked for the time of the work.
    fn name(&self) -> String {
        match self {
            Self::Launch { entry, .. } => entry.clone(),
            Self::Matmul { matmul, algorithm, .. } => {
                format!("algorithm {} of {} rows", algorithm.0[0], matmul.d.cols)
            }
            Self::Meeting(meeting) => meeting.name().to_owned(),
        }
    }

    /// Returns the device addresses that the work reads or writes.
    fn addresses(&self) -> Vec<Address> {
        match self {
            Self::Launch { arguments, .. } => arguments.addresses().collect(),
            Self::Matmul { operands: Operands { a, b, d, workspace }, .. } => {
                vec![*a, *b, *d, *workspace]
            }
            Self::Meeting(meeting) => meeting.addresses().to_vec(),
        }
    }
}

impl State {
    /// Returns the unique number of the allocation that contains `address`; `None` for the null
    /// address. `what` names the operation in the panic.
    ///
    /// # Panics
    /// No allocation contains `address`.
    fn allocation(&self, address: Address, what: &str) -> Option<u64> {
        if address == Address::NULL {
            return None;
        }
        let before = self.allocations.range(..=address.0).next_back();
        let inside = before.filter(|(start, one)| address.0 < *start + one.bytes as u64);
        Some(
            inside
                .unwrap_or_else(|| panic!("{what}: {address:x?} is no memory of the device"))
                .1
                .number,
        )
    }

    /// Returns the unique numbers of the allocations that contain the addresses of `work`; panics
    /// if an address is in none.
    fn allocations(&self, work: &Work) -> Vec<Option<u64>> {
        let name = work.name();
        work.addresses().into_iter().map(|at| self.allocation(at, &name)).collect()
    }

    /// Adds 1 to the number of kernel launches, or to that of GEMM library calls, so far, if `work`
    /// is one; collective operations are not counted.
    fn count(&mut self, work: &Work) {
        match work {
            Work::Launch { .. } => self.launches += 1,
            Work::Meeting(_) => {}
            Work::Matmul { matmul, algorithm, .. } => {
                *self.matmuls.entry((algorithm.0[0], matmul.d.cols)).or_default() += 1;
            }
        }
    }

    /// Panics if a CUDA graph is being captured, when CUDA forbids the operation `what`.
    fn refuse_capture(&self, what: &str) {
        assert!(self.capturing.is_none(), "{what} while a CUDA graph is captured");
    }
}

impl Emulated {
    /// Creates an emulated GPU with two multiprocessors and `total` bytes of memory. Returns `None`
    /// and prints a message where no compiler for the kernels is installed.
    pub fn new(total: u64) -> Option<Arc<Self>> {
        Self::with(total, Script::default())
    }

    /// Creates an emulated GPU as [`Emulated::new`] does, with a GEMM library and times from
    /// `script`.
    pub fn with(total: u64, script: Script) -> Option<Arc<Self>> {
        let has_warpgroups = script.has_warpgroups;
        let capability = if has_warpgroups { (9, 0) } else { (8, 0) };
        let libraries = Libraries::compile(generation(capability))?;
        // Those of an H200 or an A100.
        let shared_bytes = if has_warpgroups { 228 << 10 } else { 164 << 10 };
        let processors = Processors { count: 2, shared_bytes, has_warpgroups };
        let facts = Facts { name: "this processor".to_owned(), processors, capability };
        let asked = |(entry, bytes)| Some((entry, carveout(entry, bytes, processors)?));
        let carveouts = libraries.static_bytes().filter_map(asked).collect();
        let state = Mutex::default();
        Some(Arc::new(Self { facts, total, libraries, carveouts, script, state }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A test that panicked inside poisons the lock; its allocations must still be released.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the shared memory that kernels asked for when they were loaded, in percent of what a
    /// multiprocessor has, by entry.
    pub fn carveouts(&self) -> &BTreeMap<&'static str, u32> {
        &self.carveouts
    }

    /// Returns the number of kernel launches so far: those executed, those captured, and those in
    /// each replay.
    pub fn launches(&self) -> u64 {
        self.state().launches
    }

    /// Returns the number of CUDA graph replays so far.
    pub fn replays(&self) -> u64 {
        self.state().replays
    }

    /// Returns the number of matrix multiplications of `rows` rows by the GEMM library's algorithm
    /// `number` so far: those executed, those captured, and those in each replay.
    pub fn matmuls(&self, number: u64, rows: usize) -> u64 {
        self.state().matmuls.get(&(number, rows)).copied().unwrap_or(0)
    }

    /// Returns the collective operations, by NCCL or by the all-reduce kernel, executed so far,
    /// each as text, in order.
    pub fn together(&self) -> Vec<String> {
        self.state().together.clone()
    }

    /// Runs `work` at once, or during a capture appends it to the CUDA graph.
    fn begin(&self, work: Work) -> Result<()> {
        let mut state = self.state();
        let allocations = state.allocations(&work);
        state.count(&work);
        match &mut state.capturing {
            Some(captured) => captured.push(Captured { work, allocations }),
            None => {
                state.now_ns += (self.script.ns)(&work.name());
                // `run` locks the state itself, and kernels of a group may wait for other ranks.
                drop(state);
                self.run(&work)?;
            }
        }
        Ok(())
    }

    /// Returns the error of the scripted fault, if the kernel `entry` has one that refuses it.
    fn refuse(&self, entry: &str) -> Result<()> {
        let Some(fault) = self.script.fault else { return Ok(()) };
        fault.refuse(entry, &mut self.state().is_lost)
    }

    /// Runs a kernel, GEMM call or collective operation on the host processor.
    fn run(&self, work: &Work) -> Result<()> {
        match work {
            Work::Launch { entry, launch, arguments } => {
                if entry == "all_reduce" {
                    self.state().together.push(format!("{entry} by {:?}", launch.grid));
                }
                self.libraries.run(entry, *launch, arguments, self.facts.processors);
                if let Some(fault) = self.script.fault.filter(|fault| fault.entry == entry) {
                    let first = arguments.addresses().next().expect("kernels have results");
                    self.state().faults += 1;
                    fault.apply(self.state().faults, first.0 as *mut u16);
                }
                Ok(())
            }
            Work::Matmul { matmul, operands, .. } => {
                blas::multiply(matmul, operands);
                Ok(())
            }
            Work::Meeting(meeting) => {
                self.state().together.push(meeting.to_string());
                meeting.run()
            }
        }
    }

    /// Panics if a capture is in progress, or if the `bytes` bytes from `at` on do not lie in a
    /// single allocation of device memory. `what` names the operation in the panic.
    fn check(&self, at: Address, bytes: usize, what: &str) {
        let state = self.state();
        state.refuse_capture(what);
        let first = state.allocation(at, what);
        let last = state.allocation(at.plus(bytes.max(1) - 1), what);
        assert!(first.is_some() && first == last, "{what}: {bytes} bytes at {at:x?}");
    }
}

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, ALIGNMENT).unwrap()
}

impl Driver for Emulated {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn memory(&self) -> Result<MemoryBytes> {
        let used: usize = self.state().allocations.values().map(|one| one.bytes).sum();
        Ok(MemoryBytes { free: self.total - used as u64, total: self.total })
    }

    fn allocate(&self, bytes: usize) -> Result<Address> {
        let memory = self.memory()?;
        if memory.free < bytes as u64 {
            return Err(out_of_memory(bytes, memory));
        }
        let mut state = self.state();
        state.refuse_capture("an allocation");
        // SAFETY: the size is not 0.
        let start = unsafe { alloc(layout(bytes)) };
        assert!(!start.is_null());
        // Unwritten memory is filled with NaN, so that a kernel that reads it fails its test.
        // SAFETY: the allocation has `bytes` bytes.
        unsafe { start.write_bytes(0xff, bytes) };
        state.allocated += 1;
        let number = state.allocated;
        state.allocations.insert(start as u64, Allocation { bytes, number });
        Ok(Address(start as u64))
    }

    fn release(&self, address: Address) {
        let freed = self.state().allocations.remove(&address.0).expect("it was allocated");
        // SAFETY: the memory was allocated with this layout, and is no longer listed.
        unsafe { dealloc(address.0 as *mut u8, layout(freed.bytes)) }
    }

    fn allocate_pinned(&self, bytes: usize) -> Result<NonNull<u8>> {
        // SAFETY: the size is not 0.
        Ok(NonNull::new(unsafe { alloc_zeroed(layout(bytes)) }).unwrap())
    }

    unsafe fn release_pinned(&self, start: NonNull<u8>, bytes: usize) {
        // SAFETY: the caller guarantees that the memory was allocated with this layout.
        unsafe { dealloc(start.as_ptr(), layout(bytes.max(1))) }
    }

    unsafe fn upload(&self, to: Address, from: *const u8, bytes: usize) -> Result<()> {
        self.check(to, bytes, "an upload");
        // SAFETY: the device memory was checked here, and the caller guarantees the host memory.
        unsafe { (to.0 as *mut u8).copy_from_nonoverlapping(from, bytes) };
        Ok(())
    }

    unsafe fn download(&self, to: *mut u8, from: Address, bytes: usize) -> Result<()> {
        self.check(from, bytes, "a download");
        // SAFETY: the device memory was checked here, and the caller guarantees the host memory.
        unsafe { to.copy_from_nonoverlapping(from.0 as *const u8, bytes) };
        Ok(())
    }

    fn copy(&self, to: Address, from: Address, bytes: usize) -> Result<()> {
        self.check(to, bytes, "the target of a copy");
        self.check(from, bytes, "the source of a copy");
        // SAFETY: the check ensures that the bytes lie in one allocation.
        unsafe { (to.0 as *mut u8).copy_from(from.0 as *const u8, bytes) };
        Ok(())
    }

    fn zero(&self, at: Address, bytes: usize) -> Result<()> {
        self.check(at, bytes, "zeros");
        // SAFETY: the check ensures that the bytes lie in one allocation.
        unsafe { (at.0 as *mut u8).write_bytes(0, bytes) };
        Ok(())
    }

    fn launch(&self, entry: &str, launch: Launch, arguments: &Arguments) -> Result<()> {
        self.refuse(entry)?;
        let (entry, arguments) = (entry.to_owned(), Box::new(arguments.clone()));
        self.begin(Work::Launch { entry, launch, arguments })
    }

    fn resident_blocks(&self, entry: &str, threads: usize, shared_bytes: usize) -> Result<usize> {
        let block = (threads, shared_bytes);
        let (registers, processors) = (self.script.registers, self.facts.processors);
        Ok(self.libraries.resident_blocks(entry, block, registers, processors))
    }

    fn event(&self) -> Result<Event> {
        self.timed_event()
    }

    fn timed_event(&self) -> Result<Event> {
        let mut state = self.state();
        state.marks.push(0.0);
        Ok(Event(state.marks.len() as u64 - 1))
    }

    fn elapsed_ns(&self, from: Event, to: Event) -> Result<f64> {
        let state = self.state();
        let [from, to] = [from, to].map(|event| state.marks[event.0 as usize]);
        Ok(to - from)
    }

    fn mark(&self, event: Event) -> Result<()> {
        let mut state = self.state();
        state.refuse_capture("an event");
        state.marks[event.0 as usize] = state.now_ns;
        Ok(())
    }

    fn wait(&self, _event: Event) -> Result<()> {
        self.state().refuse_capture("a wait");
        Ok(())
    }

    fn wait_all(&self) -> Result<()> {
        self.state().refuse_capture("a wait");
        self.refuse("")
    }

    fn begin_capture(&self) -> Result<()> {
        let mut state = self.state();
        state.refuse_capture("a graph");
        state.capturing = Some(Vec::new());
        Ok(())
    }

    fn end_capture(&self) -> Result<CudaGraph> {
        let mut state = self.state();
        let captured = state.capturing.take().expect("launches are captured");
        state.graphs.push(captured);
        Ok(CudaGraph(state.graphs.len() as u64 - 1))
    }

    fn replay(&self, graph: CudaGraph) -> Result<()> {
        let mut state = self.state();
        state.refuse_capture("a replay");
        state.replays += 1;
        let captured = state.graphs[graph.0 as usize].clone();
        assert!(!captured.is_empty(), "the graph is there");
        for Captured { work, allocations } in &captured {
            // A real replay uses the captured addresses even if they belong to other data by now.
            let now = state.allocations(work);
            assert_eq!(now, *allocations, "memory that `{}` was captured with moved", work.name());
            state.count(work);
            state.now_ns += (self.script.ns)(&work.name());
        }
        drop(state);
        captured.iter().try_for_each(|one| self.run(&one.work))
    }

    fn release_graph(&self, graph: CudaGraph) {
        self.state().graphs[graph.0 as usize].clear();
    }

    fn blas(&self) -> Option<&dyn Blas> {
        (self.script.algorithms > 0).then_some(self as &dyn Blas)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine_cuda::driver::{Memory, Pinned};

    const CAPACITY: u64 = 1 << 20;

    fn devices() -> Option<(Arc<Emulated>, Arc<dyn Driver>)> {
        let device = Emulated::new(CAPACITY)?;
        Some((Arc::clone(&device), device))
    }

    /// Test helper: returns the arguments with which the kernel `gather` copies one row of eight
    /// columns from `x` to `out`; `rows` has the index of that row.
    fn gather(out: &Memory, x: &Memory, rows: &Memory) -> Arguments {
        Arguments::of([out.address(), x.address(), rows.address()]).sizes([8])
    }

    #[test]
    fn a_record_runs_again_over_what_is_there_then() {
        let Some((device, driver)) = devices() else { return };
        let [out, x, rows] = [16, 16, 4].map(|bytes| Memory::new(&driver, bytes).unwrap());
        driver.zero(rows.address(), 4).unwrap();
        let mut host = Pinned::new(&driver, 16).unwrap();
        let arguments = gather(&out, &x, &rows);
        device.begin_capture().unwrap();
        device.launch("gather", Launch::row_copies(1, 8), &arguments).unwrap();
        let graph = device.end_capture().unwrap();
        for byte in [3, 4] {
            host.bytes_mut().fill(byte);
            host.upload(x.address(), 16).unwrap();
            device.replay(graph).unwrap();
            host.download(0, out.address(), 16).unwrap();
            assert_eq!(host.bytes(), [byte; 16]);
        }
        assert_eq!((device.launches(), device.replays()), (3, 2));
    }

    #[test]
    #[should_panic(expected = "is no memory of the device")]
    fn a_record_whose_memory_is_gone_is_refused() {
        let Some((device, driver)) = devices() else { panic!("this is no memory of the device") };
        let [out, x, rows] = [16, 16, 4].map(|bytes| Memory::new(&driver, bytes).unwrap());
        device.begin_capture().unwrap();
        device.launch("gather", Launch::row_copies(1, 8), &gather(&out, &x, &rows)).unwrap();
        let graph = device.end_capture().unwrap();
        drop(x);
        let _replayed = device.replay(graph);
    }

    #[test]
    fn memory_runs_out_and_comes_back() {
        let Some((device, driver)) = devices() else { return };
        let half = Memory::new(&driver, CAPACITY as usize / 2).unwrap();
        assert_eq!(device.memory().unwrap().free, CAPACITY / 2);
        let error = Memory::new(&driver, CAPACITY as usize).unwrap_err().to_string();
        let arithmetic = "1048576 bytes are needed at once, 524288 of the device's 1048576 are free, \
                          524288 are missing";
        assert!(error.contains(arithmetic), "{error}");
        drop(half);
        assert_eq!(device.memory().unwrap().free, CAPACITY);
    }
}
