//! Charts of curves: cumulative distributions of latencies, trends over releases as small
//! multiples, and sparklines.

use super::scale::{Scale, Tick};
use super::svg::{Anchor, Svg};
use super::{Mark, WIDTH, coordinate_of, extent, fitted, x_axis};

/// Curve of one cumulative latency distribution, with its label and style.
#[derive(Debug, Clone)]
pub struct Curve {
    pub label: String,
    /// Style of the curve: `a` has the accent color, `b` and `c` are dashed, `d` is plain.
    pub style: char,
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
    pub mark: Mark,
    /// Tooltip of the trend point: release, value and number of runs.
    pub text: String,
    /// Address that the trend point links to, percent-encoded; `None` for a point without a link.
    pub address: Option<String>,
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
    pub points: Vec<TrendPoint>,
    pub levels: Vec<Level>,
    pub breaks: Vec<Break>,
}

const CDF_LEFT: f64 = 30.0;
const CDF_TOP: f64 = 28.0;
const CDF_BOTTOM: f64 = 188.0;

const PANEL: f64 = 118.0;
const TOP: f64 = 24.0;
const BOTTOM: f64 = 88.0;
const LEFT: f64 = 36.0;
const GUTTER: f64 = 14.0;

/// Smallest range of the vertical axis of a trend panel or sparkline, as a share of the largest
/// value, so that differences within the noise look small.
const SMALLEST_SPAN: f64 = 0.1;

/// Position and width of a trend panel in the drawing, in SVG units, and the scales that map its
/// values to coordinates.
struct Frame {
    left: f64,
    top: f64,
    width: f64,
    x: Scale,
    y: Scale,
}

/// Draws cumulative latency distributions on a logarithmic axis, one curve per latency.
pub fn cdf(curves: &[Curve]) -> Svg {
    let mut svg = Svg::new(WIDTH, CDF_BOTTOM + 34.0);
    let values = curves.iter().flat_map(|curve| &curve.points).map(|point| point.0);
    let domain = extent(values.filter(|value| *value > 0.0)).unwrap_or((1.0, 10.0));
    let x = Scale::log(domain, (CDF_LEFT, WIDTH - 6.0));
    let y = Scale::linear((0.0, 1.0), (CDF_BOTTOM, CDF_TOP));
    x_axis(&mut svg, &x, CDF_TOP, CDF_BOTTOM, "ms, logarithmic");
    for share in [0.0, 0.5, 0.95] {
        svg.line("grid", (CDF_LEFT, y.at(share)), (WIDTH - 6.0, y.at(share)));
        let label = format!("{:.0} %", share * 100.0);
        svg.text("tick", (CDF_LEFT - 4.0, y.at(share) + 4.0), Anchor::End, &label);
    }
    let step = (WIDTH - CDF_LEFT) / 4.0;
    for (curve, column) in curves.iter().zip(0_u32..) {
        let left = CDF_LEFT + f64::from(column) * step;
        let class = format!("curve {}", curve.style);
        svg.line(&class, (left, 10.0), (left + 22.0, 10.0));
        svg.text("legend", (left + 27.0, 14.0), Anchor::Start, &curve.label);
        let points: Vec<_> =
            curve.points.iter().map(|(ms, share)| (x.at(*ms), y.at(*share))).collect();
        svg.path(&class, &points);
    }
    svg
}

/// Draws a sparkline, a series as small as a word, without axes. A value that is not finite
/// interrupts the line. `title` tells screen readers what is drawn.
pub fn sparkline(title: &str, values: &[f64]) -> String {
    const SIZE: (f64, f64) = (88.0, 18.0);
    const EDGE: f64 = 3.0;
    let mut svg = Svg::new(SIZE.0, SIZE.1);
    let known = values.iter().copied().filter(|value| value.is_finite());
    let (low, high) = extent(known).unwrap_or((0.0, 1.0));
    let last = coordinate_of(values.len().saturating_sub(1));
    let x = Scale::linear((0.0, last), (EDGE, SIZE.0 - EDGE));
    let room = room(low, high);
    let y = Scale::linear((low - room, high + room), (SIZE.1 - EDGE, EDGE));
    let point = |(index, value): (usize, &f64)| {
        value.is_finite().then(|| (x.at(coordinate_of(index)), y.at(*value)))
    };
    let points: Vec<Option<(f64, f64)>> = values.iter().enumerate().map(point).collect();
    for stretch in points.split(Option::is_none).filter(|stretch| stretch.len() > 1) {
        svg.path("curve", &stretch.iter().flatten().copied().collect::<Vec<_>>());
    }
    if let Some(last) = points.iter().flatten().next_back() {
        svg.dot("dot color", *last, 2.5, title);
    }
    svg.finish_as("spark", title, "")
}

