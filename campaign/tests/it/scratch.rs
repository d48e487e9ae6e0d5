//! Scratch clone for tests: two releases of a tiny engine, a suite with one tiny scenario, and
//! stand-ins for the other programs.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use schema::canonical::sha256_hex;
use schema::measurement::Measurement;
use schema::probe::Probe;
use schema::run::{Correctness, Metrics, RunRecord};
use tempfile::TempDir;
use zip::write::SimpleFileOptions;

const MODEL: &[u8] = b"weights of a tiny model";
const RAW_DATASET: &str =
    "[\n  {\n    \"id\": \"a\"\n  },\n  {\n    \"id\": \"b\"\n  },\n  {\n    \"i";
const DATASET: &str = "[\n  {\n    \"id\": \"a\"\n  },\n  {\n    \"id\": \"b\"\n  }\n]\n";

/// Sections of an engine file about the API of the stand-in server.
pub const SERVED: &str = r#"[ready]
route = "/health"
[info]
dialect = "redline"
route = "/server_info"
[cache]
[request]
route = "/v1/completions"
token_ids = true
ignore_eos = true
return_token_ids = false
[metrics]
"#;

/// How long a test waits for something that takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Scratch {
    dir: TempDir,
}

impl Scratch {
    /// Releases v0.9.1 and v0.9.2, then a working version.
    pub fn new() -> Self {
        let scratch = Self { dir: TempDir::new().unwrap() };
        fs::create_dir_all(scratch.root()).unwrap();
        fs::create_dir_all(scratch.fixtures()).unwrap();
        scratch.write_suite();
        scratch.write_second_scenario();
        scratch.write("Cargo.toml", "[workspace]\nresolver = \"3\"\nmembers = [\"engine\"]\n");
        scratch.write(".gitignore", "/target\n");
        let engine = concat!(env!("CARGO_MANIFEST_DIR"), "/../campaign/tests/stand-ins/engine.rs");
        scratch.write("engine/src/main.rs", &fs::read_to_string(engine).unwrap());
        scratch.git(&["init", "--quiet", "--initial-branch", "main"]);
        for version in ["0.9.0-dev", "0.9.1", "0.9.2-dev", "0.9.2", "0.9.3-dev"] {
            scratch.set_version(version);
            scratch.commit(&format!("version {version}"));
        }
        scratch.write_fixtures();
        scratch
    }

    pub fn root(&self) -> PathBuf {
        self.dir.path().join("clone")
    }

    pub fn fixtures(&self) -> PathBuf {
        self.dir.path().join("fixtures")
    }

    pub fn cache(&self) -> PathBuf {
        self.dir.path().join("cache")
    }

