//! A controller that is killed at any of its changes of the file system, while it collects the records
//! of its jobs and publishes them: the next one finishes the campaign with every record.

use std::fs;
use std::path::Path;
use std::process::Command;

use tests::killed::{Killed, killed_at, spread};

use crate::scratch::{Scratch, files_below};

const TWO: &[&str] = &["release-bench", "v0.9.2"];
const RESUME: &[&str] = &["release-bench", "v0.9.2", "--resume"];
/// Number of changes at which the controller is killed by default.
const SAMPLED: u32 = 16;

/// A campaign whose jobs have ended and are not collected.
struct Base {
    scratch: Scratch,
    /// Number of changes that its controller still makes.
    changes: u32,
    /// Number of servers that were started.
    launches: usize,
}

impl Base {
    fn new() -> Self {
        let scratch = Scratch::new();
        scratch.run(TWO).expect(0, &[]);
        let journal = scratch.campaign().join("journal.jsonl");
        let whole = fs::read_to_string(&journal).unwrap();
        let submitted = |line: &&str| line.contains("\"state\":\"submitted\"");
        let lines = whole.split_inclusive('\n');
        let kept = lines.clone().position(|line| submitted(&line)).unwrap() + 1;
        fs::write(&journal, lines.take(kept).collect::<String>()).unwrap();
        fs::remove_dir_all(scratch.campaign().join("results")).unwrap();
        copy(&scratch.root().join("target/campaigns"), &scratch.fixtures().join("campaigns"));
        let launches = scratch.pids("bench.pids").len();
        let mut base = Self { scratch, changes: 0, launches };
        base.restore();
        let ended = killed_at(&base.scratch.command(RESUME), u32::MAX);
        let Killed::Ended { code: 0, changes } = ended else { panic!("{ended:?}") };
        base.changes = changes;
        base
    }

    fn restore(&self) {
        let campaigns = self.scratch.root().join("target/campaigns");
        fs::remove_dir_all(&campaigns).unwrap();
        copy(&self.scratch.fixtures().join("campaigns"), &campaigns);
        let _ = fs::remove_dir_all(self.scratch.root().join("results"));
    }

    fn kill_at(&self, end: u32) {
        self.restore();
        let killed = killed_at(&self.scratch.command(RESUME), end);
        assert_eq!(killed, Killed::Killed, "change {end} of {}", self.changes);
        let ended = self.scratch.run(RESUME);
        // The killed one may have finished the campaign.
        let finished = ended.code == Some(2) && ended.stderr.contains("no unfinished campaign");
        assert!(ended.code == Some(0) || finished, "change {end}: {}", ended.stderr);
        let files = files_below(&self.scratch.root().join("results/runs"));
        let records = files.iter().filter(|path| path.extension().is_some_and(|of| of == "json"));
        assert_eq!(records.count(), 2, "change {end}: {files:?}");
        assert_eq!(self.scratch.pids("bench.pids").len(), self.launches, "change {end}");
    }
}

fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
}

#[test]
fn a_controller_that_is_killed_at_a_change_leaves_a_campaign_that_goes_on() {
    let base = Base::new();
    assert!(base.changes >= SAMPLED, "only {} changes", base.changes);
    // One run may have a change less than another.
    spread(SAMPLED, base.changes - 2).into_iter().for_each(|end| base.kill_at(end));
}

#[test]
fn extra_a_controller_may_be_killed_at_every_change() {
    let base = Base::new();
    (1..=base.changes - 2).for_each(|end| base.kill_at(end));
}
