//! HDR histograms as they lie in a record: format V2, deflated, base64.

mod bins;

use std::io::Read;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::read::ZlibDecoder;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer, V2DeflateSerializer};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use bins::Bin;
use bins::HEAD;

/// Significant decimal digits that Redline's histograms keep.
pub const SIGNIFICANT_DIGITS: u8 = 3;

/// The largest value a record's histogram may hold: 30 days in microseconds. A decoder that
/// trusted the file would allocate whatever it claims.
pub const VALUE_MAX: u64 = 30 * 24 * 3600 * 1_000_000;

/// Longest base64 text that is decoded.
const TEXT_MAX: usize = 1 << 20;

/// A histogram in a record.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HdrHistogram {
    /// Base64 of the deflated V2 encoding of <https://github.com/HdrHistogram>.
    pub hdr_v2: String,
    /// From 1 to 5: how finely large values are told apart.
    pub significant_digits: u8,
}

/// A histogram that cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum HistogramError {
    /// A value is beyond what a histogram holds.
    #[error("a sample of {0} us is beyond the {VALUE_MAX} us that a histogram holds")]
    TooLarge(u64),
    /// So many bytes are more than any histogram of a record has.
    #[error("histogram text of {0} bytes is longer than {TEXT_MAX}")]
    TooLong(usize),
    /// The text is no base64.
    #[error("histogram is not base64")]
    Base64(#[source] base64::DecodeError),
    /// Its bytes are no histogram.
    #[error("histogram is not a deflated HDR V2 encoding: {0}")]
    Encoding(String),
    /// It says of itself what its bytes do not.
    #[error("histogram claims {0}")]
    Claims(&'static str),
}

impl HdrHistogram {
    /// Builds the histogram of `samples` in microseconds.
    ///
    /// # Errors
    /// A sample is beyond [`VALUE_MAX`].
    pub fn from_samples(samples: impl IntoIterator<Item = u64>) -> Result<Self, HistogramError> {
        let mut histogram = Histogram::<u64>::new_with_bounds(1, VALUE_MAX, SIGNIFICANT_DIGITS)
            .map_err(|error| HistogramError::Encoding(error.to_string()))?;
        for sample in samples {
            histogram.record(sample).map_err(|_| HistogramError::TooLarge(sample))?;
        }
        let mut bytes = Vec::new();
        V2DeflateSerializer::new()
            .serialize(&histogram, &mut bytes)
            .map_err(|error| HistogramError::Encoding(format!("{error:?}")))?;
        Ok(Self { hdr_v2: STANDARD.encode(bytes), significant_digits: SIGNIFICANT_DIGITS })
    }

    /// Decodes the histogram. A file is not trusted: what its header claims is held against what
    /// is there before anything is allocated for it.
    ///
    /// # Errors
    /// The text is too long, not base64 or not a V2 encoding, or claims more than a record holds.
    pub fn decode(&self) -> Result<Histogram<u64>, HistogramError> {
        let plain = self.plain()?;
        Deserializer::new()
            .deserialize(&mut plain.as_slice())
            .map_err(|error| HistogramError::Encoding(format!("{error:?}")))
    }

    /// The bins that have samples, from low to high: what [`HdrHistogram::decode`] holds, without
    /// the quarter of a megabyte for those that have none. A check of many records decodes
    /// hundreds of thousands of histograms.
    ///
    /// # Errors
    /// Those of [`HdrHistogram::decode`].
    pub fn bins(&self) -> Result<Vec<Bin>, HistogramError> {
        bins::read(&self.plain()?)
    }

    /// The plain encoding, with a head that claims no more than a record holds.
    fn plain(&self) -> Result<Vec<u8>, HistogramError> {
        if self.hdr_v2.len() > TEXT_MAX {
            return Err(HistogramError::TooLong(self.hdr_v2.len()));
        }
        let bytes = STANDARD.decode(&self.hdr_v2).map_err(HistogramError::Base64)?;
        let plain = inflate(&bytes)?;
        let head = bins::Head::of(&plain);
        if head.payload_bytes != (plain.len() - HEAD) as u64 {
            return Err(HistogramError::Claims("a payload of another length than it has"));
        }
        if head.digits > u64::from(SIGNIFICANT_DIGITS) || head.highest > VALUE_MAX {
            return Err(HistogramError::Claims("more digits or larger values than a record keeps"));
        }
        Ok(plain)
    }
}

/// First bytes of the deflated V2 encoding.
const DEFLATED: [u8; 4] = 0x1c84_9314_u32.to_be_bytes();
/// Longest plain encoding: nine bytes for each bin of [`VALUE_MAX`], and to spare.
const PLAIN_MAX: usize = 1 << 20;

/// The plain encoding in a deflated one, with its whole head.
fn inflate(bytes: &[u8]) -> Result<Vec<u8>, HistogramError> {
    let refused = |why: &str| HistogramError::Encoding(why.to_owned());
    let (head, deflated) = bytes.split_at_checked(8).ok_or_else(|| refused("it is cut short"))?;
    if head[..4] != DEFLATED {
        return Err(refused("it begins otherwise"));
    }
    let mut plain = Vec::new();
    let read = ZlibDecoder::new(deflated).take(PLAIN_MAX as u64 + 1).read_to_end(&mut plain);
    read.map_err(|error| HistogramError::Encoding(error.to_string()))?;
    match plain.len() {
        n if n > PLAIN_MAX => Err(HistogramError::Claims("more bins than a record keeps")),
        n if n < HEAD => Err(refused("it is cut short")),
        _ => Ok(plain),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The bins with samples as the library tells them.
    fn bins_of(decoded: &Histogram<u64>) -> Vec<Bin> {
        let values = decoded.iter_recorded().map(|step| step.value_iterated_to());
        let bin = |value| Bin {
            low: decoded.lowest_equivalent(value),
            high: decoded.highest_equivalent(value),
            count: decoded.count_at(value),
        };
        values.map(bin).collect()
    }

    /// A plain V2 encoding as a record keeps it.
    fn packed(plain: &[u8]) -> HdrHistogram {
        let mut deflated = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
        std::io::Write::write_all(&mut deflated, plain).expect("memory");
        let deflated = deflated.finish().expect("memory");
        let mut bytes = DEFLATED.to_vec();
        bytes.extend(u32::try_from(deflated.len()).expect("short").to_be_bytes());
        bytes.extend(deflated);
        HdrHistogram { hdr_v2: STANDARD.encode(bytes), significant_digits: 3 }
    }

    /// The plain encoding with this head and these counts.
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
        /// Whatever the bytes say, both readings agree on it, or both refuse it.
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
            match (stored.decode(), stored.bins()) {
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
            let decoded = stored.decode().expect("readable");
            prop_assert_eq!(decoded.len(), samples.len() as u64);
            prop_assert_eq!(stored.bins().expect("readable"), bins_of(&decoded));
            if let Some(max) = samples.iter().max() {
                prop_assert!(decoded.equivalent(decoded.max(), *max));
            }
        }
    }

    #[test]
    fn garbage_is_refused() {
        let text = |hdr_v2: &str| HdrHistogram { hdr_v2: hdr_v2.into(), significant_digits: 3 };
        assert!(matches!(text("%%").decode(), Err(HistogramError::Base64(_))));
        assert!(matches!(text("AAAA").decode(), Err(HistogramError::Encoding(_))));
        let long = "A".repeat(TEXT_MAX + 1);
        assert!(matches!(text(&long).decode(), Err(HistogramError::TooLong(_))));
    }

    /// A deflated encoding with this head and `zeros` bytes of counts.
    fn claiming(payload: u32, digits: u32, highest: u64, zeros: usize) -> HdrHistogram {
        let head = [u64::from(payload), 0, u64::from(digits), 1, highest];
        packed(&plain(head, &vec![0; zeros]))
    }

    #[test]
    fn a_histogram_that_would_decode_to_gigabytes_is_refused() {
        assert!(claiming(2, 3, VALUE_MAX, 2).decode().is_ok());
        for (name, bomb) in [
            ("a payload that is not there", claiming(u32::MAX, 3, VALUE_MAX, 2)),
            ("zeros without end", claiming(64 << 20, 3, VALUE_MAX, 64 << 20)),
            ("a huge range", claiming(2, 3, u64::MAX >> 1, 2)),
            ("many digits", claiming(2, 5, VALUE_MAX, 2)),
        ] {
            let refused = bomb.decode();
            assert!(matches!(refused, Err(HistogramError::Claims(_))), "{name}: {refused:?}");
            let refused = bomb.bins();
            assert!(matches!(refused, Err(HistogramError::Claims(_))), "{name}: {refused:?}");
        }
    }
}
