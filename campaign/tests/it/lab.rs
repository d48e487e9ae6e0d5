//! A lab from its file to its conclusion, over an engine whose options do what their names say.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use schema::campaign::{CampaignRecord, CampaignStatus};
use schema::run::{RunRecord, Status};
use schema::verdict::Stage;

use crate::scratch::{Ended, Scratch, files_below, is_alive, wait_for};

const NAME: &str = "suite/labs/tiny.toml";
/// Number of runs: three pairs of three options with the baseline, and eight of two finalists.
const ENOUGH: u32 = 3 * 4 + 8 * 3;

fn axis(name: &str, option: &str, flag: &str) -> String {
    format!(
        "[[axes]]\nname = \"{name}\"\nengine = \"redline\"\n\
         options = [{{ name = \"{option}\", flags = [\"{flag}\"] }}]\n"
    )
}

/// Text of a lab file with some axes, whose only profile is `talk-lite`.
fn lab(axes: &[String]) -> String {
    format!(
        "question = \"Which?\"\nrev = 1\ntarget = \"cpu\"\nmodel = \"tiny\"\n\
         profiles = [\"talk-lite\"]\nobjective = {{ metric = \"total_tokens_per_s\" }}\n\
         engines = [{{ id = \"redline\", version = \"v0.9.2\" }}]\ncombine = \"staged\"\n\
         budget = {{ runs = 60 }}\n{}",
        axes.concat()
    )
}

struct Lab {
    scratch: Scratch,
}

impl Lab {
    /// Makes a clone of the repository with a lab (a sweep of server options) whose stand-in engine
    /// is twice as fast with `--fast`, is unchanged by `--same`, and does not start with `--broken`.
    fn new(axes: &[String]) -> Self {
        let scratch = Scratch::new();
        scratch.write_speed("0.9.2", 100.0);
        scratch.write_speed("fast", 200.0);
        scratch.write(NAME, &lab(axes));
        Self { scratch }
    }

    fn of_everything() -> Self {
        Self::new(&[
            axis("speed", "fast", "--fast"),
            axis("noise", "same", "--same"),
            axis("trouble", "broken", "--broken"),
        ])
    }

    /// A lab by a factorial design, whose stand-in engine is slower with one of `--left` and `--right`
    /// and faster with both.
    fn of_a_pair(more: &[String]) -> Self {
        let pair = [axis("left", "on", "--left"), axis("right", "on", "--right")];
        let lab = Self::new(&[&pair, more].concat());
        lab.scratch.write_speed("one", 97.0);
        lab.scratch.write_speed("both", 110.0);
        let text = fs::read_to_string(lab.scratch.root().join(NAME)).unwrap();
        let text = text.replace("\"staged\"", "\"factorial\"").replace("runs = 60", "runs = 80");
        lab.scratch.write(NAME, &text);
        lab
    }

    /// A lab of four runs: three of the baseline, and one that fails.
    fn of_trouble() -> Self {
        Self::new(&[axis("trouble", "broken", "--broken")])
    }

    fn command(&self, args: &[&str]) -> Command {
        self.scratch.command(&[&["lab", "tiny"], args].concat())
    }

    fn run(&self, args: &[&str]) -> Ended {
        Ended::of(self.command(args).output().unwrap())
    }

    fn journal(&self) -> String {
        let files = files_below(&self.scratch.root().join("target/campaigns"));
        let path = files.iter().find(|path| path.ends_with("journal.jsonl"));
        path.and_then(|path| fs::read_to_string(path).ok()).unwrap_or_default()
    }

    /// Starts the lab, and kills its controller once its journal has `lines` lines of `state`.
    fn kill_at(&self, state: &str, lines: usize) {
        let mut command = self.command(&[]);
        command.envs([("BENCH_FAKE", "patient"), ("SITE_FAKE", "patient")]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child: Child = command.spawn().unwrap();
        let line = format!("{{\"state\":\"{state}\"");
        wait_for(state, || self.journal().matches(&line).count() >= lines);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    fn campaign(&self) -> CampaignRecord {
        let dir = self.scratch.root().join("results/campaigns");
        serde_json::from_str(&fs::read_to_string(&files_below(&dir)[0]).unwrap()).unwrap()
    }
}

fn variant(run: &RunRecord) -> Option<&str> {
    run.server.as_ref()?.variant.as_deref()
}

fn of<'a>(runs: &'a [RunRecord], name: Option<&str>) -> Vec<&'a RunRecord> {
    runs.iter().filter(|run| variant(run) == name).collect()
}

