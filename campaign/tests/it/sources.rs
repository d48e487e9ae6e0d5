//! Releases of an engine that is built from source distributions: each is downloaded by its own hash
//! and built once.

use std::fs;
use std::process::Command;

use schema::canonical::sha256_hex;

use crate::scratch::{SERVED, Scratch};

/// Creates a scratch clone whose suite has the engine `built`, with the pinned releases 1.1 and 1.0.
fn with_sources() -> Scratch {
    let scratch = Scratch::new();
    let [newest, older] = ["1.1", "1.0"].map(|version| {
        let folder = format!("built-{version}");
        let dir = scratch.fixtures().join(&folder);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("CMakeLists.txt"), "project(built)\n").unwrap();
        fs::write(dir.join("VERSION"), version).unwrap();
        let archive = format!("built_bin-{version}.tar.gz");
        let mut tar = Command::new("tar");
        tar.args(["-czf", &archive, &folder]).current_dir(scratch.fixtures());
        assert!(tar.status().unwrap().success());
        let sha256 = sha256_hex(&fs::read(scratch.fixtures().join(archive)).unwrap());
        format!("{{ version = \"{version}\", sha256 = \"{sha256}\" }}")
    });
    scratch.write(
        "suite/engines/built.toml",
        &format!(
            r#"
title = "Built"
[launch]
argv = ["{{binary}}", "serve", "{{model}}", "--port", "{{port}}"]
load = ["--slots=9"]
timeout_s = 3
{SERVED}[source]
package = "built-bin"
file = "built_bin-{{version}}.tar.gz"
licence = "none"
folder = "built-{{version}}"
cmake = ["CMAKE_BUILD_TYPE=Release", "BUILD_NUMBER={{major}}"]
programs = ["peer-server", "peer-tool"]
newest = {newest}
older = [{older}]
"#
        ),
    );
    scratch
}

#[test]
fn two_pinned_releases_are_built_and_measured_side_by_side() {
    let scratch = with_sources();
    scratch.write_speed("1.0", 100.0);
    scratch.write_speed("1.1", 120.0);
    let both = [
        "release-bench",
        "--engine",
        "built",
        "v1.1",
        "--baseline",
        "v1.0",
        "--no-confirm",
        "--scenario=talk-lite",
        "--repeats",
        "2",
    ];
    scratch.run(&both).expect(
        3,
        &[
            "built v1.0, built from built-bin==1.0",
            "built v1.1, built from built-bin==1.1",
            "the table of v1.0",
        ],
    );
    let records = scratch.committed();
    assert_eq!(records.len(), 4);
    for record in &records {
        let (sdist, speed) = match record.engine.release.as_str() {
            "v1.0" => ("built-bin==1.0", 100.0),
            "v1.1" => ("built-bin==1.1", 120.0),
            other => panic!("{other}"),
        };
        let metrics = record.metrics.as_ref().unwrap();
        assert_eq!(metrics.output_tokens_per_s, Some(speed), "its own program served");
        let build = record.engine.build.as_ref().unwrap();
        assert_eq!(build.source_url.as_deref(), Some(sdist));
        let features = record.engine.features.as_deref().unwrap();
        assert_eq!(features, ["CMAKE_BUILD_TYPE=Release", "BUILD_NUMBER=1"]);
        let argv = record.server.as_ref().unwrap().argv.as_ref().unwrap().join(" ");
        assert!(argv.ends_with("--slots=9"), "{argv}");
    }
    let hash = |release: &str| {
        let mut of_release = records.iter().filter(|record| record.engine.release == release);
        of_release.next().unwrap().engine.binary_sha256.clone().unwrap()
    };
    assert_ne!(hash("v1.0"), hash("v1.1"));
    scratch.run(&both).expect(3, &[]);
    let calls = scratch.calls();
    for archive in ["built_bin-1.0.tar.gz", "built_bin-1.1.tar.gz"] {
        assert_eq!(calls.matches(archive).count(), 1, "{calls}");
    }
    assert_eq!(calls.matches("cmake --build").count(), 2, "{calls}");
}

#[test]
fn the_newest_pinned_release_is_the_default_and_no_other_is_built() {
    let scratch = with_sources();
    let plan = ["release-bench", "--engine", "built", "--dry-run"];
    scratch.run(&plan).expect(0, &["built v1.1, built from built-bin==1.1"]);
    scratch.run(&[&plan[..], &["v0.9"]].concat()).expect(
        2,
        &["`suite/engines/built.toml` builds built 1.1 and 1.0, not `v0.9`", "`[source] older`"],
    );
    assert_eq!(scratch.calls(), "");
}
