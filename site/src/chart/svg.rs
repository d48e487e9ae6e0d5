//! Small SVG writer. A drawing is as wide as its place on the page and is never scaled, so that its
//! text has the page's size on a phone and on a desktop: coordinates across are percent of the
//! drawing's width, coordinates down are CSS pixels. Colors come from the page's style sheet through
//! classes, so that a chart follows the reader's light or dark theme.

use std::fmt::Write;

use super::Tip;
use crate::escape;

/// Horizontal alignment of an SVG text at its position: starts there, is centered there, or ends
/// there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

/// Corners of the shapes that distinguish series of one color, in multiples of the mark's radius
/// from its center, by the index of the series.
const SHAPES: [&[(f64, f64)]; 6] = [
    // The circle is the shape without corners.
    &[],
    &[(-1.0, -1.0), (1.0, -1.0), (1.0, 1.0), (-1.0, 1.0)],
    &[(0.0, -1.25), (1.2, 0.9), (-1.2, 0.9)],
    &[(0.0, -1.4), (1.4, 0.0), (0.0, 1.4), (-1.4, 0.0)],
    &[(0.0, 1.25), (1.2, -0.9), (-1.2, -0.9)],
    &[(-1.3, -0.6), (1.3, -0.6), (1.3, 0.6), (-1.3, 0.6)],
];

/// Number of series of one color that have a shape of their own.
pub const SERIES: usize = SHAPES.len();

/// Radius of a mark, in pixels.
const RADIUS: f64 = 4.5;

/// SVG drawing in progress: its elements, its kind (the CSS class that gives it room for labels
/// beside the plot), and its height in pixels.
#[derive(Debug)]
pub struct Svg {
    body: String,
    kind: &'static str,
    height: f64,
    /// True when the drawing contains a link.
    linked: bool,
}

impl Svg {
    pub fn new(kind: &'static str, height: f64) -> Self {
        Self { body: String::new(), kind, height, linked: false }
    }

