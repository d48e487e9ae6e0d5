//! A release measured on a Slurm cluster of two nodes, where a node dies and the controller is
//! killed. The registry then holds the same records as after an undisturbed campaign, except
//! measured values. And a lab on the same cluster, whose rounds follow each other to a conclusion.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use fixtures::{CONVERSATIONS, cached, files_under};
use serde_json::Value;
use tests::clone::{Clone, path_with};
use tests::program::{Ended, built, run, system, until, wait, while_running};
use tests::slurm::Cluster;

/// Model of the campaigns: a tiny one by default, which answers at once, or the one that
/// `REDLINE_CLUSTER_MODEL` names.
fn model() -> String {
    std::env::var("REDLINE_CLUSTER_MODEL").unwrap_or_else(|_| "tiny-random".to_owned())
}

/// SHA-256 of the tiny model's tokenizer, lower-case hex.
const TOKENIZER: &str = "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4";

/// Scenarios and repeats that a campaign measures of both releases.
#[derive(Debug, Clone, Copy)]
struct Extent {
    scenarios: &'static [&'static str],
    repeats: &'static str,
    runs: usize,
}

/// Extent with one job more than there are nodes, so that one waits while the others run.
const WAITING: Extent = Extent {
    scenarios: &["sharegpt-lite", "balanced-lite", "long-input-lite"],
    repeats: "2",
    runs: 2 * 3 * 2,
};

/// Extent with one job for each of two nodes.
const SHORT: Extent =
    Extent { scenarios: &["balanced-lite", "long-input-lite"], repeats: "2", runs: 2 * 2 * 2 };

/// Two releases made from the engine that was built with the tests. They differ only in the version
/// that they report.
struct Releases {
    /// Version that the built engine reports.
    built: String,
    names: [String; 2],
}

impl Releases {
    fn new() -> Self {
        let said = run(Command::new(built("redline")).arg("--version")).expect_code(0).stdout;
        let built = said.split_whitespace().nth(1).expect("`redline VERSION`").to_owned();
        // The names have the length of the version that they replace within a copy of the program.
        let stem = &built[..built.len() - 1];
        let names = ["1", "2"].map(|last| match built.strip_suffix("-dev") {
            Some(version) => format!("{version}-rc{last}"),
            None => format!("{stem}{last}"),
        });
        Self { built, names }
    }

    /// Shell script in place of `cargo`, which "builds" the release in whose worktree it is called.
    fn cargo(&self) -> String {
        format!(
            "set -e\nversion=$(sed -n 's/^version = \"\\(.*\\)\"$/\\1/p' engine/Cargo.toml)\n\
             mkdir -p \"$CARGO_TARGET_DIR/release\"\n\
             LC_ALL=C sed \"s/{}/$version/g\" '{}' > \"$CARGO_TARGET_DIR/release/redline\"\n\
             chmod 755 \"$CARGO_TARGET_DIR/release/redline\"",
            self.built.replace('.', "\\."),
            built("redline").display()
        )
    }

    /// Commits both releases, and a development version after them, to a clone.
    fn commit(&self, clone: &Clone) {
        let manifest = clone.root().join("engine/Cargo.toml");
        let now = std::fs::read_to_string(&manifest).expect("readable");
        let version = now.lines().find(|line| line.starts_with("version")).expect("a version");
        // A release is the first commit whose manifest has its version.
        for name in [&self.names[0], &self.names[1], "99.0.0-dev"] {
            let text = now.replace(version, &format!("version = \"{name}\""));
            std::fs::write(&manifest, text).expect("writable");
            clone.git(&["commit", "--quiet", "--all", "--message", name]);
        }
    }
}

/// Campaign that measures both releases on a cluster.
struct Campaign<'a> {
    cluster: &'a Cluster,
    clone: Clone,
    path: OsString,
    releases: &'a Releases,
    extent: Extent,
}

