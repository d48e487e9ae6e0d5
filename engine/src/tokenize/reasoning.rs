//! Tells a model's reasoning from its answer, in text that comes piece by piece.
//!
//! Two ways are known: `<think>` tags, as Qwen3 was taught, and the channels of gpt-oss's harmony
//! format (`harmony.rs`). Both are read from the text with its markup, so that a tag that is spread
//! over tokens is one all the same.

use super::harmony;
use crate::text::overlap;

pub(super) const THINK: &str = "<think>";
pub(super) const THINK_END: &str = "</think>";

/// How a model sets its reasoning apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reasoning {
    /// It does not, or not in a way that is known here.
    None,
    /// `<think>` and `</think>`.
    Think,
    /// Channels; the markup is special tokens, which have to be kept in the text.
    Harmony,
}

/// A piece of an answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SplitText {
    /// What the model thought, without markup.
    pub reasoning: String,
    /// What it answered.
    pub content: String,
}

/// Takes one answer apart.
#[derive(Debug, Clone)]
pub struct Splitter {
    state: State,
    /// Text that may be the beginning of a mark, or white space before one.
    held: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing came that says whether the model thinks first.
    ThinkOrNot,
    Think,
    /// Line ends between a tag and what it is about are nobody's text.
    BeforeThink,
    BeforeContent,
    Content,
    /// Between the messages of harmony.
    Header,
    Message {
        is_reasoning: bool,
    },
}

impl Splitter {
    /// A splitter for what follows `prompt`, which may have opened the reasoning itself.
    pub fn new(reasoning: Reasoning, prompt: &str) -> Self {
        let state = match reasoning {
            Reasoning::None => State::Content,
            Reasoning::Think if closes_thinking(prompt) => State::Content,
            Reasoning::Harmony => State::Header,
            Reasoning::Think if opens_thinking(prompt) => State::BeforeThink,
            Reasoning::Think => State::ThinkOrNot,
        };
        Self { state, held: String::new() }
    }

    /// What a further piece of text makes certain.
    pub fn push(&mut self, text: &str) -> SplitText {
        let mut parts = SplitText::default();
        if self.state == State::Content {
            parts.content.push_str(text);
            return parts;
        }
        self.held.push_str(text);
        while self.advance(&mut parts) {}
        parts
    }

    /// What was held back, now that nothing follows.
    pub fn finish(&mut self) -> SplitText {
        let rest = std::mem::take(&mut self.held);
        let mut parts = SplitText::default();
        match self.state {
            State::Think | State::Message { is_reasoning: true } => parts.reasoning = rest,
            State::ThinkOrNot | State::Content | State::Message { .. } => parts.content = rest,
            State::BeforeThink | State::BeforeContent | State::Header => {}
        }
        parts
    }

    /// Moves on to the next state if the held text leads there; lets out what is certain.
    fn advance(&mut self, parts: &mut SplitText) -> bool {
        let next = match self.state {
            State::ThinkOrNot => self.think_or_not(),
            State::BeforeThink => self.after_line_ends().then_some(State::Think),
            State::BeforeContent => self.after_line_ends().then_some(State::Content),
            State::Think => {
                let found = self.until(&[THINK_END], &mut parts.reasoning);
                found.map(|_| State::BeforeContent)
            }
            State::Content => {
                parts.content.push_str(&std::mem::take(&mut self.held));
                None
            }
            State::Header => self.header(),
            State::Message { is_reasoning } => {
                let out = if is_reasoning { &mut parts.reasoning } else { &mut parts.content };
                self.until(&harmony::MESSAGE_ENDS, out).map(|_| State::Header)
            }
        };
        if let Some(next) = next {
            self.state = next;
        }
        next.is_some()
    }

    /// The tag comes first or not at all: holding white space back to see would make the first
    /// token of an answer look late.
    fn think_or_not(&mut self) -> Option<State> {
        if let Some(rest) = self.held.strip_prefix(THINK) {
            self.held = rest.to_owned();
            return Some(State::BeforeThink);
        }
        (!THINK.starts_with(&self.held)).then_some(State::Content)
    }

    fn after_line_ends(&mut self) -> bool {
        let start = self.held.len() - self.held.trim_start_matches('\n').len();
        self.held.drain(..start);
        !self.held.is_empty()
    }

