//! Charts of curves: cumulative distributions of latencies, trends over releases as small
//! multiples, and sparklines.

use super::scale::Scale;
use super::svg::{Anchor, Svg};
use super::{
    AXIS, Key, Look, NARROW, Tip, coordinate_of, extent, fitted, width_of, x_axis, y_axis,
};

/// Curve of one cumulative latency distribution, with its label and style.
#[derive(Debug, Clone)]
pub struct Curve {
    pub label: String,
    /// Style of the curve: `a` is thick, `b` and `c` are dashed, `d` is thin.
    pub style: char,
    pub look: Look,
    /// Points of the curve: value in milliseconds, and share of samples up to it; both rise.
    pub points: Vec<(f64, f64)>,
}

/// Point of a trend chart: the runs of one release in one campaign.
#[derive(Debug, Clone)]
pub struct TrendPoint {
    /// Name of the release; the first and the last are shown below the axis.
    pub label: String,
    pub value: f64,
    /// Smallest and largest value of the point's runs; `None` for a single run.
    pub range: Option<(f64, f64)>,
    /// Tooltip of the trend point: release, value, range and number of runs.
    pub tip: Tip,
}

/// Segment of a trend with constant level; its index range includes the first and the last point.
#[derive(Debug, Clone, Copy)]
pub struct Level {
    pub first: usize,
    pub last: usize,
    pub level: f64,
}

/// Break of a trend before one of its points: an epoch or a change of level.
#[derive(Debug, Clone)]
pub struct Break {
    /// Index of the first trend point after the break.
    pub point: usize,
    /// True for an epoch: points before and after it are not comparable, and the line is cut.
    pub epoch: bool,
    /// True for a change of level for the worse; false for an improvement or an epoch.
    pub worse: bool,
    /// Tooltip of the break: reason of the epoch, or size of the change.
    pub text: String,
}

/// Panel of a trend chart: the points, levels and breaks of one trend.
#[derive(Debug, Clone)]
pub struct TrendPanel {
    /// Label of the trend panel: metric and unit.
    pub label: String,
    pub look: Look,
    pub points: Vec<TrendPoint>,
    pub levels: Vec<Level>,
    pub breaks: Vec<Break>,
}

const CDF_TOP: f64 = 24.0;
const CDF_BOTTOM: f64 = 204.0;

/// Height of a trend panel, and where its plot begins and ends, in pixels from its top.
const PANEL: f64 = 176.0;
const TOP: f64 = 28.0;
const BOTTOM: f64 = 128.0;

/// Smallest range of the vertical axis of a trend panel or sparkline, as a share of the largest
/// value, so that differences within the noise look small.
const SMALLEST_SPAN: f64 = 0.1;

/// Draws cumulative latency distributions on a logarithmic axis, one curve per latency.
pub fn cdf(curves: &[Curve]) -> Svg {
    let mut svg = Svg::new("plot", CDF_BOTTOM + AXIS);
    let values = curves.iter().flat_map(|curve| &curve.points).map(|point| point.0);
    let domain = extent(values.filter(|value| *value > 0.0)).unwrap_or((1.0, 10.0));
    let x = Scale::log(domain, (0.0, 100.0));
    let y = Scale::linear((0.0, 1.0), (CDF_BOTTOM, CDF_TOP));
    svg.text("axis", (0.0, 12.0), -44.0, (Anchor::Start, "share of samples"));
    x_axis(&mut svg, &x, (CDF_TOP, CDF_BOTTOM), "latency, ms, logarithmic");
    for share in [0.0, 0.5, 0.95] {
        svg.line("grid", (0.0, y.at(share)), (100.0, y.at(share)));
        let label = format!("{:.0} %", share * 100.0);
        svg.text("tick", (0.0, y.at(share) + 4.0), -6.0, (Anchor::End, &label));
    }
    for curve in curves {
        let points: Vec<_> =
            curve.points.iter().map(|(ms, share)| (x.at(*ms), y.at(*share))).collect();
        svg.path(&curve.class(), &points);
    }
    svg
}

impl Curve {
    fn class(&self) -> String {
        format!("{} {}", self.look.class("curve"), self.style)
    }

