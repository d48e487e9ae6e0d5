//! Weight matrices on the device: conversion from stored formats, upload, and memory layout.
//!
//! A matrix keeps its stored format where kernels support it: bf16, FP8 (e4m3) with one scale per
//! block of 128 x 128, and MXFP4. Every other format is converted to bf16.

use std::sync::Arc;

use half::bf16;

use super::driver::{Address, Arguments, Driver, Memory};
use super::gemm::fill;
use super::launch::Launch;
use super::launch::matmul::{MatmulPlan, MatrixType};
use super::staging::Staging;
use super::stream::Stream;
use crate::{Result, failed};
use engine_core::{DeviceError, HostMatrix, RandomRows, WeightType};
use engine_weights::format::dequantize;
use engine_weights::random;

/// Number of output columns that kernels process at a time; the number of stored weight rows is
/// padded to a multiple of it.
const ROWS: usize = 8;
/// Number of rows, and of columns, of the block of weights that shares an FP8 scale.
const SCALED: usize = 128;
/// Number of weights in a block of FP8 or of MXFP4 weights in host memory, as [`HostMatrix`] stores
/// them.
const BLOCK: usize = 32;
/// Number of MXFP4 blocks of a row whose scales are neighbors in device memory.
const GROUP: usize = SCALED / BLOCK;
/// Exponent (bias 127) of the largest MXFP4 scale that the kernels support, 2^65.
const MXFP4_SCALE_MAX: u8 = 127 + 65;

/// Part of an allocation of device memory; several parts share one allocation, which is released
/// with the last of them.
#[derive(Debug, Clone)]
pub struct Part {
    memory: Arc<Memory>,
    at: usize,
}

impl Part {
    /// Allocates `bytes` bytes of device memory as one part.
    pub fn new(driver: &Arc<dyn Driver>, bytes: usize) -> Result<Self> {
        Ok(Self { memory: Arc::new(Memory::new(driver, bytes)?), at: 0 })
    }

    /// Returns the device address of the part's first byte.
    pub fn address(&self) -> Address {
        self.memory.address().plus(self.at)
    }

    /// Copies parts of `bytes` bytes each into one new allocation of device memory, one after
    /// another.
    pub fn join(driver: &Arc<dyn Driver>, parts: &[&Self], bytes: usize) -> Result<Vec<Self>> {
        let memory = Arc::new(Memory::new(driver, bytes * parts.len())?);
        let each = parts.iter().enumerate().map(|(i, part)| {
            let own = Self { memory: Arc::clone(&memory), at: i * bytes };
            if bytes > 0 {
                driver.copy(own.address(), part.address(), bytes)?;
            }
            Ok(own)
        });
        each.collect()
    }
}

/// Weight vector `[N]` in f32 in device memory, such as a norm or a bias.
#[derive(Debug, Clone)]
pub struct Vector {
    pub part: Part,
    pub len: usize,
}

/// Weight matrix `[N, K]` in device memory.
#[derive(Debug, Clone)]
pub struct Matrix {
    /// Storage format of the matrix's weights.
    pub matrix_type: MatrixType,
    /// Number N of the matrix's output columns, padding included.
    pub n: usize,
    /// Number of zero rows at the end of the weights, added because kernels process eight output
    /// columns at a time.
    pub padding: usize,
    /// Length K of the contraction, which is the number of weights in a row of the matrix.
    pub k: usize,
    pub weights: Part,
    /// Scales of the weights: f32 for FP8, exponents of one byte (bias 127) for MXFP4, empty for
    /// bf16.
    pub scales: Part,
    /// Launch of our own kernel that multiplies few rows with this matrix.
    pub plan: MatmulPlan,
}

