//! Tests of signed bundles: `export --bundle`, `submit check` and `submit accept`, on two clones with
//! the real git and the real `ssh-keygen`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use samples::submission::{Machine, campaign};
use schema::canonical::{sha256_hex, to_file_text};
use schema::path::{of_campaign, of_run};
use schema::submission::{NAMESPACE, SubmissionBundle, SubmissionManifest, SubmittedFile};

use crate::scratch::{Answer, Scratch, write};

/// Name of the submitter in the tests.
const ADA: &str = "ada@example.org";

/// Registry of a submitter with a made-up campaign, and the key that signs.
struct Submitter {
    scratch: Scratch,
    key: PathBuf,
}

impl Submitter {
    fn new() -> Self {
        Self::with(Scratch::new())
    }

    fn with(scratch: Scratch) -> Self {
        let (runs, record) = campaign(Machine::Cpu, 1);
        let staged = scratch.staged("measured", &runs);
        let text = to_file_text(&record).unwrap();
        write(&staged.join(of_campaign(&record).unwrap()), &text);
        assert_eq!(scratch.record(&staged).code, 0);
        let key = scratch.path("../key");
        let mut keygen = Command::new("ssh-keygen");
        keygen.args(["-q", "-t", "ed25519", "-N", "", "-C", "", "-f"]).arg(&key);
        assert!(keygen.status().unwrap().success());
        Self { scratch, key }
    }

    /// Makes a bundle of all runs, with further flags.
    fn export(&self, flags: &[&str]) -> PathBuf {
        let out = self.scratch.path("../bundle.json");
        let (key, file) = (self.key.to_str().unwrap(), out.to_str().unwrap());
        let words = ["export", "--bundle", file, "--sign", key, "--submitter", ADA];
        let answer = self.scratch.results(&[&words[..], flags].concat());
        assert_eq!(answer.code, 0, "{answer:?}");
        out
    }

    /// Writes a list of allowed signers with the submitter's key under `name`.
    fn signers(&self, name: &str) -> PathBuf {
        let public = fs::read_to_string(self.key.with_extension("pub")).unwrap();
        let list = self.scratch.path("../signers");
        fs::write(&list, format!("# maintainers\n{name} namespaces=\"{NAMESPACE}\" {public}"))
            .unwrap();
        list
    }
}

fn submit(registry: &Scratch, words: [&str; 2], signers: &Path, flags: &[&str]) -> Answer {
    let [action, bundle] = words;
    let words = ["submit", action, bundle, "--signers", signers.to_str().unwrap()];
    let words = [&words[..], flags].concat();
    if action == "accept" { registry.rendering(&words) } else { registry.results(&words) }
}

#[test]
fn a_bundle_made_on_one_machine_is_accepted_on_another() {
    let origin = Scratch::new();
    let remote = origin.publish();
    let submitter = Submitter::with(Scratch::clone_of(&remote));
    let maintainer = Scratch::clone_of(&remote);
    let (bundle, signers) = (submitter.export(&[]), submitter.signers(ADA));
    let bundle = bundle.to_str().unwrap();
    let checked = submit(&maintainer, ["check", bundle], &signers, &[]);
    assert_eq!(checked.code, 0, "{checked:?}");
    assert!(checked.out.contains("submission: 1 campaigns, 12 runs"), "{checked:?}");
    assert!(checked.out.ends_with("verdict: sound\n"), "{checked:?}");
    let before = maintainer.git(&["rev-parse", "HEAD"]);
    assert_eq!(maintainer.state(), ["", "", ""].map(str::to_owned), "a check changes nothing");

    let accepted = submit(&maintainer, ["accept", bundle], &signers, &[]);
    assert_eq!(accepted.code, 0, "{accepted:?}");
    assert_eq!(maintainer.git(&["rev-parse", "HEAD^"]), before, "one commit");
    let message = maintainer.git(&["log", "-1", "--format=%B"]);
    assert!(message.starts_with("submission: 12 runs of ada@example.org\n\nSigned with"));
    let public = submitter.key.with_extension("pub");
    let print = Command::new("ssh-keygen").arg("-lf").arg(&public).output().unwrap();
    let print = String::from_utf8(print.stdout).unwrap();
    let print = print.split_whitespace().nth(1).unwrap().to_owned();
    assert!(message.contains(&print), "{message} has no {print}");
    for run in campaign(Machine::Cpu, 1).0 {
        let path = format!("HEAD:results/{}", of_run(&run).unwrap());
        assert_eq!(maintainer.git(&["show", &path]), to_file_text(&run).unwrap());
    }
    assert_eq!(maintainer.state(), ["", "", ""].map(str::to_owned));
    assert_eq!(maintainer.results(&["check"]).code, 0);
    // A second time nothing is new.
    let again = submit(&maintainer, ["accept", bundle], &signers, &[]);
    assert_eq!(again.code, 0, "{again:?}");
    assert!(again.out.contains("nothing new: main holds all 14 files"), "{again:?}");
}

