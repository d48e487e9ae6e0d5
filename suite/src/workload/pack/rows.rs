//! Requests out of rows of conversations, in the order and within the bounds of the tool that is
//! followed: first turns as they are, or repeated and cut to a drawn length.

use std::collections::VecDeque;
use std::num::NonZero;
use std::thread::ScopedJoinHandle;

use schema::manifest::ManifestRequest;
use schema::run::PromptForm;
use schema::scenario::{Pack, Workload};

use super::PlanError;
use super::lengths::{LowerBound, uniform};
use crate::workload::dataset::{Dataset, Pair};
use crate::workload::generators::{NumpyRandom, PythonRandom};
use crate::workload::tokenizer::{Tokenizer, TokenizerError};

/// Rows that a core tokenizes before it looks whether there are enough.
const ROWS_PER_CORE: usize = 64;

/// Which rows are kept, by the tokens of their prompts and answers.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    prompt_min: usize,
    answer_min: usize,
    prompt_max: usize,
    together_max: usize,
}

impl Bounds {
    /// Those of the pack's tool, which may differ where all answers have one `fixed` length.
    fn of(pack: Pack, fixed: bool) -> Self {
        // LMDeploy's, which vLLM has too and SGLang had.
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

/// How long prompts and answers are.
enum Lengths {
    /// Prompts as in the data, and answers too unless they have a length of their own; rows outside
    /// the bounds are dropped.
    Data { bounds: Bounds, answer: Option<usize> },
    /// Input and output length of each request, drawn before anything else.
    Drawn(Vec<(u64, u64)>),
}

/// The requests that a data set's conversations make, one after the other.
pub struct Rows<'a> {
    pairs: VecDeque<Pair<'a>>,
    lengths: Lengths,
    tokenizer: &'a Tokenizer,
    form: PromptForm,
    /// Rows that are tokenized and not used yet.
    ready: VecDeque<Row>,
    made: usize,
}

/// A tokenized row.
struct Row {
    prompt: Vec<u32>,
    /// Kept where the prompt is sent as it is.
    text: Option<String>,
    answer_tokens: usize,
}

impl<'a> Rows<'a> {
    /// Shuffles the conversations as the pack's tool does.
    pub fn new(
        workload: &Workload,
        dataset: &'a Dataset,
        tokenizer: &'a Tokenizer,
        form: PromptForm,
    ) -> Result<Self, PlanError> {
        let mut pairs = dataset.pairs()?;
        if workload.pack == Pack::RandomLmdeploy {
            pairs.retain(|pair| !pair.prompt.is_empty());
        }
        PythonRandom::seed(workload.seed).shuffle(&mut pairs);
        let lengths = Lengths::of(workload, tokenizer, form)?;
        let (pairs, ready) = (pairs.into(), VecDeque::new());
        Ok(Self { pairs, lengths, tokenizer, form, ready, made: 0 })
    }

    /// The next request; none where the rows are used up.
    pub fn next(&mut self) -> Result<Option<ManifestRequest>, PlanError> {
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

    /// Tokenizes the next rows, a few for every core, side by side.
    fn tokenize(&mut self) -> Result<(), PlanError> {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let count = (cores * ROWS_PER_CORE).min(self.pairs.len());
        let pairs: Vec<Pair<'_>> = self.pairs.drain(..count).collect();
        let this = &*self;
        let share = |pairs: &[Pair<'_>]| pairs.iter().map(|pair| this.tokenized(pair)).collect();
        let parts: Vec<Result<Vec<Row>, TokenizerError>> = std::thread::scope(|scope| {
            let shares = pairs.chunks(count.div_ceil(cores).max(1));
            let threads: Vec<_> = shares.map(|pairs| scope.spawn(move || share(pairs))).collect();
            // A panic in a share is a bug, and goes on here.
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

    fn tokenized(&self, pair: &Pair<'_>) -> Result<Row, TokenizerError> {
        let answer_tokens = match self.lengths {
            Lengths::Data { answer: None, .. } => self.tokenizer.encode(&pair.answer)?.len(),
            Lengths::Data { answer: Some(tokens), .. } => tokens,
            Lengths::Drawn(_) => 0,
        };
        let as_it_is = matches!(self.lengths, Lengths::Data { .. });
        let text = (as_it_is && self.form == PromptForm::Text).then(|| pair.prompt.to_string());
        Ok(Row { prompt: self.tokenizer.encode(&pair.prompt)?, text, answer_tokens })
    }

    /// The request that a row makes, or none if its lengths rule it out.
    fn request(&self, row: Row) -> Result<Option<ManifestRequest>, PlanError> {
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
            // Those beyond the measured ones warm up, and may have any of the lengths.
            Lengths::Drawn(lengths) => {
                self.cut_to_length(&row.prompt, lengths[self.made % lengths.len()]).map(Some)
            }
        }
    }

    /// Repeats or truncates the ids of a row's prompt to `input` tokens.
    fn cut_to_length(
        &self,
        ids: &[u32],
        (input, output): (u64, u64),
    ) -> Result<ManifestRequest, PlanError> {
        for (what, tokens) in [("an answer", output), ("a prompt", input)] {
            if tokens == 0 {
                return Err(PlanError::Empty { index: self.made, what });
            }
        }
        let length = usize::try_from(input).unwrap_or(usize::MAX);
        let prompt: Vec<u32> = ids.iter().copied().cycle().take(length).collect();
        let text = match self.form {
            PromptForm::Text => Some(self.tokenizer.decode(&prompt)?),
            PromptForm::TokenIds => None,
        };
        Ok(ManifestRequest { prompt, text, output_tokens: output, ..ManifestRequest::default() })
    }
}

impl Lengths {
    fn of(workload: &Workload, tokenizer: &Tokenizer, form: PromptForm) -> Result<Self, PlanError> {
        let (Some(input), Some(output)) = (workload.input_tokens, workload.output_tokens) else {
            let answer = workload.output_tokens;
            let answer = answer.map(|tokens| usize::try_from(tokens).unwrap_or(usize::MAX));
            let bounds = Bounds::of(workload.pack, answer.is_some());
            return Ok(Self::Data { bounds, answer });
        };
        let (count, ratio) = (workload.requests, workload.range_ratio.unwrap_or(1.0));
        let mut random = NumpyRandom::seed(super::seed32(workload)?);
        let sglang = workload.pack == Pack::RandomSglang;
        let mut inputs = uniform(&mut random, input, ratio, count, LowerBound::One);
        // LMDeploy's tool has no lower bound of one here.
        let lower = if sglang { LowerBound::One } else { LowerBound::Zero };
        let outputs = uniform(&mut random, output, ratio, count, lower);
        if sglang && form == PromptForm::Text {
            // The server will add its own to the text.
            let specials = tokenizer.specials_added() as u64;
            inputs.iter_mut().for_each(|length| *length = length.saturating_sub(specials));
        }
        Ok(Self::Drawn(inputs.into_iter().zip(outputs).collect()))
    }
}
