//! Exact latency samples of a run's answered requests, per request and per token: TTFT definition,
//! and those of TPOT, ITL, E2E and the parts of TTFT.

use schema::histogram::{HdrHistogram, HistogramError};
use schema::run::Histograms;

use super::summary::summarize;
use super::tally::Answered;
use super::to_us;
use crate::client::sample::TtftParts;

/// Latency samples of a run's answered requests, in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Distributions {
    /// TTFT of each answered request: time from its actual send to its first chunk with a token, in
    /// nanoseconds.
    pub ttft_ns: Vec<u64>,
    /// Time from the scheduled send of each answered request to its first chunk with a token, in
    /// nanoseconds.
    pub ttft_scheduled_ns: Vec<u64>,
    /// TPOT, `(e2e - ttft) / (n - 1)`, of each answered request with n > 1 output tokens, in
    /// nanoseconds.
    pub tpot_ns: Vec<u64>,
    /// ITL per chunk: gaps between consecutive chunks with tokens of one answer, in nanoseconds.
    pub itl_chunk_ns: Vec<u64>,
    /// ITL per token: a chunk of k tokens gives k samples of gap / k, in nanoseconds. `None` if the
    /// number of tokens of some chunk is unknown.
    pub itl_token_ns: Option<Vec<u64>>,
    /// E2E of each answered request: time from its actual send to its last chunk with a token, in
    /// nanoseconds.
    pub e2e_ns: Vec<u64>,
    /// Time from the scheduled send of each answered request to its last chunk with a token, in
    /// nanoseconds.
    pub e2e_scheduled_ns: Vec<u64>,
    /// Time to open the connection of each answered request, with its TLS handshake, in
    /// nanoseconds.
    pub connect_ns: Vec<u64>,
    /// Time that each answered request waited for the concurrency limit, in nanoseconds; empty in a
    /// closed loop and without a limit.
    pub queue_ns: Vec<u64>,
    /// Delay of the client for each answered request: time from the scheduled send until the client
    /// took it up, without the wait for the concurrency limit, in nanoseconds.
    pub schedule_lag_ns: Vec<u64>,
    /// Time from the actual send of each answered request to its first event, such as a chunk with
    /// only a role, in nanoseconds.
    pub ttft_event_ns: Vec<u64>,
    /// Time from the actual send of each answered request to its first chunk with answer text,
    /// after any reasoning, in nanoseconds.
    pub ttft_content_ns: Vec<u64>,
    /// Parts of each answered request's TTFT, from the scheduled send.
    pub ttft_parts: Vec<TtftParts>,
}