    pub fn write(&self, path: &str, text: &str) {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub fn set_version(&self, version: &str) {
        self.write(
            "engine/Cargo.toml",
            &format!(
                "[package]\nname = \"engine\"\nversion = \"{version}\"\nedition = \"2024\"\n\n\
                 [[bin]]\nname = \"redline\"\npath = \"src/main.rs\"\n"
            ),
        );
        self.write(
            "Cargo.lock",
            &format!("version = 4\n\n[[package]]\nname = \"engine\"\nversion = \"{version}\"\n"),
        );
    }

    pub fn commit(&self, message: &str) {
        self.git(&["add", "--all"]);
        self.git(&["commit", "--quiet", "--message", message]);
    }

    pub fn git(&self, args: &[&str]) -> String {
        let output = Command::new("git")
            .arg("-C")
            .arg(self.root())
            .args(["-c", "user.name=Test", "-c", "user.email=test@localhost"])
            .args(args)
            .output()
            .unwrap();
        assert!(output.status.success(), "git {args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The program's command with `args`, ready for more environment.
    pub fn command(&self, args: &[&str]) -> Command {
        let stand_ins = concat!(env!("CARGO_MANIFEST_DIR"), "/../campaign/tests/stand-ins");
        let path = format!("{stand_ins}:{}", std::env::var("PATH").unwrap());
        let mut command = Command::new(crate::PROGRAM);
        command
            .args(args)
            .args(["--tools-dir", stand_ins])
            .current_dir(self.root())
            .env("PATH", path)
            .env("FIXTURES", self.fixtures())
            .env("REAL_CARGO", std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .env(
                "ENGINE_SOURCE",
                concat!(env!("CARGO_MANIFEST_DIR"), "/../campaign/tests/stand-ins/engine.rs"),
            )
            .env("REDLINE_CACHE", self.cache())
            .env("CARGO_NET_OFFLINE", "true")
            .env_remove("CARGO_TARGET_DIR");
        command
    }

    pub fn run(&self, args: &[&str]) -> Ended {
        Ended::of(self.command(args).output().unwrap())
    }

    pub fn run_with(&self, args: &[&str], env: &[(&str, &str)]) -> Ended {
        Ended::of(self.command(args).envs(env.iter().copied()).output().unwrap())
    }

    /// Starts the command and waits until a process has written its id to a fixture file.
    pub fn start_until(&self, args: &[&str], env: &[(&str, &str)], pids: &str) -> Child {
        let mut command = self.command(args);
        command.envs(env.iter().copied()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        wait_for(&format!("`{pids}`"), || !self.pids(pids).is_empty());
        child
    }

    /// Process ids that the stand-ins have written.
    pub fn pids(&self, name: &str) -> Vec<u32> {
        let text = fs::read_to_string(self.fixtures().join(name)).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }

    /// Arguments with which the stand-ins were called, in order.
    pub fn calls(&self) -> String {
        fs::read_to_string(self.fixtures().join("calls")).unwrap_or_default()
    }

    /// Every run record below `dir`, by path.
    pub fn records(&self, dir: &Path) -> Vec<(PathBuf, RunRecord)> {
        let mut found = Vec::new();
        for path in files_below(&dir.join("runs")) {
            let text = fs::read_to_string(&path).unwrap();
            found.push((path, serde_json::from_str(&text).unwrap()));
        }
        found
    }

    /// The run records of the clone's registry.
    pub fn committed(&self) -> Vec<RunRecord> {
        let records = self.records(&self.root().join("results"));
        records.into_iter().map(|(_, record)| record).collect()
    }

    /// The folder of the one campaign that ran.
    pub fn campaign(&self) -> PathBuf {
        let dir = self.root().join("target/campaigns");
        let mut entries: Vec<PathBuf> =
            fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(entries.len(), 1, "{entries:?}");
        entries.remove(0)
    }

    fn write_suite(&self) {
        let engine = concat!(env!("CARGO_MANIFEST_DIR"), "/../suite/engines/redline.toml");
        let text = fs::read_to_string(engine).unwrap();
        self.write("suite/engines/redline.toml", &text.replace("timeout_s = 120", "timeout_s = 3"));
        let (model, raw, mended) =
            (sha256_hex(MODEL), sha256_hex(RAW_DATASET.as_bytes()), sha256_hex(DATASET.as_bytes()));
        self.write(
            "suite/models/tiny.toml",
            &format!(
                "sources = [{{ pip = \"tiny-model==1.0\", file = \"tiny/model.gguf\" }}]\n\
                 sha256 = \"{model}\"\nlicence = \"none\"\ntokenizer = \"embedded\"\n"
            ),
        );
        self.write(
            "suite/datasets/talk.toml",
            &format!(
                "sources = [{{ pip = \"tiny-talk==1.0\", file = \"talk/talk.json\" }}]\n\
                 sha256 = \"{raw}\"\nlicence = \"none\"\n\
                 repair = {{ method = \"close-json-array\", sha256 = \"{mended}\" }}\n"
            ),
        );
        let policy = concat!(env!("CARGO_MANIFEST_DIR"), "/../suite/policies/release.toml");
        let policy = fs::read_to_string(policy).unwrap();
        // A comparison in turns of the stand-ins takes seconds, not minutes.
        let policy = policy.replace("alternate_s = 300", "alternate_s = 10");
        self.write("suite/policies/release.toml", &policy);
        self.write(
            "suite/targets/cpu.toml",
            "match = {}\nscenarios = [\"talk-lite\"]\nrepeats = 2\n\
             gate_scenarios = [\"rung-lite\"]\n\
             models = [{ id = \"tiny\", tp = 1 }]\n",
        );
        self.write(
            "suite/scenarios/talk-lite.toml",
            "question = \"Does it talk?\"\nrev = 1\n\
             workload = { pack = \"sharegpt@lmdeploy\", dataset = \"talk\", requests = 2, seed = 1 }\n\
             warmup = { requests = 1, from = \"disjoint\" }\narrival = { kind = \"all-at-once\" }\n\
             output = { ignore_eos = true, temperature = 0.0 }\ntier = \"lite\"\n",
        );
    }

    /// Writes a scenario of the concurrency sweep, which runs only where releases are compared.
    fn write_second_scenario(&self) {
        self.write(
            "suite/scenarios/rung-lite.toml",
            "question = \"How soon does it talk?\"\nrev = 1\n\
             workload = { pack = \"sharegpt@lmdeploy\", dataset = \"talk\", requests = 2, seed = 1 }\n\
             warmup = { requests = 1, from = \"disjoint\" }\n\
             arrival = { kind = \"closed\", concurrency = 1 }\n\
             output = { ignore_eos = true, temperature = 0.0 }\ntier = \"lite\"\n",
        );
    }

    fn write_fixtures(&self) {
        self.write_wheel("tiny-model", "tiny/model.gguf", MODEL);
        self.write_wheel("tiny-talk", "talk/talk.json", RAW_DATASET.as_bytes());
        self.write_probe(&Probe { schema: "probe.v1".into(), ..Probe::default() });
        let measurement = Measurement {
            schema: "measurement.v1".into(),
            correctness: Some(outputs()),
            ..Measurement::default()
        };
        let text = serde_json::to_string(&measurement).unwrap();
        fs::write(self.fixtures().join("measurement.json"), text).unwrap();
    }

    pub fn write_probe(&self, probe: &Probe) {
        let text = serde_json::to_string(probe).unwrap();
        fs::write(self.fixtures().join("probe.json"), text).unwrap();
    }

    /// Writes the metrics that the load generator's stand-in reports for a server of this speed.
    pub fn write_speed(&self, speed: &str, tokens_per_s: f64) {
        let metrics = Metrics {
            output_tokens_per_s: Some(tokens_per_s),
            total_tokens_per_s: Some(tokens_per_s),
            ..Metrics::default()
        };
        let measurement = Measurement {
            schema: "measurement.v1".into(),
            correctness: Some(outputs()),
            metrics: Some(metrics),
            ..Measurement::default()
        };
        let text = serde_json::to_string(&measurement).unwrap();
        fs::write(self.fixtures().join(format!("measurement-{speed}.json")), text).unwrap();
    }

    pub fn write_wheel(&self, package: &str, member: &str, bytes: &[u8]) {
        let file = fs::File::create(self.fixtures().join(format!("{package}.whl"))).unwrap();
        let mut zip = zip::ZipWriter::new(file);
        zip.start_file(member, SimpleFileOptions::default()).unwrap();
        zip.write_all(bytes).unwrap();
        zip.finish().unwrap();
    }
}

/// Returns the output check that every stand-in passes: a figure without one is in no comparison.
fn outputs() -> Correctness {
    let digest = Some("a digest of the outputs".to_owned());
    Correctness { prompts: Some(4), tokens_sha256: digest, ..Correctness::default() }
}

/// Exit code and output of a finished command.
pub struct Ended {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    pub fn of(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    #[track_caller]
    pub fn expect(self, code: i32, needles: &[&str]) -> Self {
        let Self { stdout, stderr, .. } = &self;
        assert_eq!(self.code, Some(code), "stdout:\n{stdout}\nstderr:\n{stderr}");
        for needle in needles {
            let said = stderr.contains(needle) || stdout.contains(needle);
            assert!(said, "no `{needle}` in\nstdout:\n{stdout}\nstderr:\n{stderr}");
        }
        self
    }
}

/// Ends a started command by a signal and returns how it ended.
pub fn signal(child: Child, name: &str) -> Ended {
    let sent = Command::new("kill").args(["-s", name, &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    Ended::of(child.wait_with_output().unwrap())
}

pub fn is_alive(pid: u32) -> bool {
    // A zombie is dead: it only waits for its parent.
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    !status.is_empty() && !status.contains("State:\tZ")
}

#[track_caller]
pub fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub fn files_below(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() { files.extend(files_below(&path)) } else { files.push(path) }
    }
    files.sort();
    files
}
