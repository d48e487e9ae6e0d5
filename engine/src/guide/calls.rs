//! Tool calls in an output: free text is followed until a call's trigger ends it; from there a grammar
//! keeps the call within its format and the arguments within the schema of the tool.

use std::fmt::Write as _;

use engine_core::sample::TokenSet;
use llguidance::Matcher;
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{TokEnv, TokTrie, TrieNode};
use serde_json::Value;

use super::TextError;
use super::schema::SchemaCost;
use crate::tools::{Format, Tool, Trigger};

/// Limit on the number of tools of a request. OpenAI's limit is 128.
pub(crate) const TOOLS_MAX: usize = 128;

/// Tool calls that an output may or must have.
#[derive(Debug, Clone, PartialEq)]
pub struct Calls {
    /// Format in which the model writes calls.
    pub format: &'static Format,
    /// Tools that may be called; at least one.
    pub tools: Vec<Tool>,
    /// True if the output must have a call; then it has calls alone, without text around them.
    pub is_required: bool,
    /// True if the output may have several calls.
    pub may_repeat: bool,
    /// True if the names of special tokens are part of the output's text.
    pub shows_special: bool,
    /// JSON schema of an output without calls; `None` if that is free text. With a schema, calls stand
    /// alone: no text is around them.
    pub answer: Option<Value>,
}

impl Calls {
    /// Refuses tools whose grammar could take too much time or memory to build; the limits are those
    /// of one schema. Returns what [`SchemaCost::check`] does.
    pub(super) fn check(&self) -> Result<bool, TextError> {
        let parameters = self.tools.iter().map(|tool| &tool.parameters);
        SchemaCost::check_all(parameters.chain(&self.answer))
    }

    /// Returns the grammar of a block of calls from after `trigger` on. With `from_start` it is that of
    /// a whole output without free text: blocks with their triggers, in harmony messages of reasoning
    /// before them, or an output that follows the schema instead of calling a tool.
    pub(super) fn grammar(
        &self,
        trigger: &Trigger,
        from_start: bool,
        trie: &TokTrie,
    ) -> TopLevelGrammar {
        let literal = |text: &str| literal(text, trie);
        let Format { open, before_name, after_arguments, between, close, .. } = self.format;
        let is_harmony = trigger.text.starts_with("<|channel|>");
        let reasoning = if from_start && is_harmony { "reasoning* " } else { "" };
        let mut lark = String::from("start: ");
        if from_start {
            let repeated = self.format.repeats && self.may_repeat;
            let more = if repeated { " (\"\\n\"? block)*" } else { "" };
            match &self.answer {
                None => {
                    let _ = writeln!(lark, "{reasoning}block{more}");
                }
                Some(schema) => {
                    let mark = "<|channel|>final<|message|>";
                    let mark = if is_harmony { literal(mark) } else { String::new() };
                    let _ = writeln!(lark, "{reasoning}(block{more} | {mark} answer)");
                    let schema = super::with_spacing(schema.clone());
                    let _ = writeln!(lark, "answer: %json {schema}");
                }
            }
            lark += "block: ";
            lark += &literal(trigger.text);
        }
        if !open.is_empty() {
            lark += " \" \"? ";
            lark += &literal(open);
        }
        lark += " call ";
        if let (Some(between), true) = (between, self.may_repeat) {
            let _ = write!(lark, "({} call)* ", literal(between));
        }
        let _ = writeln!(lark, "{}", literal(close));
        let numbers = 0..self.tools.len();
        let names: Vec<String> = numbers.map(|number| format!("call_{number}")).collect();
        let _ = writeln!(lark, "call: {}", names.join(" | "));
        for (number, tool) in self.tools.iter().enumerate() {
            let before = literal(&[before_name, tool.name.as_str(), trigger.after_name].concat());
            let after = literal(after_arguments);
            let _ = writeln!(lark, "call_{number}: {before} arguments_{number} {after}");
            let schema = super::with_spacing(tool.parameters.clone());
            let _ = writeln!(lark, "arguments_{number}: %json {schema}");
        }
        if !reasoning.is_empty() {
            let _ = writeln!(
                lark,
                "reasoning: {} THOUGHT {}",
                literal("<|channel|>analysis<|message|>"),
                literal("<|end|><|start|>assistant")
            );
            lark += "THOUGHT: /(.|\\n)*/\n";
        }
        TopLevelGrammar::from_lark(lark)
    }
}

/// Returns a text as a sequence of literals and special tokens of a grammar.
fn literal(text: &str, trie: &TokTrie) -> String {
    let mut written = String::new();
    let mut plain = String::new();
    let mut rest = text;
    let flush = |plain: &mut String, written: &mut String| {
        if !plain.is_empty() {
            let _ = write!(written, "{} ", Value::from(std::mem::take(plain)));
        }
    };
    while let Some(c) = rest.chars().next() {
        let special = special_at(rest, trie);
        let len = match special {
            Some((id, len)) => {
                flush(&mut plain, &mut written);
                let _ = write!(written, "<[{id}]> ");
                len
            }
            None => {
                plain.push(c);
                c.len_utf8()
            }
        };
        rest = &rest[len..];
    }
    flush(&mut plain, &mut written);
    written
}

/// Returns the special token with whose name a text begins, and the length of the name in bytes.
fn special_at(text: &str, trie: &TokTrie) -> Option<(u32, usize)> {
    // Names of the marks of tool calls are between `<` and `>`, or `[` and `]`.
    let end = match text.as_bytes()[0] {
        b'<' => text.find('>')?,
        b'[' => text.find(']')?,
        _ => return None,
    } + 1;
    Some((trie.get_special_token(&text[..end])?, end))
}