/// Draws trends as small multiples: figures over releases, each in a panel with its own scale, with
/// the range of the runs, the levels found, and epochs. Several panels are in two columns, a single
/// one has the whole width.
pub fn trends(panels: &[TrendPanel]) -> Svg {
    let columns = if panels.len() > 1 { 2 } else { 1 };
    let rows = panels.len().div_ceil(columns);
    let mut svg = Svg::new(WIDTH, PANEL * coordinate_of(rows.max(1)));
    let width = (WIDTH - GUTTER * coordinate_of(columns - 1)) / coordinate_of(columns);
    for (index, panel) in panels.iter().enumerate() {
        let left = coordinate_of(index % columns) * (width + GUTTER);
        let top = coordinate_of(index / columns) * PANEL;
        draw_panel(&mut svg, panel, &frame(panel, left, top, width));
    }
    svg
}

/// Returns the space to leave above and below a series from `low` to `high`, in its unit: 0 unless
/// the series is so flat that its noise would fill the drawing.
fn room(low: f64, high: f64) -> f64 {
    (high.abs() * SMALLEST_SPAN - (high - low)).max(0.0) / 2.0
}

fn frame(panel: &TrendPanel, left: f64, top: f64, width: f64) -> Frame {
    let ends = panel.points.iter().flat_map(|point| {
        let (low, high) = point.range.unwrap_or((point.value, point.value));
        [low, point.value, high]
    });
    let (low, high) = extent(ends.filter(|value| value.is_finite())).unwrap_or((0.0, 1.0));
    let room = room(low, high);
    let last = coordinate_of(panel.points.len().saturating_sub(1));
    Frame {
        left,
        top,
        width,
        x: Scale::linear((0.0, last), (left + LEFT + 5.0, left + width - 6.0)),
        y: Scale::linear((low - room, high + room), (top + BOTTOM, top + TOP)),
    }
}

fn draw_panel(svg: &mut Svg, panel: &TrendPanel, frame: &Frame) {
    let right = frame.left + frame.width;
    let label = fitted(&panel.label, frame.width);
    svg.text("label", (frame.left, frame.top + 13.0), Anchor::Start, &label);
    for Tick { value, label } in frame.y.ticks(3) {
        let y = frame.y.at(value);
        svg.line("grid", (frame.left + LEFT, y), (right, y));
        svg.text("tick", (frame.left + LEFT - 4.0, y + 4.0), Anchor::End, &label);
    }
    let names = frame.top + BOTTOM + 16.0;
    let half = (frame.width - LEFT) / 2.0;
    if let Some(first) = panel.points.first() {
        let at = (frame.left + LEFT, names);
        svg.text("tick", at, Anchor::Start, &fitted(&first.label, half));
    }
    if let [_, .., last] = panel.points.as_slice() {
        svg.text("tick", (right, names), Anchor::End, &fitted(&last.label, half));
    }
    let mut starts = vec![0];
    starts.extend(panel.breaks.iter().filter(|b| b.epoch).map(|b| b.point.min(panel.points.len())));
    starts.push(panel.points.len());
    for pair in starts.windows(2) {
        draw_stretch(svg, panel, frame, (pair[0], pair[1].max(pair[0])));
    }
    for level in panel.levels.iter().filter(|level| level.level.is_finite()) {
        let y = frame.y.at(level.level);
        let x = |index: usize| frame.x.at(coordinate_of(index));
        svg.line("level", (x(level.first) - 4.0, y), (x(level.last) + 4.0, y));
    }
    for found in &panel.breaks {
        // The break happened between two points.
        let x = frame.x.at(coordinate_of(found.point) - 0.5);
        let class = match (found.epoch, found.worse) {
            (true, _) => "break epoch",
            (false, true) => "break worse",
            (false, false) => "break",
        };
        svg.rule(class, x, (frame.top + TOP - 4.0, frame.top + BOTTOM), &found.text);
    }
    for (index, point) in panel.points.iter().enumerate().filter(|(_, p)| p.value.is_finite()) {
        let class = format!("dot {}", point.mark.class());
        let center = (frame.x.at(coordinate_of(index)), frame.y.at(point.value));
        match &point.address {
            Some(address) => svg.linked_dot(&class, center, 3.0, (&point.text, address)),
            None => svg.dot(&class, center, 3.0, &point.text),
        }
    }
}

