//! Tool call parser: separates tool calls from the rest of an answer's text, which arrives piece by piece.

use super::{Format, NAME_CHARS_MAX, Trigger, is_of_name};
use crate::tokenize::overlap;

/// Part of a tool call that a piece of an answer's text has brought.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallPart {
    /// Number of the call in its answer, counted from 0.
    pub index: usize,
    /// Name of the tool; in the first part of a call only.
    pub name: Option<String>,
    /// Next characters of the arguments, which are a JSON object.
    pub arguments: String,
}

/// Reads the text of one answer. Text that a grammar did not keep within the format is passed on as
/// text from where it leaves it.
#[derive(Debug, Clone)]
pub struct CallParser {
    format: &'static Format,
    state: State,
    /// Text between name and arguments, as the trigger of the block has it.
    after_name: &'static str,
    /// Text held back: it may be the beginning of a mark, or white space before one.
    held: String,
    /// Number of calls so far.
    calls: usize,
    /// True once text before the calls has been passed on.
    has_text: bool,
    /// True if an answer with text has no calls: marks within it are text.
    are_alone: bool,
}

/// Part of the answer that comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Text,
    Open,
    BeforeName,
    Name,
    AfterName,
    Arguments(Nesting),
    /// Text after a call: another call of the block, or its end.
    AfterArguments,
    Close,
}

/// Step of the parser.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    To(State),
    /// More text is needed.
    Wait,
    /// The text leaves the format here.
    Leave,
}

/// Position within a JSON object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Nesting {
    depth: u32,
    in_string: bool,
    is_escaped: bool,
}

impl Nesting {
    /// Moves over a byte of JSON; returns true if it ends the object.
    fn ends_with(&mut self, byte: u8) -> bool {
        if self.in_string {
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' => self.is_escaped = true,
                b'"' => self.in_string = false,
                _ => {}
            }
            return false;
        }
        match byte {
            b'"' => self.in_string = true,
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
        self.depth == 0
    }
}

impl CallParser {
    /// Creates the parser of one answer. With `are_alone` an answer is either calls or text, which may
    /// then contain the marks of calls.
    pub fn new(format: &'static Format, are_alone: bool) -> Self {
        Self {
            format,
            state: State::Text,
            after_name: "",
            held: String::new(),
            calls: 0,
            has_text: false,
            are_alone,
        }
    }

    /// Returns true once the answer has called a tool.
    pub fn has_calls(&self) -> bool {
        self.calls > 0
    }

    /// Adds a piece of the answer's text: appends what is text for certain to `content`, and parts of
    /// calls to `calls`.
    pub fn push(&mut self, text: &str, content: &mut String, calls: &mut Vec<CallPart>) {
        self.held.push_str(text);
        loop {
            match self.step(content, calls) {
                Step::To(state) => self.state = state,
                Step::Wait => return,
                Step::Leave => {
                    self.state = State::Text;
                    self.has_text = true;
                }
            }
        }
    }

    /// Adds the text that was held back to `content`, at the end of the answer. Dropped are white
    /// space at the end of an answer with calls, and the mark of a call after which nothing came.
    pub fn finish(&mut self, content: &mut String) {
        let rest = std::mem::take(&mut self.held);
        if self.state == State::Text && !(self.has_calls() && rest.trim().is_empty()) {
            content.push_str(&rest);
        }
    }

    /// Reads the held text as far as the current state goes.
    fn step(&mut self, content: &mut String, calls: &mut Vec<CallPart>) -> Step {
        match self.state {
            State::Text => self.text(content),
            State::Open => self.open(),
            State::BeforeName => self.literal(self.format.before_name, State::Name),
            State::Name => self.name(calls),
            State::AfterName => self.literal(self.after_name, State::Arguments(Nesting::default())),
            State::Arguments(nesting) => self.arguments(nesting, calls),
            State::AfterArguments => self.after_arguments(),
            State::Close => self.literal(self.format.close, State::Text),
        }
    }

