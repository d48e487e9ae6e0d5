//! The gate: two variants are compared in turns, the first line is the verdict, and nothing is
//! committed.

use std::fs;

use schema::alternation::OutputsCompared;
use schema::campaign::CampaignRecord;
use schema::comparison::{DecisionKind, Diff, OutputsChange};
use schema::verdict::VerdictKind;

use tests::slurm::Cluster;

use crate::scratch::{Ended, Scratch, files_below, is_alive, wait_for};

/// Two releases, within a budget of which the first look is after three seconds.
const RELEASES: [&str; 6] = ["gate", "v0.9.1", "--candidate", "v0.9.2", "--budget", "15s"];
const SAME: OutputsCompared = OutputsCompared { compared: 6, differ: 0 };
/// The memory of the stand-in's process is really measured, and would be part of the verdict; that of
/// a server of two processes is not known.
const WITHOUT_MEMORY: (&str, &str) = ("REDLINE_FAKE", "family");

impl Scratch {
    fn gate_diff(&self) -> Diff {
        let path = self.root().join("target/gate/diff.json");
        serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
    }

    #[track_caller]
    pub fn commits_nothing(&self) {
        for pids in ["server.pids", "bench.pids"] {
            for pid in self.pids(pids) {
                wait_for("a process to end", || !is_alive(pid));
            }
        }
        assert!(!self.root().join("results").exists(), "something was committed");
        let calls = self.calls();
        assert!(!calls.contains("results record"), "{calls}");
        assert!(!self.root().join("target/release-bench.lock").exists(), "the lock is left");
    }
}

fn kinds(diff: &Diff) -> Vec<(&str, VerdictKind)> {
    let blocking = diff.rows().filter(|row| row.gates);
    blocking.map(|row| (row.verdict.metric.as_str(), row.verdict.verdict)).collect()
}

#[test]
fn a_slower_candidate_is_held_and_the_first_line_says_so() {
    let scratch = Scratch::new();
    scratch.write_slices("0.9.1-0.9.2", 125, SAME);
    let ended = scratch.run_with(&RELEASES, &[WITHOUT_MEMORY]).expect(1, &[]);
    let first = ended.stdout.lines().next().unwrap();
    assert!(first.starts_with("Hold: ") && first.contains("Output tokens"), "{first}");
    assert!(ended.stderr.contains("Compare in turns: tiny, rung-lite"), "{}", ended.stderr);
    let diff = scratch.gate_diff();
    assert_eq!((diff.schema.as_str(), diff.decision.verdict), ("diff.v1", DecisionKind::Hold));
    assert_eq!((diff.baseline.as_str(), diff.candidate.as_str()), ("v0.9.1", "v0.9.2"));
    let found = kinds(&diff);
    assert!(found.contains(&("output_tokens_per_s", VerdictKind::Regressed)), "{found:?}");
    let row = diff.rows().find(|row| row.verdict.metric == "output_tokens_per_s").unwrap();
    let extent = row.verdict.alternation.unwrap();
    assert!(extent.starts >= 4 && extent.budget_us == 15_000_000, "{extent:?}");
    assert!((row.verdict.effect_pct.unwrap() + 20.0).abs() < 0.1, "the slices take 25 % longer");
    for name in ["diff.md", "diff.xml", "campaign.json"] {
        assert!(scratch.root().join("target/gate").join(name).is_file(), "{name}");
    }
    scratch.commits_nothing();
    scratch.run(&["gate", "--resume"]).expect(2, &["no unfinished gate"]);
}

#[test]
fn one_commit_on_both_sides_is_never_held() {
    let scratch = Scratch::new();
    scratch.write_equal_slices();
    let out = scratch.fixtures().join("verdict");
    let flags = ["gate", "HEAD", "--candidate", "HEAD", "--budget", "15s", "--out"];
    let flags = [&flags[..], &[out.to_str().unwrap()]].concat();
    let ended = scratch.run_with(&flags, &[WITHOUT_MEMORY]).expect(0, &[]);
    assert!(ended.stdout.starts_with("Ship: "), "{}", ended.stdout);
    let names = fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["campaign.json", "diff.json", "diff.md", "diff.xml"]);
    assert!(!scratch.root().join("target/gate").exists(), "another folder was named");
    let record: CampaignRecord =
        serde_json::from_str(&fs::read_to_string(out.join("campaign.json")).unwrap()).unwrap();
    let [comparison] = record.alternations.as_slice() else { panic!("one cell") };
    assert_eq!((comparison.model.as_str(), comparison.scenario.as_str()), ("tiny", "rung-lite@1"));
    assert_eq!((comparison.budget_us, comparison.starts.len() >= 4), (15_000_000, true));
    let argv = comparison.candidate.argv.as_ref().unwrap().join(" ");
    assert_eq!(argv, "redline serve {model} --tp 1 --port {port}");
    scratch.commits_nothing();
}

#[test]
fn the_working_tree_is_compared_with_the_newest_release() {
    let scratch = Scratch::new();
    scratch.write_equal_slices();
    scratch.write_slices("0.9.2-0.9.3-dev", 100, OutputsCompared { compared: 6, differ: 2 });
    scratch.write("engine/notes.txt", "not committed");
    let ended = scratch.run_with(&["gate", "--budget", "15s"], &[WITHOUT_MEMORY]);
    let ended = ended.expect(1, &["v0.9.3-dev, the working tree with changes"]);
    let said = "Hold: outputs changed and nothing explains it";
    assert!(ended.stdout.starts_with(said), "{}", ended.stdout);
    let diff = scratch.gate_diff();
    assert_eq!(diff.baseline, "v0.9.2");
    assert_eq!(diff.outputs[0].change, OutputsChange::Differ);
    scratch.commits_nothing();
}