    /// Returns the legend's entry of the curve.
    pub fn key(&self) -> Key {
        Key::note(&self.class(), "", &self.label)
    }
}

/// Draws a sparkline, a series as small as a word, without axes. A value that is not finite
/// interrupts the line. `title` tells screen readers what is drawn.
pub fn sparkline(title: &str, look: Look, values: &[f64]) -> String {
    const HEIGHT: f64 = 18.0;
    const EDGE: f64 = 3.0;
    let mut svg = Svg::new("", HEIGHT);
    let known = values.iter().copied().filter(|value| value.is_finite());
    let (low, high) = extent(known).unwrap_or((0.0, 1.0));
    let last = coordinate_of(values.len().saturating_sub(1));
    let x = Scale::linear((0.0, last), (EDGE, 100.0 - EDGE));
    let room = room(low, high);
    let y = Scale::linear((low - room, high + room), (HEIGHT - EDGE, EDGE));
    let point = |(index, value): (usize, &f64)| {
        value.is_finite().then(|| (x.at(coordinate_of(index)), y.at(*value)))
    };
    let points: Vec<Option<(f64, f64)>> = values.iter().enumerate().map(point).collect();
    for stretch in points.split(Option::is_none).filter(|stretch| stretch.len() > 1) {
        svg.path("curve", &stretch.iter().flatten().copied().collect::<Vec<_>>());
    }
    if let Some(last) = points.iter().flatten().next_back() {
        svg.dot(&look.class("mark"), *last, 2.5, &Tip::plain(title));
    }
    svg.finish_as("spark", title)
}

/// Draws trends as small multiples: figures over releases, each in a drawing with its own scale,
/// with the range of the runs, the levels found, and epochs. The page arranges the drawings.
pub fn trends(title: &str, panels: &[TrendPanel]) -> String {
    let of = |panel: &TrendPanel| draw_panel(panel).finish(&format!("{title}: {}", panel.label));
    panels.iter().map(of).collect()
}

/// Returns the space to leave above and below a series from `low` to `high`, in its unit: 0 unless
/// the series is so flat that its noise would fill the drawing.
fn room(low: f64, high: f64) -> f64 {
    (high.abs() * SMALLEST_SPAN - (high - low)).max(0.0) / 2.0
}

/// Scales of a trend panel.
struct Frame {
    x: Scale,
    y: Scale,
}

fn frame(panel: &TrendPanel) -> Frame {
    let ends = panel.points.iter().flat_map(|point| {
        let (low, high) = point.range.unwrap_or((point.value, point.value));
        [low, point.value, high]
    });
    let (low, high) = extent(ends.filter(|value| value.is_finite())).unwrap_or((0.0, 1.0));
    let room = room(low, high);
    let last = coordinate_of(panel.points.len().saturating_sub(1));
    Frame {
        x: Scale::linear((0.0, last), (2.0, 98.0)),
        y: Scale::linear((low - room, high + room), (BOTTOM, TOP)),
    }
}

fn draw_panel(panel: &TrendPanel) -> Svg {
    let mut svg = Svg::new("plot", PANEL);
    let frame = frame(panel);
    svg.text("label", (0.0, 13.0), -44.0, (Anchor::Start, &fitted(&panel.label, NARROW)));
    y_axis(&mut svg, &frame.y, 4);
    draw_names(&mut svg, panel, &frame);
    let mut starts = vec![0];
    starts.extend(panel.breaks.iter().filter(|b| b.epoch).map(|b| b.point.min(panel.points.len())));
    starts.push(panel.points.len());
    for pair in starts.windows(2) {
        let points = panel.points.iter().enumerate().take(pair[1].max(pair[0])).skip(pair[0]);
        let finite = points.filter(|(_, point)| point.value.is_finite());
        let line: Vec<(f64, f64)> =
            finite.map(|(index, point)| center(&frame, index, point)).collect();
        if line.len() > 1 {
            svg.path(&panel.look.class("curve"), &line);
        }
    }
    for level in panel.levels.iter().filter(|level| level.level.is_finite()) {
        let y = frame.y.at(level.level);
        let x = |index: usize| frame.x.at(coordinate_of(index));
        svg.line("level", (x(level.first) - 1.0, y), (x(level.last) + 1.0, y));
    }
    for found in &panel.breaks {
        // The break happened between two points.
        let x = frame.x.at(coordinate_of(found.point) - 0.5);
        let class = match (found.epoch, found.worse) {
            (true, _) => "break epoch",
            (false, true) => "break worse",
            (false, false) => "break",
        };
        svg.rule(class, x, (TOP - 4.0, BOTTOM), &found.text);
    }
    draw_points(&mut svg, panel, &frame);
    svg
}

