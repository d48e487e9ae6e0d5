//! Checks of the device's operations on the device itself: each is run twice on poisoned memory,
//! and its results are compared with those of reference kernels (`kernels/reference*.cu`), which
//! compute single elements with plain loops.

mod delta_net;
mod operation;
mod random;
mod reference;
mod sequences;
mod sums;

pub use operation::Operation;

use std::sync::Arc;

use super::Cuda;
use super::driver::{Address, Arguments, Driver, Memory, Pinned};
use super::launch::Launch;
use crate::Result;

/// Value of the bytes of memory that an operation has not written yet. As bf16, f32 and e4m3 they
/// are NaN, which no kernel writes with these bits.
const POISON: u32 = u32::MAX;
/// Largest number of elements of a result that are all compared with the reference; of a larger
/// result the first row, the last row and [`SAMPLED`] elements are.
const ALL_MAX: usize = 16_384;
/// Number of elements, selected at random, of a large result that are compared with the reference.
const SAMPLED: usize = 4096;

/// Element that differs from the reference by more than the tolerance.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Wrong {
    /// Index of the element in the result, counted row by row.
    pub index: usize,
    /// Value that the operation wrote; NaN where it wrote nothing.
    pub got: f32,
    /// Value that the reference kernel computed.
    pub wanted: f32,
}

/// Result of comparing one result of an operation with its reference.
#[derive(Debug, Clone, PartialEq)]
pub struct Check {
    /// Name of the result, such as `out`.
    pub result: &'static str,
    /// Number of elements that were compared with the reference.
    pub compared: usize,
    /// Number of compared elements that differ by more than their tolerance.
    pub wrong: usize,
    /// Wrong element with the lowest index.
    pub first_wrong: Option<Wrong>,
    /// Difference from the reference, of the element whose difference is the largest share of its
    /// tolerance; infinite for an element that is NaN.
    pub largest_error: f32,
    /// Tolerance of that element.
    pub tolerance: f32,
    /// Number of elements of the whole result whose bits differ between two runs, and index of the
    /// first.
    pub unstable: (usize, usize),
    /// Number of elements of the whole result that are not written, or written although they should
    /// not be, and index of the first that is not written.
    pub unwritten: (usize, usize),
}

impl Check {
    /// Returns true if all compared elements are within their tolerance, and the result was fully
    /// written with the same bits in both runs.
    pub fn is_within(&self) -> bool {
        self.wrong == 0 && self.unstable.0 == 0 && self.unwritten.0 == 0
    }

    /// Returns the largest share of its tolerance by which an element differs from the reference.
    pub fn share(&self) -> f32 {
        share(self.largest_error, self.tolerance)
    }
}

fn share(error: f32, tolerance: f32) -> f32 {
    match error / tolerance {
        _ if error == 0.0 => 0.0,
        share if share.is_nan() => f32::INFINITY,
        share => share,
    }
}

/// Element type of a result in device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ResultType {
    Bf16,
    F32,
    E4m3,
    U32,
}

impl ResultType {
    fn bytes(self) -> usize {
        match self {
            Self::Bf16 => 2,
            Self::F32 | Self::U32 => 4,
            Self::E4m3 => 1,
        }
    }

    /// Returns the number by which the kernel `reference_read` knows the type.
    fn number(self) -> usize {
        match self {
            Self::Bf16 => 0,
            Self::F32 => 1,
            Self::E4m3 => 2,
            Self::U32 => 3,
        }
    }
}

/// Memory that an operation writes.
#[derive(Debug, Clone, Copy)]
struct Target {
    result: &'static str,
    at: Address,
    elements: usize,
    result_type: ResultType,
    /// True if the operation reads the memory before it writes it, so that it is not poisoned but
    /// restored before each run.
    is_input: bool,
    /// Number of elements that the operation must leave poisoned; `None` where this is not checked,
    /// because the poison's bits are a valid value.
    untouched: Option<usize>,
}

impl Target {
    /// Memory that is written completely and not read before.
    fn of(result: &'static str, at: Address, elements: usize, result_type: ResultType) -> Self {
        let untouched = (result_type != ResultType::U32).then_some(0);
        Self { result, at, elements, result_type, is_input: false, untouched }
    }

    /// The same memory, as one that the operation reads first.
    fn read_first(self) -> Self {
        Self { is_input: true, untouched: None, ..self }
    }

    fn bytes(&self) -> usize {
        self.elements * self.result_type.bytes()
    }
}

/// Elements of a result as the reference computes them: index, value and tolerance of each.
#[derive(Debug, Default)]
struct Wanted {
    at: Vec<u32>,
    want: Vec<f32>,
    tolerance: Vec<f32>,
}

impl Wanted {
    /// All elements of a result, without tolerance.
    fn exactly(want: Vec<f32>) -> Self {
        let (at, tolerance) = ((0..want.len() as u32).collect(), vec![0.0; want.len()]);
        Self { at, want, tolerance }
    }
}

