//! Candidates of a gate that are no releases: a wheel and a container image of another engine, such as
//! those of a pull request, are compared with a release of it.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use schema::alternation::{Contender, OutputsCompared};
use schema::campaign::CampaignRecord;
use schema::canonical::sha256_hex;
use zip::write::SimpleFileOptions;

use crate::scratch::{Scratch, files_below};
use crate::venvs::engine;

const SAME: OutputsCompared = OutputsCompared { compared: 6, differ: 0 };
/// The memory of the stand-in's process is really measured, and would be part of the verdict; that of
/// a server of two processes is not known.
const WITHOUT_MEMORY: (&str, &str) = ("PEER_FAKE", "family");
const VERSION: &str = "0.9.3.dev1+g1a2b3c4";
const FILE: &str = "peer-0.9.3.dev1+g1a2b3c4-py3-none-any.whl";
const GATE: [&str; 4] = ["gate", "peer@v0.9.2", "--budget", "15s"];
/// File in the cache with the pinned packages of the release.
const PINS: &str = "venvs/peer/0.9.2/cpython-311-linux-x86_64/requirements.txt";
const IMAGE: [&str; 4] = ["--container", "podman", "--candidate-image", "peers/peer:pr-7"];

fn with_peer() -> Scratch {
    let scratch = Scratch::new();
    scratch.write("suite/engines/peer.toml", &engine());
    scratch
}

/// Writes a wheel whose metadata have this name and version; `text` makes its content another.
fn write_wheel(file: &Path, name: &str, version: &str, text: &str) {
    let mut zip = zip::ZipWriter::new(fs::File::create(file).unwrap());
    let metadata = format!("Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n\n{text}\n");
    zip.start_file("peer/__init__.py", SimpleFileOptions::default()).unwrap();
    zip.start_file(format!("{name}-{version}.dist-info/METADATA"), SimpleFileOptions::default())
        .unwrap();
    zip.write_all(metadata.as_bytes()).unwrap();
    zip.finish().unwrap();
}

/// Writes a wheel of the engine, and returns its path and its SHA-256.
fn wheel(scratch: &Scratch) -> (PathBuf, String) {
    let path = scratch.fixtures().join(FILE);
    write_wheel(&path, "peer", VERSION, "first");
    let sha256 = sha256_hex(&fs::read(&path).unwrap());
    (path, sha256)
}

/// Arguments of a gate for the wheel at `path`.
fn gate_of(path: &Path) -> Vec<&str> {
    [&GATE[..], &["--candidate-wheel", path.to_str().unwrap()]].concat()
}

/// The candidate in the record that the gate has written, and the Markdown text beside it.
fn recorded(scratch: &Scratch) -> (Contender, String) {
    let out = scratch.root().join("target/gate");
    let text = fs::read_to_string(out.join("campaign.json")).unwrap();
    assert!(!text.contains(scratch.cache().to_str().unwrap()), "a path is in the record");
    let record: CampaignRecord = serde_json::from_str(&text).unwrap();
    let [one] = record.alternations.as_slice() else { panic!("one cell") };
    assert_eq!((&*one.baseline.engine.release, one.baseline.engine.dirty), ("v0.9.2", Some(false)));
    (one.candidate.clone(), fs::read_to_string(out.join("diff.md")).unwrap())
}

