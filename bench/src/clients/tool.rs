//! The compared clients, behind one interface: installation, command line, accepted exit codes, and
//! reported times.
//!
//! Redline's load generator is given an engine file for the mock server, a small tokenizer, and one
//! line per request, whose prompt begins with the request's number.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::ValueEnum;
use schema::emitted::Emitted;
use schema::measurement::Measurement;
use schema::model::InputSource;
use schema::run::Summary;
use schema::samples::{Line, Sample};
use serde_json::Value;
use tempfile::TempDir;

use crate::clients::testbed::{Load, Peers, Spread, Testbed, read_lines};
use crate::float;
use campaign::files::{FileError, make_dir, read_text, write_whole};
use campaign::inputs::Input;
use campaign::process::capture;
use campaign::stop::Stop;
use campaign::tools::FLOOR;
use campaign::world::World;

/// Load generator that takes part in the client comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Tool {
    /// Redline's own load generator, `redline-bench`.
    Redline,
    /// SGLang's benchmark client, a Rust extension module in its wheel.
    #[value(name = "sglang-bench")]
    Sglang,
    Aiperf,
    /// The raw-socket client `redline-floor`, which does the least possible work.
    Floor,
}

/// Times and verdict that a client reports after a measurement.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reported {
    pub ttft: Spread,
    pub gaps: Spread,
    /// Statistics that the client reports of the time by which its requests were sent after their
    /// scheduled times.
    pub lag: Spread,
    /// Verdict of a client that judges itself: `valid`, `degraded` or `invalid`; `None` for clients
    /// that do not.
    pub verdict: Option<String>,
    /// Reasons of the client for its verdict on the run, in the client's words.
    pub reasons: Vec<String>,
}

impl Tool {
    pub const ALL: [Self; 4] = [Self::Redline, Self::Sglang, Self::Aiperf, Self::Floor];

