//! GPU validation: a release is packed into a bundle, the bundle runs its stages, and its results
//! are recorded.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use schema::campaign::CampaignRecord;
use schema::canonical::record_sha256;
use schema::gpu_validation::{Outcome, StageReport, StageWork, ValidationBundle};
use schema::kernel::KernelRecord;
use schema::path::{of_kernels, of_run};

use crate::scratch::{Ended, Scratch, files_below, is_alive, signal, wait_for};

const VALIDATION: &str = r#"
question = "Does it run?"
match = {}
flags = ["--quiet"]
stage_limit_s = 30
models = [{ id = "shape", tp = 1 }, { id = "tiny", tp = 2 }]

[[calls]]
id = "scenarios"
limit_s = 60
scenarios = ["talk-lite"]

[[calls.commands]]
id = "hello"
argv = ["echo", "{model}"]
each_model = true

[[calls.commands]]
id = "broken"
argv = ["sh", "-c", "echo no >&2; exit 3"]

[[calls.commands]]
id = "elsewhere"
needs = "no-such-program"
argv = ["no-such-program"]
"#;

/// Command that prints the variables that a stage's program gets.
const ENVIRONMENT: &str = r#"
[[calls.commands]]
id = "environment"
argv = ["sh", "-c", "echo \"$REDLINE_REQUIRE_GPU $REDLINE_CUBINS\""]
"#;

/// Commands that print documents of `redline bench MODEL --json`: of each model on a GPU, of one on
/// two numbers of threads, and of one in a form that nobody knows.
const STEPS: &str = r#"
[[calls.commands]]
id = "steps"
each_model = true
argv = ["echo", '{"engine": "redline", "version": "0.9.2", "model": "/bundle/models/x", "device": "cuda", "device_name": "NVIDIA H900", "isa": "sm_90a", "dtype": "bf16", "prefill": [{"tokens": 512, "tokens_per_s": 33383.0, "limit_share": 0.57}], "decode": [{"batch": 256, "context": 128, "tokens_per_s": 14225.0, "limit_share": null}], "limits": {"bf16_flops_per_s": 7.1e14, "read_bytes_per_s": 4.3e12, "library": "cuBLASLt"}}']

[[calls.commands]]
id = "threads"
model = "tiny"
argv = ["sh", "-c", "for n in 2 1; do echo \"$0\" | sed s/COUNT/$n/; done", '{"engine": "redline", "version": "0.9.2", "model": "/bundle/models/x", "device": "cpu", "device_name": "avx512", "threads": COUNT, "dtype": "f32", "prefill": [{"tokens": 32, "tokens_per_s": 90.0, "limit_share": 0.4}], "decode": [{"batch": 1, "context": 128, "tokens_per_s": 9.0, "limit_share": null}], "products": [], "attention": [], "limits": {"int8_ops_per_s": 1e12, "bf16_flops_per_s": null, "f32_flops_per_s": 2e11, "read_bytes_per_s": 4e10}}', "{model}"]

[[calls.commands]]
id = "older"
model = "tiny"
argv = ["echo", '{"decode": 7}', "{model}"]
"#;

const SHAPE: &str = "licence = \"none\"\ntokenizer = \"talk\"\n[config]\nhidden_size = 64\narchitectures = [\"A\"]\n";

/// A scratch clone with a GPU validation and its bundle.
struct Lab {
    scratch: Scratch,
}

impl Lab {
    fn new(validation: &str) -> Self {
        let scratch = Scratch::new();
        scratch.write("suite/models/shape.toml", SHAPE);
        scratch.write("suite/validations/all.toml", validation);
        Self { scratch }
    }

    fn packed(validation: &str) -> Self {
        let lab = Self::new(validation);
        let said = ["bundle   target/validations/all/bundle, "];
        lab.scratch
            .run(&["gpu-validation", "pack", "v0.9.2", "--validation", "all"])
            .expect(0, &said);
        lab
    }

