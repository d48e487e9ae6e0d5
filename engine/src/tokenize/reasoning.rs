//! Separates a model's reasoning and its tool calls from its answer, in text that arrives piece by
//! piece.
//!
//! Two formats are known: `<think>` tags, as Qwen3 writes them, and the channels of gpt-oss's
//! harmony format (`harmony.rs`). Both are recognized in text with its markup, so that it does not
//! matter whether a tag is one token or several.

use super::harmony;
use super::marks::overlap;
use crate::tools::{self, CallParser, CallPart, Format};

pub(super) const THINK: &str = "<think>";
pub(super) const THINK_END: &str = "</think>";

/// Format in which a model marks its reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reasoning {
    /// The model marks no reasoning, or in an unknown format.
    None,
    /// Reasoning stands between `<think>` and `</think>`.
    Think,
    /// Reasoning stands in a channel of harmony. Its marks are special tokens, which the
    /// detokenizer must keep in the text.
    Harmony,
}

/// Piece of an output's text, separated into reasoning, answer and tool calls.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SplitText {
    /// Text of the reasoning in the piece, without markup.
    pub reasoning: String,
    /// Text of the answer in the piece, without the markup of the reasoning.
    pub content: String,
    /// Parts of tool calls in the piece.
    pub calls: Vec<CallPart>,
}

impl SplitText {
    /// Joins the parts of each tool call.
    pub fn whole(mut self) -> Self {
        let mut calls: Vec<CallPart> = Vec::new();
        for part in self.calls {
            match calls.iter_mut().find(|call| call.index == part.index) {
                Some(call) => call.arguments += &part.arguments,
                None => calls.push(part),
            }
        }
        self.calls = calls;
        self
    }
}

/// Separates the text of one output, piece by piece, into reasoning, answer and tool calls.
#[derive(Debug, Clone)]
pub struct Splitter {
    state: State,
    /// Output text held back, since it may be the beginning of a mark, or white space before one.
    held: String,
    calls: Calls,
}

/// Tool calls that a splitter finds.
#[derive(Debug, Clone)]
enum Calls {
    /// None: marks of calls are text.
    Unread,
    /// Those in the text of the answer.
    InContent(CallParser),
    /// Messages of harmony to a function; so many were begun.
    Messages(usize),
}

/// Part of an output that a splitter between reasoning and answer is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Start of the output, where the model may or may not open a `<think>` tag.
    ThinkOrNot,
    Think,
    /// Part between the opening `<think>` tag and the reasoning's first character: line ends, which
    /// belong neither to the reasoning nor to the answer.
    BeforeThink,
    /// Part after the closing `</think>` tag, before the answer's first character; line ends are
    /// dropped.
    BeforeContent,
    Content,
    /// Header of a harmony message, which names its channel.
    Header,
    /// Text of a harmony message: reasoning, or part of the answer.
    Message {
        is_reasoning: bool,
    },
    /// Text of a harmony message to a function, which is its arguments.
    Call,
}

impl Splitter {
    /// Creates a splitter for the output that follows `prompt`, which may have opened the `<think>`
    /// tag.
    pub fn new(reasoning: Reasoning, prompt: &str) -> Self {
        let state = match reasoning {
            Reasoning::None => State::Content,
            // A template with thinking turned off writes an empty block, which it closes.
            Reasoning::Think if closes_thinking(prompt) => State::Content,
            Reasoning::Harmony => State::Header,
            Reasoning::Think if opens_thinking(prompt) => State::BeforeThink,
            Reasoning::Think => State::ThinkOrNot,
        };
        Self { state, held: String::new(), calls: Calls::Unread }
    }

    /// Makes the splitter find the tool calls of a model that writes them in this format; with
    /// `are_alone` an answer is either calls or text.
    pub fn with_calls(self, format: &'static Format, are_alone: bool) -> Self {
        let calls = match *format == tools::HARMONY {
            true => Calls::Messages(0),
            false => Calls::InContent(CallParser::new(format, are_alone)),
        };
        Self { calls, ..self }
    }

    /// Returns true once the output has called a tool.
    pub fn has_calls(&self) -> bool {
        match &self.calls {
            Calls::Unread => false,
            Calls::InContent(parser) => parser.has_calls(),
            Calls::Messages(begun) => *begun > 0,
        }
    }

    /// Adds a piece of output text; returns the reasoning, answer and calls that are final now.
    pub fn push(&mut self, text: &str) -> SplitText {
        let mut parts = SplitText::default();
        // Nothing is held back once the answer has begun.
        if self.state == State::Content {
            parts.content.push_str(text);
        } else {
            self.held.push_str(text);
            while self.advance(&mut parts) {}
        }
        self.take_calls(&mut parts);
        parts
    }

