//! Tuning of matrix multiplications at start: measures our own kernels and cuBLASLt's algorithms
//! for each shape that a warm-up step used, with the weights themselves, unless an earlier start
//! stored the choice.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Gemm, Rows};
use crate::Result;
use crate::buffer::DType;
use crate::choice::{ALGORITHMS, Choices, Kept, Key, Shape, Way, fastest, row_bucket, row_buckets};
use crate::driver::{Address, Arguments, ColumnMatmul, Memory, WORKSPACE_BYTES, kernels_sha256};
use crate::launch::Launch;
use crate::launch::matmul::MatrixType;
use crate::stopwatch::Stopwatch;
use crate::stream::Stream;
use crate::weights::Matrix;
use engine_core::Rank;

/// Number of timed runs of each GEMM implementation, whose median is compared.
const SAMPLES: usize = 3;
/// Smallest number of rows that the calls of one timed run have together, unless [`CALLS_MAX`]
/// calls have fewer: multiplications of few rows are called often enough to be timed.
const ROWS_PER_RUN: usize = 1024;
/// Largest number of calls of a GEMM implementation in one timed run, and largest number of weight
/// matrices of one shape through which these calls cycle.
const CALLS_MAX: usize = 16;
/// Bytes of free device memory that tuning leaves: without enough memory a measurement can be
/// skipped, but the server must start.
const SPARE_BYTES: u64 = 64 << 20;

/// Shapes of weights of the bf16 multiplications seen so far, for which tuning will measure the
/// implementations.
#[derive(Debug, Default)]
pub struct Seen {
    /// For each shape of weights, the largest number of rows multiplied so far and at most
    /// [`CALLS_MAX`] weight matrices of that shape. Timed runs cycle through several matrices, so
    /// that the weights come from memory and not from the cache, as in a step.
    shapes: BTreeMap<Shape, (usize, Vec<Matrix>)>,
    /// True once tuning has begun: shapes are no longer registered.
    is_over: bool,
}

impl Seen {
    /// Registers the shape of a multiplication by `w`, if cuBLASLt could compute it too.
    pub fn add(&mut self, stream: &Stream, rows: usize, w: &Matrix, result: DType) {
        let is_fixed = self.is_over || rows == 0 || w.matrix_type != MatrixType::Bf16;
        if is_fixed || stream.driver.blas().is_none() {
            return;
        }
        let shape = Shape { n: w.n, k: w.k, result };
        let (most, weights) = self.shapes.entry(shape).or_default();
        *most = rows.max(*most);
        let is_known = |one: &Matrix| one.weights.address() == w.weights.address();
        if weights.len() < CALLS_MAX && !weights.iter().any(is_known) {
            weights.push(w.clone());
        }
    }
}

impl Gemm {
    /// Chooses the GEMM implementation of every shape of bf16 weights multiplied so far, for all
    /// numbers of rows up to the largest seen. Choices that an earlier start stored are taken over;
    /// the others are measured, or left to our own kernels where the operands do not fit into free
    /// memory. Results in f32 keep our own kernels where there are several ranks. Afterwards
    /// nothing is measured any more.
    ///
    /// # Errors
    /// Memory cannot be allocated, or the device reports an error.
    pub fn tune(&mut self, stream: &mut Stream, rank: Rank) -> Result<()> {
        self.seen.is_over = true;
        self.own_scores = rank != Rank::ONLY;
        let seen = std::mem::take(&mut self.seen.shapes);
        let driver = Arc::clone(&stream.driver);
        let Some(blas) = driver.blas() else { return Ok(()) };
        let kept = self.kept.as_ref().map(|folder| {
            let gpu = driver.facts().name.clone();
            let library = blas.version().to_owned();
            Kept::new(folder, Key { gpu, library, kernels: kernels_sha256() })
        });
        let known = kept.as_ref().map_or_else(Choices::default, Kept::read);
        self.choices = known.clone();
        // Needed for measuring; released below if no algorithm is chosen.
        self.workspace = Some(Memory::new(&driver, WORKSPACE_BYTES)?);
        for (shape, (rows, weights)) in seen {
            if self.is_own(shape.result) {
                continue;
            }
            let open = row_buckets(rows).filter(|bucket| known.way(shape, *bucket).is_none());
            let open: Vec<usize> = open.collect();
            if !open.is_empty() {
                self.measure(stream, shape, &weights, &open)?;
            }
        }
        if let Some(kept) = kept.filter(|_| self.choices != known) {
            kept.write(&self.choices);
        }
        if !self.choices.need_library() {
            self.workspace = None;
        }
        Ok(())
    }