impl Matrix {
    /// Creates a matrix of random weights with scales of 1, for measurements that need no trained
    /// weights.
    ///
    /// # Errors
    /// Memory cannot be allocated, or the device reports an error.
    pub(super) fn random(
        staging: &mut Staging,
        stream: &Stream,
        matrix_type: MatrixType,
        n: usize,
        k: usize,
    ) -> Result<Self> {
        let driver = &stream.driver;
        let random = Self::room(driver, matrix_type, n, k)?;
        let (weight_bytes, scale_bytes) = random.bytes();
        // Random bf16 bytes are also valid random FP8 and MXFP4 values.
        fill(stream, random.weights.address(), weight_bytes)?;
        let scales = random.scales.address();
        match matrix_type {
            MatrixType::Bf16 => {}
            MatrixType::E4m3 => staging.send_f32(scales, &vec![1.0; scale_bytes / 4])?,
            MatrixType::Mxfp4 => staging.send(scales, scale_bytes, 1, |_, out| out.fill(127))?,
        }
        Ok(random)
    }

    /// Allocates device memory for a weight matrix of `stored` rows and the padding rows behind
    /// them. Only the weights of the padding rows are written, with zeros.
    ///
    /// # Errors
    /// The device does not have enough memory, or reports an error.
    pub fn room(
        driver: &Arc<dyn Driver>,
        matrix_type: MatrixType,
        stored: usize,
        k: usize,
    ) -> Result<Self> {
        let n = stored.next_multiple_of(ROWS);
        let (weight_bytes, scale_bytes) = bytes(matrix_type, n, k);
        let weights = Part::new(driver, weight_bytes)?;
        let scales = Part::new(driver, scale_bytes)?;
        let padding = n - stored;
        if padding > 0 {
            let used = weight_bytes / n * stored;
            driver.zero(weights.address().plus(used), weight_bytes - used)?;
        }
        let plan = MatmulPlan::new(driver.facts().processors, matrix_type, n, k);
        Ok(Self { matrix_type, n, padding, k, weights, scales, plan })
    }

    /// Returns the size in bytes of the matrix's weights, and the size in bytes of their scales.
    pub fn bytes(&self) -> (usize, usize) {
        bytes(self.matrix_type, self.n, self.k)
    }
}

/// Returns the size in bytes of weights `[n, k]` in this format, and the size in bytes of their
/// scales.
pub fn bytes(matrix_type: MatrixType, n: usize, k: usize) -> (usize, usize) {
    match matrix_type {
        MatrixType::Bf16 => (2 * n * k, 0),
        MatrixType::E4m3 => (n * k, size_of::<f32>() * n.div_ceil(SCALED) * k.div_ceil(SCALED)),
        MatrixType::Mxfp4 => (n * k / 2, k.div_ceil(SCALED) * n * GROUP),
    }
}

/// Rows of several weight matrices in host memory as if they were one, such as query, key and value
/// projections.
struct Rows<'a, 'b>(&'a [HostMatrix<'b>]);

impl<'a> Rows<'a, '_> {
    fn count(&self) -> usize {
        self.0.iter().map(|part| part.n).sum()
    }

    fn k(&self) -> usize {
        self.0.first().map_or(0, |part| part.k)
    }

    fn are_all(&self, weight_type: WeightType) -> bool {
        self.0.iter().all(|part| part.weight_type == weight_type)
    }

    /// Returns row `n` of the combined matrices in its stored format.
    fn row(&self, mut n: usize) -> (WeightType, &'a [u8]) {
        for part in self.0 {
            if n < part.n {
                return (part.weight_type, part.row(n));
            }
            n -= part.n;
        }
        unreachable!("a row of the parts")
    }
}