#[test]
fn a_wheel_is_compared_with_a_release_and_the_record_has_its_hash() {
    let scratch = with_peer();
    scratch.write_slices(&format!("0.9.2-{VERSION}"), 125, SAME);
    let (path, sha256) = wheel(&scratch);
    // The plan pins the packages of the release; somebody then edits them.
    let plan = [&gate_of(&path)[..], &["--dry-run"]].concat();
    let unpinned = format!("{FILE}, to be installed, size unknown");
    scratch.run_with(&plan, &[("UV_FAKE", "yes")]).expect(0, &[&unpinned]);
    let pins = scratch.cache().join(PINS);
    let text = fs::read_to_string(&pins).unwrap();
    fs::write(&pins, text.replace("fire==0.7", "fire==0.8")).unwrap();

    let named = format!("peer v{VERSION}-dev, the wheel {FILE} (SHA-256 {})", &sha256[..10]);
    let ended = scratch.run_with(&gate_of(&path), &[WITHOUT_MEMORY]).expect(1, &[&named]);
    assert!(ended.stdout.starts_with("Hold: "), "{}", ended.stdout);
    let (candidate, markdown) = recorded(&scratch);
    let engine = candidate.engine;
    assert_eq!(engine.release, format!("v{VERSION}-dev"));
    let build = engine.build.unwrap();
    assert_eq!(build.wheel_sha256.as_ref(), Some(&sha256));
    assert_eq!((engine.dirty, build.patches), (None, None), "nothing is known of its source");
    let own = format!("peer=={VERSION}");
    assert_eq!(build.packages.unwrap(), ["fire==0.8", &own], "the others are the release's");
    let said = format!("is the wheel with the SHA-256 {sha256}");
    assert!(markdown.contains(&said) && !markdown.contains("packages differ"), "{markdown}");
    scratch.commits_nothing();

    // What was measured is kept, whatever is built in its place.
    fs::remove_file(&path).unwrap();
    write_wheel(&path, "peer", VERSION, "second");
    let other = scratch.run_with(&plan, &[]).expect(0, &[&unpinned]);
    assert!(!other.stdout.contains(&sha256[..10]), "{}", other.stdout);
    write_wheel(&path, "peer", VERSION, "first");
    scratch.run_with(&plan, &[]).expect(0, &[&format!("{FILE}, available (")]);
}

#[test]
fn a_wheel_that_needs_other_packages_gets_them_and_the_comparison_says_so() {
    let scratch = with_peer();
    scratch.write_equal_slices();
    let (path, _) = wheel(&scratch);
    let env = [WITHOUT_MEMORY, ("UV_FAKE", "yes"), ("WHEEL_FAKE", "newer")];
    let why = "does not take the packages of peer==0.9.2, and gets others: error: no solution";
    scratch.run_with(&gate_of(&path), &env).expect(0, &[why]);
    let (candidate, markdown) = recorded(&scratch);
    let packages = candidate.engine.build.unwrap().packages.unwrap();
    assert_eq!(packages, ["fire==0.8", &format!("peer=={VERSION}")]);
    assert!(markdown.contains("packages differ: fire 0.7 -> 0.8"), "{markdown}");
}

#[test]
fn a_plan_with_a_wheel_writes_nothing() {
    let scratch = with_peer();
    let (path, _) = wheel(&scratch);
    let plan = [&gate_of(&path)[..], &["--dry-run"]].concat();
    let shown = [
        "peer v0.9.2, in a virtual environment",
        "with the packages of v0.9.2 where it takes them",
        "packages   peer==0.9.2, to be installed by pip, size unknown",
        "never committed",
    ];
    scratch.run(&plan).expect(0, &shown);
    assert_eq!(scratch.calls(), "");
    assert!(files_below(&scratch.cache()).is_empty(), "{:?}", files_below(&scratch.cache()));
}

#[test]
fn a_file_that_is_no_wheel_of_the_package_is_refused() {
    let scratch = with_peer();
    let dir = scratch.fixtures();
    fs::write(dir.join("peer-1-py3-none-any.whl"), "no archive").unwrap();
    write_wheel(&dir.join("other-2-py3-none-any.whl"), "other", "2", "");
    write_wheel(&dir.join("peer.whl"), "peer", "3", "");
    write_wheel(&dir.join("peer-4-py3-none-any.whl"), "peer", "4 beta", "");
    for (file, said) in [
        ("none-1-py3-none-any.whl", "names no file"),
        ("peer-1-py3-none-any.whl", "is no wheel: "),
        ("other-2-py3-none-any.whl", "is a wheel of other, not of peer"),
        ("peer.whl", "is no wheel: the name of such a file is NAME-VERSION-"),
        ("peer-4-py3-none-any.whl", "is no wheel: `4 beta` is no version"),
    ] {
        scratch.run(&gate_of(&dir.join(file))).expect(2, &[file, said]);
    }
    let (path, _) = wheel(&scratch);
    let path = path.to_str().unwrap();
    let redline = ["gate", "--candidate-wheel", path];
    let compared = "a wheel is compared with a release of its package, and the baseline is redline";
    scratch.run(&redline).expect(2, &[compared, "hint: name a baseline such as `vllm@v0.11.0`"]);
    assert_eq!(scratch.calls(), "");
}