/// Draws the line of the values and the ribbon of the ranges for the points of one epoch; draws
/// nothing for fewer than two points.
fn draw_stretch(svg: &mut Svg, panel: &TrendPanel, frame: &Frame, (start, end): (usize, usize)) {
    let mut line = Vec::new();
    let (mut lows, mut highs) = (Vec::new(), Vec::new());
    for (index, point) in panel.points.iter().enumerate().take(end).skip(start) {
        if !point.value.is_finite() {
            continue;
        }
        let x = frame.x.at(coordinate_of(index));
        line.push((x, frame.y.at(point.value)));
        let (low, high) = point.range.unwrap_or((point.value, point.value));
        lows.push((x, frame.y.at(low)));
        highs.push((x, frame.y.at(high)));
    }
    if line.len() < 2 {
        return;
    }
    highs.extend(lows.into_iter().rev());
    svg.area("ribbon", &highs);
    svg.path("curve", &line);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_rise_from_left_to_right() {
        let curve = Curve {
            label: "TTFT".into(),
            style: 'b',
            points: vec![(1.0, 0.0), (10.0, 0.5), (100.0, 1.0)],
        };
        let svg = cdf(&[curve]).finish("t", "d");
        assert!(svg.contains("d=\"M30 188L192 108L354 28\""), "{svg}");
    }

    #[test]
    fn no_samples_draw_an_empty_frame() {
        assert!(!cdf(&[]).finish("t", "d").contains("NaN"));
    }

    #[test]
    fn a_gap_is_not_bridged() {
        let spark = sparkline("10 to 15 tokens/s", &[10.0, 20.0, f64::NAN, 15.0]);
        expect_test::expect![[r#"
            <svg class="spark" role="img" viewBox="0 0 88 18"><title>10 to 15 tokens/s</title>
            <path class="curve" d="M3 15L30.3 3"/>
            <circle class="dot color" cx="85" cy="9" r="2.5"><title>10 to 15 tokens/s</title></circle>
            </svg>"#]]
        .assert_eq(&spark);
    }

    #[test]
    fn nothing_known_draws_nothing() {
        let svg = sparkline("t", &[f64::INFINITY, f64::NAN]);
        assert!(!svg.contains("<path") && !svg.contains("NaN"), "{svg}");
    }

    fn point(label: &str, value: f64, half: f64) -> TrendPoint {
        TrendPoint {
            label: label.into(),
            value,
            range: (half > 0.0).then_some((value - half, value + half)),
            mark: if half > 0.0 { Mark::Color } else { Mark::Gray },
            text: format!("{label}: {value}"),
            address: None,
        }
    }

    fn panel(points: Vec<TrendPoint>, breaks: Vec<Break>) -> TrendPanel {
        TrendPanel { label: "Output tokens /s".into(), points, levels: Vec::new(), breaks }
    }

    fn chart(panels: &[TrendPanel]) -> String {
        trends(panels).finish("Trends", "d")
    }

    #[test]
    fn an_epoch_cuts_the_line_and_a_change_only_marks_it() {
        let points = ["v1", "v2", "v3", "v4"].map(|name| point(name, 100.0, 2.0)).to_vec();
        let found = |point, epoch| Break { point, epoch, worse: !epoch, text: "why".into() };
        let svg = chart(&[panel(points, vec![found(1, false), found(2, true)])]);
        assert_eq!(svg.matches("class=\"curve\"").count(), 2, "{svg}");
        assert_eq!(svg.matches("class=\"ribbon\"").count(), 2, "{svg}");
        assert!(svg.contains("break worse") && svg.contains("break epoch"), "{svg}");
    }

    #[test]
    fn a_panel_reads_from_its_first_release_to_its_last() {
        let points = vec![point("v0.9.1", 100.0, 5.0), point("v0.10.0", 150.0, 0.0)];
        let mut panel = panel(points, Vec::new());
        panel.levels = vec![Level { first: 0, last: 1, level: 120.0 }];
        expect_test::expect![[r#"
            <svg class="chart" role="img" viewBox="0 0 360 118"><title>Trends</title><desc>d</desc>
            <text class="label" x="0" y="13">Output tokens /s</text>
            <line class="grid" x1="36" y1="82.2" x2="360" y2="82.2"/>
            <text class="tick" x="32" y="86.2" text-anchor="end">100</text>
            <line class="grid" x1="36" y1="58.9" x2="360" y2="58.9"/>
            <text class="tick" x="32" y="62.9" text-anchor="end">120</text>
            <line class="grid" x1="36" y1="35.6" x2="360" y2="35.6"/>
            <text class="tick" x="32" y="39.6" text-anchor="end">140</text>
            <text class="tick" x="36" y="104">v0.9.1</text>
            <text class="tick" x="360" y="104" text-anchor="end">v0.10.0</text>
            <path class="ribbon" d="M41 76.4L354 24L41 88Z"/>
            <path class="curve" d="M41 82.2L354 24"/>
            <line class="level" x1="37" y1="58.9" x2="358" y2="58.9"/>
            <circle class="dot color" cx="41" cy="82.2" r="3"><title>v0.9.1: 100</title></circle>
            <circle class="dot gray" cx="354" cy="24" r="3"><title>v0.10.0: 150</title></circle>
            </svg>"#]]
        .assert_eq(&chart(&[panel]));
    }

    #[test]
    fn a_point_leads_to_its_run_and_the_tab_key_passes_it_by() {
        let mut led = point("v1", 100.0, 2.0);
        led.address = Some("../run/1/index.html".into());
        let svg = chart(&[panel(vec![led, point("v2", 90.0, 1.0)], Vec::new())]);
        let link = r#"<a href="../run/1/index.html" tabindex="-1" aria-label="v1: 100"><circle"#;
        assert!(svg.contains(link), "{svg}");
        assert!(svg.starts_with(r#"<svg class="chart" role="group""#), "links are no image: {svg}");
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