#[test]
fn openssh_verifies_the_manifest_of_a_bundle() {
    let submitter = Submitter::new();
    let text = fs::read_to_string(submitter.export(&[])).unwrap();
    let bundle: SubmissionBundle = serde_json::from_str(&text).unwrap();
    let signature = submitter.scratch.path("../manifest.sig");
    fs::write(&signature, &bundle.signature).unwrap();
    let verify = |manifest: &str| {
        let mut command = Command::new("ssh-keygen");
        command.args(["-Y", "verify", "-n", NAMESPACE, "-I", ADA, "-f"]);
        command.arg(submitter.signers(ADA)).arg("-s").arg(&signature);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), manifest.as_bytes()).unwrap();
        child.wait().unwrap().success()
    };
    assert!(verify(&bundle.manifest));
    assert!(!verify(&bundle.manifest.replacen('a', "b", 1)));
}

#[test]
fn a_bundle_of_somebody_else_is_refused() {
    let submitter = Submitter::new();
    let maintainer = Scratch::new();
    let bundle = submitter.export(&[]);
    let bundle = bundle.to_str().unwrap();
    let named = submit(&maintainer, ["accept", bundle], &submitter.signers("eve@*"), &[]);
    assert_eq!((named.code, maintainer.files().len()), (2, 1), "{named:?}");
    assert!(named.out.contains("breach B03"), "{named:?}");
    // Without a list the signature is verified, and the answer says that the key is not known.
    let unlisted = maintainer.results(&["submit", "check", bundle]);
    assert_eq!(unlisted.code, 0, "{unlisted:?}");
    assert!(unlisted.out.contains("not compared with a list of signers"), "{unlisted:?}");
    // A bundle in another's name, without a new signature.
    let text = fs::read_to_string(bundle).unwrap().replace(ADA, "eve@example.org");
    fs::write(bundle, text).unwrap();
    let renamed = submit(&maintainer, ["check", bundle], &submitter.signers("*"), &[]);
    assert_eq!(renamed.code, 2, "{renamed:?}");
    assert!(renamed.out.contains("the signature does not hold"), "{renamed:?}");
}

#[test]
fn remarks_leave_the_decision_to_the_maintainer() {
    let submitter = Submitter::new();
    let maintainer = Scratch::new();
    let id = &campaign(Machine::Cpu, 1).0[4].id;
    let words = ["retract", id, "--reason", "The machine was busy."];
    let retracted = submitter.scratch.rendering(&words);
    assert_eq!(retracted.code, 0, "{retracted:?}");
    let (bundle, signers) = (submitter.export(&[]), submitter.signers(ADA));
    let bundle = bundle.to_str().unwrap();
    let checked = submit(&maintainer, ["check", bundle], &signers, &["--format", "json"]);
    assert_eq!(checked.code, 3, "{checked:?}");
    let answer: serde_json::Value = serde_json::from_str(&checked.out).unwrap();
    assert_eq!((&answer["verdict"], &answer["withheld"]), (&"doubtful".into(), &1.into()));
    let refused = submit(&maintainer, ["accept", bundle], &signers, &[]);
    assert_eq!((refused.code, maintainer.files().len()), (3, 1), "{refused:?}");
    let words = ["--despite", "The log shows it."];
    let accepted = submit(&maintainer, ["accept", bundle], &signers, &words);
    assert_eq!(accepted.code, 0, "{accepted:?}");
    let message = maintainer.git(&["log", "-1", "--format=%B"]);
    assert!(message.contains("Accepted despite remarks (B11): The log shows it."), "{message}");
}

