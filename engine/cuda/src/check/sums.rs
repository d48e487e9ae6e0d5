//! Sums of reference kernels, and the tolerances that follow from them.
//!
//! The tolerance of an element is the sum of
//! - half a unit of its type: 1/256 of its magnitude in bf16, 1/16 in e4m3 (and 2^-10, for small
//!   numbers), nothing in f32;
//! - 2^-16 of the sum over the magnitudes of its terms, because f32 sums are rounded in another
//!   order than the reference's; for the result of attention 1/128 of it, because softmax weights
//!   are rounded to bf16;
//! - for the gated delta net 1/128 of 1 + its magnitude row by row, and 1/64 in chunks, whose
//!   multiplications round to eleven bits.
//!
//! Softmax weights of a router may differ by 5 * 10^-5 of their magnitude. Operations that copy,
//! sort, select or sample have no tolerance.

use std::sync::Arc;

use super::{Wanted, downloaded, uploaded};
use crate::Result;
use crate::driver::{Arguments, Driver, Memory};

/// Largest relative error of rounding to bf16.
pub(super) const BF16: f32 = 1.0 / 256.0;
/// Error of a sum in f32, as a share of the sum over the magnitudes of its terms.
pub(super) const F32_SUM: f32 = 1.0 / 65_536.0;

/// Device memory of a reference kernel: indices, and for each the result and the sum over the
/// magnitudes of its terms.
pub(super) struct Sums {
    driver: Arc<dyn Driver>,
    at: Memory,
    pub(super) want: Memory,
    pub(super) size: Memory,
    count: usize,
}

impl Sums {
    pub(super) fn new(driver: &Arc<dyn Driver>, at: &[u32]) -> Result<Self> {
        let count = at.len();
        let [want, size] = [Memory::new(driver, 4 * count)?, Memory::new(driver, 4 * count)?];
        Ok(Self { driver: Arc::clone(driver), at: uploaded(driver, at)?, want, size, count })
    }

    /// Returns the first arguments of the kernel.
    pub(super) fn arguments(&self) -> Arguments {
        Arguments::of([self.want.address(), self.size.address(), self.at.address()])
    }

    pub(super) fn wanted(
        self,
        at: Vec<u32>,
        tolerance: impl Fn(f32, f32) -> f32,
    ) -> Result<Wanted> {
        let want: Vec<f32> = downloaded(&self.driver, self.want.address(), self.count)?;
        let size: Vec<f32> = downloaded(&self.driver, self.size.address(), self.count)?;
        let each = want.iter().zip(&size);
        let tolerance = each.map(|(want, size)| tolerance(want.abs(), *size)).collect();
        Ok(Wanted { at, want, tolerance })
    }
}
