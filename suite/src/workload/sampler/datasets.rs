//! Samplers of datasets.
//!
//! Conversations' first turns, with the order and length limits of the tool that is followed:
//! unchanged (`sharegpt`), or repeated and cut to a drawn length (`random`).
//!
//! Whole conversations with one request for each turn: its prompt is everything before and the next
//! question, and it is sent when the previous answer has ended. Earlier answers come from the dataset,
//! not from the server: prompts are therefore known before the run and equal for every server. A
//! prefix cache can serve a prompt up to the end of the previous one.
//!
//! Files with one request per line: traces in Mooncake's format, and the user's own file.

use std::collections::VecDeque;
use std::num::NonZero;
use std::thread::ScopedJoinHandle;

use schema::manifest::ManifestRequest;
use schema::run::PromptForm;
use schema::scenario::{Arrival, Pack};
use serde::Deserialize;

use super::{Draw, Requests, filled, uniform};
use crate::measure::summary::whole;
use crate::workload::dataset::{Conversation, Pair};
use crate::workload::generators::{Pcg64, PythonRandom};

/// Number of conversations that each CPU core tokenizes before the sampler checks whether there are
/// enough.
const ROWS_PER_CORE: usize = 64;

/// Limits on the token counts of a conversation's prompt and answer; conversations outside them are
/// dropped.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    prompt_min: usize,
    answer_min: usize,
    prompt_max: usize,
    together_max: usize,
}

impl Bounds {
    /// Returns the length limits of the benchmark tool that the sampler `pack` follows; they may
    /// differ where all answers have one fixed length, which `fixed` says.
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
    /// Lengths of prompts from the dataset, and of answers too unless `answer` gives one length in
    /// tokens; conversations outside of `bounds` are dropped.
    Data { bounds: Bounds, answer: Option<usize> },
    /// Input and output length of each request in tokens, drawn at random before the prompts are
    /// chosen.
    Drawn(Vec<(u64, u64)>),
}

/// Sampler that builds requests from the first two turns of a dataset's conversations.
pub struct Rows<'a> {
    pairs: VecDeque<Pair<'a>>,
    lengths: Lengths,
    draw: Draw<'a>,
    /// Tokenized conversations that are not used yet.
    ready: VecDeque<Row>,
    made: usize,
}

/// Tokenized first two turns of a conversation.
struct Row {
    prompt: Vec<u32>,
    /// Text of the prompt, if the prompt is sent as text and not cut to a length; otherwise `None`.
    text: Option<String>,
    answer_tokens: usize,
}

impl<'a> Rows<'a> {
    /// Creates a sampler of conversations' first turns, shuffled as the followed benchmark tool
    /// does.
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

    /// Returns the next request, or `None` where no conversations are left.
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

    /// Tokenizes the next conversations in parallel, [`ROWS_PER_CORE`] for each CPU core.
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
            Lengths::Data { answer: None, .. } => {
                self.draw.tokenizer()?.encode(&pair.answer)?.len()
            }
            Lengths::Data { answer: Some(tokens), .. } => tokens,
            Lengths::Drawn(_) => 0,
        };
        let as_it_is = matches!(self.lengths, Lengths::Data { .. });
        let prompt = self.draw.written(pair.prompt.to_string())?;
        let ids = self.draw.tokenizer()?.encode(&prompt)?;
        let text = Some(prompt).filter(|_| as_it_is && self.draw.form == PromptForm::Text);
        Ok(Row { prompt: ids, text, answer_tokens })
    }

    /// Returns the request of a tokenized conversation, or `None` if its lengths are outside of the
    /// limits or its prompt is empty.
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

    /// Returns a request whose prompt is the token ids `ids`, repeated or truncated to `input`
    /// tokens, with `output` output tokens.
    fn cut_to_length(
        &self,
        ids: &[u32],
        (input, output): (u64, u64),
    ) -> anyhow::Result<ManifestRequest> {
        filled(self.made, [("an answer", output), ("a prompt", input)])?;
        let length = usize::try_from(input).unwrap_or(usize::MAX);
        let prompt: Vec<u32> = ids.iter().copied().cycle().take(length).collect();
        let text = match self.draw.form {
            PromptForm::Text => Some(self.draw.tokenizer()?.decode(&prompt)?),
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
        let mut inputs = uniform(&mut random, input, ratio, count, 1);
        // LMDeploy's tool allows outputs of zero tokens here.
        let least = u64::from(sglang);
        let outputs = uniform(&mut random, output, ratio, count, least);
        if sglang && draw.form == PromptForm::Text {
            // The server adds its special tokens to a text.
            let specials = draw.tokenizer()?.specials_added() as u64;
            inputs.iter_mut().for_each(|length| *length = length.saturating_sub(specials));
        }
        Ok(Self::Drawn(inputs.into_iter().zip(outputs).collect()))
    }
}

