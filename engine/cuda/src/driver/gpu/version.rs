//! Version of the CUDA driver, compared with what the bindings need.

use std::fmt;

use cudarc::driver::sys;

/// Oldest CUDA version that a driver must support, as the driver reports it: 1000 times the major
/// version plus 10 times the minor. It is the version that introduced `cuEventElapsedTime_v2`, the
/// newest function that this crate calls.
const CUDA_MIN: i32 = 12_080;
/// Oldest major version of NVIDIA's Linux driver that supports [`CUDA_MIN`].
const DRIVER_MIN: u32 = 570;

/// Reason why the machine's CUDA driver cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UnusableDriver {
    /// No driver is installed.
    Missing,
    /// The driver is too old or reports no version; the text says what is wrong, and how to mend it.
    Unusable(String),
}

impl fmt::Display for UnusableDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("there is no CUDA driver"),
            Self::Unusable(why) => f.write_str(why),
        }
    }
}

/// Checks that a driver is installed and not too old for this release. It calls nothing else, since
/// cudarc panics where a function does not exist.
///
/// # Errors
/// There is no driver, it reports no version, or an older version than this release needs.
pub fn check_driver() -> Result<(), UnusableDriver> {
    // SAFETY: searches for the library without calling into it.
    if !unsafe { sys::is_culib_present() } {
        return Err(UnusableDriver::Missing);
    }
    let mut version = 0;
    // SAFETY: the library is present, and `version` is writable. The function exists since CUDA 2.
    let asked = unsafe { sys::cuDriverGetVersion(&raw mut version) }.result();
    let no_version = |code| format!("the CUDA driver reports no version: {code:?}");
    let checked = asked.map_err(|error| no_version(error.0)).and_then(|()| fits(version));
    checked.map_err(UnusableDriver::Unusable)
}

fn fits(version: i32) -> Result<(), String> {
    if version >= CUDA_MIN {
        return Ok(());
    }
    let text = |version: i32| format!("{}.{}", version / 1000, version % 1000 / 10);
    Err(format!(
        "the driver supports CUDA {}, and this release needs {} or later; hint: install driver \
         {DRIVER_MIN} or later",
        text(version),
        text(CUDA_MIN)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_driver_is_refused_with_both_versions() {
        assert_eq!([fits(12_080), fits(13_000)], [Ok(()), Ok(())]);
        let error = fits(12_040).unwrap_err();
        for part in ["supports CUDA 12.4,", "needs 12.8 or later", "driver 570 or later"] {
            assert!(error.contains(part), "`{part}` is not in {error}");
        }
    }
}
