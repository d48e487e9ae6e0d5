//! Effect of a comparison as an improvement, so that effects of metrics that improve upward and
//! downward can be shown on one axis.

use schema::comparison::Row;
use schema::metric::Better;

/// Improvement of the candidate over the baseline, in percent: above zero where the candidate is
/// better.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Improvement {
    /// Candidate / baseline where higher values are better, else baseline / candidate, minus one, in
    /// percent: half of a latency is an improvement of 100 %.
    pub pct: f64,
    /// Two-sided interval of the improvement, in percent; `None` where the verdict has none.
    pub interval_pct: Option<(f64, f64)>,
}

/// Returns the improvement that the effect of `row` is; `None` for a row without an effect.
pub fn of(row: &Row) -> Option<Improvement> {
    let verdict = &row.verdict;
    verdict.effect_pct.map(|pct| improvement(row.better, pct, verdict.interval_pct))
}

fn improvement(better: Better, pct: f64, interval_pct: Option<(f64, f64)>) -> Improvement {
    match better {
        Better::Higher => Improvement { pct, interval_pct },
        Better::Lower => Improvement {
            pct: inverse(pct),
            interval_pct: interval_pct.map(|(low, high)| (inverse(high), inverse(low))),
        },
    }
}

/// Returns the change in percent of the inverse of a figure that changed by `pct` percent; infinite
/// for a figure that became zero.
fn inverse(pct: f64) -> f64 {
    let ratio = 1.0 + pct / 100.0;
    if ratio > 0.0 { (1.0 / ratio - 1.0) * 100.0 } else { f64::INFINITY }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_halved_latency_improves_as_much_as_a_doubled_throughput() {
        let throughput = improvement(Better::Higher, 100.0, Some((60.0, 150.0)));
        let latency = improvement(Better::Lower, -50.0, Some((-60.0, -37.5)));
        assert_eq!(throughput.pct, 100.0);
        assert!((latency.pct - 100.0).abs() < 1e-9, "{latency:?}");
        let (low, high) = latency.interval_pct.expect("an interval");
        assert!((low - 60.0).abs() < 1e-9 && (high - 150.0).abs() < 1e-9, "{latency:?}");
        let worse = improvement(Better::Lower, 25.0, None);
        assert!((worse.pct + 20.0).abs() < 1e-9, "{worse:?}");
        assert_eq!(improvement(Better::Lower, -100.0, None).pct, f64::INFINITY);
    }
}
