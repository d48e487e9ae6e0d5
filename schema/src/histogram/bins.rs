//! Reader of the non-empty bins of an HDR histogram in the inflated V2 encoding, without memory for
//! empty bins. Knows the format (<https://github.com/HdrHistogram>), not how a record stores it;
//! tests compare it with the library that writes the format.

use super::{HistogramError, not_encoded};

/// Magic number of the inflated V2 encoding.
const COOKIE: u64 = 0x1c84_9313;
/// Length of the header in bytes: cookie, length, offset, digits, lowest, highest, ratio.
pub(super) const HEAD: usize = 40;
/// Maximum length of the encoded sample count of one bin, in bytes.
const COUNT_BYTES_MAX: usize = 9;

/// Bin of a histogram: a range of values that the histogram does not tell apart, and the number of
/// samples in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bin {
    /// Smallest value that falls in the histogram bin.
    pub low: u64,
    /// Largest value that falls in the histogram bin.
    pub high: u64,
    /// Number of samples in the bin.
    pub count: u64,
}

/// Header of an inflated V2 encoding.
pub(super) struct Head {
    cookie: u64,
    pub(super) payload_bytes: u64,
    offset: u64,
    pub(super) digits: u64,
    lowest: u64,
    pub(super) highest: u64,
    ratio: f64,
}

impl Head {
    /// Reads the header from the first [`HEAD`] bytes of `plain`, which must be present.
    pub(super) fn of(plain: &[u8]) -> Self {
        let field = |at: usize, bytes: usize| {
            plain[at..at + bytes].iter().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte))
        };
        Self {
            cookie: field(0, 4),
            payload_bytes: field(4, 4),
            offset: field(8, 4),
            digits: field(12, 4),
            lowest: field(16, 8),
            highest: field(24, 8),
            ratio: f64::from_bits(field(32, 8)),
        }
    }
}

/// Layout of a histogram's bins: `1 << half_log2` bins for each power of two, and twice as many for
/// the range that begins at 0.
struct Scale {
    /// Base-2 logarithm of the unit, the width of the narrowest bins; values within one unit are
    /// not distinguished.
    unit_log2: u32,
    half_log2: u32,
    /// Number of bins from the value 0 to at least the header's highest value.
    bins: u64,
}

impl Scale {
    /// Returns the layout that the header implies, or `None` where no histogram has such a range or
    /// such a number of digits.
    fn of(head: &Head) -> Option<Self> {
        if head.lowest == 0 || head.highest < head.lowest.checked_mul(2)? || head.digits > 5 {
            return None;
        }
        let unit_log2 = head.lowest.ilog2();
        let resolved = 2 * 10_u64.pow(u32::try_from(head.digits).ok()?);
        let half_log2 = resolved.next_power_of_two().ilog2() - 1;
        // The range of the lowest bins doubles until it includes the highest value.
        // The shift has 128 bits, because a file may claim a range whose end needs more than 64.
        let doublings =
            (0..64).find(|n| (2_u128 << (half_log2 + unit_log2 + n)) > head.highest.into())?;
        let bins = u64::from(doublings + 2) << half_log2;
        (half_log2 + unit_log2 < 63).then_some(Self { unit_log2, half_log2, bins })
    }

    /// Returns the smallest and the largest value of bin `index`.
    fn bounds(&self, index: u64) -> (u64, u64) {
        let half = 1 << self.half_log2;
        let doublings = (index >> self.half_log2).saturating_sub(1);
        let place = index - doublings * half;
        let shift = u64::from(self.unit_log2) + doublings;
        let low = place << shift;
        (low, low + ((1 << shift) - 1))
    }
}

/// Reads the bins that have samples from the inflated V2 encoding `plain`, in ascending order.
pub(super) fn read(plain: &[u8]) -> Result<Vec<Bin>, HistogramError> {
    let (head, mut rest) = (Head::of(plain), &plain[HEAD..]);
    #[expect(clippy::float_cmp, reason = "any other ratio is of a histogram of other numbers")]
    if head.cookie != COOKIE || head.offset != 0 || head.ratio != 1.0 {
        return Err(not_encoded("its header is not valid"));
    }
    let scale = Scale::of(&head).ok_or_else(|| not_encoded("its range is not valid"))?;
    let (mut bins, mut index) = (Vec::new(), 0_u64);
    while !rest.is_empty() {
        let (number, after) = count(rest).ok_or_else(|| not_encoded("it is cut short"))?;
        rest = after;
        if number > 0 {
            if index >= scale.bins {
                return Err(not_encoded("it has more bins than its range"));
            }
            let (low, high) = scale.bounds(index);
            bins.push(Bin { low, high, count: number.unsigned_abs() });
        }
        // A negative number encodes that many empty bins.
        let bins_passed = if number < 0 { number.unsigned_abs() } else { 1 };
        index =
            index.checked_add(bins_passed).ok_or_else(|| not_encoded("it has too many bins"))?;
    }
    Ok(bins)
}

/// Decodes the next number of an HDR histogram (samples of a bin, or minus the length of a run of
/// empty bins) and returns it with the remaining bytes; `None` where the bytes end within the
/// number. Format: ZigZag LEB128, seven bits a byte from low to high, except that a ninth byte has
/// eight.
fn count(bytes: &[u8]) -> Option<(i64, &[u8])> {
    let mut coded = 0_u64;
    for (place, byte) in bytes.iter().enumerate().take(COUNT_BYTES_MAX) {
        let last = place + 1 == COUNT_BYTES_MAX;
        let bits = if last { *byte } else { byte & 0x7f };
        coded |= u64::from(bits) << (7 * place);
        if last || byte & 0x80 == 0 {
            let number = (coded >> 1).cast_signed() ^ -((coded & 1).cast_signed());
            return Some((number, &bytes[place + 1..]));
        }
    }
    None
}
