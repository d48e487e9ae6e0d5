//! A small writer of SVG. Colors come from the page's style sheet through classes, so that a
//! chart follows the reader's light or dark theme; coordinates have one decimal.

use std::fmt::Write;

use crate::escape;

/// Where a text is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

/// A drawing under way.
#[derive(Debug)]
pub struct Svg {
    body: String,
    width: f64,
    height: f64,
}

impl Svg {
    #[must_use]
    pub fn new(width: f64, height: f64) -> Self {
        Self { body: String::new(), width, height }
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

    /// A dot with a text that shows on hovering.
    pub fn dot(&mut self, class: &str, center: (f64, f64), radius: f64, title: &str) {
        let (x, y, r) = (coordinate(center.0), coordinate(center.1), coordinate(radius));
        let title = escape::html(title);
        self.push(&format!(
            r#"<circle class="{class}" cx="{x}" cy="{y}" r="{r}"><title>{title}</title></circle>"#
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

    /// A line through `points`; points that change nothing at one decimal are left out.
    pub fn path(&mut self, class: &str, points: &[(f64, f64)]) {
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
        self.push(&format!(r#"<path class="{class}" d="{d}"/>"#));
    }

    /// The finished drawing with its title and description for those who cannot see it.
    #[must_use]
    pub fn finish(self, title: &str, description: &str) -> String {
        let (width, height) = (coordinate(self.width), coordinate(self.height));
        let (title, description) = (escape::html(title), escape::html(description));
        format!(
            "<svg class=\"chart\" role=\"img\" viewBox=\"0 0 {width} {height}\">\
             <title>{title}</title><desc>{description}</desc>\n{}</svg>",
            self.body
        )
    }

    fn push(&mut self, element: &str) {
        self.body.push_str(element);
        self.body.push('\n');
    }
}

/// One decimal, without a trailing `.0`.
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