impl<'a> Campaign<'a> {
    fn new(
        cluster: &'a Cluster,
        (releases, source): (&'a Releases, &Clone),
        extent: Extent,
    ) -> Self {
        let clone = Clone::of(&source.root(), &[]);
        let target = clone.root().join("target");
        let sacct = noted(&target.join("sacct.log"), "sacct");
        let path = path_with(&target, &[("cargo", &releases.cargo()), ("sacct", &sacct)]);
        Self { cluster, clone, path, releases, extent }
    }

    /// Starts the campaign, or with `--resume` continues it.
    fn start(&self, more: &[&str]) -> Child {
        let [baseline, candidate] = &self.releases.names;
        let model = model();
        let mut words = vec!["release-bench", candidate, "--baseline", baseline, "--no-confirm"];
        words.extend(["--repeats", self.extent.repeats, "--target", "cpu", "--model", &model]);
        words.extend(self.extent.scenarios.iter().flat_map(|scenario| ["--scenario", scenario]));
        words.extend(more);
        self.submit(words)
    }

    /// Starts a command of `redline-campaign` that submits its jobs to the cluster. One of the three
    /// nodes is excluded.
    fn submit(&self, mut words: Vec<&str>) -> Child {
        words.extend(["--executor", "slurm", "--slurm-option=--exclude=node3"]);
        let mut command = self.clone.program("redline-campaign", &words);
        command.env("SLURM_CONF", self.cluster.conf()).env("PATH", &self.path);
        command.env("CARGO_TARGET_DIR", self.clone.root().join("target"));
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
    }

    /// Number of jobs whose nodes have started to measure.
    fn measuring(&self) -> usize {
        let files = files_under(&self.clone.root().join("target/campaigns"));
        let begun = |path: &Path| {
            let text = std::fs::read_to_string(path).unwrap_or_default();
            text.contains("run-begun")
        };
        files.iter().filter(|path| path.ends_with("steps.jsonl") && begun(path)).count()
    }

    /// Lines of the campaign's journal that note `state`.
    fn lines(&self, state: &str) -> Vec<Value> {
        let files = files_under(&self.clone.root().join("target/campaigns"));
        let journal = files.iter().find(|path| path.ends_with("journal.jsonl")).expect("a journal");
        let text = std::fs::read_to_string(journal).expect("readable");
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.filter(|line| line["state"] == state).collect()
    }

    /// Slurm's ids of the campaign's jobs, one for each submission.
    fn submitted(&self) -> Vec<String> {
        let handle = |line: Value| Some(line["handle"].as_str()?.to_owned());
        self.lines("submitted").into_iter().filter_map(handle).collect()
    }

    /// Number of jobs that have written their result file.
    fn ended(&self) -> usize {
        let files = files_under(&self.clone.root().join("target/campaigns"));
        files.iter().filter(|path| path.ends_with("DONE")).count()
    }

    /// Log of the campaign's calls of `sacct`, each with its answer.
    fn accounted(&self) -> String {
        std::fs::read_to_string(self.clone.root().join("target/sacct.log")).unwrap_or_default()
    }

    /// Facts of the records in the registry, by planned run, without those that depend on a clock,
    /// on measured values or on chance.
    fn records(&self) -> Records {
        let mut found = BTreeMap::new();
        for name in &self.releases.names {
            let folder = self.clone.root().join("results/runs/redline").join(format!("v{name}"));
            for path in files_under(&folder) {
                let text = std::fs::read_to_string(&path).expect("readable");
                let run: Value = serde_json::from_str(&text).expect("a record");
                let place = format!(
                    "{name} {} {} {}",
                    run["scenario"]["id"], run["campaign"]["block"], run["campaign"]["position"]
                );
                let mut facts = BTreeMap::new();
                flatten("", &run, &mut facts);
                facts.retain(|path, _| !VARIES.iter().any(|part| is_part(path, part)));
                assert!(found.insert(place, facts).is_none(), "{} ran twice", path.display());
            }
        }
        found
    }
}

/// Facts of records, by planned run and then by the fact's path within the record.
type Records = BTreeMap<String, BTreeMap<String, Value>>;
/// Shell script that runs `program` and logs its arguments and output to `log`.
fn noted(log: &Path, program: &str) -> String {
    let Some(real) = system(program) else { return "exit 127".to_owned() };
    let (log, real) = (log.display(), real.display());
    format!(
        "said=$('{real}' \"$@\"); code=$?\nprintf 'asked %s\\n%s\\n' \"$*\" \"$said\" >> '{log}'\n\
         printf '%s\\n' \"$said\"\nexit $code"
    )
}

/// Paths within a record that differ between two runs of the same plan.
const VARIES: [&str; 15] = [
    "id",
    "record_sha256",
    "campaign.id",
    "time",
    "validity",
    "checks",
    "client",
    "histograms",
    "metrics",
    "memory",
    "telemetry",
    "calibration",
    // A share of the memory that is free when the server starts.
    "server.kv_bytes",
    "server.startup_us",
    "server.weights_load_us",
];

/// Differences between two sets of records, one line each.
fn differences(expected: &Records, found: &Records) -> Vec<String> {
    let mut differences = Vec::new();
    for (place, facts) in expected {
        let Some(others) = found.get(place) else {
            differences.push(format!("{place}: not there"));
            continue;
        };
        let paths: BTreeSet<&String> = facts.keys().chain(others.keys()).collect();
        let differ = paths.into_iter().filter(|path| facts.get(*path) != others.get(*path));
        differences.extend(differ.map(|path| {
            format!("{place} {path}: {:?} and {:?}", facts.get(path), others.get(path))
        }));
    }
    differences
}

fn is_part(path: &str, of: &str) -> bool {
    path.strip_prefix(of).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

fn flatten(path: &str, value: &Value, into: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                flatten(&path, value, into);
            }
        }
        _ => {
            into.insert(path.to_owned(), value.clone());
        }
    }
}