    pub fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        self.push(&format!(r#"<line class="{class}" {}/>"#, ends(from, to)));
    }

    pub fn rect(&mut self, class: &str, corner: (f64, f64), size: (f64, f64)) {
        self.push(&format!(r#"<rect class="{class}" {}/>"#, sides(corner, size)));
    }

    /// Adds a rectangle with a tooltip, and the link of the tip, to the drawing.
    pub fn bar(&mut self, class: &str, corner: (f64, f64), size: (f64, f64), tip: &Tip) {
        let title = escape::html(&tip.text);
        let sides = sides(corner, size);
        let rect = format!(r#"<rect class="{class}" {sides}><title>{title}</title></rect>"#);
        self.linked_to(&rect, tip);
    }

    /// Adds a dot with a tooltip, and the link of the tip, to the drawing.
    pub fn dot(&mut self, class: &str, center: (f64, f64), radius: f64, tip: &Tip) {
        self.linked_to(&circle(class, center, radius, &tip.text), tip);
    }

    /// Adds to the drawing the mark of the series with this index among those of its color, with a
    /// tooltip and the link of the tip.
    pub fn mark(&mut self, class: &str, series: usize, center: (f64, f64), tip: &Tip) {
        self.linked_to(&mark(class, series, center, &tip.text), tip);
    }

    /// Adds a vertical line with a tooltip to the drawing.
    pub fn rule(&mut self, class: &str, x: f64, (top, bottom): (f64, f64), title: &str) {
        let (ends, title) = (ends((x, top), (x, bottom)), escape::html(title));
        self.push(&format!(r#"<line class="{class}" {ends}><title>{title}</title></line>"#));
    }

    /// Adds a text at `at` and `shift` pixels to the right of it to the drawing.
    pub fn text(
        &mut self,
        class: &str,
        at: (f64, f64),
        shift: f64,
        (anchor, text): (Anchor, &str),
    ) {
        let (x, y) = (percent(at.0), pixels(at.1));
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => r#" text-anchor="middle""#,
            Anchor::End => r#" text-anchor="end""#,
        };
        let shift = match pixels(shift).as_str() {
            "0" => String::new(),
            shift => format!(r#" dx="{shift}""#),
        };
        let text = escape::html(text);
        self.push(&format!(
            r#"<text class="{class}" x="{x}" y="{y}"{shift}{anchor}>{text}</text>"#
        ));
    }

    /// Adds a line through `points` to the drawing, without points that equal the point before at
    /// one decimal.
    pub fn path(&mut self, class: &str, points: &[(f64, f64)]) {
        let wide: Vec<(f64, f64)> = points.iter().map(|(x, y)| (x * 10.0, *y)).collect();
        self.push(&stretched(&pixels(self.height), class, &path_data(&wide)));
    }

    /// Adds vertical lines over the whole height of the drawing at each of `xs`, as one element.
    pub fn rules(&mut self, class: &str, xs: &[f64]) {
        let height = pixels(self.height);
        let line = |x: &f64| format!("M{} 0V{height}", pixels(x * 10.0));
        let d: String = xs.iter().map(line).collect();
        self.push(&stretched(&height, class, &d));
    }

    /// Adds an arrow head to the drawing whose tip is at `tip`: to the right, or to the left for a
    /// negative `length`, in pixels.
    pub fn arrow(&mut self, class: &str, tip: (f64, f64), length: f64) {
        let d = path_data(&[(-length, -4.0), (0.0, 0.0), (-length, 4.0)]);
        self.push(&at(tip, &format!(r#"<path class="{class}" d="{d}"/>"#)));
    }

    /// Finishes the drawing as a chart and returns its SVG text, with a title for screen readers.
    pub fn finish(self, title: &str) -> String {
        let class = format!("chart {}", self.kind);
        self.finish_as(class.trim_end(), title)
    }

    /// Finishes the drawing under the CSS class `class` and returns its SVG text.
    pub fn finish_as(self, class: &str, title: &str) -> String {
        format!(
            "<svg class=\"{class}\" role=\"{role}\" height=\"{height}\">\
             <title>{title}</title>\n{body}</svg>",
            height = pixels(self.height),
            // A drawing with the role `img` must not contain links.
            role = if self.linked { "group" } else { "img" },
            title = escape::html(title),
            body = self.body
        )
    }

    /// Adds `element` to the drawing, inside a link where `tip` has an address. The element's tooltip
    /// names the link.
    fn linked_to(&mut self, element: &str, tip: &Tip) {
        let Some(address) = &tip.address else { return self.push(element) };
        self.linked = true;
        self.push(&format!(r#"<a href="{address}">{element}</a>"#));
    }

    fn push(&mut self, element: &str) {
        self.body.push_str(element);
        self.body.push('\n');
    }
}

/// Draws the sample of a series in a legend: its mark on a piece of its line.
pub fn swatch(line: &str, class: &str, series: usize) -> String {
    let line = match line {
        "" => String::new(),
        class => format!(r#"<line class="{class}" x1="0" y1="7" x2="22" y2="7"/>"#),
    };
    let mark = match class {
        "" => String::new(),
        class => mark(class, series, (50.0, 7.0), ""),
    };
    format!(
        r#"<svg class="chart swatch" aria-hidden="true" width="22" height="14">{line}{mark}</svg>"#
    )
}

fn mark(class: &str, series: usize, center: (f64, f64), title: &str) -> String {
    let corners = SHAPES[series % SERIES];
    if corners.is_empty() {
        return circle(class, center, RADIUS, title);
    }
    let corner = |(x, y): &(f64, f64)| (x * RADIUS, y * RADIUS);
    let d = path_data(&corners.iter().map(corner).collect::<Vec<_>>());
    at(center, &format!(r#"<path class="{class}" d="{d}Z">{}</path>"#, titled(title)))
}

/// Places `element`, which is drawn around the origin in pixels, at a point of the drawing.
fn at(point: (f64, f64), element: &str) -> String {
    format!(r#"<svg x="{}" y="{}">{element}</svg>"#, percent(point.0), pixels(point.1))
}

fn circle(class: &str, center: (f64, f64), radius: f64, title: &str) -> String {
    let (x, y, r) = (percent(center.0), pixels(center.1), pixels(radius));
    format!(r#"<circle class="{class}" cx="{x}" cy="{y}" r="{r}">{}</circle>"#, titled(title))
}

/// Draws path data whose coordinates across are thousandths of the drawing's width. Path data has no
/// percentages: a drawing inside the drawing is stretched to its width, and the style sheet keeps
/// the strokes of its paths as they are.
fn stretched(height: &str, class: &str, d: &str) -> String {
    format!(
        r#"<svg width="100%" height="{height}" viewBox="0 0 1000 {height}" preserveAspectRatio="none"><path class="{class}" d="{d}"/></svg>"#
    )
}

/// Formats the tooltip of an element; empty without a text.
fn titled(title: &str) -> String {
    match title {
        "" => String::new(),
        title => format!("<title>{}</title>", escape::html(title)),
    }
}

fn ends(from: (f64, f64), to: (f64, f64)) -> String {
    let (x1, y1, x2, y2) = (percent(from.0), pixels(from.1), percent(to.0), pixels(to.1));
    format!(r#"x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}""#)
}

fn sides(corner: (f64, f64), size: (f64, f64)) -> String {
    let (x, y) = (percent(corner.0), pixels(corner.1));
    let (width, height) = (percent(size.0), pixels(size.1));
    format!(r#"x="{x}" y="{y}" width="{width}" height="{height}""#)
}

/// Formats SVG path data through `points`, without points that equal the point before at one
/// decimal.
fn path_data(points: &[(f64, f64)]) -> String {
    let mut d = String::new();
    let mut last = None;
    for (x, y) in points {
        let point = (pixels(*x), pixels(*y));
        if last.as_ref() == Some(&point) {
            continue;
        }
        let command = if last.is_none() { 'M' } else { 'L' };
        // Writing to a string cannot fail.
        let _ = write!(d, "{command}{} {}", point.0, point.1);
        last = Some(point);
    }
    d
}

/// Formats a coordinate across the drawing as a percentage with two decimals.
fn percent(value: f64) -> String {
    format!("{}%", trimmed(format!("{value:.2}")))
}

/// Formats a coordinate down the drawing, or a length in pixels, with one decimal.
fn pixels(value: f64) -> String {
    trimmed(format!("{value:.1}"))
}

/// Removes zeros at the end of a decimal fraction, and the sign of zero.
fn trimmed(text: String) -> String {
    match text.trim_end_matches('0').trim_end_matches('.') {
        "-0" | "" => "0".to_owned(),
        text => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped_and_coordinates_are_short() {
        let mut svg = Svg::new("plot", 20.0);
        svg.text("t", (10.456, -0.01), 4.0, (Anchor::End, "<a> & b"));
        svg.path("p", &[(0.0, 0.0), (0.001, 0.01), (100.0, 2.25)]);
        expect_test::expect![[r#"
            <svg class="chart plot" role="img" height="20"><title>&lt;t&gt;</title>
            <text class="t" x="10.46%" y="0" dx="4" text-anchor="end">&lt;a&gt; &amp; b</text>
            <svg width="100%" height="20" viewBox="0 0 1000 20" preserveAspectRatio="none"><path class="p" d="M0 0L1000 2.2"/></svg>
            </svg>"#]]
        .assert_eq(&svg.finish("<t>"));
    }

    #[test]
    fn a_drawing_has_no_width_of_its_own_and_scales_no_text() {
        let mut svg = Svg::new("", 20.0);
        svg.mark("mark s0", 1, (50.0, 10.0), &Tip::plain("a"));
        let text = svg.finish("t");
        let head = text.lines().next().unwrap_or_default();
        assert!(!head.contains("viewBox") && !head.contains("width"), "{head}");
        assert!(text.contains(r#"<svg x="50%" y="10"><path class="mark s0""#), "{text}");
    }

    #[test]
    fn a_linked_point_is_reached_by_the_tab_key_and_names_itself() {
        let mut svg = Svg::new("", 20.0);
        let tip =
            Tip { text: "redline & 5; n = 3".into(), address: Some("run/1/index.html".into()) };
        svg.dot("dot", (50.0, 10.0), 3.0, &tip);
        let text = svg.finish("t");
        let link = r#"<a href="run/1/index.html"><circle class="dot""#;
        assert!(text.contains(link), "{text}");
        assert!(text.contains("<title>redline &amp; 5; n = 3</title></circle></a>"), "{text}");
        assert!(
            text.starts_with(r#"<svg class="chart" role="group""#),
            "links are no image: {text}"
        );
    }
}
