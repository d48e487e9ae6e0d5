//! Decimal numbers of a schema's `multipleOf`, and their common multiples.

/// Positive decimal number: `digits` times 10 to the power of `-exponent`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Decimal {
    pub(super) digits: u64,
    exponent: u32,
}

impl Decimal {
    /// Reads a number as the grammar engine does, without its sign.
    pub(super) fn of(number: f64) -> Self {
        let (mut value, mut exponent) = (number.abs(), 0);
        // From 2^53 on every number is whole.
        while value.fract() != 0.0 {
            (value, exponent) = (value * 10.0, exponent + 1);
        }
        Self { digits: value as u64, exponent }
    }

    /// Returns the least common multiple of two numbers; its digits are `u64::MAX` if it has more.
    pub(super) fn common_multiple(self, other: Self) -> Self {
        let exponent = self.exponent.max(other.exponent);
        let scaled = |one: Self| {
            let scale = 10u64.checked_pow(exponent - one.exponent);
            scale.and_then(|scale| one.digits.checked_mul(scale))
        };
        let digits = match (scaled(self), scaled(other)) {
            (Some(0), _) | (_, Some(0)) => 0,
            (Some(a), Some(b)) => (a / greatest_divisor(a, b)).saturating_mul(b),
            _ => u64::MAX,
        };
        Self { digits, exponent }
    }
}

fn greatest_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_divisor(b, a % b) }
}