/// Text between two turns of a conversation in a prompt.
const BREAK: &str = "\n\n";

/// Sampler of whole conversations of a dataset, in shuffled order, with one request for each turn.
pub struct Conversations<'a> {
    shuffled: std::vec::IntoIter<Conversation<'a>>,
    draw: Draw<'a>,
    turns_max: usize,
    input_tokens_max: usize,
    think_us: u64,
}

impl<'a> Conversations<'a> {
    pub fn new(draw: Draw<'a>) -> anyhow::Result<Self> {
        let workload = draw.workload;
        let mut shuffled = draw.dataset()?.conversations()?;
        PythonRandom::seed(workload.seed).shuffle(&mut shuffled);
        let whole = |bound: Option<u64>| {
            bound.and_then(|bound| usize::try_from(bound).ok()).unwrap_or(usize::MAX)
        };
        Ok(Self {
            shuffled: shuffled.into_iter(),
            draw,
            turns_max: whole(workload.turns_max),
            input_tokens_max: whole(workload.input_tokens),
            think_us: workload.think_us.unwrap_or(0),
        })
    }

    /// Returns the requests of the next conversation's turns, with `first` as the index of its
    /// first request in the plan. There are none where the first turn cannot be used, such as with
    /// a prompt that is too long; `None` is returned after the last conversation.
    pub fn next(&mut self, first: usize) -> anyhow::Result<Option<Vec<ManifestRequest>>> {
        let Some(turns) = self.shuffled.next() else { return Ok(None) };
        let (mut said, mut text) = (Vec::new(), String::new());
        let mut requests: Vec<ManifestRequest> = Vec::new();
        for exchange in turns.chunks_exact(2).take(self.turns_max) {
            self.say(&mut said, &mut text, &exchange[0])?;
            let before = said.len();
            self.say(&mut said, &mut text, &exchange[1])?;
            // Counted without the separator, which a server does not generate.
            let answer = self.draw.tokenizer()?.count(&exchange[1])?;
            if before == 0 || before > self.input_tokens_max || answer == 0 {
                break;
            }
            let turn = requests.len();
            // The conversation so far, without the latest answer and its separator.
            let prompt_text = &text[..text.len() - exchange[1].len() - BREAK.len()];
            requests.push(ManifestRequest {
                send_us: if turn == 0 { 0 } else { self.think_us },
                after: (turn > 0).then(|| (first + turn - 1) as u64),
                prompt: said[..before].to_vec(),
                text: (self.draw.form == PromptForm::Text).then(|| prompt_text.to_owned()),
                output_tokens: answer,
            });
        }
        Ok(Some(requests))
    }

    /// Appends a turn to the conversation's token ids and text; the turn is tokenized by itself, so
    /// that a prompt begins with exactly the ids of the previous prompt.
    fn say(&self, said: &mut Vec<u32>, text: &mut String, turn: &str) -> anyhow::Result<()> {
        if said.is_empty() {
            *text = turn.to_owned();
            // Only the first turn gets special tokens such as beginning-of-sequence.
            said.extend(self.draw.tokenizer()?.encode(turn)?);
        } else {
            let turn = format!("{BREAK}{turn}");
            said.extend(self.draw.tokenizer()?.encode_plain(&turn)?);
            text.push_str(&turn);
        }
        Ok(())
    }
}

/// Number of tokens in a block of a Mooncake trace.
const BLOCK_TOKENS: usize = 512;

/// Line of a trace in Mooncake's format, which is one request:
/// <https://github.com/kvcache-ai/Mooncake>, `FAST25-release`.
#[derive(Debug, Deserialize)]
struct Traced {
    /// Arrival time of the traced request, in milliseconds.
    timestamp: f64,
    input_length: usize,
    output_length: u64,
    /// Ids of the 512-token blocks of the prompt; equal ids in two requests mean equal tokens in
    /// the block and before it.
    hash_ids: Vec<u64>,
}

