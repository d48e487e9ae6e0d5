//! Test harness: compiles a kernel with the shim to a program for the host processor, under
//! sanitizers, and runs it; or runs it on a GPU (`on_gpu.rs`).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};

use bytemuck::NoUninit;
use tempfile::TempDir;

use super::on_gpu::LoadedKernels;
use crate::emulated::compiler::{compiled, home};
use crate::launch::Launch;

const COMPILE: &str = "-std=c++17 -O1 -g1 -DSHIM -fsanitize=address,undefined \
                       -fno-sanitize-recover=all -fno-strict-aliasing -ffp-contract=off \
                       -Wall -Wextra -Werror -Wno-unknown-pragmas -Wno-unused-function";

/// Further flags for kernels with asynchronous accesses to shared memory, whose order with those of
/// threads `shim/proxies.h` checks: AddressSanitizer's functions are called for all loads and
/// stores, and replaced.
fn watching() -> String {
    let kinds = ["load", "store"].into_iter();
    let functions = kinds.flat_map(|kind| ["1", "2", "4", "8", "16", "N"].map(|n| (kind, n)));
    let wraps = functions.map(|(kind, n)| format!(" -Wl,--wrap=__asan_{kind}{n}"));
    let calls = "--param asan-instrumentation-with-call-threshold=0";
    format!("{COMPILE} -DWATCHES {calls}{}", wraps.collect::<String>())
}

/// One kernel launch of a test, with its arguments.
#[derive(Debug, Clone)]
pub(super) struct Call {
    pub(super) entry: String,
    pub(super) launch: Launch,
    pub(super) arguments: Vec<Argument>,
}

/// One argument of a kernel launch of a test.
#[derive(Debug, Clone)]
pub(super) enum Argument {
    /// Bytes of a number or structure that is passed by value.
    Value(Vec<u8>),
    /// Content of a buffer that the kernel gets the address of, and whose content after the launch
    /// is returned.
    Buffer(Vec<u8>),
    /// Null pointer.
    Null,
}

impl Argument {
    /// Returns the number of the argument's kind in the file of launches, as in `shim/run.h`, and
    /// its bytes.
    fn coded(&self) -> (u32, &[u8]) {
        match self {
            Self::Value(bytes) => (0, bytes),
            Self::Buffer(bytes) => (1, bytes),
            Self::Null => (2, &[]),
        }
    }
}

impl Call {
    pub(super) fn new(entry: &str, launch: Launch) -> Self {
        Self { entry: entry.to_owned(), launch, arguments: Vec::new() }
    }

    /// Appends a kernel argument that is passed by value.
    pub(super) fn value<T: NoUninit>(self, value: T) -> Self {
        self.argument(Argument::Value(bytemuck::bytes_of(&value).to_vec()))
    }

    /// Appends a kernel argument that points to a copy of `values`, whose content is returned after
    /// the launch.
    pub(super) fn buffer<T: NoUninit>(self, values: &[T]) -> Self {
        self.argument(Argument::Buffer(bytemuck::cast_slice(values).to_vec()))
    }

    /// Appends a null pointer as kernel argument.
    pub(super) fn null(self) -> Self {
        self.argument(Argument::Null)
    }

    /// Appends a kernel argument that points to a copy of `values`, as [`Call::buffer`] does, or a
    /// null pointer for `None`.
    pub(super) fn optional<T: NoUninit>(self, values: Option<&[T]>) -> Self {
        match values {
            Some(values) => self.buffer(values),
            None => self.null(),
        }
    }

    fn argument(mut self, argument: Argument) -> Self {
        self.arguments.push(argument);
        self
    }

    /// Returns the content of each buffer among the arguments before the launch.
    pub(super) fn buffers(&self) -> impl Iterator<Item = &[u8]> {
        self.arguments.iter().filter_map(|argument| match argument {
            Argument::Buffer(bytes) => Some(&bytes[..]),
            Argument::Value(_) | Argument::Null => None,
        })
    }

    /// Appends the launch to the file of launches that `shim/run.h` reads, with the mode of its run.
    fn write(&self, mode: u32, to: &mut Vec<u8>) {
        let Launch { grid, block, shared_bytes } = self.launch;
        to.extend((self.entry.len() as u32).to_le_bytes());
        to.extend(self.entry.as_bytes());
        let sizes = [block, shared_bytes, mode];
        let words = grid.into_iter().chain(sizes).chain([self.arguments.len() as u32]);
        to.extend(words.flat_map(u32::to_le_bytes));
        for (kind, bytes) in self.arguments.iter().map(Argument::coded) {
            to.extend(kind.to_le_bytes());
            to.extend((bytes.len() as u32).to_le_bytes());
            to.extend(bytes);
        }
    }
}

/// Kernel file whose entries the tests launch: with the shim on the host processor, or on the
/// machine's GPU where `REDLINE_REQUIRE_GPU` is 1.
#[derive(Debug)]
pub(super) enum Program {
    /// Program for the host processor, a temporary folder for its input and output, and the number
    /// of launches that it has run.
    Shim { path: PathBuf, dir: TempDir, launches: AtomicUsize },
    /// Kernels that are loaded on a GPU.
    Gpu(LoadedKernels),
}