fn center(frame: &Frame, index: usize, point: &TrendPoint) -> (f64, f64) {
    (frame.x.at(coordinate_of(index)), frame.y.at(point.value))
}

/// Draws the names of the releases below the panel: all where they have room on a phone, else the
/// first and the last.
fn draw_names(svg: &mut Svg, panel: &TrendPanel, frame: &Frame) {
    let longest = panel.points.iter().map(|point| point.label.chars().count()).max().unwrap_or(0);
    let last = panel.points.len().saturating_sub(1);
    let room = NARROW - 60.0;
    let all = width_of(longest + 2) * coordinate_of(last + 1) <= room;
    let is_named = |index: usize| all || index == 0 || index == last;
    for (index, point) in panel.points.iter().enumerate().filter(|(index, _)| is_named(*index)) {
        let x = frame.x.at(coordinate_of(index));
        let anchor = match index {
            0 if last > 0 => Anchor::Start,
            at if at == last && last > 0 => Anchor::End,
            _ => Anchor::Middle,
        };
        let x = if anchor == Anchor::Start {
            0.0
        } else if anchor == Anchor::End {
            100.0
        } else {
            x
        };
        svg.text("tick", (x, BOTTOM + 16.0), 0.0, (anchor, &fitted(&point.label, room / 2.0)));
    }
    svg.text("axis", (100.0, BOTTOM + 34.0), 0.0, (Anchor::End, "release, in order of campaigns"));
}