/// Returns the first `workload.requests` requests of a Mooncake trace by time, or all if it has
/// fewer, with times relative to the first one.
///
/// A trace has no text: the token ids of a block are drawn from the workload's seed and the block's
/// id, so that prompts have the same blocks in common as in the trace.
pub fn traced(draw: &Draw<'_>) -> anyhow::Result<Requests> {
    let (workload, dataset) = (draw.workload, draw.dataset()?);
    let mut lines: Vec<(usize, Traced)> = dataset.lines()?;
    lines.sort_by(|left, right| left.1.timestamp.total_cmp(&right.1.timestamp));
    lines.truncate(usize::try_from(workload.requests).unwrap_or(usize::MAX));
    let start = lines.first().map_or(0.0, |line| line.1.timestamp);
    let ids = draw.tokenizer()?.ordinary_ids();
    let mut requests = Vec::new();
    for (index, (number, line)) in lines.iter().enumerate() {
        // The last block may be used in part.
        let covered = line.hash_ids.len() * BLOCK_TOKENS;
        if line.input_length > covered {
            let message = format!(
                "its {} blocks cover {covered} of {} tokens",
                line.hash_ids.len(),
                line.input_length
            );
            return Err(dataset.line_error(*number, message));
        }
        let blocks = line.hash_ids.iter().flat_map(|block| block_ids(workload.seed, *block, &ids));
        let prompt: Vec<u32> = blocks.take(line.input_length).collect();
        let mut request = draw.of_ids(prompt, line.output_length, index)?;
        request.send_us = whole((line.timestamp - start) * 1000.0);
        requests.push(request);
    }
    Ok(requests)
}

fn block_ids(seed: u64, block: u64, ids: &[u32]) -> Vec<u32> {
    let mut random = Pcg64::of_pair(seed, block);
    let mut position = || usize::try_from(random.integers(0, ids.len() as u64)).unwrap_or(0);
    (0..BLOCK_TOKENS).map(|_| ids[position()]).collect()
}

/// Line of the user's own dataset file, which is one request; or of a dataset that vLLM's tool reads
/// from the Hugging Face hub.
#[derive(Debug, Deserialize)]
struct Own {
    prompt: Option<OwnPrompt>,
    /// Turns of a question of `philschmid/mt-bench`; the first turn is the prompt.
    turns: Option<Vec<String>>,
    /// Task of `likaixin/InstructCoder`; `input` has the code to which it applies.
    instruction: Option<String>,
    input: Option<String>,
    output_tokens: Option<u64>,
    send_us: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum OwnPrompt {
    Text(String),
    Ids(Vec<u32>),
}

impl Own {
    /// Returns the prompt of the line; `None` if it has none.
    fn prompt(self) -> Option<OwnPrompt> {
        let first = || self.turns?.into_iter().next();
        let task = || {
            // The words after the task are those of vLLM's tool.
            let (input, task) = (self.input?, self.instruction?);
            let only = "Just output the code, do not include any explanation.";
            Some(format!("{input}\n\n{task} {only}"))
        };
        self.prompt.or_else(|| first().or_else(task).map(OwnPrompt::Text))
    }
}

/// Returns the requests in the user's own dataset file, in its order.
pub fn own(draw: &Draw<'_>) -> anyhow::Result<Requests> {
    let (scenario, dataset) = (draw.scenario, draw.dataset()?);
    let timed = matches!(scenario.arrival, Arrival::Trace { .. });
    let mut requests = Vec::new();
    for (number, line) in dataset.lines::<Own>()? {
        let wrong = |message: &str| dataset.line_error(number, message.to_owned());
        let (own, fixed) = (line.output_tokens, scenario.workload.output_tokens);
        // vLLM's tool prefers the length of its flag to that of the file.
        let is_fixed = scenario.workload.pack == Pack::CustomVllm;
        let output_tokens = if is_fixed { fixed.or(own) } else { own.or(fixed) };
        let output_tokens = output_tokens
            .ok_or_else(|| wrong("it has no `output_tokens`, and neither has the scenario"))?;
        if timed && line.send_us.is_none() {
            return Err(wrong("it has no `send_us`, and `arrival.kind` is `trace`"));
        }
        let send_us = line.send_us.unwrap_or(0);
        let prompt = line.prompt().ok_or_else(|| wrong("it has no `prompt`"))?;
        let mut request = match prompt {
            OwnPrompt::Text(text) => {
                draw.of_text(draw.written(text)?, output_tokens, requests.len())?
            }
            OwnPrompt::Ids(ids) => draw.of_ids(ids, output_tokens, requests.len())?,
        };
        if request.prompt.is_empty() || output_tokens == 0 {
            return Err(wrong("its prompt or its answer has no tokens"));
        }
        request.send_us = send_us;
        requests.push(request);
    }
    Ok(requests)
}
