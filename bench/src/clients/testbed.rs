//! The testbed of the client comparison: folder, cores and other clients; the load that a client sends
//! with the true times in the mock server's log; and programs pinned to a core, with what they cost.
//!
//! For the row "prepare" it has simulated conversations: a file of the size and shape of the published
//! ShareGPT file, which is not available everywhere, made from a seed.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use campaign::files::{FileError, put, read_text, temp_near};
use campaign::inputs::Input;
use campaign::node::server::status_bytes;
use campaign::process::{Group, Interrupt, ProcessError, children_us, describe};
use campaign::stop::Stop;
use campaign::world::World;
use judge::quantile::quantile;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use schema::emitted::Emitted;
use schema::random::SplitMix64;
use serde::Serialize;
use serde_json::json;

use crate::{float, whole};

/// Paths of the installed peer clients; `None` for a client that is not measured.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Peers {
    /// Path of the extension module of SGLang's benchmark client; `None` if that client is not
    /// measured.
    pub sglang: Option<PathBuf>,
    pub aiperf: Option<PathBuf>,
}

/// Environment that the exchanges of the client comparison share: folder, cores and peer clients.
#[derive(Debug)]
pub struct Testbed<'a> {
    pub world: &'a World,
    /// Working folder of the client comparison. Each exchange overwrites the files of the previous
    /// one.
    pub dir: PathBuf,
    pub emitter_core: usize,
    pub client_core: usize,
    pub peers: Peers,
}

impl Testbed<'_> {
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Creates the file `name` in the testbed's working folder.
    ///
    /// # Errors
    /// The file cannot be created, such as in a folder that does not exist or is not writable.
    pub fn create(&self, name: &str) -> Result<File, FileError> {
        let path = self.path(name);
        File::create(&path).map_err(FileError::at("write", &path))
    }
}

/// Reads a file with one JSON document per line and returns the documents.
///
/// # Errors
/// The file cannot be read, or a line is not JSON with the fields of `T`.
pub fn read_lines<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Vec<T>, Stop> {
    let text = read_text(path)?;
    let lines = text.lines().map(serde_json::from_str).collect::<Result<Vec<T>, _>>();
    lines.map_err(|error| Stop::wrong_use(format!("`{}` cannot be read: {error}", path.display())))
}

/// Load of a client: requests that the mock server answers with one steady stream each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Load {
    pub requests: u64,
    /// Number of tokens of each answer. It differs from that of warm-up requests, so that it
    /// identifies the load's requests in the mock server's log.
    pub tokens: u64,
    /// Time in microseconds that the mock server waits, from a request's arrival, before it sends
    /// the first token of the answer.
    pub first_us: u64,
    /// Time in microseconds that the mock server waits between two tokens of an answer; 0 sends the
    /// tokens without a pause, which saturates the client.
    pub gap_us: u64,
    /// Number of requests that the client sends per second; `None` sends all at once.
    pub requests_per_s: Option<u32>,
}

impl Load {
    /// Builds a load of requests that are sent all at once; the times are in microseconds.
    pub const fn burst(requests: u64, tokens: u64, first_us: u64, gap_us: u64) -> Self {
        Self { requests, tokens, first_us, gap_us, requests_per_s: None }
    }

    pub const fn events(&self) -> u64 {
        self.requests * self.tokens
    }
}

/// Mean, standard deviation and p99 of times in microseconds; `None` where there are no samples, or
/// a client does not report the value.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Spread {
    pub mean_us: Option<f64>,
    pub std_us: Option<f64>,
    pub p99_us: Option<f64>,
}

impl Spread {
    /// Computes the statistics of samples in nanoseconds as the compared clients do: quantiles
    /// are linear between order statistics, and the deviation is that of the population. All are
    /// `None` without samples.
    pub fn of(mut samples_ns: Vec<u64>) -> Self {
        if samples_ns.is_empty() {
            return Self::default();
        }
        samples_ns.sort_unstable();
        let count = float(samples_ns.len() as u64);
        let mean = samples_ns.iter().map(|ns| float(*ns)).sum::<f64>() / count;
        let squares = samples_ns.iter().map(|ns| (float(*ns) - mean).powi(2)).sum::<f64>();
        Self {
            mean_us: Some(mean / 1e3),
            std_us: Some((squares / count).sqrt() / 1e3),
            p99_us: quantile(&samples_ns, 0.99).map(|ns| ns / 1e3),
        }
    }
}