    /// Measures all GEMM implementations of one shape and sets the fastest as the choice of each of
    /// `buckets`. Buckets of so many rows that the operands do not fit into free memory are left
    /// without a choice.
    fn measure(
        &mut self,
        stream: &mut Stream,
        shape: Shape,
        weights: &[Matrix],
        buckets: &[usize],
    ) -> Result<()> {
        let driver = Arc::clone(&stream.driver);
        let Some(blas) = driver.blas() else { return Ok(()) };
        let Shape { n, k, result } = shape;
        let bytes = |rows: usize| [rows * k * DType::Bf16.bytes(), rows * n * result.bytes()];
        let free = driver.memory()?.free.saturating_sub(SPARE_BYTES);
        let fits = |rows: &&usize| bytes(**rows).iter().sum::<usize>() as u64 <= free;
        let buckets: Vec<usize> = buckets.iter().filter(fits).copied().collect();
        let Some(most) = buckets.last() else { return Ok(()) };
        let [x_bytes, out_bytes] = bytes(*most);
        let (x, out) = (Memory::new(&driver, x_bytes)?, Memory::new(&driver, out_bytes)?);
        fill(stream, x.address(), x_bytes)?;
        let watch = Stopwatch::new(&driver)?;
        for count in buckets {
            let matmul = ColumnMatmul::of_weights(count, n, k, result);
            let algorithms = blas.algorithms(&matmul, ALGORITHMS)?;
            let rows = Rows { x: x.address(), out: out.address(), count };
            let calls = ROWS_PER_RUN.div_ceil(count).min(CALLS_MAX);
            let way = fastest(&algorithms, |way| {
                let timed = watch.time(calls, SAMPLES, || {
                    let mut weights = weights.iter().cycle().take(calls);
                    weights.try_for_each(|w| self.multiply(stream, rows, w, result, way))
                });
                match timed {
                    Ok(timing) => Ok(Some(timing.median_ns)),
                    // cuBLASLt may report only at execution that an algorithm does not support the
                    // shape.
                    Err(_) if way != Way::Own => Ok(None),
                    Err(error) => Err(error),
                }
            })?;
            self.choices.set(shape, row_bucket(count), way);
        }
        Ok(())
    }
}

