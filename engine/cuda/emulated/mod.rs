//! A driver that runs the kernels on this processor, through the shim, each launch at once.
//!
//! It refuses what a GPU would not survive, or would quietly get wrong: launches that name memory
//! which is not there, and records whose memory has moved since.

#![expect(unsafe_code, reason = "kernels are called with addresses")]

mod blas;
pub mod compiler;
mod group;
mod library;

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc};
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine_core::DeviceError;
use engine_cuda::driver::{
    Address, Algorithm, Arguments, Blas, ColumnProduct, Driver, Event, Facts, MemoryBytes,
    Operands, Record, out_of_memory,
};
use engine_cuda::launch::{Launch, Processors};
use group::Meeting;
use library::Libraries;

/// Where allocations begin.
const ALIGNMENT: usize = 256;

/// What is where.
#[derive(Debug)]
pub struct Emulated {
    facts: Facts,
    total: u64,
    libraries: Libraries,
    script: Script,
    state: Mutex<State>,
}

/// What the emulated GPU has beside its kernels, and how long it says that it takes.
#[derive(Debug, Clone, Copy)]
pub struct Script {
    /// Algorithms of its library of products; none is no library.
    pub algorithms: u64,
    /// Nanoseconds of a launch, by the kernel's name, or of a product, such as `algorithm 2 of 16 rows`.
    pub ns: fn(&str) -> f64,
}

impl Default for Script {
    fn default() -> Self {
        Self { algorithms: 0, ns: |_| 1000.0 }
    }
}

#[derive(Debug, Default)]
struct State {
    allocations: BTreeMap<u64, Allocation>,
    /// Of all that were ever made.
    allocated: u64,
    recording: Option<Vec<Recorded>>,
    records: Vec<Vec<Recorded>>,
    launches: u64,
    replays: u64,
    /// Products of the library, by algorithm and number of rows.
    products: BTreeMap<(u64, usize), u64>,
    now_ns: f64,
    /// When each event was passed.
    marks: Vec<f64>,
    /// What ranks did together, in words.
    together: Vec<String>,
}

#[derive(Debug, Clone, Copy)]
struct Allocation {
    bytes: usize,
    /// No other ever has the same.
    number: u64,
}

/// What runs in the order of the stream, and which allocations it names.
#[derive(Debug, Clone)]
struct Recorded {
    work: Work,
    allocations: Vec<Option<u64>>,
}

#[derive(Debug, Clone)]
enum Work {
    Launch { entry: String, launch: Launch, arguments: Box<Arguments> },
    Product { product: ColumnProduct, algorithm: Algorithm, operands: Operands },
    Meeting(Meeting),
}

impl Work {
    /// As [`Script::ns`] knows it.
    fn name(&self) -> String {
        match self {
            Self::Launch { entry, .. } => entry.clone(),
            Self::Product { product, algorithm, .. } => {
                format!("algorithm {} of {} rows", algorithm.0[0], product.d.cols)
            }
            Self::Meeting(meeting) => meeting.name().to_owned(),
        }
    }

    fn addresses(&self) -> Vec<Address> {
        match self {
            Self::Launch { arguments, .. } => arguments.addresses().collect(),
            Self::Product { operands: Operands { a, b, d, workspace }, .. } => {
                vec![*a, *b, *d, *workspace]
            }
            Self::Meeting(meeting) => meeting.addresses().to_vec(),
        }
    }
}

impl State {
    /// The number of the allocation that `address` is in.
    ///
    /// # Panics
    /// There is none.
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

    /// Those of all addresses of `work`.
    fn allocations(&self, work: &Work) -> Vec<Option<u64>> {
        let name = work.name();
        work.addresses().into_iter().map(|at| self.allocation(at, &name)).collect()
    }

    fn count(&mut self, work: &Work) {
        match work {
            Work::Launch { .. } => self.launches += 1,
            Work::Meeting(_) => {}
            Work::Product { product, algorithm, .. } => {
                *self.products.entry((algorithm.0[0], product.d.cols)).or_default() += 1;
            }
        }
    }

    fn refuse_record(&self, what: &str) {
        assert!(self.recording.is_none(), "{what} while launches are recorded");
    }
}

impl Emulated {
    /// A device with two processors and `total` bytes; none, and a line that says so, where there is
    /// no compiler for the kernels.
    pub fn new(total: u64) -> Option<Arc<Self>> {
        Self::with(total, Script::default())
    }

