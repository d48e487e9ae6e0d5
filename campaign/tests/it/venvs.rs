//! Releases of an engine that is a Python package: each is installed once, into a virtual environment
//! of its own, or imported once as an image.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use schema::canonical::sha256_hex;
use tests::slurm::Cluster;

use crate::scratch::{Ended, SERVED, Scratch, files_below, is_alive, signal, wait_for};

/// Beginning of the engine's file.
const HEAD: &str = r#"
title = "Peer"
[launch]
argv = ["peer-server", "serve", "{model}", "--port", "{port}"]
timeout_s = 3
[launch.image]
name = "peers/peer:{release}"
argv = ["serve", "{model}", "--port", "{port}"]
hub = "/hub"
"#;

/// Returns the file of an engine that is a package, and has an image.
pub fn engine() -> String {
    format!("{HEAD}{SERVED}[package]\nnames = [\"peer\"]\n")
}

/// Compares two releases of the package in two runs of each.
const BOTH: [&str; 10] = [
    "release-bench",
    "--engine",
    "peer",
    "v0.10.0",
    "--baseline",
    "0.9.2",
    "--no-confirm",
    "--scenario=talk-lite",
    "--repeats",
    "2",
];
/// Measures one release of the package once.
const ONE: [&str; 6] = ["release-bench", "--engine", "peer", "v0.9.2", "--repeats", "1"];

/// File in the cache with the pinned packages of that release.
const PINS: &str = "venvs/peer/0.9.2/cpython-311-linux-x86_64/requirements.txt";

fn with_peer() -> Scratch {
    let scratch = Scratch::new();
    scratch.write("suite/engines/peer.toml", &engine());
    scratch
}

/// The stand-ins' calls that resolve packages, make environments or install into them.
fn installs(scratch: &Scratch) -> Vec<String> {
    let is_of = |line: &&str| {
        line.starts_with("pip resolve")
            || line.starts_with("uv")
            || *line == "venv"
            || *line == "pip install"
    };
    scratch.calls().lines().filter(is_of).map(str::to_owned).collect()
}

#[test]
fn two_releases_are_measured_side_by_side_each_with_its_own_packages() {
    let scratch = with_peer();
    scratch.write_speed("0.9.2", 100.0);
    scratch.write_speed("0.10.0", 120.0);
    let ended = scratch.run(&BOTH).expect(
        3,
        &[
            "peer v0.9.2, in a virtual environment",
            "packages   peer==0.9.2, to be installed by pip, size unknown",
            "Install peer==0.10.0 with `pip install`: 2 packages to be installed, at most 2.8 GiB",
            "the table of v0.9.2",
        ],
    );
    assert_eq!(ended.stderr.matches("Install peer").count(), 2, "{}", ended.stderr);
    let records = scratch.committed();
    assert_eq!(records.len(), 4);
    for record in &records {
        let version = record.engine.release.trim_start_matches('v');
        let (installed, speed) = match version {
            "0.9.2" => ("peer==0.9.2", 100.0),
            _ => ("peer==0.10.0", 120.0),
        };
        let metrics = record.metrics.as_ref().unwrap();
        assert_eq!(metrics.output_tokens_per_s, Some(speed), "its own program served");
        let build = record.engine.build.as_ref().unwrap();
        assert_eq!(build.packages.as_deref().unwrap(), ["fire==0.7", installed]);
        let lines = format!("fire==0.7\n{installed}\n");
        assert_eq!(build.packages_sha256, Some(sha256_hex(lines.as_bytes())));
        assert_eq!(build.source_url.as_deref(), Some(installed));
        let server = record.server.as_ref().unwrap();
        let argv = server.argv.as_ref().unwrap().join(" ");
        assert_eq!(argv, "peer-server serve {model} --port {port}");
        assert!(!server.env.as_ref().unwrap().contains_key("PATH"), "{:?}", server.env);
    }
    for path in files_below(&scratch.root().join("results")) {
        let text = fs::read_to_string(&path).unwrap();
        assert!(!text.contains(scratch.cache().to_str().unwrap()), "{}", path.display());
    }
}

#[test]
fn a_second_campaign_installs_nothing() {
    let scratch = with_peer();
    scratch.run(&ONE).expect(0, &[]);
    let before = installs(&scratch);
    assert_eq!(before, ["pip resolve peer==0.9.2", "venv", "pip install"]);
    scratch.run(&ONE).expect(0, &["packages   peer==0.9.2, available ("]);
    // Also without a network, and where another tool would install it.
    scratch.run_with(&ONE, &[("PIP_FAKE", "offline")]).expect(0, &[]);
    scratch.run_with(&ONE, &[("UV_FAKE", "yes")]).expect(0, &[]);
    assert_eq!(installs(&scratch), before);
    assert_eq!(scratch.committed().len(), 4);
}

