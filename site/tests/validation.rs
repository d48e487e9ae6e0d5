//! Tests of pages about runs of a GPU validation in this source tree's results: the memory of the
//! GPU and of the host, and what a record's own day said of it.

use std::fs;
use std::path::{Path, PathBuf};

use site::{Catalog, Renderer, build};

/// Builds the site of this source tree's results, and returns its folder.
fn built() -> (tempfile::TempDir, PathBuf) {
    let records = Path::new(env!("CARGO_MANIFEST_DIR")).join("../results");
    let registry = store::load(&[&records]).expect("readable records");
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("site");
    let renderer = Renderer::new().expect("templates compile");
    build::build(&Catalog::of(&registry), &[&records], &renderer, (&out, None)).expect("a site");
    (folder, out)
}

fn read(out: &Path, page: &str) -> String {
    fs::read_to_string(out.join(page)).unwrap_or_else(|e| panic!("{page}: {e}"))
}

/// Page of the run that served Qwen3-8B in `balanced-quarter`, first on its server.
const RUN: &str = "run/01M8EVGZXR3ZA2MPKTTB9H1PV3/index.md";

#[test]
fn memory_of_a_gpu_stands_before_that_of_the_host() {
    let (_guard, out) = built();
    let run = read(&out, RUN);
    assert!(run.contains("| Peak GPU memory GiB | 115 | `123768471552` |"), "{run}");
    assert!(run.contains("| Peak host memory MiB | 677 | `709709824` |"), "{run}");
    let release = read(&out, "r/redline/v0.11.0/h200-141g/index.md");
    assert!(release.contains("| Peak GPU memory GiB | "), "{release}");
    assert!(!release.contains("| Peak memory"), "the host's is called so: {release}");
    let pick = read(&out, "pick/qwen3-8b-random/h200-141g/index.md");
    assert!(pick.contains("Peak GPU memory 115 GiB. Peak host memory 677 MiB. "), "{pick}");
    let cpu = read(&out, "pick/smollm2-135m-instruct-q4_1/cpu-amd-epyc-f25m1s1-2c/index.md");
    assert!(cpu.contains(" Peak memory ") && !cpu.contains("Peak host memory"), "{cpu}");
}

#[test]
fn a_run_of_a_validation_is_measured_again_by_its_stage_of_a_bundle() {
    let (_guard, out) = built();
    let run = read(&out, RUN);
    let commands = "cargo xtask gpu-validation pack v0.11.0 --validation h200-141g\n\
                    tar -xf target/validations/h200-141g/bundle.tar.xz\n\
                    bundle/validate --only balanced-quarter-qwen3-8b-random\n\
                    cargo xtask gpu-validation collect validation-results\n";
    assert!(run.contains(commands), "{run}");
    for command in ["cargo xtask reproduce", "cargo xtask release-bench"] {
        assert!(!run.contains(command), "`{command}` measures nothing of it: {run}");
    }
    let release = read(&out, "r/redline/v0.11.0/h200-141g/index.md");
    let stages = "--only balanced-quarter-qwen3-8b-random --only thinking-quarter-qwen3-8b-random";
    assert!(release.contains(stages), "{release}");
    let other = "r/redline/v0.11.0/cpu-amd-epyc-f25m1s1-2c/smollm2-135m-instruct-q4_1/cpu-int8-tp1";
    let other = read(&out, &format!("{other}/index.md"));
    assert!(other.contains("cargo xtask release-bench v0.11.0 --model smollm2"));
}

#[test]
fn checks_of_a_records_day_stand_apart_from_those_of_today() {
    let (_guard, out) = built();
    let run = read(&out, RUN);
    let checks = run.split("## Checks").nth(1).and_then(|rest| rest.split("## Reproduce").next());
    let (today, before) = checks.and_then(|c| c.split_once("### Superseded")).expect("both");
    assert!(today.contains("| W01 |") && !today.contains("| E16 |"), "{today}");
    let row = before.lines().find(|line| line.starts_with("| E16 |")).expect("a row");
    assert!(row.contains("| no | error | ") && row.ends_with("| E37 |"), "{row}");
    assert!(before.contains("revision 9 of the rules"), "{before}");
    // W19 was retired after this run, and E16 before it.
    let newer = read(&out, "run/01M8EYHS1A8YRZWT3CZ7WZ73CF/index.md");
    let row = newer.lines().find(|line| line.starts_with("| W19 |")).expect("a row");
    assert!(row.ends_with("| W16 |") && !newer.contains("| E16 |"), "{row}");
}
