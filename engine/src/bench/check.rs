//! Result of checking a kernel case, as `redline bench --kernels --check` prints it.

use std::fmt;

use engine_cuda::check::{Check, Wrong};
use serde::Serialize;

/// Result of comparing a kernel case with its reference: the object `check` of a kernel in the JSON
/// document.
#[derive(Debug, Serialize)]
pub(super) struct CaseCheck {
    /// True if all results are within tolerance, fully written, and the same in two runs.
    pub is_within: bool,
    /// Largest difference from the reference; null if an element is NaN.
    largest_error: f32,
    /// Tolerance of the element that comes closest to it, or exceeds it the most.
    tolerance: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_wrong: Option<FirstWrong>,
    /// Results of the operation, of which the numbers above are those of the worst.
    #[serde(skip)]
    results: Vec<Check>,
}

/// First element that differs from the reference by more than its tolerance.
#[derive(Debug, Serialize)]
struct FirstWrong {
    result: &'static str,
    index: usize,
    got: f32,
    wanted: f32,
}

impl CaseCheck {
    /// Summarizes the results of one operation; `None` where nothing was checked.
    pub(super) fn of(results: Vec<Check>) -> Option<Self> {
        let share = |check: &Check| match check.largest_error {
            0.0 => 0.0,
            error => error / check.tolerance,
        };
        let worst = results.iter().max_by(|a, b| share(a).total_cmp(&share(b)))?;
        let (largest_error, tolerance) = (worst.largest_error, worst.tolerance);
        let first_wrong = results.iter().find_map(|check| {
            let Wrong { index, got, wanted } = check.first_wrong?;
            Some(FirstWrong { result: check.result, index, got, wanted })
        });
        let is_within = results.iter().all(Check::is_within);
        Some(Self { is_within, largest_error, tolerance, first_wrong, results })
    }
}

impl fmt::Display for CaseCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { largest_error, tolerance, .. } = self;
        if self.is_within {
            return write!(f, "correct (error {largest_error:.1e}, tolerance {tolerance:.1e})");
        }
        write!(f, "WRONG")?;
        for check in self.results.iter().filter(|check| !check.is_within()) {
            let Check { result, compared, wrong, largest_error, tolerance, .. } = check;
            if let Some(Wrong { index, got, wanted }) = check.first_wrong {
                write!(
                    f,
                    "\n    {result}: {wrong} of {compared} compared elements are wrong, first [{index}]: \
                     got {got}, wanted {wanted}; largest error {largest_error:.2e}, tolerance {tolerance:.2e}"
                )?;
            }
            let (unstable, unwritten) = (check.unstable, check.unwritten);
            if unstable.0 > 0 {
                write!(
                    f,
                    "\n    {result}: {} elements differ between two runs, first [{}]",
                    unstable.0, unstable.1
                )?;
            }
            if unwritten.0 > 0 {
                write!(
                    f,
                    "\n    {result}: {} elements are unwritten, or written by mistake; first \
                     unwritten [{}]",
                    unwritten.0, unwritten.1
                )?;
            }
        }
        Ok(())
    }
}
