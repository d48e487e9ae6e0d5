//! Send times of requests under an arrival process (constant request rate, Poisson, gamma, ramp,
//! trace), computed before the run.
//!
//! Gaps come from NumPy's legacy generator with the workload's seed. Their sum is not corrected to
//! hit the nominal duration: that would no longer be the requested process.

use anyhow::Context;
use schema::manifest::{Manifest, ManifestRequest};
use schema::scenario::{Arrival, Growth};

use super::generators::NumpyRandom;
use crate::measure::summary::{float, whole};

/// Sets the send time in microseconds of every request by the arrival process. With computed times
/// the first request is sent at 0; a trace keeps its own times, divided by its speed. A request
/// that waits for another one keeps its think time.
pub fn schedule(requests: &mut [ManifestRequest], arrival: &Arrival, seed: u32) {
    let first = requests.iter_mut().filter(|request| request.after.is_none());
    if let Arrival::Trace { speed, .. } = arrival {
        return first.for_each(|request| request.send_us = whole(float(request.send_us) / speed));
    }
    let first: Vec<&mut ManifestRequest> = first.collect();
    let times = times_us(arrival, first.len(), seed);
    for (request, time_us) in first.into_iter().zip(times) {
        request.send_us = time_us;
    }
}

/// Converts a scenario's seed to the 32 bits that NumPy's legacy generator takes.
///
/// # Errors
/// The seed is beyond 32 bits.
pub fn seed_of_numpy(seed: u64) -> anyhow::Result<u32> {
    let beyond =
        || format!("`workload.seed` {seed} is beyond the 32 bits that NumPy's generator takes");
    u32::try_from(seed).with_context(beyond)
}

/// Replaces the send times of a manifest by those of another arrival process.
///
/// # Errors
/// The manifest's seed exceeds the generator's 32 bits.
pub fn reschedule(manifest: &mut Manifest, arrival: &Arrival) -> anyhow::Result<()> {
    let seed = seed_of_numpy(manifest.seed)?;
    schedule(&mut manifest.requests, arrival, seed);
    Ok(())
}

/// Returns the constant mean rate of an arrival process, in requests per second; `None` if all
/// requests come at once, in a closed loop, in a ramp or by a trace.
pub fn requested_rate(arrival: &Arrival) -> Option<f64> {
    match arrival {
        Arrival::Constant { requests_per_s, .. }
        | Arrival::Poisson { requests_per_s, .. }
        | Arrival::Gamma { requests_per_s, .. } => Some(*requests_per_s),
        _ => None,
    }
}

/// Returns the arrival process `arrival` with another mean rate: the same kind of process where it
/// has a constant mean rate, otherwise Poisson. A concurrency limit is kept, except that of a
/// closed loop.
pub fn at_rate(arrival: &Arrival, requests_per_s: f64) -> Arrival {
    let concurrency_max = match arrival {
        // The limit of a closed loop is its load; at a given rate it would distort the process.
        Arrival::Closed { .. } => None,
        open => open.concurrency_max(),
    };
    match arrival {
        Arrival::Constant { .. } => Arrival::Constant { requests_per_s, concurrency_max },
        Arrival::Gamma { shape, .. } => {
            Arrival::Gamma { requests_per_s, shape: *shape, concurrency_max }
        }
        _ => Arrival::Poisson { requests_per_s, concurrency_max },
    }
}

/// Returns the send times of `count` requests under an arrival process, in microseconds from the
/// run's start, ascending.
fn times_us(arrival: &Arrival, count: usize, seed: u32) -> Vec<u64> {
    let mut random = NumpyRandom::seed(seed);
    let mut after_gaps = |rate: f64, gap: &dyn Fn(&mut NumpyRandom) -> f64| {
        let mut sum = 0.0;
        let mut next = |index: usize| {
            if index > 0 {
                sum += gap(&mut random);
            }
            whole(sum * 1e6 / rate)
        };
        (0..count).map(&mut next).collect()
    };
    match arrival {
        Arrival::AllAtOnce | Arrival::Closed { .. } | Arrival::Trace { .. } => vec![0; count],
        Arrival::Constant { requests_per_s: rate, .. } => {
            // Computed from the index, so that rounding errors do not add up.
            (0..count as u64).map(|index| whole(float(index) * 1e6 / rate)).collect()
        }
        Arrival::Poisson { requests_per_s: rate, .. } => {
            after_gaps(*rate, &|random| random.exponential())
        }
        Arrival::Gamma { requests_per_s: rate, shape, .. } => {
            after_gaps(*rate, &|random| random.gamma(*shape) / shape)
        }
        Arrival::Ramp {
            from_requests_per_s: from, to_requests_per_s: to, growth, shape, ..
        } => {
            let ends = (*from, *to);
            match growth {
                Growth::Time => {
                    let count = count as u64;
                    (0..count).map(|index| ramp_us(index, count, ends)).collect()
                }
                _ => ramp_by_request_us(count as u64, *growth, ends, || {
                    shape.map_or(1.0, |shape| random.gamma(shape) / shape)
                }),
            }
        }
    }
}