#[test]
fn a_selection_takes_whole_cells_and_nothing_is_no_bundle() {
    let submitter = Submitter::new();
    let maintainer = Scratch::new();
    let signers = submitter.signers(ADA);
    for (flags, runs) in [
        (&["--release", "v0.9.2"][..], 6),
        (&["--scenario", "balanced-lite@1", "--release", "0.9.1"], 3),
    ] {
        let bundle = submitter.export(flags);
        let checked = submit(&maintainer, ["check", bundle.to_str().unwrap()], &signers, &[]);
        assert_eq!(checked.code, 0, "{checked:?}");
        assert!(checked.out.contains(&format!("{runs} runs")), "{checked:?}");
        let table = submitter.scratch.results(&[&["export", "--csv"], flags].concat());
        assert_eq!(table.out.lines().count(), runs + 1, "{table:?}");
    }
    let key = submitter.key.to_str().unwrap();
    for (flags, code) in [
        (&["--engine", "vllm", "--sign", key, "--submitter", ADA][..], 2),
        (&["--sign", key, "--submitter", "Ada Lovelace"], 2),
        (&["--sign", "no-such-key", "--submitter", ADA], 4),
        (&["--submitter", ADA], 2),
    ] {
        let out = submitter.scratch.path("../none.json");
        let words = ["export", "--bundle", out.to_str().unwrap()];
        let answer = submitter.scratch.results(&[&words[..], flags].concat());
        assert_eq!((answer.code, out.exists()), (code, false), "{flags:?}: {answer:?}");
    }
}

#[test]
fn a_hostile_bundle_is_refused_and_nothing_is_written() {
    let submitter = Submitter::new();
    let maintainer = Scratch::new();
    let signers = submitter.signers(ADA);
    let bundle = submitter.export(&["--release", "v0.9.1"]);
    let text = fs::read_to_string(&bundle).unwrap();
    let sound: SubmissionBundle = serde_json::from_str(&text).unwrap();
    let name = bundle.to_str().unwrap();
    type Change = fn(&mut SubmissionBundle);
    let changes: [(&str, Change); 9] = [
        ("no path below", |it| it.files[0].path = "../../.git/hooks/post-commit".to_owned()),
        ("no path below", |it| it.files[0].path = "runs/../a/b/c/d/e/f.json".to_owned()),
        ("no path below", |it| it.files[0].path = format!("runs/{}", "a/".repeat(400))),
        ("only run, kernel", |it| it.files[0].path = "events/2026/01.toml".to_owned()),
        ("only run, kernel", |it| it.files[0].path = "README.md".to_owned()),
        ("has it twice", |it| it.files.push(it.files[1].clone())),
        ("does not name it", |it| {
            let path = "kernels/e/v1/h/x.json".to_owned();
            it.files.push(SubmittedFile { path, text: String::new() });
        }),
        ("not the file that was signed", |it| it.files[1].text.push(' ')),
        ("the bundle lacks it", |it| drop(it.files.pop())),
    ];
    for (why, change) in changes {
        let mut changed = sound.clone();
        change(&mut changed);
        fs::write(&bundle, to_file_text(&changed).unwrap()).unwrap();
        let answer = submit(&maintainer, ["accept", name], &signers, &[]);
        assert_eq!(answer.code, 2, "{why}: {answer:?}");
        assert!(answer.out.contains(why), "{why}: {answer:?}");
    }
    for text in ["", "{}", "[[[[[[", &"[".repeat(100_000), "{\"schema\":\"submission.v9\"}"] {
        fs::write(&bundle, text).unwrap();
        let answer = submit(&maintainer, ["accept", name], &signers, &[]);
        assert_eq!(answer.code, 2, "{answer:?}");
    }
    // A message quotes little of a value of another kind than the manifest has.
    let mut manifest: serde_json::Value = serde_json::from_str(&sound.manifest).unwrap();
    manifest["files"] = "A".repeat(100_000).into();
    let changed = SubmissionBundle { manifest: manifest.to_string(), ..sound };
    fs::write(&bundle, to_file_text(&changed).unwrap()).unwrap();
    for action in ["check", "accept"] {
        let answer = submit(&maintainer, [action, name], &signers, &[]);
        assert_eq!(answer.code, 2, "{action}");
        let said = answer.out.len() + answer.err.len();
        assert!(said < 2000, "{action}: {said} bytes");
    }
    // A file of a terabyte is refused by its length.
    fs::File::create(&bundle).unwrap().set_len(1 << 40).unwrap();
    let answer = submit(&maintainer, ["accept", name], &signers, &[]);
    assert!(answer.code == 2 && answer.err.contains("it has more than"), "{answer:?}");
    assert_eq!(maintainer.files().len(), 1);
    assert_eq!(maintainer.state(), ["", "", ""].map(str::to_owned));
}