/// Fills `bytes` bytes, a multiple of 16, of device memory with random bf16 numbers: the power draw
/// of a GPU, and so its speed, depends a little on the numbers that it multiplies.
pub fn fill(stream: &Stream, to: Address, bytes: usize) -> Result<()> {
    const COLS: usize = 8;
    const SEED: u64 = 1;
    let rows = bytes / (COLS * DType::Bf16.bytes());
    let arguments = Arguments::of([to]).value(SEED).value(0u64).value(COLS as u64);
    let arguments = arguments.value(rows as u64).value(COLS as u32).value(1.0f32);
    stream.launch("random_bf16", Launch::elements(rows, COLS), &arguments)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cuda;
    use crate::buffer::Buffer;
    use crate::driver::{Driver, Pinned};
    use crate::emulated::{Emulated, Script};
    use crate::staging::Staging;
    use engine_core::Device;

    const MEMORY: u64 = 1 << 30;
    /// Row count of a matrix multiplication for which the scripted times make the emulated
    /// library's algorithm 3 the fastest.
    const THIRD: usize = 32;
    /// Row count of a matrix multiplication for which the scripted times make the emulated
    /// library's algorithm 2 the fastest.
    const SECOND: usize = 16;

    /// Scripted times in nanoseconds of an emulated GPU: our kernels take a microsecond, and the
    /// library's algorithms longer, except algorithm 3 for 32 rows and algorithm 2 for 16.
    fn ns(name: &str) -> f64 {
        match name {
            "algorithm 3 of 32 rows" | "algorithm 2 of 16 rows" => 100.0,
            name if name.starts_with("algorithm") => 5000.0,
            _ => 1000.0,
        }
    }

    fn gpu() -> Option<Arc<Emulated>> {
        Emulated::with(MEMORY, Script { algorithms: 4, ns, ..Script::default() })
    }

    /// Test fixture: device on an emulated GPU with one weight matrix, tuned after multiplications
    /// of `rows` rows.
    struct Tuned {
        cuda: Cuda,
        w: Matrix,
    }

    impl Tuned {
        const N: usize = 72;
        const K: usize = 80;

        fn new(gpu: &Arc<Emulated>, rows: usize, kept: Option<&std::path::Path>) -> Self {
            let driver: Arc<dyn Driver> = Arc::clone(gpu) as _;
            let mut cuda = Cuda::new(driver).keeping(kept.map(Into::into));
            let (staging, stream) = (&mut cuda.staging, &cuda.stream);
            let w = Matrix::random(staging, stream, MatrixType::Bf16, Self::N, Self::K).unwrap();
            let mut tuned = Self { cuda, w };
            tuned.multiply(rows, false);
            tuned.multiply(rows, true);
            tuned.cuda.tune().unwrap();
            tuned
        }

        /// Test helper: multiplies `rows` rows of made-up values by the weights and returns the
        /// result, which the device writes in f32 if `is_score`, else in bf16.
        fn multiply(&mut self, rows: usize, is_score: bool) -> Vec<f32> {
            let Self { cuda, w } = self;
            let (mut x, mut out) = (Buffer::new(Self::K), Buffer::new(Self::N));
            let values = (0..rows * Self::K).map(|i| (i % 37) as f32 / 16.0 - 1.0);
            cuda.write(&mut x, &values.collect::<Vec<f32>>()).unwrap();
            cuda.resize(&mut out, rows).unwrap();
            let done =
                if is_score { cuda.scores(&x, w, &mut out) } else { cuda.matmul(&x, w, &mut out) };
            done.unwrap();
            cuda.read(&mut out).unwrap().to_vec()
        }
    }

    #[test]
    fn the_library_computes_what_our_kernels_do() {
        let (Some(gpu), Some(without)) = (gpu(), Emulated::new(MEMORY)) else { return };
        let (mut tuned, mut own) =
            (Tuned::new(&gpu, THIRD, None), Tuned::new(&without, THIRD, None));
        for rows in [SECOND, THIRD - 1, THIRD] {
            for is_score in [false, true] {
                let before = gpu.matmuls(3, rows) + gpu.matmuls(2, rows);
                let (got, want) = (tuned.multiply(rows, is_score), own.multiply(rows, is_score));
                assert_eq!(gpu.matmuls(3, rows) + gpu.matmuls(2, rows), before + 1, "{rows}");
                for (got, want) in got.iter().zip(&want) {
                    let bound = if is_score { 1e-4 } else { 1.0 / 128.0 };
                    assert!((got - want).abs() <= bound * (1.0 + want.abs()), "{got}, {want}");
                }
            }
        }
    }

    #[test]
    fn each_number_of_rows_has_the_way_that_was_fastest_for_its_bucket() {
        let Some(gpu) = gpu() else { return };
        let mut tuned = Tuned::new(&gpu, 33, None);
        let mut matmuls = |rows, number| {
            let before = gpu.matmuls(number, rows);
            tuned.multiply(rows, false);
            gpu.matmuls(number, rows) - before
        };
        assert_eq!(matmuls(THIRD, 3), 1);
        assert_eq!(matmuls(SECOND, 2), 1);
        // Algorithm 2 supports multiples of eight only, so our kernels compute the other numbers of
        // rows of its bucket.
        assert_eq!(matmuls(SECOND - 1, 2), 0);
        assert_eq!(matmuls(THIRD - 1, 3), 1);
        assert_eq!([matmuls(8, 3), matmuls(64, 3), matmuls(65, 3)], [0; 3]);
    }

    #[test]
    fn ranks_that_share_a_model_compute_their_scores_by_our_own_kernels() {
        let Some(gpu) = gpu() else { return };
        let driver: Arc<dyn Driver> = Arc::clone(&gpu) as _;
        let folder = tempfile::TempDir::new().unwrap();
        // A choice stored by a single-rank server must not be used for f32 results here.
        Tuned::new(&gpu, THIRD, Some(folder.path()));
        let mut stream = Stream::new(Arc::clone(&driver));
        let mut staging = Staging::new(driver);
        let (n, k) = (Tuned::N, Tuned::K);
        let w = Matrix::random(&mut staging, &stream, MatrixType::Bf16, n, k).unwrap();
        let mut matmuls = Gemm::keeping(Some(folder.path().into()));
        matmuls.tune(&mut stream, Rank { index: 1, count: 2 }).unwrap();
        let way = |result| matmuls.algorithm(gpu.as_ref(), THIRD, &w, result);
        assert_eq!([way(DType::Bf16).is_some(), way(DType::F32).is_some()], [true, false]);
    }

    #[test]
    fn what_was_measured_once_is_known_at_the_next_start() {
        let Some(gpu) = gpu() else { return };
        let folder = tempfile::TempDir::new().unwrap();
        let mut first = Tuned::new(&gpu, THIRD, Some(folder.path()));
        let measured = gpu.launches();
        let want = first.multiply(THIRD, false);
        let before = (gpu.launches(), gpu.matmuls(4, THIRD));
        let mut second = Tuned::new(&gpu, THIRD, Some(folder.path()));
        assert!(gpu.launches() - before.0 < 8 && measured > 100, "nothing was measured again");
        assert_eq!(gpu.matmuls(4, THIRD), before.1);
        let before = gpu.matmuls(3, THIRD);
        assert_eq!(second.multiply(THIRD, false), want);
        assert_eq!(gpu.matmuls(3, THIRD), before + 1);
        // A larger number of rows is measured and added to the file.
        Tuned::new(&gpu, 2 * THIRD, Some(folder.path()));
        assert!(gpu.matmuls(4, 2 * THIRD) > 0);
        let before = gpu.matmuls(4, 2 * THIRD);
        Tuned::new(&gpu, 2 * THIRD, Some(folder.path()));
        assert_eq!(gpu.matmuls(4, 2 * THIRD), before);
    }

    /// Test helper: checks that every algorithm that the GEMM library of `driver` proposes gives
    /// the result of our own kernels, but for rounding.
    fn check_library(driver: &Arc<dyn Driver>) {
        const N: usize = 136;
        const K: usize = 264;
        let (mut stream, mut staging) =
            (Stream::new(Arc::clone(driver)), Staging::new(Arc::clone(driver)));
        let w = Matrix::random(&mut staging, &stream, MatrixType::Bf16, N, K).unwrap();
        let mut matmuls = Gemm {
            workspace: Some(Memory::new(driver, WORKSPACE_BYTES).unwrap()),
            ..Gemm::default()
        };
        for (count, result) in
            [1, 16, 33, 64].iter().flat_map(|rows| [(*rows, DType::Bf16), (*rows, DType::F32)])
        {
            let bytes = count * N * result.bytes();
            let x = Memory::new(driver, 2 * count * K).unwrap();
            let out = Memory::new(driver, bytes).unwrap();
            fill(&stream, x.address(), x.bytes()).unwrap();
            let rows = Rows { x: x.address(), out: out.address(), count };
            let mut computed = |way| {
                matmuls.multiply(&mut stream, rows, &w, result, way).unwrap();
                let mut host = Pinned::new(driver, bytes).unwrap();
                host.download(0, out.address(), bytes).unwrap();
                driver.wait_all().unwrap();
                let numbers = host.bytes().chunks_exact(result.bytes());
                numbers.map(|number| widen(number, result)).collect::<Vec<f32>>()
            };
            let want = computed(Way::Own);
            let matmul = ColumnMatmul::of_weights(count, N, K, result);
            let algorithms = driver.blas().unwrap().algorithms(&matmul, ALGORITHMS).unwrap();
            assert!(!algorithms.is_empty(), "{matmul:?}");
            let bound = if result == DType::Bf16 { 1.0 / 128.0 } else { 1e-4 };
            for algorithm in algorithms {
                for (got, want) in computed(Way::Library(algorithm)).iter().zip(&want) {
                    let difference = (got - want).abs();
                    assert!(
                        difference <= bound * (1.0 + want.abs()),
                        "{algorithm:?}: {got}, {want}"
                    );
                }
            }
        }
    }

    /// Test helper: returns the bf16 or f32 element that `bytes` has, converted to f32.
    fn widen(bytes: &[u8], number: DType) -> f32 {
        match number {
            DType::Bf16 => half::bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
            DType::F32 => f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
        }
    }

    #[test]
    fn every_algorithm_computes_what_our_kernels_do() {
        let Some(gpu) = gpu() else { return };
        check_library(&(gpu as _));
    }

    /// Comparison of cuBLASLt's algorithms with our own kernels on a real GPU, where the machine
    /// has one.
    mod on_gpu {
        use super::*;
        use crate::driver::Cubins;
        use crate::driver::gpu::Gpu;
        use crate::gpus;

        #[test]
        fn every_algorithm_computes_what_our_kernels_do() {
            if gpus().is_empty() {
                fixtures::skip("a GPU", "run it by `cargo xtask gpu-validation`");
                return;
            }
            let gpu = Gpu::open(0, &Cubins::of_environment(|name| std::env::var(name).ok()));
            let driver: Arc<dyn Driver> = gpu.unwrap_or_else(|error| panic!("{error}"));
            match driver.blas() {
                Some(_) => check_library(&driver),
                None => fixtures::skip("cuBLASLt", "install the CUDA libraries"),
            }
        }
    }

    #[test]
    fn without_a_library_nothing_is_measured_and_no_memory_taken() {
        let Some(gpu) = Emulated::new(MEMORY) else { return };
        let mut tuned = Tuned::new(&gpu, THIRD, None);
        let (free, launches) = (gpu.memory().unwrap().free, gpu.launches());
        assert!(launches < 8, "{launches} launches");
        tuned.cuda.tune().unwrap();
        assert_eq!(gpu.memory().unwrap().free, free);
    }
}