/// Runs `operation` three times, and compares its results with the reference and with each other.
/// Memory that the operation reads and writes has its first content plus one run afterwards.
///
/// The first run allocates the results. Before each of the others, results are filled with NaN,
/// or restored where the operation reads them. Differences between the two are races; the second
/// one's results are compared with the reference.
///
/// # Errors
/// The device reports an error, such as an access to memory that is not allocated, or does not have
/// enough memory for copies of the results.
pub fn check(cuda: &mut Cuda, mut operation: Operation<'_, Cuda>) -> Result<Vec<Check>> {
    let driver = Arc::clone(&cuda.stream.driver);
    operation.run(cuda)?;
    driver.wait_all()?;
    let targets = operation.targets(cuda);
    let befores: Vec<Option<Memory>> = targets
        .iter()
        .map(|target| target.is_input.then(|| copied(&driver, target)).transpose())
        .collect::<Result<_>>()?;
    let mut run = || {
        for (target, before) in targets.iter().zip(&befores) {
            match before {
                Some(before) => driver.copy(target.at, before.address(), target.bytes())?,
                None => fill(&driver, target.at, target.bytes())?,
            }
        }
        operation.run(cuda)?;
        driver.wait_all()
    };
    run()?;
    let firsts =
        targets.iter().map(|target| copied(&driver, target)).collect::<Result<Vec<_>>>()?;
    run()?;
    let inputs: Vec<Address> = targets
        .iter()
        .zip(&befores)
        .map(|(target, before)| before.as_ref().map_or(target.at, Memory::address))
        .collect();
    let wanted = operation.wanted(cuda, &targets, &inputs)?;
    let each = targets.iter().zip(&firsts).zip(&wanted);
    each.map(|((target, first), wanted)| compare(&driver, target, first, wanted)).collect()
}

/// Copies the content of a target to new memory.
fn copied(driver: &Arc<dyn Driver>, target: &Target) -> Result<Memory> {
    let memory = Memory::new(driver, target.bytes())?;
    driver.copy(memory.address(), target.at, target.bytes())?;
    Ok(memory)
}

/// Fills memory with [`POISON`].
fn fill(driver: &Arc<dyn Driver>, at: Address, bytes: usize) -> Result<()> {
    let words = (bytes / 4) as u64;
    let arguments = Arguments::of([at]).value(words).value(POISON);
    driver.launch("reference_fill", Launch::reference_loop(bytes / 4), &arguments)
}

/// Compares one result with its first run and with the reference.
fn compare(
    driver: &Arc<dyn Driver>,
    target: &Target,
    first: &Memory,
    wanted: &Wanted,
) -> Result<Check> {
    let counts = uploaded(driver, &[0, u32::MAX, 0, u32::MAX])?;
    let arguments = Arguments::of([counts.address(), first.address(), target.at])
        .value(target.elements as u64)
        .value(target.result_type.bytes() as u32);
    driver.launch("reference_compare", Launch::reference_loop(target.elements), &arguments)?;
    let counts: Vec<u32> = downloaded(driver, counts.address(), 4)?;
    let unwritten = target.untouched.map_or(0, |count| (counts[2] as usize).abs_diff(count));
    let got = read(driver, target.at, &wanted.at, target.result_type)?;
    let mut check = Check {
        result: target.result,
        compared: got.len(),
        wrong: 0,
        first_wrong: None,
        largest_error: 0.0,
        tolerance: 0.0,
        unstable: (counts[0] as usize, counts[1] as usize),
        unwritten: (unwritten, counts[3] as usize),
    };
    let elements = wanted.at.iter().zip(&wanted.want).zip(&wanted.tolerance).zip(&got);
    for (((index, wanted), tolerance), got) in elements {
        let error = (got - wanted).abs();
        let error = if error.is_nan() { f32::INFINITY } else { error };
        if share(error, *tolerance) > check.share() {
            (check.largest_error, check.tolerance) = (error, *tolerance);
        }
        // A tolerance of NaN is that of a reference that is NaN, which is wrong too.
        if error > *tolerance || tolerance.is_nan() {
            check.wrong += 1;
            let index = *index as usize;
            if check.first_wrong.is_none_or(|wrong| index < wrong.index) {
                check.first_wrong = Some(Wrong { index, got: *got, wanted: *wanted });
            }
        }
    }
    Ok(check)
}

/// Reads the elements of a result at the indices `at`.
fn read(
    driver: &Arc<dyn Driver>,
    from: Address,
    at: &[u32],
    result_type: ResultType,
) -> Result<Vec<f32>> {
    let (indices, out) = (uploaded(driver, at)?, Memory::new(driver, 4 * at.len())?);
    let arguments = Arguments::of([out.address(), indices.address(), from]);
    let arguments = arguments.sizes([at.len(), result_type.number()]);
    driver.launch("reference_read", Launch::reference(at.len()), &arguments)?;
    downloaded(driver, out.address(), at.len())
}

/// Copies `values` to new device memory, and waits for the copy.
fn uploaded<T: bytemuck::NoUninit>(driver: &Arc<dyn Driver>, values: &[T]) -> Result<Memory> {
    let bytes: &[u8] = bytemuck::cast_slice(values);
    let memory = Memory::new(driver, bytes.len())?;
    let mut host = Pinned::new(driver, bytes.len())?;
    host.bytes_mut().copy_from_slice(bytes);
    host.upload(memory.address(), bytes.len())?;
    driver.wait_all()?;
    Ok(memory)
}

/// Copies `count` values from device memory.
fn downloaded<T: bytemuck::AnyBitPattern>(
    driver: &Arc<dyn Driver>,
    from: Address,
    count: usize,
) -> Result<Vec<T>> {
    let bytes = count * size_of::<T>();
    let mut host = Pinned::new(driver, bytes)?;
    if bytes > 0 {
        host.download(0, from, bytes)?;
    }
    driver.wait_all()?;
    Ok(host.bytes().chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect())
}

/// Returns the indices of the elements of a result `[rows, cols]` that are compared with the
/// reference, in ascending order.
fn sampled(rows: usize, cols: usize) -> Vec<u32> {
    let all = rows * cols;
    if all <= ALL_MAX {
        return (0..all as u32).collect();
    }
    let mut state = 1u64;
    let mut random = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((u128::from(state) * all as u128) >> 64) as u32
    };
    let ends = (0..cols).chain(all - cols..all).map(|index| index as u32);
    let mut at: Vec<u32> = ends.chain((0..SAMPLED).map(|_| random())).collect();
    at.sort_unstable();
    at.dedup();
    at
}
