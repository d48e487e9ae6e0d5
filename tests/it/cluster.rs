//! A release on a cluster: two nodes, one of which dies, and a controller that is killed. What is in
//! the registry then is what an undisturbed campaign puts there, but for what a clock tells.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tests::clone::{Clone, path_with};
use tests::inputs::{CONVERSATIONS, cached, files_under};
use tests::program::{Ended, built, run, until, wait};
use tests::slurm::Cluster;

/// Model of the campaigns: one that answers at once, or another that `REDLINE_CLUSTER_MODEL` names,
/// which takes as long as it takes.
fn model() -> String {
    std::env::var("REDLINE_CLUSTER_MODEL").unwrap_or_else(|_| "tiny-random".to_owned())
}

/// SHA-256 of the tokenizer of the tiny model.
const TOKENIZER: &str = "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4";

/// The four standard scenarios, three times each, for both releases.
const SCENARIOS: [&str; 4] = ["sharegpt-lite", "balanced-lite", "thinking-lite", "long-input-lite"];
const RUNS: usize = 2 * 4 * 3;

/// Two releases of the engine that was built with the tests, which differ in nothing but the
/// version that they state.
struct Releases {
    /// What the built engine states.
    built: String,
    names: [String; 2],
}

impl Releases {
    fn new() -> Self {
        let said = run(Command::new(built("redline")).arg("--version")).expect_code(0).stdout;
        let built = said.split_whitespace().nth(1).expect("`redline VERSION`").to_owned();
        // Of the same length: they are written over it in a copy of the program.
        let stem = &built[..built.len() - 1];
        let names = ["1", "2"].map(|last| match built.strip_suffix("-dev") {
            Some(version) => format!("{version}-rc{last}"),
            None => format!("{stem}{last}"),
        });
        Self { built, names }
    }

    /// A `cargo` that builds whichever release it is called in.
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

    /// A clone whose history has both, and a working version after them.
    fn commit(&self, clone: &Clone) {
        let manifest = clone.root().join("engine/Cargo.toml");
        let now = std::fs::read_to_string(&manifest).expect("readable");
        let version = now.lines().find(|line| line.starts_with("version")).expect("a version");
        for name in [&self.names[0], &self.names[1], "99.0.0-dev"] {
            let text = now.replace(version, &format!("version = \"{name}\""));
            std::fs::write(&manifest, text).expect("writable");
            clone.git(&["commit", "--quiet", "--all", "--message", name]);
        }
    }
}

/// A campaign of both releases on a cluster.
struct Campaign<'a> {
    cluster: &'a Cluster,
    clone: Clone,
    path: OsString,
    releases: &'a Releases,
}

impl<'a> Campaign<'a> {
    fn new(cluster: &'a Cluster, releases: &'a Releases, source: &Clone) -> Self {
        let clone = Clone::of(&source.root(), &[]);
        let path = path_with(&clone.root().join("target"), &[("cargo", &releases.cargo())]);
        Self { cluster, clone, path, releases }
    }

    /// Starts it, or goes on with it; two of the nodes are to be used.
    fn start(&self, more: &[&str]) -> Child {
        let [baseline, candidate] = &self.releases.names;
        let model = model();
        let mut words = vec!["release-bench", candidate, "--baseline", baseline, "--no-confirm"];
        words.extend(["--executor", "slurm", "--slurm-option=--exclude=node3", "--repeats", "3"]);
        words.extend(["--target", "cpu", "--model", &model]);
        words.extend(SCENARIOS.iter().flat_map(|scenario| ["--scenario", scenario]));
        words.extend(more);
        let mut command = self.clone.program("redline-campaign", &words);
        command.env("SLURM_CONF", self.cluster.conf()).env("PATH", &self.path);
        command.env("CARGO_TARGET_DIR", self.clone.root().join("target"));
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
    }

    /// Jobs whose nodes have begun to measure.
    fn measuring(&self) -> usize {
        let files = files_under(&self.clone.root().join("target/campaigns"));
        let begun = |path: &Path| {
            let text = std::fs::read_to_string(path).unwrap_or_default();
            text.contains("run-begun")
        };
        files.iter().filter(|path| path.ends_with("steps.jsonl") && begun(path)).count()
    }

    /// What it has put into the registry: for each place in the plan, everything that a clock, a
    /// meter or chance has no part in.
    fn records(&self) -> BTreeMap<String, BTreeMap<String, Value>> {
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

/// Parts of a record that two runs of the same thing need not share.
const VARIES: [&str; 16] = [
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
    "server.startup_us",
    "server.weights_load_us",
    "absent.metrics",
    "absent.telemetry",
];

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

/// A clone whose history has both releases.
fn with_releases(releases: &Releases) -> Clone {
    let clone = Clone::of_this_repository(&[]);
    let target = clone.root().join("suite/targets/cpu.toml");
    let text = std::fs::read_to_string(&target).expect("readable");
    let tiny = text.replace("smollm2-135m-instruct-q4_1", &model());
    std::fs::write(target, tiny).expect("writable");
    releases.commit(&clone);
    clone
}

/// Waits for a campaign's end. What it says of the releases is of the clock, and so of chance.
#[track_caller]
fn finished(child: Child) -> Ended {
    let ended = wait(child, Duration::from_mins(60));
    let judged = [0, 1, 3].map(Some).contains(&ended.code);
    assert!(judged, "{:?}\n{}\n{}", ended.code, ended.stdout, ended.stderr);
    ended
}

/// Ends a process at once, and whatever it leaves behind stays.
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

    let quiet = Campaign::new(&cluster, &releases, &source);
    finished(quiet.start(&[]));
    let expected = quiet.records();
    assert_eq!(expected.len(), RUNS);
    drop(quiet);

    let disturbed = Campaign::new(&cluster, &releases, &source);
    let controller = disturbed.start(&[]);
    until("runs on both nodes", || (disturbed.measuring() == 2).then_some(()));
    kill(controller);
    let Campaign { clone, path, .. } = disturbed;
    cluster.kill_node("node2");
    let disturbed = Campaign { cluster: &cluster, clone, path, releases: &releases };
    finished(disturbed.start(&["--resume"])).expect_said("the node was lost: NodeDown");

    let found = disturbed.records();
    for (place, facts) in &expected {
        assert_eq!(found.get(place), Some(facts), "{place}");
    }
    assert_eq!(found.len(), RUNS, "nothing is there beside them");
    assert_eq!(disturbed.clone.processes(), [], "a process is left");
    assert!(!disturbed.clone.root().join("target/release-bench.lock").exists());
    disturbed.clone.run("redline-results", &["check"]).expect_code(0);
}
