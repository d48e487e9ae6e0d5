//! Horizontal bar chart: grouped bars from zero, with whiskers.

use super::scale::{Scale, round_up};
use super::svg::{Anchor, Svg};
use super::{AXIS, Look, NARROW, Tip, coordinate_of, fitted, x_axis};

/// One bar of a bar chart.
#[derive(Debug, Clone)]
pub struct Bar {
    /// Name of the bar's series, such as a release; empty where there is only one series.
    pub series: String,
    /// Length of the bar in the chart's unit; `None` draws no bar, and `text` gives the reason.
    pub value: Option<f64>,
    /// Smallest and largest value of the repeats, drawn as a whisker; `None` where there are fewer
    /// than two repeats.
    pub range: Option<(f64, f64)>,
    /// Value as it is shown beside the bar, or the reason why there is no bar.
    pub text: String,
    pub look: Look,
    pub tip: Tip,
}

/// Group of bars under one label.
#[derive(Debug, Clone)]
pub struct BarGroup {
    pub label: String,
    pub bars: Vec<Bar>,
}

const LABEL: f64 = 18.0;
const BAR: f64 = 17.0;
/// Height of a line with the name of a bar's series, in pixels.
const SERIES: f64 = 15.0;
const GAP: f64 = 8.0;
const TOP: f64 = 2.0;

/// Width that the style sheet reserves right of the longest bar for its value, in pixels.
const VALUE_ROOM: f64 = 104.0;

/// Draws groups of horizontal bars with a common axis in `unit`.
pub fn bars(unit: &str, groups: &[BarGroup]) -> Svg {
    let row = row(groups);
    let height = |group: &BarGroup| LABEL + coordinate_of(group.bars.len()) * row.height + GAP;
    let bottom = TOP + groups.iter().map(height).sum::<f64>();
    let mut svg = Svg::new("bars", bottom + AXIS);
    let bars = groups.iter().flat_map(|group| &group.bars);
    let largest = bars.flat_map(|bar| bar.value.into_iter().chain(bar.range.map(|(_, high)| high)));
    let end = round_up(largest.fold(0.0, f64::max));
    let scale = Scale::linear((0.0, end), (0.0, 100.0));
    x_axis(&mut svg, &scale, (TOP, bottom), unit);
    let mut top = TOP;
    for group in groups {
        svg.rect("halo", (0.0, top + 1.0), (100.0, LABEL - 2.0));
        let label = fitted(&group.label, NARROW);
        svg.text("label", (0.0, top + 13.0), 0.0, (Anchor::Start, &label));
        for (index, bar) in group.bars.iter().enumerate() {
            let top = top + LABEL + coordinate_of(index) * row.height;
            draw_bar(&mut svg, &scale, bar, row, top);
        }
        top += height(group);
    }
    svg
}

/// Chooses one layout for all bars of the chart: where the value and the series name of some bar
/// are together too long to follow the longest bar, all names are above their bars.
fn row(groups: &[BarGroup]) -> Row {
    let bars = groups.iter().flat_map(|group| &group.bars);
    let longest = bars.map(|bar| behind(bar).chars().count()).max().unwrap_or(0);
    let above = super::width_of(longest) > VALUE_ROOM;
    Row { above, height: if above { SERIES + BAR } else { BAR } }
}

/// Layout of all bars of a chart and of the names of their series.
#[derive(Debug, Clone, Copy)]
struct Row {
    /// True where the name of a bar's series is above the bar, false where it follows the value.
    above: bool,
    height: f64,
}

/// Returns the text that follows a bar: its value and the name of its series.
fn behind(bar: &Bar) -> String {
    [bar.text.as_str(), bar.series.as_str()].join(" ").trim().to_owned()
}

fn draw_bar(svg: &mut Svg, scale: &Scale, bar: &Bar, row: Row, top: f64) {
    let mut top = top;
    let mut text = behind(bar);
    if row.above {
        svg.rect("halo", (0.0, top), (100.0, SERIES));
        let series = fitted(&bar.series, NARROW);
        svg.text("axis", (0.0, top + 12.0), 0.0, (Anchor::Start, &series));
        text.clone_from(&bar.text);
        top += SERIES;
    }
    let middle = top + BAR / 2.0;
    let mut end = scale.at(0.0);
    if let Some(value) = bar.value {
        // Long enough that the bar of a tiny value is visible.
        let size = (scale.at(value).max(0.3), BAR - 3.0);
        svg.bar(&bar.look.class("bar"), (0.0, top + 1.5), size, &bar.tip);
        end = scale.at(value);
    }
    if let Some((low, high)) = bar.range {
        let (low, high) = (scale.at(low), scale.at(high));
        svg.line("whisker", (low, middle), (high, middle));
        for x in [low, high] {
            svg.line("whisker", (x, middle - 3.5), (x, middle + 3.5));
        }
        end = end.max(high);
    }
    svg.text("value", (end, middle + 4.0), 6.0, (Anchor::Start, &text));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(series: &str, value: Option<f64>, text: &str) -> Bar {
        Bar {
            series: series.into(),
            value,
            range: value.map(|value: f64| (value * 0.9, value * 1.1)),
            text: text.into(),
            look: Look::of("redline").hollow(true),
            tip: Tip { text: "why".into(), address: Some("run/1/index.html".into()) },
        }
    }

    #[test]
    fn a_missing_value_has_a_text_and_no_bar() {
        let group = BarGroup {
            label: "a".into(),
            bars: vec![bar("v1", Some(5e11), "5"), bar("v1", None, "failed")],
        };
        let svg = bars("tokens/s", &[group]).finish("t");
        assert_eq!(svg.matches("class=\"bar s0 hollow").count(), 1, "{svg}");
        assert!(svg.contains("failed v1") && svg.contains("600G"), "{svg}");
        assert!(svg.contains("<a href=\"run/1/index.html\"><rect"), "{svg}");
    }

    #[test]
    fn a_name_that_is_too_long_to_stand_behind_its_bar_stands_above_it() {
        let long = "an engine v0.10.1, with a flag that says much and another that says more";
        let of = |series| bar(series, Some(4740.0), "4,740");
        let group = BarGroup { label: "a".into(), bars: vec![of("v1"), of(long)] };
        let svg = bars("tokens/s", &[group]).finish("t");
        assert!(svg.contains(">4,740</text>") && svg.contains(">v1</text>"), "{svg}");
        let cut = svg.lines().find(|line| line.contains("an engine")).expect("a name");
        assert!(cut.contains('…') && cut.contains("x=\"0%\""), "{cut}");
    }
}