/// Uploads the rows of several matrices as one matrix `[N, K]`, converted to bf16 if their formats
/// differ or no kernel supports their format.
///
/// # Errors
/// The kernels do not support the shape or the scales, memory cannot be allocated, or the device
/// reports an error.
pub fn matrix(
    staging: &mut Staging,
    driver: &Arc<dyn Driver>,
    parts: &[HostMatrix<'_>],
) -> Result<Matrix> {
    let rows = Rows(parts);
    let (stored, k) = (rows.count(), rows.k());
    let e4m3_scales = rows.e4m3_scales();
    let matrix_type = match e4m3_scales {
        _ if rows.are_all(WeightType::Mxfp4) => MatrixType::Mxfp4,
        Some(_) => MatrixType::E4m3,
        None => MatrixType::Bf16,
    };
    let piece = matrix_type.piece();
    // Padding is not possible in MXFP4: it is used for experts only, and expert results have no
    // separate step that removes padding.
    let is_padded = !stored.is_multiple_of(ROWS) && matrix_type == MatrixType::Mxfp4;
    if !k.is_multiple_of(piece) || is_padded {
        return Err(refused(format!(
            "weights of {stored} x {k} in {matrix_type:?}: the kernels take multiples of {ROWS} and of \
             {piece}"
        )));
    }
    let matrix = Matrix::room(driver, matrix_type, stored, k)?;
    let (to, scales) = (matrix.weights.address(), &matrix.scales);
    match (matrix_type, &e4m3_scales) {
        (MatrixType::Mxfp4, _) => send_mxfp4(staging, &rows, to, scales.address())?,
        (MatrixType::E4m3, Some(values)) => {
            staging.send_f32(scales.address(), values)?;
            staging.send(to, stored, k, |row, out| {
                let blocks = rows.row(row).1.chunks_exact(WeightType::F8E4M3.block_bytes());
                for (block, out) in blocks.zip(out.chunks_exact_mut(BLOCK)) {
                    out.copy_from_slice(&block[size_of::<f32>()..]);
                }
            })?;
        }
        _ => send_bf16(staging, &rows, to)?,
    }
    Ok(matrix)
}

/// Generates a matrix of random weights on the device, with the same bits as the host generates and
/// [`matrix`] uploads. Returns `None` where there is no kernel for the type, or the sizes are not
/// multiples of what its kernel generates or writes at a time, so that the host must generate the
/// matrix.
///
/// # Errors
/// Memory cannot be allocated, or the device reports an error.
pub fn random_matrix(
    stream: &Stream,
    weight_type: WeightType,
    parts: &[RandomRows],
    k: usize,
) -> Result<Option<Matrix>> {
    let stored: usize = parts.iter().map(|part| part.n).sum();
    // `unit` is the number of weights that the kernel generates from whole words of the stream.
    let (matrix_type, unit) = match weight_type {
        WeightType::Bf16 => (MatrixType::Bf16, 4),
        // MXFP4 matrices are not padded; see `matrix`.
        WeightType::Mxfp4 if stored.is_multiple_of(ROWS) => (MatrixType::Mxfp4, BLOCK),
        _ => return Ok(None),
    };
    let is_made =
        |part: &RandomRows| part.stride.is_multiple_of(unit) && part.column.is_multiple_of(unit);
    if !k.is_multiple_of(matrix_type.piece()) || !parts.iter().all(is_made) {
        return Ok(None);
    }
    let matrix = Matrix::room(&stream.driver, matrix_type, stored, k)?;
    let (to, scales) = (matrix.weights.address(), matrix.scales.address());
    let mut done = 0;
    for part in parts {
        for run in runs(part) {
            let first = run.first * part.stride + part.column;
            let stride = run.step * part.stride;
            let to = to.plus(done * bytes(matrix_type, 1, k).0);
            match matrix_type {
                MatrixType::Mxfp4 => {
                    let arguments = Arguments::of([to, scales.plus(done * GROUP)]);
                    let arguments = arguments.value(part.start).value(first as u64);
                    let arguments = arguments.value(stride as u64).sizes([matrix.n, k]);
                    let arguments = arguments.value(u32::from(random::MXFP4_SCALE));
                    let launch = Launch::scalars(run.rows, k.div_ceil(SCALED) * GROUP);
                    stream.launch("random_mxfp4", launch, &arguments)?;
                }
                _ => {
                    let arguments = Arguments::of([to]).value(part.start).value(first as u64);
                    let arguments = arguments.value(stride as u64).value(run.rows as u64);
                    let arguments = arguments.value(k as u32).value(random::BF16_FACTOR);
                    stream.launch("random_bf16", Launch::elements(run.rows, k), &arguments)?;
                }
            }
            done += run.rows;
        }
    }
    Ok(Some(matrix))
}

/// Rows of a random tensor at equal distances, which one launch generates.
struct Run {
    /// Index of the run's first row in the tensor.
    first: usize,
    /// Distance from one row to the next, in rows of the tensor.
    step: usize,
    /// Number of rows of the run.
    rows: usize,
}

/// Returns the rows of the random tensor that `part` loads, in the order of the matrix's output
/// columns, as few runs. Gates and ups that alternate are one run each: a launch for each of their
/// rows would be 4.4 million launches for gpt-oss-20b.
fn runs(part: &RandomRows) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for row in (0..part.n).map(|n| part.row + part.order.stored_row(n)) {
        match runs.last_mut() {
            Some(run) if run.first + run.rows * run.step == row => run.rows += 1,
            // The second row of a run decides its step.
            Some(run) if run.rows == 1 && run.first < row => {
                (run.step, run.rows) = (row - run.first, 2);
            }
            _ => runs.push(Run { first: row, step: 1, rows: 1 }),
        }
    }
    runs
}