    pub fn id(self) -> &'static str {
        match self {
            Self::Redline => "redline-bench",
            Self::Sglang => "sglang-bench",
            Self::Aiperf => "aiperf",
            Self::Floor => "floor",
        }
    }

    /// Command-line arguments with which the client sends a load to a mock server: those for every
    /// load, those added for a load sent at once, and those added for a load with a rate.
    fn arguments(self) -> [&'static str; 3] {
        match self {
            // The fixed prompts of the output check mean nothing to a server without a model.
            Self::Redline => [
                "--url http://{address} --engine emitter.toml --scenario load.toml \
                 --dataset rows.jsonl --tokenizer tokenizer.json --no-output-check \
                 --progress none --out redline.json",
                "",
                "",
            ],
            // Without a tokenizer the client does not tokenize the answers again.
            Self::Sglang => [
                "--backend sglang-oai --base-url http://{address} --dataset-name random-ids \
                 --random-range-ratio 1 --random-input-len 8 --random-output-len {tokens} \
                 --num-prompts {requests} --warmup-requests 0 --model emitter --tokenizer none \
                 --vocab-size 1000 --tokenize-prompt --disable-tqdm --output-file sglang.json",
                "",
                "--request-rate {rate}",
            ],
            Self::Aiperf => [
                "profile --model emitter --url http://{address} --endpoint-type completions \
                 --streaming --tokenizer {folder}/tokenizer --input-file aiperf.jsonl \
                 --custom-dataset-type single_turn --extra-inputs max_tokens:{tokens} \
                 --request-count {requests} --use-server-token-count --no-server-metrics \
                 --no-gpu-telemetry --ui-type none --output-artifact-dir aiperf",
                "--concurrency {requests}",
                "--request-rate {rate}",
            ],
            Self::Floor => [
                "--address {address} --tokens {tokens}",
                "--streams {requests}",
                "--streams {connections} --requests-per-s {rate} --requests {requests}",
            ],
        }
    }

    /// Builds the command line with which the client sends `load` to the mock server at `address`,
    /// and writes its input files.
    ///
    /// # Errors
    /// The client is not installed, or an input file cannot be written.
    pub fn command(
        self,
        testbed: &Testbed<'_>,
        load: &Load,
        address: &str,
    ) -> Result<Command, Stop> {
        let peers = &testbed.peers;
        let missing = || Stop::environment(format!("{} is not installed", self.id()));
        let mut command = match self {
            Self::Redline => {
                write_inputs(&testbed.dir, load)?;
                testbed.world.tools.bench("run")
            }
            Self::Sglang => {
                let module = peers.sglang.as_ref().ok_or_else(missing)?;
                // The client appends to an existing result file.
                let _ = fs::remove_file(testbed.path("sglang.json"));
                let mut command = Command::new(PYTHON);
                command.args(["-c", LOADER]).arg(module);
                command
            }
            Self::Aiperf => {
                let program = peers.aiperf.as_ref().ok_or_else(missing)?;
                write_aiperf_inputs(testbed, load)?;
                Command::new(program)
            }
            Self::Floor => Command::new(testbed.world.tools.path(FLOOR)),
        };
        let [all, at_once, at_rate] = self.arguments();
        let more = if load.requests_per_s.is_some() { at_rate } else { at_once };
        let fill = |word: &str| {
            word.replace("{address}", address)
                .replace("{folder}", &testbed.dir.to_string_lossy())
                .replace("{tokens}", &load.tokens.to_string())
                .replace("{requests}", &load.requests.to_string())
                .replace("{connections}", &load.requests.min(CONNECTIONS).to_string())
                .replace("{rate}", &load.requests_per_s.unwrap_or(0).to_string())
        };
        command.args(all.split_whitespace().chain(more.split_whitespace()).map(fill));
        Ok(command)
    }

    /// True for an exit code with which the client still leaves results: `redline-bench` ends with
    /// 1 when it judges its run invalid.
    pub fn may_end_with(self, code: Option<i32>) -> bool {
        code == Some(0) || (self == Self::Redline && code == Some(1))
    }

    /// True when the client only sends under `load` and reads no answers.
    pub fn only_sends(self, load: &Load) -> bool {
        self == Self::Floor && load.requests_per_s.is_some()
    }

    /// Reads the times and the verdict from the result file that the client left.
    ///
    /// # Errors
    /// A result file is missing or has another format, or the results are not those of the whole
    /// load. The error is a phrase that continues a message after the client's name.
    pub fn read(self, testbed: &Testbed<'_>, load: &Load) -> Result<Reported, String> {
        // File, pointers to mean, deviation and p99 of TTFT, gaps and lag, and the unit in microseconds.
        let (file, pointers, unit_us) = match self {
            Self::Redline => return read_redline(testbed, load),
            Self::Sglang => ("sglang.json", ["/{}_ttft_ms", "/{}_itl_ms", ""], 1000.0),
            // AIPerf's `inter_token_latency` is one mean per request; `inter_chunk_latency` contains
            // every gap.
            Self::Aiperf => (
                "aiperf/profile_export_aiperf.json",
                ["/time_to_first_token/{}", "/inter_chunk_latency/{}", ""],
                1000.0,
            ),
            Self::Floor => ("client.out", ["/ttft_us/{}", "/itl_us/{}", "/lag_us/{}"], 1.0),
        };
        let text = read_text(&testbed.path(file)).map_err(|_| format!("left no `{file}`"))?;
        let document: Value = serde_json::from_str(&text)
            .map_err(|error| format!("left a `{file}` of another form: {error}"))?;
        let mean = if self == Self::Aiperf { "avg" } else { "mean" };
        let [ttft, gaps, lag] = pointers.map(|pointer| {
            let us =
                |name| Some(document.pointer(&pointer.replace("{}", name))?.as_f64()? * unit_us);
            Spread { mean_us: us(mean), std_us: us("std"), p99_us: us("p99") }
        });
        Ok(Reported { ttft, gaps, lag, ..Reported::default() })
    }
}

