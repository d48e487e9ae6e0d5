//! `redline-bench alternate`: asks two servers on one machine in turns, in short slices of a
//! scenario, and writes what each slice took.

use std::path::PathBuf;

use clap::Args;
use schema::alternation::{Alternation, Side, Slice};
use schema::exit::Exit;

use super::files;
use super::files::{Engine, ScenarioFile};
use super::plan::drawn;
use super::run::{Signals, can_be_primed, found, model_name, nanoseconds, positive};
use crate::client::control::{Server, Trust};
use crate::session::alternation::{Alternating, Contender, Until};
use crate::session::freezer::Freezer;
use crate::workload::tokenizer::Tokenizer;

/// Ask two servers on this machine in turns, in short slices of a scenario's requests.
///
/// Interference by other programs lasts for seconds and affects both slices of a pair alike, so
/// that their ratio shows differences of a few percent within minutes. A closed loop is cut between
/// requests; any other scenario is one slice. Both variants get the same requests in each pair, in
/// an order that is drawn for each pair. Where the scenario asks for a cold or primed prefix cache,
/// both caches are emptied and primed before each round of its requests.
///
/// With `--baseline-freeze` and `--candidate-freeze` the idle server is frozen, and its CPU time in
/// each slice is recorded.
///
/// Exit codes: 0 all requests were answered; 1 a request failed; 2 wrong use; 4 no server,
/// interrupted, a file that cannot be read or written, or a failure of the client's system.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLE)]
pub struct AlternateFlags {
    /// URL of the baseline's server.
    #[arg(long, value_name = "http://HOST:PORT")]
    baseline_url: String,
    /// URL of the candidate's server.
    #[arg(long, value_name = "http://HOST:PORT")]
    candidate_url: String,
    /// Engine file of the baseline's server, as in `suite/engines`.
    #[arg(long, value_name = "FILE")]
    baseline_engine: Option<PathBuf>,
    /// Engine file of the candidate's server.
    #[arg(long, value_name = "FILE")]
    candidate_engine: Option<PathBuf>,
    /// Processes to freeze while the baseline is idle: `group:ID`, a process group, or
    /// `cgroup:FOLDER`.
    #[arg(long, value_name = "group:ID|cgroup:FOLDER")]
    baseline_freeze: Option<Freezer>,
    /// Processes to freeze while the candidate is idle.
    #[arg(long, value_name = "group:ID|cgroup:FOLDER")]
    candidate_freeze: Option<Freezer>,
    /// Scenario file, as in `suite/scenarios`.
    #[arg(long, value_name = "FILE")]
    scenario: PathBuf,
    /// Dataset that the scenario samples from.
    #[arg(long, value_name = "FILE")]
    dataset: Option<PathBuf>,
    /// `tokenizer.json`, or a GGUF file whose metadata holds the tokenizer.
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    /// Number of pairs of slices, instead of `--seconds`.
    #[arg(long, value_name = "N", conflicts_with = "seconds")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pairs: Option<u32>,
    /// Time after which no further pair begins, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 20.0, value_parser = positive)]
    seconds: f64,
    /// Number of requests in a slice of a closed loop; by default as many as the baseline answers in
    /// about half a second, and at least two for each user.
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    slice_requests: Option<u64>,
    /// Seed of the order within pairs.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Give a slice up if requests are in flight and no event arrives for so many seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 120.0, value_parser = positive)]
    timeout_s: f64,
    /// File to write the slices to, as JSON.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

const EXAMPLE: &str = "\
Example, two servers that were started in process groups of their own:

  redline-bench alternate --baseline-url http://127.0.0.1:8000 --baseline-freeze group:4100 \\
    --candidate-url http://127.0.0.1:8001 --candidate-freeze group:4200 \\
    --baseline-engine redline.toml --candidate-engine redline.toml \\
    --scenario ladder-lite-c4.toml --dataset rows.json --tokenizer model.gguf --out slices.json

`cargo xtask gate` starts both servers, repeats this on fresh starts until a verdict is reached, and
computes intervals.";

/// Runs `redline-bench alternate` and returns its exit code.
///
/// # Errors
/// A file or other value that the flags give cannot be used, a server does not answer or cannot be
/// frozen, the system refuses signal handlers, the alternation is interrupted, or the result cannot
/// be written.
pub fn execute(flags: &AlternateFlags) -> anyhow::Result<Exit> {
    let signals = Signals::caught()?;
    let file = ScenarioFile::open(&flags.scenario)?;
    let tokenizer = flags.tokenizer.as_deref().map(Tokenizer::open).transpose()?;
    let contender = |side| flags.contender(side, &file, tokenizer.as_ref());
    let contenders = [contender(Side::Baseline)?, contender(Side::Candidate)?];
    let manifest = &contenders[0].plan.manifest;
    let alternating = Alternating {
        scenario: &file.scenario,
        facts: file.facts(manifest, manifest.sha256()?),
        contenders,
        slice_requests: flags.slice_requests,
        seed: flags.seed,
        until: flags.pairs.map_or(Until::Elapsed(nanoseconds(flags.seconds)), Until::Pairs),
        no_progress_ns: nanoseconds(flags.timeout_s),
        stop: signals.stops_the_run(),
    };
    let found = alternating.run()?;
    files::json(&flags.out, &found)?;
    print!("{}", summary(&found));
    let failed = found.slices.iter().any(|slice| slice.requests_failed > 0);
    Ok(if failed { Exit::Worse } else { Exit::Well })
}

impl AlternateFlags {
    /// Opens the server of a variant and draws its requests.
    fn contender(
        &self,
        side: Side,
        file: &ScenarioFile,
        tokenizer: Option<&Tokenizer>,
    ) -> anyhow::Result<Contender> {
        let (url, engine, freezer) = match side {
            Side::Baseline => (&self.baseline_url, &self.baseline_engine, &self.baseline_freeze),
            Side::Candidate => {
                (&self.candidate_url, &self.candidate_engine, &self.candidate_freeze)
            }
        };
        let server = Server::at(url, &Trust::default())?;
        let engine = engine.as_deref().map(Engine::open).transpose()?;
        let (engine, probed) = found(engine, &server, None)?;
        let plan = drawn(file, self.dataset.as_deref(), tokenizer, engine.prompt_form())?;
        can_be_primed(&file.scenario, plan.manifest.prompt_form)?;
        let model = model_name(None, &server, &probed);
        Ok(Contender { server, engine: engine.file, model, plan, freezer: freezer.clone() })
    }
}

/// Formats how many pairs were measured, and the requests that failed.
fn summary(found: &Alternation) -> String {
    let pairs = found.slices.len() / 2;
    let seconds = found.slices.iter().map(|slice| slice.elapsed_us).sum::<u64>() / 1_000_000;
    let failed: u64 = found.slices.iter().map(|slice| slice.requests_failed).sum();
    let awake = |slice: &&Slice| slice.idle_cpu_us.is_none_or(|used_us| used_us > 0);
    let awake = found.slices.iter().filter(awake).count();
    let mut text = format!(
        "{pairs} pairs of slices of {} requests, {seconds} s of answers\n",
        found.slice_requests
    );
    if failed > 0 {
        text += &format!("{failed} requests failed\n");
    }
    if awake > 0 {
        text += &format!("the idle server was awake in {awake} of {} slices\n", 2 * pairs);
    }
    text
}
