//! Limits that a request should keep, and how many do.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use super::summary::float;
use super::tally::Answered;
use super::window::Wall;

/// One limit. TTFT and E2E count from the scheduled send: a user who waits behind a cap waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slo {
    metric: Metric,
    limit_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Metric {
    Ttft,
    Tpot,
    E2e,
}

impl Metric {
    const NAMED: [(&'static str, Self); 3] =
        [("ttft_ms", Self::Ttft), ("tpot_ms", Self::Tpot), ("e2e_ms", Self::E2e)];
}

impl FromStr for Slo {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("`{text}` is no limit: give `ttft_ms=500`, `tpot_ms=…` or `e2e_ms=…`");
        let (name, limit) = text.split_once('=').ok_or_else(wrong)?;
        let named = Metric::NAMED.iter().find(|(known, _)| *known == name).ok_or_else(wrong)?;
        let limit_ms: f64 = limit.parse().map_err(|_| wrong())?;
        if !(0.001..=1e9).contains(&limit_ms) {
            return Err(wrong());
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "checked above"
        )]
        let limit_ns = (limit_ms * 1e6).round() as u64;
        Ok(Self { metric: named.1, limit_ns })
    }
}

impl fmt::Display for Slo {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Metric::NAMED.iter().find(|(_, metric)| *metric == self.metric);
        let name = name.map_or("", |(name, _)| name);
        write!(formatter, "{name}={}", float(self.limit_ns) / 1e6)
    }
}

impl Slo {
    fn is_met(&self, request: &Answered<'_>) -> bool {
        let sample = request.sample;
        let Some((first, last)) = sample.span() else { return false };
        let since = |at_ns: u64| at_ns.saturating_sub(sample.scheduled_ns);
        let found_ns = match self.metric {
            Metric::Ttft => since(first.at_ns),
            Metric::E2e => since(last.at_ns),
            // A single token has no time after the first.
            Metric::Tpot => {
                let decode_ns = last.at_ns.saturating_sub(first.at_ns);
                decode_ns.checked_div(request.credit.tokens.saturating_sub(1)).unwrap_or(0)
            }
        };
        found_ns <= self.limit_ns
    }
}

/// How many requests were answered within all of `slos`.
pub fn met(slos: &[Slo], answered: &[Answered<'_>]) -> u64 {
    let good = |request: &&Answered<'_>| slos.iter().all(|slo| slo.is_met(request));
    answered.iter().filter(good).count() as u64
}

/// Requests a second that keep each limit, and that keep `all` of them; none of no limits.
pub fn goodput(
    slos: &[Slo],
    answered: &[Answered<'_>],
    wall: Wall,
) -> Option<BTreeMap<String, f64>> {
    let seconds = float(wall.length_ns()) / 1e9;
    let rate = |slos: &[Slo]| float(met(slos, answered)) / seconds;
    let each = slos.iter().map(|slo| (slo.to_string(), rate(&[*slo])));
    (!slos.is_empty()).then(|| each.chain([("all".to_owned(), rate(slos))]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::sample::{ChunkStamp, Sample};
    use crate::measure::credit::credit;

    const MS: u64 = 1_000_000;

    /// Scheduled at 0, sent at 100 ms, tokens at these.
    fn sample(tokens_ms: &[u64]) -> Sample {
        let stamp =
            |ms: &u64| ChunkStamp { at_ns: ms * MS, lag_ns: 0, tokens: Some(1), text_bytes: 1 };
        Sample {
            sent_ns: Some(100 * MS),
            chunks: tokens_ms.iter().map(stamp).collect(),
            ..Sample::default()
        }
    }

    #[test]
    fn limits_count_from_the_schedule_and_hold_at_their_value() {
        let samples = [sample(&[150, 170, 190]), sample(&[300])];
        let answered: Vec<Answered<'_>> = samples
            .iter()
            .map(|sample| Answered {
                sample,
                credit: credit(sample, None),
                prompt_tokens: 1,
                requested: 1,
                retokenized: None,
            })
            .collect();
        let met = |limits: &[&str]| {
            let slos: Vec<Slo> = limits.iter().map(|limit| limit.parse().unwrap()).collect();
            met(&slos, &answered)
        };
        assert_eq!([met(&[]), met(&["ttft_ms=150"]), met(&["ttft_ms=149.9"])], [2, 1, 0]);
        assert_eq!([met(&["tpot_ms=20"]), met(&["tpot_ms=19.999"])], [2, 1], "one has no TPOT");
        assert_eq!([met(&["e2e_ms=300"]), met(&["e2e_ms=300", "ttft_ms=200"])], [2, 1]);
        let wall = Wall { start_ns: 0, end_ns: 500 * MS };
        let slos = ["ttft_ms=150".parse().unwrap(), "e2e_ms=300".parse().unwrap()];
        assert_eq!(goodput(&[], &answered, wall), None);
        let rates = goodput(&slos, &answered, wall).unwrap();
        let rates: Vec<(&str, f64)> =
            rates.iter().map(|(name, rate)| (name.as_str(), *rate)).collect();
        assert_eq!(rates, [("all", 2.0), ("e2e_ms=300", 4.0), ("ttft_ms=150", 2.0)]);
    }

    #[test]
    fn what_is_no_limit_is_refused_by_name() {
        for text in ["ttft", "ttft=5", "ttft_ms=x", "ttft_ms=-1", "itl_ms=5"] {
            assert!(text.parse::<Slo>().unwrap_err().contains(text), "{text}");
        }
    }
}