/// Limit on the number of connections that the raw-socket client uses in turn when it only sends:
/// enough that a connection is idle again before its next request.
const CONNECTIONS: u64 = 256;

/// Text of the Python script that loads the module inside SGLang's wheel and calls it as SGLang's
/// own package does. CPython 3.11 loads the module without SGLang's other packages.
const LOADER: &str = "\
import importlib.machinery as m, importlib.util as u, sys
loader = m.ExtensionFileLoader('_bench', sys.argv[1])
module = u.module_from_spec(u.spec_from_file_location('_bench', sys.argv[1], loader=loader))
loader.exec_module(module)
module.run_argv(['sglang-bench'] + sys.argv[2:])
";

/// Writes the tokenizer and prompt files that AIPerf reads, and removes its earlier results.
fn write_aiperf_inputs(testbed: &Testbed<'_>, load: &Load) -> Result<(), Stop> {
    let class = r#"{"tokenizer_class":"PreTrainedTokenizerFast","model_max_length":4096}"#;
    write_whole(&testbed.path("tokenizer/tokenizer.json"), tokenizer().as_bytes())?;
    write_whole(&testbed.path("tokenizer/tokenizer_config.json"), class.as_bytes())?;
    let rows =
        "{\"text\":\"t t t t t t t t\"}\n".repeat(usize::try_from(load.requests).unwrap_or(0));
    write_whole(&testbed.path("aiperf.jsonl"), rows.as_bytes())?;
    // Results of an earlier measurement must not be read as this one's.
    let _ = fs::remove_dir_all(testbed.path("aiperf"));
    Ok(())
}

const ENGINE: &str = include_str!("emitter.toml");
/// Number of words in the tokenizer in addition to the one word that the mock server sends.
const WORDS: usize = 64;

