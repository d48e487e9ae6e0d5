//! The part of a prepared campaign that belongs to its lab, and the variants that the lab's candidates
//! become. Plain data.

use std::path::PathBuf;

use schema::campaign::CampaignLab;
use schema::lab::{Candidate, LabOutline, flag_name, without};
use serde::{Deserialize, Serialize};

use crate::plan::Variant;

/// A lab as its campaign keeps it from the plan to the end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PreparedLab {
    /// The lab as the campaign's record will state it; its largest number of runs may be reduced
    /// during the campaign.
    pub asked: CampaignLab,
    pub outline: LabOutline,
    /// Largest total time of the lab's runs, in hours; `None` without a time budget.
    pub hours_max: Option<f64>,
    /// Expected time of a run of the lab in microseconds.
    pub each_us: u64,
    /// Path of the copy of the lab's file as it was when the campaign began.
    pub path: PathBuf,
    /// Server flags that each engine's own file adds for a server under load, in the order of the
    /// lab's engines.
    pub loaded: Vec<Vec<String>>,
}

impl PreparedLab {
    /// Returns the largest number of runs that the lab may make.
    pub fn runs_most(&self) -> u32 {
        self.asked.runs_max.min(self.outline.runs_most)
    }

    /// Builds the variant of a candidate; `engine` is the variant of its engine without options.
    pub fn variant(&self, candidate: &Candidate, engine: &Variant) -> Variant {
        let loaded = self.loaded.get(candidate.engine).map_or(&[][..], Vec::as_slice);
        let flags = joined(loaded, self.asked.file.flags(candidate));
        Variant { name: candidate.variant(), flags, ..engine.clone() }
    }
}

/// Appends a lab's flags to those of an engine's file, and removes from the latter each flag that
/// the lab repeats or negates.
fn joined(loaded: &[String], own: Vec<String>) -> Vec<String> {
    let given: Vec<&str> = own.iter().filter_map(|word| flag_name(word)).collect();
    let denied: Vec<String> = given.iter().map(|name| opposite(name)).collect();
    let names: Vec<&str> = given.iter().copied().chain(denied.iter().map(String::as_str)).collect();
    let mut flags = without(loaded, &names);
    flags.extend(own);
    flags
}

/// Returns the opposite of a flag: `--no-x` for `--x`, and vice versa.
pub fn opposite(name: &str) -> String {
    match name.strip_prefix("--no-") {
        Some(rest) => format!("--{rest}"),
        None => format!("--no-{}", name.trim_start_matches('-')),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_labs_flags_take_the_place_of_those_of_the_engines_file() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let loaded = words("--threads 2 --parallel 32 --no-cache-prompt --cache-ram 0");
        let flags = joined(&loaded, words("--threads=1 --cache-prompt"));
        assert_eq!(flags.join(" "), "--parallel 32 --cache-ram 0 --threads=1 --cache-prompt");
    }
}
