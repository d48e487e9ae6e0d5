//! Pareto frontier of serving configurations: speed for one user against throughput, and the cost of
//! tokens. More is better in both figures.

use std::cmp::Ordering;

use schema::metric::by_name;
use schema::run::RunRecord;

use crate::rule::on_cpu;
use crate::summary::{self, Summary};
use crate::validity::value;

/// Speed, throughput and cost of one configuration at one concurrency or request rate, each
/// summarized over the repeats.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tradeoff {
    /// Output tokens per second that one user sees: 1 / median TPOT of each repeat, summarized over
    /// the repeats.
    pub speed: Summary,
    /// Output tokens per second of each repeat, divided by the tensor-parallel size (1 if unknown)
    /// unless the machine is known to have no GPU; summarized over the repeats.
    pub throughput: Summary,
    /// GPU hours (machine hours without a GPU) for a million output tokens, computed from the
    /// throughput of each repeat and summarized over the repeats.
    pub hours: Summary,
}

impl Tradeoff {
    /// Computes speed, throughput and cost over `repeats`; `None` where no run has speed, or none
    /// has throughput.
    pub fn of(repeats: &[&RunRecord]) -> Option<Self> {
        let over = |read: fn(&RunRecord) -> Option<f64>| {
            summary::of(&repeats.iter().filter_map(|run| read(run)).collect::<Vec<_>>())
        };
        // Hours are converted run by run, so that the range is one of hours and not of throughput.
        let hours = |run: &RunRecord| Some(1e6 / throughput(run)? / 3600.0);
        Some(Self { speed: over(speed)?, throughput: over(throughput)?, hours: over(hours)? })
    }

    /// Returns median speed and median throughput as the coordinates (x, y) of a point.
    pub fn point(&self) -> (f64, f64) {
        (self.speed.median, self.throughput.median)
    }

    /// Orders two configurations by speed for one user (the median over the repeats), so that the
    /// fastest comes first.
    pub fn fastest_first(&self, other: &Self) -> Ordering {
        other.speed.median.total_cmp(&self.speed.median)
    }
}

fn speed(run: &RunRecord) -> Option<f64> {
    let us = value(by_name("tpot_us_p50")?, run).filter(|us| *us > 0.0)?;
    Some(1e6 / us)
}

fn throughput(run: &RunRecord) -> Option<f64> {
    let all = value(by_name("output_tokens_per_s")?, run).filter(|rate| *rate > 0.0)?;
    let gpus = match on_cpu(run) {
        true => 1,
        false => run.server.as_ref().and_then(|server| server.tp).unwrap_or(1).max(1),
    };
    Some(all / f64::from(gpus))
}

/// Returns the indices of the points that no other point dominates, from left to right (by the
/// first coordinate).
pub fn frontier(points: &[(f64, f64)]) -> Vec<usize> {
    let is_dominated = |point: (f64, f64)| points.iter().any(|other| dominates(*other, point));
    let mut best: Vec<usize> = (0..points.len()).filter(|at| !is_dominated(points[*at])).collect();
    best.sort_by(|a, b| points[*a].0.total_cmp(&points[*b].0));
    best
}

/// Returns for each point whether none of the others dominates it; false for a missing one.
pub fn are_on_frontier(points: &[Option<(f64, f64)>]) -> Vec<bool> {
    let is_dominated =
        |point: (f64, f64)| points.iter().flatten().any(|other| dominates(*other, point));
    points.iter().map(|point| point.is_some_and(|point| !is_dominated(point))).collect()
}

/// True when `a` dominates `b` (Pareto): `a` is better in one coordinate and worse in neither.
fn dominates(a: (f64, f64), b: (f64, f64)) -> bool {
    // Equal points do not dominate each other, or both would be hidden.
    a.0 >= b.0 && a.1 >= b.1 && a != b
}

/// Returns the indices of `series` (the points of one configuration each) by the highest throughput
/// that each reaches, highest first.
pub fn by_throughput(series: &[Vec<(f64, f64)>]) -> Vec<usize> {
    let highest = |at: usize| series[at].iter().map(|point| point.1).fold(0.0, f64::max);
    let mut order: Vec<usize> = (0..series.len()).collect();
    order.sort_by(|a, b| highest(*b).total_cmp(&highest(*a)));
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_worse_in_both_is_not_best() {
        assert!(dominates((2.0, 2.0), (1.0, 2.0)));
        assert!(!dominates((2.0, 1.0), (1.0, 2.0)));
        assert!(!dominates((1.0, 1.0), (1.0, 1.0)), "equals do not hide each other");
        let points = [(40.0, 500.0), (30.0, 400.0), (10.0, 900.0), (10.0, 900.0)];
        assert_eq!(frontier(&points), [2, 3, 0]);
        assert_eq!(frontier(&[]), [0; 0]);
    }

    #[test]
    fn a_configuration_without_figures_is_on_no_frontier_and_hides_none() {
        let points = [Some((1.0, 1.0)), Some((2.0, 2.0)), None];
        assert_eq!(are_on_frontier(&points), [false, true, false]);
    }

    #[test]
    fn series_are_ordered_by_their_highest_throughput() {
        let series = [vec![(1.0, 2.0), (2.0, 1.0)], vec![(1.0, 3.0)], vec![]];
        assert_eq!(by_throughput(&series), [1, 0, 2]);
    }

    #[test]
    fn figures_are_those_of_one_gpu() {
        let mut run = samples::Sample::default().record();
        let on_a_cpu = Tradeoff::of(&[&run]).expect("both figures");
        run.hardware.gpu = Some(vec![schema::run::Gpu::default(); 2]);
        run.server.as_mut().expect("a server").tp = Some(2);
        let on_two = Tradeoff::of(&[&run]).expect("both figures");
        assert_eq!(on_two.throughput.median * 2.0, on_a_cpu.throughput.median);
        assert_eq!(on_two.speed, on_a_cpu.speed);
        assert!((on_two.hours.median * on_two.throughput.median * 3600.0 - 1e6).abs() < 1e-3);
        assert_eq!(Tradeoff::of(&[]), None);
    }
}