/// Writes the engine file, tokenizer, scenario and prompts that `redline-bench run` is given.
///
/// # Errors
/// A file cannot be written.
fn write_inputs(dir: &Path, load: &Load) -> Result<(), Stop> {
    let arrival = match load.requests_per_s {
        None => r#"{ kind = "all-at-once" }"#.to_owned(),
        Some(rate) => format!(r#"{{ kind = "constant", requests_per_s = {rate}.0 }}"#),
    };
    let scenario = format!(
        "question = \"What does the client itself cost?\"\nrev = 1\n\
         workload = {{ pack = \"jsonl\", dataset = \"rows\", requests = {}, seed = 1 }}\n\
         warmup = {{ requests = 1, from = \"disjoint\", output_tokens_max = 1 }}\n\
         arrival = {arrival}\noutput = {{ ignore_eos = true, temperature = 0.0 }}\n\
         tier = \"lite\"\ncache = {{ state = \"unknown\" }}\n",
        load.requests
    );
    let mut rows = String::new();
    // One additional row is for the warm-up.
    for number in 1..=load.requests + 1 {
        let tokens = load.tokens;
        let _ = writeln!(rows, r#"{{"prompt":[{number},2,3,4],"output_tokens":{tokens}}}"#);
    }
    let files = [
        ("emitter.toml", ENGINE),
        ("tokenizer.json", &*tokenizer()),
        ("load.toml", &*scenario),
        ("rows.jsonl", &*rows),
    ];
    for (name, text) in files {
        write_whole(&dir.join(name), text.as_bytes())?;
    }
    Ok(())
}

/// Returns, as JSON, a tokenizer with the mock server's one word and a few more.
fn tokenizer() -> String {
    schema::emitted::tokenizer(WORDS).to_string()
}

fn read_redline(testbed: &Testbed<'_>, load: &Load) -> Result<Reported, String> {
    let text = read_text(&testbed.path("redline.json")).map_err(|error| error.to_string())?;
    let measurement: Measurement =
        serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let metrics = measurement.metrics.ok_or("measured nothing")?;
    let samples = samples(testbed).map_err(|stop| stop.to_string())?;
    // The percentiles would otherwise be those of other requests than the log's.
    if samples.1.len() as u64 != load.requests {
        return Err(format!("left {} samples", samples.1.len()));
    }
    let late = |sample: &Sample| Some(sample.taken_at_ns?.saturating_sub(sample.scheduled_at_ns));
    let verdict = serde_json::to_value(measurement.validity.verdict);
    Ok(Reported {
        ttft: of_summary(metrics.ttft_us.as_ref()),
        gaps: of_summary(metrics.itl_chunk_us.as_ref()),
        lag: Spread::of(samples.1.iter().filter_map(late).collect()),
        verdict: verdict.ok().and_then(|value| value.as_str().map(str::to_owned)),
        reasons: measurement.validity.reasons,
    })
}

fn of_summary(summary: Option<&Summary>) -> Spread {
    let of = |read: fn(&Summary) -> Option<u64>| Some(float(read(summary?)?));
    Spread { mean_us: of(|s| s.mean), std_us: of(|s| s.std), p99_us: of(|s| s.p99) }
}

/// Reads Redline's samples file: returns its origin in nanoseconds of the monotonic clock, to which
/// the samples' times are relative, and the samples.
fn samples(testbed: &Testbed<'_>) -> Result<(u64, Vec<Sample>), Stop> {
    let path = testbed.path("redline.samples.jsonl");
    let (mut origin_ns, mut samples) = (None, Vec::new());
    for line in read_lines::<Line>(&path)? {
        match line {
            Line::Head(head) => origin_ns = head.origin_ns,
            Line::Sample(sample) => samples.push(*sample),
            Line::End(_) => {}
        }
    }
    let shown = path.display();
    let unknown = || Stop::wrong_use(format!("`{shown}` does not say where its times begin"));
    Ok((origin_ns.ok_or_else(unknown)?, samples))
}

/// Computes two lists of absolute errors in nanoseconds, with one entry per token, relative to the
/// moment at which the mock server handed the token to the system. The first list is of the times
/// that the client recorded, the second of the later times at which its own code had the tokens.
///
/// # Errors
/// The samples of the last measurement cannot be read, or do not state from when their times count.
pub fn stamp_errors_ns(
    testbed: &Testbed<'_>,
    answers: &[Emitted],
) -> Result<(Vec<u64>, Vec<u64>), Stop> {
    let (origin_ns, samples) = samples(testbed)?;
    let by_tag: BTreeMap<_, _> =
        answers.iter().filter_map(|answer| Some((answer.tag?, answer))).collect();
    let (mut recorded, mut had) = (Vec::new(), Vec::new());
    for sample in &samples {
        // Requests count from 0, and the numbers in their prompts from 1.
        let Some(answer) = by_tag.get(&(sample.request + 1)) else { continue };
        let mut at_ns = origin_ns + sample.first_chunk_at_ns.unwrap_or(0);
        let gaps = std::iter::once(0).chain(sample.gaps_ns.iter().copied());
        for ((written_ns, gap_ns), lag_ns) in answer.written_ns().zip(gaps).zip(&sample.lags_ns) {
            at_ns += gap_ns;
            recorded.push(at_ns.abs_diff(written_ns));
            // The lag is the time between the recorded moment and the client's own code.
            had.push((at_ns + u64::from(*lag_ns)).abs_diff(written_ns));
        }
    }
    Ok((recorded, had))
}

const PYTHON: &str = "python3";
const SGLANG: &str = "sglang==0.5.23";
/// Path of the extension module inside SGLang's wheel; `SGLANG_SHA256` is its SHA-256.
const SGLANG_MODULE: &str = "sglang/srt/rust_extensions/_bench.cpython-311-x86_64-linux-gnu.so";
const SGLANG_SHA256: &str = "c97549be1e6daa8a1442474aafefb32a9f9c016bedaaf20d697522877063e86b";
/// Version of the Python interpreter that the extension module in SGLang's wheel is built for.
const SGLANG_PYTHON: &str = "3.11";
const AIPERF: &str = "aiperf==0.13.0";
/// Name of the file that marks an installation of AIPerf as complete.
const WHOLE: &str = "installed";

/// Downloads or installs those of the peer clients that `tools` contains, and returns their paths.
///
/// # Errors
/// Python cannot be run or has another version than the module needs, a package cannot be obtained
/// or installed, a file cannot be written, or the wait is interrupted.
pub fn obtain(world: &World, tools: &[Tool]) -> Result<Peers, Stop> {
    let sglang = tools.contains(&Tool::Sglang).then(|| sglang(world)).transpose()?;
    let aiperf = tools.contains(&Tool::Aiperf).then(|| aiperf(world)).transpose()?;
    Ok(Peers { sglang, aiperf })
}

fn sglang(world: &World) -> Result<PathBuf, Stop> {
    let mut version = Command::new(PYTHON);
    version.args(["-c", "import sys; print('%d.%d' % sys.version_info[:2])"]);
    let found = campaign::process::text(&mut version, &world.interrupt)?.trim().to_owned();
    if found != SGLANG_PYTHON {
        let message =
            format!("`sglang-bench` is built for Python {SGLANG_PYTHON}, and this is {found}");
        return Err(Stop::environment(message).with_hint("`--skip sglang-bench` leaves it out"));
    }
    let source = InputSource {
        pip: Some(SGLANG.to_owned()),
        file: Some(SGLANG_MODULE.to_owned()),
        ..InputSource::default()
    };
    let input = Input {
        id: Tool::Sglang.id().to_owned(),
        sources: vec![source],
        sha256: SGLANG_SHA256.to_owned(),
        repair: None,
        config: None,
        hub: None,
    };
    Ok(world.obtain(&input)?.path)
}

/// Returns the path of AIPerf's program in the cache; installs it first if necessary.
fn aiperf(world: &World) -> Result<PathBuf, Stop> {
    let dir = world.cache.tools(AIPERF);
    let program = dir.join("bin/aiperf");
    if !dir.join(WHOLE).is_file() {
        world.console.step(world.clock.elapsed(), &format!("Install {AIPERF} (1.2 GB)"));
        install(world, &dir)?;
    }
    Ok(program)
}

/// Installs AIPerf into a virtual environment. The environment is created at its final path,
/// because its scripts contain that path.
fn install(world: &World, dir: &Path) -> Result<(), Stop> {
    // A folder without the mark is what an interrupted installation left.
    let _ = fs::remove_dir_all(dir);
    let near = dir.parent().unwrap_or(Path::new("."));
    make_dir(near)?;
    let temp = TempDir::new_in(near).map_err(FileError::at("write in", near))?;
    let mut venv = Command::new(PYTHON);
    venv.args(["-m", "venv"]).arg(dir);
    let mut pip = Command::new(dir.join("bin/python"));
    // Only wheels are accepted: a source package would run its code, and may need a compiler.
    pip.args(["-m", "pip", "install", "--only-binary", ":all:", "--quiet", "--no-input"])
        .args(["--disable-pip-version-check", AIPERF])
        .env("TMPDIR", temp.path());
    for step in [&mut venv, &mut pip] {
        let written = capture(step, &world.interrupt)?;
        if !written.status.success() {
            let said = written.last_said().unwrap_or("it said nothing");
            let _ = fs::remove_dir_all(dir);
            return Err(Stop::environment(format!("{AIPERF} cannot be installed: {said}"))
                .with_hint("`--skip aiperf` leaves it out"));
        }
    }
    let mark = dir.join(WHOLE);
    Ok(fs::write(&mark, AIPERF).map_err(FileError::at("write", &mark))?)
}
