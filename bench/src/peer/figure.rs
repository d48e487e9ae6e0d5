//! Figures of the comparison with another engine, and the measurements that yield them. Some are
//! measured and printed by an engine's own program: it is run, and the number extracted.

use std::path::Path;
use std::process::Command;

use clap::ValueEnum;
use schema::engine::FigureTool;
use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::RivalError;
use campaign::process::{Interrupt, capture, describe};
use campaign::stop::Stop;
use judge::summary;

/// Measurement of an engine in the comparison, done once per engine in every repeat; perplexity is
/// measured in the first repeat only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Work {
    /// Prefill of a prompt of 512 tokens, measured by the engine's own tool.
    Prefill,
    /// Decoding of 128 tokens in one stream after a context of 128 tokens, measured by the engine's
    /// own tool.
    Decode,
    /// Decoding of 128 tokens in each of 32 streams at once, measured by the engine's own tool.
    DecodeBatch,
    /// Run of the scenario `sharegpt-lite` over HTTP, which gives two figures: output rate, and
    /// memory of the server at the run's end.
    Served,
    /// Time from the server's process start to the first byte of its first successful response to a
    /// request for one token.
    FirstAnswer,
    /// Perplexity of a text, measured by the engine's own tool; measured once per engine, since it
    /// does not vary.
    Perplexity,
}

/// Figure of the comparison of two engines: one row of its table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Figure {
    Prefill,
    Decode,
    DecodeBatch,
    Served,
    FirstAnswer,
    Memory,
    Perplexity,
    /// Perplexity of the f32 reference path of Redline and of the other engine; an engine whose
    /// file names no tool for such a path is shown with the perplexity of its usual path instead.
    PerplexityF32,
}

impl Figure {
    /// Figures in the order of the comparison's table.
    pub const ALL: [Self; 8] = [
        Self::Prefill,
        Self::Decode,
        Self::DecodeBatch,
        Self::Served,
        Self::FirstAnswer,
        Self::Memory,
        Self::Perplexity,
        Self::PerplexityF32,
    ];

    /// Returns the figure's id in the JSON document; its unit is last.
    pub fn id(self) -> &'static str {
        match self {
            Self::Prefill => "prefill_512_tokens_per_s",
            Self::Decode => "decode_batch_1_tokens_per_s",
            Self::DecodeBatch => "decode_batch_32_tokens_per_s",
            Self::Served => "sharegpt_lite_output_tokens_per_s",
            Self::FirstAnswer => "first_answer_s",
            Self::Memory => "resident_beyond_kv_files",
            Self::Perplexity => "perplexity",
            Self::PerplexityF32 => "perplexity_f32",
        }
    }

    /// Returns the figure's title, with its unit, in the comparison's table.
    pub fn title(self) -> &'static str {
        match self {
            Self::Prefill => "prefill 512 tokens, tok/s",
            Self::Decode => "decode one stream, tok/s",
            Self::DecodeBatch => "decode batch 32, tok/s",
            Self::Served => "sharegpt-lite over HTTP, output tok/s",
            Self::FirstAnswer => "start to first answer, s",
            Self::Memory => "resident beyond KV, x file",
            Self::Perplexity => "perplexity",
            Self::PerplexityF32 => "perplexity, redline in f32",
        }
    }

    pub fn more_is_better(self) -> bool {
        matches!(self, Self::Prefill | Self::Decode | Self::DecodeBatch | Self::Served)
    }
}

impl Serialize for Figure {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.id())
    }
}

/// Value of one figure that one engine reached in one repeat. Samples are stored in the order of
/// the repeats, so that those of the two engines form pairs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    pub figure: Figure,
    /// Index of the measured engine: 0 is Redline, 1 the other engine.
    pub variant: usize,
    pub value: f64,
}

/// Values that fill the placeholders in the command line of an engine's measuring tool.
#[derive(Debug, Clone, Copy)]
pub struct ToolFilling<'a> {
    pub engine: &'a str,
    pub binary: &'a Path,
    pub model: &'a Path,
    pub threads: u32,
    /// Path of the text on which perplexity is measured; `None` if perplexity is not measured.
    pub text: Option<&'a Path>,
}