#[test]
fn what_helps_is_recommended_and_what_fails_is_a_row() {
    let lab = Lab::of_everything();
    let ended = lab.run(&[]).expect(
        0,
        &[
            "Plan of lab tiny",
            "axes       speed of redline: --fast",
            "rounds     1 at least",
            "runs       12 at least",
            "Which options: 4 candidates, 12 runs",
            "redline: about 6 s per run (no earlier record: assumed at 1000 tokens/s)",
            "Run 1 of at most 60: v0.9.2, talk-lite, repeat 1",
            "`--broken` is not supported",
            "Confirm on fresh servers: 2 candidates, 16 runs",
            "recommended: redline v0.9.2, speed fast",
            "flags: --fast",
            "serve    cargo xtask serve v0.9.2 --model tiny -- --fast",
            "recommended.toml, for `redline serve MODEL --profile`",
            "commit   c0ffee",
        ],
    );
    let rows: Vec<&str> = ended.stdout.lines().filter(|line| line.contains("options")).collect();
    let row = |name: &str| rows.iter().find(|row| row.contains(name)).copied().unwrap_or_default();
    assert!(row("speed fast").contains("+100.0 %"), "{rows:?}");
    assert!(row("noise same").ends_with("no gain"), "{rows:?}");
    assert!(row("trouble broken").ends_with("error: `--broken` is not supported"), "{rows:?}");

    let runs = lab.scratch.committed();
    let failed = of(&runs, Some("trouble-broken"));
    assert_eq!(failed.len(), 1, "what failed is not launched again");
    assert_eq!(failed[0].status, Status::Failed);
    assert_eq!((of(&runs, Some("noise-same")).len(), runs.len()), (3, 1 + 3 + 2 * 11));
    let fast = of(&runs, Some("speed-fast"));
    let argv = fast[0].server.as_ref().and_then(|server| server.argv.clone()).unwrap();
    assert_eq!(argv.join(" "), "redline serve {model} --tp 1 --port {port} --fast");
    let slot = |run: &RunRecord| run.campaign.clone().unwrap();
    let confirmed = fast.iter().filter(|run| slot(run).stage == Some(Stage::Confirm)).count();
    assert_eq!((fast.len(), confirmed), (11, 8));
    let repeats: BTreeSet<u32> = fast.iter().map(|run| slot(run).repeat).collect();
    assert_eq!(repeats, (1..=11).collect());
    let places: BTreeSet<u32> = fast.iter().map(|run| slot(run).position).collect();
    assert!(places.len() > 1, "candidates take turns: {places:?}");

    let campaign = lab.campaign();
    let asked = campaign.lab.unwrap();
    assert_eq!((asked.id.as_str(), asked.runs_max), ("tiny", 60));
    assert_eq!(asked.file.axes.len(), 3);
    assert_eq!(campaign.policy.map(|policy| policy.id), Some("release".to_owned()));
    assert_eq!((campaign.plan.len(), campaign.status), (26, CampaignStatus::Partial));
    let profile = lab.scratch.campaign().join("recommended.toml");
    assert_eq!(fs::read_to_string(profile).unwrap(), "fast = true\n");
    assert!(lab.scratch.calls().contains("--message results: lab tiny on cpu-"));
}