/// Returns the send time in microseconds of request `index` out of `count` on a ramp: the root of
/// `from t + slope t^2 / 2 = index`, for a rate that changes linearly from `from` to `to` and
/// reaches `to` when all are sent.
fn ramp_us(index: u64, count: u64, (from, to): (f64, f64)) -> u64 {
    let length_s = 2.0 * float(count) / (from + to);
    let slope = (to - from) / length_s;
    let due = float(index);
    // At the end of a ramp to almost zero, rounding may make the radicand negative.
    let root = (from * from + 2.0 * slope * due).max(0.0).sqrt();
    whole(2.0 * due / (from + root) * 1e6)
}

/// Returns the send times in microseconds of `count` requests on a ramp whose rate grows with the
/// number of the request. `gap` draws a gap as a multiple of the mean one at its rate.
fn ramp_by_request_us(
    count: u64,
    growth: Growth,
    (from, to): (f64, f64),
    mut gap: impl FnMut() -> f64,
) -> Vec<u64> {
    let last = float(count.saturating_sub(1).max(1));
    let mut sent_s = 0.0;
    let mut next = |index: u64| {
        let share = float(index) / last;
        let rate = match growth {
            Growth::RequestExponential => from * libm::pow(to / from, share),
            _ => from + (to - from) * share,
        };
        if index > 0 {
            sent_s += gap() / rate;
        }
        whole(sent_s * 1e6)
    };
    (0..count).map(&mut next).collect()
}

