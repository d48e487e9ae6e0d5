//! Figures of the comparison with another engine, and the measurements that yield them.

use clap::ValueEnum;
use serde::{Serialize, Serializer};

/// A measurement that is done once per engine in every repeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Work {
    /// Prefill of a prompt of 512 tokens, by the engine's own tool.
    Prefill,
    /// Decoding one stream of 128 tokens after 128, by the engine's own tool.
    Decode,
    /// Decoding thirty-two streams of 128 tokens at once, by the engine's own tool.
    DecodeBatch,
    /// Scenario `sharegpt-lite` over HTTP, and the server's memory after it.
    Served,
    /// Time from process start to the first answer.
    FirstAnswer,
    /// Perplexity of a text, by the engine's own tool; measured once, since it does not vary.
    Perplexity,
}

impl Work {
    /// True when the measurement is done in repeat `repeat`, counted from 1.
    pub fn is_done_in(self, repeat: u32) -> bool {
        self != Self::Perplexity || repeat == 1
    }

    /// Name of the measurement on the command line and in engine files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::DecodeBatch => "decode-batch",
            Self::Served => "served",
            Self::FirstAnswer => "first-answer",
            Self::Perplexity => "perplexity",
        }
    }
}

/// A figure: one row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Figure {
    Prefill,
    Decode,
    DecodeBatch,
    Served,
    FirstAnswer,
    Memory,
    Perplexity,
    /// Perplexity of Redline's f32 reference path, next to the other engine's usual one.
    PerplexityF32,
}

impl Figure {
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

    /// Id of the figure with the unit last, and title for people.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Prefill => ("prefill_512_tokens_per_s", "prefill 512 tokens, tok/s"),
            Self::Decode => ("decode_batch_1_tokens_per_s", "decode one stream, tok/s"),
            Self::DecodeBatch => ("decode_batch_32_tokens_per_s", "decode batch 32, tok/s"),
            Self::Served => {
                ("sharegpt_lite_output_tokens_per_s", "sharegpt-lite over HTTP, output tok/s")
            }
            Self::FirstAnswer => ("first_answer_s", "start to first answer, s"),
            Self::Memory => ("resident_beyond_kv_files", "resident beyond KV, x file"),
            Self::Perplexity => ("perplexity", "perplexity"),
            Self::PerplexityF32 => ("perplexity_f32", "perplexity, redline in f32"),
        }
    }

    pub fn id(self) -> &'static str {
        self.names().0
    }

    pub fn title(self) -> &'static str {
        self.names().1
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

/// One value of a figure of one engine. Values of a figure are stored in the order of the repeats,
/// so that those of the two engines form pairs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    pub figure: Figure,
    /// Index of the engine: 0 is Redline, 1 the other.
    pub variant: usize,
    pub value: f64,
}