    fn places(&self) -> (PathBuf, PathBuf) {
        let root = self.scratch.root();
        (root.join("target/validations/all/bundle"), root.join("out"))
    }

    /// Builds the command of the bundle's own script, run outside of a clone.
    fn validate(&self, args: &[&str]) -> Command {
        let (place, out) = self.places();
        let mut command = Command::new(place.join("validate"));
        command.arg("--out").arg(out).args(args).current_dir("/");
        command.env("FIXTURES", self.scratch.fixtures());
        command
    }

    fn validated(&self, args: &[&str]) -> Ended {
        Ended::of(self.validate(args).output().unwrap())
    }

    fn described(&self) -> ValidationBundle {
        let text = fs::read_to_string(self.places().0.join("bundle.json")).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    fn report(&self, stage: &str) -> Option<StageReport> {
        let path = self.places().1.join(format!("stages/{stage}.json"));
        Some(serde_json::from_str(&fs::read_to_string(path).ok()?).unwrap())
    }

    fn outcome(&self, stage: &str) -> Option<Outcome> {
        self.report(stage).map(|report| report.outcome)
    }

    fn servers(&self) -> usize {
        self.scratch.pids("server.pids").len()
    }
}

#[test]
fn a_box_shows_a_release_and_its_results_are_committed() {
    let lab = Lab::packed(VALIDATION);
    let (place, out) = lab.places();
    lab.scratch
        .run(&["gpu-validation", "pack", "v0.9.2", "--validation", "all"])
        .expect(0, &["6 stages", "bundle/validate --out DIR --call scenarios   # at most 60 s"]);
    let config = fs::read_to_string(place.join("models/shape/config.json")).unwrap();
    assert!(config.contains("\"hidden_size\": 64"), "{config}");

    // Samples of single requests, as the load generator writes them beside its measurement.
    fs::create_dir_all(out.join("measurements")).unwrap();
    fs::write(out.join("measurements/01.samples.jsonl"), "{}\n").unwrap();
    lab.validated(&[]).expect(
        1,
        &[
            "Stage 3 of 6: broken",
            "failed: it ended with exit code 3",
            "skipped: `no-such-program` is not on this machine",
            "Stage 6 of 6: talk-lite-tiny",
        ],
    );
    let hello = fs::read_to_string(out.join("stages/hello-shape.stdout")).unwrap();
    assert_eq!(Path::new(hello.trim()), place.canonicalize().unwrap().join("models/shape"));
    assert_eq!(fs::read_to_string(out.join("stages/broken.stderr")).unwrap(), "no\n");
    assert_eq!(lab.outcome("hello-tiny"), Some(Outcome::Done));

    let records = lab.scratch.records(&out.join("results"));
    let of = |model: &str| {
        let found = records.iter().find(|(_, record)| record.model.id == model);
        found.map(|(_, record)| record).unwrap()
    };
    let argv = |model| of(model).server.clone().unwrap().argv.unwrap().join(" ");
    let served = "redline serve {model} --tp 1 --port {port}";
    assert_eq!(argv("shape"), format!("{served} --load-format random --quiet"));
    assert_eq!(of("shape").model.weights.as_deref(), Some("random"));
    assert_eq!(of("shape").model.weights_sha256, None);
    assert_eq!(of("tiny").model.weights.as_deref(), Some("real"));
    for (path, record) in &records {
        let place = path.strip_prefix(out.join("results")).unwrap();
        assert_eq!(place.to_str(), of_run(record).ok().as_deref());
    }

    let archive = out.with_extension("tar.gz");
    let listed = Command::new("tar").args(["--ignore-zeros", "-tzf"]).arg(&archive).output();
    let listed = String::from_utf8(listed.unwrap().stdout).unwrap();
    let samples = |names: &[String]| names.iter().any(|name| name.ends_with(".samples.jsonl"));
    let kept: Vec<String> =
        files_below(&out).iter().map(|path| path.display().to_string()).collect();
    let packed: Vec<String> = listed.lines().map(str::to_owned).collect();
    assert!(packed.iter().any(|name| name.starts_with("measurements/")), "{packed:?}");
    assert!(samples(&kept) && !samples(&packed), "{packed:?}");
    let collect = ["gpu-validation", "collect", archive.to_str().unwrap()];
    lab.scratch.run(&collect).expect(1, &["broken", "the table of v0.9.2", "commit   c0ffee"]);
    let committed = files_below(&lab.scratch.root().join("results"));
    assert_eq!(committed.len(), 4, "two runs, a campaign and a page: {committed:?}");
    let campaigns = files_below(&lab.scratch.root().join("results/campaigns"));
    let text = fs::read_to_string(&campaigns[0]).unwrap();
    let campaign: CampaignRecord = serde_json::from_str(&text).unwrap();
    let seed = lab.described().random_order_seed;
    assert!(seed.is_some() && campaign.random_order_seed == seed, "{seed:?}");
}

/// Puts a stand-in for `nvidia-smi` that reports a GPU called `name` into `folder`, and returns a
/// `PATH` that begins with it.
fn path_with_gpu(folder: &Path, name: &str) -> String {
    let answer = format!("#!/bin/sh\necho '{name}, 81920, 580.95, 96.00, 700.00, 1980, 1980'\n");
    fs::create_dir_all(folder).unwrap();
    let program = folder.join("nvidia-smi");
    fs::write(&program, answer).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    format!("{}:{}", folder.display(), std::env::var("PATH").unwrap())
}

#[test]
fn a_bundle_for_a_gpu_has_the_machine_code_and_its_tests_require_the_gpu() {
    let head = VALIDATION.split("[[calls.commands]]").next().unwrap();
    let head = head.replace("match = {}", "match = { device_name = [\"h900\"] }");
    let lab = Lab::new(&format!("{head}{ENVIRONMENT}"));
    for kernel in ["gated.cu", "matmul.cu", "matmul.cuh"] {
        lab.scratch.write(&format!("engine/cuda/kernels/{kernel}"), "// code\n");
    }
    let pack = ["gpu-validation", "pack", "--worktree", "--validation", "all"];
    lab.scratch.run(&pack).expect(0, &["Compile the kernels"]);
    lab.scratch.run(&pack).expect(0, &[]);
    let compilations = lab.scratch.calls().matches("cargo xtask cuda-check").count();
    assert_eq!(compilations, 1, "code that is current is not compiled again");

    let archive = lab.scratch.root().join("target/validations/all/bundle.tar.xz");
    let there = lab.scratch.root().join("there");
    fs::create_dir(&there).unwrap();
    let unpacked = Command::new("tar").arg("-xf").arg(archive).current_dir(&there).status();
    assert!(unpacked.unwrap().success());
    let code = there.join("bundle/cubins").canonicalize().unwrap();
    let expected = ["gated.sm_80.cubin", "matmul.sm_80.cubin"].map(|name| code.join(name));
    assert_eq!(files_below(&code), expected, "a header has none");
    let mut validate = Command::new(there.join("bundle/validate"));
    validate.args(["--only", "environment", "--out"]).arg(there.join("out"));
    validate.env("PATH", path_with_gpu(&there.join("programs"), "NVIDIA H900"));
    Ended::of(validate.output().unwrap()).expect(0, &["done"]);
    let said = fs::read_to_string(there.join("out/stages/environment.stdout")).unwrap();
    assert_eq!(said, format!("1 {}\n", code.display()));
}

#[test]
fn the_archive_of_a_bundle_has_at_most_the_allowed_size() {
    let head = VALIDATION.split("[[calls.commands]]").next().unwrap();
    let lab = Lab::new(&format!("{head}{ENVIRONMENT}"));
    let pack = ["gpu-validation", "pack", "v0.9.2", "--validation", "all", "--size-max"];
    let archive = lab.scratch.root().join("target/validations/all/bundle.tar.xz");
    let refused = ["`--size-max` allows 0; its largest files", "bin/redline"];
    lab.scratch.run(&[&pack[..], &["0"]].concat()).expect(2, &refused);
    assert!(!archive.exists());
    lab.scratch.run(&[&pack[..], &["9"]].concat()).expect(0, &["bundle.tar.xz, "]);
    assert!(archive.exists());
    lab.validated(&["--only", "environment"]).expect(0, &["done"]);
    let said = fs::read_to_string(lab.places().1.join("stages/environment.stdout")).unwrap();
    assert_eq!(said, " \n", "a validation for any machine has no machine code, and needs no GPU");
}

#[test]
fn one_command_packs_runs_and_collects_on_the_machine_with_the_gpu() {
    let lab = Lab::new(VALIDATION);
    let said = [
        "bundle   target/validations/all/bundle, 6 stages",
        "Stage 6 of 6: talk-lite-tiny",
        "failed: it ended with exit code 3",
        "commit   c0ffee",
    ];
    // A stage that fails is no reason to lose the figures of the others.
    lab.scratch.run(&["gpu-validation", "here", "v0.9.2", "--validation", "all"]).expect(1, &said);
    let results = format!("target/validations/all/results-{}", lab.described().campaign);
    let staged = lab.scratch.root().join(results).join("results");
    assert_eq!(lab.scratch.records(&staged).len(), 2);
    assert_eq!(files_below(&lab.scratch.root().join("results/runs")).len(), 2);

    let lab = Lab::new(&VALIDATION.replace("match = {}", "match = { device_name = [\"h900\"] }"));
    let said = ["needs a GPU named like h900", "the stages could not be run: exit code 4"];
    lab.scratch
        .run(&["gpu-validation", "here", "--worktree", "--validation", "all"])
        .expect(4, &said);
}

#[test]
fn a_command_about_one_model_has_it_though_no_server_serves_it() {
    let command =
        "[[calls.commands]]\nid = \"one\"\nargv = [\"ls\", \"{model}\"]\nmodel = \"shape\"\n";
    let head = VALIDATION.split("[[calls.commands]]").next().unwrap();
    let head = head.replace("{ id = \"shape\", tp = 1 }, ", "");
    let lab = Lab::packed(&format!("{head}{command}"));
    lab.validated(&["--only", "one"]).expect(0, &["Stage 1 of 2: one", "done"]);
    let said = fs::read_to_string(lab.places().1.join("stages/one.stdout")).unwrap();
    assert_eq!(said, "config.json\n");
    let mut stages = lab.described().stages.into_iter().map(|stage| stage.work);
    let serves = |work| matches!(work, StageWork::Scenario { model, .. } if model == "shape");
    assert!(!stages.any(serves));
}

#[test]
fn kernels_that_a_box_measured_become_one_record() {
    let kernel = r#"{"op": "attention", "shape": "B1_T1_C8192", "dtype": "bf16", "isa": "sm_90a",
        "device": "cuda", "median_ns": 12000.5, "mad_ns": 20.5, "samples": 11, "bytes": 100,
        "flops": 200, "limit_share": 0.5}"#;
    let measured = format!(r#"{{"engine": "redline", "kernels": [{kernel}]}}"#);
    let commands = ["first", "second"].map(|id| {
        format!(
            "[[calls.commands]]\nid = \"{id}\"\nargv = [\"echo\", '{}']\n",
            measured.replace('\n', "")
        )
    });
    let head = VALIDATION.split("[[calls.commands]]").next().unwrap();
    let other = "[[calls.commands]]\nid = \"other\"\nargv = [\"echo\", \"no document\"]\n";
    let lab = Lab::new(&format!("{head}{}{other}{STEPS}", commands.join("\n")));
    lab.scratch
        .run(&["gpu-validation", "pack", "v0.9.2", "--validation", "all"])
        .expect(0, &["9 stages"]);
    lab.validated(&[]).expect(0, &["Stage 9 of 9"]);
    // Collecting twice makes one record.
    let collect = ["gpu-validation", "collect", "out"];
    let said = ["kernels  2", "models   4", "figures of stage `older` are left out: invalid type"];
    lab.scratch.run(&collect).expect(0, &[&said[..], &["commit   c0ffee"]].concat());
    lab.scratch.run(&collect).expect(0, &said);
    let results = lab.scratch.root().join("results");
    let paths = files_below(&results.join("kernels"));
    assert_eq!(paths.len(), 1, "{paths:?}");
    let text = fs::read_to_string(&paths[0]).unwrap();
    let record: KernelRecord = serde_json::from_str(&text).unwrap();
    let place = paths[0].strip_prefix(&results).unwrap();
    assert_eq!(place.to_str(), of_kernels(&record).ok().as_deref());
    assert_eq!(record.record_sha256, record_sha256(&record).unwrap());
    assert_eq!((record.benches.len(), record.benches[0].limit_share), (2, Some(0.5)));
    assert_eq!(record.engine.release, "v0.9.2");
    let benches: Vec<_> = record.model_benches().collect();
    let named = benches.iter().map(|bench| (&*bench.model, &*bench.device, bench.threads));
    let expected = [
        ("shape", "cuda", None),
        ("tiny", "cuda", None),
        ("tiny", "cpu", Some(2)),
        ("tiny", "cpu", Some(1)),
    ];
    assert_eq!(named.collect::<Vec<_>>(), expected);
    assert_eq!((benches[0].prefill[0].tokens, benches[0].prefill[0].limit_share), (512, 0.57));
    assert_eq!((benches[0].decode[0].batch, benches[0].decode[0].limit_share), (256, None));
    let [gpu, cpu] = [&benches[0].limits, &benches[2].limits];
    assert_eq!((gpu.bf16_flops_per_s, gpu.int8_ops_per_s), (Some(7.1e14), None));
    assert_eq!((gpu.read_bytes_per_s, cpu.f32_flops_per_s), (4.3e12, Some(2e11)));
}

#[test]
fn a_stage_is_done_once_and_an_interrupted_one_again() {
    let lab = Lab::packed(VALIDATION);
    let only = ["--only", "talk-lite-shape"];
    let mut slow = lab.validate(&only);
    slow.env("BENCH_FAKE", "slow").stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = slow.spawn().unwrap();
    wait_for("the load generator", || !lab.scratch.pids("bench.pids").is_empty());
    signal(child, "TERM").expect(4, &["interrupted"]);
    assert_eq!(lab.outcome("talk-lite-shape"), None);
    for pid in lab.scratch.pids("server.pids") {
        wait_for("the server to end", || !is_alive(pid));
    }

    lab.validated(&only).expect(0, &["Stage 5 of 6", "done"]);
    let servers = lab.servers();
    lab.validated(&only).expect(0, &["Stage 5 of 6", "done"]);
    assert_eq!(lab.servers(), servers, "a stage that was done was done again");
    lab.validated(&[]).expect(1, &["talk-lite-tiny"]);
    assert_eq!(lab.servers(), servers + 1);
    lab.validated(&["--only", "talk-lite"])
        .expect(2, &["there is no stage `talk-lite`", "the stages are hello-shape, "]);
}

#[test]
fn the_scenarios_of_a_model_share_a_server() {
    let lab = Lab::packed(&VALIDATION.replace("[\"talk-lite\"]", "[\"talk-lite\", \"rung-lite\"]"));
    let only = ["talk-lite", "rung-lite"].map(|scenario| format!("{scenario}-shape"));
    let only = ["--only", &only[0], "--only", &only[1], "--only", "talk-lite-tiny"];
    lab.validated(&only).expect(0, &["talk-lite-tiny"]);
    assert_eq!(lab.servers(), 2, "one for each model");
    let mut runs_before: Vec<(String, u32)> = Vec::new();
    for (_, record) in lab.scratch.records(&lab.places().1.join("results")) {
        let before = record.campaign.unwrap().server_runs_before.unwrap();
        runs_before.push((record.model.id, before));
    }
    runs_before.sort();
    let expected = [("shape", 0), ("shape", 1), ("tiny", 0)];
    assert_eq!(runs_before, expected.map(|(model, before)| (model.to_owned(), before)));
}

#[test]
fn a_call_ends_in_time_and_made_again_it_runs_what_is_left() {
    let late = "[[calls]]\nid = \"late\"\nlimit_s = 6\n\n[[calls.commands]]\nid = \"slow\"\n\
        argv = [\"sh\", \"-c\", \"[ -e $FIXTURES/quick ] || sleep 60\"]\n";
    let lab = Lab::packed(&format!("{VALIDATION}\n{late}"));
    lab.validated(&["--call", "early"])
        .expect(2, &["there is no call `early`", "the calls are scenarios, late"]);
    lab.validated(&["--call", "late"])
        .expect(3, &["left: the call's time is spent", "left     slow"]);
    assert_eq!(lab.outcome("slow"), None);
    fs::write(lab.scratch.fixtures().join("quick"), "").unwrap();
    lab.validated(&["--call", "late"]).expect(0, &["done"]);
    assert_eq!(lab.outcome("slow"), Some(Outcome::Done));
    assert_eq!(lab.outcome("hello-tiny"), None, "a stage of another call");
}

#[test]
fn a_stage_that_takes_too_long_has_failed_and_the_next_one_is_run() {
    let lab = Lab::packed(&VALIDATION.replace("stage_limit_s = 30", "stage_limit_s = 1"));
    let mut slow = lab.validate(&["--only", "talk-lite-shape", "--only", "hello-tiny"]);
    slow.env("BENCH_FAKE", "slow");
    Ended::of(slow.output().unwrap()).expect(1, &["Stage 2 of 6: hello-tiny", "failed: "]);
    let report = lab.report("talk-lite-shape").unwrap();
    assert_eq!(report.outcome, Outcome::Failed);
    let collected = ["gpu-validation", "collect", "out"];
    lab.scratch.run(&collected).expect(1, &["broken", "not run"]);
}

#[test]
fn a_stage_that_did_not_print_what_it_must_has_failed() {
    let stage = |id: &str, said: &str| {
        format!(
            "[[calls.commands]]\nid = \"{id}\"\nargv = [\"echo\", '{said}']\n\
             prints = '\",\"attention'\n"
        )
    };
    let head = VALIDATION.split("[[calls.commands]]").next().unwrap();
    let none = stage("none", "==PROF== Profiling \"attention_bf16\" - 0: 0%....100%");
    let some = stage("some", "\"0\",\"77\",\"redline\",\"attention_bf16\",\"1\"");
    let lab = Lab::packed(&format!("{head}{none}{some}"));
    lab.validated(&["--only", "none", "--only", "some"])
        .expect(1, &["failed: it did not print `\",\"attention`"]);
    assert_eq!(lab.outcome("none"), Some(Outcome::Failed));
    assert_eq!(lab.outcome("some"), Some(Outcome::Done));
}

#[test]
fn a_validation_is_refused_on_a_machine_that_it_is_not_for() {
    let lab =
        Lab::packed(&VALIDATION.replace("match = {}", "match = { device_name = [\"h900\"] }"));
    lab.validated(&[]).expect(
        4,
        &[
            "validation `all` needs a GPU named like h900, and this machine has none",
            "--validation rehearsal",
        ],
    );
    assert!(!lab.places().1.exists());
}

#[test]
fn results_of_the_working_tree_are_shown_and_not_committed() {
    let lab = Lab::new(VALIDATION);
    lab.scratch
        .run(&["gpu-validation", "pack", "--worktree", "--validation", "all"])
        .expect(0, &[]);
    lab.validated(&["--only", "talk-lite-shape"]).expect(0, &[]);
    lab.scratch
        .run(&["gpu-validation", "collect", "out"])
        .expect(1, &["(of a working tree: not committed)", "talk-lite-tiny"]);
    assert!(!lab.scratch.root().join("results").exists());
    lab.scratch
        .run(&["gpu-validation", "collect", "suite"])
        .expect(4, &["cannot read `suite/bundle.json`"]);
}
