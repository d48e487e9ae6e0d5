//! Other engines are measured like any release of Redline: the installed version is checked, and
//! its start, configuration and token counts are recorded. Mock servers answer in each engine's API
//! format; `source` in `it/stand-ins/*.json` says where that format was read.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use fixtures::{CONVERSATIONS, MODEL, cached};
use schema::run::{CacheState, IdsSource, RunRecord, Status, TokenSource};
use serde_json::Value;
use tests::clone::Clone;
use tests::program::{Ended, built, run};

/// Mock of an engine: its package, its version, and the script of its answers.
struct StandIn {
    engine: &'static str,
    package: &'static str,
    version: &'static str,
    script: &'static str,
}

const fn stand_in(engine: &'static str, version: &'static str, script: &'static str) -> StandIn {
    StandIn { engine, package: engine, version, script }
}

impl StandIn {
    /// Runs `release-bench` for the version `asked` with the mock installed: a program with the
    /// engine's name, or a Python that handles the engine's module, and a package of the mock's
    /// version.
    fn bench(&self, clone: &Clone, folder: &Path, asked: &str, more: &[&str]) -> Ended {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("it/stand-ins").join(self.script);
        let emitter = built("redline-emitter");
        let serves = format!(
            "port=\nfor word in \"$@\"; do\n  case $before in --port|--server-port) port=$word ;; esac\n  \
             before=$word\ndone\n\
             exec '{}' --detach --script '{}' --listen 127.0.0.1:$port\n",
            emitter.display(),
            script.display()
        );
        let programs = folder.join("programs");
        for name in ["vllm", "lmdeploy", "trtllm-serve"] {
            write_program(&programs.join(name), &serves);
        }
        // Other uses of Python reach the real one; only the start of SGLang's server is mocked.
        let python = "case \"$*\" in *sglang.launch_server*) ;; *)\n\
                      PATH=${PATH#*:}; exec python3 \"$@\" ;; esac\n";
        write_program(&programs.join("python3"), &format!("{python}{serves}"));
        self.install(&folder.join("packages"));
        let path = std::env::var("PATH").unwrap_or_default();
        let words = ["release-bench", asked, "--engine", self.engine, "--installed"];
        let cell = ["--scenario", "thinking-lite", "--repeats", "1"];
        let mut command = clone.program("redline-campaign", &[&words[..], &cell, more].concat());
        command.env("PATH", format!("{}:{path}", programs.display()));
        command.env("PYTHONPATH", folder.join("packages"));
        run(&mut command)
    }

    /// Writes the files of an installed Python package that name its version.
    fn install(&self, packages: &Path) {
        let name = self.package.replace('-', "_");
        let folder = packages.join(format!("{name}-{}.dist-info", self.version));
        std::fs::create_dir_all(&folder).expect("writable");
        let metadata =
            format!("Metadata-Version: 2.1\nName: {}\nVersion: {}\n", self.package, self.version);
        std::fs::write(folder.join("METADATA"), metadata).expect("writable");
        std::fs::write(folder.join("RECORD"), "a.py,sha256=00,1\n").expect("writable");
    }

    /// Removes from the clone's engine file what the real engine cannot serve: the mock computes
    /// nothing.
    fn computes_everywhere(&self, clone: &Clone) {
        let file = clone.root().join(format!("suite/engines/{}.toml", self.engine));
        let text = std::fs::read_to_string(&file).expect("readable");
        let is_kept =
            |line: &&str| !["devices = ", "weights = "].iter().any(|key| line.starts_with(key));
        let kept: Vec<&str> = text.lines().filter(is_kept).collect();
        std::fs::write(&file, kept.join("\n") + "\n").expect("writable");
    }

    /// Measures the version that is installed, and returns its run record.
    fn measured(&self) -> Option<RunRecord> {
        let (Some(_), Some(_)) = (cached(MODEL), cached(CONVERSATIONS)) else { return None };
        let clone = Clone::of_this_repository(&[]);
        self.computes_everywhere(&clone);
        let folder = tempfile::tempdir().expect("a temporary folder");
        let ended = self.bench(&clone, folder.path(), self.version, &[]).expect_code(0);
        assert!(ended.stdout.contains("known      "), "no known issue shown:\n{}", ended.stdout);
        let committed = clone.git(&["show", "--name-only", "--format=", "HEAD"]);
        let path = committed.lines().find(|path| path.contains("/runs/")).expect("a run");
        assert!(path.starts_with(&format!("results/runs/{}/v{}/", self.engine, self.version)));
        clone.run("redline-results", &["check"]).expect_code(0);
        let text = std::fs::read_to_string(clone.root().join(path)).expect("readable");
        assert!(!text.contains("/models/m"), "a path of the server's machine entered the record");
        Some(serde_json::from_str(&text).expect("a record"))
    }
}

fn write_program(path: &Path, script: &str) {
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("writable");
    std::fs::write(path, format!("#!/bin/sh\n{script}")).expect("writable");
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(path, mode).expect("permissions can be set");
}

