//! Formats numbers for people: rounded to what their spread supports, with thousands separators.
//! Knows no records.

use judge::table::grouped;
use schema::metric::Unit;

/// Smallest and largest number of significant digits with which a measured value is shown. Three
/// digits keep the rounding error under half a percent, below every minimum effect; nobody reads
/// more than five.
const DIGITS: std::ops::RangeInclusive<i32> = 3..=5;

/// Number of significant digits with which a value is shown whose repeats are all equal.
const DIGITS_AGREED: i32 = 4;

/// Formats `value` with three to five significant digits: up to the decimal place of the first
/// digit of `spread` (a half-width in the same unit), four where `spread` is 0, three without one,
/// as for a single run.
pub fn rounded(value: f64, spread: Option<f64>) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let leading = place(value);
    let digits = match spread {
        Some(spread) if spread > 0.0 => {
            (leading - place(spread) + 1).clamp(*DIGITS.start(), *DIGITS.end())
        }
        Some(_) => DIGITS_AGREED,
        None => *DIGITS.start(),
    };
    let decimals = digits - 1 - leading;
    // In fixed-point form such a value would be a row of zeros.
    if decimals > 9 {
        return format!("{value:.*e}", digit_count(digits - 1));
    }
    if decimals >= 0 {
        return grouped(&format!("{value:.*}", digit_count(decimals)));
    }
    let step = 10_f64.powi(-decimals);
    grouped(&format!("{:.0}", (value / step).round() * step))
}

/// Formats a whole number with thousands separators.
pub fn whole(value: u64) -> String {
    grouped(&value.to_string())
}

/// Formats a change in percent with its sign and without a unit: one decimal below 100, else none.
/// Zero has no sign.
pub fn percent(value: f64) -> String {
    let decimals = usize::from(value.abs() < 99.95);
    let text = format!("{value:+.decimals$}");
    if text.trim_start_matches(['+', '-']).parse::<f64>().is_ok_and(|rest| rest == 0.0) {
        return format!("{:.decimals$}", 0.0);
    }
    // The typographic minus sign is as wide as the plus sign.
    text.replace('-', "\u{2212}")
}

/// Formats a change in percent with sign and unit: `+3.2 %`.
pub fn change(pct: f64) -> String {
    format!("{} %", percent(pct))
}

/// Formats an interval of a change in percent: `+1.0 to +5.4 %`.
pub fn interval((low, high): (f64, f64)) -> String {
    format!("{} to {} %", percent(low), percent(high))
}

/// Formats a value that may be missing, by `show`; `-` without a value.
pub fn or_dash<T>(value: Option<T>, show: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), show)
}

/// Formats a share between -1 and 1 with its sign, to two decimals.
pub fn signed_share(value: f64) -> String {
    // The typographic minus sign is as wide as the plus sign.
    if value == 0.0 { "0".to_owned() } else { format!("{value:+.2}").replace('-', "\u{2212}") }
}

/// Formats a half-width in percent: `±1.3 %`.
pub fn plus_minus(percent: f64) -> String {
    format!("±{} %", half_width(percent))
}

/// Formats a half-width in percent without sign and unit: no decimals for zero and from about 10
/// on, one from about 0.1 on, else two.
pub fn half_width(percent: f64) -> String {
    let decimals = if percent == 0.0 || percent >= 9.95 {
        0
    } else if percent >= 0.095 {
        1
    } else {
        2
    };
    format!("{percent:.decimals$}")
}

/// Formats a size in bytes in the largest binary unit, up to TiB, that gives a value of at least
/// one.
pub fn bytes(value: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut scaled = as_f64(value);
    let mut unit = 0;
    while scaled >= 1024.0 && unit + 1 < UNITS.len() {
        scaled /= 1024.0;
        unit += 1;
    }
    if unit == 0 {
        return format!("{value} B");
    }
    format!("{} {}", rounded(scaled, None), UNITS[unit])
}

/// Formats microseconds as seconds. The unit is fixed so that values in a column can be compared.
pub fn seconds(us: u64) -> String {
    format!("{} s", rounded(as_f64(us) / 1e6, None))
}

/// Formats `value` to nine significant digits, beyond which there is only rounding error, but never
/// coarser than to a whole number. A number whose shortest exact text has at most ten characters
/// after leading zeros, or that is below 1e-9, is not rounded.
pub fn exactly(value: f64) -> String {
    let shortest = format!("{value}");
    if value == 0.0 || shortest.trim_start_matches(['0', '.', '-']).len() <= 10 {
        return grouped(&shortest);
    }
    let decimals = 8 - place(value);
    if decimals <= 0 || decimals > 17 {
        return if decimals <= 0 { grouped(&format!("{value:.0}")) } else { format!("{value:e}") };
    }
    grouped(
        format!("{value:.*}", digit_count(decimals)).trim_end_matches('0').trim_end_matches('.'),
    )
}

