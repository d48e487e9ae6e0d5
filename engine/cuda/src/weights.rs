//! Weights on their way to the device, and where they lie there.
//!
//! Matrices keep the type in which they are stored where kernels multiply it: bf16, e4m3 where each
//! block of 128 x 128 has one scale, MXFP4. All others become bf16.

use std::sync::Arc;

use half::bf16;

use super::driver::{Address, Arguments, Driver, Memory};
use super::launch::Launch;
use super::launch::product::{MatmulPlan, MatrixType};
use super::products::fill;
use super::staging::Staging;
use super::stream::Stream;
use engine_core::{DeviceError, HostMatrix, RandomRows, WeightType};
use engine_weights::format::dequantize;
use engine_weights::random;

/// Rows, output columns, that kernels take at a time.
const ROWS: usize = 8;
/// Rows and columns that share a scale of e4m3.
const SCALED: usize = 128;
/// Weights of a block as [`HostMatrix`] has them, of e4m3 and of MXFP4.
const BLOCK: usize = 32;
/// Exponent of the largest scale of MXFP4 that kernels compute with: 2^65, bias 127.
const MXFP4_SCALE_MAX: u8 = 127 + 65;

/// A part of memory that several may share.
#[derive(Debug, Clone)]
pub struct Part {
    memory: Arc<Memory>,
    at: usize,
}

impl Part {
    pub fn new(driver: &Arc<dyn Driver>, bytes: usize) -> Result<Self, DeviceError> {
        Ok(Self { memory: Arc::new(Memory::new(driver, bytes)?), at: 0 })
    }

    pub fn address(&self) -> Address {
        self.memory.address().plus(self.at)
    }