/// Answers and true times of a load, from the mock server's log.
#[derive(Debug, Clone, Default)]
pub struct Truth {
    pub answers: Vec<Emitted>,
    /// Statistics of the time from the arrival of the complete request at the server until its
    /// first token is written.
    pub ttft: Spread,
    pub gaps: Spread,
}

impl Truth {
    /// Selects the complete answers to `load`'s requests from the mock server's log and computes
    /// their times.
    pub fn of(log: Vec<Emitted>, load: &Load) -> Self {
        // Warm-up requests have another number of tokens.
        let ours = |answer: &Emitted| answer.max_tokens == load.tokens && answer.is_whole();
        let answers: Vec<Emitted> = log.into_iter().filter(ours).collect();
        let first = |answer: &Emitted| Some(answer.first_ns?.saturating_sub(answer.received_ns));
        let ttft = Spread::of(answers.iter().filter_map(first).collect());
        let gaps = Spread::of(answers.iter().flat_map(|a| a.gaps_ns.iter().copied()).collect());
        Self { answers, ttft, gaps }
    }
}

/// Interval at which a running program, or a condition that is waited for, is polled.
const POLL: Duration = Duration::from_millis(20);
/// Time after which a client, or `redline-bench plan`, that has not ended counts as hung.
const LIMIT: Duration = Duration::from_secs(180);

/// Resources that a finished program has used.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cost {
    /// User and system CPU time in microseconds, including the program's children.
    pub cpu_us: f64,
    pub wall_s: f64,
    /// Peak resident memory in bytes of the program's own process, without its children; `None` if
    /// the program ended before its memory could be read.
    pub peak_bytes: Option<u64>,
}

/// Starts `command` as a process pinned to CPU core `core`. The calling process moves to the core
/// for the moment of the start, because a child inherits its parent's cores.
///
/// # Errors
/// The system refuses to report the cores of the calling process or to change them, as when the
/// machine has no such core, or the program cannot be started.
pub fn start_on(core: usize, command: &mut Command) -> Result<Group, Stop> {
    let this = Pid::from_raw(0);
    let refused = |what: &str| {
        let message = format!("the system refuses to {what} core {core}");
        Stop::environment(message).with_hint("give cores that this machine has")
    };
    let before = sched_getaffinity(this).map_err(|_| refused("report"))?;
    let mut only = CpuSet::new();
    only.set(core).and_then(|()| sched_setaffinity(this, &only)).map_err(|_| refused("run on"))?;
    let started = Group::start(command);
    // The cores are restored even if the start failed, or this process would stay on one.
    sched_setaffinity(this, &before).map_err(|_| refused("leave"))?;
    Ok(started?)
}

/// Runs `command` on CPU core `core` to its end; returns its exit status and the resources it used.
///
/// # Errors
/// The program cannot be started on the core or takes too long, the wait was interrupted, or a
/// system call fails, such as that for CPU times.
pub fn run_on(
    core: usize,
    command: &mut Command,
    interrupt: &Interrupt,
) -> Result<(ExitStatus, Cost), Stop> {
    let name = command.get_program().to_string_lossy().into_owned();
    // Only ended children are counted, so the mock server, which still runs, adds nothing.
    let (before_us, started) = (children_us()?, interrupt.elapsed());
    let mut group = start_on(core, command)?;
    let status_file = format!("/proc/{}/status", group.id());
    let mut peak_bytes = None;
    let status = loop {
        if let Some(status) = group.poll()? {
            break status;
        }
        // The file vanishes when the process ends; the value of the previous poll is then kept.
        let seen = fs::read_to_string(&status_file).ok();
        // `VmHWM` is a maximum, so the last poll before the end is accurate enough.
        peak_bytes = seen.and_then(|text| status_bytes(&text, "VmHWM")).or(peak_bytes);
        interrupt.check()?;
        if interrupt.elapsed() > started + LIMIT {
            return Err(Stop::environment(format!("`{name}` has not ended in {LIMIT:?}")));
        }
        interrupt.sleep(POLL);
    };
    let wall_s = (interrupt.elapsed() - started).as_secs_f64();
    Ok((status, Cost { cpu_us: children_us()? - before_us, wall_s, peak_bytes }))
}