impl Program {
    /// Compiles `kernels/NAME.cu`. Returns `None` and prints a message where no compiler is
    /// installed.
    pub(super) fn compile(name: &str) -> Option<Self> {
        if fixtures::is_gpu_required() {
            return Some(Self::Gpu(LoadedKernels::open(name)));
        }
        Self::compile_source(&home().join("kernels").join(name).with_extension("cu"))
    }

    /// Compiles `src/tests/NAME.cu` to a program: kernels that only tests use. Returns `None` and
    /// prints a message where no compiler is installed, and where a GPU is required, which does not
    /// have these kernels.
    pub(super) fn compile_test(name: &str) -> Option<Self> {
        if fixtures::is_gpu_required() {
            return None;
        }
        Self::compile_source(&home().join("src/tests").join(name).with_extension("cu"))
    }

    /// Compiles a file of kernels, whose `//@ ` lines name the entries.
    pub(super) fn compile_source(source: &Path) -> Option<Self> {
        let text = fs::read_to_string(source).unwrap();
        let heads = text.lines().filter_map(|line| line.strip_prefix("//@ ")?.split_once(": "));
        let entries: Vec<String> =
            heads.map(|(name, _)| format!("{{\"{name}\", shim::entry({name})}}")).collect();
        let main = format!(
            "#include \"run.h\"\n\
             int main(int argc, char** argv) {{ return shim::run(argc, argv, {{{}}}); }}\n",
            entries.join(", ")
        );
        let is_asynchronous = text.lines().any(|line| {
            line.starts_with("#include") && (line.contains("bulk") || line.contains("warpgroup"))
        });
        let flags = if is_asynchronous { watching() } else { COMPILE.to_owned() };
        let path = compiled(source, &main, &flags)?;
        Some(Self::Shim { path, dir: TempDir::new().unwrap(), launches: AtomicUsize::new(0) })
    }

    /// Runs the launches one after another and returns the content of each launch's buffers; panics
    /// if a launch fails, or if its results depend on the order of threads or differ between two
    /// runs.
    pub(super) fn run(&self, calls: &[Call]) -> Vec<Vec<Vec<u8>>> {
        let (dir, launches) = match self {
            Self::Gpu(kernels) => return kernels.run(calls),
            Self::Shim { dir, launches, .. } => (dir, launches),
        };
        let done = self.attempt(calls, || mode(launches.fetch_add(1, Ordering::Relaxed)));
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let results = fs::read(dir.path().join("results")).unwrap();
        let mut rest = &results[..];
        let mut take = |before: &[u8]| {
            let (buffer, behind) = rest.split_at(before.len());
            rest = behind;
            buffer.to_vec()
        };
        let answers = calls.iter().map(|call| call.buffers().map(&mut take).collect()).collect();
        assert!(rest.is_empty(), "the results are those of the calls");
        answers
    }

    /// Runs the launches with the shim, each in the next of the modes, and returns the output of the
    /// program, whether it succeeds or fails.
    pub(super) fn attempt(&self, calls: &[Call], modes: impl Fn() -> u32) -> Output {
        let Self::Shim { path, dir, .. } = self else { panic!("a GPU has no such output") };
        let file = |name: &str| dir.path().join(name);
        let mut bytes = (calls.len() as u32).to_le_bytes().to_vec();
        for call in calls {
            call.write(modes(), &mut bytes);
        }
        fs::write(file("launches"), bytes).unwrap();
        Command::new(path).args([file("launches"), file("results")]).output().unwrap()
    }
}

/// Returns the mode of a program's launch number `launch` as `shim/run.h` reads it: one of the four
/// combinations of an order of threads and a time of copies, in turn. The first two launches, which
/// have all four between them, and every fourth one run twice: emulation takes minutes of a
/// processor, and a launch that runs once is still compared with the reference.
pub(super) fn mode(launch: usize) -> u32 {
    let is_repeated = launch < 2 || launch.is_multiple_of(4);
    let [is_reversed, are_copies_early] = [launch / 2 % 2, (launch + launch / 2) % 2];
    (is_reversed + 2 * are_copies_early) as u32 + 4 * u32::from(is_repeated)
}

/// Name of the file (without its ending) of kernels with one fault each, by which the shim's checks
/// are tested.
const FAULTS: &str = "faults";

/// Checks that the shim reports `finding` for the kernel `entry`, with both orders of threads and
/// both times of copies.
fn check_found(program: &Program, entry: &str, launch: Launch, x: &[f32], finding: &str) {
    let (call, launches) = (Call::new(entry, launch).buffer(x), AtomicUsize::new(0));
    let next = || mode(launches.fetch_add(1, Ordering::Relaxed));
    let done = program.attempt(&[call.clone(), call], next);
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(!done.status.success() && said.contains(finding), "{entry}: {said}");
}