/// Unit in which a metric is shown, and the divisor that converts stored values to it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    pub unit: &'static str,
    pub divisor: f64,
}

impl Scale {
    /// Scale of rates, which are shown per second as they are stored.
    pub const PER_SECOND: Self = Self { unit: "/s", divisor: 1.0 };

    /// Returns the display unit for values stored in `unit`, the largest of which is `largest`:
    /// times in seconds from 10 s on, else in milliseconds, sizes in GiB from 1 GiB on, else in
    /// MiB, rates and counts as they are stored.
    pub fn fit(unit: Unit, largest: f64) -> Self {
        let (unit, divisor) = match unit {
            Unit::PerSecond => ("/s", 1.0),
            Unit::Microseconds if largest >= 1e7 => ("s", 1e6),
            Unit::Microseconds => ("ms", 1e3),
            Unit::Bytes if largest >= 1024.0 * 1024.0 * 1024.0 => ("GiB", 1024.0 * 1024.0 * 1024.0),
            Unit::Bytes => ("MiB", 1024.0 * 1024.0),
            Unit::Count => ("", 1.0),
        };
        Self { unit, divisor }
    }
}

/// Returns the decimal place of the first digit: 0 for 1 to 9, 1 for 10 to 99, -1 for 0.1 to 0.9.
fn place(value: f64) -> i32 {
    let floor = value.abs().log10().floor();
    #[expect(clippy::cast_possible_truncation, reason = "the exponent of an f64 is within +-324")]
    {
        floor as i32
    }
}

fn digit_count(value: i32) -> usize {
    usize::try_from(value).unwrap_or(0)
}

/// Converts a count, time or size of a run to a floating-point number.
#[expect(clippy::cast_precision_loss, reason = "counts, times and sizes of a run are below 2^53")]
pub fn as_f64(value: u64) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_rounded_to_what_its_spread_supports() {
        for (value, spread, expected) in [
            (1234.567, Some(12.0), "1,230"),
            (1234.567, Some(3.0), "1,235"),
            (1234.567, Some(0.2), "1,234.6"),
            (1234.567, Some(0.0001), "1,234.6"),
            (1234.567, Some(900.0), "1,230"),
            (1234.567, Some(0.0), "1,235"),
            (1234.567, None, "1,230"),
            (0.134_32, Some(0.0021), "0.134"),
            (0.134_32, None, "0.134"),
            (999.96, None, "1000"),
            (0.0, None, "0"),
            (1e12, None, "1,000,000,000,000"),
            (1e-12, None, "1.00e-12"),
            (-1234.0, None, "-1,230"),
        ] {
            let expected = if expected == "1000" { "1,000" } else { expected };
            assert_eq!(rounded(value, spread), expected, "{value} with {spread:?}");
        }
    }

    #[test]
    fn percents_carry_their_sign_and_zero_has_none() {
        assert_eq!(percent(2.345), "+2.3");
        assert_eq!(percent(-2.345), "\u{2212}2.3");
        assert_eq!(percent(-0.01), "0.0");
        assert_eq!(percent(1234.5), "+1234");
        assert_eq!(half_width(0.034), "0.03");
        assert_eq!(half_width(0.52), "0.5");
        assert_eq!(half_width(0.0), "0");
        assert_eq!(half_width(1.26), "1.3");
        assert_eq!(half_width(12.6), "13");
    }

    #[test]
    fn exact_values_have_nine_digits() {
        for (value, expected) in [
            (0.0, "0"),
            (250.0, "250"),
            (3.331_637_668_578_263, "3.33163767"),
            (1_372_999.123_456_789, "1,372,999.12"),
            (1e12, "1,000,000,000,000"),
            (0.1, "0.1"),
            (1.0 / 3e12, "3.3333333333333334e-13"),
        ] {
            assert_eq!(exactly(value), expected);
        }
    }

    #[test]
    fn units_fit_the_largest_value_of_a_column() {
        assert_eq!(Scale::fit(Unit::Microseconds, 9_999_999.0).unit, "ms");
        assert_eq!(Scale::fit(Unit::Microseconds, 1e7).unit, "s");
        assert_eq!(Scale::fit(Unit::Bytes, 5e8).unit, "MiB");
        assert_eq!(bytes(512), "512 B");
        assert_eq!(bytes(98 << 20), "98.0 MiB");
        assert_eq!(seconds(1_234_567), "1.23 s");
    }
}
