//! Structured output (guided or constrained decoding): the mask of the tokens that may come next,
//! so that an output follows a JSON schema or a regular expression, or that its tool calls do.
//!
//! The grammars are those of the library `llguidance`. It gets the bytes of every token once per
//! model, and computes the set of allowed tokens before each sample. Structures come from strangers:
//! `expression` and `schema` limit what is built, it is built on a stack that suffices for everything
//! within the limits, and `build` ends what nobody waits for. This module must not know requests or logits.

mod build;
mod calls;
mod expression;
mod schema;
#[cfg(test)]
mod tests;

pub use build::IsWanted;
pub use calls::Calls;
pub(crate) use calls::TOOLS_MAX;

use std::fmt;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::Arc;
use std::thread;

use engine_core::sample::TokenSet;
use llguidance::api::TopLevelGrammar;
use llguidance::panic_utils::catch_unwind;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::Value;

use build::{Builder, check_wanted};
use calls::Watch;
use expression::{Expressions, check_choice};
use schema::SchemaCost;

use crate::tools::Trigger;

/// Limit on the number of lexer states of one grammar, each of one to two KB; a grammar that needs
/// more is an error. All choices of a request share the states.
const LEXER_STATES_MAX: usize = 32_768;

/// Limit on the number of symbols of one grammar, each of which takes up to 1.3 KB while it is built.
/// The grammar engine numbers them in 16 bits, and panics where they do not suffice.
const GRAMMAR_SYMBOLS_MAX: usize = 45_000;

/// Size in bytes of the stack on which a grammar is built. The grammar engine goes as deep as a
/// schema's chain of references or an object's list of properties is long, about 10 KB for each of
/// the [`schema::PARTS_MAX`] parts that a schema may have. Memory is used only for the depth that is
/// reached.
const STACK_BYTES: usize = 256 << 20;

/// Structure that an output must have: a JSON schema, a regular expression or a choice of texts.
#[derive(Debug, Clone, PartialEq)]
pub enum Structure {
    /// JSON that conforms to this schema, with properties in the schema's order.
    Json(Value),
    /// Text that this regular expression matches as a whole, in the syntax of the `regex` crate.
    Regex(String),
    /// One of these texts; at least one.
    Choice(Vec<String>),
    /// Text with tool calls.
    Calls(Calls),
}

impl Structure {
    /// Returns the structure that admits every JSON object and nothing else.
    pub fn any_object() -> Self {
        Self::Json(serde_json::json!({ "type": "object" }))
    }

    /// Refuses a structure whose grammar could take too much time or memory to build. Returns true if
    /// a text or number of the structure may have to match several regular expressions at once.
    fn check(&self) -> Result<bool, TextError> {
        match self {
            Self::Json(schema) => SchemaCost::check(schema),
            Self::Regex(expression) => Expressions::default().add(expression).map(|()| false),
            Self::Choice(texts) => check_choice(texts).map(|()| false),
            Self::Calls(calls) => calls.check(),
        }
    }

    /// Returns the grammar of the structure in the grammar engine's terms; for tool calls that of an
    /// output without free text.
    fn grammar(&self, trie: &TokTrie) -> TopLevelGrammar {
        match self {
            Self::Calls(calls) => calls.grammar(&calls.format.triggers[0], true, trie),
            Self::Json(schema) => TopLevelGrammar::from_json_schema(with_spacing(schema.clone())),
            Self::Regex(expression) => TopLevelGrammar::from_regex(expression),
            Self::Choice(texts) => {
                let escaped: Vec<String> = texts.iter().map(|text| escape(text)).collect();
                TopLevelGrammar::from_regex(&escaped.join("|"))
            }
        }
    }
}

/// Bounds the white space of JSON that conforms to `schema`: at most one space, after a comma or a
/// colon. Where any is allowed, some models write line breaks until their tokens are used up. The
/// settings `x-guidance` of the schema may say otherwise.
fn with_spacing(schema: Value) -> Value {
    let mut schema = if schema == Value::Bool(true) { serde_json::json!({}) } else { schema };
    let Value::Object(map) = &mut schema else { return schema };
    let settings = map.entry("x-guidance").or_insert_with(|| serde_json::json!({}));
    let Value::Object(settings) = settings else { return schema };
    let names = ["whitespace_flexible", "whitespace_pattern"];
    if !names.iter().any(|name| settings.contains_key(*name)) {
        settings.insert("whitespace_flexible".into(), false.into());
        settings.entry("item_separator").or_insert(", ?".into());
        settings.entry("key_separator").or_insert(": ?".into());
    }
    schema
}

