//! Stalls: gaps within answers that are long enough to be noticed, and how much of the time they
//! take. A median hides them, and a maximum does not say whether there was one or thousands.

use schema::run::Stalls;

use super::summary::float;
use super::to_us;

/// A longer gap is a stall. It is the limit on the time per token of MLPerf Inference for
/// Llama 2 70B, chosen there as the pace of a person who reads. The same for every run, so that
/// figures of two are comparable whatever limits they were asked to keep.
const STALL_NS: u64 = 200_000_000;

/// The stalls among `gaps` in nanoseconds between the chunks of answers; none of no gaps.
pub fn stalls(gaps: &[u64]) -> Option<Stalls> {
    let long: Vec<u64> = gaps.iter().copied().filter(|gap| *gap > STALL_NS).collect();
    let (within, all): (u64, u64) = (long.iter().sum(), gaps.iter().sum());
    (!gaps.is_empty()).then(|| Stalls {
        over_us: to_us(STALL_NS),
        gaps: long.len() as u64,
        time_share: float(within) / float(all.max(1)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_takes_the_whole_of_its_gap_and_begins_beyond_the_limit() {
        const MS: u64 = 1_000_000;
        let of = |gaps_ms: &[u64]| {
            let gaps: Vec<u64> = gaps_ms.iter().map(|ms| ms * MS).collect();
            stalls(&gaps).map(|found| (found.over_us, found.gaps, found.time_share))
        };
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[0, 0]), Some((200_000, 0, 0.0)), "chunks of one read");
        assert_eq!(of(&[100, 200]), Some((200_000, 0, 0.0)), "at the limit there is none");
        assert_eq!(of(&[100, 300, 200, 400]), Some((200_000, 2, 0.7)));
    }
}
