//! Workload of a scenario: the dataset or sampler that requests are drawn with, and its lengths.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::scenario::{InvalidFile, TIME_US, TOKENS, bounded, out_of_range, positive};

/// Workload of a scenario: which requests are drawn, and how. Which of these keys a scenario may
/// give depends on the sampler (`pack`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// Sampler: the way in which requests are drawn.
    pub pack: Pack,
    /// Id of the dataset (file stem under `suite/datasets/`), or any name where `--dataset FILE`
    /// gives the file; left out where the sampler makes its own prompts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dataset: Option<String>,
    /// Number of measured requests to draw.
    pub requests: u64,
    /// Seed with which requests and their send times are drawn.
    pub seed: u64,
    /// Length of a prompt in tokens, or its bound or mean, as the sampler uses it; a shared prefix
    /// comes in addition. For `multi-turn`, longest prompt with all earlier turns; for `words`,
    /// number of words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_tokens: Option<u64>,
    /// Length of an answer in tokens, or its bound or mean, as the sampler uses it. For
    /// conversations of the `sharegpt` samplers it replaces the answer's length in the dataset; for
    /// `jsonl` it applies to lines without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u64>,
    /// Range of random lengths, from 0 to 1. `random@vllm` draws from `[(1 - ratio) * mean, (1 +
    /// ratio) * mean]`, so that 0 means fixed lengths, and takes no 1; other samplers draw from
    /// `[ratio * bound, bound]`, so that 1 means fixed lengths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub range_ratio: Option<f64>,
    /// Length in tokens of the prefix that all prompts, or all prompts of a group, share, or the
    /// bound from which that length is drawn; no prefix where left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix_tokens: Option<u64>,
    /// Number of groups, whose requests share one prefix each; left out for samplers without
    /// groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<u64>,
    /// Maximum number of requests (turns) in one conversation; further turns are left out. No
    /// maximum where this key is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turns_max: Option<u64>,
    /// Think time between an answer and the next turn of its conversation, in microseconds; 0 where
    /// left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub think_us: Option<u64>,
    /// True when the client writes the chat template of the tokenizer's model around each prompt, as
    /// some benchmark tools do; prompts are sent as they are where left out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub chat_template: bool,
}

/// Sampler: how requests are drawn. One that names a tool draws as that tool does with the same
/// seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Pack {
    /// Conversations, as LMDeploy's `profile_restful_api.py` v0.9.2 samples them.
    #[serde(rename = "sharegpt@lmdeploy")]
    SharegptLmdeploy,
    /// Conversations, as vLLM's `bench serve` 0.33 samples them: like LMDeploy, but some are
    /// repeated where the dataset has too few.
    #[serde(rename = "sharegpt@vllm")]
    SharegptVllm,
    /// Conversations, as SGLang's `bench_serving` samples them since it dropped its upper bounds.
    #[serde(rename = "sharegpt@sglang")]
    SharegptSglang,
    /// Conversations, as SGLang's `bench_serving` sampled them with upper bounds, like LMDeploy.
    #[serde(rename = "sharegpt@sglang-old")]
    SharegptSglangOld,
    /// Conversation text of fixed or uniform length, as LMDeploy's `random` samples it.
    #[serde(rename = "random@lmdeploy")]
    RandomLmdeploy,
    /// Conversation text of fixed or uniform length, as SGLang 0.5's `random` samples it.
    #[serde(rename = "random@sglang")]
    RandomSglang,
    /// Synthetic prompts that run through the vocabulary, as SGLang 0.5's `random-ids` makes them.
    #[serde(rename = "random-ids@sglang")]
    RandomIdsSglang,
    /// Synthetic prompts that run through the vocabulary, as vLLM 0.33's `random` makes them.
    #[serde(rename = "random@vllm")]
    RandomVllm,
    /// Synthetic prompts that run through the vocabulary, from the random generator of InferenceX.
    #[serde(rename = "random@inferencex")]
    RandomInferencex,
    /// Groups of questions, each group behind one long system prompt, as SGLang's
    /// `generated-shared-prefix` makes them.
    #[serde(rename = "prefix-groups@sglang")]
    PrefixGroupsSglang,
    /// Groups of suffixes, each group behind one prefix, as vLLM's `prefix_repetition` makes them.
    #[serde(rename = "prefix-repetition@vllm")]
    PrefixRepetitionVllm,
    /// Whole conversations: one request for each turn, with all earlier turns as its prefix.
    #[serde(rename = "multi-turn")]
    MultiTurn,
    /// Requests of a trace in Mooncake's format, with its times, lengths and shared blocks.
    #[serde(rename = "trace@mooncake")]
    TraceMooncake,
    /// Requests of the user's own file, one JSON object per line: `prompt`, as text or as a list of
    /// token ids; `output_tokens`, unless the workload has them; and for the arrival `trace`
    /// `send_us`, the send time in microseconds since the start.
    #[serde(rename = "jsonl")]
    Jsonl,
    /// Requests of the user's own file, in shuffled order and repeated where they are too few, as
    /// vLLM 0.33's `custom` samples them. `output_tokens` replaces the lengths in the file.
    #[serde(rename = "custom@vllm")]
    CustomVllm,
    /// Task, shared lines and random lines of a poem, as vLLM 0.33's `sonnet` makes its prompts. A
    /// prompt has at most `input_tokens` tokens with the chat template around it.
    #[serde(rename = "sonnet@vllm")]
    SonnetVllm,
    /// Prompts of common English words, sent as text. It needs neither dataset nor tokenizer; the
    /// server counts the tokens, or the tokenizer if one is given.
    #[serde(rename = "words")]
    Words,
}