#[test]
fn options_that_win_only_together_are_found_with_as_many_runs_as_the_plan_says() {
    let lab = Lab::of_a_pair(&[]);
    let ended = lab.run(&[]).expect(
        0,
        &[
            "design     4 configurations of redline with left on, right on, 4 runs each; it tells every \
             pair from every other",
            "then the baseline and at most 3 others, 8 runs each",
            "runs       16 at least, ",
            "; 48 at most, ",
            "Which options and pairs: 4 candidates, 16 runs",
            "Confirm on fresh servers: 4 candidates, 32 runs",
            "recommended: redline v0.9.2, left on, right on",
            "serve    cargo xtask serve v0.9.2 --model tiny -- --left --right",
            "effects from 4 of 4 configurations",
        ],
    );
    let effect = |of: &str| {
        let found = ended.stdout.lines().find(|line| line.starts_with(&format!("{of}  ")));
        found.and_then(|line| line.split_whitespace().rev().nth(1)).unwrap_or_default().to_owned()
    };
    // In log units 0, -0.030 twice, and 0.095: each option has half of the sum of its two changes.
    assert_eq!(
        (effect("left on"), effect("left on with right on")),
        ("+4.9".to_owned(), "+8.1".to_owned())
    );
    let runs = lab.scratch.committed();
    assert_eq!((runs.len(), lab.scratch.pids("server.pids").len()), (48, 48), "fresh servers");
    assert!(runs.iter().all(|run| run.status == Status::Ok));
    assert_eq!(of(&runs, Some("left-on-right-on")).len(), 4 + 8);
    let campaign = lab.campaign();
    assert_eq!((campaign.plan.len(), campaign.status), (48, CampaignStatus::Complete));
}

#[test]
fn an_option_that_no_server_takes_leaves_the_rest_of_a_design_decided() {
    let lab = Lab::of_a_pair(&[axis("trouble", "broken", "--broken")]);
    let ended = lab.run(&[]).expect(
        0,
        &[
            "8 configurations of redline with left on, right on, trouble broken, 2 runs each",
            "recommended: redline v0.9.2, left on, right on",
            "effects from 4 of 8 configurations",
            "error: `--broken` is not supported",
        ],
    );
    let undecidable = ended.stdout.lines().filter(|line| line.ends_with("undecidable"));
    assert_eq!(undecidable.count(), 3, "the option and its pairs:\n{}", ended.stdout);
    let runs = lab.scratch.committed();
    let failed = runs.iter().filter(|run| run.status == Status::Failed).count();
    // Each of the four configurations that have it fails once, and none is confirmed.
    assert_eq!((failed, runs.len()), (4, 4 + 4 * 2 + 8 * 4));
}

#[test]
fn an_engine_in_its_image_is_tuned_and_recommended_with_it() {
    let lab = Lab::new(&[axis("speed", "fast", "--fast")]);
    lab.scratch.write("suite/engines/peer.toml", &crate::venvs::engine());
    let text = fs::read_to_string(lab.scratch.root().join(NAME)).unwrap();
    let text = text.replace("\"redline\"", "\"peer\"");
    // The server in the image has a flag for the port, which a lab may not set.
    lab.scratch.write(NAME, &text.replace("--fast", "--port"));
    lab.run(&["--container", "podman"]).expect(2, &["sets `--port`, which the command line of"]);
    lab.scratch.write(NAME, &text);
    lab.run(&["--container", "podman"]).expect(
        0,
        &[
            "baseline   peer v0.9.2, its image under podman",
            "recommended: peer v0.9.2, speed fast",
            "serve    podman run -v {hub}:/hub ",
            " peers/peer:v0.9.2 serve {model} ",
        ],
    );
    assert_eq!(lab.scratch.calls().matches("podman pull").count(), 1, "it is pulled once");
    let runs = lab.scratch.committed();
    let fast = of(&runs, Some("speed-fast"));
    let engine = &fast[0].engine;
    let image = engine.build.as_ref().and_then(|build| build.image.as_deref());
    assert_eq!(image, Some("peers/peer:v0.9.2"));
    assert!(engine.image_digest.is_some(), "a tag can be moved");
    let argv = fast[0].server.as_ref().and_then(|server| server.argv.clone()).unwrap().join(" ");
    let started = "peers/peer:v0.9.2 serve {model} --port {port} --fast";
    assert!(argv.starts_with("podman run ") && argv.ends_with(started), "{argv}");
}

#[test]
fn where_nothing_helps_the_baseline_is_recommended() {
    let lab = Lab::of_trouble();
    lab.run(&[]).expect(
        0,
        &[
            "recommended: the baseline, redline v0.9.2",
            "serve    cargo xtask serve v0.9.2 --model tiny\n",
        ],
    );
    assert!(!lab.scratch.campaign().join("recommended.toml").exists(), "no flags are a profile");
    assert_eq!(lab.scratch.committed().len(), 4);
    lab.run(&["--resume"]).expect(2, &["lab `tiny` has no unfinished campaign"]);
}

