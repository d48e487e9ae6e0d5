//! HDR histograms as records store them: encoding V2, deflated, base64.

mod bins;

use std::io::Read;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::read::ZlibDecoder;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Serializer, V2DeflateSerializer};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use bins::Bin;
use bins::HEAD;

/// Number of significant decimal digits in Redline's histograms.
pub const SIGNIFICANT_DIGITS: u8 = 3;

/// Largest value that a record's histogram may hold: 30 days in microseconds. A decoder without a
/// bound would allocate whatever the file claims.
pub const VALUE_MAX: u64 = 30 * 24 * 3600 * 1_000_000;

/// Longest base64 text of a histogram that is decoded, in bytes; a longer one is refused.
const TEXT_MAX: usize = 1 << 20;

/// HDR histogram as a record stores it: base64 text and precision.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HdrHistogram {
    /// Base64 of the deflated V2 encoding of <https://github.com/HdrHistogram>.
    pub hdr_v2: String,
    /// Number of significant decimal digits to which large values are distinguished; 3 where
    /// Redline wrote the histogram.
    pub significant_digits: u8,
}

/// Error of writing or reading a histogram.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct HistogramError(String);

/// Returns the error for bytes that are not a deflated HDR histogram in the V2 encoding.
fn not_encoded(why: impl ToString) -> HistogramError {
    HistogramError(format!("histogram is not a deflated HDR V2 encoding: {}", why.to_string()))
}

/// Returns the error for a histogram header that the data contradict, or that a record does not
/// allow.
fn claims<T>(what: &str) -> Result<T, HistogramError> {
    Err(HistogramError(format!("histogram claims {what}")))
}

impl HdrHistogram {
    /// Encodes the histogram of `samples`, which are in microseconds.
    ///
    /// # Errors
    /// A sample is above [`VALUE_MAX`], or the library fails to encode the histogram.
    pub fn from_samples(samples: impl IntoIterator<Item = u64>) -> Result<Self, HistogramError> {
        let mut histogram = Histogram::<u64>::new_with_bounds(1, VALUE_MAX, SIGNIFICANT_DIGITS)
            .map_err(not_encoded)?;
        for sample in samples {
            histogram.record(sample).map_err(|_| {
                HistogramError(format!(
                    "a sample of {sample} us is beyond the {VALUE_MAX} us that a histogram holds"
                ))
            })?;
        }
        let mut bytes = Vec::new();
        V2DeflateSerializer::new()
            .serialize(&histogram, &mut bytes)
            .map_err(|error| not_encoded(format!("{error:?}")))?;
        Ok(Self { hdr_v2: STANDARD.encode(bytes), significant_digits: SIGNIFICANT_DIGITS })
    }

    /// Returns the bins that have samples, in ascending order. The file is not trusted: the header
    /// is checked against the data before any memory is allocated for it. The library's decoder
    /// allocates a quarter of a megabyte for empty bins, and a check of many records reads hundreds
    /// of thousands of histograms.
    ///
    /// # Errors
    /// The text is too long or not base64, its data are not a complete and consistent V2 encoding,
    /// or its header claims more bins, more digits or larger values than a record may have.
    pub fn bins(&self) -> Result<Vec<Bin>, HistogramError> {
        bins::read(&self.plain()?)
    }

    /// Decodes and inflates the stored text and returns the V2 encoding, after its header was
    /// checked against the limits of a record.
    fn plain(&self) -> Result<Vec<u8>, HistogramError> {
        if self.hdr_v2.len() > TEXT_MAX {
            let bytes = self.hdr_v2.len();
            let problem = format!("histogram text of {bytes} bytes is longer than {TEXT_MAX}");
            return Err(HistogramError(problem));
        }
        let bytes = STANDARD
            .decode(&self.hdr_v2)
            .map_err(|error| HistogramError(format!("histogram is not base64: {error}")))?;
        let plain = inflate(&bytes)?;
        let head = bins::Head::of(&plain);
        if head.payload_bytes != (plain.len() - HEAD) as u64 {
            return claims("a payload length that its data contradict");
        }
        if head.digits > u64::from(SIGNIFICANT_DIGITS) || head.highest > VALUE_MAX {
            return claims("more digits or larger values than a record keeps");
        }
        Ok(plain)
    }
}

/// Magic number of the deflated V2 encoding.
const DEFLATED: [u8; 4] = 0x1c84_9314_u32.to_be_bytes();
/// Longest inflated encoding that is accepted, in bytes: nine for each bin up to [`VALUE_MAX`],
/// with reserve.
const PLAIN_MAX: usize = 1 << 20;

/// Inflates the V2 encoding in `bytes` and checks that its header is complete.
fn inflate(bytes: &[u8]) -> Result<Vec<u8>, HistogramError> {
    let (head, deflated) =
        bytes.split_at_checked(8).ok_or_else(|| not_encoded("it is cut short"))?;
    if head[..4] != DEFLATED {
        return Err(not_encoded("its magic number is wrong"));
    }
    let mut plain = Vec::new();
    // The limit stops a decompression bomb; the extra byte shows that it was exceeded.
    let read = ZlibDecoder::new(deflated).take(PLAIN_MAX as u64 + 1).read_to_end(&mut plain);
    read.map_err(not_encoded)?;
    match plain.len() {
        n if n > PLAIN_MAX => claims("more bins than a record keeps"),
        n if n < HEAD => Err(not_encoded("it is cut short")),
        _ => Ok(plain),
    }
}

#[cfg(test)]
mod tests {
    use hdrhistogram::serialization::Deserializer;
    use proptest::prelude::*;

    use super::*;