/// Keys of a workload that a sampler needs, and those that it accepts in addition, besides `pack`,
/// `requests` and `seed`.
struct Rule {
    id: &'static str,
    needs: &'static [&'static str],
    takes: &'static [&'static str],
}

const CONVERSATIONS: &[&str] = &["dataset"];
const FIXED_ANSWERS: &[&str] = &["output_tokens"];
const WRITTEN: &[&str] = &["output_tokens", "chat_template"];
const POEM: &[&str] = &["dataset", "input_tokens", "output_tokens", "prefix_tokens"];
const WORDS: &[&str] = &["input_tokens", "output_tokens"];
const RANDOM: &[&str] = &["input_tokens", "output_tokens", "range_ratio"];
const RANDOM_TEXT: &[&str] = &["dataset", "input_tokens", "output_tokens", "range_ratio"];
const GROUPS: &[&str] = &["prefix_tokens", "groups", "input_tokens", "output_tokens"];
const GROUPS_RANGED: &[&str] =
    &["prefix_tokens", "groups", "input_tokens", "output_tokens", "range_ratio"];

impl Pack {
    fn rule(self) -> Rule {
        let rule = |id, needs, takes| Rule { id, needs, takes };
        match self {
            Self::SharegptLmdeploy => rule("sharegpt@lmdeploy", CONVERSATIONS, FIXED_ANSWERS),
            Self::SharegptVllm => rule("sharegpt@vllm", CONVERSATIONS, FIXED_ANSWERS),
            Self::SharegptSglang => rule("sharegpt@sglang", CONVERSATIONS, WRITTEN),
            Self::SharegptSglangOld => rule("sharegpt@sglang-old", CONVERSATIONS, FIXED_ANSWERS),
            Self::RandomLmdeploy => rule("random@lmdeploy", RANDOM_TEXT, &[]),
            Self::RandomSglang => rule("random@sglang", RANDOM_TEXT, &[]),
            Self::RandomIdsSglang => rule("random-ids@sglang", RANDOM, &[]),
            Self::RandomVllm => rule("random@vllm", RANDOM, &["prefix_tokens"]),
            Self::RandomInferencex => rule("random@inferencex", RANDOM, &["prefix_tokens"]),
            Self::PrefixGroupsSglang => rule("prefix-groups@sglang", GROUPS_RANGED, &[]),
            Self::PrefixRepetitionVllm => rule("prefix-repetition@vllm", GROUPS, &[]),
            Self::MultiTurn => {
                rule("multi-turn", CONVERSATIONS, &["input_tokens", "turns_max", "think_us"])
            }
            Self::TraceMooncake => rule("trace@mooncake", CONVERSATIONS, &[]),
            Self::Jsonl => rule("jsonl", CONVERSATIONS, WRITTEN),
            Self::CustomVllm => rule("custom@vllm", CONVERSATIONS, WRITTEN),
            Self::SonnetVllm => rule("sonnet@vllm", POEM, &["chat_template"]),
            Self::Words => rule("words", WORDS, &[]),
        }
    }