/// Returns the error for weights that the kernels do not support.
fn refused(message: String) -> DeviceError {
    failed("matrix", message)
}

impl Rows<'_, '_> {
    /// Returns the scales of the blocks of 128 x 128 weights; `None` unless all rows are FP8 and
    /// each block has a single scale.
    fn e4m3_scales(&self) -> Option<Vec<f32>> {
        if !self.are_all(WeightType::F8E4M3) {
            return None;
        }
        let cols = self.k().div_ceil(SCALED);
        let mut scales = vec![None; self.count().div_ceil(SCALED) * cols];
        for n in 0..self.count() {
            let blocks = self.row(n).1.chunks_exact(WeightType::F8E4M3.block_bytes());
            for (i, block) in blocks.enumerate() {
                let scale: f32 = bytemuck::pod_read_unaligned(&block[..size_of::<f32>()]);
                let known = &mut scales[n / SCALED * cols + i * BLOCK / SCALED];
                // The kernels read one scale per block, so that such a matrix is converted to bf16.
                if known.is_some_and(|known| known != scale) {
                    return None;
                }
                *known = Some(scale);
            }
        }
        scales.into_iter().collect()
    }
}

/// Uploads weight rows to the device address `to` as bf16, dequantized if they are stored in
/// another format.
fn send_bf16(staging: &mut Staging, rows: &Rows<'_, '_>, to: Address) -> Result<()> {
    staging.send(to, rows.count(), 2 * rows.k(), |row, out| match rows.row(row) {
        (WeightType::Bf16, bytes) => out.copy_from_slice(bytes),
        (weight_type, bytes) => {
            let mut values = vec![0.0; rows.k()];
            dequantize(weight_type, bytes, &mut values);
            for (x, out) in values.iter().zip(out.chunks_exact_mut(2)) {
                out.copy_from_slice(&bf16::from_f32(*x).to_le_bytes());
            }
        }
    })
}

/// Bits of each number of four bits in a half of a word of device memory, for the numbers of each
/// pair of a word; `engine/cuda/kernels/weights.cuh` says why.
const MXFP4_HALVES: [[u16; 16]; 4] = {
    let mut halves = [[0; 16]; 4];
    let mut code: u16 = 0;
    while code < 16 {
        let (sign, rest) = (code & 8, code & 7);
        halves[0][code as usize] = sign << 12 | rest << 6;
        halves[1][code as usize] = sign << 9 | rest << 3;
        halves[2][code as usize] = sign << 6 | rest;
        halves[3][code as usize] = (code & 12) << 11 | (code & 3) << 10;
        code += 1;
    }
    halves
};

/// Returns word `q` of the four words of an MXFP4 block in device memory; `code` returns the number of
/// four bits of a column of the block.
fn mxfp4_word(q: usize, code: impl Fn(usize) -> u8) -> u32 {
    let half = |odd: usize| {
        let pairs = MXFP4_HALVES.iter().enumerate();
        pairs.fold(0, |bits, (p, halves)| bits | halves[usize::from(code(8 * p + 2 * q + odd))])
    };
    u32::from(half(0)) | u32::from(half(1)) << 16
}

