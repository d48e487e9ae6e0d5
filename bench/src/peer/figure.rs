//! What is compared: the figures, and the work that each comes from.

use clap::ValueEnum;
use serde::{Serialize, Serializer};

/// Something that is done once for each side in every repeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Work {
    /// A prompt of 512 tokens, by the engine's own tool.
    Prefill,
    /// One stream of 128 tokens after 128, by the engine's own tool.
    Decode,
    /// Thirty-two such streams at once, by the engine's own tool.
    DecodeBatch,
    /// `sharegpt-lite` over HTTP, and the server's memory after it.
    Served,
    /// From process start to the first answer.
    FirstAnswer,
    /// How well a text is predicted, by the engine's own tool; once, as it is always the same.
    Perplexity,
}

impl Work {
    pub const ALL: [Self; 6] = [
        Self::Prefill,
        Self::Decode,
        Self::DecodeBatch,
        Self::Served,
        Self::FirstAnswer,
        Self::Perplexity,
    ];

    /// Whether it is worth doing in repeat `repeat`, counted from 1.
    #[must_use]
    pub fn is_done_in(self, repeat: u32) -> bool {
        self != Self::Perplexity || repeat == 1
    }

    /// As the command line and engine files name it.
    #[must_use]
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

/// A row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Figure {
    Prefill,
    Decode,
    DecodeBatch,
    Served,
    FirstAnswer,
    Memory,
    Perplexity,
    /// Redline's on its reference path, beside the peer's as it is.
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

    /// With the unit last.
    #[must_use]
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

    /// For a person, with the unit.
    #[must_use]
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

    #[must_use]
    pub fn more_is_better(self) -> bool {
        matches!(self, Self::Prefill | Self::Decode | Self::DecodeBatch | Self::Served)
    }
}

impl Serialize for Figure {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.id())
    }
}

/// One value of one side. Those of one figure come in pairs, in the order of the repeats.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    pub figure: Figure,
    /// 0 Redline, 1 the peer.
    pub variant: usize,
    pub value: f64,
}