#[test]
fn uv_installs_where_it_is_there() {
    let scratch = with_peer();
    let ended = scratch.run_with(&ONE, &[("UV_FAKE", "yes")]).expect(
        0,
        &["peer==0.9.2, 2 packages to be installed, at most 2.8 GiB", "with `uv pip install`"],
    );
    assert!(ended.stderr.contains("Resolve peer==0.9.2"), "{}", ended.stderr);
    assert_eq!(installs(&scratch), ["uv pip compile", "uv venv --quiet", "uv pip install"]);
    let build = scratch.committed().remove(0).engine.build.unwrap();
    assert_eq!(build.packages.unwrap(), ["fire==0.7", "peer==0.9.2"]);
    let pins = fs::read_to_string(scratch.cache().join(PINS)).unwrap();
    assert!(pins.ends_with("fire==0.7 --hash=sha256:bb\npeer==0.9.2 --hash=sha256:aa\n"), "{pins}");
}

#[test]
fn on_a_processor_the_build_for_it_is_installed_with_what_its_own_index_has() {
    let scratch = Scratch::new();
    let cpu = "names = [\"peer\", \"peer-cpu\"]\n[package.cpu]\nname = \"peer-cpu\"\n\
               index = \"https://localhost/cpu\"\n";
    let engine = engine().replace("names = [\"peer\"]\n", cpu);
    scratch.write("suite/engines/peer.toml", &engine);
    scratch.run(&ONE).expect(0, &["packages   peer-cpu==0.9.2, to be installed by pip"]);
    let calls = scratch.calls();
    assert!(
        calls.contains("pip resolve peer-cpu==0.9.2\nindex https://localhost/cpu\n"),
        "{calls}"
    );
    assert!(calls.contains("pip install\nindex of the installation\n"), "{calls}");
    let build = scratch.committed().remove(0).engine.build.unwrap();
    assert_eq!(build.source_url.as_deref(), Some("peer-cpu==0.9.2"));
    // Another cache, into which uv installs it.
    let with_uv = Scratch::new();
    with_uv.write("suite/engines/peer.toml", &engine);
    with_uv.run_with(&ONE, &[("UV_FAKE", "yes")]).expect(0, &["peer-cpu==0.9.2, 2 packages to be"]);
    let index = "uv of https://localhost/cpu with unsafe-best-match";
    assert_eq!(with_uv.calls().matches(index).count(), 2, "{}", with_uv.calls());
    // What it cannot read is said of processors alone.
    scratch.write("suite/engines/peer.toml", &format!("{engine}weights = [\"safetensors\"]\n"));
    let why = "engine `peer` does not read GGUF on CPUs, the format of `tiny`";
    scratch.run(&ONE).expect(2, &[why, "`package.cpu.weights` in `suite/engines/peer.toml`"]);
}

#[test]
fn other_pinned_packages_are_another_environment() {
    let scratch = with_peer();
    scratch.run(&ONE).expect(0, &[]);
    let pins = scratch.cache().join(PINS);
    let text = fs::read_to_string(&pins).unwrap();
    fs::write(&pins, text.replace("fire==0.7", "fire==0.8")).unwrap();
    scratch.run(&ONE).expect(0, &["2 packages to be installed"]);
    let calls = installs(&scratch);
    assert_eq!(calls[3..], ["venv", "pip install"], "the first environment stays as it was");
}

#[test]
fn an_interrupted_installation_is_repeated() {
    let scratch = with_peer();
    let child = scratch.start_until(&ONE, &[("INSTALL_FAKE", "slow")], "install.pids");
    signal(child, "INT").expect(4, &["error: interrupted"]);
    for pid in scratch.pids("install.pids") {
        wait_for("the installer to end", || !is_alive(pid));
    }
    scratch.run(&ONE).expect(0, &["to be installed"]);
    let calls = installs(&scratch);
    assert_eq!(calls[1..], ["venv", "pip install", "venv", "pip install"]);
    assert_eq!(scratch.committed().len(), 1);
}

