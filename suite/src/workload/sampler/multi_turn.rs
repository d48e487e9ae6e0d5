//! Sampler of whole conversations with one request for each turn: its prompt is everything before
//! and the next question, and it is sent when the previous answer has ended.
//!
//! Earlier answers come from the dataset, not from the server: prompts are therefore known before
//! the run and equal for every server. A prefix cache can serve a prompt up to the end of the
//! previous one.

use schema::manifest::ManifestRequest;
use schema::run::PromptForm;

use super::draw::Draw;
use crate::workload::dataset::Conversation;
use crate::workload::generators::PythonRandom;

/// Separator between two turns.
const BREAK: &str = "\n\n";

/// Sampler of a dataset's conversations, in shuffled order.
pub struct Conversations<'a> {
    shuffled: Vec<Conversation<'a>>,
    next: usize,
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
            shuffled,
            next: 0,
            draw,
            turns_max: whole(workload.turns_max),
            input_tokens_max: whole(workload.input_tokens),
            think_us: workload.think_us.unwrap_or(0),
        })
    }

    /// Returns the turns of the next conversation, with `first` as the index of its first request
    /// in the plan. The list is empty where the first prompt is too long, and `None` after the last
    /// conversation.
    pub fn next(&mut self, first: usize) -> anyhow::Result<Option<Vec<ManifestRequest>>> {
        let Some(turns) = self.shuffled.get(self.next) else { return Ok(None) };
        self.next += 1;
        let (mut said, mut text) = (Vec::new(), String::new());
        let mut requests: Vec<ManifestRequest> = Vec::new();
        for exchange in turns.chunks_exact(2).take(self.turns_max) {
            self.say(&mut said, &mut text, &exchange[0])?;
            let before = said.len();
            self.say(&mut said, &mut text, &exchange[1])?;
            // Counted without the separator, which a server does not generate.
            let answer = self.draw.tokenizer.count(&exchange[1])?;
            if before == 0 || before > self.input_tokens_max || answer == 0 {
                break;
            }
            requests.push(self.turn(first, requests.len(), &said[..before], answer));
            self.keep_text(&mut requests, &text, &exchange[1]);
        }
        Ok(Some(requests))
    }

    fn turn(
        &self,
        first: usize,
        turn: usize,
        prompt: &[u32],
        output_tokens: u64,
    ) -> ManifestRequest {
        ManifestRequest {
            send_us: if turn == 0 { 0 } else { self.think_us },
            after: (turn > 0).then(|| (first + turn - 1) as u64),
            prompt: prompt.to_vec(),
            text: None,
            output_tokens,
        }
    }

    /// Sets the text of the latest turn: everything before the answer and its separator.
    fn keep_text(&self, requests: &mut [ManifestRequest], text: &str, answer: &str) {
        let end = text.len() - answer.len() - BREAK.len();
        if let (PromptForm::Text, Some(request)) = (self.draw.form, requests.last_mut()) {
            request.text = Some(text[..end].to_owned());
        }
    }

    /// Appends a turn, tokenized by itself, so that a prompt begins with exactly the ids of the
    /// previous prompt.
    fn say(&self, said: &mut Vec<u32>, text: &mut String, turn: &str) -> anyhow::Result<()> {
        if said.is_empty() {
            *text = turn.to_owned();
            // Only the first turn gets special tokens such as beginning-of-sequence.
            said.extend(self.draw.tokenizer.encode(turn)?);
        } else {
            let turn = format!("{BREAK}{turn}");
            said.extend(self.draw.tokenizer.encode_plain(&turn)?);
            text.push_str(&turn);
        }
        Ok(())
    }
}
