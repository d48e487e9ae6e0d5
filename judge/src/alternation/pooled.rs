//! Judgement of each metric over all scenarios of a model together. A scenario alone has minutes and
//! sees a few percent; most changes of an engine move all its scenarios alike, and all starts of a
//! gate together see about half of that.
//!
//! Each start counts once, whichever scenario it ran. The looks are at the ends of the scenarios,
//! from the second on. The tests of scenarios and those over all of them divide the error probability
//! into halves.

use schema::alternation::AlternatingComparison;
use schema::metric::Metric;
use schema::scenario::Arrival;
use schema::verdict::Extent;

use super::decision::{Call, Course, Judged, Standing, metrics};
use crate::diff::estimate::Fit;

/// Model and arrival process of a planned comparison; `None` where the arrival process is not known.
pub type Planned<'a> = (&'a str, Option<&'a Arrival>);

/// Returns the number of equal parts of the error probability of which each release-blocking metric
/// of a scenario has one, for the planned comparisons `all`: the number of these metrics, doubled
/// where a model has several scenarios and its metrics are judged over all of them too.
pub fn family(all: &[Planned<'_>]) -> u32 {
    let of_scenario = |(_, arrival): &Planned<'_>| blocking(&[*arrival]).len();
    parts(all.iter().map(of_scenario).sum(), tests(all) > 0)
}

/// Returns the comparisons of `all` by model, in the order of their first ones.
pub fn by_model(all: &[AlternatingComparison]) -> Vec<Vec<&AlternatingComparison>> {
    let mut models: Vec<Vec<&AlternatingComparison>> = Vec::new();
    for one in all {
        match models.iter_mut().find(|own| own[0].model == one.model) {
            Some(own) => own.push(one),
            None => models.push(vec![one]),
        }
    }
    models
}

/// Judges the metrics of one model over the comparisons `own` of its scenarios, all of which have
/// ended; `all` are the comparisons of the campaign. Judges nothing in a single scenario.
pub fn judge(own: &[&AlternatingComparison], all: &[AlternatingComparison]) -> Vec<Judged> {
    let planned: Vec<Planned<'_>> =
        all.iter().map(|one| (&*one.model, one.arrival.as_ref())).collect();
    let courses: Vec<Course<'_>> = own.iter().map(|one| Course::of(one)).collect();
    judge_courses(&courses, own.len(), &planned)
}

/// Judges the metrics of one model over the courses of those of its `scenarios` comparisons that have
/// ended, in the order of time, as [`judge`] does; `planned` are the comparisons of the campaign.
pub fn judge_courses(
    courses: &[Course<'_>],
    scenarios: usize,
    planned: &[Planned<'_>],
) -> Vec<Judged> {
    if scenarios < 2 || courses.len() < 2 {
        return Vec::new();
    }
    let family = parts(tests(planned), true);
    let arrivals: Vec<Option<&Arrival>> = courses.iter().map(|course| course.arrival).collect();
    let found = blocking(&arrivals).into_iter();
    found.filter_map(|metric| judged(courses, (scenarios, family), metric)).collect()
}

/// Judges one metric at the looks that are reached, in their order, until one decides it.
fn judged(
    courses: &[Course<'_>],
    (scenarios, family): (usize, u32),
    (metric, min_effect_pct): (&'static Metric, f64),
) -> Option<Judged> {
    let at = |ended: usize| {
        let of_course =
            |course: &Course<'_>| (course.log_ratios)(metric.name, course.ends_us.len());
        let logs: Vec<f64> = courses[..ended].iter().flat_map(of_course).collect();
        let standing = Standing { metric, min_effect_pct, fit: Fit::of(&logs)? };
        let share = share(ended - 1, scenarios - 1);
        let call = standing.call(share, family);
        let judged = standing.judged(call, share, family, extent(&courses[..ended]));
        Some(Judged { scenarios: ended, ..judged })
    };
    let mut decided = (2..courses.len()).filter_map(at).filter(|one| one.call != Call::Open);
    decided.next().or_else(|| at(courses.len()))
}

/// Returns the share of the error probability that the look of this number spends, from 1: the later
/// of `looks`, the more.
#[expect(clippy::cast_precision_loss, reason = "a model has few scenarios")]
fn share(number: usize, looks: usize) -> f64 {
    (2 * number - 1) as f64 / (looks * looks) as f64
}

/// Returns the extent of all starts of `courses`; the budget is what they spent and what the last one
/// left.
fn extent(courses: &[Course<'_>]) -> Extent {
    let mut all = Extent { starts: 0, slices: 0, spent_us: 0, budget_us: 0 };
    for course in courses {
        let own = course.extent(course.ends_us.len());
        all.budget_us = all.spent_us + own.budget_us;
        all.starts += own.starts;
        all.slices += own.slices;
        all.spent_us += own.spent_us;
    }
    all
}

/// Returns the number of tests over all scenarios of a model, for all models of the planned
/// comparisons `all` that have several.
fn tests(all: &[Planned<'_>]) -> usize {
    let mut models: Vec<(&str, Vec<Option<&Arrival>>)> = Vec::new();
    for (model, arrival) in all {
        match models.iter_mut().find(|(known, _)| known == model) {
            Some((_, arrivals)) => arrivals.push(*arrival),
            None => models.push((model, vec![*arrival])),
        }
    }
    let several = models.iter().filter(|(_, arrivals)| arrivals.len() > 1);
    several.map(|(_, arrivals)| blocking(arrivals).len()).sum()
}

/// Returns the metrics that are release-blocking in each of the scenarios with these arrival
/// processes, with their minimum effects in percent.
fn blocking(arrivals: &[Option<&Arrival>]) -> Vec<(&'static Metric, f64)> {
    let blocks = |arrival: Option<&Arrival>, name: &str| {
        metrics(arrival).any(|(metric, _, gates)| gates && metric.name == name)
    };
    let Some((first, others)) = arrivals.split_first() else { return Vec::new() };
    let found = metrics(*first).filter(|(metric, _, gates)| {
        *gates && others.iter().all(|other| blocks(*other, metric.name))
    });
    found.map(|(metric, min_effect_pct, _)| (metric, min_effect_pct)).collect()
}

fn parts(tests: usize, halved: bool) -> u32 {
    u32::try_from(if halved { 2 * tests } else { tests }).unwrap_or(u32::MAX)
}