#[test]
fn an_interrupted_resolution_leaves_no_downloads_behind() {
    let scratch = with_peer();
    let child = scratch.start_until(&ONE, &[("PIP_FAKE", "slow")], "pip.pids");
    signal(child, "INT").expect(4, &["error: interrupted"]);
    let left = files_below(&scratch.cache().join("venvs"));
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_scheduler_that_does_not_answer_is_found_before_anything_is_resolved() {
    let scratch = with_peer();
    let silent = scratch.fixtures().join("silent");
    fs::create_dir_all(&silent).unwrap();
    let tool = silent.join("sbatch");
    fs::write(&tool, "#!/bin/sh\necho 'sbatch: error: no controller' >&2\nexit 1\n").unwrap();
    fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
    for tool in ["squeue", "sacct", "scontrol", "scancel", "sinfo"] {
        fs::copy(silent.join("sbatch"), silent.join(tool)).unwrap();
    }
    let mut command = scratch.command(&[&ONE[..], &["--executor", "slurm"]].concat());
    let path = std::env::var("PATH").unwrap();
    let stand_ins = concat!(env!("CARGO_MANIFEST_DIR"), "/../campaign/tests/stand-ins");
    let path = format!("{}:{stand_ins}:{path}", silent.display());
    let ended = Ended::of(command.env("PATH", path).env("UV_FAKE", "yes").output().unwrap());
    let ended = ended.expect(4, &["`squeue` got no answer: no controller"]);
    assert!(!ended.stderr.contains("Resolve"), "{}", ended.stderr);
    assert_eq!(scratch.calls(), "");
}

#[test]
fn an_installation_that_fails_says_what_the_tool_said() {
    let scratch = with_peer();
    scratch.run_with(&ONE, &[("INSTALL_FAKE", "broken")]).expect(
        4,
        &[
            "`pip install` ended with exit code 1 for peer==0.9.2; its last lines:",
            "  ERROR: No space left on device",
            "hint: is there such a release, and a network? `--installed`",
        ],
    );
    assert!(scratch.pids("server.pids").is_empty(), "nothing was started");
    let offline = [("PIP_FAKE", "offline")];
    let unknown = with_peer();
    let plan = [&ONE[..], &["--dry-run"]].concat();
    unknown.run_with(&plan, &offline).expect(0, &["peer==0.9.2, to be installed by pip, size"]);
    assert!(installs(&unknown).is_empty(), "a plan downloads nothing");
    let failed = "`pip install --dry-run` ended with exit code 1 for peer==0.9.2";
    unknown.run_with(&ONE, &offline).expect(4, &[failed, "No matching distribution found"]);
}

#[test]
fn what_is_installed_is_measured_where_it_is_asked_for() {
    let scratch = with_peer();
    let found = r#"{"name": "peer", "version": "0.9.2", "files_sha256": null, "packages": []}"#;
    fs::write(scratch.fixtures().join("installed.json"), found).unwrap();
    let other = ["release-bench", "--engine", "peer", "v0.10.0", "--installed"];
    scratch.run(&other).expect(
        4,
        &["peer 0.9.2 is installed on this machine, not 0.10.0", "leave `--installed` out"],
    );
    assert!(installs(&scratch).is_empty(), "{:?}", installs(&scratch));
}

#[test]
fn an_image_is_imported_once() {
    let scratch = with_peer();
    let flags = [&ONE[..], &["--container", "enroot"]].concat();
    for _ in 0..2 {
        scratch.run(&flags).expect(0, &["peer v0.9.2, its image under enroot"]);
    }
    let import = "enroot import docker://peers/peer:v0.9.2";
    assert_eq!(scratch.calls().matches(import).count(), 1);
    let record = scratch.committed().remove(0);
    let build = record.engine.build.unwrap();
    assert_eq!(build.image.as_deref(), Some("peers/peer:v0.9.2"));
    let argv = record.server.unwrap().argv.unwrap().join(" ");
    assert!(argv.ends_with("docker://peers/peer:v0.9.2 serve {model} --port {port}"), "{argv}");
}

#[test]
fn extra_an_image_is_imported_here_and_runs_in_a_job_of_a_cluster() {
    let Some(cluster) = Cluster::without_accounting() else { return };
    let scratch = with_peer();
    let flags = [&ONE[..], &["--container", "enroot", "--executor", "slurm"]].concat();
    let mut command = scratch.command(&flags);
    let output = command.env("SLURM_CONF", cluster.conf()).output().unwrap();
    Ended::of(output).expect(0, &["peer v0.9.2, its image under enroot"]);
    let import = "enroot import docker://peers/peer:v0.9.2";
    assert_eq!(scratch.calls().matches(import).count(), 1);
    let record = scratch.committed().remove(0);
    assert_eq!(record.engine.build.unwrap().image.as_deref(), Some("peers/peer:v0.9.2"));
    let shown = cluster.run_tool("scontrol", &["--oneliner", "show", "job"]).stdout;
    assert_eq!(shown.matches("JobState=COMPLETED").count(), 1, "{shown}");
}

#[test]
fn an_image_is_planned_by_its_release_alone() {
    let scratch = with_peer();
    let plan = [&BOTH[..], &["--container", "podman", "--dry-run"]].concat();
    let ended = scratch.run(&plan).expect(0, &["peer v0.10.0, its image under podman"]);
    assert!(!ended.stdout.contains("packages"), "{}", ended.stdout);
    let line = "peers/peer:v0.10.0 serve {model} --port {port}";
    assert!(ended.stdout.contains(line), "{}", ended.stdout);
    scratch
        .write("suite/engines/peer.toml", &engine().replace("[package]\nnames = [\"peer\"]\n", ""));
    scratch.run(&plan).expect(0, &[]);
    let neither = "engine `peer` is neither built nor installed here";
    scratch.run(&ONE).expect(2, &[neither, "`--container docker` runs its image; or start it"]);
    let odd = ["release-bench", "--engine", "peer", "../x", "--container", "podman"];
    scratch.run(&odd).expect(2, &["`../x` is no version of `peer`"]);
}
