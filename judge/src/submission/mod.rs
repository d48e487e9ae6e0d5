//! Rules over a submission: records that somebody else measured and asks a maintainer to accept.
//!
//! They come on top of the storage rules and the quality rules, and ask for more: a maintainer saw
//! neither the machine nor the run. A breach refuses the submission; a remark leaves the decision to
//! the maintainer. The rules find figures that contradict each other, the machine's limits or
//! records that the maintainer knows. They cannot find figures that were made up consistently.

mod campaigns;
mod identities;
mod limits;
mod records;

use std::collections::BTreeSet;

use schema::campaign::CampaignRecord;
use schema::run::RunRecord;

use crate::finding::Finding;
use crate::records::Stored;

/// Rule over a submission: an id, a claim that must hold, and the reason for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubmissionRule {
    /// Id of the submission rule: `B..`.
    pub id: &'static str,
    /// Claim of the submission rule that must hold, in a few words.
    pub title: &'static str,
    /// Reason why the submission rule matters, as a sentence for pages.
    pub why: &'static str,
}

/// Rule B01: a bundle has the form and keeps the limits of one, and holds nothing but records.
pub const FORM: SubmissionRule = SubmissionRule {
    id: "B01",
    title: "a bundle holds run, kernel and campaign records, each once",
    why: "Events and pages are a maintainer's own statements, and a second file under one path \
          would hide the first.",
};
/// Rule B02: the files of a bundle are those of its manifest.
pub const MANIFEST: SubmissionRule = SubmissionRule {
    id: "B02",
    title: "each file of a bundle has the hash that the signed manifest names",
    why: "The signature covers the manifest, and the manifest covers the records.",
};
/// Rule B03: the signature over the manifest is that of an allowed signer.
pub const SIGNATURE: SubmissionRule = SubmissionRule {
    id: "B03",
    title: "the submitter signed the manifest, with a key that is allowed for that name",
    why: "A record from outside is worth as much as the word of the person who sent it.",
};
/// Rule B04: only runs that this suite measured are submitted.
pub const MEASURED: SubmissionRule = SubmissionRule {
    id: "B04",
    title: "the runs of a submission were measured by this suite",
    why: "Simulated figures are no measurement, and published ones are imported from their source.",
};
/// Rule B05: no run of a submission fails an error rule.
pub const UNBROKEN: SubmissionRule = SubmissionRule {
    id: "B05",
    title: "no run of a submission fails a quality rule of severity error",
    why: "Such figures contradict each other or are excluded from every page.",
};
/// Rule B06: the stored verdicts are those that the record's own figures give.
pub const VERDICTS: SubmissionRule = SubmissionRule {
    id: "B06",
    title: "a run states the reservations and verdicts that follow from its figures",
    why: "A run whose reservations were removed passes for a better one.",
};
/// Rule B07: the duration of a run is the time between its start and its end.
pub const CLOCK: SubmissionRule = SubmissionRule {
    id: "B07",
    title: "the time from start to end of a run is its duration, and it ended in the past",
    why: "The wall clock and the monotonic clock time the same run. Figures that were scaled leave \
          one of them behind.",
};
/// Rule B08: the runs of a campaign on one machine do not overlap in time.
pub const OVERLAP: SubmissionRule = SubmissionRule {
    id: "B08",
    title: "the runs of a campaign on one machine follow each other without overlap",
    why: "Times that were moved lie on those of another run; runs that really overlapped disturbed \
          each other.",
};
/// Rule B09: the runs of a campaign were started in the order of its blocks.
pub const ORDER: SubmissionRule = SubmissionRule {
    id: "B09",
    title: "the runs of a campaign were started block by block, in the order of their positions",
    why: "A moved time breaks the order. A campaign that was resumed can break it too; the stages of \
          a GPU validation have none.",
};
/// Rule B10: a run is the one that its campaign planned.
pub const PLANNED: SubmissionRule = SubmissionRule {
    id: "B10",
    title: "each run is one that its campaign record plans, on the campaign's hardware",
    why: "Engine, release, model, scenario and hardware are stated twice, and a change of one \
          statement shows.",
};
/// Rule B11: no planned run of a submitted cell is missing.
pub const WHOLE: SubmissionRule = SubmissionRule {
    id: "B11",
    title: "all repeats that a campaign planned of a submitted cell are there",
    why: "Whoever leaves out the slow repeats submits the best ones.",
};
/// Rule B12: a name stands for one thing.
pub const IDENTITY: SubmissionRule = SubmissionRule {
    id: "B12",
    title: "a scenario, model, release or hardware has the files and parts that other records of it \
            have",
    why: "A record under another name is a figure of something else.",
};
/// Rule B13: no run is a copy of another.
pub const COPY: SubmissionRule = SubmissionRule {
    id: "B13",
    title: "no two runs have the same latencies, sample by sample",
    why: "Two runs never take the same microseconds: one is a copy of the other.",
};
/// Rule B14: the GPUs did not use more energy than their power limits allow.
pub const POWER: SubmissionRule = SubmissionRule {
    id: "B14",
    title: "the mean power of a GPU is between zero and its power limit",
    why: "Energy is power over time: a shorter duration or another energy breaks the limit.",
};
/// Rule B15: the figures are within what the machine's memory and arithmetic allow.
pub const ROOFLINE: SubmissionRule = SubmissionRule {
    id: "B15",
    title: "tokens come no faster than the machine can read the weights and multiply by them",
    why: "Each decode step reads all weights of a dense model, and each token is multiplied by them. \
          A mixture of experts or speculative decoding reads less for each token.",
};
/// Rule B16: figures that other rules leave free agree with the histograms and slices.
pub const DERIVED: SubmissionRule = SubmissionRule {
    id: "B16",
    title: "deviations, peaks and latencies from the schedule agree with histograms and slices",
    why: "A figure without a second source could be changed unseen.",
};

