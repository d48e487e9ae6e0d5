//! Perplexity check of the comparison: the text, and how much worse Redline's perplexity may be.
//! Pure.

use serde::Serialize;

use crate::peer::figure::Figure;
use crate::peer::table::Row;

/// Dataset with the text, a file of `suite/datasets/`.
pub const TEXT: &str = "alice29";
/// Largest allowed ratio of Redline's perplexity to the other engine's.
const OF_PEER: f64 = 1.005;
/// Largest allowed ratio of Redline's perplexity to its own in f32.
const OF_F32: f64 = 1.01;

/// Ratio of Redline's perplexity to another one, and its limit.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Limit {
    /// Owner of the other perplexity, for the message.
    pub of: String,
    pub ratio: f64,
    pub at_most: f64,
    pub holds: bool,
}

impl Limit {
    fn new(of: String, ratio: f64, at_most: f64) -> Self {
        Self { of, ratio, at_most, holds: ratio <= at_most }
    }

    /// Formats the limit as a line for people.
    pub fn line(&self) -> String {
        let Self { of, ratio, at_most, holds } = self;
        let verdict = if *holds { "passes" } else { "FAILS" };
        format!("perplexity is {ratio:.4} times {of}, at most {at_most}: {verdict}")
    }
}

/// Checks Redline's perplexity against both limits; empty if perplexity was not measured.
pub fn limits(rows: &[Row], peer: &str) -> Vec<Limit> {
    let row = |figure: Figure| rows.iter().find(|row| row.figure == figure);
    let (Some(own), Some(f32)) = (row(Figure::Perplexity), row(Figure::PerplexityF32)) else {
        return Vec::new();
    };
    vec![
        Limit::new(format!("that of {peer}"), own.ratio.mean, OF_PEER),
        Limit::new(
            "redline's in f32".into(),
            own.redline.summary.median / f32.redline.summary.median,
            OF_F32,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::figure::Sample;
    use crate::peer::table;

    fn lines(own: f64, f32: f64, peer: f64) -> Vec<String> {
        let samples = [
            (Figure::Perplexity, 0, own),
            (Figure::Perplexity, 1, peer),
            (Figure::PerplexityF32, 0, f32),
            (Figure::PerplexityF32, 1, peer),
        ];
        let samples = samples.map(|(figure, variant, value)| Sample { figure, variant, value });
        limits(&table::rows(&samples), "llama.cpp").iter().map(Limit::line).collect()
    }

    #[test]
    fn each_limit_is_judged_by_itself() {
        let of_peer = "perplexity is 1.0060 times that of llama.cpp, at most 1.005: FAILS";
        let of_f32 = "perplexity is 1.0080 times redline's in f32, at most 1.01: passes";
        assert_eq!(lines(10.08, 10.0, 10.02), [of_peer, of_f32]);
        let of_peer = "perplexity is 1.0000 times that of llama.cpp, at most 1.005: passes";
        let of_f32 = "perplexity is 1.0200 times redline's in f32, at most 1.01: FAILS";
        assert_eq!(lines(10.2, 10.0, 10.2), [of_peer, of_f32]);
    }

    #[test]
    fn what_was_not_measured_is_not_judged() {
        assert_eq!(limits(&[], "llama.cpp"), []);
    }
}
