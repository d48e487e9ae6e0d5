//! Test harness: compiles a kernel with the shim to a program for the host processor, under
//! sanitizers, and runs it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use bytemuck::NoUninit;
use tempfile::TempDir;

use crate::emulated::compiler::{compiled, home};
use crate::launch::Launch;

const COMPILE: &str = "-std=c++17 -O1 -g1 -DSHIM -fsanitize=address,undefined \
                       -fno-sanitize-recover=all -fno-strict-aliasing -ffp-contract=off \
                       -Wall -Wextra -Werror -Wno-unknown-pragmas -Wno-unused-function";

/// One kernel launch of a test, with its arguments.
#[derive(Debug, Clone)]
pub(super) struct Call {
    bytes: Vec<u8>,
    arguments: Vec<u8>,
    /// Size in bytes of each buffer among the kernel's arguments, whose content is returned.
    buffers: Vec<usize>,
    count: u32,
}

impl Call {
    pub(super) fn new(entry: &str, launch: Launch) -> Self {
        let Launch { grid, block, shared_bytes } = launch;
        let mut bytes = (entry.len() as u32).to_le_bytes().to_vec();
        bytes.extend(entry.as_bytes());
        let words = grid.into_iter().chain([block, shared_bytes]);
        bytes.extend(words.flat_map(u32::to_le_bytes));
        Self { bytes, arguments: Vec::new(), buffers: Vec::new(), count: 0 }
    }

    /// Appends a kernel argument that is passed by value.
    pub(super) fn value<T: NoUninit>(self, value: T) -> Self {
        self.argument(0, bytemuck::bytes_of(&value))
    }

    /// Appends a kernel argument that points to a copy of `values`, whose content is returned after
    /// the launch.
    pub(super) fn buffer<T: NoUninit>(mut self, values: &[T]) -> Self {
        let bytes = bytemuck::cast_slice(values);
        self.buffers.push(bytes.len());
        self.argument(1, bytes)
    }

    /// Appends a null pointer as kernel argument.
    pub(super) fn null(self) -> Self {
        self.argument(2, &[])
    }

    /// Appends a kernel argument that points to a copy of `values`, as [`Call::buffer`] does, or a
    /// null pointer for `None`.
    pub(super) fn optional<T: NoUninit>(self, values: Option<&[T]>) -> Self {
        match values {
            Some(values) => self.buffer(values),
            None => self.null(),
        }
    }

    fn argument(mut self, kind: u32, bytes: &[u8]) -> Self {
        self.arguments.extend(kind.to_le_bytes());
        self.arguments.extend((bytes.len() as u32).to_le_bytes());
        self.arguments.extend(bytes);
        self.count += 1;
        self
    }
}

/// Kernel file that is compiled with the shim to a program for the host processor.
#[derive(Debug)]
pub(super) struct Program {
    path: PathBuf,
    /// Temporary folder for the program's input and output.
    dir: TempDir,
}

impl Program {
    /// Compiles `kernels/NAME.cu` to a program. Returns `None` and prints a message where no
    /// compiler is installed.
    pub(super) fn compile(name: &str) -> Option<Self> {
        Self::compile_source(&home().join("kernels").join(name).with_extension("cu"))
    }

    /// Compiles `src/tests/NAME.cu` to a program: kernels that only tests use. Returns `None` and
    /// prints a message where no compiler is installed.
    pub(super) fn compile_test(name: &str) -> Option<Self> {
        Self::compile_source(&home().join("src/tests").join(name).with_extension("cu"))
    }

    fn compile_source(source: &Path) -> Option<Self> {
        let text = fs::read_to_string(source).unwrap();
        let heads = text.lines().filter_map(|line| line.strip_prefix("//@ ")?.split_once(": "));
        let entries: Vec<String> =
            heads.map(|(name, _)| format!("{{\"{name}\", shim::entry({name})}}")).collect();
        let main = format!(
            "#include \"run.h\"\n\
             int main(int argc, char** argv) {{ return shim::run(argc, argv, {{{}}}); }}\n",
            entries.join(", ")
        );
        Some(Self { path: compiled(source, &main, COMPILE)?, dir: TempDir::new().unwrap() })
    }

    /// Runs the launches one after another in the program and returns the content of each launch's
    /// buffers; panics if the program fails.
    pub(super) fn run(&self, calls: &[Call]) -> Vec<Vec<Vec<u8>>> {
        let done = self.attempt(calls);
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let results = fs::read(self.dir.path().join("results")).unwrap();
        let mut rest = &results[..];
        let mut take = |count: &usize| {
            let (buffer, behind) = rest.split_at(*count);
            rest = behind;
            buffer.to_vec()
        };
        let answers =
            calls.iter().map(|call| call.buffers.iter().map(&mut take).collect()).collect();
        assert!(rest.is_empty(), "the results are those of the calls");
        answers
    }

    /// Runs the launches and returns the output of the program, whether it succeeds or fails.
    fn attempt(&self, calls: &[Call]) -> Output {
        let path = |name: &str| self.dir.path().join(name);
        let mut bytes = (calls.len() as u32).to_le_bytes().to_vec();
        for call in calls {
            bytes.extend(&call.bytes);
            bytes.extend(call.count.to_le_bytes());
            bytes.extend(&call.arguments);
        }
        fs::write(path("launches"), bytes).unwrap();
        let files = [path("launches"), path("results")];
        Command::new(&self.path).args(files).output().unwrap()
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
