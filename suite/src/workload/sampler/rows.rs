//! Sampler of conversations' first turns, with the order and length limits of the tool that it
//! follows: unchanged (`sharegpt`), or repeated and cut to a drawn length (`random`).

use std::collections::VecDeque;
use std::num::NonZero;
use std::thread::ScopedJoinHandle;

use schema::manifest::ManifestRequest;
use schema::run::PromptForm;
use schema::scenario::Pack;

use super::draw::{Draw, LowerBound, empty, uniform};
use crate::workload::dataset::Pair;
use crate::workload::generators::PythonRandom;

/// Number of rows that each core tokenizes before the sampler checks whether there are enough.
const ROWS_PER_CORE: usize = 64;

/// Limits on the token counts of a row's prompt and answer; other rows are dropped.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    prompt_min: usize,
    answer_min: usize,
    prompt_max: usize,
    together_max: usize,
}

impl Bounds {
    /// Returns the limits of the sampler's tool, which may differ where all answers have one
    /// `fixed` length.
    fn of(pack: Pack, fixed: bool) -> Self {
        // Limits of LMDeploy, which vLLM also has and SGLang had.
        let usual = Self { prompt_min: 4, answer_min: 4, prompt_max: 1024, together_max: 2048 };
        match (pack, fixed) {
            (Pack::SharegptSglang, _) => {
                let (prompt_max, together_max) = (usize::MAX, usize::MAX);
                Self { prompt_min: 2, answer_min: 2, prompt_max, together_max }
            }
            (Pack::SharegptVllm, true) => Self { answer_min: 1, ..usual },
            (_, true) => Self { together_max: usize::MAX, ..usual },
            (_, false) => usual,
        }
    }

    fn hold(&self, prompt: usize, answer: usize) -> bool {
        (self.prompt_min..=self.prompt_max).contains(&prompt)
            && answer >= self.answer_min
            && prompt.saturating_add(answer) <= self.together_max
    }
}

/// Source of prompt and answer lengths: the dataset, or random draws.
enum Lengths {
    /// Prompts as in the dataset, and answers as well unless `answer` gives their length; rows
    /// outside of the bounds are dropped.
    Data { bounds: Bounds, answer: Option<usize> },
    /// Input and output length of each request in tokens, drawn before anything else.
    Drawn(Vec<(u64, u64)>),
}

/// Sampler that makes requests from a dataset's conversations.
pub struct Rows<'a> {
    pairs: VecDeque<Pair<'a>>,
    lengths: Lengths,
    draw: Draw<'a>,
    /// Rows that are tokenized and not used yet.
    ready: VecDeque<Row>,
    made: usize,
}

/// Tokenized row of the dataset.
struct Row {
    prompt: Vec<u32>,
    /// Text of the prompt, where the prompt is sent unchanged as text.
    text: Option<String>,
    answer_tokens: usize,
}

impl<'a> Rows<'a> {
    /// Creates a sampler, with the conversations shuffled as the tool does.
    pub fn new(draw: Draw<'a>) -> anyhow::Result<Self> {
        let workload = draw.workload;
        let mut pairs = draw.dataset()?.pairs()?;
        // LMDeploy drops empty prompts before it shuffles, SGLang skips them afterwards.
        if workload.pack == Pack::RandomLmdeploy {
            pairs.retain(|pair| !pair.prompt.is_empty());
        }
        PythonRandom::seed(workload.seed).shuffle(&mut pairs);
        let lengths = Lengths::of(&draw)?;
        Ok(Self { pairs: pairs.into(), lengths, draw, ready: VecDeque::new(), made: 0 })
    }

    /// Returns the next request, or `None` where no rows are left.
    pub fn next(&mut self) -> anyhow::Result<Option<ManifestRequest>> {
        loop {
            if self.ready.is_empty() {
                self.tokenize()?;
            }
            let Some(row) = self.ready.pop_front() else { return Ok(None) };
            if let Some(request) = self.request(row)? {
                self.made += 1;
                return Ok(Some(request));
            }
        }
    }