    /// Reads a header of harmony; text without one is content, since a model that was never taught
    /// the format must not fall silent.
    fn header(&mut self) -> Option<State> {
        if let Some(at) = self.held.find(harmony::MESSAGE) {
            let is_reasoning = harmony::is_reasoning(&self.held[..at]);
            self.held.drain(..at + harmony::MESSAGE.len());
            return Some(State::Message { is_reasoning });
        }
        let may_be_header = harmony::HEADER_STARTS
            .iter()
            .any(|mark| self.held.starts_with(mark) || mark.starts_with(&self.held));
        (!may_be_header).then_some(State::Message { is_reasoning: false })
    }

    /// Lets out the text before the first of `marks` and drops it with the mark; line ends before
    /// `</think>` go with it. Without a mark, what cannot be part of one is let out.
    fn until(&mut self, marks: &[&str], out: &mut String) -> Option<()> {
        let found = marks.iter().filter_map(|mark| Some((self.held.find(mark)?, mark.len())));
        let trimmed = |text: &str| match self.state {
            State::Think => text.trim_end_matches('\n').len(),
            _ => text.len(),
        };
        if let Some((at, len)) = found.min() {
            out.push_str(&self.held[..trimmed(&self.held[..at])]);
            self.held.drain(..at + len);
            return Some(());
        }
        let kept = marks.iter().map(|mark| overlap(&self.held, mark)).max().unwrap_or(0);
        let end = trimmed(&self.held[..self.held.len() - kept]);
        out.push_str(&self.held[..end]);
        self.held.drain(..end);
        None
    }
}

/// Whether a prompt ends within the model's thinking.
pub(super) fn opens_thinking(prompt: &str) -> bool {
    prompt.trim_end().ends_with(THINK)
}

/// Whether a prompt ends after it, as where a template was told to leave the thinking out.
pub(super) fn closes_thinking(prompt: &str) -> bool {
    prompt.trim_end().ends_with(THINK_END)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn split(reasoning: Reasoning, prompt: &str, pieces: &[&str]) -> (String, String) {
        let mut splitter = Splitter::new(reasoning, prompt);
        let (mut thought, mut said) = (String::new(), String::new());
        for piece in pieces {
            let parts = splitter.push(piece);
            thought += &parts.reasoning;
            said += &parts.content;
        }
        let parts = splitter.finish();
        (thought + &parts.reasoning, said + &parts.content)
    }

    const CASES: [(Reasoning, &str, &str, &str, &str); 14] = {
        use Reasoning::{Harmony, None, Think};
        [
            (None, "", "<think>a</think>b", "", "<think>a</think>b"),
            (Think, "", "<think>\na\nb\n</think>\n\nc\n\nd", "a\nb", "c\n\nd"),
            (Think, "", "plain < text", "", "plain < text"),
            (Think, "", "\n\n<think>a</think>b", "", "\n\n<think>a</think>b"),
            (Think, "...<think>\n", "\na</think>b", "a", "b"),
            (Think, "...<think>\n\n</think>\n\n", "b", "", "b"),
            (Think, "", "<think>never ends </thin", "never ends </thin", ""),
            (Think, "", "<thin", "", "<thin"),
            (
                Harmony,
                "",
                "<|channel|>analysis<|message|>a <b<|end|><|start|>assistant<|channel|>final\
                 <|message|>c\n<|return|>",
                "a <b",
                "c\n",
            ),
            (Harmony, "", "<|channel|>commentary<|message|>plan<|end|>", "", "plan"),
            (Harmony, "", "<|channel|>analysis<|message|>cut o", "cut o", ""),
            (
                Harmony,
                "",
                "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>",
                "",
                "{}",
            ),
            (Harmony, "", "no markup at all", "", "no markup at all"),
            (Harmony, "", "<|channel|>analy", "", ""),
        ]
    };

    #[test]
    fn reasoning_and_answer_are_told_apart() {
        for (reasoning, prompt, text, thought, said) in CASES {
            let found = split(reasoning, prompt, &[text]);
            assert_eq!(found, (thought.to_owned(), said.to_owned()), "{text}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn how_a_text_is_cut_into_tokens_makes_no_difference(
            case in 0..CASES.len(),
            mut cuts in prop::collection::vec(0usize..160, 0..12),
        ) {
            let (reasoning, prompt, text, thought, said) = CASES[case];
            cuts.retain(|cut| *cut < text.len());
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&str> = cuts.windows(2).map(|ends| &text[ends[0]..ends[1]]).collect();
            let found = split(reasoning, prompt, &pieces);
            prop_assert_eq!(found, (thought.to_owned(), said.to_owned()));
        }
    }
}