/// Returns a regular expression that matches `text` and nothing else.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        // The `regex` syntax allows a backslash before all ASCII punctuation, but `\<` and `\>` match
        // the start and the end of a word.
        if c.is_ascii_punctuation() && !matches!(c, '<' | '>') {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

/// Error of structured output, of a tokenizer or of a chat template: the message for the client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TextError(pub String);

impl TextError {
    fn of(error: &dyn fmt::Display) -> Self {
        // The lines after the first are a trace of the grammar engine, or a drawing of the
        // expression with the error below it.
        let text = error.to_string();
        let mut lines = text.lines().map(str::trim);
        let first = lines.next().unwrap_or("no reason was given").to_owned();
        // A panic's message speaks of the source of the grammar engine.
        if first.starts_with("panic:") {
            return Self("the grammar engine does not support it".into());
        }
        Self(match lines.find_map(|line| line.strip_prefix("error: ")) {
            Some(reason) => format!("{first} {reason}"),
            None => first,
        })
    }
}

/// Bytes of one vocabulary token, as the grammar engine for structured output gets them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenBytes {
    /// Bytes of the token in running text, which may end within a character; for a special token
    /// those of its name.
    pub bytes: Vec<u8>,
    /// True for a special token, which stands for no text and so is part of no grammar.
    pub is_special: bool,
}

/// Grammar engine for one model's vocabulary: builds the guide of each output with a structure.
pub struct Grammars {
    factory: ParserFactory,
    tokens: TokEnv,
}

impl fmt::Debug for Grammars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grammars").finish_non_exhaustive()
    }
}

impl Grammars {
    /// Prepares the grammar engine for a vocabulary: `tokens` in order of their ids, and the
    /// `end_tokens` with which the model ends an answer.
    ///
    /// # Errors
    /// The model has no end token, or the grammar engine refuses the vocabulary.
    pub fn new(
        tokens: impl Iterator<Item = TokenBytes>,
        end_tokens: &[u32],
    ) -> Result<Self, TextError> {
        let words: Vec<Vec<u8>> = tokens
            .map(|token| {
                // llguidance recognizes special tokens by this marker.
                let marker = token.is_special.then_some(TokTrie::SPECIAL_TOKEN_MARKER);
                marker.into_iter().chain(token.bytes).collect()
            })
            .collect();
        let size = u32::try_from(words.len()).map_err(|error| TextError::of(&error))?;
        // A checkpoint may list end tokens beyond its tokenizer's vocabulary.
        let ends: Vec<u32> = end_tokens.iter().copied().filter(|id| *id < size).collect();
        let Some(end) = ends.first() else {
            return Err(TextError("the model has no token that ends an answer".into()));
        };
        // The grammar engine reports some errors by panics.
        let made = catch_unwind(AssertUnwindSafe(|| {
            let trie = TokTrie::from(&TokRxInfo::new(size, *end), &words).with_eos_tokens(&ends);
            let tokens: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
            let mut factory = ParserFactory::new_simple(&tokens)?;
            factory.quiet();
            let limits = factory.limits_mut();
            // Clients see the errors, so they must not show the engine's internals.
            limits.verbose_errors = false;
            limits.max_lexer_states = LEXER_STATES_MAX;
            limits.max_grammar_size = GRAMMAR_SYMBOLS_MAX;
            Ok((factory, tokens))
        }));
        let (factory, tokens) = made.map_err(|error| TextError::of(&error))?;
        Ok(Self { factory, tokens })
    }

    /// Builds the guide of one output that follows `structure` from the position that `opening`
    /// describes. Once `is_wanted` returns false, the guide is given up as soon as the grammar engine
    /// returns.
    ///
    /// # Errors
    /// The structure is invalid, too large, or uses features that the grammar engine does not
    /// support; no token can begin it; nobody waits for it; or the system denies a thread.
    pub fn guide(
        &self,
        structure: &Structure,
        opening: Opening,
        is_wanted: IsWanted<'_>,
    ) -> Result<Guide, TextError> {
        check_wanted(is_wanted)?;
        let built = thread::scope(|scope| {
            let thread = thread::Builder::new().name("grammar".into()).stack_size(STACK_BYTES);
            let started = thread.spawn_scoped(scope, || self.begun(structure, is_wanted));
            let started = started.map_err(|error| {
                TextError(format!("no thread can be started to build its grammar: {error}"))
            })?;
            // A panic here is not the grammar engine's, whose panics are caught.
            started.join().unwrap_or_else(|panic| resume_unwind(panic))
        });
        let (matcher, watch) = built?;
        Ok(Guide { matcher, watch, opening, seen: Vec::new() })
    }