#[test]
fn a_record_that_contradicts_the_registry_is_refused() {
    let submitter = Submitter::new();
    let maintainer = Scratch::new();
    let (bundle, signers) = (submitter.export(&[]), submitter.signers(ADA));
    let bundle = bundle.to_str().unwrap();
    assert_eq!(submit(&maintainer, ["accept", bundle], &signers, &[]).code, 0);
    // The same run with another figure, sealed and signed again.
    let mut run = campaign(Machine::Cpu, 1).0.remove(0);
    run.memory.as_mut().unwrap().rss_bytes_max = Some(1);
    let run = samples::reseal(run);
    let file = submitter.scratch.path(&format!("results/{}", of_run(&run).unwrap()));
    fs::write(file, to_file_text(&run).unwrap()).unwrap();
    let changed = submitter.export(&[]);
    let checked = submit(&maintainer, ["check", changed.to_str().unwrap()], &signers, &[]);
    assert_eq!(checked.code, 2, "{checked:?}");
    assert!(checked.out.contains("breach S06"), "{checked:?}");
}

#[test]
fn the_records_of_this_repository_break_no_rule_about_figures_and_times() {
    let submitter = Submitter::new();
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    let maintainer = Scratch::new();
    let out = maintainer.path("../own.json");
    let run = |words: &[&str], registry: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_redline-results"));
        let output = command.args(words).arg("--registry").arg(registry).output().unwrap();
        assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let (key, file) = (submitter.key.to_str().unwrap(), out.to_str().unwrap());
    run(&["export", "--bundle", file, "--sign", key, "--submitter", ADA], &root);
    let text = run(&["submit", "check", file, "--format", "json"], &maintainer.repo());
    let answer: serde_json::Value = serde_json::from_str(&text).unwrap();
    let findings = answer["findings"].as_array().unwrap();
    // Runs of other engines fail quality rules: no outputs, or a wrong source of chunk counts.
    let others: Vec<_> = findings.iter().filter(|finding| finding["rule"] != "B05").collect();
    assert!(others.is_empty(), "{others:#?}");
}

#[test]
fn a_manifest_names_each_file_by_its_hash() {
    let submitter = Submitter::new();
    let text = fs::read_to_string(submitter.export(&[])).unwrap();
    let bundle: SubmissionBundle = serde_json::from_str(&text).unwrap();
    let manifest: SubmissionManifest = serde_json::from_str(&bundle.manifest).unwrap();
    assert_eq!(manifest.files.len(), bundle.files.len());
    for (entry, file) in manifest.files.iter().zip(&bundle.files) {
        let text = file.text.as_bytes();
        assert_eq!((&entry.path, entry.bytes), (&file.path, text.len() as u64));
        assert_eq!(entry.sha256, sha256_hex(text));
    }
}