#[test]
fn an_image_is_compared_with_that_of_a_release_and_runs_by_its_digest() {
    let scratch = with_peer();
    scratch.write_slices("0.9.2-0.9.3.dev7", 125, SAME);
    let flags = [&GATE[..], &IMAGE].concat();
    let named = "peer pr-7-dev, the image peers/peer:pr-7 under podman";
    let planned = scratch.run(&[&flags[..], &["--dry-run"]].concat()).expect(0, &[named]);
    assert!(planned.stdout.contains(" peers/peer:pr-7 serve {model}"), "{}", planned.stdout);
    assert_eq!(scratch.calls(), "", "a plan pulls nothing");

    let ended = scratch.run(&flags).expect(1, &[]);
    assert!(ended.stdout.starts_with("Hold: "), "{}", ended.stdout);
    let (candidate, markdown) = recorded(&scratch);
    let digest = format!("sha256:{:064}", 7);
    let image = format!("peers/peer@{digest}");
    let engine = candidate.engine;
    assert_eq!((&*engine.release, engine.image_digest.as_ref()), ("pr-7-dev", Some(&digest)));
    let build = engine.build.unwrap();
    assert_eq!((build.image.as_ref(), build.wheel_sha256), (Some(&image), None));
    assert_eq!(build.source_url.as_deref(), Some("peer==0.9.3.dev7"));
    let argv = candidate.argv.unwrap().join(" ");
    assert!(argv.ends_with(&format!("{image} serve {{model}} --port {{port}}")), "{argv}");
    let said = format!("is the image with the digest {digest}, with peer==0.9.3.dev7");
    assert!(markdown.contains(&said), "{markdown}");
    scratch.commits_nothing();
}

#[test]
fn an_image_that_cannot_be_identified_or_compared_is_refused() {
    let scratch = with_peer();
    let flags = [&GATE[..], &IMAGE].concat();
    let undigested = [("PODMAN_FAKE", "undigested")];
    scratch.run_with(&flags, &undigested).expect(
        4,
        &["podman knows no digest of `peers/peer:pr-7`", "once it was pushed to a registry"],
    );
    assert!(scratch.pids("server.pids").is_empty(), "nothing was started");
    let of = |runtime, image| {
        [&GATE[..], &["--container", runtime, "--candidate-image", image, "--dry-run"]].concat()
    };
    let enroot = "enroot does not report the digest of `peers/peer:pr-7`";
    scratch.run(&of("enroot", "peers/peer:pr-7")).expect(2, &[enroot, "`NAME@sha256:...`"]);
    let digest = format!("peers/peer:pr-7@sha256:{:064}", 7);
    let named = format!("the image {digest} under enroot");
    scratch.run(&of("enroot", &digest)).expect(0, &["peer pr-7-dev", &named]);
    scratch.run(&of("podman", "a b")).expect(2, &["`a b` is no name of a container image"]);
    scratch.run(&[&GATE[..], &IMAGE[2..]].concat()).expect(2, &["--container <RUNTIME>"]);
    let redline = [&["gate"][..], &IMAGE].concat();
    let compared = "an image is compared with the image of a release, and the baseline is redline";
    scratch.run(&redline).expect(2, &[compared, "and `--container docker`"]);
}