    /// Builds the grammar of `structure` and a matcher at its beginning; for tool calls also what
    /// follows the text around them.
    fn begun(
        &self,
        structure: &Structure,
        is_wanted: IsWanted<'_>,
    ) -> Result<(Matcher, Option<Watch>), TextError> {
        let has_intersections = structure.check()?;
        let builder = Builder { factory: &self.factory, is_wanted, has_intersections };
        let trie = self.tokens.tok_trie();
        // Text may stand around calls that are neither required nor the alternative to a schema.
        let Structure::Calls(calls @ Calls { answer: None, is_required: false, .. }) = structure
        else {
            return Ok((builder.matcher(structure.grammar(trie))?, None));
        };
        let mut triggers: Vec<(&Trigger, Matcher)> = Vec::new();
        for trigger in calls.format.triggers {
            let same = triggers.iter().find(|(other, _)| other.after_name == trigger.after_name);
            let matcher = match same {
                Some((_, matcher)) => matcher.clone(),
                None => builder.matcher(calls.grammar(trigger, false, trie))?,
            };
            triggers.push((trigger, matcher));
        }
        let matcher = triggers[0].1.clone();
        Ok((matcher, Some(Watch::new(calls, &self.tokens, triggers))))
    }
}

/// Position in an output at which its structure (JSON schema or regular expression) begins: a model
/// may reason first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Opening {
    /// The structure begins with the next output token.
    AtOnce,
    /// The structure begins with the next output token, unless that is the token `open`; then it
    /// begins after the token `close`.
    Unless {
        /// Token that begins the model's reasoning.
        open: u32,
        /// Token that ends the model's reasoning.
        close: u32,
    },
    /// The structure begins after the first occurrence of this sequence of tokens; before it every
    /// token is allowed.
    After(Vec<u32>),
}

/// Matcher that follows one output token by token and computes which tokens the output's structure
/// allows next.
pub struct Guide {
    matcher: Matcher,
    /// Text around tool calls; `None` for other structures.
    watch: Option<Watch>,
    /// Condition for the beginning of the structure, as far as the output has not met it yet;
    /// [`Opening::AtOnce`] once the structure has begun.
    opening: Opening,
    /// Output tokens since [`Opening::After`] began to wait for its sequence of tokens, which must
    /// be at their end for the structure to begin.
    seen: Vec<u32>,
}

impl fmt::Debug for Guide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guide").field("opening", &self.opening).finish_non_exhaustive()
    }
}

impl Clone for Guide {
    /// Copies the guide with its position, so that the copy can follow another output. Both share
    /// the lexer's states, which grow with use, so that many choices take no more memory than one.
    /// Where the states become too many, all copies fail.
    fn clone(&self) -> Self {
        let (opening, seen) = (self.opening.clone(), self.seen.clone());
        Self { matcher: self.matcher.clone(), watch: self.watch.clone(), opening, seen }
    }
}

impl Guide {
    /// Returns the set of tokens that may come next in the output; `None` if all may, as in
    /// reasoning before the structure.
    ///
    /// # Errors
    /// The grammar has become too large to follow.
    pub fn allowed(&mut self) -> Result<Option<TokenSet>, TextError> {
        // Free text may stand before the structure.
        if matches!(self.opening, Opening::After(_)) {
            return Ok(None);
        }
        if let Some(watch) = self.watch.as_ref().filter(|watch| !watch.is_inside) {
            return Ok(watch.allowed());
        }
        let set = self.matcher.compute_mask_or_eos().map_err(|_| too_large())?;
        let mut set = TokenSet::from_bits(set.into());
        // Instead of the structure, the model may begin with its reasoning.
        if let Opening::Unless { open, .. } = self.opening {
            set.insert(open);
        }
        Ok(Some(set))
    }

    /// Advances the guide by the output's next token. Returns true if the structure is complete and
    /// no token may follow.
    ///
    /// # Errors
    /// The token is not allowed, or the grammar has become too large to follow.
    pub fn accept(&mut self, token: u32) -> Result<bool, TextError> {
        match &self.opening {
            Opening::After(wanted) => {
                self.seen.push(token);
                if self.seen.ends_with(wanted) {
                    self.opening = Opening::AtOnce;
                }
                return Ok(false);
            }
            Opening::Unless { open, close } if *open == token => {
                self.opening = Opening::After(vec![*close]);
                return Ok(false);
            }
            Opening::Unless { .. } => self.opening = Opening::AtOnce,
            Opening::AtOnce => {}
        }
        if let Some(watch) = self.watch.as_mut().filter(|watch| !watch.is_inside) {
            if let Some(matcher) = watch.push(token) {
                self.matcher = matcher;
            }
            return Ok(false);
        }
        self.matcher.consume_token(token).map_err(|_| too_large())?;
        let is_complete = self.matcher.is_stopped();
        Ok(is_complete && self.watch.as_mut().is_none_or(Watch::end))
    }
}

/// Builds the error of a grammar that cannot be followed further: it needs more lexer states or
/// parser items than one grammar may have.
fn too_large() -> TextError {
    let hint = "hint: fewer optional properties, alternatives or repetitions";
    TextError(format!("its grammar has become too large to follow; {hint}"))
}
