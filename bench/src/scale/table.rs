//! Markdown table of `scale-bench`, for the console and the document about the method. Pure.

use std::collections::BTreeMap;

use super::WANTED_OF;
use super::work::{Took, Work};
use crate::clients::table::{grouped, spread};
use judge::summary;

/// Decimal places of a time in seconds: processes are polled every 10 ms.
const DIGITS: usize = 2;

/// Results of `scale-bench`.
#[derive(Debug)]
pub struct Scaled {
    pub records: u64,
    /// Records of the registry from which the site is built.
    pub site_records: u64,
    pub registry_bytes: u64,
    pub site_bytes: u64,
    /// Times of each command, one for each repeat.
    pub times: BTreeMap<Work, Vec<Took>>,
    /// Sentence that states date, commit and machine.
    pub provenance: String,
}

impl Scaled {
    /// Renders the results as Markdown.
    pub fn render(&self) -> String {
        let mut text =
            "| | wanted, s | wall time, s | processor time, s |\n|---|---|---|---|\n".to_owned();
        for (work, times) in &self.times {
            let repeats =
                |of: fn(&Took) -> f64| summary::of(&times.iter().map(of).collect::<Vec<f64>>());
            let (Some(wall), Some(cpu)) = (repeats(|t| t.wall_s), repeats(|t| t.cpu_s)) else {
                continue;
            };
            let wanted = self.wanted_s(*work);
            let shown = wanted.map(|most| format!("<= {}", grouped(most, DIGITS)));
            let kept = wanted.is_none_or(|most| wall.median <= most);
            text += &format!(
                "| {} | {} | {} | {} |\n",
                work.title(),
                shown.unwrap_or_default(),
                spread(&wall, DIGITS, kept),
                spread(&cpu, DIGITS, true),
            );
        }
        format!("{text}\n{}\n{}\n", self.sizes(), self.provenance)
    }

    /// True when no command took longer than required.
    pub fn is_as_wanted(&self) -> bool {
        self.times.iter().all(|(work, times)| {
            let wall = summary::of(&times.iter().map(|took| took.wall_s).collect::<Vec<f64>>());
            wall.zip(self.wanted_s(*work)).is_none_or(|(wall, most)| wall.median <= most)
        })
    }

    /// Required time of a command; `None` for a registry of another size than the requirement's.
    fn wanted_s(&self, work: Work) -> Option<f64> {
        (self.records == WANTED_OF).then_some(work.wanted_s())
    }

    #[expect(clippy::cast_precision_loss, reason = "counts and sizes of a disk are below 2^53")]
    fn sizes(&self) -> String {
        let count = |value: u64| grouped(value as f64, 0);
        let megabytes = |bytes: u64| grouped(bytes as f64 / 1e6, 0);
        format!(
            "The registry has {} records in {} MB, and the site {} MB, made of {} records.",
            count(self.records),
            megabytes(self.registry_bytes),
            megabytes(self.site_bytes),
            count(self.site_records),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn scaled(records: u64) -> Scaled {
        let took = |wall_s: f64| Took { wall_s, cpu_s: wall_s * 1.5 };
        Scaled {
            records,
            site_records: records / 10,
            registry_bytes: 435_000_000,
            site_bytes: 249_400_000,
            times: [
                (Work::List, vec![took(1.25), took(0.5), took(1.5)]),
                (Work::CheckFirst, vec![took(13.4)]),
            ]
            .into(),
            provenance: "Measured somewhere.".to_owned(),
        }
    }

    #[test]
    fn a_table_has_medians_ranges_and_what_was_missed() {
        let scaled = scaled(50_000);
        expect![[r#"
            | | wanted, s | wall time, s | processor time, s |
            |---|---|---|---|
            | check, without an index | <= 20.00 | 13.40 | 20.10 |
            | list | <= 1.00 | 1.25 (missed) [0.50 to 1.50] | 1.88 [0.75 to 2.25] |

            The registry has 50,000 records in 435 MB, and the site 249 MB, made of 5,000 records.
            Measured somewhere.
        "#]]
        .assert_eq(&scaled.render());
        assert!(!scaled.is_as_wanted());
    }

    #[test]
    fn nothing_is_wanted_of_a_registry_of_another_size() {
        let scaled = scaled(40_000);
        assert!(scaled.is_as_wanted() && !scaled.render().contains("<="), "{}", scaled.render());
    }
}