/// Runs an engine's measuring tool and returns its figure: the median of the numbers at the JSON
/// pointer in the tool's output, or the number after the marking text, whichever the engine's file
/// states.
///
/// # Errors
/// The tool's entry in the engine file is not valid, the tool cannot be run, fails or is
/// interrupted, or it prints no such number, or one that is not positive.
pub fn measure(
    tool: &FigureTool,
    with: ToolFilling<'_>,
    interrupt: &Interrupt,
) -> Result<f64, Stop> {
    let argv = argv(tool, with);
    let Some((program, args)) = argv.split_first() else {
        return Err(Stop::wrong_use(format!("a figure of `{}` names no program", with.engine)));
    };
    let written = capture(Command::new(program).args(args), interrupt)?;
    let name = Path::new(program).file_name().unwrap_or_default().to_string_lossy();
    let failed = |what: String| RivalError(format!("{}: `{name}` {what}", with.engine));
    if !written.status.success() {
        let last = written.last_said();
        let what = format!("ended with {}: {}", describe(written.status), last.unwrap_or("silent"));
        return Err(failed(what).into());
    }
    let (values, place) = match (&tool.pointer, &tool.after) {
        (Some(pointer), None) => (figures(&written.stdout, pointer), format!("at `{pointer}`")),
        (None, Some(mark)) => {
            // A tool may print its result on either stream.
            let said = [&*written.stdout, &*written.stderr];
            let value = said.into_iter().find_map(|said| number_after(said, mark));
            (value.into_iter().collect(), format!("after `{mark}`"))
        }
        _ => {
            let what = format!("a figure of `{}` needs either `pointer` or `after`", with.engine);
            return Err(Stop::wrong_use(what));
        }
    };
    match summary::of(&values) {
        // A zero would mean a failed measurement, and its ratio would be meaningless.
        Some(repeats) if repeats.min > 0.0 => Ok(repeats.median),
        _ => Err(failed(format!("printed no figure {place}")).into()),
    }
}

fn argv(tool: &FigureTool, with: ToolFilling<'_>) -> Vec<String> {
    let folder = with.binary.parent().unwrap_or(Path::new("."));
    let fill = |word: &String| {
        word.replace("{binary}", &with.binary.to_string_lossy())
            .replace("{binaries}", &folder.to_string_lossy())
            .replace("{model}", &with.model.to_string_lossy())
            .replace("{threads}", &with.threads.to_string())
            .replace("{text}", &with.text.unwrap_or(Path::new("")).to_string_lossy())
    };
    tool.argv.iter().map(fill).collect()
}

/// Reads the numbers at the JSON pointer `pointer` (a number or a list of numbers) in a tool's
/// output: from the whole output if it is one JSON document, else from each line that is a JSON
/// document.
fn figures(printed: &str, pointer: &str) -> Vec<f64> {
    let documents: Vec<Value> = match serde_json::from_str(printed) {
        Ok(document) => vec![document],
        Err(_) => printed.lines().filter_map(|line| serde_json::from_str(line).ok()).collect(),
    };
    let found = documents.iter().filter_map(|document| document.pointer(pointer));
    found
        .flat_map(|value| match value {
            Value::Array(values) => values.iter().filter_map(Value::as_f64).collect(),
            value => value.as_f64().into_iter().collect::<Vec<_>>(),
        })
        .collect()
}

/// Returns the number that follows the last occurrence of `mark` in the text `said`; `None` if
/// there is none.
fn number_after(said: &str, mark: &str) -> Option<f64> {
    // The last mark counts, because a tool may print estimates before its final result.
    let (_, rest) = said.rsplit_once(mark)?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_found_after_its_mark() {
        let said = "[1]18.2,\nFinal estimate: PPL = 16.4620 +/- 0.31\n";
        assert_eq!(number_after(said, "Final estimate: PPL ="), Some(16.462));
        assert_eq!(number_after(said, "18.2,\nFinal"), None);
        assert_eq!(number_after("[1]18.2,", "PPL ="), None);
    }

    #[test]
    fn figures_are_found_in_documents_and_in_lines() {
        for (printed, pointer, expected) in [
            ("[{\n\"samples_ts\": [1.5, 2]}]", "/0/samples_ts", vec![1.5, 2.0]),
            ("\n{\"speed\": 3.5}\nnoise\n{\"speed\": 4}\n", "/speed", vec![3.5, 4.0]),
            ("{\"decode\":[{\"tokens_per_s\":7.0}]}", "/decode/0/tokens_per_s", vec![7.0]),
            ("{\"speed\": \"fast\"}", "/speed", vec![]),
            ("no JSON", "/speed", vec![]),
        ] {
            assert_eq!(figures(printed, pointer), expected, "{printed}");
        }
    }

    #[test]
    fn every_engine_with_figures_has_all_of_them() {
        for text in [
            include_str!("../../../suite/engines/redline.toml"),
            include_str!("../../../suite/engines/llama.cpp.toml"),
        ] {
            let file = schema::engine::parse(text).unwrap();
            let names: Vec<&str> = file.figures.keys().map(String::as_str).collect();
            let speeds = ["decode", "decode-batch", "prefill", "perplexity"];
            assert!(speeds.iter().all(|name| names.contains(name)), "{names:?}");
            let one_place = |tool: &FigureTool| tool.pointer.is_some() != tool.after.is_some();
            assert!(file.figures.values().all(one_place));
        }
    }
}