    /// Passes text on as far as no call can begin in it.
    fn text(&mut self, content: &mut String) -> Step {
        let is_start = !self.has_text && (self.are_alone || !self.has_calls());
        let at_start = |trigger: &Trigger| trigger.at_start || self.are_alone;
        let begins = |trigger: &'static Trigger| {
            let at = match at_start(trigger) {
                false => self.held.find(trigger.text)?,
                true => {
                    let start = self.held.len() - unspaced(&self.held).len();
                    let begins = is_start && self.held[start..].starts_with(trigger.text);
                    begins.then_some(start)?
                }
            };
            Some((at, trigger))
        };
        let found = self.format.triggers.iter().filter_map(begins).min_by_key(|(at, _)| *at);
        if let Some((at, trigger)) = found {
            let text = self.held[..at].trim_end();
            content.push_str(text);
            self.has_text |= !text.is_empty();
            self.held.drain(..at + trigger.text.len());
            self.after_name = trigger.after_name;
            return Step::To(State::Open);
        }
        let kept = |trigger: &Trigger| match at_start(trigger) {
            false => overlap(&self.held, trigger.text),
            true if is_start && trigger.text.starts_with(unspaced(&self.held)) => self.held.len(),
            true => 0,
        };
        let kept = self.format.triggers.iter().map(kept).max().unwrap_or(0);
        // White space before a call is no text.
        let end = self.held[..self.held.len() - kept].trim_end().len();
        content.extend(self.held.drain(..end));
        self.has_text |= end > 0;
        Step::Wait
    }

    fn open(&mut self) -> Step {
        if !self.format.open.is_empty() {
            let spaces = self.held.len() - self.held.trim_start_matches(' ').len();
            self.held.drain(..spaces);
        }
        self.literal(self.format.open, State::BeforeName)
    }

    /// Moves over a text that the format has here.
    fn literal(&mut self, text: &str, next: State) -> Step {
        if self.held.starts_with(text) {
            self.held.drain(..text.len());
            return Step::To(next);
        }
        if text.starts_with(&self.held) { Step::Wait } else { Step::Leave }
    }

    fn name(&mut self, calls: &mut Vec<CallPart>) -> Step {
        let end = match self.held.bytes().position(|byte| !is_of_name(byte)) {
            Some(end) if (1..=NAME_CHARS_MAX).contains(&end) => end,
            None if self.held.len() <= NAME_CHARS_MAX => return Step::Wait,
            _ => return Step::Leave,
        };
        let name = self.held.drain(..end).collect();
        calls.push(CallPart { index: self.calls, name: Some(name), arguments: String::new() });
        self.calls += 1;
        Step::To(State::AfterName)
    }

    fn arguments(&mut self, mut nesting: Nesting, calls: &mut Vec<CallPart>) -> Step {
        if self.held.is_empty() {
            return Step::Wait;
        }
        if nesting == Nesting::default() && !self.held.starts_with('{') {
            return Step::Leave;
        }
        let end = self.held.bytes().position(|byte| nesting.ends_with(byte));
        let len = end.map_or(self.held.len(), |last| last + 1);
        let arguments = self.held.drain(..len).collect();
        calls.push(CallPart { index: self.calls - 1, name: None, arguments });
        Step::To(match end {
            Some(_) => State::AfterArguments,
            None => State::Arguments(nesting),
        })
    }

    fn after_arguments(&mut self) -> Step {
        let Format { after_arguments, between, before_name, close, .. } = self.format;
        if let Some(between) = between {
            let again = [*after_arguments, *between, *before_name].concat();
            if self.held.starts_with(&again) {
                self.held.drain(..again.len());
                return Step::To(State::Name);
            }
            let closed = [*after_arguments, *close].concat();
            let is_open = |text: &str| text.starts_with(&self.held);
            if !self.held.starts_with(&closed) && (is_open(&again) || is_open(&closed)) {
                return Step::Wait;
            }
        }
        self.literal(after_arguments, State::Close)
    }
}

