//! Fuzz target of the load generator: answers of foreign servers. Shared by cargo-fuzz and the tests
//! of the suite.

use schema::engine::ApiFormat;
use suite::client::sample::{Moment, Sample};
use suite::client::stream::{Standing, Stream};

/// API formats of the answers, in the order of the first byte of an input.
const FORMATS: [ApiFormat; 6] = [
    ApiFormat::Completions,
    ApiFormat::Chat,
    ApiFormat::Generate,
    ApiFormat::Responses,
    ApiFormat::Messages,
    ApiFormat::Embeddings,
];
/// Number of tokens that the request asks for.
const REQUESTED: u64 = 16;

/// Reads a response, head and events, whole and in pieces: both give the same sample. The first byte
/// selects the API format, the second the length of the pieces.
pub fn events(bytes: &[u8]) {
    let [format, length, response @ ..] = bytes else { return };
    let format = FORMATS[usize::from(*format) % FORMATS.len()];
    let read = |length: usize| {
        let mut stream = Stream::new(Sample::default(), format, REQUESTED);
        for (at_ns, piece) in (1..).zip(response.chunks(length)) {
            let at = Moment { since_ns: at_ns, at_ns, user_ns: at_ns, stamped: false };
            if let (Standing::Ended { .. }, _) = stream.take(piece, at) {
                break;
            }
        }
        stream.close(u64::MAX / 2, None);
        let Sample { text, failure, .. } = stream.sample;
        // The text of a failed request has no meaning: what follows the failure in one read is
        // still added to it.
        failure.map_or(Ok(text), |failure| Err(failure.kind))
    };
    let whole = read(response.len().max(1));
    assert_eq!(read(1 + usize::from(*length) % 16), whole, "in pieces and as a whole");
}