    /// Moves the tool calls in the text of the answer to where they belong.
    fn take_calls(&mut self, parts: &mut SplitText) {
        if let Calls::InContent(parser) = &mut self.calls {
            let content = std::mem::take(&mut parts.content);
            parser.push(&content, &mut parts.content, &mut parts.calls);
        }
    }

    /// Releases the output text that was held back, at the end of the output; an incomplete harmony
    /// header is dropped.
    pub fn finish(&mut self) -> SplitText {
        let rest = std::mem::take(&mut self.held);
        let mut parts = SplitText::default();
        match self.state {
            State::Think | State::Message { is_reasoning: true } => parts.reasoning = rest,
            State::ThinkOrNot | State::Content | State::Message { .. } => parts.content = rest,
            State::Call => self.call_part(None, rest, &mut parts),
            State::BeforeThink | State::BeforeContent | State::Header => {}
        }
        self.take_calls(&mut parts);
        if let Calls::InContent(parser) = &mut self.calls {
            parser.finish(&mut parts.content);
        }
        parts
    }

    /// Adds a part of the harmony message to a function that was begun last.
    fn call_part(&self, name: Option<String>, arguments: String, parts: &mut SplitText) {
        if let (Calls::Messages(begun), true) =
            (&self.calls, name.is_some() || !arguments.is_empty())
        {
            parts.calls.push(CallPart { index: begun - 1, name, arguments });
        }
    }

    /// Appends to `parts` the held text that is final in the splitter's current state, and moves to
    /// the next state if the held text shows where that begins. Returns false if the state remains,
    /// since more text is needed.
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
            State::Header => self.header(parts),
            State::Call => {
                let mut arguments = String::new();
                let found = self.until(&harmony::MESSAGE_ENDS, &mut arguments);
                self.call_part(None, arguments, parts);
                found.map(|_| State::Header)
            }
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

    /// Looks for `<think>` at the very start of the output, and returns the next state; `None` if
    /// more text is needed. White space before the tag is not tolerated: holding it back would
    /// delay the first token of an answer.
    fn think_or_not(&mut self) -> Option<State> {
        if let Some(rest) = self.held.strip_prefix(THINK) {
            self.held = rest.to_owned();
            return Some(State::BeforeThink);
        }
        (!THINK.starts_with(&self.held)).then_some(State::Content)
    }

    /// Drops line ends at the beginning of the held text; returns true once other text follows.
    fn after_line_ends(&mut self) -> bool {
        let start = self.held.len() - self.held.trim_start_matches('\n').len();
        self.held.drain(..start);
        !self.held.is_empty()
    }

    /// Reads the header of a harmony message and returns the next state; `None` if more text is
    /// needed. Text without a header counts as answer, so that the output of a model that does not
    /// know the format is not lost.
    fn header(&mut self, parts: &mut SplitText) -> Option<State> {
        let may_be_header = harmony::HEADER_STARTS
            .iter()
            .any(|mark| self.held.starts_with(mark) || mark.starts_with(&self.held));
        if !may_be_header {
            return Some(State::Message { is_reasoning: false });
        }
        let at = self.held.find(harmony::MESSAGE)?;
        let is_reasoning = harmony::is_reasoning(&self.held[..at]);
        let function = harmony::function(&self.held[..at]).map(str::to_owned);
        self.held.drain(..at + harmony::MESSAGE.len());
        if let (Calls::Messages(begun), Some(name)) = (&mut self.calls, function) {
            *begun += 1;
            self.call_part(Some(name), String::new(), parts);
            return Some(State::Call);
        }
        Some(State::Message { is_reasoning })
    }

    /// Releases to `out` the text before the first of `marks` and drops the mark, with line ends
    /// before `</think>`. Without a mark, releases the text that cannot belong to one and returns
    /// `None`.
    fn until(&mut self, marks: &[&str], out: &mut String) -> Option<()> {
        let found = marks.iter().filter_map(|mark| Some((self.held.find(mark)?, mark.len())));
        let trimmed = |text: &str| match self.state {
            State::Think => text.trim_end_matches('\n').len(),
            _ => text.len(),
        };
        // The earliest mark ends the text.
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

/// Returns true if a prompt ends with the tag `<think>`, apart from white space, so that the output
/// begins with reasoning.
pub(super) fn opens_thinking(prompt: &str) -> bool {
    prompt.trim_end().ends_with(THINK)
}

/// Returns true if a prompt ends with the tag `</think>`, apart from white space, as a chat
/// template with thinking turned off writes.
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