/// Returns a text without the white space at its beginning.
fn unspaced(text: &str) -> &str {
    text.trim_start_matches(|c: char| c.is_ascii_whitespace())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{DEEPSEEK, DEEPSEEK_V3_1, FORMATS, LLAMA, MISTRAL, MISTRAL_ARGS, TAGS};
    use super::*;

    /// Format, answer, its text, and its calls as `name(arguments)`.
    type Case = (&'static Format, &'static str, &'static str, &'static [&'static str]);

    const CASES: &[Case] = &[
        (&TAGS, "no call < at all ", "no call < at all ", &[]),
        (
            &TAGS,
            "I look.\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"}\\\"\"}}\n</tool_call>\n\
             <tool_call>\n{\"name\": \"g-1\", \"arguments\": {\"b\": [{}]}}\n</tool_call>\n",
            "I look.",
            &[r#"f({"a": "}\""})"#, r#"g-1({"b": [{}]})"#],
        ),
        (&TAGS, "<tool_call>\n{\"name\": \"f\", \"argu", "", &["f()"]),
        (&TAGS, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1", "", &["f({\"a\": 1)"]),
        (&TAGS, "<tool_call> no", " no", &[]),
        (&TAGS, "a <tool_", "a <tool_", &[]),
        (&LLAMA, "{\"name\": \"f\", \"parameters\": {\"a\": 1}}", "", &["f({\"a\": 1})"]),
        (
            &LLAMA,
            "so {\"name\": \"f\", \"parameters\": {}}",
            "so {\"name\": \"f\", \"parameters\": {}}",
            &[],
        ),
        (&LLAMA, "{\"names\": 1}", "{\"names\": 1}", &[]),
        (
            &MISTRAL,
            "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g\", \"arguments\": {}}]",
            "",
            &["f({})", "g({})"],
        ),
        (
            &MISTRAL_ARGS,
            "ok[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]g[ARGS]{\"a\": 2}",
            "ok",
            &["f({})", "g({\"a\": 2})"],
        ),
        (
            &DEEPSEEK,
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{}\n```<｜tool▁call▁end｜>\n\
             <｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            "",
            &["f({})", "g({})"],
        ),
        (
            &DEEPSEEK_V3_1,
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁call▁begin｜>g\
             <｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            "",
            &["f({})", "g({})"],
        ),
    ];

    fn read(format: &'static Format, pieces: &[&str]) -> (String, Vec<String>) {
        read_as(CallParser::new(format, false), pieces)
    }

    fn read_as(mut parser: CallParser, pieces: &[&str]) -> (String, Vec<String>) {
        let (mut content, mut parts) = (String::new(), Vec::new());
        for piece in pieces {
            parser.push(piece, &mut content, &mut parts);
        }
        parser.finish(&mut content);
        let mut calls: Vec<(String, String)> = Vec::new();
        for part in parts {
            if let Some(name) = part.name {
                assert_eq!(part.index, calls.len(), "calls are numbered");
                calls.push((name, String::new()));
            }
            calls[part.index].1 += &part.arguments;
        }
        (content, calls.iter().map(|(name, arguments)| format!("{name}({arguments})")).collect())
    }

    #[test]
    fn calls_are_told_from_text() {
        for (format, text, content, calls) in CASES {
            let found = read(format, &[text]);
            let calls: Vec<String> = calls.iter().map(|call| (*call).to_owned()).collect();
            assert_eq!(found, ((*content).to_owned(), calls), "{text}");
        }
    }

    #[test]
    fn an_answer_by_a_schema_may_contain_the_marks_of_calls() {
        let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
        let json = format!("{{\"a\": \"{}\"}}", call.replace('"', "'").replace('\n', " "));
        let twice = format!("\n{call}\n{call}");
        for (text, content, calls) in [(&json, json.as_str(), 0), (&twice, "", 2)] {
            let pieces: Vec<&str> = text.split_inclusive(|_| true).collect();
            for pieces in [vec![text.as_str()], pieces] {
                let (found, made) = read_as(CallParser::new(&TAGS, true), &pieces);
                assert_eq!((found.as_str(), made.len()), (content, calls), "{text}");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn how_an_answer_is_cut_into_tokens_makes_no_difference(
            case in 0..CASES.len(),
            mut cuts in prop::collection::vec(0usize..260, 0..24),
        ) {
            let (format, text, ..) = CASES[case];
            cuts.retain(|cut| text.is_char_boundary(*cut));
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&str> = cuts.windows(2).map(|ends| &text[ends[0]..ends[1]]).collect();
            prop_assert_eq!(read(format, &pieces), read(format, &[text]));
        }

        #[test]
        fn no_text_is_too_strange(
            format in 0..FORMATS.len(),
            parts in prop::collection::vec(
                prop_oneof![
                    Just("<tool_call>"), Just("\n{\"name\": \""), Just("f"), Just("\", \"arguments\": "),
                    Just("{"), Just("}"), Just("\\"), Just("\""), Just("[TOOL_CALLS]"), Just("["),
                    Just("[ARGS]"), Just("<｜tool▁calls▁begin｜>"), Just(" "), Just("é"), Just("{\"name\":"),
                ],
                0..24,
            ),
        ) {
            let whole = parts.concat();
            prop_assert_eq!(read(FORMATS[format], &parts), read(FORMATS[format], &[&whole]));
        }
    }
}
