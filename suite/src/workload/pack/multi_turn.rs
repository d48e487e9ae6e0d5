//! Whole conversations, a request a turn: each prompt is all that was said before and the next
//! question, and is sent when the answer before it has ended.
//!
//! What was said before is what the data set says, not what the server answered: so prompts are
//! known before the run, and the same for every server. A server's cache then serves a prompt up
//! to the end of the one before.

use schema::manifest::ManifestRequest;
use schema::run::PromptForm;
use schema::scenario::Workload;

use super::PlanError;
use crate::workload::dataset::{Conversation, Dataset};
use crate::workload::generators::PythonRandom;
use crate::workload::tokenizer::Tokenizer;

/// Between two speakers.
const BREAK: &str = "\n\n";

/// The conversations of a data set, one after the other.
pub struct Conversations<'a> {
    shuffled: Vec<Conversation<'a>>,
    next: usize,
    tokenizer: &'a Tokenizer,
    form: PromptForm,
    turns_max: usize,
    input_tokens_max: usize,
    think_us: u64,
}

impl<'a> Conversations<'a> {
    pub fn new(
        workload: &Workload,
        dataset: &'a Dataset,
        tokenizer: &'a Tokenizer,
        form: PromptForm,
    ) -> Result<Self, PlanError> {
        let mut shuffled = dataset.conversations()?;
        PythonRandom::seed(workload.seed).shuffle(&mut shuffled);
        let whole = |bound: Option<u64>| {
            bound.and_then(|bound| usize::try_from(bound).ok()).unwrap_or(usize::MAX)
        };
        Ok(Self {
            shuffled,
            next: 0,
            tokenizer,
            form,
            turns_max: whole(workload.turns_max),
            input_tokens_max: whole(workload.input_tokens),
            think_us: workload.think_us.unwrap_or(0),
        })
    }

    /// The turns of the next conversation, of which the first has position `first` in the plan;
    /// empty where its first is too long already, none where there are no more.
    pub fn next(&mut self, first: usize) -> Result<Option<Vec<ManifestRequest>>, PlanError> {
        let Some(turns) = self.shuffled.get(self.next) else { return Ok(None) };
        self.next += 1;
        let (mut said, mut text) = (Vec::new(), String::new());
        let mut requests: Vec<ManifestRequest> = Vec::new();
        for exchange in turns.chunks_exact(2).take(self.turns_max) {
            self.say(&mut said, &mut text, &exchange[0])?;
            let before = said.len();
            self.say(&mut said, &mut text, &exchange[1])?;
            let answer = self.tokenizer.count(&exchange[1])?;
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

    /// Gives the latest turn its text: all that was said but for the answer and the break before.
    fn keep_text(&self, requests: &mut [ManifestRequest], text: &str, answer: &str) {
        let end = text.len() - answer.len() - BREAK.len();
        if let (PromptForm::Text, Some(request)) = (self.form, requests.last_mut()) {
            request.text = Some(text[..end].to_owned());
        }
    }

    /// Adds a turn, tokenized by itself, so that a prompt begins with the very ids of the one
    /// before it.
    fn say(&self, said: &mut Vec<u32>, text: &mut String, turn: &str) -> Result<(), PlanError> {
        if said.is_empty() {
            *text = turn.to_owned();
            said.extend(self.tokenizer.encode(turn)?);
        } else {
            let turn = format!("{BREAK}{turn}");
            said.extend(self.tokenizer.encode_plain(&turn)?);
            text.push_str(&turn);
        }
        Ok(())
    }
}