/// Returns the name that vLLM's tool has for a growth of the rate; `None` for one that it has not.
pub fn ramp_up_strategy(growth: Growth) -> Option<&'static str> {
    match growth {
        Growth::Time => None,
        Growth::RequestLinear => Some("linear"),
        Growth::RequestExponential => Some("exponential"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNT: usize = 20_000;

    fn arrival(text: &str) -> Arrival {
        toml::from_str::<std::collections::BTreeMap<String, Arrival>>(&format!("a = {{ {text} }}"))
            .unwrap()
            .remove("a")
            .unwrap()
    }

    fn gaps_s(text: &str) -> Vec<f64> {
        let times = times_us(&arrival(text), COUNT, 1);
        assert!(times.is_sorted(), "{text}");
        times.windows(2).map(|pair| float(pair[1] - pair[0]) / 1e6).collect()
    }

    /// Test helper: returns the Kolmogorov-Smirnov statistic, the largest distance between the
    /// distribution of `gaps` and the expected one, `cumulative`.
    fn distance(mut gaps: Vec<f64>, cumulative: impl Fn(f64) -> f64) -> f64 {
        gaps.sort_by(f64::total_cmp);
        let count = float(gaps.len() as u64);
        let steps = gaps.iter().enumerate().map(|(index, gap)| {
            let (below, at) = (float(index as u64) / count, float(index as u64 + 1) / count);
            let due = cumulative(*gap);
            (due - below).abs().max((at - due).abs())
        });
        steps.fold(0.0, f64::max)
    }

    #[test]
    fn gaps_have_the_distribution_that_is_asked_for() {
        // Critical value at a level of 0.1 %. Gaps are whole microseconds, so a bursty process has
        // a smooth distribution only at a low rate.
        let most = 1.95 / float(COUNT as u64).sqrt();
        let poisson = gaps_s("kind = 'poisson', requests_per_s = 50.0");
        assert!(distance(poisson, |gap| 1.0 - (-50.0 * gap).exp()) < most);
        let gamma = |shape: f64, rate: f64| {
            statrs::distribution::Gamma::new(shape, shape * rate).expect("a distribution")
        };
        for (shape, rate) in [(0.5, 0.01), (4.0, 8.0)] {
            let gaps = gaps_s(&format!("kind = 'gamma', requests_per_s = {rate}, shape = {shape}"));
            let wanted = gamma(shape, rate);
            let found =
                distance(gaps, |gap| statrs::distribution::ContinuousCDF::cdf(&wanted, gap));
            assert!(found < most, "shape {shape}: {found}");
        }
    }

    #[test]
    fn a_constant_rate_never_drifts() {
        let times = times_us(&arrival("kind = 'constant', requests_per_s = 3.0"), 9001, 1);
        assert_eq!((times[0], times[1], times[9000]), (0, 333_333, 3_000_000_000));
    }

    #[test]
    fn a_ramp_gains_speed_evenly() {
        let ramp = "kind = 'ramp', from_requests_per_s = 1.0, to_requests_per_s = 3.0";
        let times = times_us(&arrival(ramp), 400, 1);
        // 400 requests at a mean of 2/s take 200 s; half of the time gives 1 * 100 + 0.01 / 2 *
        // 100^2.
        let before_half = times.iter().filter(|time| **time < 100_000_000).count();
        assert_eq!((times[0], before_half), (0, 150));
        assert!(times[399] < 200_000_000 && times[399] > 199_600_000);
        let flat = "kind = 'ramp', from_requests_per_s = 2.0, to_requests_per_s = 2.0";
        assert_eq!(times_us(&arrival(flat), 3, 1), [0, 500_000, 1_000_000]);
    }

    #[test]
    fn a_ramp_by_request_has_the_gaps_of_vllms_tool() {
        let times = |rest: &str, count| {
            let text = format!("kind = 'ramp', from_requests_per_s = 1.0, {rest}");
            times_us(&arrival(&text), count, 1)
        };
        // The second of three requests comes at a rate of 2/s.
        let linear = "to_requests_per_s = 3.0, growth = 'request-linear'";
        assert_eq!(times(linear, 3), [0, 500_000, 833_333]);
        let steep = "to_requests_per_s = 4.0, growth = 'request-exponential'";
        assert_eq!(times(steep, 3), [0, 500_000, 750_000]);
        assert_eq!(times(steep, 1), [0]);
        // A flat ramp with a shape of 1 is a Poisson process.
        let flat = "to_requests_per_s = 1.0, growth = 'request-linear', shape = 1.0";
        let poisson = arrival("kind = 'poisson', requests_per_s = 1.0");
        assert_eq!(times(flat, 50), times_us(&poisson, 50, 1));
        for rest in [linear, steep, flat] {
            let text = format!("kind = 'ramp', from_requests_per_s = 1.0, {rest}");
            let (span, last) = (arrival(&text).span_us(COUNT as u64), times(rest, COUNT));
            let ratio = float(span) / float(last[COUNT - 1]);
            assert!((ratio - 1.0).abs() < 0.03, "{text}: {ratio}");
        }
    }

    #[test]
    fn the_seed_alone_decides() {
        let poisson = arrival("kind = 'poisson', requests_per_s = 10.0");
        assert_eq!(times_us(&poisson, 50, 7), times_us(&poisson, 50, 7));
        assert_ne!(times_us(&poisson, 50, 7), times_us(&poisson, 50, 8));
        // NumPy 2.4: seed(1), round(cumsum(exponential(1 / 10, 3)) * 1e6).
        assert_eq!(times_us(&poisson, 4, 1), [0, 53_961, 181_373, 181_385]);
    }

    #[test]
    fn a_trace_keeps_its_times_and_a_turn_its_wait() {
        let request = |send_us, after| ManifestRequest { send_us, after, ..Default::default() };
        let given = [request(0, None), request(700, Some(0)), request(3000, None)];
        let mut requests = given.clone();
        schedule(&mut requests, &arrival("kind = 'trace', speed = 2.0"), 1);
        assert_eq!(requests.each_ref().map(|request| request.send_us), [0, 700, 1500]);
        schedule(&mut requests, &arrival("kind = 'constant', requests_per_s = 1000.0"), 1);
        assert_eq!(requests.each_ref().map(|request| request.send_us), [0, 700, 1000]);
    }
}
