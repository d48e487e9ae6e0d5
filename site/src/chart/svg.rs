//! Small SVG writer. Colors come from the page's style sheet through classes, so that a chart
//! follows the reader's light or dark theme. Coordinates have one decimal.

use std::fmt::Write;

use crate::escape;

/// Horizontal alignment of an SVG text at its position: starts there, is centered there, or ends
/// there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

/// Corners of the shapes that distinguish series without color, in multiples of the mark's radius
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

/// Number of series that have a color and a shape of their own.
pub const SERIES: usize = SHAPES.len();

/// SVG drawing in progress: its elements and its size in SVG units.
#[derive(Debug)]
pub struct Svg {
    body: String,
    width: f64,
    height: f64,
    /// True when the drawing contains a link.
    linked: bool,
}

impl Svg {
    pub fn new(width: f64, height: f64) -> Self {
        Self { body: String::new(), width, height, linked: false }
    }

    pub fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let (x1, y1) = (coordinate(from.0), coordinate(from.1));
        let (x2, y2) = (coordinate(to.0), coordinate(to.1));
        self.push(&format!(r#"<line class="{class}" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>"#));
    }

    pub fn rect(&mut self, class: &str, corner: (f64, f64), size: (f64, f64)) {
        let (x, y) = (coordinate(corner.0), coordinate(corner.1));
        let (width, height) = (coordinate(size.0), coordinate(size.1));
        self.push(&format!(
            r#"<rect class="{class}" x="{x}" y="{y}" width="{width}" height="{height}"/>"#
        ));
    }

    /// Adds a rectangle with a tooltip to the drawing.
    pub fn titled_rect(&mut self, class: &str, corner: (f64, f64), size: (f64, f64), title: &str) {
        let (x, y) = (coordinate(corner.0), coordinate(corner.1));
        let (width, height) = (coordinate(size.0), coordinate(size.1));
        let title = escape::html(title);
        self.push(&format!(
            r#"<rect class="{class}" x="{x}" y="{y}" width="{width}" height="{height}"><title>{title}</title></rect>"#
        ));
    }

    /// Adds a dot with a tooltip to the drawing.
    pub fn dot(&mut self, class: &str, center: (f64, f64), radius: f64, title: &str) {
        self.push(&circle(class, center, radius, title));
    }

    /// Adds a dot that links to `address` to the drawing. A table on the page has a link to the
    /// same address, so the tab key skips the dot.
    pub fn linked_dot(
        &mut self,
        class: &str,
        center: (f64, f64),
        radius: f64,
        (title, address): (&str, &str),
    ) {
        self.linked = true;
        let name = escape::html(title);
        let circle = circle(class, center, radius, title);
        self.push(&format!(
            r#"<a href="{address}" tabindex="-1" aria-label="{name}">{circle}</a>"#
        ));
    }

    /// Adds to the drawing the mark of the series with this index, with a tooltip.
    pub fn mark(&mut self, class: &str, series: usize, center: (f64, f64), title: &str) {
        const RADIUS: f64 = 4.0;
        let corners = SHAPES[series % SERIES];
        if corners.is_empty() {
            return self.dot(class, center, RADIUS, title);
        }
        let at = |(x, y): &(f64, f64)| (center.0 + x * RADIUS, center.1 + y * RADIUS);
        let d = path_data(&corners.iter().map(at).collect::<Vec<_>>());
        let title = escape::html(title);
        self.push(&format!(r#"<path class="{class}" d="{d}Z"><title>{title}</title></path>"#));
    }

    /// Adds a filled outline through `points` to the drawing.
    pub fn area(&mut self, class: &str, points: &[(f64, f64)]) {
        self.push(&format!(r#"<path class="{class}" d="{}Z"/>"#, path_data(points)));
    }

    /// Adds a vertical line with a tooltip to the drawing.
    pub fn rule(&mut self, class: &str, x: f64, (top, bottom): (f64, f64), title: &str) {
        let (x, top, bottom) = (coordinate(x), coordinate(top), coordinate(bottom));
        let title = escape::html(title);
        self.push(&format!(
            r#"<path class="{class}" d="M{x} {top}V{bottom}"><title>{title}</title></path>"#
        ));
    }

    pub fn text(&mut self, class: &str, at: (f64, f64), anchor: Anchor, text: &str) {
        let (x, y) = (coordinate(at.0), coordinate(at.1));
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => r#" text-anchor="middle""#,
            Anchor::End => r#" text-anchor="end""#,
        };
        let text = escape::html(text);
        self.push(&format!(r#"<text class="{class}" x="{x}" y="{y}"{anchor}>{text}</text>"#));
    }

    /// Adds a line through `points` to the drawing, without points that equal the point before at
    /// one decimal.
    pub fn path(&mut self, class: &str, points: &[(f64, f64)]) {
        let d = path_data(points);
        self.push(&format!(r#"<path class="{class}" d="{d}"/>"#));
    }

    /// Finishes the drawing as a chart and returns its SVG text, with title and description for
    /// screen readers.
    pub fn finish(self, title: &str, description: &str) -> String {
        self.finish_as("chart", title, description)
    }

    /// Finishes the drawing under the CSS class `class` and returns its SVG text; an empty
    /// description is left out.
    pub fn finish_as(self, class: &str, title: &str, description: &str) -> String {
        let (width, height) = (coordinate(self.width), coordinate(self.height));
        let description = match description {
            "" => String::new(),
            text => format!("<desc>{}</desc>", escape::html(text)),
        };
        format!(
            "<svg class=\"{class}\" role=\"{role}\" viewBox=\"0 0 {width} {height}\">\
             <title>{title}</title>{description}\n{body}</svg>",
            // A drawing with the role `img` must not contain links.
            role = if self.linked { "group" } else { "img" },
            title = escape::html(title),
            body = self.body
        )
    }

    fn push(&mut self, element: &str) {
        self.body.push_str(element);
        self.body.push('\n');
    }
}

fn circle(class: &str, center: (f64, f64), radius: f64, title: &str) -> String {
    let (x, y, r) = (coordinate(center.0), coordinate(center.1), coordinate(radius));
    let title = escape::html(title);
    format!(r#"<circle class="{class}" cx="{x}" cy="{y}" r="{r}"><title>{title}</title></circle>"#)
}

/// Formats SVG path data through `points`, without points that equal the point before at one
/// decimal.
fn path_data(points: &[(f64, f64)]) -> String {
    let mut d = String::new();
    let mut last = None;
    for (x, y) in points {
        let point = (coordinate(*x), coordinate(*y));
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

/// Formats a coordinate with one decimal, without a trailing `.0`.
fn coordinate(value: f64) -> String {
    let text = format!("{value:.1}");
    match text.strip_suffix(".0") {
        Some("-0") => "0".to_owned(),
        Some(whole) => whole.to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped_and_coordinates_are_short() {
        let mut svg = Svg::new(10.0, 20.0);
        svg.text("t", (1.04, -0.01), Anchor::End, "<a> & b");
        svg.path("p", &[(0.0, 0.0), (0.01, 0.01), (1.0, 2.25)]);
        expect_test::expect![[r#"
            <svg class="chart" role="img" viewBox="0 0 10 20"><title>&lt;t&gt;</title><desc>d</desc>
            <text class="t" x="1" y="0" text-anchor="end">&lt;a&gt; &amp; b</text>
            <path class="p" d="M0 0L1 2.2"/>
            </svg>"#]]
        .assert_eq(&svg.finish("<t>", "d"));
    }
}