/// Uploads MXFP4 rows: scales separately from the quantized values, and values in the order in which
/// the kernels convert them.
fn send_mxfp4(
    staging: &mut Staging,
    rows: &Rows<'_, '_>,
    to: Address,
    scales_to: Address,
) -> Result<()> {
    let (n, k) = (rows.count(), rows.k());
    let blocks = |row| rows.row(row).1.chunks_exact(WeightType::Mxfp4.block_bytes());
    if let Some(scale) =
        (0..n).flat_map(blocks).map(|block| block[0]).find(|s| *s > MXFP4_SCALE_MAX)
    {
        return Err(refused(format!(
            "a scale of 2^{} in MXFP4: the kernels take up to 2^65",
            i32::from(scale) - 127
        )));
    }
    // `[K / 128, N, 4]`: the scales of 128 columns of K for all rows, then those of the next 128.
    staging.send(scales_to, k.div_ceil(SCALED) * n, GROUP, |at, out| {
        let scales = blocks(at % n).skip(at / n * GROUP).map(|block| block[0]);
        out.fill(0);
        out.iter_mut().zip(scales).for_each(|(out, scale)| *out = scale);
    })?;
    staging.send(to, n, k / 2, |row, out| {
        for (block, out) in blocks(row).zip(out.chunks_exact_mut(BLOCK / 2)) {
            // Byte i of a stored block holds weights i and i + 16.
            let code = |i: usize| block[1 + i % 16] >> (i / 16 * 4) & 15;
            for (q, out) in out.chunks_exact_mut(4).enumerate() {
                out.copy_from_slice(&mxfp4_word(q, code).to_le_bytes());
            }
        }
    })
}

/// Copies the weight matrices of a layer's experts into one allocation, one after another.
///
/// # Errors
/// The matrices differ in shape or format, or their number of output columns is not a multiple of
/// eight, or the device does not have enough memory or reports an error.
pub fn stack(driver: &Arc<dyn Driver>, experts: Vec<Matrix>) -> Result<Vec<Matrix>> {
    let Some(first) = experts.first() else { return Ok(experts) };
    if first.padding > 0 {
        let columns = first.n - first.padding;
        return Err(refused(format!(
            "experts of {columns} columns: the kernels take multiples of {ROWS}"
        )));
    }
    let kind = |matrix: &Matrix| (matrix.matrix_type, matrix.n, matrix.k);
    if let Some(other) = experts.iter().find(|matrix| kind(matrix) != kind(first)) {
        return Err(refused(format!("experts of {:?} and of {:?}", kind(first), kind(other))));
    }
    let (weight_bytes, scale_bytes) = first.bytes();
    let parts = |of: fn(&Matrix) -> &Part| experts.iter().map(of).collect::<Vec<_>>();
    let weights = Part::join(driver, &parts(|matrix| &matrix.weights), weight_bytes)?;
    let scales = Part::join(driver, &parts(|matrix| &matrix.scales), scale_bytes)?;
    let joined = experts.iter().zip(weights.into_iter().zip(scales));
    Ok(joined
        .map(|(matrix, (weights, scales))| Matrix { weights, scales, ..matrix.clone() })
        .collect())
}

/// Copies the biases of a layer's experts into one allocation, one after another.
///
/// # Errors
/// Memory cannot be allocated, or the device reports an error.
///
/// # Panics
/// The biases differ in length.
pub fn stack_vectors(driver: &Arc<dyn Driver>, vectors: &[Vector]) -> Result<Vec<Vector>> {
    let Some(len) = vectors.first().map(|vector| vector.len) else { return Ok(Vec::new()) };
    assert!(vectors.iter().all(|vector| vector.len == len), "experts are alike");
    let parts: Vec<&Part> = vectors.iter().map(|vector| &vector.part).collect();
    let joined = Part::join(driver, &parts, size_of::<f32>() * len)?;
    Ok(joined.into_iter().map(|part| Vector { part, len }).collect())
}