/// Clone of this repository whose history has both releases.
fn with_releases(releases: &Releases) -> Clone {
    let clone = Clone::of_this_repository(&[]);
    let target = clone.root().join("suite/targets/cpu.toml");
    let text = std::fs::read_to_string(&target).expect("readable");
    let tiny = text.replace("smollm2-135m-instruct-q4_1", &model());
    std::fs::write(target, tiny).expect("writable");
    releases.commit(&clone);
    clone
}

/// Text of a lab file whose baseline, the engine `release`, serves one request at a time, so that its
/// only option gains far more than runs scatter. Its two profiles make each block a job of its own.
fn lab(release: &str) -> String {
    format!(
        "question = \"How many requests at once?\"\nrev = 1\ntarget = \"cpu\"\nmodel = \"{}\"\n\
         profiles = [\"balanced-lite\", \"long-input-lite\"]\n\
         objective = {{ metric = \"total_tokens_per_s\" }}\ncombine = \"one-at-a-time\"\n\
         budget = {{ runs = 200 }}\n\n\
         [[engines]]\nid = \"redline\"\nversion = \"v{release}\"\n\
         flags = [\"--max-batch-size\", \"1\"]\n\n\
         [[axes]]\nname = \"batch\"\nengine = \"redline\"\n\
         options = [{{ name = \"32\", flags = [\"--max-batch-size\", \"32\"] }}]\n",
        model()
    )
}

/// Waits for a campaign to end. Its comparison of the releases depends on measured times, so any of
/// the three verdicts is accepted.
#[track_caller]
fn finished(child: Child) -> Ended {
    let ended = wait(child, Duration::from_mins(60));
    let judged = [0, 1, 3].map(Some).contains(&ended.code);
    assert!(judged, "{:?}\n{}\n{}", ended.code, ended.stdout, ended.stderr);
    ended
}

/// Kills a process and leaves behind whatever it leaves.
fn kill(mut child: Child) {
    child.kill().expect("it runs");
    child.wait().expect("it has ended");
}

#[test]
fn extra_a_dead_node_and_a_dead_controller_change_nothing_in_the_registry() {
    let (Some(_), Some(_)) = (cached(TOKENIZER), cached(CONVERSATIONS)) else { return };
    let Some(mut cluster) = Cluster::without_accounting() else { return };
    let releases = Releases::new();
    let source = with_releases(&releases);

    let quiet = Campaign::new(&cluster, (&releases, &source), WAITING);
    finished(quiet.start(&[]));
    let expected = quiet.records();
    assert_eq!(expected.len(), WAITING.runs);
    drop(quiet);

    let disturbed = Campaign::new(&cluster, (&releases, &source), WAITING);
    let mut controller = disturbed.start(&[]);
    while_running(&mut controller, "runs on both nodes", || {
        (disturbed.measuring() == 2).then_some(())
    });
    kill(controller);
    // The campaign borrows the cluster, which has to be changed to kill a node.
    let Campaign { clone, path, .. } = disturbed;
    cluster.kill_node("node2");
    let extent = WAITING;
    let disturbed = Campaign { cluster: &cluster, clone, path, releases: &releases, extent };
    finished(disturbed.start(&["--resume"])).expect_said("the node was lost: NodeDown");

    let found = disturbed.records();
    assert_eq!(differences(&expected, &found), [] as [String; 0]);
    assert_eq!(found.len(), WAITING.runs, "nothing is there beside them");
    assert_eq!(disturbed.clone.processes(), [], "a process is left");
    assert!(!disturbed.clone.root().join("target/release-bench.lock").exists());
    disturbed.clone.run("redline-results", &["check"]).expect_code(0);
}

