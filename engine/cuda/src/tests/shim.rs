//! Test harness: compiles a kernel with the shim to a program for the host processor, under
//! sanitizers, and runs it; or runs it on a GPU (`on_gpu.rs`).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use bytemuck::NoUninit;
use tempfile::TempDir;

use super::on_gpu::LoadedKernels;
use crate::emulated::compiler::{compiled, home};
use crate::launch::Launch;

const COMPILE: &str = "-std=c++17 -O1 -g1 -DSHIM -fsanitize=address,undefined \
                       -fno-sanitize-recover=all -fno-strict-aliasing -ffp-contract=off \
                       -Wall -Wextra -Werror -Wno-unknown-pragmas -Wno-unused-function";

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

    /// Appends the launch to the file of launches that `shim/run.h` reads.
    fn write(&self, to: &mut Vec<u8>) {
        let Launch { grid, block, shared_bytes } = self.launch;
        to.extend((self.entry.len() as u32).to_le_bytes());
        to.extend(self.entry.as_bytes());
        let words = grid.into_iter().chain([block, shared_bytes, self.arguments.len() as u32]);
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
    /// Program for the host processor, and a temporary folder for its input and output.
    Shim { path: PathBuf, dir: TempDir },
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
        let path = compiled(source, &main, COMPILE)?;
        Some(Self::Shim { path, dir: TempDir::new().unwrap() })
    }

    /// Runs the launches one after another and returns the content of each launch's buffers; panics
    /// if a launch fails, or if its results depend on the order of threads or differ between two
    /// runs.
    pub(super) fn run(&self, calls: &[Call]) -> Vec<Vec<Vec<u8>>> {
        let dir = match self {
            Self::Gpu(kernels) => return kernels.run(calls),
            Self::Shim { dir, .. } => dir,
        };
        let done = self.attempt(calls);
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

    /// Runs the launches with the shim and returns the output of the program, whether it succeeds
    /// or fails.
    pub(super) fn attempt(&self, calls: &[Call]) -> Output {
        let Self::Shim { path, dir } = self else { panic!("a GPU has no such output") };
        let file = |name: &str| dir.path().join(name);
        let mut bytes = (calls.len() as u32).to_le_bytes().to_vec();
        calls.iter().for_each(|call| call.write(&mut bytes));
        fs::write(file("launches"), bytes).unwrap();
        Command::new(path).args([file("launches"), file("results")]).output().unwrap()
    }
}

/// Name of the file (without its ending) of kernels with one fault each, by which the shim's checks
/// are tested.
const FAULTS: &str = "faults";

#[test]
fn faults_of_kernels_are_found() {
    let Some(program) = Program::compile_test(FAULTS) else { return };
    let launch = Launch { grid: [1, 1, 1], block: 64, shared_bytes: 64 };
    for (entry, finding) in [
        ("copies_that_nobody_awaits", "a thread ends before its copies do"),
        ("bytes_that_nobody_awaits", "a block ends before its bytes arrive"),
        ("bytes_that_nobody_copies", "threads wait for ever at await_bytes"),
        ("half_a_warp", "threads wait for ever at __shfl_xor_sync"),
        ("lanes_apart", "lanes of one warp are apart"),
        ("half_a_block", "threads wait for ever at __syncthreads"),
        ("no_barrier", "results depend on the order of threads: no_barrier"),
        ("behind_the_buffer", "heap-buffer-overflow"),
        ("behind_the_shared_memory", "heap-buffer-overflow"),
        ("half_a_vector", "misaligned address"),
        ("rows_in_one_bank", "rows of one matrix share banks"),
    ] {
        let call = Call::new(entry, launch).buffer(&[1.0f32; 64]);
        let done = program.attempt(&[call]);
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(!done.status.success() && said.contains(finding), "{entry}: {said}");
    }
    let sound = Call::new("sound", launch).buffer(&[1.0f32; 64]);
    let sums = program.run(&[sound]).remove(0).remove(0);
    assert_eq!(bytemuck::pod_read_unaligned::<f32>(&sums[..4]), 64.0);
}
