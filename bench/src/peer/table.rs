//! The arithmetic of the comparison, and the table that a person reads. Pure.

use campaign::publish::beside::Repeats;
use serde::Serialize;

use crate::peer::figure::{Figure, Sample};

/// A figure of both sides.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    pub figure: Figure,
    pub more_is_better: bool,
    pub redline: Repeats,
    pub peer: Repeats,
    /// Redline's value over the peer's, for each pair.
    pub ratio: Repeats,
}

/// A row for every figure that both sides have.
#[must_use]
pub fn rows(samples: &[Sample]) -> Vec<Row> {
    let row = |figure: Figure| {
        let of = |variant: usize| -> Vec<f64> {
            let here = samples.iter().filter(|s| s.figure == figure && s.variant == variant);
            here.map(|sample| sample.value).collect()
        };
        let (redline, peer) = (of(0), of(1));
        let ratios = redline.iter().zip(&peer).map(|(ours, theirs)| ours / theirs).collect();
        Some(Row {
            figure,
            more_is_better: figure.more_is_better(),
            ratio: Repeats::of(ratios)?,
            redline: Repeats::of(redline)?,
            peer: Repeats::of(peer)?,
        })
    };
    Figure::ALL.into_iter().filter_map(row).collect()
}

/// The rows as text, under a heading.
#[must_use]
pub fn render(rows: &[Row], peer: &str) -> String {
    let mut text = format!(
        "{:<38} {:>10} {:>10} {:>8}   {}\n",
        "", "redline", peer, "ratio", "over the pairs"
    );
    for row in rows {
        let better = if row.more_is_better { "" } else { " (less is better)" };
        text += &format!(
            "{:<38} {:>10} {:>10} {:>7.2}x   {:.2} to {:.2}{better}\n",
            row.figure.title(),
            shown(row.redline.median),
            shown(row.peer.median),
            row.ratio.median,
            row.ratio.min,
            row.ratio.max,
        );
    }
    text
}

/// Four digits or so, whatever the size.
fn shown(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.2}"),
        v => format!("{v:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn samples(figure: Figure, redline: &[f64], peer: &[f64]) -> Vec<Sample> {
        let of = |variant, values: &[f64]| -> Vec<Sample> {
            values.iter().map(|value| Sample { figure, variant, value: *value }).collect()
        };
        [of(0, redline), of(1, peer)].concat()
    }

    #[test]
    fn ratios_are_taken_pair_by_pair() {
        // The machine was twice as fast in the second repeat: no pair differs.
        let drift = rows(&samples(Figure::Decode, &[100.0, 200.0, 100.0], &[50.0, 100.0, 50.0]));
        assert_eq!(drift[0].ratio.values, [2.0, 2.0, 2.0]);
        assert_eq!((drift[0].ratio.min, drift[0].ratio.max), (2.0, 2.0));
        let noisy = rows(&samples(Figure::Decode, &[90.0, 110.0, 100.0], &[50.0, 50.0, 40.0]));
        let ratio = &noisy[0].ratio;
        assert_eq!((ratio.min, ratio.median, ratio.max), (1.8, 2.2, 2.5));
        assert_eq!(noisy[0].redline.median, 100.0);
    }

    #[test]
    fn a_figure_of_one_side_alone_has_no_row() {
        assert_eq!(rows(&samples(Figure::Memory, &[1.0], &[])), []);
    }

    #[test]
    fn the_table_reads_from_fast_to_small() {
        let all = [
            samples(Figure::Memory, &[1.25, 1.25], &[1.5, 1.5]),
            samples(Figure::Prefill, &[1500.0, 1650.0], &[750.0, 750.0]),
        ];
        let text = render(&rows(&all.concat()), "llama.cpp");
        expect![[r#"
                                                      redline  llama.cpp    ratio   over the pairs
            prefill 512 tokens, tok/s                    1575        750    2.10x   2.00 to 2.20
            resident beyond KV, x file                  1.250      1.500    0.83x   0.83 to 0.83 (less is better)
        "#]]
        .assert_eq(&text);
    }
}