impl Distributions {
    /// Collects the latency samples of the answered requests.
    pub fn of(answered: &[Answered<'_>]) -> Self {
        let known = answered.iter().all(|request| request.credit.chunk_source.is_some());
        let mut all = Self { itl_token_ns: known.then(Vec::new), ..Self::default() };
        for request in answered {
            all.take(request);
        }
        all
    }

    /// Adds the samples of `other`. Gaps per token stay known only where both sets have them.
    pub fn append(&mut self, other: Self) {
        self.itl_token_ns =
            self.itl_token_ns.take().zip(other.itl_token_ns).map(|(mut all, more)| {
                all.extend(more);
                all
            });
        self.ttft_ns.extend(other.ttft_ns);
        self.ttft_scheduled_ns.extend(other.ttft_scheduled_ns);
        self.tpot_ns.extend(other.tpot_ns);
        self.itl_chunk_ns.extend(other.itl_chunk_ns);
        self.e2e_ns.extend(other.e2e_ns);
        self.e2e_scheduled_ns.extend(other.e2e_scheduled_ns);
        self.connect_ns.extend(other.connect_ns);
        self.queue_ns.extend(other.queue_ns);
        self.schedule_lag_ns.extend(other.schedule_lag_ns);
        self.ttft_event_ns.extend(other.ttft_event_ns);
        self.ttft_content_ns.extend(other.ttft_content_ns);
        self.ttft_parts.extend(other.ttft_parts);
    }

    fn take(&mut self, request: &Answered<'_>) {
        let sample = request.sample;
        let (Some(sent), Some((first, last))) = (sample.sent_ns, sample.span()) else { return };
        let ttft = first.at_ns.saturating_sub(sent);
        let e2e = last.at_ns.saturating_sub(sent);
        self.ttft_ns.push(ttft);
        self.ttft_scheduled_ns.push(first.at_ns.saturating_sub(sample.scheduled_ns));
        self.e2e_ns.push(e2e);
        self.e2e_scheduled_ns.push(last.at_ns.saturating_sub(sample.scheduled_ns));
        self.queue_ns.extend(sample.queue_ns);
        self.schedule_lag_ns.extend(sample.schedule_lag_ns());
        self.connect_ns.extend(sample.connect_ns);
        self.ttft_event_ns.extend(sample.first_event_ns.map(|at| at.saturating_sub(sent)));
        self.ttft_content_ns.extend(sample.first_content_ns.map(|at| at.saturating_sub(sent)));
        self.ttft_parts.extend(sample.ttft_parts());
        if request.credit.tokens > 1 {
            self.tpot_ns.push((e2e - ttft) / (request.credit.tokens - 1));
        }
        self.take_gaps(request);
    }

    fn take_gaps(&mut self, request: &Answered<'_>) {
        let pairs = request.sample.chunks.windows(2);
        let gaps: Vec<u64> =
            pairs.map(|pair| pair[1].at_ns.saturating_sub(pair[0].at_ns)).collect();
        if let Some(itl_token_ns) = &mut self.itl_token_ns {
            itl_token_ns.extend(token_gaps(&gaps, &request.credit.per_chunk));
        }
        self.itl_chunk_ns.extend(gaps);
    }

    /// Summarizes each part of TTFT by its mean, percentiles and maximum over the answered
    /// requests; `None` if no request was answered.
    pub fn parts(&self) -> Option<schema::run::TtftParts> {
        let part =
            |read: fn(&TtftParts) -> u64| summarize(self.ttft_parts.iter().map(read).collect());
        let tls: Vec<u64> = self.ttft_parts.iter().filter_map(|parts| parts.tls_ns).collect();
        Some(schema::run::TtftParts {
            queue: part(|parts| parts.queue_ns)?,
            schedule_lag: part(|parts| parts.schedule_lag_ns)?,
            connect: part(|parts| parts.connect_ns)?,
            tls: if tls.is_empty() { None } else { summarize(tls) },
            send: part(|parts| parts.send_ns)?,
            server: part(|parts| parts.server_ns)?,
            parse: part(|parts| parts.parse_ns)?,
        })
    }

    /// Builds the histograms of latencies for the run's record, in microseconds.
    ///
    /// # Errors
    /// A time exceeds what a record can hold.
    pub fn histograms(&self) -> Result<Histograms, HistogramError> {
        let histogram = |samples: &[u64]| {
            HdrHistogram::from_samples(samples.iter().map(|ns| to_us(*ns))).map(Some)
        };
        let itl_token = self.itl_token_ns.as_deref().map(histogram).transpose()?.flatten();
        let queue = Some(&self.queue_ns).filter(|queue| !queue.is_empty());
        let queue = queue.map(|queue| histogram(queue)).transpose()?.flatten();
        Ok(Histograms {
            ttft_us: histogram(&self.ttft_ns)?,
            ttft_scheduled_us: histogram(&self.ttft_scheduled_ns)?,
            tpot_us: histogram(&self.tpot_ns)?,
            itl_chunk_us: histogram(&self.itl_chunk_ns)?,
            itl_token_us: itl_token,
            e2e_us: histogram(&self.e2e_ns)?,
            e2e_scheduled_us: histogram(&self.e2e_scheduled_ns)?,
            queue_us: queue,
            connect_us: histogram(&self.connect_ns)?,
            schedule_lag_us: histogram(&self.schedule_lag_ns)?,
        })
    }
}

/// Returns the gap before each token after the first chunk, from `gaps`, the gaps between chunks,
/// and `per_chunk`, the number of tokens in each chunk. The tokens of a chunk have equal shares of
/// the time since the last chunk with a token, rounded down; the time after the last such chunk is
/// added to the last token, or is the only gap where no token follows the first chunk. Gaps of 10
/// and 20 between chunks of 1, 0 and 2 tokens give 15 and 15.
pub(super) fn token_gaps(gaps: &[u64], per_chunk: &[u64]) -> Vec<u64> {
    let mut found = Vec::new();
    let mut carried = 0;
    for (gap, tokens) in gaps.iter().zip(per_chunk.iter().skip(1)) {
        carried += gap;
        if let Some(each) = carried.checked_div(*tokens) {
            let count = usize::try_from(*tokens).unwrap_or(0);
            found.extend(std::iter::repeat_n(each, count));
            carried = 0;
        }
    }
    match found.last_mut() {
        Some(last) => *last += carried,
        None => found.extend((carried > 0).then_some(carried)),
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::sample::{ChunkStamp, Sample};
    use crate::measure::tally::untokenized;

    fn sample(chunks: &[(u64, u32)]) -> Sample {
        let stamp = |(at_ns, tokens): &(u64, u32)| ChunkStamp {
            at_ns: *at_ns,
            lag_ns: 0,
            early_ns: 0,
            tokens: Some(*tokens),
            text_bytes: 2,
        };
        Sample {
            scheduled_ns: 900,
            taken_ns: Some(1000),
            sent_ns: Some(1000),
            written_ns: Some(1010),
            first_event_ns: Some(1500),
            first_content_ns: None,
            connect_ns: Some(50),
            chunks: chunks.iter().map(stamp).collect(),
            end_ns: 99_999,
            ..Sample::default()
        }
    }

    fn of(samples: &[Sample]) -> Distributions {
        Distributions::of(&untokenized(samples))
    }

    #[test]
    fn times_follow_their_definitions() {
        let found = of(&[sample(&[(3000, 1), (5000, 4), (6000, 1)]), sample(&[(2000, 1)])]);
        let expected = Distributions {
            ttft_ns: vec![2000, 1000],
            ttft_scheduled_ns: vec![2100, 1100],
            tpot_ns: vec![600],
            itl_chunk_ns: vec![2000, 1000],
            itl_token_ns: Some(vec![500, 500, 500, 500, 1000]),
            e2e_ns: vec![5000, 1000],
            e2e_scheduled_ns: vec![5100, 1100],
            connect_ns: vec![50, 50],
            queue_ns: vec![],
            schedule_lag_ns: vec![100, 100],
            ttft_event_ns: vec![500, 500],
            ttft_content_ns: vec![],
            ttft_parts: [1990, 990]
                .map(|server_ns| TtftParts {
                    schedule_lag_ns: 100,
                    send_ns: 10,
                    server_ns,
                    ..TtftParts::default()
                })
                .to_vec(),
        };
        assert_eq!(found, expected, "the stream's end is no part of any of them");
    }

    #[test]
    fn gaps_per_token_add_up_however_the_tokens_lie_in_the_chunks() {
        let cases: [(&[u64], &[u64]); 5] = [
            (&[1, 2, 1], &[5, 5, 20]),
            (&[1, 0, 1], &[30]),
            (&[1, 1, 0], &[30]),
            (&[3, 0, 0], &[30]),
            (&[1, 0, 2], &[15, 15]),
        ];
        for (per_chunk, expected) in cases {
            assert_eq!(token_gaps(&[10, 20], per_chunk), expected, "{per_chunk:?}");
        }
        assert_eq!(token_gaps(&[], &[1]), [0; 0]);
    }

    #[test]
    fn gaps_per_token_are_unknown_where_one_chunk_is() {
        let mut unknown = sample(&[(2000, 1), (3000, 1)]);
        unknown.chunks[1].tokens = None;
        unknown.usage =
            Some(crate::client::delta::Usage { completion_tokens: 5, ..Default::default() });
        let found = of(&[sample(&[(2000, 1)]), unknown]);
        assert_eq!(found.itl_token_ns, None);
        let histograms = found.histograms().unwrap();
        assert_eq!(histograms.itl_token_us, None);
    }
}
