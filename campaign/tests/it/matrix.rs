//! The matrix of what is measured, published elsewhere, planned and impossible.

use std::fs;
use std::path::Path;

use expect_test::expect;
use samples::Sample;
use schema::path::of_run;
use schema::run::{Kind, RunRecord};

use crate::scratch::Scratch;

/// Test helper: commits nothing, but writes a run of the scratch clone's model and scenario into its
/// results.
fn record(scratch: &Scratch, kind: Kind, engine: &str, serial: u64) {
    let sample = Sample {
        engine: engine.to_owned(),
        release: "v0.9.2".to_owned(),
        model: "tiny".to_owned(),
        scenario: "talk-lite".to_owned(),
        serial,
        ..Sample::default()
    };
    let mut record = RunRecord { kind, ..sample.record() };
    judge::seal(&mut record).unwrap();
    let text = serde_json::to_string(&record).unwrap();
    let path = match kind {
        Kind::Imported => format!("imports/lab/1a2b3c4d-r5/{serial:03}.json"),
        _ => of_run(&record).unwrap(),
    };
    scratch.write(&format!("results/{path}"), &text);
}

/// Copies files of the suite's engines into the scratch clone.
fn with_engines(scratch: &Scratch, engines: &[&str]) {
    let suite = Path::new(env!("CARGO_MANIFEST_DIR")).join("../suite/engines");
    for engine in engines {
        let file = format!("{engine}.toml");
        let text = fs::read_to_string(suite.join(&file)).unwrap();
        scratch.write(&format!("suite/engines/{file}"), &text);
    }
}

#[test]
fn every_cell_is_measured_published_planned_or_impossible() {
    let scratch = Scratch::new();
    with_engines(&scratch, &["llama.cpp", "lmdeploy", "mistralrs", "vllm"]);
    record(&scratch, Kind::Measured, "redline", 1);
    record(&scratch, Kind::Measured, "redline", 2);
    record(&scratch, Kind::Imported, "llama.cpp", 3);
    record(&scratch, Kind::Simulated, "mistralrs", 4);
    let shown = scratch.run(&["matrix"]).expect(0, &[]);
    expect![[r#"
        cpu
        model  tp  scenario   llama.cpp  lmdeploy        mistralrs  redline    vllm
        tiny   1   talk-lite  (v0.9.2)   impossible [1]  planned    v0.9.2 x2  impossible [2]
        tiny   1   rung-lite  planned    impossible [1]  planned    planned    impossible [2]

        RELEASE xN: measured in the newest revision of the scenario, without variants, N runs; (RELEASE):
            published elsewhere, not verified
        [1] engine `lmdeploy` does not compute on CPUs
        [2] engine `vllm` does not read GGUF on CPUs, the format of `tiny`

        Measure what is planned:
          cargo xtask release-bench v11434.0.0 --engine llama.cpp --target cpu --scenario rung-lite
          cargo xtask release-bench VERSION --engine mistralrs --target cpu --container docker --scenario talk-lite --scenario rung-lite
          cargo xtask release-bench v0.9.2 --target cpu --scenario rung-lite
        VERSION stands for a release: no record names one yet

    "#]]
    .assert_eq(&shown.stdout);
    scratch.run(&["matrix", "--target", "moon"]).expect(2, &["`moon`", "known are cpu"]);
    let commands: Vec<&str> =
        shown.stdout.lines().filter_map(|line| line.strip_prefix("  cargo xtask ")).collect();
    assert_eq!(commands.len(), 3, "{}", shown.stdout);
    for command in commands {
        let command = command.replace("VERSION", "0.8.0");
        let words: Vec<&str> = command.split(' ').chain(["--dry-run"]).collect();
        scratch.run(&words).expect(0, &["Plan of campaign"]);
    }
}

#[test]
fn an_engine_is_not_measured_where_it_cannot_serve_the_model() {
    let scratch = Scratch::new();
    let engine = scratch.root().join("suite/engines/redline.toml");
    let text = fs::read_to_string(&engine).unwrap();
    for (line, why, hint) in [
        ("devices = [\"gpu\"]", "engine `redline` does not compute on CPUs", "`--target ID`"),
        ("weights = [\"safetensors\"]", "engine `redline` does not read GGUF", "launch.weights"),
    ] {
        fs::write(&engine, text.replace("timeout_s", &format!("{line}\ntimeout_s"))).unwrap();
        scratch
            .run(&["release-bench", "v0.9.2", "--dry-run"])
            .expect(2, &[why, hint, "suite/engines/redline.toml"]);
    }
}

#[test]
fn on_gpus_of_amd_only_engines_with_an_image_for_them_are_measured() {
    let scratch = Scratch::new();
    with_engines(&scratch, &["llama.cpp", "vllm"]);
    scratch.write(
        "suite/targets/mi300x.toml",
        "match = { device_name = [\"mi300x\"] }\naccelerator = \"rocm\"\n\
         scenarios = [\"talk-lite\"]\nrepeats = 1\nmodels = [{ id = \"tiny\", tp = 1 }]\n",
    );
    scratch.run(&["matrix", "--target", "mi300x"]).expect(
        0,
        &[
            "[1] engine `llama.cpp` publishes no image for GPUs of AMD",
            "[2] engine `redline` publishes no image for GPUs of AMD",
            "cargo xtask release-bench VERSION --engine vllm --target mi300x --container docker\n",
        ],
    );
    let run = |engine: &str, more: &[&str]| {
        let words = ["release-bench", "0.17.1", "--engine", engine, "--target", "mi300x"];
        scratch.run(&[&words[..], &["--dry-run"], more].concat())
    };
    run("vllm", &[]).expect(2, &["is not built for GPUs of AMD", "`--container docker` runs"]);
    run("vllm", &["--container", "enroot"]).expect(2, &["Enroot documents no way"]);
    let image = "vllm v0.17.1, its image for GPUs of AMD under docker";
    run("vllm", &["--container", "docker"]).expect(0, &[image]);
    // The plan says what a machine would have to have.
    let plan = run("vllm", &["--container", "apptainer"]);
    let plan = plan.expect(0, &["missing    1 GPU named like mi300x\n"]).stdout;
    let path = std::env::var_os("PATH").unwrap();
    let is_there = std::env::split_paths(&path).any(|dir| dir.join("apptainer").is_file());
    assert_eq!(plan.contains("`apptainer`, which runs the image\n"), !is_there, "{plan}");
}