/// Polls the closure `found` until it returns a value.
///
/// # Errors
/// The closure returns none within five seconds, or the wait was interrupted.
pub fn wait_for<T>(
    what: &str,
    interrupt: &Interrupt,
    mut found: impl FnMut() -> Option<T>,
) -> Result<T, Stop> {
    let deadline = interrupt.elapsed() + Duration::from_secs(5);
    loop {
        if let Some(found) = found() {
            return Ok(found);
        }
        interrupt.check().map_err(|error: ProcessError| Stop::from(error))?;
        if interrupt.elapsed() > deadline {
            return Err(Stop::environment(format!("{what} within 5 s")));
        }
        interrupt.sleep(POLL);
    }
}

/// Number of conversations in the simulated file, as in the published ShareGPT file; with 2 to 10
/// turns of a few to several hundred words each, the file also has about the same size.
const ENTRIES: u64 = 94_145;
const TURNS: (u64, u64) = (2, 10);
/// Base-2 logarithms of the smallest and of the largest number of words in a turn of a simulated
/// conversation; the logarithm of a turn's number is uniformly distributed between them.
const WORDS_LOG2: (f64, f64) = (1.0, 9.5);
const SEED: u64 = 1;
const SCENARIO: &str = "sharegpt";
const TOKENIZER: &str = "qwen3-tokenizer";
/// Syllables of which the words of the simulated conversations are made.
const SYLLABLES: [&str; 24] = [
    "the", "re", "in", "con", "ti", "a", "ver", "on", "ment", "per", "ly", "sta", "or", "pro",
    "ex", "al", "de", "sion", "mu", "li", "to", "ous", "gra", "ph",
];

/// Runs `redline-bench plan` on the simulated conversations, with all files local, and returns the
/// seconds from its start to its end.
///
/// # Errors
/// An input cannot be obtained or written, or `redline-bench plan` cannot be run, fails or takes
/// too long, or the wait was interrupted.
pub fn prepare_s(testbed: &Testbed<'_>) -> Result<f64, Stop> {
    let world = testbed.world;
    let file = world.catalog.dataset(TOKENIZER)?;
    let tokenizer = world.obtain(&Input::dataset(TOKENIZER, &file))?.path;
    let rows = file_of_conversations(&testbed.dir)?;
    let mut command = world.tools.bench("plan");
    command.arg("--scenario").arg(world.catalog.scenario(SCENARIO)?.path);
    command.arg("--dataset").arg(&rows).arg("--tokenizer").arg(&tokenizer);
    command.arg("--out").arg(testbed.path("plan.json"));
    command.stdout(std::process::Stdio::null());
    let (status, cost) = run_on(testbed.client_core, &mut command, &world.interrupt)?;
    if !status.success() {
        let message = format!("`redline-bench plan` ended with {}", describe(status));
        return Err(Stop::environment(message));
    }
    Ok(cost.wall_s)
}

/// Returns the path of the file of simulated conversations; writes the file first if it does not
/// exist.
fn file_of_conversations(dir: &Path) -> Result<PathBuf, Stop> {
    // The name has the constants that the file is made from, so other ones give another file.
    let path = dir.join(format!("conversations-{ENTRIES}-{SEED}.json"));
    if !path.is_file() {
        let mut whole = temp_near(&path)?;
        write_conversations(BufWriter::new(whole.as_file_mut()), ENTRIES)
            .map_err(FileError::at("write", &path))?;
        put(whole, &path)?;
    }
    Ok(path)
}

