//! Simulated conversations for the row "prepare": a file of the size and shape of the published
//! ShareGPT file, made from a seed, and the time to draw ten thousand requests from it. The
//! published file is not available everywhere.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use schema::random::SplitMix64;
use serde_json::json;

use crate::clients::testbed::{Testbed, run_on};
use crate::whole;
use campaign::files::{FileError, make_dir};
use campaign::inputs::Input;
use campaign::process::describe;
use campaign::stop::Stop;

/// Number of entries, as in the published file; with 2 to 10 turns of a few to a thousand words it
/// also has about the same size.
const ENTRIES: u64 = 94_145;
const TURNS: (u64, u64) = (2, 10);
/// Base-2 logarithms of the smallest and largest number of words in a turn; the logarithm is
/// uniformly distributed.
const WORDS_LOG2: (f64, f64) = (1.0, 9.5);
const SEED: u64 = 1;
const SCENARIO: &str = "sharegpt";
const TOKENIZER: &str = "qwen3-tokenizer";
/// Syllables that are joined to words.
const SYLLABLES: [&str; 24] = [
    "the", "re", "in", "con", "ti", "a", "ver", "on", "ment", "per", "ly", "sta", "or", "pro",
    "ex", "al", "de", "sion", "mu", "li", "to", "ous", "gra", "ph",
];

/// Measures the time in seconds from the start of `redline-bench plan` to its end, with all files
/// local.
///
/// # Errors
/// The tokenizer cannot be obtained, or the manifest cannot be drawn.
pub fn prepare_s(testbed: &Testbed<'_>) -> Result<f64, Stop> {
    let world = testbed.world;
    let file = world.catalog.dataset(TOKENIZER)?;
    let tokenizer = world.fetcher().obtain(&Input::dataset(TOKENIZER, &file))?.path;
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

/// Returns the path of the simulated conversations; writes the file first if it does not exist.
fn file_of_conversations(dir: &Path) -> Result<PathBuf, Stop> {
    let path = dir.join(format!("conversations-{ENTRIES}-{SEED}.json"));
    if !path.is_file() {
        make_dir(dir)?;
        // Renamed when complete, so that an interrupted run leaves no partial file under the name.
        let half = path.with_extension("part");
        let file = File::create(&half).map_err(FileError::at("write", &half))?;
        write_conversations(BufWriter::new(file), ENTRIES)
            .and_then(|()| std::fs::rename(&half, &path))
            .map_err(FileError::at("write", &path))?;
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

/// Random numbers from which the entries are made.
struct Draws(SplitMix64);

impl Draws {
    fn between(&mut self, low: u64, high: u64) -> u64 {
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
