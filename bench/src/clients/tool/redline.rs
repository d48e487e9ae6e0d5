//! Redline's load generator `redline-bench` in the comparison, and the input files that it is
//! given: an engine file for the mock server, a small tokenizer, and one line per request, whose
//! prompt begins with the request's number.

use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use schema::emitted::Emitted;
use schema::measurement::Measurement;
use schema::run::Summary;
use schema::samples::{Line, Sample};

use crate::clients::testbed::{Load, Spread};
use crate::clients::testbed::{Testbed, read_lines};
use crate::clients::tool::Reported;
use campaign::files::{read_text, write_whole};
use campaign::stop::Stop;

const ENGINE: &str = include_str!("emitter.toml");
/// Number of words in the tokenizer beside the mock server's.
const WORDS: usize = 64;

pub(super) fn command(testbed: &Testbed<'_>, load: &Load, address: &str) -> Result<Command, Stop> {
    write_inputs(&testbed.dir, load)?;
    let mut command = testbed.world.tools.bench("run");
    command.args(["--url", &format!("http://{address}"), "--engine", "emitter.toml"]);
    command.args(["--scenario", "load.toml", "--dataset", "rows.jsonl"]);
    command.args(["--tokenizer", "tokenizer.json", "--no-output-check"]);
    command.args(["--progress", "none", "--out", "redline.json"]);
    Ok(command)
}

/// Writes the input files that the command line names.
///
/// # Errors
/// The folder is not writable.
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

/// Returns a tokenizer with the mock server's one word and a few more.
pub(super) fn tokenizer() -> String {
    schema::emitted::tokenizer(WORDS).to_string()
}

pub(super) fn read(testbed: &Testbed<'_>, load: &Load) -> Result<Reported, String> {
    let text = read_text(&testbed.path("redline.json")).map_err(|error| error.to_string())?;
    let measurement: Measurement =
        serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let metrics = measurement.metrics.ok_or("measured nothing")?;
    let samples = samples(testbed).map_err(|stop| stop.to_string())?;
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

#[expect(clippy::cast_precision_loss, reason = "times of a run are far below 2^53 us")]
fn of_summary(summary: Option<&Summary>) -> Spread {
    let of = |read: fn(&Summary) -> Option<u64>| Some(read(summary?)? as f64);
    Spread { mean_us: of(|s| s.mean), std_us: of(|s| s.std), p99_us: of(|s| s.p99) }
}

/// Reads the samples file: the time in nanoseconds at which its times begin, and the samples.
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

/// Computes the error of each token's time in nanoseconds, relative to the moment at which the mock
/// server handed the token to the system: first of the recorded times, then of the times at which
/// the client's code had the token.
///
/// # Errors
/// The samples of the last measurement cannot be read.
pub fn stamp_errors_ns(
    testbed: &Testbed<'_>,
    answers: &[Emitted],
) -> Result<(Vec<u64>, Vec<u64>), Stop> {
    let (origin_ns, samples) = samples(testbed)?;
    let by_tag: std::collections::BTreeMap<_, _> =
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