fn write_conversations(mut out: impl Write, entries: u64) -> std::io::Result<()> {
    let mut random = Draws(SplitMix64(SEED));
    for number in 0..entries {
        let turns = random.between(TURNS.0, TURNS.1);
        let turn = |at: u64| {
            let from = if at.is_multiple_of(2) { "human" } else { "gpt" };
            json!({"from": from, "value": random.text()})
        };
        let entry = json!({
            "id": number.to_string(), "conversations": (0..turns).map(turn).collect::<Vec<_>>(),
        });
        write!(out, "{}{entry}", if number == 0 { "[" } else { ",\n" })?;
    }
    writeln!(out, "]")?;
    out.flush()
}

/// Random generator from which the simulated conversations are built.
struct Draws(SplitMix64);

impl Draws {
    fn between(&mut self, low: u64, high: u64) -> u64 {
        // The remainder is not exactly uniform, which does not matter for made-up text.
        low + self.0.draw() % (high - low + 1)
    }

    fn text(&mut self) -> String {
        let words = whole((WORDS_LOG2.0 + self.0.share() * (WORDS_LOG2.1 - WORDS_LOG2.0)).exp2());
        let mut text = String::new();
        for word in 0..words {
            let syllables = self.between(1, 3);
            for _ in 0..syllables {
                let at = usize::try_from(self.0.draw() % SYLLABLES.len() as u64).unwrap_or(0);
                text.push_str(SYLLABLES[at]);
            }
            text.push_str(if word % 12 == 11 { ".\n" } else { " " });
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use campaign::clock::Clock;

    #[test]
    fn a_spread_is_as_the_tools_compute_it() {
        let spread = Spread::of((1..=101).rev().map(|i| i * 1000).collect());
        assert_eq!((spread.mean_us, spread.p99_us), (Some(51.0), Some(100.0)));
        assert!((spread.std_us.unwrap() - 29.154_759).abs() < 1e-5);
        assert_eq!(Spread::of(Vec::new()), Spread::default());
    }

    #[test]
    fn what_was_sent_before_and_after_a_load_is_no_part_of_it() {
        let load = Load::burst(2, 3, 0, 0);
        let answer = |max_tokens, gaps: &[u64]| Emitted {
            max_tokens,
            received_ns: 5,
            first_ns: Some(1005),
            gaps_ns: gaps.to_vec(),
            ..Emitted::default()
        };
        let log = vec![answer(1, &[]), answer(3, &[2000, 4000]), answer(3, &[1])];
        let truth = Truth::of(log, &load);
        assert_eq!(truth.answers.len(), 1, "one is of the warm-up, one was cut");
        assert_eq!((truth.ttft.mean_us, truth.gaps.mean_us), (Some(1.0), Some(3.0)));
    }

    #[test]
    fn a_program_on_its_core_is_charged_for_what_it_did_and_its_parent_is_left_where_it_was() {
        let before = sched_getaffinity(Pid::from_raw(0)).unwrap();
        let mut shell = Command::new("sh");
        shell.args(["-c", "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; exit 3"]);
        let (status, cost) = run_on(0, &mut shell, &Interrupt::new(Clock::start())).unwrap();
        assert_eq!(status.code(), Some(3));
        assert!(cost.cpu_us > 0.0 && cost.wall_s > 0.0, "{cost:?}");
        assert_eq!(sched_getaffinity(Pid::from_raw(0)).unwrap(), before);
    }

    #[test]
    fn a_core_that_is_not_there_is_named() {
        let refused = start_on(1000, &mut Command::new("true")).unwrap_err();
        assert!(refused.to_string().contains("core 1000"), "{refused}");
    }
}

#[cfg(test)]
mod conversation_tests {
    use super::*;

    #[test]
    fn made_up_conversations_are_the_same_every_time_and_are_json() {
        let made = || {
            let mut bytes = Vec::new();
            write_conversations(&mut bytes, 50).unwrap();
            bytes
        };
        let bytes = made();
        assert_eq!(bytes, made());
        let entries: Vec<serde_json::Value> = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(entries.len(), 50);
        for entry in &entries {
            let turns = entry["conversations"].as_array().unwrap();
            assert!(turns.len() >= 2 && turns.iter().all(|turn| turn["value"] != ""));
        }
    }
}