/// Follows the free text of an output, in which tool calls may begin.
#[derive(Clone)]
pub(super) struct Watch {
    tokens: TokEnv,
    /// Beginnings of calls, each with a matcher that stands after it.
    triggers: Vec<(&'static Trigger, Matcher)>,
    /// Tokens that contain a trigger and go on after it.
    overlong: Vec<u32>,
    /// Last bytes of the text, as many as the longest trigger has.
    tail: Vec<u8>,
    /// True while the text has nothing but white space before `tail`.
    is_start: bool,
    may_repeat: bool,
    shows_special: bool,
    /// True within a call.
    pub(super) is_inside: bool,
}

impl Watch {
    pub(super) fn new(
        calls: &Calls,
        tokens: &TokEnv,
        triggers: Vec<(&'static Trigger, Matcher)>,
    ) -> Self {
        let trie = tokens.tok_trie();
        let ids = 0..u32::try_from(trie.vocab_size()).unwrap_or(u32::MAX);
        let is_overlong = |id: &u32| {
            let text = text_of(trie, *id, calls.shows_special);
            triggers.iter().any(|(trigger, _)| {
                let wanted = trigger.text.as_bytes();
                text.len() > wanted.len()
                    && text[..text.len() - 1].windows(wanted.len()).any(|part| part == wanted)
            })
        };
        Self {
            tokens: TokEnv::clone(tokens),
            overlong: ids.filter(is_overlong).collect(),
            triggers,
            tail: Vec::new(),
            is_start: true,
            may_repeat: calls.may_repeat,
            shows_special: calls.shows_special,
            is_inside: false,
        }
    }

    /// Returns the set of tokens that may come next in free text; `None` if all may. A token that goes
    /// on after a trigger may not, so that a call begins with a token.
    pub(super) fn allowed(&self) -> Option<TokenSet> {
        let trie = self.tokens.tok_trie();
        let mut banned = self.overlong.clone();
        for (trigger, _) in &self.triggers {
            let wanted = trigger.text.as_bytes();
            for begun in self.begun(trigger) {
                if let Some(node) = trie.child_at_bytes(trie.root(), &wanted[begun..]) {
                    below(trie, node, &mut banned);
                }
            }
        }
        if banned.is_empty() {
            return None;
        }
        let mut set = trie.alloc_token_set();
        set.set_all(true);
        banned.iter().for_each(|id| set.disallow_token(*id));
        Some(TokenSet::from_bits(set.into()))
    }

    /// Returns the lengths of the beginnings of a trigger, shorter than itself, with which the text
    /// ends.
    fn begun(&self, trigger: &Trigger) -> impl Iterator<Item = usize> {
        let wanted = trigger.text.as_bytes();
        let text = if trigger.at_start { self.beginning(trigger) } else { &self.tail };
        let range = match trigger.at_start {
            false => 1..wanted.len(),
            true if self.is_start => text.len()..text.len() + 1,
            true => 0..0,
        };
        range.filter(move |len| (1..wanted.len()).contains(len) && text.ends_with(&wanted[..*len]))
    }

    /// Adds a token of free text. Returns the matcher of the call that begins after it, if one does.
    pub(super) fn push(&mut self, token: u32) -> Option<Matcher> {
        let trie = self.tokens.tok_trie();
        let text = text_of(trie, token, self.shows_special);
        self.tail.extend_from_slice(text);
        let begins = |trigger: &Trigger| {
            let wanted = trigger.text.as_bytes();
            match trigger.at_start {
                false => self.tail.ends_with(wanted),
                true => self.is_start && self.beginning(trigger) == wanted,
            }
        };
        let begun = self.triggers.iter().find(|(trigger, _)| begins(trigger));
        if let Some((_, matcher)) = begun {
            let matcher = matcher.clone();
            self.tail.clear();
            (self.is_start, self.is_inside) = (false, true);
            return Some(matcher);
        }
        let longest =
            self.triggers.iter().map(|(trigger, _)| trigger.text.len()).max().unwrap_or(0);
        let dropped = self.tail.len().saturating_sub(longest);
        self.is_start &= self.tail.drain(..dropped).all(|byte| byte.is_ascii_whitespace());
        None
    }

    /// Returns the text since the start, without white space that the trigger does not begin with.
    fn beginning(&self, trigger: &Trigger) -> &[u8] {
        match trigger.text.starts_with(' ') {
            true => &self.tail,
            false => self.tail.trim_ascii_start(),
        }
    }

    /// Notes the end of a block of calls. Returns true if the output ends with it.
    pub(super) fn end(&mut self) -> bool {
        self.is_inside = false;
        !self.may_repeat
    }
}

/// Returns the bytes that a token adds to an output's text.
fn text_of(trie: &TokTrie, token: u32, shows_special: bool) -> &[u8] {
    let bytes = trie.token(token);
    match bytes.strip_prefix(&[TokTrie::SPECIAL_TOKEN_MARKER]) {
        Some(name) if shows_special => name,
        Some(_) => &[],
        None => bytes,
    }
}

/// Appends the tokens whose bytes begin with those of `node` and go on.
fn below(trie: &TokTrie, node: &TrieNode, found: &mut Vec<u32>) {
    let mut open = vec![node];
    while let Some(node) = open.pop() {
        for child in trie.node_children(node) {
            found.extend(child.token_id());
            open.push(child);
        }
    }
}