#[test]
fn where_not_even_the_baseline_runs_nothing_is_recommended() {
    let lab = Lab::of_trouble();
    let text = fs::read_to_string(lab.scratch.root().join(NAME)).unwrap();
    let text = text.replace("\"v0.9.2\"", "\"v0.9.2\", flags = [\"--broken\"]").replace(
        "name = \"broken\", flags = [\"--broken\"]",
        "name = \"same\", flags = [\"--same\"]",
    );
    lab.scratch.write(NAME, &text);
    lab.run(&[]).expect(1, &["recommended: nothing: no candidate runs within the bounds"]);
}

/// Kills the controller at a journal state, resumes, and checks that no run was repeated.
fn goes_on_after(state: &str, lines: usize) {
    let lab = Lab::of_trouble();
    lab.kill_at(state, lines);
    lab.run(&["--resume"]).expect(0, &["Resume lab tiny", "recommended: the baseline"]);
    let (servers, clients) = (lab.scratch.pids("server.pids"), lab.scratch.pids("bench.pids"));
    assert_eq!((servers.len(), clients.len()), (4, 3), "killed at `{state}`");
    assert!(servers.iter().chain(&clients).all(|pid| !is_alive(*pid)));
    assert_eq!(lab.scratch.committed().len(), 4, "killed at `{state}`");
    assert_eq!(lab.scratch.calls().matches("results record").count(), 1, "committed once");
    let plans = lab.journal().matches("{\"state\":\"planned\"").count();
    assert_eq!(plans, 3, "each block is planned once");
}

#[test]
fn a_lab_that_was_killed_between_two_blocks_goes_on() {
    goes_on_after("checked", 1);
}

#[test]
fn extra_a_lab_that_is_killed_at_any_state_goes_on_and_launches_nothing_twice() {
    for (state, lines) in [
        ("campaign", 1),
        ("side", 1),
        ("planned", 1),
        ("submitted", 1),
        ("running", 2),
        ("collected", 1),
        ("checked", 3),
        ("committed", 1),
    ] {
        goes_on_after(state, lines);
    }
}

#[test]
fn a_lab_goes_on_by_the_file_with_which_it_began() {
    let lab = Lab::of_trouble();
    lab.kill_at("submitted", 1);
    lab.scratch.write(NAME, "no lab at all");
    lab.scratch
        .run(&["release-bench", "v0.9.2", "--resume"])
        .expect(2, &["no unfinished campaign of `v0.9.2`"]);
    lab.run(&["--resume"]).expect(0, &["recommended: the baseline"]);
}

#[test]
fn a_dry_run_prints_the_plan_of_a_lab_and_writes_nothing() {
    let lab = Lab::of_everything();
    let plan = lab.run(&["--dry-run", "--max-hours", "0.5"]).expect(
        0,
        &[
            "baseline   redline v0.9.2, commit",
            "engines    redline: 12 to 51 runs for its options",
            "runs       12 at least, about 72 s; 60 at most, about 6 min",
            "budget     60 runs of about 6 s; the lab might want 75",
        ],
    );
    assert!(plan.stdout.contains("records    results, committed"), "{}", plan.stdout);
    lab.run(&["--dry-run", "--max-runs", "999", "--max-hours", "0.1"])
        .expect(0, &["budget     0.1 h, so 60 runs of about 6 s; the lab might want 75"]);
    let text = fs::read_to_string(lab.scratch.root().join(NAME)).unwrap();
    let own = "\"total_tokens_per_s\", by_profile = { talk-lite = { ttft_ms_p99 = 250 } } }";
    let bounded = text.replace("\"total_tokens_per_s\" }", own);
    lab.scratch.write("mine.toml", &bounded.replace("runs = 60", "runs = 99"));
    let mine = lab.scratch.root().join("mine.toml");
    lab.scratch.run(&["lab", mine.to_str().unwrap(), "--dry-run"]).expect(
        0,
        &[
            "under talk-lite within ttft_us_p99 250000",
            "budget     99 runs of about 6 s; the lab wants 75 at most",
        ],
    );
    let on_slurm = ["--dry-run", "--executor=slurm", "--slurm-option=--partition=h200"];
    lab.run(&on_slurm).expect(0, &["executor   slurm: each round is one job", "partition h200"]);
    assert!(!lab.scratch.root().join("target").exists(), "a dry run writes nothing");
    assert_eq!(lab.scratch.calls(), "");
}