/// Asserts what is true for every engine: all requests succeeded, and the server reported token
/// counts.
fn well(run: &RunRecord, version: &str) {
    assert_eq!((run.status, &*run.engine.release), (Status::Ok, &*format!("v{version}")));
    assert_eq!(run.engine.binary_sha256.as_deref().map(str::len), Some(64));
    let build = run.engine.build.as_ref().expect("facts of the build");
    let installed = format!("{}=={version}", run.engine.name);
    assert!(build.packages.as_ref().expect("packages").contains(&installed), "{build:?}");
    assert_eq!(build.packages_sha256.as_deref().map(str::len), Some(64));
    let counts = run.counts.as_ref().expect("counts");
    assert_eq!(counts.requests_ok, Some(8));
    assert_eq!(counts.output_tokens_reported, Some(8 * 750));
    let argv = run.server.as_ref().and_then(|server| server.argv.as_ref()).expect("a command line");
    assert!(argv.iter().any(|word| word == "{model}"), "{argv:?}");
}

fn config(run: &RunRecord, flag: &str) -> Option<Value> {
    run.server.as_ref()?.config.as_ref()?.get(flag).cloned()
}

fn cache(run: &RunRecord) -> CacheState {
    run.cache.as_ref().expect("facts of the cache").state
}

/// Growth of the server's own counter of output tokens during the run.
fn counted(run: &RunRecord) -> Option<u64> {
    run.telemetry.as_ref()?.server.as_ref()?.output_tokens
}

fn source(run: &RunRecord) -> Option<TokenSource> {
    run.counts.as_ref().and_then(|counts| counts.token_source)
}

/// Source of the token ids that the digest of the outputs is made of.
fn outputs(run: &RunRecord) -> Option<IdsSource> {
    let correctness = run.correctness.as_ref()?;
    correctness.tokens_sha256.as_ref()?;
    correctness.ids_source
}

#[test]
fn vllm_0_10_tells_its_configuration_as_text() {
    let Some(run) = stand_in("vllm", "0.10.1", "vllm-0.10.json").measured() else { return };
    well(&run, "0.10.1");
    let server = run.server.as_ref().expect("a server");
    assert_eq!(
        (server.tp, server.prefix_cache, server.max_batch_size),
        (Some(1), Some(true), None)
    );
    assert_eq!(config(&run, "max-model-len"), Some(Value::from(40_960)));
    assert_eq!(cache(&run), CacheState::Cold, "it was emptied");
    assert_eq!(source(&run), Some(TokenSource::Usage));
    assert_eq!(outputs(&run), Some(IdsSource::Retokenized), "ids are not reported");
    assert_eq!(counted(&run), Some(0), "the counter is found, and stands still");
}

#[test]
fn vllm_0_17_tells_its_configuration_by_parts_and_its_ids() {
    let Some(run) = stand_in("vllm", "0.17.1", "vllm-0.17.json").measured() else { return };
    well(&run, "0.17.1");
    let server = run.server.as_ref().expect("a server");
    assert_eq!((server.tp, server.max_batch_size), (Some(1), Some(256)));
    assert_eq!(config(&run, "block-size"), Some(Value::from(16)));
    assert_eq!(
        (server.device.as_deref(), run.model.dtype.as_deref()),
        (Some("cuda"), Some("bfloat16"))
    );
    assert_eq!(server.config_sha256.as_deref().map(str::len), Some(64));
    assert_eq!((server.kv_dtype.as_deref(), cache(&run)), (Some("auto"), CacheState::Cold));
    assert_eq!(outputs(&run), Some(IdsSource::Given), "ids are reported");
}

#[test]
fn sglang_tells_all_at_one_route_and_its_cache_is_flushed() {
    let Some(run) = stand_in("sglang", "0.5.1", "sglang-0.5.json").measured() else { return };
    well(&run, "0.5.1");
    let server = run.server.as_ref().expect("a server");
    assert_eq!((server.tp, server.prefix_cache), (Some(1), Some(true)));
    assert_eq!(config(&run, "max-total-tokens"), Some(Value::from(443_013)));
    assert_eq!(cache(&run), CacheState::Cold);
    assert_eq!(source(&run), Some(TokenSource::Usage));
    let hits = run.cache.as_ref().and_then(|cache| cache.hit_tokens);
    assert_eq!(hits, Some(0), "its counter reports them, usage does not");
}

#[test]
fn lmdeploy_0_9_counts_with_every_chunk_and_tells_nothing_else() {
    let Some(run) = stand_in("lmdeploy", "0.9.2", "lmdeploy-0.9.json").measured() else { return };
    well(&run, "0.9.2");
    let form = run.scenario.prompt_form.map(|form| serde_json::to_value(form).expect("a name"));
    assert_eq!(form, Some(Value::from("text")), "it takes no ids");
    assert_eq!(source(&run), Some(TokenSource::UsagePerChunk));
    assert_eq!(config(&run, "tp"), None);
    assert_eq!(cache(&run), CacheState::Unknown);
}