    /// As [`Emulated::new`], with a library of products or times as the script has them.
    pub fn with(total: u64, script: Script) -> Option<Arc<Self>> {
        let libraries = Libraries::compile()?;
        let processors = Processors { count: 2, shared_bytes: 228 << 10, has_warpgroups: false };
        let facts = Facts { name: "this processor".to_owned(), processors, capability: (8, 0) };
        Some(Arc::new(Self { facts, total, libraries, script, state: Mutex::default() }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Memory is given back after a finding too.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Launches so far, recorded and replayed ones included.
    pub fn launches(&self) -> u64 {
        self.state().launches
    }

    /// Records that were replayed so far.
    pub fn replays(&self) -> u64 {
        self.state().replays
    }

    /// How often the library's algorithm `number` computed products of so many rows.
    pub fn products(&self, number: u64, rows: usize) -> u64 {
        self.state().products.get(&(number, rows)).copied().unwrap_or(0)
    }

    /// What ranks did together so far, in words and in order.
    pub fn together(&self) -> Vec<String> {
        self.state().together.clone()
    }

    /// Runs `work`, or records it.
    fn begin(&self, work: Work) -> Result<(), DeviceError> {
        let mut state = self.state();
        let allocations = state.allocations(&work);
        state.count(&work);
        match &mut state.recording {
            Some(recorded) => recorded.push(Recorded { work, allocations }),
            None => {
                state.now_ns += (self.script.ns)(&work.name());
                drop(state);
                self.run(&work)?;
            }
        }
        Ok(())
    }

    fn run(&self, work: &Work) -> Result<(), DeviceError> {
        match work {
            Work::Launch { entry, launch, arguments } => {
                if entry == "all_reduce" {
                    self.state().together.push(format!("{entry} by {:?}", launch.grid));
                }
                self.libraries.run(entry, *launch, arguments);
                Ok(())
            }
            Work::Product { product, operands, .. } => {
                blas::multiply(product, operands);
                Ok(())
            }
            Work::Meeting(meeting) => {
                self.state().together.push(meeting.to_string());
                meeting.run()
            }
        }
    }

    fn check(&self, at: Address, bytes: usize, what: &str) {
        let state = self.state();
        state.refuse_record(what);
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

    fn memory(&self) -> Result<MemoryBytes, DeviceError> {
        let used: usize = self.state().allocations.values().map(|one| one.bytes).sum();
        Ok(MemoryBytes { free: self.total - used as u64, total: self.total })
    }

    fn allocate(&self, bytes: usize) -> Result<Address, DeviceError> {
        let memory = self.memory()?;
        if memory.free < bytes as u64 {
            return Err(out_of_memory(bytes, memory));
        }
        let mut state = self.state();
        state.refuse_record("an allocation");
        // SAFETY: the size is not 0.
        let start = unsafe { alloc(layout(bytes)) };
        assert!(!start.is_null());
        // What nobody wrote is no number. SAFETY: it is that long.
        unsafe { start.write_bytes(0xff, bytes) };
        state.allocated += 1;
        let number = state.allocated;
        state.allocations.insert(start as u64, Allocation { bytes, number });
        Ok(Address(start as u64))
    }

    fn release(&self, address: Address) {
        let freed = self.state().allocations.remove(&address.0).expect("it was allocated");
        // SAFETY: it was allocated with this layout, and is forgotten.
        unsafe { dealloc(address.0 as *mut u8, layout(freed.bytes)) }
    }

    fn allocate_pinned(&self, bytes: usize) -> Result<NonNull<u8>, DeviceError> {
        // SAFETY: the size is not 0.
        Ok(NonNull::new(unsafe { alloc_zeroed(layout(bytes)) }).unwrap())
    }

    unsafe fn release_pinned(&self, start: NonNull<u8>, bytes: usize) {
        // SAFETY: it was allocated with this layout, as the caller says.
        unsafe { dealloc(start.as_ptr(), layout(bytes.max(1))) }
    }

    unsafe fn upload(&self, to: Address, from: *const u8, bytes: usize) -> Result<(), DeviceError> {
        self.check(to, bytes, "an upload");
        // SAFETY: checked here, and by the caller.
        unsafe { (to.0 as *mut u8).copy_from_nonoverlapping(from, bytes) };
        Ok(())
    }

    unsafe fn download(&self, to: *mut u8, from: Address, bytes: usize) -> Result<(), DeviceError> {
        self.check(from, bytes, "a download");
        // SAFETY: checked here, and by the caller.
        unsafe { to.copy_from_nonoverlapping(from.0 as *const u8, bytes) };
        Ok(())
    }

    fn copy(&self, to: Address, from: Address, bytes: usize) -> Result<(), DeviceError> {
        self.check(to, bytes, "the target of a copy");
        self.check(from, bytes, "the source of a copy");
        // SAFETY: checked.
        unsafe { (to.0 as *mut u8).copy_from(from.0 as *const u8, bytes) };
        Ok(())
    }

    fn zero(&self, at: Address, bytes: usize) -> Result<(), DeviceError> {
        self.check(at, bytes, "zeros");
        // SAFETY: checked.
        unsafe { (at.0 as *mut u8).write_bytes(0, bytes) };
        Ok(())
    }

    fn launch(
        &self,
        entry: &str,
        launch: Launch,
        arguments: &Arguments,
    ) -> Result<(), DeviceError> {
        let (entry, arguments) = (entry.to_owned(), Box::new(arguments.clone()));
        self.begin(Work::Launch { entry, launch, arguments })
    }

    fn event(&self) -> Result<Event, DeviceError> {
        self.timed_event()
    }

    fn timed_event(&self) -> Result<Event, DeviceError> {
        let mut state = self.state();
        state.marks.push(0.0);
        Ok(Event(state.marks.len() as u64 - 1))
    }

    fn elapsed_ns(&self, from: Event, to: Event) -> Result<f64, DeviceError> {
        let state = self.state();
        let [from, to] = [from, to].map(|event| state.marks[event.0 as usize]);
        Ok(to - from)
    }

    fn mark(&self, event: Event) -> Result<(), DeviceError> {
        let mut state = self.state();
        state.refuse_record("an event");
        state.marks[event.0 as usize] = state.now_ns;
        Ok(())
    }

    fn wait(&self, _event: Event) -> Result<(), DeviceError> {
        self.state().refuse_record("a wait");
        Ok(())
    }

    fn wait_all(&self) -> Result<(), DeviceError> {
        self.state().refuse_record("a wait");
        Ok(())
    }

    fn begin_record(&self) -> Result<(), DeviceError> {
        let mut state = self.state();
        state.refuse_record("a record");
        state.recording = Some(Vec::new());
        Ok(())
    }

    fn end_record(&self) -> Result<Record, DeviceError> {
        let mut state = self.state();
        let recorded = state.recording.take().expect("launches are recorded");
        state.records.push(recorded);
        Ok(Record(state.records.len() as u64 - 1))
    }

    fn replay(&self, record: Record) -> Result<(), DeviceError> {
        let mut state = self.state();
        state.refuse_record("a replay");
        state.replays += 1;
        let recorded = state.records[record.0 as usize].clone();
        assert!(!recorded.is_empty(), "the record is there");
        for Recorded { work, allocations } in &recorded {
            let now = state.allocations(work);
            assert_eq!(now, *allocations, "memory that `{}` was recorded with moved", work.name());
            state.count(work);
            state.now_ns += (self.script.ns)(&work.name());
        }
        drop(state);
        recorded.iter().try_for_each(|one| self.run(&one.work))
    }

    fn release_record(&self, record: Record) {
        self.state().records[record.0 as usize].clear();
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

    /// `out = x` at one row of eight columns.
    fn gather(out: &Memory, x: &Memory, rows: &Memory) -> Arguments {
        Arguments::new()
            .address(out.address())
            .address(x.address())
            .address(rows.address())
            .value(8u32)
    }

    #[test]
    fn a_record_runs_again_over_what_is_there_then() {
        let Some((device, driver)) = devices() else { return };
        let [out, x, rows] = [16, 16, 4].map(|bytes| Memory::new(&driver, bytes).unwrap());
        driver.zero(rows.address(), 4).unwrap();
        let mut host = Pinned::new(&driver, 16).unwrap();
        let arguments = gather(&out, &x, &rows);
        device.begin_record().unwrap();
        device.launch("gather", Launch::row_copies(1, 8), &arguments).unwrap();
        let record = device.end_record().unwrap();
        for byte in [3, 4] {
            host.bytes_mut().fill(byte);
            host.upload(x.address(), 16).unwrap();
            device.replay(record).unwrap();
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
        device.begin_record().unwrap();
        device.launch("gather", Launch::row_copies(1, 8), &gather(&out, &x, &rows)).unwrap();
        let record = device.end_record().unwrap();
        drop(x);
        let _replayed = device.replay(record);
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