#[test]
fn a_lab_may_lie_anywhere() {
    let lab = Lab::of_trouble();
    let path: PathBuf = lab.scratch.fixtures().join("mine.toml");
    fs::copy(lab.scratch.root().join(NAME), &path).unwrap();
    lab.scratch.run(&["lab", path.to_str().unwrap(), "--dry-run"]).expect(0, &["Plan of lab mine"]);
}

#[test]
fn a_lab_that_cannot_be_launched_is_refused_before_anything_is_built() {
    let lab = Lab::of_everything();
    let sound = fs::read_to_string(lab.scratch.root().join(NAME)).unwrap();
    let long = "question = \"?\"\nrev = 1\n\
        workload = { pack = \"random@lmdeploy\", dataset = \"talk\", requests = 2, seed = 1, \
        input_tokens = 100, output_tokens = 29, range_ratio = 1.0 }\n\
        warmup = { requests = 1, from = \"disjoint\" }\narrival = { kind = \"all-at-once\" }\n\
        output = { ignore_eos = true }\ntier = \"lite\"\n";
    lab.scratch.write("suite/scenarios/long-lite.toml", long);
    let model = lab.scratch.root().join("suite/models/tiny.toml");
    let text = fs::read_to_string(&model).unwrap();
    fs::write(&model, format!("context_tokens = 128\n{text}")).unwrap();
    for (from, to, said) in [
        (
            "talk-lite",
            "nap",
            "scenario `nap` is unknown; known are long-lite, rung-lite, talk-lite",
        ),
        ("talk-lite", "long-lite", "`long-lite` has sequences of 129 tokens, and `tiny` takes 128"),
        ("\"tiny\"", "\"huge\"", "the target has no model `huge`; it lists tiny"),
        ("\"cpu\"", "\"b200\"", "target `b200` is unknown; known are cpu"),
        ("v0.9.2", "v9.9.9", "release `v9.9.9` is unknown; known are v0.9.2, v0.9.1"),
        ("total_tokens_per_s", "beauty", "no metric `beauty`; known are requests_per_s"),
        ("engine = \"redline\"", "engine = \"vllm\"", "axis `speed` is for `vllm`, no engine"),
        (
            "--fast",
            "--port",
            "option `fast` of axis `speed` sets `--port`, which the command line of",
        ),
        ("--fast", "--no-same", "option `fast` of axis `speed` and option `same` of axis `noise`"),
        ("[\"--fast\"]", "[\"--x\", \"--no-x\"]", "sets both `--x` and `--no-x`"),
        ("[\"--fast\"]", "[\"fast\"]", "begins with `fast`, which is no flag"),
        (
            "runs = 60",
            "runs = 35",
            "a budget of 35 runs is too small for a conclusion: 36 judge every",
        ),
        (
            "\"v0.9.2\"",
            "\"v0.9.2\", runs = 11",
            "11 runs for the options of `redline` decide nothing: 12 judge every option once",
        ),
        ("runs = 60", "hours = 0.01", "0.01 hours are 6 runs of 6 s, too few for a conclusion"),
        ("combine", "combines", "suite/labs/tiny.toml` is no lab"),
    ] {
        assert!(sound.contains(from), "{from}");
        lab.scratch.write(NAME, &sound.replace(from, to));
        lab.run(&[]).expect(2, &[said]);
    }
    // Axes go with their engine, or they would be the first to be refused.
    let other = sound.replace("\"redline\"", "\"other\"");
    lab.scratch.write(NAME, &other);
    lab.run(&[]).expect(2, &["engine `other` is unknown; known are redline"]);
    lab.scratch.run(&["lab", "nap"]).expect(2, &["lab `nap` is unknown; known are tiny"]);
    assert!(!lab.scratch.root().join("target/campaigns").exists(), "nothing was begun");
}

#[test]
fn a_small_budget_is_refused_with_the_one_that_would_do() {
    let lab = Lab::of_everything();
    let enough = ENOUGH.to_string();
    let hint = format!("hint: allow `--max-runs {enough}` and `--max-hours 0.1`");
    lab.run(&["--max-runs", "20"]).expect(2, &[&hint]);
    lab.run(&["--max-runs", &enough, "--dry-run"]).expect(0, &["36 at most"]);
}