#[test]
fn extra_jobs_that_the_scheduler_has_forgotten_are_known_by_its_accounts() {
    let (Some(_), Some(_)) = (cached(TOKENIZER), cached(CONVERSATIONS)) else { return };
    let Some(cluster) = Cluster::with_accounting() else { return };
    let releases = Releases::new();
    let source = with_releases(&releases);

    let campaign = Campaign::new(&cluster, (&releases, &source), SHORT);
    let mut controller = campaign.start(&[]);
    while_running(&mut controller, "runs on both nodes", || {
        (campaign.measuring() == 2).then_some(())
    });
    kill(controller);
    until("the end of both jobs", || (campaign.ended() == 2).then_some(()));
    let jobs = campaign.submitted();
    assert_eq!(jobs.len(), 2, "one on each node: {jobs:?}");
    until("the scheduler to forget both", || {
        let listed = run(&mut cluster.tool("squeue", &["--noheader", "--states=all"]));
        (listed.code == Some(0) && listed.stdout.trim().is_empty()).then_some(())
    });
    let asked = campaign.accounted().len();

    finished(campaign.start(&["--resume"]));
    let accounted = campaign.accounted();
    for job in &jobs {
        let shown = run(&mut cluster.tool("scontrol", &["show", "job", job]));
        assert_ne!(shown.code, Some(0), "the scheduler still knows {job}: {}", shown.stdout);
        let of_job = accounted[asked..].split("asked ");
        let said = of_job.filter(|question| question.contains(&format!("--jobs={job}\n")));
        let said: Vec<&str> = said.collect();
        assert!(!said.is_empty(), "no accounting query for {job}:\n{accounted}");
        let completed = format!("\n{job}|COMPLETED|0:0|");
        assert!(said.iter().all(|answer| answer.contains(&completed)), "{said:?}");
    }
    assert_eq!(campaign.submitted(), jobs, "nothing was submitted again");
    assert_eq!(campaign.records().len(), SHORT.runs);
    assert_eq!(campaign.clone.processes(), [], "a process is left");
    campaign.clone.run("redline-results", &["check"]).expect_code(0);
}

#[test]
fn extra_a_lab_measures_its_rounds_on_the_cluster_and_concludes() {
    let (Some(_), Some(_)) = (cached(TOKENIZER), cached(CONVERSATIONS)) else { return };
    let Some(cluster) = Cluster::without_accounting() else { return };
    let releases = Releases::new();
    let source = with_releases(&releases);

    let campaign = Campaign::new(&cluster, (&releases, &source), SHORT);
    let release = &releases.names[1];
    let file = campaign.clone.root().join("suite/labs/batch-tiny.toml");
    std::fs::write(&file, lab(release)).expect("writable");
    campaign.clone.git(&["add", "suite/labs"]);
    campaign.clone.git(&["commit", "--quiet", "--message", "a lab"]);
    let child = campaign.submit(vec!["lab", "batch-tiny", "--yes"]);
    let ended = wait(child, Duration::from_mins(60)).expect_code(0);
    let recommended = format!("recommended: redline v{release}, batch 32");
    assert!(ended.stdout.contains(&recommended), "{}", ended.stdout);

    // A round is planned at once, with one job for each block; no later round is planned with it.
    let planned = campaign.lines("planned");
    let jobs: Vec<usize> =
        planned.iter().map(|line| line["jobs"].as_array().map_or(0, Vec::len)).collect();
    assert!(jobs.len() > 1, "more than one round: {jobs:?}");
    assert_eq!((jobs[0], jobs[jobs.len() - 1]), (2 * 3, 2 * 8), "blocks of the first and the last");
    let submitted = campaign.submitted();
    assert_eq!(submitted.len(), jobs.iter().sum::<usize>(), "one submission for each job");
    assert_eq!(submitted.iter().collect::<BTreeSet<_>>().len(), submitted.len());

    let records = campaign.records();
    // The baseline and its option take part in every block.
    assert_eq!(records.len(), 2 * submitted.len());
    let has = |field: &str, value: &str| {
        let of = records.values().filter(|facts| {
            facts.get(field).and_then(Value::as_str).is_some_and(|found| found == value)
        });
        of.count()
    };
    assert_eq!(has("campaign.executor", "slurm"), records.len());
    assert_eq!(has("status", "ok"), records.len());
    assert_eq!(has("server.variant", "batch-32"), submitted.len());
    assert_eq!(has("campaign.stage", "confirm"), 2 * 2 * 8);
    assert_eq!(campaign.clone.processes(), [], "a process is left");
    assert!(!campaign.clone.root().join("target/release-bench.lock").exists());
    campaign.clone.run("redline-results", &["check"]).expect_code(0);
}
