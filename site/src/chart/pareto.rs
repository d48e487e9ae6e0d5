//! Pareto chart: a scatter plot of two figures that trade off against each other. More is better
//! on both axes; a point that another of its series dominates is faded.

use judge::pareto::frontier;

use super::scale::{Scale, round_up};
use super::svg::{Anchor, Svg};
use super::{AXIS, Key, Look, Tip, hollow_key, range_key, x_axis, y_axis};

/// Point of a Pareto chart: one configuration in one scenario.
#[derive(Debug, Clone)]
pub struct ParetoPoint {
    pub x: f64,
    pub y: f64,
    /// Smallest and largest value over the runs behind the point, on each axis; `None` for a single
    /// run.
    pub x_range: Option<(f64, f64)>,
    pub y_range: Option<(f64, f64)>,
    /// Tooltip of the Pareto chart's point: configuration, scenario, speed and throughput with their
    /// ranges, number of runs, flags and hardware.
    pub tip: Tip,
}

/// Series of a Pareto chart: the points of one configuration.
#[derive(Debug, Clone)]
pub struct ParetoSeries {
    pub label: String,
    pub look: Look,
    pub points: Vec<ParetoPoint>,
}

const TOP: f64 = 26.0;
const PLOT: f64 = 300.0;

/// Draws the Pareto chart of several series. Points that are not finite are left out; the chart's
/// table has them.
pub fn pareto(x_label: &str, y_label: &str, all: &[&ParetoSeries]) -> Svg {
    let bottom = TOP + PLOT;
    let mut svg = Svg::new("plot", bottom + AXIS);
    let points = || all.iter().flat_map(|series| drawn(series));
    let x_ends = points().flat_map(|p| [p.x, p.x_range.map_or(p.x, |range| range.1)]);
    let y_ends = points().flat_map(|p| [p.y, p.y_range.map_or(p.y, |range| range.1)]);
    let x = Scale::linear((0.0, end(x_ends)), (0.0, 100.0));
    let y = Scale::linear((0.0, end(y_ends)), (bottom, TOP));
    svg.text("axis", (0.0, 12.0), -44.0, (Anchor::Start, y_label));
    y_axis(&mut svg, &y, 5);
    x_axis(&mut svg, &x, (TOP, bottom), x_label);
    for series in all {
        draw_series(&mut svg, (&x, &y), series);
    }
    svg
}

/// Returns a round end of an axis for `values`.
fn end(values: impl Iterator<Item = f64>) -> f64 {
    round_up(values.filter(|value| value.is_finite()).fold(0.0, f64::max))
}

/// Returns the legend of a Pareto chart: its series, and what else is drawn.
pub fn legend(all: &[&ParetoSeries]) -> Vec<Key> {
    let mut keys: Vec<Key> =
        all.iter().map(|series| Key::series(series.look, "mark", &series.label)).collect();
    let is_faded = |series: &&&ParetoSeries| best(series).len() < drawn(series).count();
    if all.iter().any(|series| is_faded(&series)) {
        let text = "faded: dominated, another point of its series is better in both";
        keys.push(Key::note("", "mark faint", text));
    }
    let points = || all.iter().flat_map(|series| drawn(series));
    if points().any(|point| point.y_range.is_some()) {
        keys.push(range_key());
    }
    if all.iter().any(|series| series.look.hollow) {
        keys.push(hollow_key());
    }
    keys
}

/// Gives each series the index that it has among those of its engine, which decides its shape.
pub fn with_variants(mut all: Vec<ParetoSeries>) -> Vec<ParetoSeries> {
    for index in 0..all.len() {
        let color = all[index].look.color;
        let before = all[..index].iter().filter(|series| series.look.color == color).count();
        all[index].look = all[index].look.variant(before);
    }
    all
}

fn drawn(series: &ParetoSeries) -> impl Iterator<Item = &ParetoPoint> {
    series.points.iter().filter(|point| point.x.is_finite() && point.y.is_finite())
}

/// Returns the indices of those drawn points of a series that no other of them dominates, from left
/// to right.
fn best(series: &ParetoSeries) -> Vec<usize> {
    frontier(&drawn(series).map(|point| (point.x, point.y)).collect::<Vec<_>>())
}