#[test]
fn a_variant_of_the_candidate_has_its_own_flags_and_name() {
    let scratch = Scratch::new();
    scratch.write_equal_slices();
    scratch.write_slices("0.9.2-fast", 50, OutputsCompared { compared: 6, differ: 6 });
    let flags = ["gate", "v0.9.2", "--candidate", "v0.9.2", "--variant", "quick=--fast"];
    let flags = [&flags[..], &["--budget", "15s", "--scenario", "talk-lite"]].concat();
    let ended = scratch.run_with(&flags, &[WITHOUT_MEMORY]).expect(0, &["v0.9.2 (quick)"]);
    assert!(ended.stdout.starts_with("Ship: "), "{}", ended.stdout);
    let diff = scratch.gate_diff();
    assert_eq!(diff.cells[0].cell.scenario, "talk-lite@1");
    assert!(kinds(&diff).contains(&("output_tokens_per_s", VerdictKind::Improved)), "{diff:?}");
    // Two configurations of one engine round differently.
    assert_eq!(diff.outputs[0].change, OutputsChange::NotCompared);
    scratch.commits_nothing();
}

#[test]
fn a_dry_run_prints_the_plan_and_builds_nothing() {
    let scratch = Scratch::new();
    let flags = [&RELEASES[..], &["--dry-run"]].concat();
    let ended = scratch.run(&flags).expect(0, &[]);
    for needle in ["v0.9.1, commit", "v0.9.2, commit", "rung-lite@1", "never committed"] {
        assert!(ended.stdout.contains(needle), "no `{needle}` in\n{}", ended.stdout);
    }
    assert!(!scratch.root().join("target").exists(), "a dry run writes nothing");
    assert_eq!(scratch.calls(), "");
}

#[test]
fn a_baseline_that_is_not_known_is_wrong_use() {
    let scratch = Scratch::new();
    for (name, said) in [
        ("nothing", "`nothing`"),
        ("v7.7.7", "release `v7.7.7` is unknown; known are v0.9.2, v0.9.1"),
        ("nobody@1.0", "`nobody`"),
    ] {
        let ended = scratch.run(&["gate", name]).expect(2, &[said]);
        assert_eq!(ended.stdout, "", "{name}");
    }
    scratch.run(&["gate", "--budget", "0m"]).expect(2, &["such as `15m`"]);
    assert!(!scratch.root().join("target/campaigns").exists());
}

/// Two servers of a model whose file is larger than the memory do not fit side by side.
#[test]
fn a_model_that_fits_only_once_is_refused_before_the_first_start() {
    let scratch = Scratch::new();
    scratch.write_large_model();
    let ended = scratch.run(&RELEASES).expect(4, &["MiB of memory, and", "MiB are free"]);
    assert!(ended.stderr.contains("--baseline VERSION` compares in pairs"), "{}", ended.stderr);
    assert!(scratch.pids("server.pids").is_empty());
}

#[test]
fn extra_a_gate_goes_through_a_cluster_and_its_job_has_time_for_the_budget() {
    let Some(cluster) = Cluster::without_accounting() else { return };
    let scratch = Scratch::new();
    scratch.write_slices("0.9.1-0.9.2", 125, SAME);
    let mut command = scratch.command(&[&RELEASES[..], &["--executor", "slurm"]].concat());
    let output = command.env("SLURM_CONF", cluster.conf()).output().unwrap();
    let ended = Ended::of(output).expect(1, &["Compare in turns: tiny, rung-lite"]);
    assert!(ended.stdout.starts_with("Hold: "), "{}", ended.stdout);
    let jobs = files_below(&scratch.campaign().join("jobs"));
    let job = jobs.iter().find(|path| path.ends_with("job.json")).unwrap();
    let job: serde_json::Value = serde_json::from_str(&fs::read_to_string(job).unwrap()).unwrap();
    assert_eq!((&job["executor"], &job["gate"]), (&"slurm".into(), &true.into()));
    assert_eq!(job["alternation"]["budget_us"], 15_000_000);
    let shown = cluster.run_tool("scontrol", &["--oneliner", "show", "job"]).stdout;
    // Ten minutes around, a budget of 15 s, and two runs of 20 min with 3 s to start.
    assert!(shown.contains("TimeLimit=00:51:00"), "{shown}");
    scratch.commits_nothing();
}

#[test]
fn another_engine_is_not_compared_with_the_working_tree_by_default() {
    let scratch = Scratch::new();
    scratch.write("suite/engines/peer.toml", &crate::venvs::engine());
    let flags = ["gate", "peer@v0.9.2", "--container", "podman", "--dry-run"];
    let refused = ["compare peer with this clone's own working tree", "`--candidate peer@VERSION`"];
    scratch.run(&flags).expect(2, &refused);
    let candidate = ["--candidate", "peer@v0.10.0"];
    let planned = scratch.run(&[&flags[..], &candidate].concat()).expect(0, &[]);
    assert!(planned.stdout.contains("peer v0.10.0, its image under podman"), "{}", planned.stdout);
}
