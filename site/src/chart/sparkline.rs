//! Sparkline: a series as small as a word, for a table cell. Its figures are beside it.

use super::svg::Svg;

/// Sparkline: a series of values without axes.
#[derive(Debug, Clone)]
pub struct Sparkline {
    /// Accessible title: what is drawn, with the first and last figure, for screen readers.
    pub title: String,
    /// Values in order; `None` interrupts the line.
    pub values: Vec<Option<f64>>,
}

const WIDTH: f64 = 88.0;
const HEIGHT: f64 = 18.0;
const EDGE: f64 = 3.0;

/// Smallest range of the vertical axis, as a share of the highest value, so that noise looks flat.
const SMALLEST_SPAN: f64 = 0.1;

impl Sparkline {
    /// Draws the sparkline as SVG.
    pub fn draw(&self) -> String {
        let mut svg = Svg::new(WIDTH, HEIGHT);
        let known = || self.values.iter().flatten().copied().filter(|value| value.is_finite());
        let (low, high) = (known().fold(f64::INFINITY, f64::min), known().fold(f64::MIN, f64::max));
        let x = super::scale::Scale::linear(
            (0.0, super::coordinate_of(self.values.len().saturating_sub(1))),
            (EDGE, WIDTH - EDGE),
        );
        // A flat series gets room above and below, so that its noise does not fill the cell.
        let room = (high.abs() * SMALLEST_SPAN - (high - low)).max(0.0) / 2.0;
        let y = super::scale::Scale::linear((low - room, high + room), (HEIGHT - EDGE, EDGE));
        let mut stretch: Vec<(f64, f64)> = Vec::new();
        let mut last = None;
        for (index, value) in self.values.iter().enumerate() {
            match value.filter(|value| value.is_finite()) {
                Some(value) => {
                    stretch.push((x.at(super::coordinate_of(index)), y.at(value)));
                    last = stretch.last().copied();
                }
                None => finish(&mut svg, &mut stretch),
            }
        }
        finish(&mut svg, &mut stretch);
        if let Some(last) = last {
            svg.dot("dot color", last, 2.5, &self.title);
        }
        svg.finish_as("spark", &self.title, "")
    }
}

/// Draws the points collected since the last gap.
fn finish(svg: &mut Svg, stretch: &mut Vec<(f64, f64)>) {
    if stretch.len() > 1 {
        svg.path("curve", stretch);
    }
    stretch.clear();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_is_not_bridged() {
        let values = vec![Some(10.0), Some(20.0), None, Some(15.0)];
        let spark = Sparkline { title: "10 to 15 tokens/s".into(), values };
        expect_test::expect![[r#"
            <svg class="spark" role="img" viewBox="0 0 88 18"><title>10 to 15 tokens/s</title>
            <path class="curve" d="M3 15L30.3 3"/>
            <circle class="dot color" cx="85" cy="9" r="2.5"><title>10 to 15 tokens/s</title></circle>
            </svg>"#]]
        .assert_eq(&spark.draw());
    }

    #[test]
    fn nothing_known_draws_nothing() {
        let spark = Sparkline { title: "t".into(), values: vec![None, Some(f64::NAN)] };
        let svg = spark.draw();
        assert!(!svg.contains("<path") && !svg.contains("NaN"), "{svg}");
    }
}