fn draw_series(svg: &mut Svg, (x, y): (&Scale, &Scale), series: &ParetoSeries) {
    let points: Vec<&ParetoPoint> = drawn(series).collect();
    let best = best(series);
    let on_frontier: Vec<&ParetoPoint> = best.iter().map(|index| points[*index]).collect();
    let mut steps = Vec::new();
    for (index, here) in on_frontier.iter().enumerate() {
        steps.push((x.at(here.x), y.at(here.y)));
        // Between two points only the lower of both figures is known to be reachable.
        steps.extend(on_frontier.get(index + 1).map(|next| (x.at(here.x), y.at(next.y))));
    }
    if on_frontier.len() > 1 {
        svg.path(&series.look.class("step"), &steps);
    }
    for (place, point) in points.iter().enumerate() {
        let faint = if best.contains(&place) { "" } else { " faint" };
        let (across, down) = (x.at(point.x), y.at(point.y));
        let whisker = format!("whisker{faint}");
        if let Some((low, high)) = point.x_range {
            svg.line(&whisker, (x.at(low), down), (x.at(high), down));
        }
        if let Some((low, high)) = point.y_range {
            svg.line(&whisker, (across, y.at(low)), (across, y.at(high)));
        }
        let class = series.look.class("mark") + faint;
        svg.mark(&class, series.look.variant, (across, down), &point.tip);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(look: Look, points: &[(f64, f64)]) -> ParetoSeries {
        let point = |(x, y): &(f64, f64)| ParetoPoint {
            x: *x,
            y: *y,
            x_range: None,
            y_range: Some((*y * 0.9, *y * 1.1)),
            tip: Tip { text: format!("{x} and {y}"), address: Some(format!("run/{x}.html")) },
        };
        ParetoSeries { label: "redline".into(), look, points: points.iter().map(point).collect() }
    }

    fn chart(look: Look, points: &[(f64, f64)]) -> String {
        let series = series(look, points);
        pareto("tokens/s per user", "tokens/s per GPU", &[&series]).finish("Pareto frontier")
    }

    #[test]
    fn a_dominated_point_is_faded_and_off_the_step_line_and_every_point_is_a_link() {
        let points = [(10.0, 900.0), (40.0, 500.0), (30.0, 400.0)];
        let svg = chart(Look::of("redline"), &points);
        let marks: Vec<&str> =
            svg.lines().filter(|line| line.contains("mark") || line.contains("step")).collect();
        expect_test::expect![[r#"
            <svg width="100%" height="362" viewBox="0 0 1000 362" preserveAspectRatio="none"><path class="step s0" d="M250 56L250 176L1000 176"/></svg>
            <a href="run/10.html"><circle class="mark s0" cx="25%" cy="56" r="4.5"><title>10 and 900</title></circle></a>
            <a href="run/40.html"><circle class="mark s0" cx="100%" cy="176" r="4.5"><title>40 and 500</title></circle></a>
            <a href="run/30.html"><circle class="mark s0 faint" cx="75%" cy="206" r="4.5"><title>30 and 400</title></circle></a>"#]]
        .assert_eq(&marks.join("\n"));
        assert!(
            svg.contains(r#"<line class="whisker" x1="25%" y1="83" x2="25%" y2="29"/>"#),
            "{svg}"
        );
        let series = series(Look::of("redline"), &points);
        let texts: Vec<String> = legend(&[&series]).into_iter().map(|key| key.text).collect();
        assert!(texts[1].starts_with("faded: dominated") && texts[2].contains("a single run"));
    }

    #[test]
    fn published_figures_are_outlines_in_the_color_of_their_engine() {
        let look = Look::of("vllm").hollow(true);
        let svg = chart(look, &[(1e12, 0.0), (f64::NAN, 1.0), (0.0, f64::INFINITY)]);
        assert!(svg.contains("mark s1 hollow") && !svg.contains("NaN") && !svg.contains("inf"));
        let series = series(look, &[(1.0, 1.0)]);
        let texts: Vec<String> = legend(&[&series]).into_iter().map(|key| key.text).collect();
        assert!(texts.iter().any(|text| text.contains("published elsewhere")), "{texts:?}");
        assert!(!texts.iter().any(|text| text.contains("faded")), "nothing is faded: {texts:?}");
        assert!(!chart(look, &[]).contains("NaN"));
    }

    #[test]
    fn variants_of_one_engine_have_its_color_and_another_shape() {
        let look = Look::of("redline").variant(1);
        let svg = chart(look, &[(10.0, 900.0), (40.0, 500.0)]);
        assert!(svg.contains(r#"class="step s0 v1""#), "{svg}");
        assert!(svg.contains(r#"<path class="mark s0 v1" d="M-4.5 -4.5L"#), "{svg}");
    }
}
