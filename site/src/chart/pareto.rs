//! Pareto chart: a scatter plot of two figures that trade off against each other. More is better
//! on both axes; a point that another of its series dominates is faint.

use judge::pareto::frontier;

use super::scale::{Scale, round_up};
use super::svg::{Anchor, SERIES, Svg};
use super::{Mark, WIDTH, coordinate_of, fitted, x_axis, y_axis};

/// Point of a Pareto chart: one configuration in one scenario.
#[derive(Debug, Clone)]
pub struct ParetoPoint {
    pub x: f64,
    pub y: f64,
    pub mark: Mark,
    /// Tooltip of the Pareto chart's point: configuration, scenario, and speed and throughput in
    /// tokens per second.
    pub text: String,
}

/// Series of a Pareto chart: the points of one configuration. Its color and shape follow from its
/// index in the chart.
#[derive(Debug, Clone)]
pub struct ParetoSeries {
    pub label: String,
    pub points: Vec<ParetoPoint>,
}

const LEFT: f64 = 38.0;
const LEGEND_ROW: f64 = 18.0;
const PLOT: f64 = 220.0;

/// Draws the Pareto chart of several series. Points that are not finite are left out; the chart's
/// table has them.
pub fn pareto(x_label: &str, y_label: &str, all: &[&ParetoSeries]) -> Svg {
    let top = LEGEND_ROW * coordinate_of(all.len()) + 22.0;
    let bottom = top + PLOT;
    let mut svg = Svg::new(WIDTH, bottom + 34.0);
    let largest = |of: fn(&ParetoPoint) -> f64| {
        round_up(all.iter().flat_map(|series| drawn(series)).map(of).fold(0.0, f64::max))
    };
    let x = Scale::linear((0.0, largest(|point| point.x)), (LEFT, WIDTH - 8.0));
    let y = Scale::linear((0.0, largest(|point| point.y)), (bottom, top));
    svg.text("axis", (0.0, top - 9.0), Anchor::Start, y_label);
    y_axis(&mut svg, &y, LEFT);
    x_axis(&mut svg, &x, top, bottom, x_label);
    for (index, series) in all.iter().enumerate() {
        let (left, row) = (6.0, 7.0 + LEGEND_ROW * coordinate_of(index));
        let mark = series.points.first().map_or(Mark::Gray, |point| point.mark);
        svg.mark(&class("mark", mark, index), index, (left, row), &series.label);
        let label = fitted(&series.label, WIDTH - 18.0);
        svg.text("legend", (left + 10.0, row + 4.0), Anchor::Start, &label);
        draw_series(&mut svg, (&x, &y), series, index);
    }
    svg
}

fn drawn(series: &ParetoSeries) -> impl Iterator<Item = &ParetoPoint> {
    series.points.iter().filter(|point| point.x.is_finite() && point.y.is_finite())
}

fn class(kind: &str, mark: Mark, series: usize) -> String {
    match mark {
        // Only figures that were measured more than once have a color.
        Mark::Color => format!("{kind} color s{}", series % SERIES),
        Mark::Gray | Mark::Hollow => format!("{kind} {}", mark.class()),
    }
}

fn draw_series(svg: &mut Svg, (x, y): (&Scale, &Scale), series: &ParetoSeries, index: usize) {
    let points: Vec<&ParetoPoint> = drawn(series).collect();
    let best = frontier(&points.iter().map(|point| (point.x, point.y)).collect::<Vec<_>>());
    let on_frontier: Vec<&ParetoPoint> = best.iter().map(|index| points[*index]).collect();
    let mut steps = Vec::new();
    for (index, here) in on_frontier.iter().enumerate() {
        steps.push((x.at(here.x), y.at(here.y)));
        // Between two points only the lower of both figures is known to be reachable.
        steps.extend(on_frontier.get(index + 1).map(|next| (x.at(here.x), y.at(next.y))));
    }
    if let (Some(first), [_, _, ..]) = (on_frontier.first(), on_frontier.as_slice()) {
        svg.path(&class("step", first.mark, index), &steps);
    }
    for (place, point) in points.iter().enumerate() {
        let faint = if best.contains(&place) { "" } else { " faint" };
        let class = class("mark", point.mark, index) + faint;
        svg.mark(&class, index, (x.at(point.x), y.at(point.y)), &point.text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(mark: Mark, points: &[(f64, f64)]) -> String {
        let point =
            |(x, y): &(f64, f64)| ParetoPoint { x: *x, y: *y, mark, text: format!("{x} and {y}") };
        let series =
            ParetoSeries { label: "redline".into(), points: points.iter().map(point).collect() };
        pareto("tokens/s per user", "tokens/s per GPU", &[&series]).finish("Pareto frontier", "d")
    }

    #[test]
    fn a_dominated_point_is_faint_and_off_the_step_line() {
        let svg = chart(Mark::Color, &[(10.0, 900.0), (40.0, 500.0), (30.0, 400.0)]);
        let marks: Vec<&str> =
            svg.lines().filter(|line| line.contains("mark") || line.contains("step")).collect();
        expect_test::expect![[r#"
            <circle class="mark color s0" cx="6" cy="7" r="4"><title>redline</title></circle>
            <path class="step color s0" d="M116.5 62L116.5 150L352 150"/>
            <circle class="mark color s0" cx="116.5" cy="62" r="4"><title>10 and 900</title></circle>
            <circle class="mark color s0" cx="352" cy="150" r="4"><title>40 and 500</title></circle>
            <circle class="mark color s0 faint" cx="273.5" cy="172" r="4"><title>30 and 400</title></circle>"#]]
        .assert_eq(&marks.join("\n"));
    }

    #[test]
    fn claims_have_no_color_and_wild_figures_draw_nothing_wild() {
        let svg = chart(Mark::Hollow, &[(1e12, 0.0), (f64::NAN, 1.0), (0.0, f64::INFINITY)]);
        assert!(svg.contains("mark hollow") && !svg.contains(" s0"), "{svg}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        assert!(!chart(Mark::Gray, &[]).contains("NaN"));
    }
}