/// All rules over a submission, ordered by id.
pub const SUBMISSION_RULES: &[SubmissionRule] = &[
    FORM, MANIFEST, SIGNATURE, MEASURED, UNBROKEN, VERDICTS, CLOCK, OVERLAP, ORDER, PLANNED, WHOLE,
    IDENTITY, COPY, POWER, ROOFLINE, DERIVED,
];

impl SubmissionRule {
    /// Creates the finding that the file at `path` breaks the rule, which refuses the submission.
    pub fn breach(&self, path: &str, detail: impl Into<String>) -> Finding {
        let (path, detail) = (path.to_owned(), detail.into());
        Finding { path, rule: self.id, breach: true, detail, hint: None }
    }

    /// Creates a remark by the rule on the file at `path`, which a maintainer decides about.
    pub fn remark(&self, path: &str, detail: impl Into<String>) -> Finding {
        Finding { breach: false, ..self.breach(path, detail) }
    }
}

/// Submission as the rules see it: its records, and those that the maintainer knows.
#[derive(Debug, Clone, Default)]
pub struct Submission {
    /// Runs of the submission.
    pub runs: Vec<Stored<RunRecord>>,
    /// Campaign records of the submission.
    pub campaigns: Vec<Stored<CampaignRecord>>,
    /// Ids of the runs that the submitter says to have retracted and left out.
    pub withheld: BTreeSet<String>,
    /// Runs of the maintainer's registry that have something in common with the submission.
    pub known_runs: Vec<Stored<RunRecord>>,
    /// Campaign records of the maintainer's registry.
    pub known_campaigns: Vec<Stored<CampaignRecord>>,
    /// Time of the check, in seconds since 1970.
    pub unix_s: i64,
}

impl Submission {
    /// Returns the runs of the submission, then those that the maintainer knows and the submission
    /// does not have.
    fn all_runs(&self) -> impl Iterator<Item = (&Stored<RunRecord>, bool)> {
        let own: BTreeSet<&str> = self.runs.iter().map(|run| run.path.as_str()).collect();
        let known = self.known_runs.iter().filter(move |run| !own.contains(run.path.as_str()));
        known.map(|run| (run, false)).chain(self.runs.iter().map(|run| (run, true)))
    }
}

/// Judges a submission by the rules B04 to B16, and returns the findings in the order of paths. The
/// program that reads the bundle judges the others.
pub fn findings(submission: &Submission) -> Vec<Finding> {
    let mut found = Vec::new();
    for run in &submission.runs {
        found.extend(records::findings(&run.path, &run.record, submission.unix_s));
        found.extend(limits::findings(&run.path, &run.record));
    }
    found.extend(campaigns::findings(submission));
    found.extend(identities::findings(submission));
    found.sort();
    found
}

#[cfg(test)]
mod tests;
