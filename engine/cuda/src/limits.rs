//! Hardware limits of a GPU, measured: memory bandwidth and bf16 throughput, with which kernels are
//! compared (roofline). Knows no model.
//!
//! A limit is the best rate that was reached, so the fastest of several runs is taken, not the
//! median.

use std::path::PathBuf;
use std::sync::Arc;

use super::Cuda;
use super::buffer::DType;
use super::driver::{Arguments, Driver, Memory};
use super::gemm::fill;
use super::launch::Launch;
use super::launch::matmul::MatrixType;
use super::stopwatch::Stopwatch;
use super::weights::Matrix;
use crate::Result;
use engine_core::Device;

/// Number of timed runs with which a hardware limit is measured; the fastest is taken.
const SAMPLES: usize = 10;

/// Problem sizes with which a GPU's hardware limits are measured.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// Number of bytes to read to measure the memory bandwidth, far larger than any cache; at most
    /// half of the free memory is read.
    pub read_bytes: usize,
    /// Number of rows, of columns and of elements of the contraction of the square matrix
    /// multiplication with which bf16 throughput is measured.
    pub matmul: usize,
}

impl Sizes {
    /// Sizes with which `redline bench` measures a GPU's limits.
    pub const FULL: Self = Self { read_bytes: 4 << 30, matmul: 8192 };
}

/// Measured hardware limits of one GPU: memory bandwidth and bf16 throughput.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Memory bandwidth in bytes per second, of a kernel that only reads.
    pub read_bytes_per_s: f64,
    /// Floating-point operations per second of a bf16 matrix multiplication with f32 accumulation,
    /// by the fastest implementation.
    pub bf16_flops_per_s: f64,
}

impl Limits {
    /// Measures memory bandwidth and bf16 throughput of a GPU. The choice of GEMM implementation is
    /// read from the folder `kept`, or measured and stored there; with `None` it is measured and
    /// not stored.
    ///
    /// # Errors
    /// Memory cannot be allocated, or the device reports an error.
    pub fn measure(driver: &Arc<dyn Driver>, kept: Option<PathBuf>, sizes: Sizes) -> Result<Self> {
        Ok(Self {
            read_bytes_per_s: read_bytes_per_s(driver, sizes.read_bytes)?,
            bf16_flops_per_s: bf16_flops_per_s(driver, kept, sizes.matmul)?,
        })
    }
}

/// Measures the memory bandwidth, in bytes per second, of reading `bytes` bytes, or half of the
/// free memory if that is less.
fn read_bytes_per_s(driver: &Arc<dyn Driver>, bytes: usize) -> Result<f64> {
    let cuda = Cuda::new(Arc::clone(driver));
    // A GPU that is small or full has a limit too, so at most half of the free memory is read.
    let bytes = bytes.min((driver.memory()?.free / 2) as usize) / 16 * 16;
    let launch = Launch::stream_read(driver.facts().processors);
    let (from, out) = (Memory::new(driver, bytes)?, Memory::new(driver, 4 * launch.warps())?);
    fill(&cuda.stream, from.address(), bytes)?;
    let arguments = Arguments::of([out.address(), from.address()]).value((bytes / 16) as u64);
    let timing = Stopwatch::new(driver)?
        .time(1, SAMPLES, || driver.launch("stream_read", launch, &arguments))?;
    Ok(bytes as f64 / timing.least_ns * 1e9)
}

/// Measures the throughput of a square bf16 matrix multiplication of `size` rows, in floating-point
/// operations per second.
fn bf16_flops_per_s(driver: &Arc<dyn Driver>, kept: Option<PathBuf>, size: usize) -> Result<f64> {
    let mut cuda = Cuda::new(Arc::clone(driver)).keeping(kept);
    let w = Matrix::random(&mut cuda.staging, &cuda.stream, MatrixType::Bf16, size, size)?;
    let (mut x, mut out) = (cuda.buffer(size)?, cuda.buffer(size)?);
    cuda.resize(&mut x, size)?;
    cuda.resize(&mut out, size)?;
    fill(&cuda.stream, x.bf16(), size * size * DType::Bf16.bytes())?;
    // The first call registers the shape, so that `tune` measures the implementations for it.
    cuda.matmul(&x, &w, &mut out)?;
    cuda.tune()?;
    let timing = Stopwatch::new(driver)?.time(1, SAMPLES, || cuda.matmul(&x, &w, &mut out))?;
    Ok(2.0 * (size as f64).powi(3) / timing.least_ns * 1e9)
}