    /// Tokenizes the next rows in parallel, [`ROWS_PER_CORE`] for each core.
    fn tokenize(&mut self) -> anyhow::Result<()> {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let count = (cores * ROWS_PER_CORE).min(self.pairs.len());
        let pairs: Vec<Pair<'_>> = self.pairs.drain(..count).collect();
        let this = &*self;
        let share = |pairs: &[Pair<'_>]| pairs.iter().map(|pair| this.tokenized(pair)).collect();
        let parts: Vec<anyhow::Result<Vec<Row>>> = std::thread::scope(|scope| {
            let shares = pairs.chunks(count.div_ceil(cores).max(1));
            let threads: Vec<_> = shares.map(|pairs| scope.spawn(move || share(pairs))).collect();
            // A panic in a thread is a bug and continues here.
            let join = |thread: ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            threads.into_iter().map(join).collect()
        });
        for part in parts {
            self.ready.extend(part?);
        }
        Ok(())
    }

    fn tokenized(&self, pair: &Pair<'_>) -> anyhow::Result<Row> {
        let answer_tokens = match self.lengths {
            Lengths::Data { answer: None, .. } => self.draw.tokenizer.encode(&pair.answer)?.len(),
            Lengths::Data { answer: Some(tokens), .. } => tokens,
            Lengths::Drawn(_) => 0,
        };
        let as_it_is = matches!(self.lengths, Lengths::Data { .. });
        let text =
            (as_it_is && self.draw.form == PromptForm::Text).then(|| pair.prompt.to_string());
        Ok(Row { prompt: self.draw.tokenizer.encode(&pair.prompt)?, text, answer_tokens })
    }

    /// Returns the request of a row, or `None` if its lengths are outside of the limits.
    fn request(&self, row: Row) -> anyhow::Result<Option<ManifestRequest>> {
        match &self.lengths {
            Lengths::Data { bounds, .. } => {
                let kept = bounds.hold(row.prompt.len(), row.answer_tokens);
                Ok(kept.then(|| ManifestRequest {
                    output_tokens: row.answer_tokens as u64,
                    prompt: row.prompt,
                    text: row.text,
                    ..ManifestRequest::default()
                }))
            }
            Lengths::Drawn(_) if row.prompt.is_empty() => Ok(None),
            // Requests beyond the measured ones are for warm-up and may have any of the lengths.
            Lengths::Drawn(lengths) => {
                self.cut_to_length(&row.prompt, lengths[self.made % lengths.len()]).map(Some)
            }
        }
    }

    /// Repeats or truncates the token ids of a row's prompt to `input` tokens.
    fn cut_to_length(
        &self,
        ids: &[u32],
        (input, output): (u64, u64),
    ) -> anyhow::Result<ManifestRequest> {
        for (what, tokens) in [("an answer", output), ("a prompt", input)] {
            if tokens == 0 {
                return Err(empty(self.made, what));
            }
        }
        let length = usize::try_from(input).unwrap_or(usize::MAX);
        let prompt: Vec<u32> = ids.iter().copied().cycle().take(length).collect();
        let text = match self.draw.form {
            PromptForm::Text => Some(self.draw.tokenizer.decode(&prompt)?),
            PromptForm::TokenIds => None,
        };
        Ok(ManifestRequest { prompt, text, output_tokens: output, ..ManifestRequest::default() })
    }
}

impl Lengths {
    fn of(draw: &Draw<'_>) -> anyhow::Result<Self> {
        let workload = draw.workload;
        let (Some(input), Some(output)) = (workload.input_tokens, workload.output_tokens) else {
            let answer = workload.output_tokens;
            let answer = answer.map(|tokens| usize::try_from(tokens).unwrap_or(usize::MAX));
            let bounds = Bounds::of(workload.pack, answer.is_some());
            return Ok(Self::Data { bounds, answer });
        };
        let (count, ratio) = (workload.requests, workload.range_ratio.unwrap_or(1.0));
        let mut random = draw.numpy()?;
        let sglang = workload.pack == Pack::RandomSglang;
        let mut inputs = uniform(&mut random, input, ratio, count, LowerBound::One);
        // LMDeploy's tool allows outputs of zero tokens here.
        let lower = if sglang { LowerBound::One } else { LowerBound::Zero };
        let outputs = uniform(&mut random, output, ratio, count, lower);
        if sglang && draw.form == PromptForm::Text {
            // The server adds its special tokens to a text.
            let specials = draw.tokenizer.specials_added() as u64;
            inputs.iter_mut().for_each(|length| *length = length.saturating_sub(specials));
        }
        Ok(Self::Drawn(inputs.into_iter().zip(outputs).collect()))
    }
}
