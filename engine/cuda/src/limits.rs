//! What the GPU reaches when it does nothing else: the limits that kernels are compared with. Knows no
//! model.
//!
//! A limit is what was reached once, so the best of several runs counts and not the median.

use std::path::PathBuf;
use std::sync::Arc;

use super::Cuda;
use super::buffer::Number;
use super::driver::{Arguments, Driver, Memory};
use super::launch::Launch;
use super::launch::product::MatrixType;
use super::products::fill;
use super::stopwatch::Stopwatch;
use super::weights::Matrix;
use engine_core::{Device, DeviceError};

/// Runs of which the best counts.
const SAMPLES: usize = 10;

/// What is done to find the limits.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// Bytes that are read: far beyond any cache, where there is as much memory.
    pub read_bytes: usize,
    /// Rows, columns and depth of a product.
    pub product: usize,
}

impl Sizes {
    /// What `redline bench` takes.
    pub const FULL: Self = Self { read_bytes: 4 << 30, product: 8192 };
}

/// Limits of one GPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Of a kernel that does nothing but read.
    pub read_bytes_per_s: f64,
    /// Of a product of bf16 summed in f32, by whatever was fastest.
    pub bf16_flops_per_s: f64,
}

impl Limits {
    /// Measures them; which way of the product was fastest is kept in `kept`.
    ///
    /// # Errors
    /// The device failed, or has no memory left.
    pub fn measure(
        driver: &Arc<dyn Driver>,
        kept: Option<PathBuf>,
        sizes: Sizes,
    ) -> Result<Self, DeviceError> {
        Ok(Self {
            read_bytes_per_s: read_bytes_per_s(driver, sizes.read_bytes)?,
            bf16_flops_per_s: bf16_flops_per_s(driver, kept, sizes.product)?,
        })
    }
}

fn read_bytes_per_s(driver: &Arc<dyn Driver>, bytes: usize) -> Result<f64, DeviceError> {
    let cuda = Cuda::new(Arc::clone(driver));
    // A GPU that is small or full still has a limit.
    let bytes = bytes.min((driver.memory()?.free / 2) as usize) / 16 * 16;
    let launch = Launch::stream_read(driver.facts().processors);
    let (from, out) = (Memory::new(driver, bytes)?, Memory::new(driver, 4 * launch.warps())?);
    fill(&cuda.stream, from.address(), bytes)?;
    let arguments = Arguments::new().address(out.address()).address(from.address());
    let arguments = arguments.value((bytes / 16) as u64);
    let timing = Stopwatch::new(driver)?
        .time(1, SAMPLES, || driver.launch("stream_read", launch, &arguments))?;
    Ok(bytes as f64 / timing.least_ns * 1e9)
}

fn bf16_flops_per_s(
    driver: &Arc<dyn Driver>,
    kept: Option<PathBuf>,
    size: usize,
) -> Result<f64, DeviceError> {
    let mut cuda = Cuda::new(Arc::clone(driver)).keeping(kept);
    let w = Matrix::random(&mut cuda.staging, &cuda.stream, MatrixType::Bf16, size, size)?;
    let (mut x, mut out) = (cuda.buffer(size)?, cuda.buffer(size)?);
    cuda.resize(&mut x, size)?;
    cuda.resize(&mut out, size)?;
    fill(&cuda.stream, x.bf16(), size * size * Number::Bf16.bytes())?;
    cuda.matmul(&x, &w, &mut out)?;
    cuda.tune()?;
    let timing = Stopwatch::new(driver)?.time(1, SAMPLES, || cuda.matmul(&x, &w, &mut out))?;
    Ok(2.0 * (size as f64).powi(3) / timing.least_ns * 1e9)
}
