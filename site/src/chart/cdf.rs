//! Chart of cumulative distributions of latencies on a logarithmic axis.

use super::scale::Scale;
use super::svg::{Anchor, Svg};
use super::{WIDTH, x_axis};

/// Curve of one cumulative distribution.
#[derive(Debug, Clone)]
pub struct Curve {
    pub label: String,
    /// Style of the curve: `a` has the accent color, `b` to `d` differ by dashes.
    pub style: char,
    /// Points of the curve: value in milliseconds, and share of samples up to it; both rise.
    pub points: Vec<(f64, f64)>,
}

/// Chart of cumulative latency distributions, one curve per latency.
#[derive(Debug, Clone)]
pub struct Cdf {
    pub title: String,
    pub description: String,
    pub curves: Vec<Curve>,
}

const LEFT: f64 = 30.0;
const TOP: f64 = 28.0;
const BOTTOM: f64 = 188.0;

impl Cdf {
    /// Draws the distributions as SVG.
    pub fn draw(&self) -> String {
        let mut svg = Svg::new(WIDTH, BOTTOM + 34.0);
        let values = || self.curves.iter().flat_map(|curve| &curve.points).map(|point| point.0);
        let low = values().filter(|value| *value > 0.0).fold(f64::INFINITY, f64::min);
        let high = values().fold(0.0, f64::max);
        let domain = if low <= high { (low, high) } else { (1.0, 10.0) };
        let x = Scale::log(domain, (LEFT, WIDTH - 6.0));
        let y = Scale::linear((0.0, 1.0), (BOTTOM, TOP));
        x_axis(&mut svg, &x, TOP, BOTTOM, "ms, logarithmic");
        for share in [0.0, 0.5, 0.95] {
            svg.line("grid", (LEFT, y.at(share)), (WIDTH - 6.0, y.at(share)));
            let label = format!("{:.0} %", share * 100.0);
            svg.text("tick", (LEFT - 4.0, y.at(share) + 4.0), Anchor::End, &label);
        }
        let step = (WIDTH - LEFT) / 4.0;
        for (curve, column) in self.curves.iter().zip(0_u32..) {
            let left = LEFT + f64::from(column) * step;
            let class = format!("curve {}", curve.style);
            svg.line(&class, (left, 10.0), (left + 22.0, 10.0));
            svg.text("legend", (left + 27.0, 14.0), Anchor::Start, &curve.label);
            let points: Vec<_> =
                curve.points.iter().map(|(ms, share)| (x.at(*ms), y.at(*share))).collect();
            svg.path(&class, &points);
        }
        svg.finish(&self.title, &self.description)
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
            points: vec![(1.0, 0.0), (10.0, 0.5), (100.0, 1.0)],
        };
        let cdf = Cdf { title: "t".into(), description: "d".into(), curves: vec![curve] };
        let svg = cdf.draw();
        assert!(svg.contains("d=\"M30 188L192 108L354 28\""), "{svg}");
    }

    #[test]
    fn no_samples_draw_an_empty_frame() {
        let cdf = Cdf { title: "t".into(), description: "d".into(), curves: Vec::new() };
        assert!(!cdf.draw().contains("NaN"));
    }
}
