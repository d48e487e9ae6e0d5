//! The plan as it is printed before anything is built or fetched.

use std::fmt::Write;

use crate::console::about;
use crate::estimate::Estimate;

/// What the plan says of one cell.
#[derive(Debug, Clone)]
pub struct CellBrief {
    pub model: String,
    pub tp: u32,
    /// `id@rev`.
    pub scenario: String,
    pub each: Estimate,
}

/// What the plan says in all.
#[derive(Debug, Clone)]
pub struct Brief {
    pub campaign: String,
    pub engine: String,
    /// Baseline first.
    pub sides: Vec<String>,
    pub hardware: String,
    pub target: String,
    pub cells: Vec<CellBrief>,
    pub repeats: u32,
    /// Pairs that confirm what the first ones find; none where nothing is to be confirmed.
    pub confirm_pairs: Option<u32>,
    /// Id of an input, and whether it is at hand.
    pub inputs: Vec<(String, bool)>,
    /// Where the records will lie, and whether they are committed.
    pub records: String,
}

impl Brief {
    /// Runs of one cell.
    #[must_use]
    pub fn launches(&self) -> u64 {
        u64::from(self.repeats) * self.sides.len() as u64
    }

    /// Expected time of all runs.
    #[must_use]
    pub fn expected_us(&self) -> u64 {
        self.cells.iter().map(|cell| cell.each.us().saturating_mul(self.launches())).sum()
    }

    /// The plan as text.
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = format!("Plan of campaign {}\n", self.campaign);
        let mut line = |key: &str, value: &str| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "  {key:<10} {value}");
        };
        line("engine", &self.engine);
        for (index, side) in self.sides.iter().enumerate() {
            line(if index == 0 { "measured" } else { "" }, side);
        }
        line("hardware", &format!("{} (target {})", self.hardware, self.target));
        let mut model = "";
        for cell in &self.cells {
            if model != cell.model {
                model = &cell.model;
                line("model", &format!("{model}, {} {}", cell.tp, ranks(cell.tp)));
            }
            line("", &self.cell_line(cell));
        }
        for (index, (id, had)) in self.inputs.iter().enumerate() {
            let state = if *had { "at hand" } else { "to be fetched" };
            line(if index == 0 { "inputs" } else { "" }, &format!("{id}, {state}"));
        }
        let runs = self.launches() * self.cells.len() as u64;
        let expected = about(self.expected_us());
        line("runs", &format!("{runs}, {expected} beside builds and downloads"));
        if let Some(pairs) = self.confirm_pairs {
            let each: u64 = self.cells.iter().map(|cell| cell.each.us()).sum();
            let most = about(each.saturating_mul(2 * u64::from(pairs)));
            line("", &format!("then {pairs} pairs of each cell that differs, at most {most}"));
        }
        line("records", &self.records);
        text
    }

    fn cell_line(&self, cell: &CellBrief) -> String {
        let basis = match cell.each {
            Estimate::Measured { runs: 1, .. } => "as an earlier run took".to_owned(),
            Estimate::Measured { runs, .. } => format!("median of {runs} earlier runs"),
            Estimate::Assumed { tokens_per_s, .. } => {
                format!("nothing measured yet: assumes {tokens_per_s} tokens/s")
            }
        };
        let each = about(cell.each.us());
        let launches = match self.launches() {
            1 => "1 launch".to_owned(),
            count => format!("{count} launches"),
        };
        format!("{:<22} {launches}, {each} each ({basis})", cell.scenario)
    }
}

fn ranks(tp: u32) -> &'static str {
    if tp == 1 { "rank" } else { "ranks" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn the_plan_says_what_how_long_and_where() {
        let cell = |scenario: &str, each| CellBrief {
            model: "smollm2-135m-instruct-q4_1".into(),
            tp: 1,
            scenario: scenario.into(),
            each,
        };
        let brief = Brief {
            campaign: "01JD5XQ0000000000000000000".into(),
            engine: "redline".into(),
            sides: vec!["v0.9.1, commit 1111111111".into(), "v0.9.2, commit 2222222222".into()],
            hardware: "cpu-intel-xeon-f6m85s7-2c".into(),
            target: "cpu".into(),
            cells: vec![
                cell("sharegpt-lite@1", Estimate::Measured { us: 41_000_000, runs: 6 }),
                cell("balanced-lite@1", Estimate::Assumed { us: 31_000_000, tokens_per_s: 300 }),
            ],
            repeats: 5,
            confirm_pairs: Some(8),
            inputs: vec![("smollm2".into(), true), ("sharegpt-head".into(), false)],
            records: "results/, committed on the branch that is checked out".into(),
        };
        expect![[r#"
            Plan of campaign 01JD5XQ0000000000000000000
              engine     redline
              measured   v0.9.1, commit 1111111111
                         v0.9.2, commit 2222222222
              hardware   cpu-intel-xeon-f6m85s7-2c (target cpu)
              model      smollm2-135m-instruct-q4_1, 1 rank
                         sharegpt-lite@1        10 launches, about 41 s each (median of 6 earlier runs)
                         balanced-lite@1        10 launches, about 31 s each (nothing measured yet: assumes 300 tokens/s)
              inputs     smollm2, at hand
                         sharegpt-head, to be fetched
              runs       20, about 12 min beside builds and downloads
                         then 8 pairs of each cell that differs, at most about 19 min
              records    results/, committed on the branch that is checked out
        "#]]
        .assert_eq(&brief.render());
    }
}