    /// Returns the sampler's name in scenario files.
    pub fn id(self) -> &'static str {
        self.rule().id
    }

    /// True when the sampler makes prompts without a tokenizer.
    pub fn is_without_tokenizer(self) -> bool {
        self == Self::Words
    }

    /// True when the sampler's requests may have recorded send times.
    pub fn has_times(self) -> bool {
        matches!(self, Self::TraceMooncake | Self::Jsonl)
    }
}

impl Workload {
    pub(crate) fn check(&self) -> Result<(), InvalidFile> {
        let Rule { id: pack, needs, takes } = self.pack.rule();
        let counts = [
            ("input_tokens", self.input_tokens),
            ("output_tokens", self.output_tokens),
            ("prefix_tokens", self.prefix_tokens),
            ("groups", self.groups),
            ("turns_max", self.turns_max),
            ("think_us", self.think_us),
        ];
        let given = |(key, value): &(&'static str, Option<u64>)| (*key, value.is_some());
        let others = [
            ("dataset", self.dataset.is_some()),
            ("range_ratio", self.range_ratio.is_some()),
            ("chat_template", self.chat_template),
        ];
        for (key, given) in counts.iter().map(given).chain(others) {
            if needs.contains(&key) && !given {
                return Err(InvalidFile(format!("`{pack}` needs `workload.{key}`")));
            }
            if given && !needs.contains(&key) && !takes.contains(&key) {
                let problem = format!("`workload.{key}` has no meaning for `{pack}`");
                return Err(InvalidFile(problem));
            }
        }
        // An absent number passes as 1. Prefix and think time may be zero.
        bounded("workload.input_tokens", self.input_tokens.unwrap_or(1), TOKENS)?;
        bounded("workload.prefix_tokens", self.prefix_tokens.unwrap_or(1).max(1), TOKENS)?;
        bounded("workload.think_us", self.think_us.unwrap_or(1).max(1), TIME_US)?;
        self.check_answers()?;
        positive("workload.turns_max", self.turns_max.unwrap_or(1))?;
        self.check_ratio()?;
        self.check_groups()
    }

    /// Returns an upper bound of the length of a sequence (prompt and answer) that the workload can
    /// draw, in tokens, or `None` where the dataset or the server's tokenizer decides the length of
    /// prompts or answers.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "lengths are far below 2^53, and a ratio is checked to be from 0 to 1"
    )]
    pub fn tokens_max(&self) -> Option<u64> {
        if self.pack.is_without_tokenizer() {
            return None;
        }
        let tokens = self.input_tokens? + self.output_tokens?;
        // vLLM draws around a mean, so lengths may exceed it; for others it is the upper bound.
        let above = match self.pack {
            Pack::RandomVllm => self.range_ratio.unwrap_or(0.0) * tokens as f64,
            _ => 0.0,
        };
        // The shared lines of a poem are part of its prompt's length.
        let prefix = self.prefix_tokens.filter(|_| self.pack != Pack::SonnetVllm);
        Some(tokens + above.ceil() as u64 + prefix.unwrap_or(0))
    }

    /// Checks that the answer length is at least 1, or at least 4 for the `sharegpt` samplers of
    /// LMDeploy and SGLang, whose tools refuse fewer tokens.
    fn check_answers(&self) -> Result<(), InvalidFile> {
        // An absent length passes as 4, which every sampler accepts.
        let tokens = self.output_tokens.unwrap_or(4);
        let refused = matches!(
            self.pack,
            Pack::SharegptLmdeploy | Pack::SharegptSglang | Pack::SharegptSglangOld
        );
        if refused && tokens < 4 {
            return Err(out_of_range("workload.output_tokens", "at least 4", tokens));
        }
        bounded("workload.output_tokens", tokens, TOKENS)
    }

    /// Returns the number of tokens of a prompt, with a shared prefix, where the sampler makes prompts
    /// of that length or about it; zero where those of a dataset decide.
    pub(crate) fn prompt_tokens_drawn(&self) -> u64 {
        // Conversations have no more tokens than the dataset, whatever their bound is.
        match self.pack {
            Pack::MultiTurn => 0,
            _ => self.input_tokens.unwrap_or(0) + self.prefix_tokens.unwrap_or(0),
        }
    }

    fn check_ratio(&self) -> Result<(), InvalidFile> {
        let ratio = self.range_ratio.unwrap_or(0.0);
        // With vLLM's sampler, a ratio of 1 would allow prompts of zero tokens.
        let below_one = self.pack == Pack::RandomVllm;
        let fits =
            if below_one { (0.0..1.0).contains(&ratio) } else { (0.0..=1.0).contains(&ratio) };
        if fits {
            return Ok(());
        }
        let wanted = if below_one { "from 0 to below 1" } else { "from 0 to 1" };
        Err(out_of_range("workload.range_ratio", wanted, ratio))
    }

    fn check_groups(&self) -> Result<(), InvalidFile> {
        let Some(groups) = self.groups else { return Ok(()) };
        positive("workload.groups", groups)?;
        // All groups have the same number of requests.
        if self.requests.is_multiple_of(groups) {
            return Ok(());
        }
        Err(out_of_range("workload.requests", "a multiple of `workload.groups`", self.requests))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(text: &str) -> Result<(), String> {
        let workload: Workload = toml::from_str(text).map_err(|error| error.to_string())?;
        workload.check().map_err(|error| error.to_string())
    }

    #[test]
    fn a_pack_takes_its_own_keys_and_no_others() {
        let cases = [
            ("pack = 'sharegpt@vllm'\ndataset = 'd'", ""),
            ("pack = 'sharegpt@vllm'", "`sharegpt@vllm` needs `workload.dataset`"),
            ("pack = 'sharegpt@vllm'\ndataset = 'd'\noutput_tokens = 1", ""),
            (
                "pack = 'sharegpt@lmdeploy'\ndataset = 'd'\noutput_tokens = 3",
                "`workload.output_tokens` must be at least 4, found 3",
            ),
            ("pack = 'random@vllm'\ninput_tokens = 8\noutput_tokens = 2\nrange_ratio = 0.5", ""),
            (
                "pack = 'random@vllm'\ninput_tokens = 8\noutput_tokens = 2\nrange_ratio = 1.0",
                "`workload.range_ratio` must be from 0 to below 1, found 1",
            ),
            (
                "pack = 'random@inferencex'\ndataset = 'd'\ninput_tokens = 8\noutput_tokens = 2\nrange_ratio = 1.0",
                "`workload.dataset` has no meaning for `random@inferencex`",
            ),
            (
                "pack = 'prefix-repetition@vllm'\nprefix_tokens = 8\ngroups = 4\ninput_tokens = 1\noutput_tokens = 1",
                "`workload.requests` must be a multiple of `workload.groups`, found 6",
            ),
            ("pack = 'multi-turn'\ndataset = 'd'\nthink_us = 0", ""),
            ("pack = 'custom@vllm'\ndataset = 'd'\nchat_template = true", ""),
            (
                "pack = 'sharegpt@vllm'\ndataset = 'd'\nchat_template = true",
                "`workload.chat_template` has no meaning for `sharegpt@vllm`",
            ),
        ];
        for (keys, expected) in cases {
            let found = workload(&format!("requests = 6\nseed = 1\n{keys}")).err();
            assert_eq!(found.unwrap_or_default(), expected, "{keys}");
        }
    }

    #[test]
    fn the_longest_sequence_is_known_where_lengths_are_drawn() {
        let longest = |text: &str| {
            let rest = "requests = 6\nseed = 1\n";
            toml::from_str::<Workload>(&format!("{rest}{text}")).unwrap().tokens_max()
        };
        let random = "input_tokens = 100\noutput_tokens = 11\nrange_ratio = 0.5\n";
        assert_eq!(
            longest(&format!("pack = 'random@lmdeploy'\ndataset = 'd'\n{random}")),
            Some(111)
        );
        assert_eq!(longest(&format!("pack = 'random@vllm'\n{random}")), Some(167));
        assert_eq!(longest("pack = 'sharegpt@lmdeploy'\ndataset = 'd'"), None);
        let sonnet = "pack = 'sonnet@vllm'\ndataset = 'd'\nprefix_tokens = 5\n";
        assert_eq!(longest(&format!("{sonnet}input_tokens = 10\noutput_tokens = 3")), Some(13));
    }

    #[test]
    fn a_pack_is_named_as_its_file_names_it() {
        for pack in [Pack::SharegptSglangOld, Pack::RandomVllm, Pack::TraceMooncake, Pack::Jsonl] {
            assert_eq!(serde_json::to_value(pack).unwrap(), pack.id());
        }
    }
}