    /// `parts` of `bytes` bytes each, one behind another in memory of their own.
    pub fn join(
        driver: &Arc<dyn Driver>,
        parts: &[&Self],
        bytes: usize,
    ) -> Result<Vec<Self>, DeviceError> {
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

/// Weights `[N]` in f32.
#[derive(Debug, Clone)]
pub struct Vector {
    pub part: Part,
    pub len: usize,
}

/// Weights `[N, K]`.
#[derive(Debug, Clone)]
pub struct Matrix {
    pub matrix_type: MatrixType,
    pub n: usize,
    /// How many of the last rows were added, zeros, as kernels take columns by eight.
    pub padding: usize,
    pub k: usize,
    pub weights: Part,
    /// f32 of e4m3, bytes of MXFP4, nothing of bf16.
    pub scales: Part,
    /// How few rows are multiplied by it.
    pub plan: MatmulPlan,
}

impl Matrix {
    /// Weights that nobody trained, for what is timed: random ones, and scales near 1.
    ///
    /// # Errors
    /// The device is full.
    pub(super) fn random(
        staging: &mut Staging,
        stream: &Stream,
        matrix_type: MatrixType,
        n: usize,
        k: usize,
    ) -> Result<Self, DeviceError> {
        let driver = stream.driver();
        let random = Self::room(driver, matrix_type, n, k)?;
        let (weight_bytes, scale_bytes) = random.bytes();
        // Bytes of random bf16 are codes of fewer bits, too.
        fill(stream, random.weights.address(), weight_bytes)?;
        let scales = random.scales.address();
        match matrix_type {
            MatrixType::Bf16 => {}
            MatrixType::E4m3 => staging.send_f32(scales, &vec![1.0; scale_bytes / 4])?,
            MatrixType::Mxfp4 => staging.send(scales, n, k / BLOCK, |_, out| out.fill(127))?,
        }
        Ok(random)
    }

    /// Room for `stored` rows, with padding as kernels want it.
    fn room(
        driver: &Arc<dyn Driver>,
        matrix_type: MatrixType,
        stored: usize,
        k: usize,
    ) -> Result<Self, DeviceError> {
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

    /// Bytes of the weights, and of their scales.
    pub fn bytes(&self) -> (usize, usize) {
        bytes(self.matrix_type, self.n, self.k)
    }
}

/// Bytes of weights `[n, k]`, and of their scales.
pub fn bytes(matrix_type: MatrixType, n: usize, k: usize) -> (usize, usize) {
    match matrix_type {
        MatrixType::Bf16 => (2 * n * k, 0),
        MatrixType::E4m3 => (n * k, size_of::<f32>() * n.div_ceil(SCALED) * k.div_ceil(SCALED)),
        MatrixType::Mxfp4 => (n * k / 2, n * k / BLOCK),
    }
}

/// Stored rows under one another.
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

    /// Row `n` of all parts, and its type.
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

/// Puts the matrices in `parts` under one another on the device.
///
/// # Errors
/// The kernels do not take its shape or its scales, or the device is full.
pub fn matrix(
    staging: &mut Staging,
    driver: &Arc<dyn Driver>,
    parts: &[HostMatrix<'_>],
) -> Result<Matrix, DeviceError> {
    let rows = Rows(parts);
    let (stored, k) = (rows.count(), rows.k());
    let e4m3_scales = rows.e4m3_scales();
    let matrix_type = match e4m3_scales {
        _ if rows.are_all(WeightType::Mxfp4) => MatrixType::Mxfp4,
        Some(_) => MatrixType::E4m3,
        None => MatrixType::Bf16,
    };
    let piece = matrix_type.piece();
    // Experts are multiplied by without a place to leave padding.
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

/// Rows of random bf16 under one another, made on the device; none where the kernel makes no such
/// rows.
///
/// # Errors
/// The device is full, or failed.
pub fn random_matrix(
    stream: &Stream,
    parts: &[RandomRows],
    k: usize,
) -> Result<Option<Matrix>, DeviceError> {
    // Four numbers of a stream are made at a time, and eight are written.
    let is_made =
        |part: &RandomRows| part.stride.is_multiple_of(4) && part.column.is_multiple_of(4);
    if !k.is_multiple_of(MatrixType::Bf16.piece()) || !parts.iter().all(is_made) {
        return Ok(None);
    }
    let stored = parts.iter().map(|part| part.n).sum();
    let matrix = Matrix::room(stream.driver(), MatrixType::Bf16, stored, k)?;
    let mut to = matrix.weights.address();
    for part in parts {
        for (row, rows) in runs(part) {
            let first = row * part.stride + part.column;
            let arguments = Arguments::new().address(to).value(part.start).value(first as u64);
            let arguments = arguments.value(part.stride as u64).value(rows as u64);
            let arguments = arguments.value(k as u32).value(random::BF16_FACTOR);
            stream.launch("random_bf16", Launch::elements(rows, k), &arguments)?;
            to = to.plus(2 * rows * k);
        }
    }
    Ok(Some(matrix))
}

/// The stored rows of `part`, in their order: where neighbors begin, and how many there are.
fn runs(part: &RandomRows) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for row in (0..part.n).map(|n| part.row + part.order.stored_row(n)) {
        match runs.last_mut() {
            Some((first, rows)) if *first + *rows == row => *rows += 1,
            _ => runs.push((row, 1)),
        }
    }
    runs
}

fn refused(message: String) -> DeviceError {
    DeviceError { operation: "matrix", message }
}

impl Rows<'_, '_> {
    /// The scales of blocks of 128 x 128, where all rows are e4m3 and each block has one.
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
                if known.is_some_and(|known| known != scale) {
                    return None;
                }
                *known = Some(scale);
            }
        }
        scales.into_iter().collect()
    }
}

fn send_bf16(staging: &mut Staging, rows: &Rows<'_, '_>, to: Address) -> Result<(), DeviceError> {
    let mut values = vec![0.0; rows.k()];
    staging.send(to, rows.count(), 2 * rows.k(), |row, out| match rows.row(row) {
        (WeightType::Bf16, bytes) => out.copy_from_slice(bytes),
        (weight_type, bytes) => {
            dequantize(weight_type, bytes, &mut values);
            for (x, out) in values.iter().zip(out.chunks_exact_mut(2)) {
                out.copy_from_slice(&bf16::from_f32(*x).to_le_bytes());
            }
        }
    })
}

/// Codes as kernels have them, two neighbors in a byte, and the scales by themselves.
fn send_mxfp4(
    staging: &mut Staging,
    rows: &Rows<'_, '_>,
    to: Address,
    scales_to: Address,
) -> Result<(), DeviceError> {
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
    staging.send(scales_to, n, k / BLOCK, |row, out| {
        blocks(row).zip(out).for_each(|(block, out)| *out = block[0]);
    })?;
    staging.send(to, n, k / 2, |row, out| {
        for (block, out) in blocks(row).zip(out.chunks_exact_mut(BLOCK / 2)) {
            // Byte i of a stored block holds weights i and i + 16.
            let code = |i: usize| block[1 + i % 16] >> (i / 16 * 4) & 15;
            for (i, out) in out.iter_mut().enumerate() {
                *out = code(2 * i) | code(2 * i + 1) << 4;
            }
        }
    })
}

/// The matrices of a layer's experts one behind another.
///
/// # Errors
/// They are not of one shape and type, or the device is full.
pub fn stack(driver: &Arc<dyn Driver>, experts: Vec<Matrix>) -> Result<Vec<Matrix>, DeviceError> {
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

/// The biases of a layer's experts one behind another.
///
/// # Errors
/// They are not of one length, or the device is full.
pub fn stack_vectors(
    driver: &Arc<dyn Driver>,
    vectors: &[Vector],
) -> Result<Vec<Vector>, DeviceError> {
    let Some(len) = vectors.first().map(|vector| vector.len) else { return Ok(Vec::new()) };
    assert!(vectors.iter().all(|vector| vector.len == len), "experts are alike");
    let parts: Vec<&Part> = vectors.iter().map(|vector| &vector.part).collect();
    let joined = Part::join(driver, &parts, size_of::<f32>() * len)?;
    Ok(joined.into_iter().map(|part| Vector { part, len }).collect())
}