#[test]
fn faults_of_kernels_are_found() {
    let Some(program) = Program::compile_test(FAULTS) else { return };
    let launch = Launch { grid: [1, 1, 1], block: 64, shared_bytes: 64 };
    let x = [1.0f32; 64];
    for (entry, finding) in [
        ("copies_that_nobody_awaits", "a thread ends before its copies do"),
        ("bytes_that_nobody_awaits", "a block ends before its bytes arrive"),
        ("bytes_that_nobody_copies", "threads wait for ever at await_bytes"),
        ("half_a_warp", "threads wait for ever at __shfl_xor_sync"),
        ("lanes_apart", "lanes of one warp are apart"),
        ("half_a_block", "threads wait for ever at __syncthreads"),
        ("no_barrier", "results depend on the order of threads"),
        ("behind_the_buffer", "heap-buffer-overflow"),
        ("behind_the_shared_memory", "heap-buffer-overflow"),
        ("half_a_vector", "misaligned address"),
        ("rows_in_one_bank", "rows of one matrix share banks"),
    ] {
        check_found(&program, entry, launch, &x, finding);
    }
    let sums = program.run(&[Call::new("sound", launch).buffer(&x)]).remove(0).remove(0);
    assert_eq!(bytemuck::pod_read_unaligned::<f32>(&sums[..4]), 64.0);
}

#[test]
fn faults_of_asynchronous_instructions_are_found() {
    let Some(program) = Program::compile_test(FAULTS) else { return };
    let launch = Launch { grid: [1, 1, 1], block: 128, shared_bytes: 4096 };
    let x: Vec<f32> = (0..2048u16).map(f32::from).collect();
    let differs = "results depend on the order of threads or the time of copies";
    for (entry, finding) in [
        ("bulk_copy_over_unpublished_writes", "a bulk copy of memory that a thread wrote"),
        ("unpublished_arrivals", "an arrival barrier is used before it was published"),
        ("sums_are_read_before_the_wait", differs),
        ("sums_are_written_before_the_wait", "sums are written before they are awaited"),
        ("registers_change_before_the_wait", "registers change before the multiplication"),
        ("multiplication_without_begin", "a multiplication without begin_wgmma"),
        ("multiplication_without_close", "multiplications of no closed group"),
        ("multiplication_without_wait", "a block ends before its multiplications do"),
        ("unpublished_operand", "a multiplication of memory that a thread wrote"),
        ("operand_published_before_its_copy", "a multiplication of memory that a thread wrote"),
        ("operand_published_without_a_barrier", "published after the last barrier"),
    ] {
        check_found(&program, entry, launch, &x, finding);
    }
    let call = Call::new("sound_multiplication", launch).buffer(&x);
    for buffers in program.run(&[call.clone(), call]) {
        let sums = [0, 512].map(|i| bytemuck::pod_read_unaligned::<f32>(&buffers[0][4 * i..][..4]));
        assert_eq!(sums, [32.0, 16.0]);
    }
}

/// Each of these faults is found by its name whatever the order of threads, and whether copies and
/// multiplications are performed early or late: no result has to differ.
#[test]
fn accesses_before_a_wait_are_found_in_every_order() {
    let Some(program) = Program::compile_test(FAULTS) else { return };
    let launch = Launch { grid: [1, 1, 1], block: 128, shared_bytes: 4096 };
    let x: Vec<f32> = (0..2048u16).map(f32::from).collect();
    let source = "a source changes before its copy is awaited";
    let (reads, writes) = ("a thread reads bytes of a copy", "a thread writes bytes of a copy");
    let overwrites = "a thread writes an operand of a multiplication";
    // Of two findings, the order of threads decides which access is the second.
    for (entry, findings) in [
        ("source_changes_before_the_wait", &[source][..]),
        ("bulk_source_changes_before_the_wait", &[source]),
        ("copy_before_the_last_read", &[reads]),
        ("copy_before_the_last_reads", &["a copy writes memory that threads have read", reads]),
        ("copies_to_the_same_bytes", &["a copy writes bytes of a copy"]),
        ("copy_is_read_without_a_barrier", &[reads]),
        (
            "bulk_copy_before_the_last_read",
            &["a bulk copy writes memory that threads have read", reads],
        ),
        ("bulk_copy_is_read_before_the_wait", &[reads]),
        ("bulk_copy_is_overwritten_before_the_wait", &[writes]),
        ("operand_changes_before_the_wait", &[overwrites]),
        ("operand_changes_after_one_wait", &[overwrites]),
        ("operand_is_refilled_before_the_wait", &["a copy writes an operand"]),
        ("bulk_copy_over_an_operand", &["a bulk copy writes an operand"]),
        ("operand_before_its_bulk_copy", &["a multiplication reads bytes of a copy"]),
    ] {
        let call = Call::new(entry, launch).buffer(&x);
        for mode in 0..4 {
            let done = program.attempt(std::slice::from_ref(&call), || mode);
            let said = String::from_utf8_lossy(&done.stderr);
            let is_found = findings.iter().any(|finding| said.contains(finding));
            assert!(!done.status.success() && is_found, "{entry}, mode {mode}: {said}");
        }
    }
}