    /// Decodes a stored histogram with the `hdrhistogram` library, with which the tests compare
    /// [`HdrHistogram::bins`].
    fn decoded(stored: &HdrHistogram) -> Result<Histogram<u64>, HistogramError> {
        let plain = stored.plain()?;
        Deserializer::new()
            .deserialize(&mut plain.as_slice())
            .map_err(|error| not_encoded(format!("{error:?}")))
    }

    /// Returns the bins that have samples, as the `hdrhistogram` library reports them, for the
    /// tests to compare.
    fn bins_of(decoded: &Histogram<u64>) -> Vec<Bin> {
        let values = decoded.iter_recorded().map(|step| step.value_iterated_to());
        let bin = |value| Bin {
            low: decoded.lowest_equivalent(value),
            high: decoded.highest_equivalent(value),
            count: decoded.count_at(value),
        };
        values.map(bin).collect()
    }

    /// Builds a stored histogram for a test: deflates and base64-encodes the V2 encoding `plain`.
    fn packed(plain: &[u8]) -> HdrHistogram {
        let mut deflated = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
        std::io::Write::write_all(&mut deflated, plain).expect("memory");
        let deflated = deflated.finish().expect("memory");
        let mut bytes = DEFLATED.to_vec();
        bytes.extend(u32::try_from(deflated.len()).expect("short").to_be_bytes());
        bytes.extend(deflated);
        HdrHistogram { hdr_v2: STANDARD.encode(bytes), significant_digits: 3 }
    }

    /// Builds an inflated V2 encoding for a test, with the given header (payload, offset, digits,
    /// lowest, highest) and encoded counts.
    fn plain(head: [u64; 5], counts: &[u8]) -> Vec<u8> {
        let [payload, offset, digits, lowest, highest] = head;
        let short = |value: u64| u32::try_from(value).expect("32 bits").to_be_bytes();
        let mut plain = 0x1c84_9313_u32.to_be_bytes().to_vec();
        plain.extend([payload, offset, digits].iter().flat_map(|value| short(*value)));
        plain.extend([lowest, highest].iter().flat_map(|value| value.to_be_bytes()));
        plain.extend(1.0_f64.to_be_bytes());
        plain.extend(counts);
        plain
    }

    proptest! {
        /// Checks that, for any header and counts, [`HdrHistogram::bins`] and the library's decoder
        /// give the same bins or both refuse.
        #[test]
        fn bins_are_those_of_the_library(
            counts in prop::collection::vec(
                prop_oneof![4 => 0_u8..128, 1 => any::<u8>()], 0..60
            ),
            digits in 0_u64..4,
            lowest in prop_oneof![Just(1_u64), 0_u64..5_000],
            highest in prop_oneof![Just(VALUE_MAX), 0_u64..100_000],
        ) {
            let stored = packed(&plain([counts.len() as u64, 0, digits, lowest, highest], &counts));
            match (decoded(&stored), stored.bins()) {
                (Ok(decoded), Ok(bins)) => prop_assert_eq!(bins, bins_of(&decoded)),
                (Err(_), Err(_)) => {}
                (decoded, bins) => prop_assert!(false, "{:?} {bins:?}", decoded.map(|d| d.len())),
            }
        }

        #[test]
        fn decoding_gives_back_every_sample_within_its_bin(
            samples in prop::collection::vec(0_u64..10_000_000_000, 0..200)
        ) {
            let stored = HdrHistogram::from_samples(samples.iter().copied()).expect("in range");
            let decoded = decoded(&stored).expect("readable");
            prop_assert_eq!(decoded.len(), samples.len() as u64);
            prop_assert_eq!(stored.bins().expect("readable"), bins_of(&decoded));
            if let Some(max) = samples.iter().max() {
                prop_assert!(decoded.equivalent(decoded.max(), *max));
            }
        }
    }

    /// Returns the message of the error with which a test could not read a histogram; empty where
    /// it was read.
    fn error<T>(result: &Result<T, HistogramError>) -> String {
        result.as_ref().err().map(ToString::to_string).unwrap_or_default()
    }

    #[test]
    fn garbage_is_refused() {
        let histogram =
            |hdr_v2: &str| HdrHistogram { hdr_v2: hdr_v2.into(), significant_digits: 3 };
        let refused = |text: &str, why| error(&histogram(text).bins()).contains(why);
        assert!(refused("%%", "is not base64"));
        assert!(refused("AAAA", "is not a deflated HDR V2 encoding"));
        let long = "A".repeat(TEXT_MAX + 1);
        assert!(refused(&long, "bytes is longer than"));
    }

    /// Builds a stored histogram for a test, whose header claims these sizes and whose counts are
    /// `zeros` zero bytes.
    fn claiming(payload: u32, digits: u32, highest: u64, zeros: usize) -> HdrHistogram {
        let head = [u64::from(payload), 0, u64::from(digits), 1, highest];
        packed(&plain(head, &vec![0; zeros]))
    }

    #[test]
    fn a_histogram_that_would_decode_to_gigabytes_is_refused() {
        assert!(claiming(2, 3, VALUE_MAX, 2).bins().is_ok());
        for (name, bomb) in [
            ("a payload that is not there", claiming(u32::MAX, 3, VALUE_MAX, 2)),
            ("zeros without end", claiming(64 << 20, 3, VALUE_MAX, 64 << 20)),
            ("a huge range", claiming(2, 3, u64::MAX >> 1, 2)),
            ("many digits", claiming(2, 5, VALUE_MAX, 2)),
        ] {
            let refused = error(&bomb.bins());
            assert!(refused.starts_with("histogram claims "), "{name}: {refused}");
        }
    }
}