#[test]
fn lmdeploy_0_10_counts_with_its_last_text() {
    let Some(run) = stand_in("lmdeploy", "0.10.0", "lmdeploy-0.10.json").measured() else { return };
    well(&run, "0.10.0");
    assert_eq!(source(&run), Some(TokenSource::Usage));
    assert_eq!(counted(&run), Some(0), "the counter is found, and stands still");
}

#[test]
fn tensorrt_llm_tells_its_version_and_what_was_cached() {
    let engine = stand_in("tensorrt-llm", "1.2.1", "tensorrt-llm-1.2.json");
    let Some(run) = engine.measured() else { return };
    well(&run, "1.2.1");
    assert_eq!(run.cache.as_ref().and_then(|cache| cache.hit_tokens), Some(0), "by its usage");
    assert_eq!(cache(&run), CacheState::Unknown, "nothing empties it");
}

#[test]
fn another_release_than_the_installed_one_is_refused_before_it_is_served() {
    let (Some(_), Some(_)) = (cached(MODEL), cached(CONVERSATIONS)) else { return };
    let clone = Clone::of_this_repository(&[]);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let engine = stand_in("vllm", "0.10.1.1", "vllm-0.10.json");
    engine.computes_everywhere(&clone);
    let ended = engine.bench(&clone, folder.path(), "v0.10.1", &[]).expect_code(4);
    ended
        .expect_said("vllm 0.10.1.1 is installed on this machine, not 0.10.1")
        .expect_said("hint: leave `--installed` out");
    // The versions reported by the package and by the server must agree, too.
    let lies = stand_in("vllm", "0.10.1", "vllm-0.17.json");
    let other = tempfile::tempdir().expect("a temporary folder");
    let ended = lies.bench(&clone, other.path(), "v0.10.1", &[]).expect_code(1);
    assert!(ended.stderr.contains("0.17.1"), "{}", ended.stderr);
}

#[test]
fn a_matrix_of_another_machine_is_planned_from_published_hours() {
    let clone = Clone::of_this_repository(&[]);
    let plan = |words: &[&str]| {
        let words = [&["release-bench", "v0.10.1", "--dry-run", "--target", "a100-80g"], words];
        clone.run("redline-campaign", &words.concat()).expect_code(0).stdout
    };
    let known = plan(&["--engine", "vllm"]);
    for line in [
        "hardware   a100-80g (target a100-80g)",
        "model      qwen3-235b-a22b, 8 ranks",
        "balanced@1             3 runs, about 13 min each, 0.6 GPU-hours (as published by others",
        "runs       72, about ",
        "qwen3-8b, to be brought by `hf download Qwen/Qwen3-8B`",
        "missing    8 GPUs named like a100 or a800",
    ] {
        assert!(known.contains(line), "no `{line}` in\n{known}");
    }
    assert!(!known.contains("unknown length"), "all of it was published:\n{known}");
    let words = ["release-bench", "v0.10.1", "--engine", "vllm", "--target", "a100-80g"];
    let few = ["--dry-run", "--max-gpu-hours", "0.1"];
    let refused = clone.run("redline-campaign", &[&words[..], &few].concat()).expect_code(2);
    refused.expect_said("GPU-hours, and 0.1 are allowed");
    let unknown = plan(&["--engine", "tensorrt-llm"]);
    assert!(unknown.contains("runs       72, and how long they take is unknown"), "{unknown}");
}

#[test]
fn a_published_page_whose_models_have_different_scenarios_is_measured_cell_by_cell() {
    let clone = Clone::of_this_repository(&[]);
    let page = "results/imports/llm_benchmark/ee356a43-r5";
    let ended = clone.run("redline-campaign", &["reproduce", page, "--dry-run"]).expect_code(0);
    // Six models in four scenarios, which are five: two models have fewer conversations.
    let planned = &ended.stdout;
    assert!(planned.contains("runs       72, about "), "{planned}");
    assert!(planned.contains("sharegpt-1000@1"), "{planned}");
    assert!(planned.contains("python3 -m sglang.launch_server --model-path {model}"), "{planned}");
}

#[test]
fn a_published_lab_is_measured_by_a_campaign_for_each_set_of_flags() {
    let clone = Clone::of_this_repository(&[]);
    let page = "results/imports/performance-lab/d88cdf37-r5";
    let ended = clone.run("redline-campaign", &["reproduce", page, "--dry-run"]).expect_code(0);
    let planned = &ended.stdout;
    // One of SGLang, and 14 of vLLM for 23 results.
    assert_eq!(planned.matches("Plan of campaign").count(), 15, "{planned}");
    assert_eq!(planned.matches("(published), in a").count(), 15, "{planned}");
    for scenario in ["lab-throughput@", "lab-long-context@", "lab-generation-heavy@"] {
        assert_eq!(planned.matches(scenario).count(), 2, "{scenario} in\n{planned}");
    }
    let flags =
        "--performance-mode=throughput --max-model-len=32768 --max-num-batched-tokens=49152";
    assert!(planned.contains(&format!("{flags} --max-num-seqs=768")), "{planned}");
    ended.expect_said("`lab-long-context` has no limit on requests in flight; the page prints 9");
}