/// Draws each point with the range of its runs.
fn draw_points(svg: &mut Svg, panel: &TrendPanel, frame: &Frame) {
    for (index, point) in panel.points.iter().enumerate().filter(|(_, p)| p.value.is_finite()) {
        let at = center(frame, index, point);
        if let Some((low, high)) = point.range {
            svg.line("whisker", (at.0, frame.y.at(low)), (at.0, frame.y.at(high)));
        }
        svg.dot(&panel.look.class("mark"), at, 4.0, &point.tip);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_rise_from_left_to_right() {
        let curve = Curve {
            label: "TTFT".into(),
            style: 'b',
            look: Look::of("redline"),
            points: vec![(1.0, 0.0), (10.0, 0.5), (100.0, 1.0)],
        };
        let svg = cdf(&[curve]).finish("t");
        assert!(svg.contains("class=\"curve s0 b\" d=\"M0 204L500 114L1000 24\""), "{svg}");
    }

    #[test]
    fn no_samples_draw_an_empty_frame() {
        assert!(!cdf(&[]).finish("t").contains("NaN"));
    }

    #[test]
    fn a_gap_is_not_bridged() {
        let values = [10.0, 20.0, f64::NAN, 15.0];
        let spark = sparkline("10 to 15 tokens/s", Look::of("redline"), &values);
        expect_test::expect![[r#"
            <svg class="spark" role="img" height="18"><title>10 to 15 tokens/s</title>
            <svg width="100%" height="18" viewBox="0 0 1000 18" preserveAspectRatio="none"><path class="curve" d="M30 15L343.3 3"/></svg>
            <circle class="mark s0" cx="97%" cy="9" r="2.5"><title>10 to 15 tokens/s</title></circle>
            </svg>"#]]
        .assert_eq(&spark);
    }

    #[test]
    fn nothing_known_draws_nothing() {
        let svg = sparkline("t", Look::of("redline"), &[f64::INFINITY, f64::NAN]);
        assert!(!svg.contains("<path") && !svg.contains("NaN"), "{svg}");
    }

    fn point(label: &str, value: f64, half: f64) -> TrendPoint {
        TrendPoint {
            label: label.into(),
            value,
            range: (half > 0.0).then_some((value - half, value + half)),
            tip: Tip {
                text: format!("{label}: {value}"),
                address: Some("run/1/index.html".into()),
            },
        }
    }

    fn panel(points: Vec<TrendPoint>, breaks: Vec<Break>) -> TrendPanel {
        let (label, look) = ("Output tokens /s".into(), Look::of("redline"));
        TrendPanel { label, look, points, levels: Vec::new(), breaks }
    }

    fn chart(panels: &[TrendPanel]) -> String {
        trends("Trends", panels)
    }

    #[test]
    fn an_epoch_cuts_the_line_and_a_change_only_marks_it() {
        let points = ["v1", "v2", "v3", "v4"].map(|name| point(name, 100.0, 2.0)).to_vec();
        let found = |point, epoch| Break { point, epoch, worse: !epoch, text: "why".into() };
        let svg = chart(&[panel(points, vec![found(1, false), found(2, true)])]);
        assert_eq!(svg.matches("class=\"curve s0\"").count(), 2, "{svg}");
        assert_eq!(svg.matches("class=\"whisker\"").count(), 4, "each point has its range: {svg}");
        assert!(svg.contains("break worse") && svg.contains("break epoch"), "{svg}");
    }

    #[test]
    fn a_panel_reads_from_its_first_release_to_its_last() {
        let points = vec![point("v0.9.1", 100.0, 5.0), point("v0.10.0", 150.0, 0.0)];
        let mut panel = panel(points, Vec::new());
        panel.levels = vec![Level { first: 0, last: 1, level: 120.0 }];
        expect_test::expect![[r#"
            <svg class="chart plot" role="group" height="176"><title>Trends: Output tokens /s</title>
            <text class="label" x="0%" y="13" dx="-44">Output tokens /s</text>
            <line class="grid" x1="0%" y1="118.9" x2="100%" y2="118.9"/>
            <text class="tick" x="0%" y="122.9" dx="-6" text-anchor="end">100</text>
            <line class="grid" x1="0%" y1="82.5" x2="100%" y2="82.5"/>
            <text class="tick" x="0%" y="86.5" dx="-6" text-anchor="end">120</text>
            <line class="grid" x1="0%" y1="46.2" x2="100%" y2="46.2"/>
            <text class="tick" x="0%" y="50.2" dx="-6" text-anchor="end">140</text>
            <text class="tick" x="0%" y="144">v0.9.1</text>
            <text class="tick" x="100%" y="144" text-anchor="end">v0.10.0</text>
            <text class="axis" x="100%" y="162" text-anchor="end">release, in order of campaigns</text>
            <svg width="100%" height="176" viewBox="0 0 1000 176" preserveAspectRatio="none"><path class="curve s0" d="M20 118.9L980 28"/></svg>
            <line class="level" x1="1%" y1="82.5" x2="99%" y2="82.5"/>
            <line class="whisker" x1="2%" y1="128" x2="2%" y2="109.8"/>
            <a href="run/1/index.html"><circle class="mark s0" cx="2%" cy="118.9" r="4"><title>v0.9.1: 100</title></circle></a>
            <a href="run/1/index.html"><circle class="mark s0" cx="98%" cy="28" r="4"><title>v0.10.0: 150</title></circle></a>
            </svg>"#]]
        .assert_eq(&chart(&[panel]));
    }

    #[test]
    fn releases_are_all_named_where_a_phone_has_room_for_them() {
        let points =
            |count: usize| (0..count).map(|at| point(&format!("v0.{at}"), 1.0, 0.0)).collect();
        let three = chart(&[panel(points(3), Vec::new())]);
        assert!(three.contains(">v0.1</text>"), "{three}");
        let many = chart(&[panel(points(30), Vec::new())]);
        assert!(!many.contains(">v0.1</text>") && many.contains(">v0.29</text>"), "{many}");
    }

    #[test]
    fn wild_figures_and_empty_panels_draw_nothing_wild() {
        let wild = vec![point("a", f64::NAN, 0.0), point("b", 1e12, 0.0), point("c", 0.0, 0.0)];
        let far = vec![Break { point: 9, epoch: true, worse: false, text: "t".into() }];
        let svg = chart(&[panel(wild, far), panel(Vec::new(), Vec::new())]);
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        assert!(!chart(&[]).contains("NaN"));
    }
}
