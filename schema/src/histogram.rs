//! HDR histograms as they lie in a record: format V2, deflated, base64.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer, V2DeflateSerializer};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
    pub significant_digits: u8,
}

/// A histogram that cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum HistogramError {
    #[error("a sample of {0} us is beyond the {VALUE_MAX} us that a histogram holds")]
    TooLarge(u64),
    #[error("histogram text of {0} bytes is longer than {TEXT_MAX}")]
    TooLong(usize),
    #[error("histogram is not base64")]
    Base64(#[source] base64::DecodeError),
    #[error("histogram is not a deflated HDR V2 encoding: {0}")]
    Encoding(String),
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

    /// Decodes the histogram.
    ///
    /// # Errors
    /// The text is too long, not base64 or not a V2 encoding.
    pub fn decode(&self) -> Result<Histogram<u64>, HistogramError> {
        if self.hdr_v2.len() > TEXT_MAX {
            return Err(HistogramError::TooLong(self.hdr_v2.len()));
        }
        let bytes = STANDARD.decode(&self.hdr_v2).map_err(HistogramError::Base64)?;
        Deserializer::new()
            .deserialize(&mut bytes.as_slice())
            .map_err(|error| HistogramError::Encoding(format!("{error:?}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn decoding_gives_back_every_sample_within_its_bin(
            samples in prop::collection::vec(0_u64..10_000_000_000, 0..200)
        ) {
            let decoded = HdrHistogram::from_samples(samples.iter().copied())
                .expect("in range")
                .decode()
                .expect("readable");
            prop_assert_eq!(decoded.len(), samples.len() as u64);
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
}
